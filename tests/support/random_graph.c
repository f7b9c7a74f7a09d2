// SPDX-License-Identifier: Apache-2.0
// Random models; see random_graph.h.
#include "tests/support/random_graph.h"

#include <stdio.h>
#include <string.h>

#include "common/base/rand.h"
#include "common/compile/graph/build.h"
#include "common/model/draws.h"
#include "common/model/loss.h"
#include "tests/support/mean_loss.h"

enum { POOL = 64 };

struct pool {
    struct graph *g;
    const struct random_graph *r;
    int64_t batch;
    int n, value[POOL];
    bool read[POOL]; // some deed reads it
    int deed, asked; // at hand, and how many questions it has put
    int targets, positions, table, first;
    struct draws draws;
};

int random_pick(uint64_t seed, uint32_t what, int k, int n)
{
    struct rand_site site = {.seed = seed, .stream = what};
    PRE(n > 0);
    return (int)(rand_word(&site, (uint64_t)k) % (uint32_t)n);
}

int64_t random_size(enum dim d)
{
    static const int64_t sizes[DIM_KNOWN] = {
        [DIM_SEQ] = 4,    [DIM_EMBED] = 8,   [DIM_MLP] = 12,   [DIM_HEADS] = 4,  [DIM_HEAD_DIM] = 6,
        [DIM_VOCAB] = 12, [DIM_CLASSES] = 8, [DIM_LATENT] = 6, [DIM_EXPERT] = 1, [DIM_QKV] = 3};
    return sizes[d];
}

static int pick(struct pool *p, int n)
{
    return random_pick(p->r->seed, 100 + (uint32_t)p->deed, p->asked++, n);
}

static const struct value *value_at(const struct pool *p, int i)
{
    return &p->g->values[p->value[i]];
}

static void put(struct pool *p, int value)
{
    if (p->g->failed || p->n == POOL)
        return;
    p->read[p->n] = false;
    p->value[p->n++] = value;
}

static int take(struct pool *p, int i)
{
    p->read[i] = true;
    return p->value[i];
}

static bool has(const struct value *v, enum dim d)
{
    for (int k = 0; k < v->shape.n; k++)
        if (v->dims[k] == d)
            return true;
    return false;
}

static enum dim last_dim(const struct value *v)
{
    return v->shape.n ? v->dims[v->shape.n - 1] : DIM_NONE;
}

// A parameter called by the deed that makes it.
static int param(struct pool *p, const char *what, int n, const enum dim *dims,
                 const int64_t *sizes)
{
    return graph_param(p->g, arena_printf(p->g->arena, "deed%d/%s", p->deed, what), n, dims, sizes,
                       INIT_NORMAL, 0.3f);
}

static int param_of(struct pool *p, const char *what, int n, const enum dim *dims)
{
    int64_t sizes[MAX_DIMS];
    for (int d = 0; d < n; d++)
        sizes[d] = random_size(dims[d]);
    return param(p, what, n, dims, sizes);
}

// A dimension that a product may bring in: not one the operand has.
static enum dim new_dim(struct pool *p, const struct value *v)
{
    static const enum dim some[] = {DIM_EMBED,  DIM_MLP,    DIM_VOCAB, DIM_CLASSES,
                                    DIM_LATENT, DIM_EXPERT, DIM_HEADS};
    enum { SOME = sizeof some / sizeof *some };
    int at = pick(p, SOME);
    for (int k = 0; k < SOME; k++)
        if (!has(v, some[(at + k) % SOME]))
            return some[(at + k) % SOME];
    return DIM_NONE;
}

static bool is_feature(enum dim d)
{
    return d != DIM_NONE && d != DIM_BATCH && d != DIM_SEQ;
}

// x · W over x's last dimension, or its last two.
static void linear(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    int n = v.shape.n, gone = n > 1 && is_feature(v.dims[n - 2]) && pick(p, 2) ? 2 : 1;
    enum dim fresh = new_dim(p, &v), w[3], out[MAX_DIMS];
    if (!n || !is_feature(v.dims[n - 1]) || !fresh)
        return;
    for (int d = 0; d < gone; d++)
        w[d] = v.dims[n - gone + d];
    w[gone] = fresh;
    memcpy(out, v.dims, sizeof out);
    out[n - gone] = fresh;
    int weight = param_of(p, "weight", gone + 1, w);
    put(p, graph_matmul(p->g, take(p, i), weight, n - gone + 1, out));
}

