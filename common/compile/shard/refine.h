// SPDX-License-Identifier: Apache-2.0
// Gradients and optimiser state cut further than their parameters: sharding.grads and
// sharding.optimizer. In each dimension the axes that cut the parameter must come first
// among those that cut its gradient, and these first among those of its state. Where the job asks for
// anything else, a fact says so and the coarser cut is used. Inside common/compile/shard/ only.
//
// State cut finer alone is ZeRO-1: the gradient is reduced into that cut once a step, the update
// runs on it and the parameter is gathered. Gradients cut finer too is ZeRO-2: scattered in every
// microbatch. A cut parameter is ZeRO-3.
#pragma once
#include "common/compile/shard/sharding.h"

// The specs of a parameter's gradient and of its optimiser state.
struct spec refine_grad(const struct sharding *s, const struct mesh *m, const struct value *param);
struct spec refine_state(const struct sharding *s, const struct mesh *m, const struct value *param);

// Holds both against the parameters of the unpartitioned graph. Called by sharding_check().
void refine_check(struct sharding *s, const struct mesh *m, const struct graph *g);
