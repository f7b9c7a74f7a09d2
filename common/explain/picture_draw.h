// SPDX-License-Identifier: Apache-2.0
// The pictures of a plan, and what they share: padded columns and framed grids. Inside explain/
// only.
#pragma once
#include "common/base/buf.h"
#include "common/compile/compile.h"

void picture_mesh(const struct compiled *c, int width, struct buf *out);
void picture_sharding(const struct compiled *c, int width, struct buf *out);
void picture_schedule(const struct compiled *c, int width, struct buf *out);
void picture_memory(const struct compiled *c, int width, struct buf *out);

void put_times(struct buf *out, const char *utf8, int times);
// Puts the text into so many columns: with blanks behind it, or without its end.
void put_padded(struct buf *out, const char *utf8, int columns);

// A row with a bar: so many bytes of a whole, "  params      12.0 MiB     25 % ███".
enum { PICTURE_NAME = 12, PICTURE_BYTES = 12 };
void picture_bar(const char *what, uint64_t bytes, uint64_t of, int width, struct buf *out);
// A bar for each category of a device's memory.
void picture_categories(const struct memory *m, uint64_t of, int width, struct buf *out);

// A table with frames. Texts are asked for when they are shown; they are arena-owned or literal.
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