// x · W [d, heads, head_dim]: heads keep a dimension of their own.
static void to_heads(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    int n = v.shape.n;
    if (!n || !is_feature(last_dim(&v)) || has(&v, DIM_HEADS) || has(&v, DIM_HEAD_DIM) || n > 3)
        return;
    const enum dim w[] = {last_dim(&v), DIM_HEADS, DIM_HEAD_DIM};
    enum dim out[MAX_DIMS];
    memcpy(out, v.dims, sizeof out);
    out[n - 1] = DIM_HEADS;
    out[n] = DIM_HEAD_DIM;
    put(p, graph_matmul(p->g, take(p, i), param_of(p, "heads", 3, w), n + 1, out));
}

// x · W [3, d, d'], taken apart; now and then a piece is read by nobody.
static void stacked(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    int n = v.shape.n;
    enum dim fresh = new_dim(p, &v), out[MAX_DIMS] = {DIM_QKV};
    if (!n || n > 4 || !is_feature(last_dim(&v)) || !fresh)
        return;
    const enum dim w[] = {DIM_QKV, last_dim(&v), fresh};
    memcpy(out + 1, v.dims, sizeof *out * (size_t)(n - 1));
    out[n] = fresh;
    int y = graph_matmul(p->g, take(p, i), param_of(p, "stacked", 3, w), n + 1, out);
    int first = graph_op(
        p->g,
        &(struct op_args){
            .op = OP_SPLIT, .nin = 1, .in = &y, .nout_dims = n, .out_dims = out + 1, .nout = 3});
    int unread = pick(p, 6);
    for (int k = 0; k < 3; k++)
        if (k != unread)
            put(p, first + k);
}

static void unary(struct pool *p, int i)
{
    static const enum op ops[] = {OP_RELU,  OP_GELU,     OP_TANH,   OP_SILU,
                                  OP_SCALE, OP_SOFTPLUS, OP_SIGMOID};
    struct value v = *value_at(p, i);
    struct op_attr attr = {.scale = 0.5f};
    enum op op = ops[pick(p, sizeof ops / sizeof *ops)];
    int in = take(p, i);
    put(p, graph_op(p->g, &(struct op_args){.op = op,
                                            .nin = 1,
                                            .in = &in,
                                            .nout_dims = v.shape.n,
                                            .out_dims = v.dims,
                                            .attr = &attr}));
}

// Over the last dimension; not over the batch, whose microbatches do not see each other.
static void softmax(struct pool *p, int i)
{
    const struct value *v = value_at(p, i);
    if (v->shape.n && v->dims[v->shape.n - 1] != DIM_BATCH)
        put(p, graph_like(p->g, OP_SOFTMAX, 1, (int[]){take(p, i)}, p->value[i]));
}

static bool same_dims(const struct value *a, const struct value *b)
{
    return a->shape.n == b->shape.n && a->dtype == b->dtype &&
           !memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->shape.n);
}

// With another value of its dimensions, or with a parameter along its last ones.
static void binary(struct pool *p, int i)
{
    static const enum op ops[] = {OP_ADD, OP_MUL, OP_SUB};
    struct value v = *value_at(p, i);
    enum op op = ops[pick(p, 3)];
    int j = pick(p, p->n), other = -1, n = v.shape.n;
    if (!n)
        return;
    if (same_dims(value_at(p, j), &v))
        other = take(p, j);
    else if (is_feature(last_dim(&v)))
        other = param_of(p, "along", n > 1 && is_feature(v.dims[n - 2]) ? 2 : 1,
                         v.dims + (n > 1 && is_feature(v.dims[n - 2]) ? n - 2 : n - 1));
    if (other >= 0)
        put(p, graph_like(p->g, op, 2, (int[]){take(p, i), other}, p->value[i]));
}

// With a value that lacks some of its dimensions: what is read is not read element by element.
static void broadcast(struct pool *p, int i)
{
    static const enum op ops[] = {OP_ADD, OP_MUL, OP_SUB};
    struct value v = *value_at(p, i);
    int j = pick(p, p->n), n = 0;
    const struct value *less = value_at(p, j);
    for (int d = 0; d < v.shape.n && n < less->shape.n; d++)
        n += v.dims[d] == less->dims[n];
    if (!n || n < less->shape.n || n == v.shape.n || less->dtype != v.dtype)
        return;
    put(p, graph_like(p->g, ops[pick(p, 3)], 2, (int[]){take(p, i), take(p, j)}, p->value[i]));
}

