// SPDX-License-Identifier: Apache-2.0
// What the kernels of every backend share: the names of the functions that serve the ops, which
// each backend defines for itself, and the checks that refuse a call which no kernel serves. Inside
// kernels/ only.
#pragma once
#include "common/op/attention.h"
#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets the error "NAME: what", with the op's name. A backend puts its own in front.
int op_refuse(const struct op_call *c, struct err *e, const char *what);
// Refuses operands of other dtypes than the op's row in ops.def says, and sums in bf16. A backend
// asks this of every call; then kernels look at extents alone, with those below.
int op_check(const struct op_call *c, struct err *e);
int op_check_update(const struct op_call *c, struct err *e);
int op_check_metrics(const struct op_call *c, struct err *e);
int op_check_clip(const struct op_call *c, struct err *e);
int op_check_balance(const struct op_call *c, struct err *e);
int64_t op_embed_width(const struct shape *table); // how much is looked up for an id
int op_check_embed(const struct op_call *c, struct err *e);
int op_check_rotary(const struct op_call *c, struct err *e);
int op_check_pieces(const struct op_call *c, struct err *e);
int op_check_dropout(const struct op_call *c, struct err *e);
int op_check_draw(const struct op_call *c, struct err *e);
// PAD: its operand is [outer, n, inner], and the first `left` of n are not padding.
struct pad_place {
    int64_t outer, n, inner, left;
};
int op_check_pad(const struct op_call *c, struct pad_place *p, struct err *e);
// Of attention the dtypes too. Fills `o` with which operand is where.
int op_check_attention(const struct op_call *c, struct attention_operands *o, struct err *e);

// TOPK or its gradient: the wide operand is [rows, n], the others are [rows, k].
struct topk_call {
    bool grad;
    const struct tensor *x, *ids; // input, or cotangent of what was chosen; the chosen indices, i32
    int64_t rows, n, k;
};
int op_check_topk(const struct op_call *c, struct topk_call *t, struct err *e);

// APPEND or RING: so many samples, places of each, and of APPEND rows of so many bytes.
struct cache_call {
    int64_t batch, places, rows;
    size_t bytes;
};
int op_check_cache(const struct op_call *c, struct cache_call *w, struct err *e);

// DISPATCH, COMBINE or SLOT_DOT: the operand with a row for each token, and the one with a row for
// each place of an expert.
struct dispatch_call {
    const struct tensor *tokens, *places, *weights; // weights: null if the call has none
};
int op_check_dispatch(const struct op_call *c, struct dispatch_call *d, struct err *e);
// MATMUL_PLACES: so many experts, groups, and places of each, and how many samples are a group.
struct places_call {
    int64_t experts, groups, places, samples;
    const float *chosen; // device memory
};
int op_check_places(const struct op_call *c, struct places_call *p, struct err *e);
// Returns how many of a row's n elements are not padding: those whose numbers, counted from
// attr.start, are below attr.limit (0: all).
int64_t op_unpadded(const struct op_call *c, int64_t n);

// The version of weft's own kernels: raised with each release in which some op gives other bits
// than before. It goes into the numerics record beside the libraries' versions.
enum { KERNELS_VERSION = 8 };

// Runs NORM_GRADS as the ops that it fuses, one after the other, with the same scratch.
int op_norm_grads_unfused(struct stream_q *q, const struct op_call *c, struct err *e);
// Runs MATMUL_SUM as a MATMUL and a SUM.
int op_matmul_sum_unfused(struct stream_q *q, const struct op_call *c, struct err *e);
// Runs MATMUL_PLACES as a MATMUL of all places.
int op_matmul_places_unfused(struct stream_q *q, const struct op_call *c, struct err *e);

// The ops. Each function serves those that the column `kernel` of ops.def names it for.
int op_matmul(struct stream_q *q, const struct op_call *c, struct err *e);
int op_matmul_sum(struct stream_q *q, const struct op_call *c, struct err *e);
int op_matmul_places(struct stream_q *q, const struct op_call *c, struct err *e);
int op_linear(struct stream_q *q, const struct op_call *c, struct err *e);
int op_elementwise(struct stream_q *q, const struct op_call *c, struct err *e);
int op_sum(struct stream_q *q, const struct op_call *c, struct err *e);
int op_sqnorm(struct stream_q *q, const struct op_call *c, struct err *e);
int op_rows(struct stream_q *q, const struct op_call *c, struct err *e);
int op_copy(struct stream_q *q, const struct op_call *c, struct err *e);
int op_metrics(struct stream_q *q, const struct op_call *c, struct err *e);
int op_clip(struct stream_q *q, const struct op_call *c, struct err *e);
int op_update(struct stream_q *q, const struct op_call *c, struct err *e);
int op_updates(struct stream_q *q, const struct op_call *calls, int n, struct err *e);
int op_sqnorms(struct stream_q *q, const struct op_call *calls, int n, struct err *e);
int op_embed(struct stream_q *q, const struct op_call *c, struct err *e);
int op_pieces(struct stream_q *q, const struct op_call *c, struct err *e);
int op_pad(struct stream_q *q, const struct op_call *c, struct err *e);
int op_norm(struct stream_q *q, const struct op_call *c, struct err *e);
int op_norm_grads(struct stream_q *q, const struct op_call *c, struct err *e);
int op_rotary(struct stream_q *q, const struct op_call *c, struct err *e);
int op_attention(struct stream_q *q, const struct op_call *c, struct err *e);
int op_dropout(struct stream_q *q, const struct op_call *c, struct err *e);
int op_normal(struct stream_q *q, const struct op_call *c, struct err *e);
int op_topk(struct stream_q *q, const struct op_call *c, struct err *e);
int op_balance(struct stream_q *q, const struct op_call *c, struct err *e);
int op_slots(struct stream_q *q, const struct op_call *c, struct err *e);
int op_cache(struct stream_q *q, const struct op_call *c, struct err *e);
int op_dispatch(struct stream_q *q, const struct op_call *c, struct err *e);

#ifdef __cplusplus
}
#endif
