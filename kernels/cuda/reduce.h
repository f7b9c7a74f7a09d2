// SPDX-License-Identifier: Apache-2.0
// What other ops use of the sums: the last step of a reduction over rows that was made in parts.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// out[0] of the call, or what it holds and, becomes the sum of `parts` rows of `cols` f32.
int reduce_parts(struct stream_q *q, const struct op_call *c, const float *partial, int64_t parts,
                 int64_t cols, struct err *e);

#ifdef __cplusplus
}
#endif
