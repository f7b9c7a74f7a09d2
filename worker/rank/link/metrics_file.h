// SPDX-License-Identifier: Apache-2.0
// Metrics: one JSON object a line in metrics.jsonl, written by rank 0, and the step report that
// carries the same numbers over the link.
//
// On resume the rows up to the restored step are copied to a temporary file that is renamed over
// the old one: a zombie of an older attempt keeps writing to the old inode. Rows are written with
// one write(2) each and never synced: after a power loss the last ones may be missing, none is wrong.
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
struct step_row {
    int64_t step;  // updates done, this one included: the first is 1, as in "step-00000200"
    int64_t steps; // of the whole job; not in the file
    double loss, grad_norm, lr;
    double tokens_per_s; // negative: the data has no tokens (null)
    double samples_per_s, step_ms;
    double mean_ms;  // recent mean of step_ms, for people (train/pace.h); not in the file
    int64_t dropped; // updates so far in this attempt that were not finite; not in the file
    bool evaluated;  // an evaluation followed this step: the two below are set
    double eval_loss, eval_accuracy;
    struct row_parts parts, eval_parts; // of the step, of the evaluation; only in the file
    int nsamples;                       // taken after the evaluation; 0: none
    const char *const *samples;         // their texts, borrowed
    const char *sample_prompt;          // what they continue, borrowed; with samples only
};

// "88100 tokens/s", by the mean time of recent steps; "… samples/s" where the data has no tokens.
const char *row_speed_text(const struct step_row *row, char out[40]);

struct metrics;
// Keeps the rows with step ≤ restored_step (0: none) and opens the file to append. At the first row
// that cannot be read the rest is left out, with a warning in the log.
int metrics_open(const char *path, const char *run_id, int64_t restored_step, struct metrics **out,
                 struct err *e);
// Non-finite numbers are written as null and listed under "nonfinite". After an error nothing of the
// row is in the file, and the next row may be written.
int metrics_write(struct metrics *m, const struct step_row *row, struct err *e);
void metrics_close(struct metrics *m); // null is fine
