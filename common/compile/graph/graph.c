// SPDX-License-Identifier: Apache-2.0
// Building graphs: values, nodes, and the labels that tie an op's operands together. See graph.h.
#include "common/compile/graph/graph.h"

#include <stdarg.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/compile/graph/carry.h"
#include "common/compile/graph/optable.h"

const char *phase_name(enum phase p)
{
    static const char *const names[PHASE_COUNT] = {"forward", "backward", "weights", "update"};
    return names[p];
}

void graph_init(struct graph *g, struct arena *a, struct dims *dims, struct err *e)
{
    *g = (struct graph){.arena = a, .dims = dims, .err = e, .loss = -1, .metrics = -1};
    if (!dims) {
        g->dims = arena_new(a, struct dims);
        dims_init(g->dims, a);
    }
}

static void *reserve_array(struct graph *g, void *array, size_t elem, int n, int most, int *cap)
{
    if (most <= *cap)
        return array;
    void *more = arena_alloc(g->arena, elem * (size_t)most);
    if (n)
        memcpy(more, array, elem * (size_t)n);
    *cap = most;
    return more;
}

void graph_reserve(struct graph *g, int nodes, int values)
{
    g->nodes = reserve_array(g, g->nodes, sizeof *g->nodes, g->nnodes, nodes, &g->nodes_cap);
    g->values = reserve_array(g, g->values, sizeof *g->values, g->nvalues, values, &g->values_cap);
}

void graph_scope(struct graph *g, const char *fmt, ...)
{
    struct buf name = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&name, fmt, ap);
    va_end(ap);
    for (g->scope = 0; g->scope < g->nscopes; g->scope++)
        if (strcmp(g->scopes[g->scope], buf_str(&name)) == 0)
            break;
    if (g->scope == g->nscopes) {
        g->scopes = arena_grow(g->arena, g->scopes, sizeof *g->scopes, g->nscopes, &g->scopes_cap);
        g->scopes[g->nscopes++] = arena_strdup(g->arena, buf_str(&name));
    }
    buf_clear(&name);
}

void graph_at(struct graph *g, enum point p)
{
    g->point = p;
}

void graph_layer(struct graph *g, int64_t n)
{
    g->layer = (int)n;
    g->nlayers = g->nlayers > g->layer ? g->nlayers : g->layer + 1;
}

int graph_value(struct graph *g, enum value_kind kind, const char *name, enum dtype t, int n,
                const enum dim *dims, const int64_t *sizes)
{
    PRE(n <= MAX_DIMS);
    g->values = arena_grow(g->arena, g->values, sizeof *g->values, g->nvalues, &g->values_cap);
    struct value *v = &g->values[g->nvalues];
    *v = (struct value){.kind = kind,
                        .name = name ? arena_strdup(g->arena, name) : NULL,
                        .dtype = t,
                        .shape.n = n,
                        .producer = -1,
                        .alias = -1,
                        .of = -1,
                        .point = g->point};
    for (int d = 0; d < n; d++) {
        v->dims[d] = dims[d];
        v->shape.dim[d] = sizes[d];
        if (kind == VALUE_INPUT && (dims[d] == DIM_BATCH || dims[d] == DIM_SEQ))
            v->born[d] = (int8_t)dims[d];
    }
    return g->nvalues++;
}

int graph_one(struct graph *g)
{
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_SCALAR && strcmp(g->values[v].name, "one") == 0)
            return v;
    return graph_value(g, VALUE_SCALAR, "one", DT_F32, 0, NULL, NULL);
}

int graph_param(struct graph *g, const char *name, int n, const enum dim *dims,
                const int64_t *sizes, enum init_kind init, float std)
{
    int id = graph_value(g, VALUE_PARAM, name, DT_F32, n, dims, sizes);
    g->values[id].init = init;
    g->values[id].init_std = std;
    g->values[id].point = POINT_NONE;
    return id;
}

