// SPDX-License-Identifier: Apache-2.0
// What an op means to the compiler, beside what its row of common/op/ops.def says: one row an op.
// Its vjp rule is in vjp.c, its sharding rule in shard/op_rules.c, its kernels in the backends.
//
//   infer      checks operands of a node whose shapes were worked out from its labels
//   flops      of the node as it stands (global or local shapes); null: not counted
//   workspace  by backend: cap on scratch bytes, inside the arena; null: none (op_workspace asks,
//              and adds what the CPU widens bf16 operands in)
//   rows       1 + the operand whose last dimension ids count in; 0: none
//   place      sets what else of the attributes the rank's coordinates and the microbatch say;
//              null: nothing
#pragma once
#include "common/compile/graph/graph.h"

// Where a node is run.
struct op_at {
    const struct mesh *mesh;
    int rank, microbatch, microbatches; // of a step
};

struct op_row {
    int (*infer)(const struct graph *g, const struct node *n, struct err *e);
    double (*flops)(const struct node *n, const struct shape *in, const struct shape *out);
    size_t (*workspace[BACKEND_KINDS])(const struct op_call *c);
    int rows;
    void (*place)(const struct graph *g, const struct node *n, const struct op_at *at,
                  struct op_attr *attr);
};

const struct op_row *op_row(enum op op); // never null, and infer is set
// The node's attributes on one rank: an owner's scale, the id its part of cut rows begins with,
// which of the whole step's random numbers are its own.
struct op_attr op_attr_on(const struct graph *g, const struct node *n, const struct op_at *at);
// Scratch of a call, from op, attributes, dtypes and shapes; no data is touched.
size_t op_workspace(const struct op_call *c, enum backend_kind b);
int op_infer(const struct graph *g, const struct node *n, struct err *e);
// Bytes read and written, from the shapes alone.
double op_bytes(const struct graph *g, const struct node *n, const struct shape *in,
                const struct shape *out);
