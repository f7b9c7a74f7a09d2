// SPDX-License-Identifier: Apache-2.0
// Pictures of a plan for a terminal: pure text from what was compiled, no line
// wider than asked.
//
//   mesh      which rank stands where
//   sharding  which devices hold which block of every parameter and activation
//   schedule  what each stage does when, and when it waits
//   memory    bytes by category, over the step, and what lives at its fullest
//   moment
//
// What is too much to show is left out in the middle, behind an ellipsis.
#pragma once
#include "common/base/buf.h"
#include "common/compile/compile.h"

enum picture { PICTURE_MESH, PICTURE_SHARDING, PICTURE_SCHEDULE, PICTURE_MEMORY, PICTURE_KINDS };
const char *picture_name(enum picture p);

enum { PICTURE_NARROWEST = 40 }; // columns; less is taken for this
void picture_print(enum picture p, const struct compiled *c, int width, struct buf *out);

// ---- for the pictures --------------------------------------------------------------------------

void picture_mesh(const struct compiled *c, int width, struct buf *out);
void picture_sharding(const struct compiled *c, int width, struct buf *out);
void picture_schedule(const struct compiled *c, int width, struct buf *out);
void picture_memory(const struct compiled *c, int width, struct buf *out);

void put_times(struct buf *out, const char *utf8, int times);
// Blanks behind it, or its end left out.
void put_padded(struct buf *out, const char *utf8, int columns);

// A table with frames. Texts are asked for when they are shown; they are
// arena-owned or literal.
enum { GRID_ROWS = 16 };
struct grid {
    int rows, cols, most; // rows that are shown, at most GRID_ROWS
    const char *(*cell)(const struct grid *g, int row, int col);
    const char *(*row_label)(const struct grid *g, int row);
    const char *(*col_label)(const struct grid *g, int col);
    const void *of;
    struct arena *arena;
};
void grid_print(const struct grid *g, int width, struct buf *out);
