// SPDX-License-Identifier: Apache-2.0
// Numbers to time algorithms on. A GPU draws less power, and so clocks higher, while it multiplies
// zeros: what is the fastest there need not be the fastest on a model's numbers.
// Inside worker/rank/exec/ only.
#pragma once
#include "kernels/backend.h"

// Fills device memory with random numbers of about 1/64, which are such numbers read as f32 and as
// bf16 alike: products of them, however many are chained, neither vanish nor overflow. Returns when
// the device has them all.
int noise_fill(const struct backend *b, struct stream_q *q, void *to, uint64_t bytes,
               struct err *e);
