// SPDX-License-Identifier: Apache-2.0
// What compiler and kernels agree on: op ids, dtypes, shapes, dimension names, attributes, and the
// call a kernel receives. Meaning (infer, vjp, sharding, cost) is the compiler's table,
// compile/optable.h; speed is the backends'. Nothing here knows about meshes or devices.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/op/slots.h"

// ---- dtypes ----
enum dtype { DT_NONE, DT_F32, DT_BF16, DT_I32, DT_U8, DT_COUNT };
size_t dtype_size(enum dtype t);
const char *dtype_name(enum dtype t); // "f32"

// ---- shapes: dense, row-major ----
enum { MAX_DIMS = 8 };
// Groups of ranks that have collectives: a plan uses no more, a world keeps as many communicators.
enum { COMMUNICATORS = 64 };
struct shape {
    int n;
    int64_t dim[MAX_DIMS];
};
int64_t shape_count(const struct shape *s); // 1 for a scalar (n = 0)
bool shape_equal(const struct shape *a, const struct shape *b);

// ---- dimension names: the logical axes that rules map to mesh axes ----
// DIM_NONE names a dimension no rule may cut.
#define DIM_TABLE(X)      \
    X(BATCH, batch)       \
    X(SEQ, seq)           \
    X(EMBED, embed)       \
    X(MLP, mlp)           \
    X(HEADS, heads)       \
    X(KV_HEADS, kv_heads) \
    X(HEAD_DIM, head_dim) \
    X(VOCAB, vocab)       \
    X(CLASSES, classes)   \
    X(LATENT, latent)     \
    X(NORM, norm)         \
    X(POSITION, position) \
    X(EXPERT, expert)     \
    X(QKV, qkv)
enum dim {
    DIM_NONE,
#define X(id, name) DIM_##id,
    DIM_TABLE(X)
#undef X
        DIM_COUNT
};
const char *dim_name(enum dim d); // "batch"; "-" for DIM_NONE

