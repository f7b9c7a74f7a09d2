// SPDX-License-Identifier: Apache-2.0
// What attention's files share: a call as sizes and addresses, and what can serve it.
// Inside kernels/cuda/ only.
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
    int64_t d, e, r; // elements of a head's queries and keys, of its values, of qr and kr
    int64_t q_pitch, k_pitch, v_pitch; // elements from a position to the next, of gradients too
    int64_t start, group;              // query head h reads key head (start + h) / group
    int64_t back, ahead;               // how many positions a query sees before and after its own
    float scale, cap;                  // cap 0: none
    enum dtype dtype;
    bool in_order; // positions are 0, 1, … of queries and keys alike

    const unsigned *step; // null: no dropout
    uint64_t seed;
    unsigned stream, threshold; // a weight stays if its word's upper 24 bits are not below this,
    float drop_scale;           // and is multiplied by this
    int64_t from[2], extent[DRAW_DIMS]; // first sample and head here; extents of all that is drawn
};

// The library, opened and closed with the device.
int attention_open(struct device *d, struct err *e);
void attention_close(struct device *d);
const char *attention_version(void); // cuDNN's
// Finds and compiles what serves a call, so that no captured step has to.
int attention_tune(struct stream_q *q, const struct op_call *c, struct err *e);

// Our kernels, which serve every call.
int attention_own(struct stream_q *q, const struct op_call *c, const struct attention *a,
                  struct err *e);

// cuDNN, for the calls that it may serve. Settles which engine serves the call: finds it, compiles
// it, and runs it once, which writes the outputs and waits.
int attention_library_settle(struct stream_q *q, const struct op_call *c, const struct attention *a,
                             struct err *e);
// Runs the engine that was settled. *served false: there is none, and nothing was run.
int attention_library(struct stream_q *q, const struct op_call *c, const struct attention *a,
                      bool *served, struct err *e);

// Whether cuDNN is asked for this call: bf16, positions in order, no dropout, heads of a multiple of 8
// elements (of a second pair: both together), key heads that are shared evenly from the first on,
// operands aligned to 16 bytes, and no window that reaches ahead.
bool attention_is_plain(const struct attention *a);
// Finds portion n of those in which cuDNN can serve the call, a run for each: how many samples and
// heads a run has. Portion 0 is the whole call, later ones are smaller, and the last is the heads
// of one sample that share a key head. The call's samples and heads are multiples of the portion's.
// False: there is no portion n.
struct attention_portion {
    int64_t batch, heads;
};
bool attention_portion(const struct attention *a, int n, struct attention_portion *out);

// ---- attention_pair.cu: a second pair of scores, for a library that knows one ------------------

// Rows of heads, all bf16: joined in scratch, and in two operands as a call has them.
struct pair_rows {
    void *joined;         // [rows, heads, d + r]
    void *first, *second; // where a portion begins in each of the two operands
    int64_t rows, heads, d, r;
    int64_t first_pitch, second_pitch; // elements from a row to the next
    int64_t second_head;               // from a head to the next: r, or 0 where all heads share one
};
// Writes the joined rows. Neither function checks its launches: call op_launched() behind them.
void pair_join(struct stream_q *q, const struct pair_rows *p);
// Splits joined gradients into the two operands'. A second operand that all heads share gets the
// sum over the heads. Portions of the heads add it up one after the other in `sums`, [rows, r];
// `begins` and `ends` mark the first and the last of them.
void pair_split(struct stream_q *q, const struct pair_rows *p, float *sums, bool begins, bool ends);

#ifdef __cplusplus
}
#endif
