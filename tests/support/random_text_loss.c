// SPDX-License-Identifier: Apache-2.0
// What random programs mean, line by line. See random_text.h.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/random_text.h"

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double softplus(double x)
{
    return log1p(exp(x));
}

const struct text_map text_maps[MAPS] = {
    {"gelu", gelu}, {"tanh", tanh}, {"silu", silu}, {"softplus", softplus}, {"sigmoid", sigmoid}};
struct meaning {
    const struct random_text *t;
    const struct text_inputs *in;
    struct arena a;
    struct named vars[TEXT_VARS], tokens, targets, positions;
    char prefix[20];
    double loss;
};

static struct named read_param(struct meaning *m, const struct text_param *p)
{
    struct named w = p->shape;
    char path[80];
    snprintf(path, sizeof path, "%s%s%s", m->prefix, p->name, p->leaf);
    const double *from = m->in->find(m->in->ctx, path);
    struct named mine = named_new(&m->a, w.n, w.dim, w.size);
    for (int64_t i = 0; i < named_count(&w); i++) {
        int64_t left = i, stored = 0, stride = 1; // with what a padded size has beyond it
        for (int d = w.n - 1; d >= 0; d--) {
            stored += left % w.size[d] * stride;
            left /= w.size[d];
            stride *= strcmp(w.dim[d], "rest") == 0 ? TEXT_REST_PADDED : w.size[d];
        }
        mine.v[i] = from[stored];
    }
    return mine;
}

static struct named_draw draw_of(struct meaning *m, const char *name, const char *leaf, double rate)
{
    return (struct named_draw){m->in->seed, arena_printf(&m->a, "%s%s%s", m->prefix, name, leaf),
                               rate, m->in->step};
}

static struct named slice_of(struct arena *a, const struct named *x, int k)
{
    // The dimension of a stack was the weight's first, and is the product's last but the weight's others.
    struct named out = named_without(x, "3");
    int at = named_find(x, "3");
    int64_t inner = 1;
    for (int d = at + 1; d < x->n; d++)
        inner *= x->size[d];
    out = named_new(a, out.n, out.dim, out.size);
    for (int64_t i = 0; i < named_count(&out); i++)
        out.v[i] = x->v[(i / inner * x->size[at] + k) * inner + i % inner];
    return out;
}

static const char *const nothing[] = {NULL};

static struct named attend(struct meaning *m, const struct text_line *l)
{
    static const char *const heads[] = {"heads", NULL};
    static const char *const order[] = {"batch", "heads", "seq", "key"};
    struct arena *a = &m->a;
    const struct named *q = &m->vars[l->in[0]];
    struct named k = named_rename(&m->vars[l->in[1]], "seq", "key");
    struct named v = named_rename(&m->vars[l->in[2]], "seq", "key");
    if (named_find(&k, "kv_heads") >= 0) {
        k = named_repeat(a, &k, "kv_heads", "heads", q->size[named_find(q, "heads")]);
        v = named_repeat(a, &v, "kv_heads", "heads", q->size[named_find(q, "heads")]);
    }
    struct named s = named_product(a, q, &k, heads);
    s = named_scale(a, &s, 1 / sqrt((double)q->size[q->n - 1]), 0);
    if (l->number != 0) {
        s = named_scale(a, &s, 1 / l->number, 0);
        s = named_map(a, &s, tanh);
        s = named_scale(a, &s, l->number, 0);
    }
    if (l->sign)
        s = named_causal(a, &s, l->choice);
    s = named_softmax(a, &s, "key");
    if (l->more > 0) {
        struct named_draw d = draw_of(m, l->param.name, "/dropout", l->more);
        s = named_ordered(a, &s, order);
        s = named_dropout(a, &s, &d);
    }
    s = named_product(a, &s, &v, heads);
    return named_ordered(a, &s, (const char *const[]){"batch", "seq", "heads", "head"});
}

