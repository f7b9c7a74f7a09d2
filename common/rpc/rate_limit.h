// SPDX-License-Identifier: Apache-2.0
// How often a caller may call: each has a bucket of tokens that fills again with time. Callers are
// names. One that has not come for long is forgotten, and when too many are known at once the rest
// share one bucket, so that memory is bounded whoever comes. Inside common/rpc/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/map.h"

enum { RATE_BURST = 4, RATE_CALLERS = 4096 }; // RATE_BURST: seconds' worth that may come at once

struct rate {
    int per_s;
    struct map callers; // name → struct bucket
};

void rate_init(struct rate *r, int per_s);
void rate_clear(struct rate *r);
// Whether `who` has a token left now (a monotonic clock); takes it.
bool rate_take(struct rate *r, const char *who, int64_t now_ns);
