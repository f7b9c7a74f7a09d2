// SPDX-License-Identifier: Apache-2.0
// The f64 interpreter. See interp.h.
#include "tests/support/interp.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/compile/graph/optable.h"
#include "tests/ops/reference.h"

static double **slot(const struct interp *x, int rank, int value)
{
    return &x->value[(size_t)rank * (size_t)x->g->nvalues + (size_t)value];
}

// A graph that is not partitioned has no stages: one rank has and runs all of it.
static uint64_t stage_bit(const struct interp *x, int rank)
{
    int axis = x->mesh.stages ? __builtin_ctz(x->mesh.stages) : -1;
    return axis < 0 ? 1 : (uint64_t)1 << mesh_coord(&x->mesh, rank, axis);
}

static bool runs(const struct interp *x, int rank, uint64_t stages)
{
    return !x->mesh.stages || (stages & stage_bit(x, rank));
}

struct shape interp_shape(const struct interp *x, int value)
{
    const struct value *v = &x->g->values[value];
    return spec_local(&v->spec, &x->mesh, &v->shape);
}

static int root(const struct graph *g, int v)
{
    while (g->values[v].alias >= 0)
        v = g->values[v].alias;
    return v;
}

void interp_init(struct interp *x, const struct graph *g, const struct mesh *m, int microbatches)
{
    *x = (struct interp){.g = g, .ranks = 1, .microbatches = microbatches};
    if (m) {
        x->mesh = *m;
        x->ranks = mesh_ranks(m);
    }
    x->value = calloc((size_t)x->ranks * (size_t)g->nvalues, sizeof *x->value);
    for (int r = 0; r < x->ranks; r++)
        for (int v = 0; v < g->nvalues; v++) {
            struct shape s = interp_shape(x, v);
            if (root(g, v) == v)
                *slot(x, r, v) = calloc((size_t)shape_count(&s) + 1, sizeof(double));
        }
    for (int r = 0; r < x->ranks; r++)
        for (int v = 0; v < g->nvalues; v++)
            *slot(x, r, v) = *slot(x, r, root(g, v));
}

void interp_clear(struct interp *x)
{
    for (int r = 0; r < x->ranks; r++)
        for (int v = 0; v < x->g->nvalues; v++)
            if (root(x->g, v) == v)
                free(*slot(x, r, v));
    free(x->value);
}

int interp_find(const struct interp *x, const char *name)
{
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].name && strcmp(x->g->values[v].name, name) == 0)
            return v;
    fprintf(stderr, "interp: no value '%s'\n", name);
    abort();
}

// Walks over the elements of a rank's part, row-major; `index` is the element's in the whole tensor.
struct walk {
    const struct shape *local;
    int64_t at[MAX_DIMS], stride[MAX_DIMS], count, index;
};

static struct walk walk_part(const struct value *v, const struct interp *x,
                             const struct shape *local, int rank)
{
    struct walk w = {.local = local, .count = shape_count(local)};
    int64_t start[MAX_DIMS], stride = 1;
    spec_start(&v->spec, &x->mesh, &v->shape, rank, start);
    for (int d = v->shape.n - 1; d >= 0; d--) {
        w.stride[d] = stride;
        w.index += start[d] * stride;
        stride *= v->shape.dim[d];
    }
    return w;
}

static void walk_on(struct walk *w)
{
    for (int d = w->local->n - 1; d >= 0; d--) {
        w->index += w->stride[d];
        if (++w->at[d] < w->local->dim[d])
            return;
        w->index -= w->stride[d] * w->at[d];
        w->at[d] = 0;
    }
}

// Parameters are set as they are, their copies rounded.
static double as_stored(const struct interp *x, enum dtype t, double v)
{
    return t == DT_BF16 && !x->exact ? ref_bf16(v) : v;
}

static void set_value(struct interp *x, int v, const double *whole)
{
    const struct value *val = &x->g->values[v];
    struct shape local = interp_shape(x, v);
    for (int r = 0; r < x->ranks; r++) {
        struct walk w = walk_part(val, x, &local, r);
        for (int64_t i = 0; i < w.count; i++, walk_on(&w))
            (*slot(x, r, v))[i] = as_stored(x, val->dtype, whole[w.index]);
    }
}

// Data is a value for each cut that it is read in.
void interp_set(struct interp *x, const char *name, const double *whole)
{
    int first = interp_find(x, name);
    bool data = x->g->values[first].kind == VALUE_INPUT;
    set_value(x, first, whole);
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].kind == VALUE_COPY && x->g->values[v].of == first)
            set_value(x, v, whole);
    for (int v = first + 1; data && v < x->g->nvalues; v++)
        if (x->g->values[v].kind == VALUE_INPUT && strcmp(x->g->values[v].name, name) == 0)
            set_value(x, v, whole);
}

