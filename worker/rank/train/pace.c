// SPDX-License-Identifier: Apache-2.0
// The mean time of a step; see pace.h.
#include "worker/rank/train/pace.h"

#include <math.h>

#define RECENT_MS    10000.0
#define RECENT_STEPS 16.0 // at least

double pace_add(struct pace *p, double ms)
{
    double keep = exp(-fmin(ms / RECENT_MS, 1 / RECENT_STEPS));
    p->steps = keep * p->steps + 1;
    p->ms = keep * p->ms + ms;
    return p->ms / p->steps;
}
