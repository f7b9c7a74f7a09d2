// SPDX-License-Identifier: Apache-2.0
// What attention takes on CUDA beyond its operands: the compiler reserves it, and the kernels stay
// within it. By shapes alone: which kernel serves a call is decided on the device.
#pragma once
#include "common/op/op.h"

// Of our own kernels: what tells a row's softmax, and the mean that its gradient takes off.
enum { ATTENTION_ROW_STATS = 3 };
size_t attention_own_bytes(const struct op_call *c);

// Of a library's, for calls in order and without dropout; 0: it is not asked. Forward: a number a
// row. A gradient runs the forward again and keeps, for as many heads as it works on at a time,
// y, numbers a row, a score in bf16 for each pair, and dk and dv where heads share them: it gets
// what all heads need, at most ATTENTION_LIBRARY_BYTES, yet what one head needs as long as that is
// not above ATTENTION_HEAD_BYTES.
enum { ATTENTION_LIBRARY_BYTES = 256 << 20, ATTENTION_HEAD_BYTES = 1 << 30 };
size_t attention_library_bytes(const struct op_call *c);
