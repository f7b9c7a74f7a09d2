// SPDX-License-Identifier: Apache-2.0
// From a program and its sizes to the graph of one microbatch. LANGUAGE.md says what programs mean.
#pragma once
#include "common/base/schema.h"
#include "common/compile/graph/graph.h"
#include "common/compile/program/schedule.h"
#include "common/language/model_sizes.h"

struct model_run {
    enum program_kind kind;
    int64_t batch;             // samples of the microbatch
    int64_t step_batch;        // of the whole step: what `samples` is
    int64_t seed;              // of all that is drawn
    bool bytes;                // images are bytes, 0 to 255, read as 0 to 1
    struct job_layers *layers; // of a train program: how many it has; null: nobody asks
    // Called for each name that a line gives a value, with its dimensions, "[batch, seq]". May be
    // null.
    void (*named)(void *ctx, int line, const char *name, const char *dims);
    // Called for each parameter that one turn of a repeat reads again, in this line, and first in
    // another or in the same one. May be null.
    void (*reread)(void *ctx, int line, const char *param, int first_line);
    void *ctx;
};

// Emits the forward part: g->loss, and the sums that are reported as g->parts. A sample program
// leaves the sum "logits", of each sample's last position, as g->loss. Returns g->failed: ERR_INVALID
// with "gpt2.model:12:7: …" in g->err where the program asks for what cannot be.
int model_build(struct graph *g, const struct model_sizes *sizes, const struct model_run *run);
