// SPDX-License-Identifier: Apache-2.0
// The op table: what each op means to the compiler. One row an op; a kernel library has its own
// column of functions (kernels/backend.h).
//
//   infer      checks operands of a node whose shapes were worked out from its labels
//   vjp        adds the ops that carry an output's cotangent to the inputs (null: not
//   differentiated) shard      from the inputs' specs and the wanted output spec: the specs it
//   needs and makes flops      of the node as it stands (global or local shapes); null: not counted
//   workspace  by backend: cap on scratch bytes, inside the arena; null: none (op_workspace asks,
//   and adds what the CPU widens bf16 operands in)
//   accumulates  can add to what its output buffer holds, so it may write straight into a sum
//   inplace    may write its output over its first input; one made by fusion any over any that is
//   read in the same order
//   fused      made by fusion alone (fuse.h), after sharding: it has neither vjp nor shard
#pragma once
#include "common/compile/graph/graph.h"

struct tape; // grad.h

// A question to a sharding rule. Specs are over global dimensions.
struct shard_query {
    const struct mesh *mesh;
    const struct graph *graph;
    const struct node *node;
    const struct spec *in[OP_MAX_IN]; // what the inputs have; null: an input from data, any cut
    struct spec asked[OP_MAX_IN];     // of inputs from data: what their point asks for
    const struct spec *want;          // what the output's point or parameter asks for; never null
    bool has_want;                    // false: the rule may choose (scalars, sums of scalars)
    struct spec need[OP_MAX_IN];      // answer: what the inputs must be brought to
    struct spec out[OP_MAX_OUT];      // answer: what comes out, before a reshard to `want`
};

// Where a node is run.
struct op_at {
    const struct mesh *mesh;
    int rank, microbatch;
};

struct op_row {
    int (*infer)(const struct graph *g, const struct node *n, struct err *e);
    int (*vjp)(struct tape *t, const struct node *n, int cotangent);
    int (*shard)(struct shard_query *q, struct err *e);
    double (*flops)(const struct node *n, const struct shape *in, const struct shape *out);
    size_t (*workspace[BACKEND_KINDS])(const struct node *n, const struct shape *in,
                                       const struct shape *out);
    bool accumulates, inplace, fused;
    int rows; // PICK, ROW_MAX: 1 + the operand whose last dimension ids count in; 0: none
    // Optional: sets what else of the attributes the rank's coordinates and the microbatch tell.
    void (*place)(const struct graph *g, const struct node *n, const struct op_at *at,
                  struct op_attr *attr);
};

const struct op_row *op_row(enum op op); // never null; every slot but those labelled is set
// The node's attributes on one rank: an owner's scale, the id its part of cut rows begins with,
// which of the whole step's random numbers are its own.
struct op_attr op_attr_on(const struct graph *g, const struct node *n, const struct op_at *at);
// Scratch of a call, from op, attributes, dtypes and shapes; no data is touched.
size_t op_workspace(const struct op_call *c, enum backend_kind b);
int op_infer(const struct graph *g, const struct node *n, struct err *e);
// Bytes read and written, from the shapes alone.
double op_bytes(const struct graph *g, const struct node *n, const struct shape *in,
                const struct shape *out);

// The rules, shard.c and vjp.c.
int shard_contract(struct shard_query *q, struct err *e);
int shard_pointwise(struct shard_query *q, struct err *e);
int shard_last_whole(struct shard_query *q, struct err *e); // pointwise, but for the last dimension
int shard_split(struct shard_query *q, struct err *e);
int shard_stack(struct shard_query *q, struct err *e);
int shard_embed(struct shard_query *q, struct err *e);
int shard_embed_grad(struct shard_query *q, struct err *e);
int shard_norm_weight(struct shard_query *q, struct err *e);
int shard_attention(struct shard_query *q, struct err *e);
int shard_update(struct shard_query *q, struct err *e);
int shard_partial_scalar(struct shard_query *q, struct err *e);

int vjp_matmul(struct tape *t, const struct node *n, int cotangent);
int vjp_sum(struct tape *t, const struct node *n, int cotangent);
int vjp_add(struct tape *t, const struct node *n, int cotangent);
int vjp_sub(struct tape *t, const struct node *n, int cotangent);
int vjp_mul(struct tape *t, const struct node *n, int cotangent);
int vjp_scale(struct tape *t, const struct node *n, int cotangent);
int vjp_log(struct tape *t, const struct node *n, int cotangent);
int vjp_cast(struct tape *t, const struct node *n, int cotangent);
int vjp_exp(struct tape *t, const struct node *n, int cotangent);
int vjp_softplus(struct tape *t, const struct node *n, int cotangent);
int vjp_dropout(struct tape *t, const struct node *n, int cotangent);
int vjp_relu(struct tape *t, const struct node *n, int cotangent);
int vjp_gelu(struct tape *t, const struct node *n, int cotangent);
int vjp_tanh(struct tape *t, const struct node *n, int cotangent);
int vjp_row_sum_exp(struct tape *t, const struct node *n, int cotangent);
int vjp_pick(struct tape *t, const struct node *n, int cotangent);
int vjp_silu(struct tape *t, const struct node *n, int cotangent);
int vjp_split(struct tape *t, const struct node *n, int cotangent);
int vjp_embed(struct tape *t, const struct node *n, int cotangent);
int vjp_norm(struct tape *t, const struct node *n, int cotangent);
int vjp_rotary(struct tape *t, const struct node *n, int cotangent);
int vjp_attention(struct tape *t, const struct node *n, int cotangent);
