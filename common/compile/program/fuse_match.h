// SPDX-License-Identifier: Apache-2.0
// What the fusions share: each looks at one node and, if those around it match, puts one node in
// their place. Inside program/ only.
#pragma once
#include "common/compile/graph/operand.h"
#include "common/compile/program/program.h"

struct fuse {
    struct graph *g;
    int *into;            // node → the node it has become part of; itself while it stands alone
    int *first, *readers; // value → its readers' place in `readers`, nodes as they were
    bool *named;          // value → it stays: somebody looks for it by name or role
    bool *pinned; // value → its buffer will be written again (sum, parameter, reduced in place)
    int *shares; // value → how many contributions the sum has that it is one of; 0: it is of none
    const bool *dtypes; // those of the kernels at hand
};

// Tries to make one node of a node and those that make its inputs. Returns where the new node
// stands, and is then called for that one; −1: nothing matched.
typedef int fuse_fn(struct fuse *f, int node);
fuse_fn fuse_chain;         // elementwise ops one after the other, and behind a product
fuse_fn fuse_add_norm;      // a sum and the norm that reads it
fuse_fn fuse_norm_grad_add; // a norm's gradient and the sum that it is added to
fuse_fn fuse_norm_grads;    // a norm's gradient and the sums over rows that read the same
fuse_fn fuse_matmul_sum;    // the gradients of a weight and of its bias
fuse_fn fuse_places;        // a product of rows in experts' places, and how many have a token
fuse_fn fuse_row_loss, fuse_row_loss_grad; // the loss's rows, and their gradient
fuse_fn fuse_row_loss_both;                // what these two made

// Returns the node that makes input k if the two may be fused, else −1. They must have one scope,
// run on the same stages and in the same phase and microbatches, and all values that they touch
// must be whole on a device, of a dtype the kernels take, and in buffers of their own.
int fuse_producer(const struct fuse *f, int node, int k);
// fuse_near is fuse_producer without the condition on scopes. fuse_beside says whether the same
// conditions hold for two nodes of which neither needs to read the other.
int fuse_near(const struct fuse *f, int node, int k);
bool fuse_beside(const struct fuse *f, int a, int b);
// Whether the conditions of fuse_producer, but for scope and phase, hold for a node of the forward
// and one of the backward.
bool fuse_across(const struct fuse *f, int a, int b);
// Whether node `sum`, which sums what `node` reads or makes, may become a part of it. Both must run
// in the same phase and microbatches and on the same stages. The output of `sum` must be f32 and, if
// it contributes to a sum over microbatches, the only one that does; it may be partial over devices.
bool fuse_takes_sum(const struct fuse *f, int node, int sum);
// Whether a product and a node that sums one of its operands may become one. Both must have one
// scope, run in the same phase and microbatches and on the same stages, and read values that are
// whole on a device. Their outputs must be as fuse_takes_sum wants them, and both or neither of them
// must contribute to sums over microbatches.
bool fuse_sums_beside(const struct fuse *f, int product, int sum);
// Whether all that node b reads is on its stages before node a, or made by it.
bool fuse_ready_at(const struct fuse *f, int b, int a);
// Whether a node adds two tensors of the output's own shape and cuts, element by element.
bool fuse_adds_alike(const struct graph *g, const struct node *n);
// The node that a node has become a part of; itself: of none.
int fuse_find_present(const struct fuse *f, int node);
// Whether anybody but nodes a and b reads the value, or looks for it by its name or role.
bool fuse_read_by_others(const struct fuse *f, int value, int a, int b);
// Returns where a node made of a and b can stand (a comes before b): at b, if no node before b
// reads what a makes; else at a, if everything that b reads is made before a; else −1.
int fuse_place(const struct fuse *f, int a, int b);
// Replaces nodes a and b by `made`, which then stands at `place`.
void fuse_put(struct fuse *f, int a, int b, int place, const struct node *made);
