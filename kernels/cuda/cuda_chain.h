// SPDX-License-Identifier: Apache-2.0
// Runs the steps of a CHAIN, or those of a LINEAR, whose product is register 0.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "common/op/chain.h"

// Runs attr.chain over the outputs of a CHAIN or LINEAR, in one launch. `product` (LINEAR: register
// 0, dense and shaped as the outputs, f32 or bf16; CHAIN: null) may lie where an output will, if it
// has that one's dtype: an element's registers are all read before its outputs are written.
int chain_apply(struct stream_q *q, const struct op_call *c, const struct tensor *product,
                struct err *e);

#ifdef __cplusplus
}
#endif
