// SPDX-License-Identifier: Apache-2.0
// What attention's files share: a call as sizes, who serves it, and the two who do.
//
// cuda_attention.c checks a call and gives it to cuDNN (attention_library.c) or to our own kernels
// (attention.cu), as attention_choice.c says.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "common/op/attention.h"

enum { ATTENTION_HEAD = 256 }; // elements of a head at most, those of the second pair included

struct attention {
    const void *q, *k, *v, *dy; // dy: null forward
    const void *y;              // of a gradient: what the forward made
    float *lse;                 // [batch, heads, queries]: of a forward an output, else an input
    const void *qr, *kr;        // null: the call has no second pair
    const int32_t *at_q, *at_k; // positions
    void *out, *dk, *dv;        // out: y or dq
    void *dqr, *dkr;
    int64_t batch, queries, keys, heads, kv_heads;
    int64_t d, e, r;      // elements of a head's queries and keys, of its values, of qr and kr
    int64_t start, group; // query head h reads key head (start + h) / group
    int64_t back, ahead;  // how many positions a query sees before and after its own
    float scale, cap;     // cap 0: none
    enum dtype dtype;
    bool in_order; // positions are 0, 1, … of queries and keys alike

    const unsigned *step; // null: no dropout
    uint64_t seed;
    unsigned stream, threshold; // a weight stays whose word's upper 24 bits are not below it,
    float drop_scale;           // and is multiplied by this
    int64_t from[2], extent[DRAW_DIMS]; // batch and head here; of all the draws
};

// Our kernels, which serve every call.
int attention_own(struct stream_q *q, const struct op_call *c, const struct attention *a,
                  struct err *e);

// cuDNN, for plain calls. Settles what it has for the call: found, compiled and run once, which
// writes the outputs and waits.
int attention_library_settle(struct stream_q *q, const struct op_call *c, const struct attention *a,
                             struct err *e);
// Runs what it has; *served false: nothing.
int attention_library(struct stream_q *q, const struct op_call *c, const struct attention *a,
                      bool *served, struct err *e);

// Whether cuDNN is asked: bf16 in the plain order, nothing dropped, no second pair, heads
// of a multiple of 8 elements that are shared evenly from the first on, operands at multiples of 16
// bytes, and no window that reaches ahead.
bool attention_is_plain(const struct attention *a);
// How much of it a run of cuDNN's serves: the n-th choice, from all of it to one sample's heads
// that share one key head; false: there are no more. Samples and heads divide the call's.
struct attention_portion {
    int64_t batch, heads;
};
bool attention_portion(const struct attention *a, int n, struct attention_portion *out);

#ifdef __cplusplus
}
#endif
