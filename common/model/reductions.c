// SPDX-License-Identifier: Apache-2.0
// Functions over dimensions, losses among them, and casts. See functions.h.
#include "common/compile/graph/build.h"
#include "common/model/algebra.h"
#include "common/model/functions.h"
#include "common/model/loss.h"

// ---- sums --------------------------------------------------------------------------------------

// How many numbers of the whole step a dimension has: the batch counts the step's samples, and what
// is padding counts for none.
static double count_along(const struct builder *b, const struct value *v, int d)
{
    if (v->born[d] == DIM_BATCH)
        return (double)v->shape.dim[d] / (double)b->run.batch * (double)b->run.step_batch;
    return v->limit[d] ? (double)v->limit[d] : (double)v->shape.dim[d];
}

static bool is_among_dims(const struct term *arg, enum dim dim)
{
    for (int i = 0; i < 4; i++)
        if (arg[i].kind == TERM_DIM && arg[i].dim.dim == dim)
            return true;
    return false;
}

// Over the dimensions that arg[1] and so on name, or over all; `counted`: how many numbers.
static struct term make_reduction(struct builder *b, const struct term *arg, double *counted)
{
    int x = as_real(b, arg[0]), n = 0;
    enum dim keep[MAX_DIMS];
    *counted = 1;
    if (b->failed)
        return (struct term){0};
    const struct value v = b->g->values[x];
    for (int i = 1; i <= 4; i++)
        if (arg[i].kind == TERM_DIM && value_find_dim(&v, arg[i].dim.dim) < 0)
            return build_fail(b, "%s has no dimension %s", dims_of(b, x),
                              dims_name(b->g->dims, arg[i].dim.dim));
    for (int d = 0; d < v.shape.n; d++) {
        bool over = arg[1].kind == TERM_NOTHING || is_among_dims(arg + 1, v.dims[d]);
        if (over)
            *counted *= count_along(b, &v, d);
        else
            keep[n++] = v.dims[d];
    }
    return term_sum(x, n, keep, 1);
}

struct term call_sum(struct builder *b, const struct term *arg)
{
    double counted;
    return make_reduction(b, arg, &counted);
}

struct term call_mean(struct builder *b, const struct term *arg)
{
    double counted;
    struct term t = make_reduction(b, arg, &counted);
    t.by = (double)(float)(1 / counted);
    return t;
}

// ---- rows --------------------------------------------------------------------------------------

// The op is over the last dimension: another one is brought there, and back.
struct term call_softmax(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[0]), n = 0;
    if (b->failed)
        return (struct term){0};
    const struct value v = b->g->values[x];
    enum dim order[MAX_DIMS];
    if (value_find_dim(&v, arg[1].dim.dim) < 0)
        return build_fail(b, "%s has no dimension %s to take the softmax over", dims_of(b, x),
                          dims_name(b->g->dims, arg[1].dim.dim));
    for (int d = 0; d < v.shape.n; d++)
        if (v.dims[d] != arg[1].dim.dim)
            order[n++] = v.dims[d];
    order[n] = arg[1].dim.dim;
    x = permute_value(b, x, order);
    build_at_like(b, x);
    const struct op_attr attr = {.limit = b->g->values[x].limit[v.shape.n - 1]};
    int y = graph_shaped(b->g, OP_SOFTMAX, 1, &x, x, &attr, DT_NONE);
    return term_value(permute_value(b, y, v.dims));
}

// √x = e^(ln x / 2).
struct term call_sqrt(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[0]);
    if (b->failed)
        return (struct term){0};
    build_at_like(b, x);
    int half = scale(b->g, apply(b->g, OP_LOG, x), 0.5f);
    return term_value(apply(b->g, OP_EXP, half));
}

static bool check_rows(struct builder *b, int logits, int ids, const char *what)
{
    const struct value *v = &b->g->values[logits], *w = &b->g->values[ids];
    bool fine = !b->failed && w->dtype == DT_I32 && v->shape.n == w->shape.n + 1;
    for (int d = 0; fine && d < w->shape.n; d++)
        fine = v->dims[d] == w->dims[d];
    if (!fine)
        build_fail(b, "%s takes logits and ids for all but their last dimension, not %s and %s",
                   what, dims_of(b, logits), dims_of(b, ids));
    return fine;
}

// The step's mean of a number a row.
static struct term average_rows(struct builder *b, int rows)
{
    const struct value *v = &b->g->values[rows];
    double count = 1;
    for (int d = 0; d < v->shape.n; d++)
        count *= count_along(b, v, d);
    return term_sum(rows, 0, NULL, (double)(1.0f / (float)count));
}

struct term call_cross_entropy(struct builder *b, const struct term *arg)
{
    int logits = as_real(b, arg[0]), ids = as_value(b, arg[1]);
    if (b->failed || !check_rows(b, logits, ids, "cross_entropy"))
        return (struct term){0};
    graph_at(b->g, b->point ? b->point : POINT_LOGITS);
    const struct value *v = &b->g->values[logits];
    int rows = loss_cross_entropy(b->g, logits, ids, v->limit[v->shape.n - 1]);
    build_check(b);
    return b->failed ? (struct term){0} : average_rows(b, rows);
}

struct term call_accuracy(struct builder *b, const struct term *arg)
{
    struct graph *g = b->g;
    int logits = as_real(b, arg[0]), ids = as_value(b, arg[1]);
    if (b->failed || !check_rows(b, logits, ids, "accuracy"))
        return (struct term){0};
    const struct value v = g->values[ids];
    graph_at(g, b->point ? b->point : POINT_LOGITS);
    const struct value *of = &g->values[logits];
    int best = loss_rows(g, OP_ROW_ARGMAX, 1, &logits, DT_I32, of->limit[of->shape.n - 1]);
    int right = apply_over(g, OP_EQUAL, best, ids, v.shape.n, v.dims, DT_NONE);
    build_check(b);
    return b->failed ? (struct term){0} : average_rows(b, right);
}

// ---- layout and dtype --------------------------------------------------------------------------

struct term call_swap(struct builder *b, const struct term *arg)
{
    int x = as_real(b, arg[0]);
    struct value v = b->g->values[x];
    if (b->failed)
        return (struct term){0};
    if (v.shape.n < 2)
        return build_fail(b, "swap exchanges the first two dimensions, and %s has fewer",
                          dims_of(b, x));
    enum dim first = v.dims[0];
    v.dims[0] = v.dims[1];
    v.dims[1] = first;
    return term_value(permute_value(b, x, v.dims));
}

static struct term make_cast(struct builder *b, const struct term *arg, enum dtype t)
{
    int x = as_value(b, arg[0]);
    if (b->failed)
        return (struct term){0};
    build_at_like(b, x);
    return term_value(cast(b->g, x, t));
}

struct term call_f32(struct builder *b, const struct term *arg)
{
    return make_cast(b, arg, DT_F32);
}

struct term call_compute(struct builder *b, const struct term *arg)
{
    return make_cast(b, arg, b->g->compute ? b->g->compute : DT_F32);
}
