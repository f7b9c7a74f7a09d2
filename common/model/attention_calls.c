// SPDX-License-Identifier: Apache-2.0
// Attention, rotary positions and the causal mask as functions of the language. See functions.h.
#include <math.h>

#include "common/compile/graph/build.h"
#include "common/model/algebra.h"
#include "common/model/functions.h"
#include "common/model/model_inputs.h"

enum { BATCH, SEQ, HEADS, HEAD_DIM, ATTENTION_DIMS };
static const int64_t WIDEST = 1 << 17; // all heads of attention together

static bool is_given(const struct term *t)
{
    return t->kind != TERM_NOTHING;
}

static bool is_of_tokens(const struct builder *b, int value, int dims)
{
    const struct value *v = &b->g->values[value];
    return v->shape.n == dims && v->dims[BATCH] == DIM_BATCH && v->dims[SEQ] == DIM_SEQ;
}

static bool is_of_heads(struct builder *b, int value, const char *what)
{
    bool fine = !b->failed && is_of_tokens(b, value, ATTENTION_DIMS);
    if (!fine)
        build_fail(b, "%s has %s: try [batch, seq, heads, head_dim]", what, dims_of(b, value));
    return fine;
}

// ---- rotary ------------------------------------------------------------------------------------

enum { X, THETA, OFFSET, PAIRS, SWEEP, GAIN, LINEAR, LLAMA3, YARN, LENGTH, SLOW, FAST };

static const struct {
    int arg;
    enum rotary_scaling scaling;
    double fast; // as published
} scalings[] = {{LINEAR, ROTARY_LINEAR, 0}, {LLAMA3, ROTARY_LLAMA3, 4}, {YARN, ROTARY_YARN, 32}};
enum { SCALINGS = sizeof scalings / sizeof *scalings };

static void read_scaling(struct builder *b, const struct term *arg, struct op_rotary *r)
{
    for (int i = 0; i < SCALINGS && !b->failed; i++) {
        double factor = term_number_or(&arg[scalings[i].arg], 0);
        if (!is_given(&arg[scalings[i].arg]))
            continue;
        if (r->scaling != ROTARY_PLAIN)
            build_fail(b, "rotary takes one of linear, llama3 and yarn");
        r->scaling = scalings[i].scaling;
        r->factor = (float)factor;
        r->slow = (float)term_number_or(&arg[SLOW], 1);
        r->fast = (float)term_number_or(&arg[FAST], scalings[i].fast);
        r->length = (int64_t)term_number_or(&arg[LENGTH], 0);
        if (!(factor >= 1))
            build_fail(b, "a context %g times as long: try at least 1", factor);
        else if (scalings[i].arg != LINEAR &&
                 (r->length < 1 || !(r->slow > 0 && r->fast > r->slow)))
            build_fail(b,
                       "llama3 and yarn need the length that the model was trained for, and fast "
                       "above slow: length = 8192, slow = 1, fast = 4");
    }
    if (r->scaling == ROTARY_YARN && !is_given(&arg[GAIN]))
        r->gain = (float)(0.1 * log((double)r->factor) + 1);
}

struct term call_rotary(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[X]), positions = input_positions(b);
    if (b->failed)
        return (struct term){0};
    bool heads = is_of_tokens(b, x, ATTENTION_DIMS);
    if (!heads && !is_of_tokens(b, x, ATTENTION_DIMS - 1))
        return build_fail(b, "rotary's operand has %s: try [batch, seq, heads, head_dim]",
                          dims_of(b, x));
    const struct value *v = &b->g->values[x];
    int64_t width = v->shape.dim[v->shape.n - 1];
    if (v->limit[v->shape.n - 1] || (heads && v->limit[HEADS] && arg[SWEEP].kind))
        return build_fail(b, "rotary over a size that is `padded`: it would turn the padding too");
    double theta = term_number_or(&arg[THETA], model_sizes_number(b->sizes, "theta", 0));
    if (width % 2 || width > 2 * ROTARY_PAIRS_MAX)
        return build_fail(b, "rotary turns pairs, at most %d: a head of %lld elements; try %lld",
                          ROTARY_PAIRS_MAX, (long long)width,
                          (long long)(width % 2 ? width + 1 : 2 * ROTARY_PAIRS_MAX));
    if (theta < 1)
        return build_fail(b,
                          "rotary needs theta of at least 1: rotary(x, 500000) or a size `theta`");
    struct op_attr attr = {.scale = 1,
                           .rotary = {.theta = (float)theta,
                                      .offset = (int64_t)term_number_or(&arg[OFFSET], 0),
                                      .pairs = term_number_or(&arg[PAIRS], 0) != 0,
                                      .sweep = term_number_or(&arg[SWEEP], 0) != 0,
                                      .gain = (float)term_number_or(&arg[GAIN], 0)}};
    if (attr.rotary.sweep && !heads)
        return build_fail(b, "a sweep goes over heads, which %s has not", dims_of(b, x));
    read_scaling(b, arg, &attr.rotary);
    if (b->failed)
        return (struct term){0};
    build_at_like(b, x);
    return term_value(graph_shaped(b->g, OP_ROTARY, 2, (int[]){x, positions}, x, &attr, DT_NONE));
}

