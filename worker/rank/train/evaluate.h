// SPDX-License-Identifier: Apache-2.0
// Evaluations: the eval program over the evaluation set's batches, the same ones each time.
//
// What is reported is a mean over a batch, B samples. The rest of the set, r samples, is run with its
// last sample in the other places, and that sample alone in all of them: the sum over the rest is
// B · the first mean − (B − r) · the second. That holds for whatever is a mean over samples; a model
// that takes its samples together (`mixed` of carry.h, groups of experts' tokens) is not asked of the
// rest.
// Inside worker/rank/train/ only.
#pragma once
#include "common/data/sampler.h"
#include "common/job/job.h"
#include "worker/rank/train/inputs.h"

struct evaluation {
    struct exec *exec; // borrowed
    struct progress_page *page;
    struct dataset set;
    struct sampler_eval sampler;
    uint64_t left_out; // samples of the rest, where the model cannot be asked of less than a batch
    struct inputs inputs;
    void *metrics;    // the metrics vector on the device: the loss, then its parts
    int64_t slots;    // of that vector
    int64_t accuracy; // the slot of the accuracy; −1: the model has none
    float *slot;      // the vector of one batch
    double *mean;     // over all batches of the newest evaluation
};

// Opens the job's evaluation set. A zeroed struct may be closed.
int evaluation_open(struct evaluation *v, const struct exec_options *o, struct exec *x,
                    const struct job *job, const char *data_root, struct err *e);
void evaluation_close(struct evaluation *v);
// Means over all batches; every rank takes part and gets the same numbers. `accuracy` is NaN when
// the model has none.
int evaluation_run(struct evaluation *v, double *loss, double *accuracy, struct err *e);
