// SPDX-License-Identifier: Apache-2.0
// The sentence about lost steps; see lost_steps.h.
#include "common/ckpt/lost_steps.h"

#include <stdio.h>

#include "common/base/err.h"

void lost_steps_print(const struct lost_steps *l, char out[LOST_STEPS_MAX])
{
    int64_t first = (l->from ? l->from_step : 0) + 1;
    PRE(l->had_step >= first);
    if (l->from)
        snprintf(out, LOST_STEPS_MAX,
                 "continues from %s: the checkpoint of step %lld is %s, so steps %lld to %lld are "
                 "trained again",
                 l->from, (long long)l->had_step, l->damaged ? "damaged" : "gone", (long long)first,
                 (long long)l->had_step);
    else
        snprintf(out, LOST_STEPS_MAX,
                 "starts again at step 0: the folder holds no checkpoint, and had one of step %lld",
                 (long long)l->had_step);
}
