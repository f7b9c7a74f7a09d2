// SPDX-License-Identifier: Apache-2.0
// What compiler and kernels agree on: op ids, dtypes, shapes, dimension names, attributes, and the
// call a kernel receives. What an op computes is said in ops.def, what it means to the compiler in
// compile/graph/optable.h; speed is the backends'. Of meshes and communicators only the limits are
// here, which compiler and ranks share.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/op/slots.h"

// ---- dtypes ----
enum dtype { DT_NONE, DT_F32, DT_BF16, DT_I32, DT_U8, DT_COUNT };
__attribute__((const)) size_t dtype_size(enum dtype t);
const char *dtype_name(enum dtype t); // "f32"

// ---- shapes: dense, row-major ----
enum { MAX_DIMS = 8 };
// A mesh: how many axes it has, and how long a name of one is.
enum { MAX_AXES = 8, MAX_AXIS_NAME = 31 };
// The most that a plan may use, and what a rank's world has room for: groups of ranks that have
// collectives, and collectives of one group that were started and not yet waited for.
enum { COMMUNICATORS = 64, COLLECTIVES_OPEN = 64 };
struct shape {
    int n;
    int64_t dim[MAX_DIMS];
};
__attribute__((pure)) int64_t shape_count(const struct shape *s); // 1 for a scalar (n = 0)
bool shape_equal(const struct shape *a, const struct shape *b);

// ---- dimension names: the logical axes that rules map to mesh axes ----
// Those that the compiler knows by name. DIM_NONE names a dimension no rule may cut. A model may
// name dimensions of its own: ids from DIM_KNOWN on are those of a job's table, op/dims.h.
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
    X(GROUP, group)       \
    X(CAPACITY, capacity) \
    X(ROUTER, router)     \
    X(CHOICE, choice)     \
    X(ROTARY, rotary)     \
    X(QKV, qkv)
enum dim {
    DIM_NONE,
#define X(id, name) DIM_##id,
    DIM_TABLE(X)
#undef X
        DIM_KNOWN
};

// ---- ops: ops.def has them all, one a line ----
enum op {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) OP_##id,
#include "common/op/ops.def"
    OP_COUNT,
    OP_NONE = -1
};
// Properties of ops that other code asks for, with op_is().
enum op_trait {
    OP_IS_STEP = 1 << 0,     // elementwise on floats: may be a step of CHAIN and LINEAR
    OP_IS_PRODUCT = 1 << 1,  // its first two operands are multiplied as matrices
    OP_IS_FUSED = 1 << 2,    // made by fusion alone, after sharding
    OP_IS_UPDATE = 1 << 3,   // changes a parameter and its state in place
    OP_HAS_CHAIN = 1 << 4,   // attr.chain says what it does
    OP_HAS_SCALE = 1 << 5,   // reads a scale, as a step too
    OP_ACCUMULATES = 1 << 6, // can add to what its output holds: may write straight into a sum;
                             // of several outputs those from op_first_sum() on
    OP_IN_PLACE = 1 << 7,    // may write its output over its first input; a fused op any output
                             // over any input that it reads in the same order
    OP_COUNTS_ONCE = 1 << 8, // what several ranks or stages hold is counted at one of them
    OP_MAKES_MAX = 1 << 9,   // over a cut dimension it makes a part of a maximum, not of a sum
    OP_OWN_LOOPS = 1 << 10,  // goes over its operands in a way that labels do not show: attention
                             // over the keys of each query, SLOTS and what reads slots over groups
    OP_OVER_ANY = 1 << 11,   // with OP_IN_PLACE: over any input that it reads in the same order
    OP_RUNS_MANY = 1 << 12,  // calls of it that follow each other may run in one (backend.h)
    OP_IS_ATTENTION = 1 << 13,
    OP_IS_PACKED = 1 << 14,     // takes operands of another op as one
    OP_HAS_ROTARY = 1 << 15,    // attr.rotary says what it does
    OP_HAS_BLOCK = 1 << 16,     // attr.block says what it does
    OP_MAKES_PIECES = 1 << 17,  // its outputs are its input, one piece after the other
    OP_TAKES_PIECES = 1 << 18,  // its output is its inputs, one piece after the other
    OP_DECIDES = 1 << 19,       // is not made again for the backward: it decides once
    OP_KEEPS_LAST = 1 << 20,    // its last output, for its gradient alone, is kept with its first
    OP_READS_PARTIAL = 1 << 21, // may read a sum whose parts lie on several devices
    OP_ON_IDS = 1 << 22,        // an elementwise op that reads i32 alone
    OP_FROM_INTS = 1 << 23,     // an elementwise op that also reads u8 and i32
};
// What the place of an element along a dimension is to an op, in the forward part of a graph: the
// column of ops.def, of which compile/graph/carry.h asks: a sequence may lie in another order than
// that of its positions (zigzag.h), and of the batch only a microbatch is here.
enum op_order {
    ORDER_ALL,       // it may take any index for a place: so does an op of which nobody knows more
    ORDER_NONE,      // nothing: elements are alike, or are added up
    ORDER_ROW,       // nothing, but its last dimension is seen as one
    ORDER_FIRST,     // the first dimension of its last operand is read by index
    ORDER_LAST,      // the last dimension of its widest operand is
    ORDER_POSITIONS, // positions among its operands say the places of a sequence
};
const char *op_name(enum op op);
enum op_order op_order(enum op op);
int op_inputs(enum op op);  // −1: any number up to OP_MAX_IN
int op_outputs(enum op op); // −1: any number up to OP_MAX_OUT
bool op_is(enum op op, enum op_trait trait);
int op_whole(enum op op);          // the column of ops.def; see widen.h
const char *op_dtypes(enum op op); // likewise
// The first of the outputs that an op with OP_ACCUMULATES can add to.
int op_first_sum(enum op op);