// ---- ops ----
// X(id, name, inputs, outputs). Shapes are written [batch, n]; "rows" are all dimensions but the
// last. Unless said otherwise f32 in, f32 out, and an operand may lack dimensions of the output
// (broadcast): attr.label says which dimension of an operand is which of the output.
#define OP_TABLE(X)                                                                                      \
    /* linear algebra */                                                                                 \
    X(MATMUL, matmul, 2,                                                                                 \
      1)              /* einsum over labels; contracted: in both inputs, not in the output */            \
    X(SUM, sum, 1, 1) /* scale · sum over the labels the output lacks */                                \
    /* elementwise */                                                                                    \
    X(CAST, cast, 1, 1)           /* scale · x in the output's dtype (u8 pixels: scale 1/255) */        \
    X(ADD, add, 2, 1)             /* a + b */                                                            \
    X(SUB, sub, 2, 1)             /* a − b */                                                          \
    X(MUL, mul, 2, 1)             /* a · b */                                                           \
    X(SCALE, scale, 1, 1)         /* scale · x */                                                       \
    X(LOG, log, 1, 1)             /* ln x */                                                             \
    X(EXP, exp, 1, 1)             /* e^x */                                                              \
    X(DIV, div, 2, 1)             /* a / b */                                                            \
    X(RELU, relu, 1, 1)           /* max(x, 0) */                                                        \
    X(RELU_GRAD, relu_grad, 2, 1) /* (y, dy): dy where y > 0, else 0 */                                  \
    X(GELU, gelu, 1, 1)           /* tanh form: x/2·(1 + tanh(√(2/π)(x + 0.044715x³))) */           \
    X(GELU_GRAD, gelu_grad, 2, 1) /* (x, dy) */                                                          \
    X(TANH, tanh, 1, 1)                                                                                  \
    X(TANH_GRAD, tanh_grad, 2, 1) /* (y, dy): dy·(1 − y²) */                                         \
    /* rows: cross-entropy in parts, so that a cut vocabulary needs no special case */                   \
    X(ROW_MAX, row_max, 1, 1)         /* [.., n] → [..] */                                             \
    X(ROW_SUM_EXP, row_sum_exp, 2, 1) /* (x [.., n], m [..]) → [..]: Σ exp(x − m) */                \
    X(ROW_EXP_MUL, row_exp_mul, 3, 1) /* (x [.., n], m, g [..]) → [.., n]: exp(x − m)·g */          \
    X(PICK, pick, 2, 1) /* (x [.., n], ids i32 [..]) → [..]: x[ids − start], 0 outside */            \
    X(PICK_GRAD, pick_grad, 2, 1) /* (ids i32 [..], g [..]) → [.., n]: g at ids − start, else 0 */   \
    X(ROW_ARGMAX, row_argmax, 1, 1)       /* [.., n] → i32 [..], the first of equals */                \
    X(EQUAL, equal, 2, 1)                 /* i32, i32 → f32 1 or 0 */                                  \
    X(SILU, silu, 1, 1)                   /* x / (1 + exp(−x)) */                                      \
    X(SILU_GRAD, silu_grad, 2, 1)         /* (x, dy) */                                                  \
    X(SOFTPLUS, softplus, 1, 1)           /* ln(1 + e^x) */                                              \
    X(SOFTPLUS_GRAD, softplus_grad, 2, 1) /* (x, dy): dy / (1 + exp(−x)) */                            \
    /* random draws: attr.draw says whose; `step` is a device scalar, i32 */                             \
    X(DROPOUT, dropout, -1,                                                                              \
      1) /* (x, step, positions i32 [b, s]?): x / (1 − rate) where             \
                                  u(index) ≥ rate, else 0; its own gradient */                       \
    X(NORMAL, normal, 1, 1) /* (step) → standard normals */                                            \
    /* transformers */                                                                                   \
    X(SPLIT, split, 1, -1) /* [n, ..] → n times [..] */                                                \
    X(STACK, stack, -1, 1) /* n times [..] → [n, ..] */                                                \
    X(EMBED, embed, 2,                                                                                   \
      1) /* (ids i32 [..], table [n, e]) → [.., e]: table[ids − start], 0        \
                              outside */                   \
    X(EMBED_GRAD, embed_grad, 2,                                                                         \
      1)                 /* (ids i32 [..], g [.., e]) → [n, e]: Σ of g at ids − start  \
                                     */            \
    X(NORM, norm, -1, 1) /* (x, weight?, bias?): rows over √(mean x² + eps), with        \
                                       attr.center after their mean is taken off; · weight + bias     \
                                     */            \
    X(NORM_GRAD, norm_grad, -1, 1) /* (x, dy, weight?) → dx */                                         \
    X(NORM_WEIGHT_GRAD, norm_weight_grad, 2,                                                             \
      1) /* (x, dy) → [n]: Σ rows of dy · the rows' norm    \
                                                 */                                        \
    X(ROTARY, rotary, 2,                                                                                 \
      1) /* (x [.., heads, d], positions i32 [..]): element i < d/2 and its         \
                               partner i + d/2 turned by scale · position · theta^(−2i/d) */                    \
    X(ATTENTION, attention, -1,                                                                          \
      1) /* (q [b, s, h, d], k, v [b, t, g, d], positions i32 of q [b,       \
                                      s] and of k [b, t], step?): softmax(scale · q·k) · v over     \
                                      the keys that are not after the query, 0 if there is none;       \
                                      head i reads (start + i) / group; with a step the softmax        \
                                      goes through dropout, drawn at [batch, head, query, key] */                           \
    X(ATTENTION_GRAD, attention_grad, -1, 3) /* (q, k, v, dy, positions .., step?) → dq, dk, dv */     \
    /* made by fusion alone (chain.h) */                                                                 \
    X(CHAIN, chain, -1, -1)   /* inputs → outputs: attr.chain's elementwise steps */                   \
    X(LINEAR, linear, -1, -1) /* (a, b, ..) → outputs: their MATMUL, then attr.chain's steps */        \
    X(ADD_NORM, add_norm, -1, 2)           /* (a, b, weight?, bias?) → a + b and its NORM */           \
    X(NORM_GRAD_ADD, norm_grad_add, -1, 1) /* (c, x, dy, weight?) → c + NORM_GRAD of the others */     \
    X(ROW_LOSS, row_loss, 2,                                                                             \
      3) /* (x [.., n], ids i32 [..]) → ROW_MAX, ROW_SUM_EXP of that, PICK */                          \
    X(ROW_LOSS_GRAD, row_loss_grad, 5,                                                                   \
      1) /* (x, m, g, ids i32, h [..]) → [.., n]: ROW_EXP_MUL of    \
                                             x, m, g and PICK_GRAD of ids, h added up */                                  \
    /* made by lowering alone, around collectives */                                                     \
    X(COPY, copy, 1, 1) /* attr.block, of any dtype: what the loops do not reach stays */                \
    /* the update; outputs alias inputs where said; SGD, MOMENTUM and ADAM may have one more: p        \
       cast to bf16 */ \
    X(SQNORM, sqnorm, 1, 1) /* scale · Σ x² → scalar, in double; scale 0: 0, x is not read */       \
    X(METRICS, metrics, -1, 1) /* scalars and vectors, one after the other → f32 vector */             \
    X(CLIP, clip, 1, 1) /* metrics → enum clip_slot vector: gradient scale and skip flag */            \
    X(SGD, sgd, 4, 1)   /* (p, g, clip, hyper) → p */                                                  \
    X(MOMENTUM, momentum, 5, 2) /* (p, g, v, clip, hyper) → p, v */                                    \
    X(ADAM, adam, 6, 3)         /* (p, g, m, v, clip, hyper) → p, m, v; decoupled decay: AdamW */