static void mean_line(struct meaning *m, const struct text_line *l)
{
    struct arena *a = &m->a;
    const struct named *x = &m->vars[l->in[0]], *y = &m->vars[l->in[1]];
    struct named *out = &m->vars[l->out[0]], w, b;
    const char *const over[] = {l->dim, NULL};
    if (l->param.shape.n)
        w = read_param(m, &l->param);
    if (l->bias.shape.n)
        b = read_param(m, &l->bias);
    switch (l->kind) {
    case LINE_TOKENS:
        *out = named_embed(a, &m->tokens, &w);
        break;
    case LINE_POSITIONS:
        *out = named_embed(a, &m->positions, &w);
        break;
    case LINE_WEIGH:
        *out = named_product(a, x, &w, l->dim ? over : nothing);
        if (l->bias.shape.n)
            *out = named_operate(a, '+', out, &b);
        break;
    case LINE_STACK:
        w = named_product(a, x, &w, nothing);
        for (int k = 0; k < 3; k++)
            m->vars[l->out[k]] = slice_of(a, &w, k);
        break;
    case LINE_PRODUCT:
        w = named_product(a, x, y, over);
        *out = named_ordered(a, &w, m->t->vars[l->out[0]].dim);
        break;
    case LINE_MAP:
        *out = named_map(a, x, text_maps[l->choice].f);
        break;
    case LINE_OPERATE:
        *out = named_operate(a, l->sign, x, y);
        break;
    case LINE_BESIDE:
        *out = named_operate(a, l->sign, x, &w);
        break;
    case LINE_SCALE:
        *out = named_scale(a, x, l->number, 0);
        break;
    case LINE_NORM:
        *out = named_norm(a, x, l->choice < 2, 1e-5, l->param.shape.n ? &w : NULL,
                          l->bias.shape.n ? &b : NULL);
        break;
    case LINE_SOFTMAX:
        *out = named_softmax(a, x, l->dim);
        break;
    case LINE_SUM:
        *out = named_sum(a, x, over, 1);
        break;
    case LINE_MEAN:
        *out = named_mean(a, x, over);
        break;
    case LINE_RENAME:
        *out = named_rename(x, l->dim, l->to);
        break;
    case LINE_SWAP:
        *out = named_ordered(a, x, (const char *const[]){x->dim[1], x->dim[0], x->dim[2]});
        break;
    case LINE_CAUSAL:
        *out = named_causal(a, x, l->choice);
        break;
    case LINE_ROTARY:
        *out = named_rotary(a, x, l->number);
        break;
    case LINE_ATTENTION:
        *out = attend(m, l);
        break;
    case LINE_DROPOUT: {
        struct named_draw d = draw_of(m, l->param.name, "/dropout", l->number);
        *out = named_dropout(a, x, &d);
        break;
    }
    case LINE_NORMAL: {
        struct named_draw d = draw_of(m, l->param.name, "", 0);
        struct named r = named_normals(a, x, &d);
        r = named_scale(a, &r, l->number, 0);
        *out = named_operate(a, '+', x, &r);
        break;
    }
    case LINE_TOP:
        named_top(a, x, l->choice, out, &m->vars[l->out[1]]);
        break;
    case LINE_SLOTS:
        *out = named_places(a, x, y, 4, l->choice);
        break;
    case LINE_DISPATCH:
        *out = named_dispatch(a, x, y);
        break;
    case LINE_COMBINE:
        w = named_ordered(a, x, (const char *const[]){"group", "expert", "capacity", "embed"});
        *out = named_combine(a, &w, y, &m->vars[l->choice], &m->vars[l->in[2]]);
        break;
    case LINE_CARRY:
        m->vars[m->t->x] = *x;
        break;
    case LINE_LOSS:
        m->loss += named_cross_entropy(x, &m->targets, m->t->vocab);
        break;
    case LINE_SQUARES: {
        struct named square = named_operate(a, '*', x, x);
        m->loss += l->number * named_mean(a, &square, nothing).v[0];
        break;
    }
    }
}

double random_text_loss(const struct random_text *t, const struct text_inputs *in)
{
    struct meaning m = {.t = t, .in = in};
    static const char *const dims[] = {"batch", "seq"};
    static const int64_t of[] = {TEXT_BATCH, TEXT_SEQ};
    m.tokens = named_new(&m.a, 2, dims, of);
    m.targets = named_new(&m.a, 2, dims, of);
    m.positions = named_new(&m.a, 2, dims, of);
    for (int i = 0; i < TEXT_BATCH * TEXT_SEQ; i++) {
        m.tokens.v[i] = in->tokens[i];
        m.targets.v[i] = in->targets[i];
        m.positions.v[i] = i % TEXT_SEQ;
    }
    for (int i = 0; i < t->body; i++)
        mean_line(&m, &t->lines[i]);
    for (int layer = 0; layer < t->layers; layer++) {
        snprintf(m.prefix, sizeof m.prefix, "layers/%d/", layer);
        for (int i = t->body; i < t->tail; i++)
            mean_line(&m, &t->lines[i]);
    }
    m.prefix[0] = 0;
    for (int i = t->tail; i < t->n; i++)
        mean_line(&m, &t->lines[i]);
    arena_clear(&m.a);
    return m.loss;
}
