// SPDX-License-Identifier: Apache-2.0
// Tensors whose dimensions have names, in double precision, and what the functions of the language of
// models do to them. Written from LANGUAGE.md by names alone: it shares no code with the builder, the
// gradient or the ops (but the generator of random numbers), so that what a text means is known
// without them. See random_text.h.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"

enum { NAMED_DIMS = 6 };

struct named {
    int n;
    const char *dim[NAMED_DIMS]; // literals; the last one varies fastest
    int64_t size[NAMED_DIMS];
    double *v;
};

struct named named_new(struct arena *a, int n, const char *const *dims, const int64_t *sizes);
int64_t named_count(const struct named *x);
struct named named_without(const struct named *x, const char *dim); // its dimensions alone
int named_find(const struct named *x, const char *dim); // −1: it has none of that name

// Sums over what both have but the batch and `kept` (names, null at the end).
struct named named_product(struct arena *a, const struct named *x, const struct named *y,
                           const char *const *kept);
// '+', '-', '*' or '/': one side's dimensions are among the other's.
struct named named_operate(struct arena *a, char sign, const struct named *x,
                           const struct named *y);
struct named named_map(struct arena *a, const struct named *x, double (*f)(double));
// by · x + plus
struct named named_scale(struct arena *a, const struct named *x, double by, double plus);
// Over the dimensions named (null at the end; none: over all), times `by`.
struct named named_sum(struct arena *a, const struct named *x, const char *const *over, double by);
struct named named_mean(struct arena *a, const struct named *x, const char *const *over);
struct named named_softmax(struct arena *a, const struct named *x, const char *over);
// The same with its dimensions in this order.
struct named named_ordered(struct arena *a, const struct named *x, const char *const *dims);
struct named named_rename(const struct named *x, const char *from, const char *to); // shares v
// Over the last dimension; weight and bias may be null.
struct named named_norm(struct arena *a, const struct named *x, bool center, double eps,
                        const struct named *weight, const struct named *bias);
struct named named_embed(struct arena *a, const struct named *ids, const struct named *table);
// Queries seq see keys key up to themselves, `window` of them (0: all). Others are −infinity.
struct named named_causal(struct arena *a, const struct named *scores, int64_t window);
// Halves of the last dimension are turned by the position along seq.
struct named named_rotary(struct arena *a, const struct named *x, double theta);
// Each element of `dim` as often as it takes to have `size` of them, called `to`.
struct named named_repeat(struct arena *a, const struct named *x, const char *dim, const char *to,
                          int64_t size);

struct named_draw {
    uint64_t seed;
    const char *path;
    double rate;
    uint32_t step;
};
// An element's draw is numbered by its place in the whole tensor.
struct named named_dropout(struct arena *a, const struct named *x, const struct named_draw *d);
struct named named_normals(struct arena *a, const struct named *like, const struct named_draw *d);

// Scores [batch, seq, router]: the best `choices` of each token, w [batch, seq, choice], and whose.
void named_top(struct arena *a, const struct named *scores, int64_t choices, struct named *w,
               struct named *id);
// Which token has place p of expert e, −1: none, in [batch, expert, capacity]. First choices come
// before second ones, then greater weights (in 4,096ths), then earlier positions.
struct named named_places(struct arena *a, const struct named *id, const struct named *w,
                          int64_t experts, int64_t capacity);
struct named named_dispatch(struct arena *a, const struct named *x, const struct named *places);
struct named named_combine(struct arena *a, const struct named *y, const struct named *places,
                           const struct named *id, const struct named *w);

// The mean over all rows of −ln softmax at `ids`; of each row the first `real` numbers count.
double named_cross_entropy(const struct named *logits, const struct named *ids, int64_t real);
