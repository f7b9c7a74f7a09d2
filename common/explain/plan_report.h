// SPDX-License-Identifier: Apache-2.0
// The plan in words: what `weft plan` prints, as text for people and as the JSON contract of README.
#pragma once
#include "common/base/json.h"
#include "common/explain/cost.h"
#include "common/explain/device_models.h"
#include "common/explain/findings.h"

struct report_param {
    const struct program *program; // of the first stage that has it
    const struct buffer *buffer;
    const struct value *value;
};
struct report {
    const struct job *job;
    const struct compiled *compiled;
    const struct findings *findings;
    const struct device_model *device;
    struct cost cost;
    struct estimate estimate;
    double token_flops; // 6N + 6LCT: what MFU counts a token; 0: no model of tokens with an embed
    struct report_param *params;
    int nparams;
    const char *schedule; // of the pipeline; null: there is none
    // Whether the job leaves it to its first start how many threads it has. On devices that are no
    // CPUs that does not matter: the host's threads only draw the first parameters.
    bool leaves_threads;
    uint64_t *staging;   // of a stage: host memory, two batches and the checkpoint share
    uint64_t checkpoint; // bytes of a whole one, which all devices write together
    int fullest;         // the stage whose device holds the most
    bool fits;
    const char *source; // what is taken of checkpoint.from, for people; null: nothing
    const char *absent; // data files that cannot be opened here, for people; null: all can
};

// Everything is borrowed.
void report_make(struct report *r, const struct job *job, const struct compiled *c,
                 const struct findings *found, const struct device_model *d, struct arena *a);
// What one asks first, on a screen so wide; `full`: with all parameters, collectives and stages.
void report_text(const struct report *r, bool full, int width, struct buf *out);
// The shares of the devices' peak that a step of so many seconds is; below 0: not known.
double report_mfu(const struct report *r, double seconds);
// What a device holds beside the plan's arena, as bars.
void report_beside_text(const struct memory *m, const struct device_model *d, uint64_t of,
                        int width, struct buf *out);
// What a device holds, as members of an object.
void report_memory_json(const struct memory *m, const struct device_model *d, struct json_out *w);
// The members `collectives` and `sent` of an object.
void report_sent_json(const struct cost *cost, const struct compiled *of, struct json_out *w);
void report_json(const struct report *r, struct json_out *w); // one object
// Prints the parameters of a graph, each with its dimensions and how many numbers it has.
void report_params(const struct graph *g, struct buf *out);
// Prints all errors that the compiler has found in the job of a file, a line each with its fixes;
// or, if compiling failed before there were findings, that one failure.
void report_errors(const char *file, const struct findings *found, const struct err *e,
                   struct buf *out);
