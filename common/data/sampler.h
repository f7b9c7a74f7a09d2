// SPDX-License-Identifier: Apache-2.0
// Which samples a step takes: a pure function of (n, batch, seed, step, batch position), so no
// mesh, rank count or resumption changes it. The whole state is the step and how many samples were
// drawn before it, which are step·batch unless the batch was changed on the way.
//
// Training: position p of step s is draw g = drawn + (s − from)·batch + p; epoch = g / n; the sample
// is rand_permute(g mod n, n, seed, epoch). Every sample comes once an epoch, and an epoch ends
// wherever it ends inside a batch. A set of fewer samples than a batch is refused (job_set.h).
// Evaluation: batches of consecutive samples, the same ones each time: ⌊n / batch⌋, or fewer where the
// job says so. Where it wants all, the rest makes one batch more, filled up with the last sample.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct sampler {
    uint64_t n, batch; // samples; samples of a step over all ranks and microbatches
    uint64_t seed;
    uint64_t from, drawn; // before step `from` so many were drawn, perhaps in other batches
};

// How many samples the steps before `step` have drawn; step ≥ from.
uint64_t sampler_drawn(const struct sampler *s, uint64_t step);

// The global numbers of the samples at batch positions [first, first + count) of `step`; a rank
// asks for the positions it holds. first + count ≤ batch; step·batch below 2^63.
void sampler_ids(const struct sampler *s, uint64_t step, uint64_t first, size_t count,
                 uint64_t *out);

struct sampler_eval {
    uint64_t n, batch;
    uint64_t batches; // whole ones
    uint64_t rest;    // samples behind them that are evaluated too
};

// `wanted` batches, or as many as there are; 0: all.
void sampler_eval_init(struct sampler_eval *s, uint64_t n, uint64_t batch, uint64_t wanted);
// As sampler_ids(), of batch k < batches. Batch `batches` is the rest and, in every place behind it, the
// set's last sample; each one after that is the last sample alone.
void sampler_eval_ids(const struct sampler_eval *s, uint64_t k, uint64_t first, size_t count,
                      uint64_t *out);
