// SPDX-License-Identifier: Apache-2.0
// What other ops use of the sums: the last step of a reduction over rows that was made in parts.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Each output of the call from number `first` on, or what it holds and, becomes the sum of `parts`
// rows of `cols` f32; the rows of one lie behind those of the one before. It is one launch.
int reduce_parts(struct stream_q *q, const struct op_call *c, int first, const float *partial,
                 int64_t parts, int64_t cols, struct err *e);

#ifdef __cplusplus
}
#endif