int graph_sum(struct graph *g, const char *name, int of, int like)
{
    struct value src = g->values[like];
    int id = graph_value(g, VALUE_SUM, name, src.dtype, src.shape.n, src.dims, src.shape.dim);
    g->values[id].of = of;
    g->values[id].point = POINT_NONE;
    g->sums = arena_grow(g->arena, g->sums, sizeof *g->sums, g->nsums, &g->sums_cap);
    g->sums[g->nsums++] = (struct sum){.value = id};
    return id;
}

void graph_contribute(struct graph *g, int sum, int value)
{
    // A sum's value is made with it, so that sums lie in the order of their values.
    int low = 0, high = g->nsums;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (g->sums[mid].value < sum)
            low = mid + 1;
        else
            high = mid;
    }
    PRE(low < g->nsums && g->sums[low].value == sum);
    struct sum *s = &g->sums[low];
    s->contrib = arena_grow(g->arena, s->contrib, sizeof *s->contrib, s->n, &s->cap);
    s->contrib[s->n++] = value;
}

int graph_report(struct graph *g, const char *name, int value)
{
    if (g->failed)
        return 0;
    int same = 0;
    for (int i = 0; i < g->nparts; i++)
        same += strcmp(g->parts[i].name, name) == 0;
    int total = graph_sum(g, same ? arena_printf(g->arena, "%s.%d", name, same) : name, -1, value);
    graph_contribute(g, total, value);
    g->parts = arena_grow(g->arena, g->parts, sizeof *g->parts, g->nparts, &g->parts_cap);
    g->parts[g->nparts] = (struct loss_part){arena_strdup(g->arena, name), total,
                                             shape_count(&g->values[total].shape)};
    return g->nparts++;
}

void graph_balance(struct graph *g, int param, int part, float rate)
{
    if (g->failed)
        return;
    PRE(part < g->nparts && g->parts[part].count == shape_count(&g->values[param].shape));
    g->balances =
        arena_grow(g->arena, g->balances, sizeof *g->balances, g->nbalances, &g->balances_cap);
    g->balances[g->nbalances++] = (struct balance){param, part, rate};
    g->values[param].frozen = true;
}

int64_t graph_part_slots(const struct graph *g)
{
    int64_t slots = 0;
    for (int i = 0; i < g->nparts; i++)
        slots += g->parts[i].count;
    return slots;
}

struct node *graph_node(struct graph *g, const struct node *n)
{
    g->nodes = arena_grow(g->arena, g->nodes, sizeof *g->nodes, g->nnodes, &g->nodes_cap);
    g->nodes[g->nnodes] = *n;
    for (int i = 0; i < n->nout; i++)
        g->values[n->out[i]].producer = g->nnodes;
    return &g->nodes[g->nnodes++];
}

// ---- labels ------------------------------------------------------------------------------------

struct labels {
    struct op_attr *attr;
    enum dim name[MAX_DIMS * 4];
    int64_t size[MAX_DIMS * 4]; // −1: not known yet
    int n;
};

static int new_label(struct labels *l, enum dim name) // its size is not known yet
{
    PRE(l->n < MAX_DIMS * 4);
    l->name[l->n] = name;
    l->size[l->n] = -1;
    return l->n++;
}

// The label of dimension d of an operand: that of the same name. A dimension without a name is a
// loop of its own; a `norm` vector lies along the last dimension.
static int find_label(const struct labels *l, const struct value *v, int d, int out_dims)
{
    for (int i = 0; i < l->n && v->dims[d] != DIM_NONE; i++)
        if (l->name[i] == v->dims[d])
            return i;
    return v->dims[d] == DIM_NORM && v->shape.n == 1 && out_dims > 0 ? out_dims - 1 : -1;
}