enum { OP_MAX_IN = 16, OP_MAX_OUT = 5, OP_WRONG_NUMBER = OP_MAX_IN + OP_MAX_OUT };
// Finds the first operand, inputs first, whose dtype the op does not take there; −1: all are right.
// OP_WRONG_NUMBER: the op does not have so many operands.
int op_find_misfit(enum op op, int nin, int nout, const enum dtype *t);

// What COPY moves: three nested loops, outermost first, and how far each side moves, in elements.
struct op_block {
    int64_t extent[3], from[3], to[3];
};
// Where an op's random numbers come from: those that base/rand.h gives this site at the row-major
// index of an element of the whole tensor, `extent`; the batch dimension is that of the whole step.
// Our part begins at `from`.
enum { DRAW_DIMS = MAX_DIMS };
struct op_draw {
    uint64_t seed;
    uint32_t stream;
    float rate; // share that dropout drops
    int n;      // dimensions; ATTENTION: batch, head, query, key
    // 1 + the dimension of the batch, and that whose index positions say, not the last; 0: none.
    int8_t batch, place;
    int64_t from[DRAW_DIMS], extent[DRAW_DIMS];
};
// How tokens are dealt to experts: so many consecutive samples are a group, in which every expert has
// so many places. Of y only a part may be here: the experts and places from `first` on.
struct op_slots {
    int64_t group, experts, capacity;
    struct {
        int64_t expert, place;
    } first;
};
// How ROTARY turns pairs of a head's elements (rotary.h has the formula). A series of frequencies
// runs over the pairs of one head or, in a sweep, over those of all heads, one after the other.
enum rotary_scaling { ROTARY_PLAIN, ROTARY_LINEAR, ROTARY_LLAMA3, ROTARY_YARN };
struct op_rotary {
    float theta;
    bool pairs;     // element 2i is turned with 2i + 1; else element i with i + d/2
    bool sweep;     // of all heads; attr.start is then this rank's first head
    int64_t heads;  // of the sweep: those of all ranks
    int64_t offset; // is added to every position
    float gain;     // all that is turned is multiplied by it; 0: by 1
    enum rotary_scaling scaling;
    float factor, slow, fast; // of the scaling
    int64_t length;
};
struct op_chain; // chain.h
struct op_attr {
    // Which loop index dimension d of operand k runs over; operands are the inputs in order, then
    // the outputs. An op that broadcasts, contracts or reduces reads all it needs from here.
    int8_t label[OP_MAX_IN + OP_MAX_OUT][MAX_DIMS];
    int8_t labels;       // how many loop indices there are, from 0
    float scale;         // SUM, CAST, SCALE, SQNORM, ROTARY, ATTENTION, ROW_LOSS_BOTH, PAD
    float clip_norm;     // CLIP; 0: none
    double beta1, beta2; // optimisers (average.h)
    float eps, decay;    // optimisers; NORM: eps
    float lr_scale;      // of this parameter's group
    bool nesterov;       // MOMENTUM
    int64_t start;       // the id of a row's first element here; ATTENTION: see ops.def
    int64_t limit;       // ROW_*, SOFTMAX: ids from here on are padding and are left out, except by
                         // the picks of ROW_LOSS and its gradient; 0: none. PAD, RING
    int along;           // PAD: the dimension that the limit is of
    int64_t group;       // ATTENTION: query heads that share a key and value head
    bool tf32;           // MATMUL, LINEAR: f32 operands may be read with 10 bits of mantissa
    bool streams;        // a decoder's MATMUL, LINEAR, ATTENTION: the CPU reads b, k, v as they lie
    int64_t window;      // ATTENTION: how many positions a query sees, its own included; 0: all
    bool ahead;          // ATTENTION: a query sees the keys after it as well as those before it
    float cap;           // ATTENTION: a score s becomes cap · tanh(s / cap); 0: it stays s
    bool in_order;       // ATTENTION: positions of queries and keys are 0, 1, 2, …
    int64_t scratch;     // products, ATTENTION: op_workspace()'s for a library on CUDA; 0: as usual
    bool center;         // NORM
    struct op_block block;        // COPY
    struct op_draw draw;          // DROPOUT, NORMAL, ATTENTION
    struct op_rotary rotary;      // ROTARY
    struct op_slots slots;        // SLOTS, DISPATCH, COMBINE, SLOT_DOT, MATMUL_PLACES
    const struct op_chain *chain; // CHAIN, LINEAR: in the graph's arena
};

// A long reduction (SUM, SQNORM) is made in at most this many chunks, so that its bits do not
// depend on the threads; its workspace is a double for each.
enum { OP_CHUNKS = 1024 };
// ROTARY turns pairs of a head's elements, at most so many.
enum { ROTARY_PAIRS_MAX = 512 };

// Each part of an op's scratch begins at a multiple of so many bytes.
enum { OP_SCRATCH_ALIGN = 64 };

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
    void *workspace; // scratch inside the arena, as many bytes as op_workspace() asked for
    size_t workspace_bytes;
    bool accumulate; // add to what the outputs from op_first_sum() on hold: sums over microbatches
};
