// SPDX-License-Identifier: Apache-2.0
// What compiler and kernels have to know alike of ATTENTION and its gradient: which operand is
// where, which keys a query sees, and how much scratch a call takes.
#pragma once
#include "common/op/op.h"

#ifdef __cplusplus
extern "C" {
#endif

// Which input of a call is which; −1: the call does not have it.
enum { ATTENTION_Y, ATTENTION_LSE, ATTENTION_OUTPUTS }; // of a forward
struct attention_operands {
    int q, k, v;    // those that are packed are the same input
    int qr, kr;     // the second pair that scores are made of; all heads share kr
    int dy, y, lse; // of a gradient: the cotangent of y, then y and lse as the forward made them
    int at_q, at_k; // positions
    int step;       // of the draws of dropout
};
// ERR_INTERNAL: no call has so many inputs.
int attention_operands(enum op op, int nin, struct attention_operands *out);
bool attention_is_grad(enum op op);

// Whether the CPU's kernel takes keys and values in bf16 as they are.
bool attention_widens(const struct op_call *c);

// How q, k or v lies in its operand: head h of row `row` of sample b begins at element
// (b · rows + row) · pitch + from + h · width. Packed ones share their rows.
enum attention_side { ATTENTION_Q, ATTENTION_K, ATTENTION_V };
struct attention_place {
    int64_t batch, rows, heads, width, pitch, from;
};
struct attention_place attention_place(const struct op_call *c, const struct attention_operands *o,
                                       enum attention_side side);

// Whether operands and results are of the dtypes that the op takes there; and whether their extents go
// together.
bool attention_takes(const struct op_call *c, const struct attention_operands *o);
bool attention_fits(const struct op_call *c, const struct attention_operands *o);

// The keys that a query sees are those at positions from `first` to `last`.
struct attention_sight {
    int32_t first, last;
};
struct attention_sight attention_sight(const struct op_attr *a, int32_t query);
// How many of `keys` keys a query sees on average, over the queries of a whole sequence.
double attention_seen(const struct op_attr *a, int64_t keys);

// ---- scratch on the CPU ----

// Work is done on so many rows of queries at a time, in at most so many parts side by side.
enum { ATTENTION_ROWS = 64, ATTENTION_SLOTS = 16 };
// A small attention has at most so many keys, and elements of a head's queries and of its values; and
// at least as many queries as it takes at a time.
enum { ATTENTION_SMALL_KEYS = 256, ATTENTION_SMALL_WIDTH = 128, ATTENTION_SMALL_ROWS = 16 };

// Each slot has blocks of scores, one for each row and key, and the positions of the keys. A
// gradient has behind them the gradient of kr that each part makes, since all heads add to it.
//
// A slot of a small attention has behind its scores what cpu_attention_small.c packs: a block's rows
// of queries and of values, the keys and the values of a part, and their gradients. What it packs has
// room for ATTENTION_SMALL_PAD more floats in a row than there are numbers.
enum { ATTENTION_SMALL_PAD = 32 };
// A forward of keys and values in bf16 has behind all that a part of them, widened.
struct attention_room {
    bool small;
    int64_t parts;                           // a sample's key heads each
    int64_t slots, blocks, slot, kr, floats; // slot, kr: floats of one; floats: of all
    int64_t widened;                         // floats of a slot, its last: a part's keys and values
    int64_t rows;                            // of a block
    int64_t keys, wide, values; // small: floats from row to row of what has a number a key, of
                                // queries and keys (both pairs of them), of values
};
struct attention_room attention_room(const struct op_call *c);

// ---- scratch on CUDA: by shapes and dtype: which kernel serves a call is decided there ----

// The scratch of our own kernels. Forward needs none. A gradient keeps a float for each row of
// queries: Σ y·dy. Behind them lie, where there is a kr, its gradients by the key heads,
// [b, t, g, r].
size_t attention_own_bytes(const struct op_call *c);

// The scratch of a library's kernels. 0: the library does not serve the call, because it is not in
// bf16, its positions are not in order, it has dropout, queries and keys differ in number, or one
// head needs more than ATTENTION_HEAD_BYTES.
//
// Forward with one pair of scores needs but a few bytes. For each head that a gradient works on at
// a time it keeps a float for each row, either a bf16 score for each pair or dq in f32, and dk and
// dv if query heads share them. A second pair of scores is joined with the first one in rows of
// both widths, queries, keys and their gradients, and what some heads add to the gradient of kr is
// a float for each of its elements. It gets what all heads need together, but no more than
// ATTENTION_LIBRARY_BYTES (where the job names none: op_attr.scratch) or what one head needs,
// whichever is larger.
enum { ATTENTION_LIBRARY_BYTES = 256 << 20, ATTENTION_HEAD_BYTES = 1 << 30 };
size_t attention_library_bytes(const struct op_call *c);

#ifdef __cplusplus
}
#endif