// Labels of the outputs come first and are numbered as their dimensions; then what only inputs
// have.
static int assign_labels(struct graph *g, const struct op_args *a, struct labels *l)
{
    for (int d = 0; d < a->nout_dims; d++)
        new_label(l, a->out_dims[d]);
    for (int k = 0; k < a->nin; k++) {
        struct value renamed = g->values[a->in[k]];
        const struct value *v = &renamed;
        if (k == a->read_input && a->read_as)
            memcpy(renamed.dims, a->read_as, sizeof *a->read_as * (size_t)v->shape.n);
        for (int d = 0; d < v->shape.n; d++) {
            int i = find_label(l, v, d, a->nout_dims);
            if (i < 0)
                i = new_label(l, v->dims[d]);
            if (l->size[i] < 0)
                l->size[i] = v->shape.dim[d];
            if (l->size[i] != v->shape.dim[d]) {
                return err_set(
                    g->err, ERR_INVALID, "%s: dimension %s of %s is %lld where %lld is needed",
                    op_name(a->op), dims_name(g->dims, v->dims[d]), v->name ? v->name : "a value",
                    (long long)v->shape.dim[d], (long long)l->size[i]);
            }
            l->attr->label[k][d] = (int8_t)i;
        }
    }
    for (int d = 0; d < a->nout_dims; d++) {
        if (l->size[d] >= 0)
            continue;
        if (!a->sizes)
            return err_set(g->err, ERR_INTERNAL, "%s: no operand has the size of dimension %d",
                           op_name(a->op), d);
        l->size[d] = a->sizes[d];
    }
    l->attr->labels = (int8_t)l->n;
    return 0;
}

static enum dtype choose_dtype(const struct graph *g, const struct op_args *a)
{
    if (a->dtype)
        return a->dtype;
    for (int k = 0; k < a->nin && a->op != OP_CAST; k++)
        if (g->values[a->in[k]].dtype == DT_F32 || g->values[a->in[k]].dtype == DT_BF16)
            return g->values[a->in[k]].dtype;
    return a->op == OP_CAST && g->compute ? g->compute : DT_F32;
}

// A dimension that only this output has is a loop of its own.
static int make_unlike(struct graph *g, const struct op_output *o, enum dtype t, int8_t *label,
                       struct labels *l, int out_dims)
{
    enum dtype own = o->dtype ? o->dtype : t;
    int id = graph_value(g, VALUE_TEMP, NULL, own, o->n, o->dims, o->sizes);
    struct value v = g->values[id];
    for (int d = 0; d < o->n; d++) {
        int i = find_label(l, &v, d, out_dims);
        label[d] = (int8_t)(i < 0 ? new_label(l, o->dims[d]) : i);
    }
    l->attr->labels = (int8_t)l->n;
    return id;
}

static int make_op(struct graph *g, const struct op_args *a);

static int pad_dim(struct graph *g, int x, int d, float by)
{
    const struct value v = g->values[x];
    const struct op_attr attr = {.scale = by, .limit = v.limit[d], .along = d};
    return make_op(g, &(struct op_args){.op = OP_PAD,
                                        .nin = 1,
                                        .in = &x,
                                        .nout_dims = v.shape.n,
                                        .out_dims = v.dims,
                                        .attr = &attr,
                                        .dtype = v.dtype});
}

// What lies in the padding of a value is zero, so that who adds it up need not know of it: where an
// op makes something else there, it is put to zero.
static int clear_padding(struct graph *g, const struct node *n, int out)
{
    for (int d = 0; d < g->values[n->out[0]].shape.n && !g->failed; d++)
        if (g->values[n->out[0]].limit[d] && !carry_keeps_zeros(g, n, d))
            out = pad_dim(g, out, d, 0);
    return out;
}

