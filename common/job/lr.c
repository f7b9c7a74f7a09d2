// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules. See lr.h.
#include "common/job/lr.h"

#include <math.h>

double lr_at(const struct job_schedule *s, int64_t step)
{
    switch ((enum job_schedule_kind)s->kind) {
    case JOB_LINEAR: {
        double left = 1 - (double)(step < s->steps ? step : s->steps) / (double)s->steps;
        return s->end + (s->init - s->end) * left;
    }
    case JOB_COSINE: // without a warm-up
    case JOB_WARMUP_COSINE:
        // Linear from init to peak over `warmup` steps, then a cosine from peak to end that reaches it at
        // step `decay` (warm-up counted in) and stays.
        if (step < s->warmup)
            return s->init + (s->peak - s->init) * ((double)step / (double)s->warmup);
        double span = (double)(s->decay - s->warmup);
        double t = fmin((double)(step - s->warmup), span);
        return s->end + (s->peak - s->end) * 0.5 * (1 + cos(M_PI * t / span));
    case JOB_CONSTANT:
        break;
    }
    return s->value;
}

void hyper_at(const struct job *job, int64_t step, int64_t updates, float out[HYPER_SLOTS])
{
    double count = (double)(updates + 1);
    out[HYPER_LR] = (float)lr_at(&job->schedule, step);
    out[HYPER_BIAS1] = (float)(1 / (1 - pow(job->optimizer.beta1, count)));
    out[HYPER_BIAS2] = (float)(1 / (1 - pow(job->optimizer.beta2, count)));
}
