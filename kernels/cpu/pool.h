// SPDX-License-Identifier: Apache-2.0
// The compute threads of one device: a parallel loop over slices fixed by count and threads.
// Inside kernels/cpu/ only.
//
// The caller computes too: a pool of n threads starts n − 1. One thread at a time may call
// pool_for. Between loops the threads spin for a moment, then sleep on a futex.
#pragma once
#include <stdint.h>

#include "common/base/err.h"

struct pool;
int pool_new(int threads, struct pool **out, struct err *e);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);

typedef void (*pool_fn)(void *arg, int64_t begin, int64_t end);

// Calls fn on disjoint slices that cover [0, count); returns when all are done. Slices begin at
// multiples of `grain`, which is also the least work for which a thread is worth its while: a loop
// of less than two grains runs in the caller.
void pool_for(struct pool *p, int64_t count, int64_t grain, pool_fn fn, void *arg);
