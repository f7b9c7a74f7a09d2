// SPDX-License-Identifier: Apache-2.0
// The plan in words: what `weft plan` prints, as text for people and as the JSON contract of README.
#pragma once
#include "common/base/json.h"
#include "common/explain/cost.h"
#include "common/explain/device_models.h"
#include "common/explain/findings.h"

struct report {
    const struct job *job;
    const struct compiled *compiled;
    const struct findings *findings;
    const struct device_model *device;
    struct cost cost;
    uint64_t *staging; // of a stage: host memory, two batches and the checkpoint share
    int fullest;       // the stage whose device holds the most
    bool fits;
    const char *source; // what is taken of checkpoint.from, for people; null: nothing
    const char *absent; // data files that cannot be opened here, for people; null: all can
};

// Everything is borrowed.
void report_make(struct report *r, const struct job *job, const struct compiled *c,
                 const struct findings *found, const struct device_model *d, struct arena *a);
void report_text(const struct report *r, struct buf *out);
void report_json(const struct report *r, struct json_out *w); // one object
// Prints the parameters of a graph, each with its dimensions and how many numbers it has.
void report_params(const struct graph *g, struct buf *out);
// Prints all errors that the compiler has found in the job of a file, a line each with its fixes;
// or, if compiling failed before there were findings, that one failure.
void report_errors(const char *file, const struct findings *found, const struct err *e,
                   struct buf *out);