// Taken twice by one op, and what is made of it by the next.
static void twice(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    if (!v.shape.n)
        return;
    int in = take(p, i), sum = graph_like(p->g, OP_ADD, 2, (int[]){in, in}, in);
    put(p, graph_like(p->g, pick(p, 2) ? OP_MUL : OP_SUB, 2, (int[]){sum, in}, in));
}

static void norm(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    struct op_attr attr = {.eps = 1e-3f, .center = pick(p, 2)};
    int in[3] = {p->value[i]}, n = 1, vectors = pick(p, 3);
    if (v.shape.n < 2 || !is_feature(last_dim(&v)))
        return;
    int64_t width = random_size(last_dim(&v));
    static const char *const names[] = {"weight", "bias"};
    for (int k = 0; k < vectors; k++)
        in[n++] = param(p, names[k], 1, (enum dim[]){DIM_NORM}, &width);
    p->read[i] = true;
    put(p, graph_op(p->g, &(struct op_args){.op = OP_NORM,
                                            .nin = n,
                                            .in = in,
                                            .nout_dims = v.shape.n,
                                            .out_dims = v.dims,
                                            .attr = &attr}));
}

static void sum_over(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    struct op_attr attr = {.scale = 0.25f};
    int gone = v.shape.n > 1 ? 1 + pick(p, v.shape.n - 1) : 0, n = 0;
    enum dim out[MAX_DIMS];
    for (int d = 0; d < v.shape.n; d++)
        if (d != gone)
            out[n++] = v.dims[d];
    if (!gone)
        return;
    int in = take(p, i);
    put(p, graph_op(p->g, &(struct op_args){.op = OP_SUM,
                                            .nin = 1,
                                            .in = &in,
                                            .nout_dims = n,
                                            .out_dims = out,
                                            .attr = &attr}));
}

// Two values [batch, .., f, c] and [batch, .., g, c]: the products of their rows.
static void product(struct pool *p, int i)
{
    struct value a = *value_at(p, i);
    int j = pick(p, p->n);
    struct value b = *value_at(p, j);
    int n = a.shape.n;
    enum dim out[MAX_DIMS];
    if (n < 3 || b.shape.n != n || a.dtype != b.dtype || last_dim(&a) != last_dim(&b) ||
        !is_feature(last_dim(&a)))
        return;
    for (int d = 0; d < n - 2; d++)
        if (a.dims[d] != b.dims[d])
            return;
    if (has(&b, a.dims[n - 2]) || has(&a, b.dims[n - 2]))
        return;
    memcpy(out, a.dims, sizeof out);
    out[n - 1] = b.dims[n - 2];
    put(p, graph_matmul(p->g, take(p, i), take(p, j), n, out));
}

// ln Σ exp over the rows, and for rows of ids the one that is meant.
static void rows(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    int in = p->value[i];
    if (v.shape.n < 2 || !is_feature(last_dim(&v)))
        return;
    p->read[i] = true;
    bool ids = v.shape.n == 3 && v.dims[0] == DIM_BATCH && v.dims[1] == DIM_SEQ;
    if (ids && pick(p, 2)) {
        put(p, loss_cross_entropy(p->g, in, p->targets, 0));
        return;
    }
    int max = loss_rows(p->g, OP_ROW_MAX, 1, &in, DT_F32, 0);
    int sum = loss_rows(p->g, OP_ROW_SUM_EXP, 2, (int[]){in, max}, DT_F32, 0);
    int log = graph_like(p->g, OP_LOG, 1, &sum, sum);
    put(p, graph_like(p->g, OP_ADD, 2, (int[]){log, max}, log));
}

static void drop(struct pool *p, int i)
{
    const struct value *v = value_at(p, i);
    if (!v->shape.n)
        return;
    bool placed = draws_want_positions(p->g, p->value[i]) && pick(p, 2);
    int positions = placed ? p->positions : -1;
    put(p, draws_dropout(&p->draws, take(p, i), positions, arena_printf(p->g->arena, "%d", p->deed),
                         0.3));
}

static void noise(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    if (!v.shape.n || v.dtype != DT_F32) // which is drawn in
        return;
    bool placed = draws_want_positions(p->g, p->value[i]) && pick(p, 2);
    int positions = placed ? p->positions : -1;
    int drawn =
        draws_normal(&p->draws, p->value[i], positions, arena_printf(p->g->arena, "%d", p->deed));
    put(p,
        graph_like(p->g, pick(p, 2) ? OP_ADD : OP_MUL, 2, (int[]){take(p, i), drawn}, p->value[i]));
}

