// SPDX-License-Identifier: Apache-2.0
// The last step of a reduction over rows that was made in parts, for other ops than SUM.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sums `parts` rows of `cols` f32 into each output of the call from number `first` on; where the
// call accumulates, the sum is added to what the output holds. `partial` has the rows of the first
// of these outputs, then those of the next. It is one launch.
int reduce_parts(struct stream_q *q, const struct op_call *c, int first, const float *partial,
                 int64_t parts, int64_t cols, struct err *e);

#ifdef __cplusplus
}
#endif