enum op {
#define X(id, name, nin, nout) OP_##id,
    OP_TABLE(X)
#undef X
        OP_COUNT
};
const char *op_name(enum op op);
int op_inputs(enum op op);  // −1: any number up to OP_MAX_IN
int op_outputs(enum op op); // −1: any number up to CHAIN_OUTPUTS
// SGD, MOMENTUM, ADAM.
bool op_is_update(enum op op);

enum { OP_MAX_IN = 16, OP_MAX_OUT = 4 };

// label[k][d] says which loop index dimension d of operand k runs over; operands are the inputs in
// order, then the outputs. Loop indices are numbered from 0. An op that broadcasts, contracts or
// reduces reads everything it needs from here.
struct op_block { // three nested loops, outermost first, and how far each side moves, in elements
    int64_t extent[3], from[3], to[3];
};
// Where an op's random numbers come from: those that base/rand.h gives this site at the row-major
// index of an element of the whole tensor, `extent`; the batch dimension is that of the whole step.
// Our part begins at `from`. With positions they stand for the second index.
enum { DRAW_DIMS = 4 };
struct op_draw {
    uint64_t seed;
    uint32_t stream;
    float rate; // share that dropout drops
    int n;      // dimensions; ATTENTION: batch, head, query, key
    int64_t from[DRAW_DIMS], extent[DRAW_DIMS];
};
struct op_chain; // chain.h
struct op_attr {
    int8_t label[OP_MAX_IN + OP_MAX_OUT][MAX_DIMS];
    int8_t labels;
    float scale;           // SUM, CAST, SCALE, SQNORM, ROTARY, ATTENTION
    float clip_norm;       // CLIP; 0: none
    double beta1, beta2;   // optimisers (average.h)
    float eps, decay;      // optimisers; NORM: eps
    float lr_scale;        // of this parameter's group
    bool nesterov;         // MOMENTUM
    int64_t start;         // the id of a row's first element here; ATTENTION: see there
    int64_t limit;         // ROW_*: ids from here on are padding, not there (but to the
                           // picks in ROW_LOSS and its gradient); 0: none
    int64_t group;         // ATTENTION: query heads that share a key and value head
    bool tf32;             // MATMUL, LINEAR: f32 operands may be read with 10 bits of mantissa
    bool in_order;         // ATTENTION: positions of queries and keys are 0, 1, 2, …
    bool center;           // NORM
    float theta;           // ROTARY
    struct op_block block; // COPY
    struct op_draw draw;   // DROPOUT, NORMAL, ATTENTION
    const struct op_chain *chain; // CHAIN, LINEAR: in the graph's arena
};

// The first of ATTENTION's two operands of positions; a step follows them.
int attention_positions(enum op op);

// A long reduction (SUM, SQNORM) is made in at most this many chunks, so that its bits do not
// depend on the threads; its workspace is a double for each.
enum { OP_CHUNKS = 1024 };
// ATTENTION works on so many query rows at a time, in at most so many parts side by side; its
// workspace is one block of scores for each, two for the gradient, and the positions of the keys.
enum { ATTENTION_ROWS = 64, ATTENTION_SLOTS = 16 };

// ---- the call a kernel receives: local shapes, device pointers ----
struct tensor {
    void *data;
    enum dtype dtype;
    struct shape shape;
};
struct op_call {
    enum op op;
    const struct op_attr *attr;
    int nin, nout;
    struct tensor in[OP_MAX_IN], out[OP_MAX_OUT];
    void *workspace; // scratch inside the arena: what the op table's workspace() asked for
    size_t workspace_bytes;
    bool accumulate; // add to what out[0] holds (MATMUL, SUM, SQNORM): sums over microbatches
};
