// SPDX-License-Identifier: Apache-2.0
// Deriving a decoder's program. See cached_keys.h.
#include "common/compile/graph/cached_keys.h"

#include <string.h>

#include "common/base/path.h"
#include "common/compile/graph/build.h"
#include "common/compile/graph/operand.h"
#include "common/compile/graph/token_class.h"
#include "common/op/attention.h"
#include "common/op/cache.h"

enum { KEYS_BATCH, KEYS_SEQ }; // dimensions of keys and values

struct ring {
    int64_t places, unused; // op_attr.limit
    int value;              // the positions of its places
};
struct derivation {
    const struct graph *from;
    struct graph *to;
    const struct cached_keys *sizes;
    const char *name;
    struct token_classes classes;
    int *map;     // value → its like in `to`; -1
    int *cached;  // value that is read as keys → the cache with its rows appended, or the ring of
                  // their positions; -1
    int *indexed; // value with a number for each position → those of the call's rows; -1
    int64_t *sees; // such a value → how many positions its readers see, their own included
    struct ring *rings;
    int nrings, rings_cap, ncaches;
};

static const struct value_class *get_class(const struct derivation *d, int value)
{
    return &d->classes.value[value];
}

// ---- how far keys are seen ----

static int64_t find_reach(const struct derivation *d, const struct node *n)
{
    return n->attr.window && n->attr.window < d->sizes->context ? n->attr.window
                                                                : d->sizes->context;
}

// Keys, values and the second key of an attention have one ring, and who reads one of them elsewhere
// may see further: all that hang together so see as far as the furthest.
static void find_sights(struct derivation *d)
{
    const struct graph *g = d->from;
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < g->nnodes; i++) {
            const struct node *n = &g->nodes[i];
            struct attention_operands o;
            if (!d->classes.wanted[i] || n->op != OP_ATTENTION ||
                attention_operands(n->op, n->nin, &o))
                continue;
            const int keys[] = {n->in[o.k], n->in[o.v], n->in[o.kr < 0 ? o.k : o.kr]};
            int64_t most = find_reach(d, n);
            for (int k = 0; k < 3; k++)
                most = d->sees[keys[k]] > most ? d->sees[keys[k]] : most;
            for (int k = 0; k < 3; k++) {
                grew |= d->sees[keys[k]] < most;
                d->sees[keys[k]] = most;
            }
        }
    }
}

static int64_t count_places(const struct derivation *d, int64_t sees)
{
    int64_t most = sees + d->sizes->widest - 1;
    return most < d->sizes->context ? most : d->sizes->context;
}

// How many places the cache of a group of keys has.
static int64_t count_group_places(const struct derivation *d, int value, int dim)
{
    const struct key_group *g = token_classes_group(&d->classes, value, dim);
    if (g->fixed)
        return d->from->values[value].shape.dim[dim];
    return count_places(d, g->all || !g->sees ? d->sizes->context : g->sees);
}

// ---- making the graph ----

static const char *name_value(const struct derivation *d, const struct value *v)
{
    return v->kind == VALUE_INPUT ? arena_printf(d->to->arena, "%s/%s", d->name, path_name(v->name))
                                  : v->name;
}

static int copy_value(struct derivation *d, int old)
{
    struct value v = d->from->values[old];
    if (d->map[old] >= 0)
        return d->map[old];
    for (int i = 0; i < v.shape.n; i++) {
        const struct value_class *c = get_class(d, old);
        if (c->dim[i].along == ALONG_KEYS && c->kind != CLASS_KEYS)
            v.shape.dim[i] = count_group_places(d, old, i);
        else if (c->dim[i].along == ALONG_PLACES)
            v.shape.dim[i] = d->sizes->group * d->sizes->rows;
        else if (c->dim[i].along == ALONG_BATCH && c->kind == CLASS_PLACES)
            v.shape.dim[i] /= d->sizes->group;
        else if (c->dim[i].along >= ALONG_ROWS && c->dim[i].along != ALONG_EXPERTS)
            v.shape.dim[i] = d->sizes->rows;
    }
    int id = graph_value(d->to, v.kind, NULL, v.dtype, v.shape.n, v.dims, v.shape.dim);
    v.name = name_value(d, &v);
    v.of = v.of < 0 ? -1 : copy_value(d, v.of);
    v.producer = -1;
    d->to->values[id] = v;
    return d->map[old] = id;
}

static void begin_like(struct derivation *d, const struct node *n, enum point point)
{
    d->to->scope = n->scope;
    d->to->layer = n->layer;
    d->to->place = n->place;
    d->to->line = n->line;
    d->to->phase = n->phase;
    graph_at(d->to, point);
}