// By a parameter that is read in another place too: a tied embedding, or what comes after it.
static void tied(struct pool *p, int i)
{
    struct value v = *value_at(p, i);
    bool head = pick(p, 2);
    enum dim gone = last_dim(&v), fresh;
    if (gone == DIM_MLP)
        fresh = DIM_EMBED;
    else
        fresh = head ? DIM_VOCAB : DIM_MLP;
    if ((gone != DIM_MLP && gone != DIM_EMBED) || has(&v, fresh))
        return;
    int weight = gone == DIM_EMBED && head ? p->table : p->first;
    v.dims[v.shape.n - 1] = fresh;
    put(p, graph_matmul(p->g, take(p, i), weight, v.shape.n, v.dims));
}

static bool is_attended(const struct value *v)
{
    return v->shape.n == 4 && v->dims[0] == DIM_BATCH && v->dims[1] == DIM_SEQ &&
           v->dims[2] == DIM_HEADS && v->dims[3] == DIM_HEAD_DIM;
}

// The heads of x with elements of another dimension.
static int heads_of(struct pool *p, const char *what, int x, enum dim to)
{
    const enum dim w[] = {DIM_HEAD_DIM, to}, out[] = {DIM_BATCH, DIM_SEQ, DIM_HEADS, to};
    return graph_matmul(p->g, x, param_of(p, what, 2, w), 4, out);
}

// A value that all heads can share as the key of a second pair of scores; −1: there is none.
static int find_shared(struct pool *p)
{
    for (int k = 0, at = pick(p, p->n); k < p->n; k++, at = (at + 1) % p->n) {
        const struct value *v = value_at(p, at);
        enum dim last = last_dim(v);
        if (v->shape.n == 3 && v->dims[0] == DIM_BATCH && v->dims[1] == DIM_SEQ &&
            is_feature(last) && last != DIM_HEADS && last != DIM_HEAD_DIM && last != DIM_LATENT &&
            v->dtype == (p->g->compute ? p->g->compute : DT_F32))
            return at;
    }
    return -1;
}

static void attend(struct pool *p, int i)
{
    struct op_attr attr = {.scale = 0.4f, .group = 1};
    int in[8] = {p->value[i], p->value[i], p->value[i]}, n = 3;
    if (!is_attended(value_at(p, i)))
        return;
    p->read[i] = true;
    for (int k = 1, at = pick(p, p->n); k < 3; k++, at = pick(p, p->n))
        if (is_attended(value_at(p, at)))
            in[k] = take(p, at);
    attr.window = pick(p, 3) ? 0 : 1 + pick(p, 3);
    attr.ahead = pick(p, 4) == 0;
    attr.cap = pick(p, 3) ? 0 : 0.7f;
    if (pick(p, 3) == 0)
        in[2] = heads_of(p, "values", in[2], DIM_LATENT);
    int shared = pick(p, 3) ? -1 : find_shared(p);
    if (shared >= 0) {
        in[n++] = heads_of(p, "second", in[0], last_dim(value_at(p, shared)));
        in[n++] = take(p, shared);
    }
    in[n++] = p->positions;
    in[n++] = p->positions;
    if (pick(p, 2)) {
        struct op_attr turn = {.scale = 1, .rotary.theta = 10000};
        turn.rotary.sweep = pick(p, 2);
        turn.rotary.pairs = pick(p, 2);
        in[0] = graph_op(p->g, &(struct op_args){.op = OP_ROTARY,
                                                 .nin = 2,
                                                 .in = (int[]){in[0], p->positions},
                                                 .nout_dims = 4,
                                                 .out_dims = p->g->values[in[0]].dims,
                                                 .attr = &turn});
    }
    if (pick(p, 2)) {
        in[n++] = draws_step(&p->draws);
        attr.draw = draws_site(&p->draws, arena_printf(p->g->arena, "%d", p->deed), 0.3);
    }
    put(p, attention(p->g, n, in, &attr));
}

