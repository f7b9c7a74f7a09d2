// SPDX-License-Identifier: Apache-2.0
// Attention and rotary positions in plain f64, pair by pair. See reference.h.
#include <math.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/ops/reference.h"

struct call {
    enum op op;
    const struct op_attr *attr;
    const struct ref_tensor *in;
    int nin;
    struct ref_tensor *out;
    int nout;
};

// How often pair p of a series of `elements` turns in a position, in radians. The ways to slow it
// down are written as the papers and their models' code have them, not as rotary.h does.
static double speed_of(const struct op_rotary *r, double p, double elements)
{
    double theta = (double)r->theta, f = pow(theta, -2 * p / elements), length = (double)r->length;
    double slowed = f / (double)r->factor, wave = 2 * M_PI / f;
    if (r->scaling == ROTARY_LINEAR)
        return slowed;
    if (r->scaling == ROTARY_LLAMA3) {
        if (wave > length / (double)r->slow)
            return slowed;
        if (wave < length / (double)r->fast)
            return f;
        double smooth = (length / wave - (double)r->slow) / ((double)r->fast - (double)r->slow);
        return (1 - smooth) * slowed + smooth * f;
    }
    if (r->scaling == ROTARY_YARN) {
        double low = elements * log(length / ((double)r->fast * 2 * M_PI)) / (2 * log(theta));
        double high = elements * log(length / ((double)r->slow * 2 * M_PI)) / (2 * log(theta));
        low = fmax(floor(low), 0);
        high = fmin(ceil(high), elements - 1);
        double ramp = fmin(fmax((p - low) / (high > low ? high - low : 0.001), 0), 1);
        return slowed * ramp + f * (1 - ramp);
    }
    return f;
}

void ref_rotary(const struct op_attr *attr, const struct ref_tensor *in, struct ref_tensor *out)
{
    const struct shape *s = &in[0].shape;
    const struct op_rotary *r = &attr->rotary;
    int64_t d = s->dim[s->n - 1], heads = s->n > in[1].shape.n + 1 ? s->dim[s->n - 2] : 1;
    for (int64_t i = 0; i < shape_count(s); i++) {
        int64_t e = i % d, h = i / d % heads, p = r->pairs ? e / 2 : e % (d / 2);
        bool low = r->pairs ? e % 2 == 0 : e < d / 2;
        int64_t step = r->pairs ? 1 : d / 2;
        double speed =
            r->sweep ? speed_of(r, (double)((attr->start + h) * d / 2 + p), (double)(r->heads * d))
                     : speed_of(r, (double)p, (double)d);
        double angle = (double)attr->scale * (in[1].v[i / (d * heads)] + (double)r->offset) * speed;
        double other = in[0].v[low ? i + step : i - step],
               gain = r->gain != 0 ? (double)r->gain : 1;
        out->v[i] = gain * (in[0].v[i] * cos(angle) + (low ? -1 : 1) * other * sin(angle));
    }
}

// Attention's element (b, s or t, head, d).
static double *element4(const struct ref_tensor *t, int64_t b, int64_t s, int64_t h, int64_t d)
{
    const int64_t *dim = t->shape.dim;
    return &t->v[((b * dim[1] + s) * dim[2] + h) * dim[3] + d];
}

// The operands, read from ops.def: a pair more than the five that all calls have, then dy, y and
// the log-sum-exp.
struct parts {
    const struct ref_tensor *q, *k, *v, *qr, *kr, *dy, *y, *lse, *at_q, *at_k;
    int step; // the operand's index; −1: no dropout
};

static struct parts parts_of(const struct call *c)
{
    bool grad = c->op == OP_ATTENTION_GRAD, pair = c->nin - 3 * grad > 6;
    int at = 3 + 2 * pair + 3 * grad;
    return (struct parts){.q = &c->in[0],
                          .k = &c->in[1],
                          .v = &c->in[2],
                          .qr = pair ? &c->in[3] : NULL,
                          .kr = pair ? &c->in[4] : NULL,
                          .dy = &c->in[at - 3],
                          .y = &c->in[at - 2],
                          .lse = &c->in[at - 1],
                          .at_q = &c->in[at],
                          .at_k = &c->in[at + 1],
                          .step = c->nin > at + 2 ? at + 2 : -1};
}

