// SPDX-License-Identifier: Apache-2.0
// The values that a parameter is born with. Each is a pure function of the seed, the parameter's
// path and the element's index in the whole tensor, so every mesh begins with the same ones,
// whoever draws them and in whatever order. Inside worker/rank/exec/ only.
#pragma once
#include "common/ckpt/deal.h"
#include "common/compile/graph/graph.h"

// Makes elements [at, at + len) of a part of the parameter `v`, which is not born zero. `threads`
// threads share the work; the caller's does the share of one that cannot be started.
void initial_values(const struct deal_part *p, const struct value *v, uint64_t seed, int64_t at,
                    int64_t len, int threads, float *out);
