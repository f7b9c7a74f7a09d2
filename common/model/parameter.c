// SPDX-License-Identifier: Apache-2.0
// Parameters. See parameter.h.
#include "common/model/parameter.h"

#include <math.h>
#include <string.h>

#include "common/base/suggest.h"

static const float STD = 0.02f;                        // of what says nothing else
static const int64_t MOST_ELEMENTS = (int64_t)1 << 44; // of one parameter

// The operand x has none of this name, or there is no operand (−1).
static void report_no_dimension(struct builder *b, const char *name, int x)
{
    const char *known[MODEL_MAX_SIZES + MAX_DIMS];
    const struct model_program *p = b->sizes->program;
    const struct value *v = x < 0 ? NULL : &b->g->values[x];
    int n = 0;
    for (int i = 0; i < p->nsizes; i++)
        known[n++] = p->sizes[i].name;
    for (int d = 0; v && d < v->shape.n; d++)
        known[n++] = dims_name(b->g->dims, v->dims[d]);
    const char *near = suggest(name, known, n);
    if (near)
        build_fail(b, "no dimension is called %s here: did you mean %s?", name, near);
    else if (x >= 0)
        build_fail(b, "%s is no size, and the operand, %s, has no such dimension: try %s = SIZE",
                   name, dims_of(b, x), name);
    else
        build_fail(b, "%s is no size, so no dimension: try %s = SIZE", name, name);
}

// A name that is no size reaches as far as the operand's dimension of that name.
static void fill_open(struct builder *b, struct dimension *d, int x)
{
    const char *name = dims_name(b->g->dims, d->dim);
    const struct value *v = x < 0 ? NULL : &b->g->values[x];
    int at = v ? value_find_dim(v, d->dim) : -1;
    if (at < 0)
        report_no_dimension(b, name, x);
    else if (v->born[at] || is_like(b, d->dim, DIM_BATCH) || is_like(b, d->dim, DIM_SEQ))
        build_fail(b, "a parameter along %s, which differs from step to step: try a size", name);
    else {
        d->extent = v->shape.dim[at];
        d->limit = v->limit[at];
    }
}

struct written_param param_fill(struct builder *b, const struct written_param *p, int x)
{
    struct written_param out = *p;
    for (int d = 0; d < p->n && !b->failed; d++) {
        const struct value *v = x < 0 ? NULL : &b->g->values[x];
        int last = v ? v->shape.n - 1 : -1;
        const struct expr *reader = b->at;
        if (p->open[d]) {
            b->at = p->at;
            fill_open(b, &out.dims[d], x);
            b->at = b->failed ? b->at : reader;
        } else if (p->last[d] && last < 0)
            build_fail(b, "_ is the operand's last dimension, and there is none");
        else if (p->last[d])
            out.dims[d] = (struct dimension){
                .dim = v->dims[last], .extent = v->shape.dim[last], .limit = v->limit[last]};
        for (int i = 0; i < d && !b->failed; i++)
            if (out.dims[i].dim == out.dims[d].dim)
                build_fail(b,
                           "%s has dimension %s twice: `NAME = SIZE` or `like` gives another name",
                           p->path, dims_name(b->g->dims, out.dims[d].dim));
    }
    return out;
}

// ---- initial values ----------------------------------------------------------------------------

struct init {
    enum init_kind kind;
    float std;
};

static struct init deviate(enum init_kind kind, double std)
{
    return (struct init){std > 0 ? kind : INIT_ZERO, (float)std};
}

// Where a weight is read: how many numbers a product of it sums over, and how many it makes of them.
// What is starred or stacked numbers products.
struct fans {
    int64_t in, out;
    bool product, matrix;
};

static struct fans find_fans(const struct written_param *p, const bool *over)
{
    struct fans f = {.in = 1, .out = 1};
    for (int d = 0; over && d < p->n; d++) {
        int64_t extent = p->dims[d].limit ? p->dims[d].limit : p->dims[d].extent;
        bool made = !over[d] && !p->star[d] && p->dims[d].dim != DIM_QKV;
        f.in *= over[d] ? extent : 1;
        f.out *= made ? extent : 1;
        f.product |= over[d];
        f.matrix |= made;
    }
    f.matrix = over ? f.matrix && f.product : p->n > 1;
    return f;
}

// What the job says goes for every weight of a product that the text does not want as zeros or ones;
// a deviation for tables of two and more dimensions as well, of which nothing is summed over.
static const struct initial *choose_initial(const struct builder *b, const struct written_param *p,
                                            const struct fans *f)
{
    const struct initial *job = &b->sizes->initial;
    bool fits = f->product || job->kind <= INITIAL_UNIFORM;
    bool fixed = p->initial.kind == INITIAL_ZEROS || p->initial.kind == INITIAL_ONES;
    return job->kind && f->matrix && fits && !fixed ? job : &p->initial;
}