// ---- attention ---------------------------------------------------------------------------------

enum { Q, K, V, DROPOUT, QR, KR, WINDOW, CAP, SCALE, CAUSAL };

// How far a dimension reaches without its padding.
static int64_t count_real(const struct builder *b, int x, int d)
{
    const struct value *v = &b->g->values[x];
    return v->limit[d] ? v->limit[d] : v->shape.dim[d];
}

static bool check_heads(struct builder *b, const int *in)
{
    static const char *const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++)
        if (!is_of_heads(b, in[i], names[i]))
            return false;
    const int64_t *q = b->g->values[in[0]].shape.dim, *k = b->g->values[in[1]].shape.dim,
                  *v = b->g->values[in[2]].shape.dim;
    if (q[HEADS] % k[HEADS] || k[HEADS] != v[HEADS])
        build_fail(
            b,
            "%lld query heads, %lld key heads and %lld value heads: try as many of keys as of "
            "values, which divide the queries'",
            (long long)q[HEADS], (long long)k[HEADS], (long long)v[HEADS]);
    else if (count_real(b, in[0], HEADS) * k[HEADS] != count_real(b, in[1], HEADS) * q[HEADS])
        build_fail(b,
                   "%lld query heads and %lld key heads are padded to %lld and %lld: try sizes "
                   "of which one divides the other alike",
                   (long long)count_real(b, in[0], HEADS), (long long)count_real(b, in[1], HEADS),
                   (long long)q[HEADS], (long long)k[HEADS]);
    else if (q[HEAD_DIM] != k[HEAD_DIM])
        build_fail(b, "queries of %lld elements and keys of %lld: try as many",
                   (long long)q[HEAD_DIM], (long long)k[HEAD_DIM]);
    else if (q[HEADS] * q[HEAD_DIM] > WIDEST)
        build_fail(b, "%lld heads of %lld elements are over %lld: try %lld heads",
                   (long long)q[HEADS], (long long)q[HEAD_DIM], (long long)WIDEST,
                   (long long)(WIDEST / q[HEAD_DIM]));
    return !b->failed;
}

// The second pair of scores, whose key all heads share.
static bool check_pair(struct builder *b, const int *in, int qr, int kr)
{
    const struct value *q = &b->g->values[in[Q]], *r = &b->g->values[qr], *k = &b->g->values[kr];
    bool fine = is_of_heads(b, qr, "qr") && is_of_tokens(b, kr, ATTENTION_DIMS - 1) &&
                r->dims[HEADS] == q->dims[HEADS] && r->dims[HEAD_DIM] == k->dims[HEAD_DIM - 1];
    if (!fine && !b->failed)
        build_fail(b,
                   "qr has %s and kr %s: try [batch, seq, heads, rotary] and [batch, seq, rotary]",
                   dims_of(b, qr), dims_of(b, kr));
    return fine;
}

static struct op_attr read_attention(struct builder *b, const struct term *arg, int64_t width)
{
    struct op_attr attr = {
        .scale = (float)term_number_or(&arg[SCALE], (double)(1 / sqrtf((float)width))),
        .window = (int64_t)term_number_or(&arg[WINDOW], 0),
        .ahead = term_number_or(&arg[CAUSAL], 1) == 0,
        .cap = (float)term_number_or(&arg[CAP], 0),
        .in_order = true};
    if (attr.window < 0 || (is_given(&arg[WINDOW]) && term_number_or(&arg[WINDOW], 0) < 0))
        build_fail(b, "a window of %lld positions: try 1 or more, 0 for all",
                   (long long)attr.window);
    if (!(attr.cap >= 0))
        build_fail(b, "a cap of %g: try more than 0, 0 for none", (double)attr.cap);
    return attr;
}

