// SPDX-License-Identifier: Apache-2.0
// Norms of the weights and of one update, for each group of parameters (metrics.detail).
// Inside worker/rank/train/ only.
//
//   before the step:  each rank copies its share of the parameters to host memory; the shares of all
//                     ranks are each number once
//   after it:         it compares, piece by piece, and sums squares by group
//   the next step:    the sums travel with that step's metrics, of which every rank reads the total
//
// So a detailed step waits for the device, and no other step does.
#pragma once
#include "worker/rank/exec/model_state.h"
#include "worker/rank/link/rank_link.h"

struct detail;

// The arena keeps what is made; `mesh` and `state` are borrowed.
int detail_open(const struct compiled *c, struct state *state, int rank, struct arena *a,
                struct detail **out, struct err *e);
void detail_close(struct detail *d); // null is fine
int detail_begin(struct detail *d, struct err *e);
int detail_end(struct detail *d, struct err *e);
// Writes this rank's part of what travels with the next step; false: it is what it was a step ago.
bool detail_put(struct detail *d, float *slots);
// Takes the sums of all ranks, of the update `step`, out of the metrics of the one behind it.
void detail_take(struct detail *d, const float *slots, int64_t step);
// For the next row: of the newest step that was taken and has not been written; n is 0 without one.
struct row_detail detail_row(const struct detail *d);
void detail_written(struct detail *d);