static struct init make_init(struct builder *b, const struct written_param *p, const bool *over)
{
    const struct fans f = find_fans(p, over);
    const struct initial *i = choose_initial(b, p, &f);
    if (i->kind >= INITIAL_FAN_IN && !f.product)
        build_fail(b, "nothing of %s is summed over here: try normal(DEVIATION)", p->path);
    switch (i->kind) {
    case INITIAL_ZEROS:
        return (struct init){INIT_ZERO, 0};
    case INITIAL_ONES:
        return (struct init){INIT_ONE, 0};
    case INITIAL_NORMAL:
        return deviate(INIT_NORMAL, i->number);
    case INITIAL_TRUNCATED:
        return deviate(INIT_TRUNCATED, i->number);
    case INITIAL_UNIFORM:
        return deviate(INIT_UNIFORM, i->number);
    case INITIAL_FAN_IN:
        return (struct init){INIT_NORMAL, sqrtf((float)i->number / (float)f.in)};
    case INITIAL_HE_NORMAL:
        return deviate(INIT_TRUNCATED, sqrt(2 / (double)f.in));
    case INITIAL_HE_UNIFORM:
        return deviate(INIT_UNIFORM, sqrt(2 / (double)f.in));
    case INITIAL_XAVIER_NORMAL:
        return deviate(INIT_TRUNCATED, sqrt(2 / (double)(f.in + f.out)));
    case INITIAL_XAVIER_UNIFORM:
        return deviate(INIT_UNIFORM, sqrt(2 / (double)(f.in + f.out)));
    case INITIAL_UNSAID:
        break;
    }
    return (struct init){INIT_NORMAL, STD};
}

// ---- making ------------------------------------------------------------------------------------

static bool is_same_shape(const struct value *v, int n, const struct dimension *dims)
{
    bool same = v->shape.n == n;
    for (int d = 0; d < n && same; d++)
        same = v->dims[d] == dims[d].dim && v->shape.dim[d] == dims[d].extent;
    return same;
}

static int find_param(const struct builder *b, const char *name)
{
    const struct made_param *made = map_get(&b->params, name);
    return made ? made->value : -1;
}

static const char *join_leaf(struct builder *b, const char *path, const char *leaf)
{
    return arena_printf(b->arena, "%s%s%s", path, *path && *leaf ? "/" : "", leaf);
}

// Values of the graph that are found by name.
static bool is_taken(const char *name)
{
    static const char *const taken[] = {"tokens", "positions", "targets", "images",  "labels",
                                        "step",   "one",       "hyper",   "control", "metrics",
                                        "loss",   "logits",    "detail"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (strcmp(name, taken[i]) == 0)
            return true;
    return false;
}

static int new_param(struct builder *b, const char *name, int n, const struct dimension *dims,
                     enum init_kind init, float std)
{
    enum dim ids[MAX_DIMS];
    int64_t sizes[MAX_DIMS], elements = 1;
    for (int d = 0; d < n; d++) {
        ids[d] = dims[d].dim;
        sizes[d] = dims[d].extent;
        elements = elements > MOST_ELEMENTS / sizes[d] ? MOST_ELEMENTS : elements * sizes[d];
    }
    if (elements >= MOST_ELEMENTS)
        return build_fail(b, "%s would have 2^44 elements or more", name), -1;
    struct made_param *made = arena_new(b->arena, struct made_param);
    *made = (struct made_param){.value = graph_param(b->g, name, n, ids, sizes, init, std),
                                .at = b->at ? b->at->at : (struct text_place){1, 1},
                                .turn = b->turn,
                                .before = b->newest};
    for (int d = 0; d < n; d++)
        b->g->values[made->value].limit[d] = dims[d].limit;
    b->newest = made;
    map_put(&b->params, name, made);
    return made->value;
}

int param_make(struct builder *b, const char *path, const char *leaf, int n,
               const struct dimension *dims, enum init_kind init, float std)
{
    const char *name = join_leaf(b, path, leaf);
    int id = b->failed ? -1 : find_param(b, name);
    if (b->failed)
        return -1;
    if (*name == '\0')
        return build_fail(b, "a parameter without a path"), -1;
    if (strlen(name) > MODEL_MAX_PATH)
        return build_fail(b, "the path of this parameter has %zu bytes, over %d: %.60s…",
                          strlen(name), MODEL_MAX_PATH, name),
               -1;
    if (is_taken(name))
        return build_fail(b, "%s is no name for a parameter, weft has such a value: another path",
                          name),
               -1;
    if (id >= 0 && !is_same_shape(&b->g->values[id], n, dims))
        return build_fail(b, "%s is a parameter of %s already: other dimensions need another path",
                          name, dims_of(b, id)),
               -1;
    const struct made_param *made = id < 0 ? NULL : map_get(&b->params, name);
    if (made && made->turn && made->turn == b->turn && b->at && b->run.reread)
        b->run.reread(b->run.ctx, b->at->at.line, b->g->values[id].name, made->at.line);
    return id >= 0 ? id : new_param(b, name, n, dims, init, std);
}

int param_weight(struct builder *b, const struct written_param *p, const char *leaf,
                 const bool *over)
{
    static const char *const leaves[] = {"", "weight"};
    struct init init = make_init(b, p, over);
    if (p->n < 0)
        return build_fail(b, "%s needs its dimensions: %s[…]", p->path, p->path), -1;
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (find_param(b, join_leaf(b, p->path, leaves[i])) >= 0)
            leaf = leaves[i];
    return param_make(b, p->path, leaf, p->n, p->dims, init.kind, init.std);
}

int param_bias(struct builder *b, const char *path, int n, const struct dimension *dims)
{
    return param_make(b, path, "bias", n, dims, INIT_ZERO, 0);
}