static bool is_seen(const struct op_attr *a, double query, double key)
{
    bool near = !a->window || fabs(query - key) < (double)a->window;
    return near && (a->ahead || key <= query);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

// What the scores of query (b, s, h) are made of, before a cap.
static double product_of(const struct call *c, const struct parts *o, int64_t b, int64_t s,
                         int64_t h, int64_t t)
{
    int64_t g = (c->attr->start + h) / c->attr->group;
    double sum = dot(element4(o->q, b, s, h, 0), element4(o->k, b, t, g, 0), o->q->shape.dim[3]);
    if (o->qr) {
        int64_t r = o->kr->shape.dim[2];
        sum += dot(element4(o->qr, b, s, h, 0), &o->kr->v[(b * o->kr->shape.dim[1] + t) * r], r);
    }
    return (double)c->attr->scale * sum;
}

// A row's log-sum-exp in [batch, heads, queries].
static double *row_number(const struct ref_tensor *t, int64_t b, int64_t s, int64_t h)
{
    const int64_t *dim = t->shape.dim;
    return &t->v[(b * dim[1] + h) * dim[2] + s];
}

// The scores of query (b, s, h) with the keys; −∞ where it does not see one.
static void scores(const struct call *c, int64_t b, int64_t s, int64_t h, double *p)
{
    const struct parts o = parts_of(c);
    const int64_t keys = o.k->shape.dim[1];
    double cap = (double)c->attr->cap;
    for (int64_t t = 0; t < keys; t++) {
        double score = product_of(c, &o, b, s, h, t);
        score = cap != 0 ? cap * tanh(score / cap) : score;
        bool seen = is_seen(c->attr, o.at_q->v[b * o.q->shape.dim[1] + s], o.at_k->v[b * keys + t]);
        p[t] = seen ? score : -INFINITY;
    }
}

// ln Σ e^p; scores of over 709 are numbers, too.
static double log_sum_exp(const double *p, int64_t n)
{
    double total = 0, most = -INFINITY;
    for (int64_t t = 0; t < n; t++)
        most = p[t] > most ? p[t] : most;
    for (int64_t t = 0; t < n && most > -INFINITY; t++)
        total += exp(p[t] - most);
    return most > -INFINITY ? most + log(total) : -INFINITY;
}

// The softmax of the scores, in place; a query that sees no key makes zeros.
static void weights(double *p, int64_t n, double lse)
{
    for (int64_t t = 0; t < n; t++)
        p[t] = p[t] == -INFINITY ? 0 : exp(p[t] - lse);
}

// What dropout leaves of the weight of key t; 1 without dropout.
static double weight_kept(const struct call *c, int64_t b, int64_t s, int64_t h, int64_t t)
{
    const struct op_draw *d = &c->attr->draw;
    const struct parts o = parts_of(c);
    const int64_t at[DRAW_DIMS] = {d->from[0] + b, d->from[1] + h,
                                   (int64_t)o.at_q->v[b * o.q->shape.dim[1] + s],
                                   (int64_t)o.at_k->v[b * o.k->shape.dim[1] + t]};
    return o.step >= 0 ? ref_kept(d, c->in[o.step].v[0], at) : 1;
}

static void add_times(double *to, double by, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += by * x[i];
}

static void attend(const struct call *c, int64_t b, int64_t s, int64_t h, const double *p)
{
    int64_t g = (c->attr->start + h) / c->attr->group, width = c->in[2].shape.dim[3];
    double *y = element4(&c->out[0], b, s, h, 0);
    for (int64_t i = 0; i < width; i++)
        y[i] = 0;
    for (int64_t t = 0; t < c->in[1].shape.dim[1]; t++)
        if (p[t] != 0) // values of keys that are not seen may be anything
            add_times(y, weight_kept(c, b, s, h, t) * p[t], element4(&c->in[2], b, t, g, 0), width);
}

static void attend_grad(const struct call *c, int64_t b, int64_t s, int64_t h, const double *p)
{
    const struct parts o = parts_of(c);
    int64_t g = (c->attr->start + h) / c->attr->group, keys = o.k->shape.dim[1];
    int64_t d = o.q->shape.dim[3], e = o.v->shape.dim[3], r = o.kr ? o.kr->shape.dim[2] : 0;
    const double *dy = element4(o.dy, b, s, h, 0);
    double mean = dot(dy, element4(o.y, b, s, h, 0), e), cap = (double)c->attr->cap;
    for (int64_t t = 0; t < keys; t++) {
        double kept = weight_kept(c, b, s, h, t), dp = kept * dot(dy, element4(o.v, b, t, g, 0), e);
        double turned = cap != 0 ? tanh(product_of(c, &o, b, s, h, t) / cap) : 0;
        double ds = (double)c->attr->scale * p[t] * (dp - mean) * (1 - turned * turned);
        add_times(element4(&c->out[0], b, s, h, 0), ds, element4(o.k, b, t, g, 0), d);
        add_times(element4(&c->out[1], b, t, g, 0), ds, element4(o.q, b, s, h, 0), d);
        add_times(element4(&c->out[2], b, t, g, 0), kept * p[t], dy, e);
        if (!o.qr)
            continue;
        add_times(element4(&c->out[3], b, s, h, 0), ds, &o.kr->v[(b * keys + t) * r], r);
        add_times(&c->out[4].v[(b * keys + t) * r], ds, element4(o.qr, b, s, h, 0), r);
    }
}

// What a kernel may rely on instead of reading the positions.
static bool order_is_as_said(const struct call *c)
{
    const struct parts o = parts_of(c);
    const int64_t n = o.q->shape.dim[1];
    bool is = !c->attr->in_order || n == o.k->shape.dim[1];
    for (int64_t i = 0; is && c->attr->in_order && i < shape_count(&o.at_q->shape); i++)
        is = o.at_q->v[i] == (double)(i % n) && o.at_k->v[i] == (double)(i % n);
    return is;
}

void ref_attention(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
                   struct ref_tensor *out, int nout)
{
    const struct call call = {op, attr, in, nin, out, nout}, *c = &call;
    const int64_t *dim = in[0].shape.dim, keys = in[1].shape.dim[1];
    PRE(order_is_as_said(c));
    double *p = calloc((size_t)keys, sizeof *p);
    PRE(p);
    for (int k = 0; k < c->nout; k++)
        for (int64_t i = 0; i < shape_count(&c->out[k].shape); i++)
            c->out[k].v[i] = 0;
    for (int64_t b = 0; b < dim[0]; b++)
        for (int64_t s = 0; s < dim[1]; s++)
            for (int64_t h = 0; h < dim[2]; h++) {
                bool grad = c->op == OP_ATTENTION_GRAD;
                double *lse = row_number(grad ? parts_of(c).lse : &c->out[1], b, s, h);
                scores(c, b, s, h, p);
                *lse = grad ? *lse : log_sum_exp(p, keys);
                weights(p, keys, *lse);
                if (grad)
                    attend_grad(c, b, s, h, p);
                else
                    attend(c, b, s, h, p);
            }
    free(p);
}

// ---- packed: taken apart, the ops themselves, and put together again ----------------------------

// Piece k of the n that stand before the last two dimensions of a tensor.
static struct ref_tensor take_piece(const struct ref_tensor *x, int64_t n, int64_t k)
{
    struct ref_tensor piece = {.dtype = x->dtype, .shape = x->shape};
    int64_t row = x->shape.dim[3] * x->shape.dim[4];
    piece.shape.n = 4;
    piece.shape.dim[2] = x->shape.dim[3];
    piece.shape.dim[3] = x->shape.dim[4];
    piece.v = calloc((size_t)shape_count(&piece.shape), sizeof *piece.v);
    PRE(piece.v);
    for (int64_t i = 0; i < shape_count(&piece.shape); i++)
        piece.v[i] = x->v[(i / row * n + k) * row + i % row];
    return piece;
}

static void put_piece(struct ref_tensor *x, int64_t n, int64_t k, struct ref_tensor *piece)
{
    int64_t row = x->shape.dim[3] * x->shape.dim[4];
    for (int64_t i = 0; i < shape_count(&piece->shape); i++)
        x->v[(i / row * n + k) * row + i % row] = piece->v[i];
    free(piece->v);
}

void ref_rotary_packed(const struct op_attr *attr, const struct ref_tensor *in,
                       struct ref_tensor *out)
{
    const int64_t n = in[0].shape.dim[2];
    for (int64_t k = 0; k < n; k++) {
        struct ref_tensor from[2] = {take_piece(&in[0], n, k), in[1]};
        struct ref_tensor to = take_piece(&in[0], n, k);
        if (k < n - 1)
            ref_rotary(attr, from, &to);
        put_piece(out, n, k, &to);
        free(from[0].v);
    }
}

// q, k and v are one operand, or k and v behind q.
void ref_attention_packed(bool grad, const struct op_attr *attr, const struct ref_tensor *in,
                          int nin, struct ref_tensor *out)
{
    const int at = nin - (grad ? 5 : 2) - 1, alone = at; // the packed operand; q is alone before it
    const int64_t n = in[at].shape.dim[2];
    struct ref_tensor from[OP_MAX_IN], to[OP_MAX_OUT];
    int m = 0;
    for (int k = 0; k < alone; k++)
        from[m++] = in[k];
    for (int64_t k = 0; k < n; k++)
        from[m++] = take_piece(&in[at], n, k);
    for (int k = at + 1; k < nin; k++)
        from[m++] = in[k];
    for (int k = 0; k < alone || (!grad && k < 2); k++)
        to[k] = out[k];
    for (int64_t k = 0; k < n && grad; k++)
        to[alone + k] = take_piece(&in[at], n, k);
    ref_attention(grad ? OP_ATTENTION_GRAD : OP_ATTENTION, attr, from, m, to, grad ? 3 : 2);
    for (int64_t k = 0; k < n; k++)
        free(from[alone + k].v);
    for (int64_t k = 0; k < n && grad; k++)
        put_piece(&out[at], n, k, &to[alone + k]);
}
