// SPDX-License-Identifier: Apache-2.0
// Which samples a step takes: see sampler.h.
#include "common/data/sampler.h"

#include "common/base/rand.h"

uint64_t sampler_drawn(const struct sampler *s, uint64_t step)
{
    PRE(step >= s->from && step - s->from <= ((uint64_t)INT64_MAX - s->drawn) / s->batch);
    return s->drawn + (step - s->from) * s->batch;
}

void sampler_ids(const struct sampler *s, uint64_t step, uint64_t first, size_t count,
                 uint64_t *out)
{
    PRE(s->n >= 1 && s->batch >= 1 && first <= s->batch && count <= s->batch - first);
    uint64_t draw = sampler_drawn(s, step) + first;
    uint64_t epoch = draw / s->n, index = draw % s->n;
    for (size_t i = 0; i < count; i++) {
        out[i] = rand_permute(index, s->n, s->seed, epoch);
        if (++index == s->n) {
            index = 0;
            epoch++;
        }
    }
}

void sampler_eval_init(struct sampler_eval *s, uint64_t n, uint64_t batch, uint64_t wanted)
{
    PRE(batch >= 1 && n >= 1);
    uint64_t batches = n / batch;
    bool all = !wanted || wanted > batches;
    *s = (struct sampler_eval){.n = n, .batch = batch, .batches = all ? batches : wanted};
    s->rest = all ? n % batch : 0;
}

void sampler_eval_ids(const struct sampler_eval *s, uint64_t k, uint64_t first, size_t count,
                      uint64_t *out)
{
    PRE(first <= s->batch && count <= s->batch - first);
    for (size_t i = 0; i < count; i++) {
        uint64_t id = k * s->batch + first + i;
        out[i] = id < s->n ? id : s->n - 1;
    }
}