static int find_input(struct derivation *d, bool (*is)(const struct value *v))
{
    for (int v = 0; v < d->from->nvalues; v++)
        if (is(&d->from->values[v]))
            return copy_value(d, v);
    return -1;
}

// `unused`: the position of a place without a row; 0: one behind the last, as numbers that a text reads
// have to be.
static int make_ring(struct derivation *d, int64_t places, int64_t unused)
{
    struct graph *g = d->to;
    const struct op_attr attr = {.limit = unused};
    for (int i = 0; i < d->nrings; i++)
        if (d->rings[i].places == places && d->rings[i].unused == unused)
            return d->rings[i].value;
    int last = find_input(d, token_is_last);
    const struct value *of = &g->values[last];
    g->when = FIRST_MICROBATCH; // of a run's only one: each stage that reads it makes it
    int made = graph_op(g, &(struct op_args){.op = OP_RING,
                                             .nin = 1,
                                             .in = &last,
                                             .nout_dims = 2,
                                             .out_dims = (enum dim[]){DIM_BATCH, DIM_NONE},
                                             .sizes = (int64_t[]){of->shape.dim[0], places},
                                             .attr = &attr,
                                             .dtype = DT_I32});
    g->when = EVERY_MICROBATCH;
    d->rings = arena_grow(g->arena, d->rings, sizeof *d->rings, d->nrings, &d->rings_cap);
    d->rings[d->nrings++] = (struct ring){places, unused, made};
    return made;
}

// The cache of rows [batch, seq, ..], whatever the second is called, with these appended.
static int append_rows(struct derivation *d, int rows, int64_t places, int positions)
{
    struct graph *g = d->to;
    struct value v = g->values[rows];
    enum dim as[MAX_DIMS];
    memcpy(as, v.dims, sizeof as);
    as[KEYS_SEQ] = DIM_SEQ;
    v.dims[KEYS_SEQ] = DIM_NONE;
    v.born[KEYS_SEQ] = DIM_NONE;
    v.shape.dim[KEYS_SEQ] = places;
    v.kind = VALUE_CACHE;
    v.name = arena_printf(g->arena, "cache/%d", d->ncaches++);
    v.producer = -1;
    int cache = graph_value(g, v.kind, v.name, v.dtype, v.shape.n, v.dims, v.shape.dim);
    g->values[cache] = v;
    const int in[] = {cache, rows, positions, find_input(d, token_is_last)};
    int made = graph_op(g, &(struct op_args){.op = OP_APPEND,
                                             .nin = 4,
                                             .in = in,
                                             .nout_dims = v.shape.n,
                                             .out_dims = v.dims,
                                             .sizes = v.shape.dim,
                                             .dtype = v.dtype,
                                             .read_as = as,
                                             .read_input = 1});
    if (!g->failed)
        g->values[made].alias = cache;
    return made;
}

// The cache of rows that attention reads; several may read one.
static int append_once(struct derivation *d, int old, int64_t places)
{
    if (d->cached[old] < 0)
        d->cached[old] = append_rows(d, d->map[old], places, find_input(d, token_is_positions));
    return d->cached[old];
}

static int make_attention(struct derivation *d, const struct node *n)
{
    struct graph *g = d->to;
    struct attention_operands o;
    struct op_attr attr = n->attr;
    int in[OP_MAX_IN];
    PRE(!attention_operands(n->op, n->nin, &o));
    for (int k = 0; k < n->nin; k++)
        in[k] = copy_value(d, n->in[k]);
    if (find_input(d, token_is_last) < 0)
        return refuse_line(n, d->to->err, "the logits are not of each text's last token");
    begin_like(d, n, d->from->values[n->in[o.k]].point);
    const int64_t places = count_places(d, d->sees[n->in[o.k]]);
    const int keys[] = {o.k, o.v, o.kr};
    for (int k = 0; k < 3; k++)
        if (keys[k] >= 0)
            in[keys[k]] = append_once(d, n->in[keys[k]], places);
    in[o.at_k] = make_ring(d, places, CACHE_UNUSED);
    // The keys lie as a ring, which kernels that go by the order in memory would not know.
    attr.in_order = false;
    attr.streams = true;
    graph_at(g, d->from->values[n->out[ATTENTION_Y]].point);
    int made = attention(g, n->nin, in, &attr);
    for (int k = 0; k < ATTENTION_OUTPUTS; k++)
        d->map[n->out[k]] = made + k;
    return g->failed;
}

// ---- keys that the text names itself ----

