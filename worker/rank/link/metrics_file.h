// SPDX-License-Identifier: Apache-2.0
// Metrics: one JSON object a line in metrics.jsonl, written by rank 0, and the step report that
// carries the same numbers over the link.
//
// The file is only appended to: a resume writes its rows behind those that are there, under a newer
// attempt. A reader drops what they replace: a row of a newer attempt at step s makes all rows of older
// ones with step >= s void, and rows of an older attempt behind a newer one, which a zombie wrote, count
// for nothing. Rows are written with one write(2) each and never synced: after a power loss the last
// ones may be missing, none is wrong.
//
// If somebody removes the file, with or without its folder, it is made again with all its rows. That
// is tried at once, then after pauses that grow to about a minute, and once more at the end; the log
// says so. Inside worker/rank/link/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

// A part of the metrics: what a model reports beside the loss, `count` numbers. Parts of one name
// (each layer may report one) become one list in the file.
struct row_part {
    const char *name;
    int64_t count;
};
struct row_parts { // borrowed
    int n;
    const struct row_part *part;
    const double *value; // the numbers of all parts, one after the other; null: there are none
};
struct row_detail { // borrowed; n is 0: no detail
    int64_t step;   // whose update it is, at most two before the row's
    int n;
    const struct row_group {
        const char *name; // of a layer, "layers/0", or of a parameter that is in none
        double weight_norm, update_norm;
    } * group;
};
// Times and the mean loss are means over the steps since the row before.
struct step_row {
    // Updates done, this one included: the first is 1, as in "step-00000200". 0: of an evaluation alone,
    // where loss, loss_mean, grad_norm and lr are null.
    int64_t step;
    int64_t steps; // of the whole job; not in the file
    int64_t t_ms;  // since 1970
    double loss, loss_mean, grad_norm, lr;
    double tokens_per_s; // negative: the data has no tokens (null)
    double samples_per_s;
    double step_ms, input_ms, compute_ms,
        checkpoint_ms;       // the last three and the next make up a step
    double communication_ms; // negative: the device does not say, so that compute_ms has it (null)
    double mean_ms;     // recent mean of a step's time, for people (train/pace.h); not in the file
    double flops_per_s; // of the model, by all ranks together
    double mfu;         // negative: the device's peak is not known (null)
    uint64_t memory_bytes,
        memory_planned_bytes; // of this rank: the most so far, what the plan said
    int64_t dropped;          // updates so far in this attempt that were not finite
    bool evaluated;           // an evaluation followed this step: the two below are set
    double eval_loss, eval_accuracy;
    struct row_parts parts, eval_parts; // of the step, of the evaluation; only in the file
    int nsamples;                       // taken after the evaluation; 0: none
    const char *const *samples;         // their texts, borrowed
    const char *sample_prompt;          // what they continue, borrowed; with samples only
    struct row_detail detail;           // only in the file
};

// "88100 tokens/s", by the mean time of recent steps; "… samples/s" where the data has no tokens.
const char *row_speed_text(const struct step_row *row, char out[40]);

struct metrics;
// Opens the file to append, and makes it where there is none. A last row that is not whole stays,
// with a warning in the log, and the next row begins on a new line.
int metrics_open(const char *path, uint64_t attempt, struct metrics **out, struct err *e);
// Non-finite numbers are written as null and listed under "nonfinite". After an error half of the
// row may be in the file, and the next row, which may be written, begins on a new line.
int metrics_write(struct metrics *m, const struct step_row *row, struct err *e);
void metrics_close(struct metrics *m); // null is fine
