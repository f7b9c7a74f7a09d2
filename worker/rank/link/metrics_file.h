// SPDX-License-Identifier: Apache-2.0
// Metrics: one JSON object a line in metrics.jsonl, written by rank 0, and the step report that
// carries the same numbers over the link.
//
// On resume the rows up to the restored step are copied to a temporary file that is renamed over
// the old one: a zombie of an older attempt keeps writing to the old inode. Rows are written with
// one write(2) each and never synced: after a power loss the file ends early, it does not lie. A file
// that somebody removes, with its folder or without, is made again with all its rows: at once, else
// after pauses that grow to a minute, and at the end. The log says so.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

// What stands beside the loss: so many numbers. Those of one name (of all layers) stand in one list.
struct row_part {
    const char *name;
    int64_t count;
};
struct row_parts { // borrowed; the numbers of all stand one after the other
    int n;
    const struct row_part *part;
    const double *value; // null: there are none
};
struct step_row {
    int64_t step;  // updates done, this one included: the first is 1, as in "step-00000200"
    int64_t steps; // of the whole job; not in the file
    double loss, grad_norm, lr;
    double tokens_per_s; // negative: the data has no tokens (null)
    double samples_per_s, step_ms;
    double mean_ms; // of the steps of late, for people (train/pace.h); not in the file
    bool evaluated; // the two below are there
    double eval_loss, eval_accuracy;
    // What the model reports beside the loss, in training and in an evaluation; in the file alone.
    struct row_parts parts, eval_parts;
    int nsamples; // of an evaluation: texts, borrowed; 0: the job asks for none
    const char *const *samples;
    const char *sample_prompt; // what they continue, borrowed; not in the file
};

// "88100 tokens/s", by the mean; "/s" of samples where the data has no tokens.
const char *row_speed_text(const struct step_row *row, char out[40]);

struct metrics;
// Keeps the rows with step ≤ restored_step (0: none) and opens the file to append. Rows that do not
// parse end the copy there with a warning in the log.
int metrics_open(const char *path, const char *run_id, int64_t restored_step, struct metrics **out,
                 struct err *e);
// Non-finite numbers are written as null and listed under "nonfinite". A row that cannot be written
// whole is left out; a later one may be written again.
int metrics_write(struct metrics *m, const struct step_row *row, struct err *e);
void metrics_close(struct metrics *m); // null is fine