static int make_op(struct graph *g, const struct op_args *a)
{
    struct node n = {.op = a->op,
                     .nin = a->nin,
                     .nout = op_outputs(a->op) < 0 ? a->nout : op_outputs(a->op),
                     .scope = g->scope,
                     .layer = g->layer,
                     .place = g->place,
                     .line = g->line,
                     .phase = g->phase,
                     .when = g->when};
    if (a->attr)
        n.attr = *a->attr;
    n.attr.tf32 = g->tf32 && op_is(a->op, OP_IS_PRODUCT);
    struct labels l = {.attr = &n.attr};
    for (int k = 0; k < a->nin; k++)
        n.in[k] = a->in[k];
    g->failed = assign_labels(g, a, &l);
    if (g->failed)
        return 0;
    enum dtype t = choose_dtype(g, a);
    for (int k = 0; k < n.nout; k++) {
        if (a->outputs) {
            n.out[k] =
                make_unlike(g, &a->outputs[k], t, n.attr.label[a->nin + k], &l, a->nout_dims);
            continue;
        }
        if (a->like) {
            struct value v = g->values[a->like[k]];
            n.out[k] = graph_value(g, VALUE_TEMP, NULL, t, v.shape.n, v.dims, v.shape.dim);
            for (int d = 0; d < v.shape.n; d++)
                n.attr.label[a->nin + k][d] = (int8_t)find_label(&l, &v, d, a->nout_dims);
            continue;
        }
        n.out[k] = graph_value(g, VALUE_TEMP, NULL, t, a->nout_dims, a->out_dims, l.size);
        for (int d = 0; d < a->nout_dims; d++)
            n.attr.label[a->nin + k][d] = (int8_t)d;
    }
    int out = n.out[0];
    graph_node(g, &n);
    g->failed = op_infer(g, &n, g->err);
    g->failed = g->failed ? g->failed : carry_dims(g, &n);
    return g->phase == PHASE_FORWARD && n.nout == 1 ? clear_padding(g, &n, out) : out;
}

// ---- the compute dtype -------------------------------------------------------------------------

bool node_casts_param(const struct node *n)
{
    return n->kind == NODE_OP && n->op == OP_CAST && n->when == FIRST_MICROBATCH;
}

static int find_copy(const struct graph *g, int value)
{
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (n->op == OP_CAST && n->kind == NODE_OP && n->in[0] == value && n->place == g->place)
            return n->out[0];
    }
    return -1;
}

static int make_copy(struct graph *g, int value)
{
    struct value v = g->values[value];
    struct op_attr attr = {.scale = 1};
    enum node_when when = g->when;
    bool param = v.kind == VALUE_PARAM;
    g->when = param ? FIRST_MICROBATCH : when;
    int copy = make_op(g, &(struct op_args){.op = OP_CAST,
                                            .nin = 1,
                                            .in = &value,
                                            .nout_dims = v.shape.n,
                                            .out_dims = v.dims,
                                            .attr = &attr});
    g->when = when;
    g->values[copy].name = param ? v.name : NULL;
    g->values[copy].of = param ? value : -1;
    g->values[copy].point = v.point;
    return copy;
}

// Whether an operand was made in f32 though the rest is not: a loss, a latent.
static bool reads_f32(const struct graph *g, const struct op_args *a)
{
    bool any = false;
    for (int k = 0; k < a->nin; k++)
        any |= g->values[a->in[k]].kind == VALUE_TEMP && g->values[a->in[k]].dtype == DT_F32;
    return any;
}

static bool is_leaf(const struct value *v)
{
    return v->kind == VALUE_PARAM || v->kind == VALUE_INPUT;
}

// What an op of the forward phase reads of a value.
static int read_as_computed(struct graph *g, int value, bool f32)
{
    const struct value *v = &g->values[value];
    if (!is_leaf(v) || f32 || v->dtype != DT_F32 || !g->compute || g->compute == DT_F32)
        return value;
    int copy = find_copy(g, value);
    return copy >= 0 ? copy : make_copy(g, value);
}

int graph_op(struct graph *g, const struct op_args *a)
{
    int in[OP_MAX_IN];
    if (g->failed)
        return 0;
    PRE(a->nin <= OP_MAX_IN);
    for (int k = 0; k < a->nin; k++)
        in[k] =
            g->phase == PHASE_FORWARD ? read_as_computed(g, a->in[k], reads_f32(g, a)) : a->in[k];
    // Of the zeros in padding there is no logarithm, and nothing is divided by them.
    const int padded = a->op == OP_LOG ? 0 : a->op == OP_DIV ? 1 : -1;
    if (padded >= 0 && g->phase == PHASE_FORWARD && !g->failed) {
        const enum point point = g->point;
        graph_at(g, g->values[in[padded]].point);
        in[padded] = graph_pad(g, in[padded], 1);
        graph_at(g, point);
    }
    struct op_args read = *a;
    read.in = in;
    return g->failed ? 0 : make_op(g, &read);
}