void interp_feed(struct interp *x, const char *name, const double *whole, int microbatch)
{
    int v = interp_find(x, name);
    interp_set(x, name, whole + shape_count(&x->g->values[v].shape) * microbatch);
}

double *interp_get(const struct interp *x, const char *name)
{
    int v = interp_find(x, name);
    const struct value *val = &x->g->values[v];
    struct shape local = interp_shape(x, v);
    const int64_t all = shape_count(&val->shape);
    double *whole = malloc(sizeof *whole * (size_t)all);
    for (int64_t i = 0; i < all; i++)
        whole[i] = (double)NAN;
    for (int r = 0; r < x->ranks; r++) {
        if (!runs(x, r, val->stages))
            continue;
        struct walk w = walk_part(val, x, &local, r);
        for (int64_t i = 0; i < w.count; i++, walk_on(&w)) {
            double *to = &whole[w.index];
            double from = (*slot(x, r, v))[i];
            if (!isnan(*to) && *to != from) {
                fprintf(stderr, "interp: replicas of %s differ: %.17g, %.17g\n", name, *to, from);
                abort();
            }
            *to = from;
        }
    }
    return whole;
}

double interp_junk(const struct graph *g, int cache, int64_t i)
{
    bool other = false;
    for (int k = 0; k < g->nnodes; k++)
        for (int j = 0; j < g->nnodes && g->nodes[k].op == OP_APPEND && g->nodes[k].in[0] == cache;
             j++)
            for (int o = 0; o < g->nodes[j].nin; o++)
                other |= g->nodes[j].in[o] == g->nodes[k].out[0] &&
                         (g->nodes[j].kind != NODE_OP || g->nodes[j].op != OP_ATTENTION);
    return other ? (double)((i * 7 + cache) % 23) - 11 : (double)NAN;
}

// ---- running -----------------------------------------------------------------------------------

static struct ref_tensor tensor(const struct interp *x, int rank, int value)
{
    return (struct ref_tensor){.shape = interp_shape(x, value),
                               .dtype = x->g->values[value].dtype,
                               .v = *slot(x, rank, value)};
}

// The sum a value contributes to and whether it is the rank's first contribution; null: none.
static const struct sum *sum_of(const struct interp *x, int rank, int value, bool *first)
{
    const struct graph *g = x->g;
    for (int s = 0; s < g->nsums; s++) {
        *first = true;
        for (int c = 0; c < g->sums[s].n; c++) {
            int v = g->sums[s].contrib[c];
            if (v == value)
                return &g->sums[s];
            *first &= !runs(x, rank, g->nodes[g->values[v].producer].stages);
        }
    }
    return NULL;
}

static void run_op(struct interp *x, const struct node *n, int rank, int microbatch)
{
    struct ref_tensor in[OP_MAX_IN], out[OP_MAX_OUT];
    double *fresh[OP_MAX_OUT];
    struct op_attr attr =
        op_attr_on(x->g, n, &(struct op_at){&x->mesh, rank, microbatch, x->microbatches});
    for (int k = 0; k < n->nin; k++)
        in[k] = tensor(x, rank, n->in[k]);
    for (int k = 0; k < n->nout; k++) {
        out[k] = tensor(x, rank, n->out[k]);
        fresh[k] = calloc((size_t)shape_count(&out[k].shape) + 1, sizeof(double));
        out[k].v = fresh[k];
    }
    ref_op(n->op, &attr, in, n->nin, out, n->nout, false);
    for (int k = 0; k < n->nout; k++) {
        size_t count = (size_t)shape_count(&out[k].shape);
        for (size_t i = 0; i < count && out[k].dtype == DT_BF16 && !x->exact; i++)
            fresh[k][i] = ref_bf16(fresh[k][i]);
        memcpy(*slot(x, rank, n->out[k]), fresh[k], count * sizeof(double));
        bool first = false;
        const struct sum *s = sum_of(x, rank, n->out[k], &first);
        double *to = s ? *slot(x, rank, s->value) : NULL;
        bool assign = first && (microbatch == 0 || n->phase == PHASE_UPDATE);
        for (size_t i = 0; s && i < count; i++)
            to[i] = assign ? fresh[k][i] : to[i] + fresh[k][i];
        free(fresh[k]);
    }
}

// ---- moves: what a device may take from its group, by global index -----------------------------

static int64_t count_of(const struct interp *x, int value)
{
    struct shape s = interp_shape(x, value);
    return shape_count(&s);
}

// The whole tensor as one device sees it: not a number where it has nothing.
static void cover(const struct interp *x, int rank, int value, double *whole)
{
    const struct value *v = &x->g->values[value];
    const struct shape local = interp_shape(x, value);
    const double *part = *slot(x, rank, value);
    const int64_t all = shape_count(&v->shape);
    struct walk w = walk_part(v, x, &local, rank);
    for (int64_t i = 0; i < all; i++)
        whole[i] = (double)NAN;
    for (int64_t i = 0; i < w.count; i++, walk_on(&w))
        whole[w.index] = part[i];
}

