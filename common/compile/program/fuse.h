// SPDX-License-Identifier: Apache-2.0
// Fusion: nodes next to each other become one that the backend has a kernel for. It changes speed
// and rounding, never meaning.
//
// It runs on the partitioned graph, where collectives are nodes of their own: what a reshard or a
// send lies between never becomes one. A table says which fusions each backend has and for which
// dtypes; a fusion looks at one node at a time, and if those around it match, puts one node in
// their place (fuse_chain.c). The fused node stands where one of the two stood.
#pragma once
#include "common/compile/program/program.h"

void fuse_nodes(struct graph *g);
// Makes one instruction each of the updates of all parameters and of the squares of all gradients.
void fuse_updates(struct program *p);
