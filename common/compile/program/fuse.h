// SPDX-License-Identifier: Apache-2.0
// Fusion: nodes next to each other become one that the backend has a kernel for. It changes speed
// and rounding, never meaning.
//
// It runs on the partitioned graph, where collectives are nodes of their own: what a move or a send
// lies between never becomes one. A table says which fusions each backend has and for which
// dtypes; a fusion looks at one node at a time, and if those around it match, puts one node in
// their place (fuse_chain.c). The fused node stands where one of the two stood.
#pragma once
#include "common/compile/program/program.h"

void fuse_nodes(struct graph *g);
// In a program: the updates of all parameters as one.
void fuse_updates(struct program *p);

// ---- for the fusions ----------------------------------------------------------------------------

struct fuse {
    struct graph *g;
    int *into;            // node → the node it has become part of; itself while it stands alone
    int *first, *readers; // value → its readers' place in `readers`, nodes as they were
    bool *named;          // value → it stays: somebody looks for it by name or role
    bool *pinned; // value → its buffer will be written again (sum, parameter, reduced in place)
    const bool *dtypes; // those of the kernels at hand
};

// Tries to put a node and those that make its inputs into one. Returns where that one stands; −1:
// nothing matched. Called again on what it made.
typedef int fuse_fn(struct fuse *f, int node);
fuse_fn fuse_chain; // elementwise ops one after the other, and behind a product
fuse_fn fuse_add_norm, fuse_norm_grad_add; // a sum and the norm behind it; before the other
fuse_fn fuse_row_loss, fuse_row_loss_grad; // the loss's rows

// The node that makes input k, if both run in the same place and turn and all they touch is whole
// on a device, of a dtype the kernels take, and in buffers of its own; else −1.
int fuse_producer(const struct fuse *f, int node, int k);
// The same, whatever the scopes of the two are; and whether this holds of any two nodes.
int fuse_near(const struct fuse *f, int node, int k);
bool fuse_beside(const struct fuse *f, int a, int b);
// Whether a node adds two tensors of the output's own shape and cuts, element by element.
bool fuse_adds_alike(const struct graph *g, const struct node *n);
// Whether a value is wanted beyond the two nodes.
bool fuse_kept(const struct fuse *f, int value, int a, int b);
// Which place serves two nodes as one, a before b: at b, where nothing before it reads what a
// makes, or at a, where all that b reads is there. −1: neither.
int fuse_place(const struct fuse *f, int a, int b);
// Puts `made` at `place` for the two.
void fuse_put(struct fuse *f, int a, int b, int place, const struct node *made);