static double combine(enum reshard_kind kind, bool max, double a, double b)
{
    bool reduces = kind == RESHARD_ALL_REDUCE || kind == RESHARD_REDUCE_SCATTER;
    if (isnan(a) || !reduces)
        return b;
    return max ? fmax(a, b) : a + b;
}

// A device keeps its own part of what its group has; a slice has no group but itself.
static void move(struct interp *x, const struct node *n)
{
    const struct value *from = &x->g->values[n->in[0]], *to = &x->g->values[n->out[0]];
    int64_t whole = shape_count(&from->shape), local = count_of(x, n->out[0]);
    bool max = from->spec.partial_max & dim_axes(&n->step.cut);
    double *seen = malloc(sizeof *seen * (size_t)(whole * x->ranks));
    double *got = malloc(sizeof *got * (size_t)(local * x->ranks));
    struct shape part = interp_shape(x, n->out[0]);
    int group[64];
    for (int r = 0; r < x->ranks; r++)
        cover(x, r, n->in[0], seen + whole * r);
    for (int r = 0; r < x->ranks; r++) {
        if (!runs(x, r, n->stages))
            continue;
        int members = n->step.kind == RESHARD_SLICE
                          ? mesh_group(&x->mesh, r, 0, group)
                          : mesh_group(&x->mesh, r, dim_axes(&n->step.cut), group);
        struct walk w = walk_part(to, x, &part, r);
        for (int64_t i = 0; i < local; i++, walk_on(&w)) {
            double v = (double)NAN;
            for (int m = 0; m < members; m++)
                if (!isnan(seen[whole * group[m] + w.index]))
                    v = combine(n->step.kind, max, v, seen[whole * group[m] + w.index]);
            got[local * r + i] = to->dtype == DT_BF16 && !x->exact ? ref_bf16(v) : v;
        }
    }
    for (int r = 0; r < x->ranks; r++)
        if (runs(x, r, n->stages))
            memcpy(*slot(x, r, n->out[0]), got + local * r, sizeof *got * (size_t)local);
    free(seen);
    free(got);
}

// The ranks that differ from one only in their stage, by stage.
static int *across_stages(const struct interp *x, int rank, int *group)
{
    mesh_group(&x->mesh, rank, x->mesh.stages, group);
    return group;
}

// Every device of the sending stage sends its own part to the one in its place on the next.
static void send(struct interp *x, const struct node *n)
{
    int64_t count = count_of(x, n->in[0]);
    int group[64];
    for (int r = 0; r < x->ranks; r++) {
        if (stage_bit(x, r) != (uint64_t)1 << n->stage)
            continue;
        int to = across_stages(x, r, group)[n->peer];
        memcpy(*slot(x, to, n->in[0]), *slot(x, r, n->in[0]), sizeof(double) * (size_t)count);
        x->sent += (uint64_t)count;
    }
}

static void stage_sum(struct interp *x, const struct node *n)
{
    int64_t count = count_of(x, n->in[0]);
    int group[64], first = __builtin_ctzll(n->stages),
                   stages = mesh_product(&x->mesh, x->mesh.stages);
    for (int r = 0; r < x->ranks; r++) {
        if (stage_bit(x, r) != (uint64_t)1 << first)
            continue;
        double *total = *slot(x, r, n->in[0]);
        across_stages(x, r, group);
        for (int s = first + 1; s < stages; s++)
            for (int64_t i = 0; i < count && n->stages >> s & 1; i++)
                total[i] += (*slot(x, group[s], n->in[0]))[i];
        for (int s = first + 1; s < stages; s++)
            if (n->stages >> s & 1)
                memcpy(*slot(x, group[s], n->in[0]), total, sizeof *total * (size_t)count);
    }
}

void interp_phase(struct interp *x, enum phase phase, int microbatch)
{
    for (int i = 0; i < x->g->nnodes; i++) {
        const struct node *n = &x->g->nodes[i];
        bool weights = phase == PHASE_BACKWARD && n->phase == PHASE_WEIGHTS;
        if ((n->phase != phase && !weights) ||
            (n->when == LAST_MICROBATCH && microbatch != x->microbatches - 1) ||
            (n->when == FIRST_MICROBATCH && microbatch != 0))
            continue;
        if (n->kind == NODE_RESHARD)
            move(x, n);
        if (n->kind == NODE_SEND)
            send(x, n);
        if (n->kind == NODE_STAGE_SUM)
            stage_sum(x, n);
        for (int r = 0; r < x->ranks && n->kind == NODE_OP; r++)
            if (runs(x, r, n->stages))
                run_op(x, n, r, microbatch);
    }
}
