// SPDX-License-Identifier: Apache-2.0
// A table of a plan for people: columns as wide as their widest cell, and rows that say the same of
// several layers as one row: "layers/0…11/norm1/weight", with how many it stands for.
// Inside common/explain/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/map.h"

enum { PLAN_CELLS = 4 };

struct plan_row {
    const char *cell[PLAN_CELLS]; // "" where the table has fewer columns
    const char *tail;             // behind the columns
    int *layers, n, cap;          // whose rows these are; n 0: of no layer
    int begin, end;               // where the number of the layer stands in the name
};
struct plan_table {
    struct arena *arena;
    int name; // which cell names a tensor
    struct plan_row *rows;
    int n, cap;
    struct map known; // what a row says without its layer → 1 + its place in `rows`
};

void plan_table_add(struct plan_table *t, const char *const cells[PLAN_CELLS], const char *tail);
void plan_table_print(struct plan_table *t, struct buf *out);
void plan_table_clear(struct plan_table *t); // what is not the arena's