int graph_like(struct graph *g, enum op op, int nin, const int *in, int like)
{
    struct value v = g->values[like];
    bool copied = g->phase == PHASE_FORWARD && is_leaf(&v); // read in another dtype than its own
    return graph_op(g, &(struct op_args){.op = op,
                                         .nin = nin,
                                         .in = in,
                                         .nout_dims = v.shape.n,
                                         .out_dims = v.dims,
                                         .dtype = copied ? DT_NONE : v.dtype});
}

int graph_shaped(struct graph *g, enum op op, int nin, const int *in, int like,
                 const struct op_attr *attr, enum dtype t)
{
    struct value v = g->values[like];
    return graph_op(g, &(struct op_args){.op = op,
                                         .nin = nin,
                                         .in = in,
                                         .nout_dims = v.shape.n,
                                         .out_dims = v.dims,
                                         .sizes = v.shape.dim,
                                         .attr = attr,
                                         .dtype = t});
}

int graph_pad(struct graph *g, int x, float by)
{
    for (int d = 0; d < g->values[x].shape.n && !g->failed; d++)
        if (g->values[x].limit[d])
            x = pad_dim(g, x, d, by);
    return x;
}

int graph_permute(struct graph *g, int x, const enum dim *order, const enum dim *as, enum dtype t)
{
    struct value v = g->values[x];
    return graph_op(g, &(struct op_args){.op = OP_SCALE,
                                         .nin = 1,
                                         .in = &x,
                                         .nout_dims = v.shape.n,
                                         .out_dims = order,
                                         .attr = &(struct op_attr){.scale = 1},
                                         .dtype = t,
                                         .read_as = as});
}

int value_find_dim(const struct value *v, enum dim dim)
{
    for (int d = 0; d < v->shape.n; d++)
        if (v->dims[d] == dim)
            return d;
    return -1;
}

int graph_matmul(struct graph *g, int a, int b, int n, const enum dim *out_dims)
{
    return graph_matmul_as(g, a, b, n, out_dims, DT_NONE);
}

int graph_matmul_as(struct graph *g, int a, int b, int n, const enum dim *out_dims, enum dtype t)
{
    // Row-major output: its last dimension is the second operand's.
    const struct value *va = &g->values[a], *vb = &g->values[b];
    bool swap = n > 0 && value_find_dim(va, out_dims[n - 1]) >= 0 &&
                value_find_dim(vb, out_dims[n - 1]) < 0;
    return graph_op(g, &(struct op_args){.op = OP_MATMUL,
                                         .nin = 2,
                                         .in = (int[]){swap ? b : a, swap ? a : b},
                                         .nout_dims = n,
                                         .out_dims = out_dims,
                                         .dtype = t});
}

void graph_find_readers(const struct graph *g, int **first, int **readers)
{
    *first = arena_array(g->arena, int, (size_t)g->nvalues + 1);
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            (*first)[g->nodes[i].in[k] + 1]++;
    for (int v = 0; v < g->nvalues; v++)
        (*first)[v + 1] += (*first)[v];
    int *end = arena_dup(g->arena, *first, sizeof *end * (size_t)g->nvalues);
    *readers = arena_array(g->arena, int, (size_t)(*first)[g->nvalues] + 1);
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            (*readers)[end[g->nodes[i].in[k]]++] = i;
}

void graph_drop_nodes(struct graph *g, const bool *dropped)
{
    int kept = 0;
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nout && dropped[i]; k++)
            if (g->values[g->nodes[i].out[k]].producer == i)
                g->values[g->nodes[i].out[k]].producer = -1;
    for (int i = 0; i < g->nnodes; i++) {
        if (dropped[i])
            continue;
        g->nodes[kept] = g->nodes[i];
        for (int k = 0; k < g->nodes[kept].nout; k++)
            g->values[g->nodes[kept].out[k]].producer = kept;
        kept++;
    }
    g->nnodes = kept;
}
