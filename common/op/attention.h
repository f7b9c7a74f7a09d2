// SPDX-License-Identifier: Apache-2.0
// What attention takes on CUDA beyond its operands: the compiler reserves it, and the kernels stay
// within it. By shapes alone: which kernel serves a call is decided on the device.
#pragma once
#include "common/op/op.h"

// The scratch of our own kernels. Forward needs none. A gradient keeps three floats for each row of
// queries: the maximum and 1 / sum of its softmax, and the mean that the softmax's gradient
// subtracts.
enum { ATTENTION_ROW_STATS = 3 };
size_t attention_own_bytes(const struct op_call *c);

// The scratch of a library's kernels. 0: the library does not serve the call, because its positions
// are not in order, it has dropout, or one head needs more than ATTENTION_HEAD_BYTES.
//
// Forward needs a float for each row. A gradient runs the forward again; for each head that it
// works on at a time it keeps y, two floats for each row, either a bf16 score for each pair or dq
// in f32, and dk and dv if query heads share them. It gets what all heads need together, but no
// more than ATTENTION_LIBRARY_BYTES or what one head needs, whichever is larger.
enum { ATTENTION_LIBRARY_BYTES = 256 << 20, ATTENTION_HEAD_BYTES = 1 << 30 };
size_t attention_library_bytes(const struct op_call *c);