// The positions of keys, of which no cache is needed: what the text makes of the tokens' own, made of the
// ring's.
static int make_key_positions(struct derivation *d, int old, int64_t places)
{
    struct graph *g = d->to;
    const struct node *n = &d->from->nodes[d->from->values[old].producer];
    const struct value *v = &d->from->values[old];
    int from = d->from->values[n->in[0]].kind == VALUE_INPUT
                   ? make_ring(d, places, 0)
                   : make_key_positions(d, n->in[0], places);
    int64_t sizes[MAX_DIMS];
    struct node copy = *n;
    for (int i = 0; i < v->shape.n; i++)
        sizes[i] = v->dims[i] == DIM_BATCH ? v->shape.dim[i] : places;
    copy.in[0] = from;
    copy.out[0] = graph_value(g, VALUE_TEMP, NULL, v->dtype, v->shape.n, v->dims, sizes);
    graph_node(g, &copy);
    return copy.out[0];
}

static int permute(struct derivation *d, int x, const enum dim *dims, const enum dim *as)
{
    return graph_permute(d->to, x, dims, as, d->to->values[x].dtype);
}

// The cache of keys, in the order of dimensions in which they are read. A cache has samples and places
// first.
static int append_keys(struct derivation *d, int old)
{
    const struct value *v = &d->from->values[old];
    const struct value_class *c = get_class(d, old);
    enum dim order[MAX_DIMS];
    int key = 0, n = 2;
    if (d->cached[old] >= 0)
        return d->cached[old];
    while (c->dim[key].along != ALONG_KEYS)
        key++;
    const int64_t places = count_group_places(d, old, key);
    if (c->positions)
        return d->cached[old] = make_key_positions(d, old, places);
    order[KEYS_BATCH] = DIM_BATCH;
    order[KEYS_SEQ] = v->dims[key];
    for (int i = 0; i < v->shape.n; i++)
        if (i != key && v->dims[i] != DIM_BATCH)
            order[n++] = v->dims[i];
    const bool straight = memcmp(order, v->dims, sizeof *order * (size_t)n) == 0;
    int rows = copy_value(d, old);
    rows = straight ? rows : permute(d, rows, order, NULL);
    int made = append_rows(d, rows, places, find_input(d, token_is_positions));
    return d->cached[old] = straight ? made : permute(d, made, v->dims, order);
}

// Of numbers for each position those of the call's rows: [batch, seq, ..].
static int index_rows(struct derivation *d, int old, int along)
{
    struct graph *g = d->to;
    const struct value v = d->from->values[old];
    enum dim order[MAX_DIMS] = {v.dims[along]}, out[MAX_DIMS + 1] = {DIM_BATCH, DIM_SEQ};
    int n = 1, table = copy_value(d, old), positions = find_input(d, token_is_positions);
    if (d->indexed[old] >= 0)
        return d->indexed[old];
    for (int i = 0; i < v.shape.n; i++)
        if (i != along) {
            out[n + 1] = v.dims[i];
            order[n++] = v.dims[i];
        }
    if (along)
        table = permute(d, table, order, NULL);
    order[0] = DIM_NONE; // not along the rows: model.seq
    return d->indexed[old] = graph_op(g, &(struct op_args){.op = OP_EMBED,
                                                           .nin = 2,
                                                           .in = (int[]){positions, table},
                                                           .nout_dims = n + 1,
                                                           .out_dims = out,
                                                           .dtype = v.dtype,
                                                           .read_as = order,
                                                           .read_input = 1});
}

// Which dimension of an operand is tied with the call's rows, though it is none of the data; -1.
static int find_indexed(const struct derivation *d, const struct node *n, int k)
{
    const struct value *v = &d->from->values[n->in[k]];
    if (get_class(d, n->in[k])->kind != CLASS_WEIGHTS)
        return -1;
    for (int i = 0; i < v->shape.n; i++)
        for (int o = 0; o < n->nin; o++)
            for (int j = 0; j < d->from->values[n->in[o]].shape.n; j++) {
                const enum along along = get_class(d, n->in[o])->dim[j].along;
                const bool keys =
                    along == ALONG_KEYS && get_class(d, n->out[0])->kind == CLASS_KEYS;
                if ((along == ALONG_ROWS || keys) && n->attr.label[o][j] == n->attr.label[k][i])
                    return i;
            }
    return -1;
}

static int find_batch_label(const struct derivation *d, const struct node *n)
{
    for (int k = 0; k < n->nin; k++)
        for (int i = 0; i < d->from->values[n->in[k]].shape.n; i++)
            if (get_class(d, n->in[k])->dim[i].along == ALONG_BATCH)
                return n->attr.label[k][i];
    return -1;
}