static void deed(struct pool *p)
{
    static void (*const deeds[])(struct pool *, int) = {
        linear, linear, linear, to_heads,  to_heads,  stacked, unary,  unary,  binary,
        binary, binary, norm,   sum_over,  product,   rows,    attend, attend, drop,
        noise,  tied,   tied,   broadcast, broadcast, twice,   softmax};
    static const enum point points[] = {POINT_SEQ, POINT_ATT, POINT_HIDDEN, POINT_LOGITS};
    p->asked = 0;
    graph_scope(p->g, "layers/%d", p->deed / DEEDS_A_LAYER);
    graph_at(p->g, points[pick(p, 4)]);
    // The newest values come more often, so that graphs grow long and not only wide.
    int i = pick(p, 3) ? p->n - 1 - pick(p, p->n < 3 ? p->n : 3) : pick(p, p->n);
    // The rows of a loss are f32, whatever the rest is: what follows is the loss.
    if (value_at(p, i)->dtype != (p->g->compute ? p->g->compute : DT_F32))
        return;
    deeds[pick(p, (int)(sizeof deeds / sizeof *deeds))](p, i);
}

static int input(struct pool *p, const char *name, enum dtype t, int n)
{
    const enum dim dims[] = {DIM_BATCH, DIM_SEQ, DIM_EMBED};
    const int64_t sizes[] = {p->batch, random_size(DIM_SEQ), random_size(DIM_EMBED)};
    return graph_value(p->g, VALUE_INPUT, name, t, n, dims, sizes);
}

static void begin(struct pool *p)
{
    static const enum dim seen[] = {DIM_BATCH, DIM_SEQ, DIM_EMBED};
    static const enum dim hidden[] = {DIM_BATCH, DIM_SEQ, DIM_MLP};
    p->deed = DEEDS_MAX; // names of the first parameters
    graph_scope(p->g, "embed");
    graph_at(p->g, POINT_IDS);
    int x = input(p, "x", DT_F32, 3), ids = input(p, "ids", DT_I32, 2);
    p->targets = input(p, "targets", DT_I32, 2);
    p->positions = input(p, "positions", DT_I32, 2);
    graph_at(p->g, POINT_SEQ);
    p->table = param_of(p, "table", 2, (enum dim[]){DIM_VOCAB, DIM_EMBED});
    put(p, graph_op(p->g, &(struct op_args){.op = OP_EMBED,
                                            .nin = 2,
                                            .in = (int[]){ids, p->table},
                                            .nout_dims = 3,
                                            .out_dims = seen}));
    graph_at(p->g, POINT_HIDDEN);
    p->first = param_of(p, "first", 2, (enum dim[]){DIM_EMBED, DIM_MLP});
    put(p, graph_matmul(p->g, x, p->first, 3, hidden));
}

static int as_f32(struct graph *g, int value)
{
    struct op_attr attr = {.scale = 1};
    if (g->failed || g->values[value].dtype == DT_F32)
        return value;
    struct value v = g->values[value];
    return graph_op(g, &(struct op_args){.op = OP_CAST,
                                         .nin = 1,
                                         .in = &value,
                                         .nout_dims = v.shape.n,
                                         .out_dims = v.dims,
                                         .attr = &attr,
                                         .dtype = DT_F32});
}

// The mean of the squares of what nothing reads: every value has a way to the loss.
static void end(struct pool *p, int64_t step_batch)
{
    struct graph *g = p->g;
    int contributions = 0, total = -1;
    graph_scope(g, "head");
    for (int i = 0; i < p->n && !g->failed; i++) {
        if (p->read[i])
            continue;
        graph_at(g, POINT_LOGITS);
        int calm = graph_like(g, OP_TANH, 1, &p->value[i], p->value[i]);
        int square = as_f32(g, graph_like(g, OP_MUL, 2, (int[]){calm, p->value[i]}, calm));
        if (!contributions++) {
            g->loss = total = mean_loss(g, "loss", square, step_batch);
            continue;
        }
        struct op_attr attr = {.scale = 1.0f / (float)step_batch};
        graph_at(g, POINT_NONE);
        int part =
            graph_op(g, &(struct op_args){.op = OP_SUM, .nin = 1, .in = &square, .attr = &attr});
        if (!g->failed)
            graph_contribute(g, total, part);
    }
}

int random_graph_build(const struct random_graph *r, struct graph *g, int64_t batch,
                       int64_t step_batch)
{
    struct pool p = {.g = g, .r = r, .batch = batch, .draws = draws_init(g, 11, true)};
    begin(&p);
    for (p.deed = 0; p.deed < DEEDS_MAX; p.deed++) {
        if (p.deed % DEEDS_A_LAYER == 0)
            graph_layer(g, p.deed / DEEDS_A_LAYER);
        if (p.deed < r->deeds && !(r->drop >> p.deed & 1))
            deed(&p);
    }
    end(&p, step_batch);
    return g->failed;
}
