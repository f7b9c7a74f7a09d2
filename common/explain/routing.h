// SPDX-License-Identifier: Apache-2.0
// Experts on a mesh: an order of axes that costs gathers, an axis that deals experts and repeats the
// rest, and what a router's choices and places mean for what it learns and drops.
// Inside common/explain/ only.
#pragma once
#include "common/compile/shard/sharding.h"
#include "common/explain/findings.h"

// Holds the SLOTS of the unpartitioned graph against the rules of s.
void routing_check(const struct sharding *s, const struct job *job, const struct mesh *m,
                   const struct graph *g, struct findings *f);
