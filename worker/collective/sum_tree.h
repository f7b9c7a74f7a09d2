// SPDX-License-Identifier: Apache-2.0
// The sum that all ranks agree on: a fixed balanced binary tree over the operands' order,
// (((0+1)+(2+3))+…). For n not a power of two it is the tree of the next power with the missing
// leaves left out. A bf16 operand is widened to f32, summed there, and the sum is rounded once, to
// nearest even. Pure: no ranks, no transport, so its bits are testable alone.
// Inside worker/collective/ only.
#pragma once
#include <stddef.h>

#include "common/op/op.h"

enum { TREE_MAX = 4096 }; // operands

// dst[d][i] = the tree over src[0][i] … src[n-1][i], for every d. A destination may be one of the
// sources; apart from that nothing overlaps. All are of type t, DT_F32 or DT_BF16. 1 ≤ n ≤
// TREE_MAX, nd ≥ 1. tree_max: the largest that is a number, in any order.
void tree_max(enum dtype t, void *const *dst, int nd, const void *const *src, int n, size_t count);
void tree_sum(enum dtype t, void *const *dst, int nd, const void *const *src, int n, size_t count);