// An operand of a product as a product reads it: what it keeps of what both have leads, in the order of
// the other operand. `label` follows.
static int lead_with_kept(struct derivation *d, int x, int8_t *label, const struct node *n,
                          int other)
{
    const struct value v = d->to->values[x];
    enum dim dims[MAX_DIMS];
    int8_t was[MAX_DIMS];
    bool leads[MAX_DIMS] = {false};
    int at = 0;
    memcpy(was, label, sizeof was);
    for (int i = 0; i < d->from->values[n->in[other]].shape.n; i++)
        for (int j = 0; j < v.shape.n; j++)
            if (n->attr.label[other][i] == was[j] &&
                operand_find_loop(d->from, n, n->nin, was[j]) >= 0) {
                leads[j] = true;
                label[at] = was[j];
                dims[at++] = v.dims[j];
            }
    for (int j = 0; j < v.shape.n; j++)
        if (!leads[j]) {
            label[at] = was[j];
            dims[at++] = v.dims[j];
        }
    return memcmp(dims, v.dims, sizeof *dims * (size_t)at) == 0 ? x : permute(d, x, dims, NULL);
}

static void read_indexed(struct derivation *d, const struct node *n, int k, int along,
                         struct node *copy)
{
    const int8_t *from = n->attr.label[k];
    int8_t *to = copy->attr.label[k];
    int at = 2;
    copy->in[k] = index_rows(d, n->in[k], along);
    to[0] = (int8_t)find_batch_label(d, n);
    to[1] = from[along];
    for (int i = 0; i < d->from->values[n->in[k]].shape.n; i++)
        if (i != along)
            to[at++] = from[i];
    if (n->op == OP_MATMUL)
        copy->in[k] = lead_with_kept(d, copy->in[k], to, n, 1 - k);
}

// ---- nodes ----

static int make_node(struct derivation *d, const struct node *n)
{
    struct node copy = *n;
    const bool queries = get_class(d, n->out[0])->kind == CLASS_QUERIES;
    if (n->op == OP_ATTENTION)
        return make_attention(d, n);
    begin_like(d, n, d->from->values[n->out[0]].point);
    for (int k = 0; k < n->nin; k++) {
        const int along = find_indexed(d, n, k);
        if (along >= 0)
            read_indexed(d, n, k, along, &copy);
        else if (queries && get_class(d, n->in[k])->kind == CLASS_KEYS)
            copy.in[k] = append_keys(d, n->in[k]);
        else
            copy.in[k] = copy_value(d, n->in[k]);
    }
    for (int k = 0; k < n->nout; k++)
        copy.out[k] = copy_value(d, n->out[k]);
    // Each of a group's tokens has a place with any expert.
    if (n->op == OP_SLOTS || n->op == OP_DISPATCH || n->op == OP_COMBINE) {
        copy.attr.slots.group = d->sizes->group;
        copy.attr.slots.capacity = d->sizes->group * d->sizes->rows;
    }
    copy.attr.streams = op_is(n->op, OP_IS_PRODUCT);
    graph_node(d->to, &copy);
    return d->to->failed;
}

static void make_loss(struct derivation *d)
{
    const struct graph *g = d->from;
    for (int s = 0; s < g->nsums; s++) {
        if (g->sums[s].value != g->loss)
            continue;
        struct value v = g->values[g->loss];
        d->to->loss = graph_sum(d->to, v.name, -1, d->map[g->sums[s].contrib[0]]);
        for (int c = 0; c < g->sums[s].n; c++)
            graph_contribute(d->to, d->to->loss, d->map[g->sums[s].contrib[c]]);
    }
}

int cached_keys_derive(const struct graph *sample, const struct cached_keys *sizes,
                       const char *name, struct graph *out)
{
    struct arena *a = out->arena;
    struct derivation d = {.from = sample,
                           .to = out,
                           .sizes = sizes,
                           .name = name,
                           .map = arena_array(a, int, sample->nvalues),
                           .cached = arena_array(a, int, sample->nvalues),
                           .indexed = arena_array(a, int, sample->nvalues),
                           .sees = arena_array(a, int64_t, sample->nvalues)};
    const enum dtype compute = out->compute;
    for (int v = 0; v < sample->nvalues; v++)
        d.map[v] = d.cached[v] = d.indexed[v] = -1;
    int rc = token_classes_find(sample, a, &d.classes, out->err);
    if (rc)
        return rc;
    out->compute = DT_F32; // what is read in another dtype has its copy in the sample program
    find_sights(&d);
    out->scopes = arena_dup(a, sample->scopes, sizeof *sample->scopes * (size_t)sample->nscopes);
    out->nscopes = out->scopes_cap = sample->nscopes;
    out->nlayers = sample->nlayers;
    out->ordered = sample->ordered;
    out->mixed = sample->mixed;
    for (int i = 0; i < sample->nnodes && !rc; i++)
        rc = d.classes.wanted[i] ? make_node(&d, &sample->nodes[i]) : 0;
    out->compute = compute;
    if (!rc)
        make_loss(&d);
    return rc;
}