struct term call_attention(struct builder *b, const struct term *arg)
{
    int in[8], n = 0;
    bool pair = is_given(&arg[QR]) || is_given(&arg[KR]);
    for (; n <= V; n++)
        in[n] = as_real(b, arg[n]);
    if (pair && !(is_given(&arg[QR]) && is_given(&arg[KR])))
        return build_fail(b, "a second pair of scores has both qr and kr");
    if (pair) {
        in[n++] = as_value(b, arg[QR]);
        in[n++] = as_value(b, arg[KR]);
    }
    in[n++] = input_positions(b);
    in[n++] = input_positions(b);
    double rate = term_number_or(&arg[DROPOUT], 0);
    if (b->failed || !check_heads(b, in) || !draw_rate_fits(b, rate) ||
        (pair && !check_pair(b, in, in[V + 1], in[V + 2])))
        return (struct term){0};
    const struct value *q = &b->g->values[in[Q]], *v = &b->g->values[in[V]];
    int64_t width = count_real(b, in[Q], HEAD_DIM);
    width += pair ? count_real(b, in[V + 1], HEAD_DIM) : 0;
    struct op_attr attr = read_attention(b, arg, width);
    attr.group = q->shape.dim[HEADS] / v->shape.dim[HEADS];
    if (b->failed)
        return (struct term){0};
    if (draws_drops(&b->draws, rate)) {
        in[n++] = draws_step(&b->draws);
        attr.draw = draws_site(&b->draws, draw_path(b), rate);
    }
    build_at_like(b, in[Q]);
    return term_value(attention(b->g, n, in, &attr));
}

// ---- a mask over scores that a model makes itself ----------------------------------------------

// What is added for each position that a key lies too far: it leaves nothing of e^score.
static const float HIDDEN = -1e9f;

// How far the keys lie after the queries, as f32: [batch, seq, key].
static int measure_distance(struct builder *b, enum dim key)
{
    const enum dim rows[] = {DIM_BATCH, DIM_SEQ}, keys[] = {DIM_BATCH, key};
    const enum dim pairs[] = {DIM_BATCH, DIM_SEQ, key};
    int in[2], positions = input_positions(b);
    for (int k = 0; k < 2; k++)
        in[k] = graph_op(b->g, &(struct op_args){.op = OP_CAST,
                                                 .nin = 1,
                                                 .in = &positions,
                                                 .nout_dims = 2,
                                                 .out_dims = k ? rows : keys,
                                                 .attr = &(struct op_attr){.scale = 1},
                                                 .dtype = DT_F32,
                                                 .read_as = k ? rows : keys});
    return apply_over(b->g, OP_SUB, in[0], in[1], 3, pairs, DT_NONE);
}

struct term call_causal(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[0]);
    if (b->failed)
        return (struct term){0};
    const struct value v = b->g->values[x];
    enum dim key = v.shape.n ? v.dims[v.shape.n - 1] : DIM_NONE;
    if (v.shape.n < 3 || value_find_dim(&v, DIM_BATCH) < 0 || value_find_dim(&v, DIM_SEQ) < 0 ||
        key == DIM_SEQ)
        return build_fail(b,
                          "causal has %s: try scores [batch, .., seq, key], with the keys' "
                          "sequence called otherwise, k{seq as key}",
                          dims_of(b, x));
    build_at_like(b, x);
    int after = measure_distance(b, key), hidden = scale(b->g, apply(b->g, OP_RELU, after), HIDDEN);
    double window = term_number_or(&arg[1], 0);
    if (window > 0) {
        struct term before =
            algebra_operator(b, SIGN_SUB, term_number(1 - window, true), term_value(after));
        int far = as_value(b, before);
        hidden = add(b->g, hidden, scale(b->g, apply(b->g, OP_RELU, far), HIDDEN));
    }
    hidden = cast(b->g, hidden, v.dtype);
    int scores = add(b->g, x, hidden);
    if (b->failed)
        return (struct term){0};
    struct node *last = &b->g->nodes[b->g->values[scores].producer];
    while (last->op == OP_PAD)
        last = &b->g->nodes[b->g->values[last->in[0]].producer];
    last->hides = key;
    last->from = window > 0 ? (int64_t)ceil(window) : 0;
    return term_value(scores);
}
