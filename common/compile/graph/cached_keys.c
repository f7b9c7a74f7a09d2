// SPDX-License-Identifier: Apache-2.0
// Deriving a decoder's program. See cached_keys.h.
#include "common/compile/graph/cached_keys.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/compile/graph/build.h"
#include "common/compile/graph/carry.h"
#include "common/op/attention.h"

enum { KEYS_BATCH, KEYS_SEQ }; // dimensions of keys and values

struct ring {
    int64_t places;
    int value; // the positions of its places
};
struct derivation {
    const struct graph *from;
    struct graph *to;
    const struct cached_keys *sizes;
    const char *name;
    bool *wanted;  // node → the logits depend on it
    int *map;      // value → its like in `to`; -1
    int *cached;   // value that is read as keys → the cache with its rows appended; -1
    int64_t *sees; // such a value → how many positions its readers see, their own included
    struct ring *rings;
    int nrings, rings_cap, ncaches;
};

static const struct value *get_input(const struct derivation *d, const struct node *n, int k)
{
    return &d->from->values[n->in[k]];
}

// ---- what the logits depend on ----

static void find_wanted(struct derivation *d)
{
    const struct graph *g = d->from;
    bool *read = arena_array(d->to->arena, bool, g->nvalues);
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; g->sums[s].value == g->loss && c < g->sums[s].n; c++)
            read[g->sums[s].contrib[c]] = true;
    for (int i = g->nnodes - 1; i >= 0; i--) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nout; k++)
            d->wanted[i] |= read[n->out[k]];
        for (int k = 0; k < n->nin && d->wanted[i]; k++)
            read[n->in[k]] = true;
    }
}

// ---- refusals ----

__attribute__((format(printf, 3, 4))) static int refuse(struct derivation *d, const struct node *n,
                                                        const char *fmt, ...)
{
    struct buf why = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&why, fmt, ap);
    va_end(ap);
    int rc =
        err_set(d->to->err, ERR_UNSUPPORTED, "the model's line %d: %s", n->line, buf_str(&why));
    buf_clear(&why);
    return rc;
}

static const char *name_dim(const struct derivation *d, enum dim dim)
{
    return dims_name(d->from->dims, dim);
}

// What runs along the data keeps its name, and has no padding.
static int check_names(struct derivation *d, const struct node *n)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = &d->from->values[k < n->nin ? n->in[k] : n->out[k - n->nin]];
        for (int i = 0; i < v->shape.n; i++) {
            if (v->born[i] && v->born[i] != (int)v->dims[i])
                return refuse(d, n,
                              "%s is read as %s: attention that is written out has no cached keys "
                              "yet, attention(q, k, v) has",
                              name_dim(d, (enum dim)v->born[i]), name_dim(d, v->dims[i]));
            if (v->born[i] && v->limit[i])
                return refuse(d, n, "%s is padded", name_dim(d, v->dims[i]));
        }
    }
    return 0;
}

// The operand whose last dimension an op sees as one, or by index.
static const struct value *find_widest(const struct derivation *d, const struct node *n)
{
    const struct value *widest = get_input(d, n, 0);
    for (int k = 1; k < n->nin; k++)
        if (get_input(d, n, k)->shape.n > widest->shape.n)
            widest = get_input(d, n, k);
    return widest;
}

// Whether a value is the input that says which row of a text is its last.
static bool is_last(const struct value *v)
{
    const char *slash = v->name ? strrchr(v->name, '/') : NULL;
    return v->kind == VALUE_INPUT && slash && strcmp(slash, "/last") == 0;
}

// Whether a value is made, by casts alone, of a comparison with the input `last`: 1 at the row that
// the logits are of, else 0.
static bool picks_last(const struct derivation *d, int value)
{
    const struct graph *g = d->from;
    int at = g->values[value].producer;
    while (at >= 0 && g->nodes[at].op == OP_CAST)
        at = g->values[g->nodes[at].in[0]].producer;
    if (at < 0 || g->nodes[at].op != OP_EQUAL)
        return false;
    return is_last(get_input(d, &g->nodes[at], 1));
}

// A loop along the data is in each result, and in each operand that has it it is along the data.
static int check_loops(struct derivation *d, const struct node *n)
{
    const struct graph *g = d->from;
    int8_t born[CARRY_LOOPS] = {0};
    for (int k = 0; k < n->nin; k++)
        for (int i = 0; i < get_input(d, n, k)->shape.n; i++)
            if (get_input(d, n, k)->born[i])
                born[n->attr.label[k][i]] = get_input(d, n, k)->born[i];
    for (int k = 0; k < n->nin; k++)
        for (int i = 0; i < get_input(d, n, k)->shape.n; i++)
            if (get_input(d, n, k)->born[i] != born[n->attr.label[k][i]])
                return refuse(d, n,
                              "a number for each place of %s is read by its place: it has no "
                              "cached keys yet; embed(positions, table) has",
                              name_dim(d, get_input(d, n, k)->dims[i]));
    for (int o = 0; o < n->nout; o++) {
        bool made[CARRY_LOOPS] = {false};
        for (int i = 0; i < g->values[n->out[o]].shape.n; i++)
            made[n->attr.label[n->nin + o][i]] = true;
        for (int l = 0; l < CARRY_LOOPS; l++) {
            if (!born[l] || made[l])
                continue;
            if (born[l] == DIM_SEQ && n->op == OP_MATMUL && picks_last(d, n->in[0]))
                continue;
            return refuse(d, n, "%s over %s: a token would see those behind it", op_name(n->op),
                          name_dim(d, (enum dim)born[l]));
        }
    }
    return 0;
}

static int check_attention(struct derivation *d, const struct node *n,
                           const struct attention_operands *o)
{
    const int rows[] = {o->q, o->k, o->v, o->qr, o->kr};
    if (n->attr.ahead)
        return refuse(d, n, "attention with causal = 0: a token would see those behind it");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i] >= 0 && get_input(d, n, rows[i])->born[KEYS_SEQ] != DIM_SEQ)
            return refuse(d, n, "attention over what is no row for each token");
    return 0;
}

// A text is its tokens and their places: what else a model reads of a sample has no rows of its own.
static int check_inputs(struct derivation *d, const struct node *n)
{
    for (int k = 0; k < n->nin; k++) {
        const struct value *v = get_input(d, n, k);
        const char *name = v->kind == VALUE_INPUT && v->name ? v->name : NULL,
                   *slash = name ? strrchr(name, '/') : NULL, *word = slash ? slash + 1 : name;
        if (name && strcmp(word, "tokens") != 0 && strcmp(word, "positions") != 0 && !is_last(v))
            return refuse(d, n, "%s are read, which are no row for each token", word);
    }
    return 0;
}

static int check_node(struct derivation *d, const struct node *n)
{
    struct attention_operands o;
    int rc = check_names(d, n);
    rc = rc ? rc : check_inputs(d, n);
    if (rc)
        return rc;
    if (n->op == OP_ATTENTION)
        return attention_operands(n->op, n->nin, &o) ? ERR_INTERNAL : check_attention(d, n, &o);
    if (op_is(n->op, OP_OWN_LOOPS))
        return refuse(d, n, "%s: experts have no cached keys yet", op_name(n->op));
    bool row = op_order(n->op) == ORDER_ROW || op_order(n->op) == ORDER_LAST;
    const struct value *widest = find_widest(d, n);
    int last = widest->shape.n - 1;
    if (row && last >= 0 && widest->born[last])
        return refuse(d, n, "%s over %s: a token would see those behind it", op_name(n->op),
                      name_dim(d, widest->dims[last]));
    if (op_order(n->op) == ORDER_ALL)
        return refuse(d, n, "%s has no cached keys", op_name(n->op));
    return check_loops(d, n);
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
            if (!d->wanted[i] || n->op != OP_ATTENTION || attention_operands(n->op, n->nin, &o))
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

// ---- making the graph ----

static const char *name_value(const struct derivation *d, const struct value *v)
{
    const char *slash = v->name ? strrchr(v->name, '/') : NULL;
    return v->kind == VALUE_INPUT
               ? arena_printf(d->to->arena, "%s/%s", d->name, slash ? slash + 1 : v->name)
               : v->name;
}

static int copy_value(struct derivation *d, int old)
{
    struct value v = d->from->values[old];
    if (d->map[old] >= 0)
        return d->map[old];
    for (int i = 0; i < v.shape.n; i++)
        if (v.born[i] == DIM_SEQ)
            v.shape.dim[i] = d->sizes->rows;
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

static int find_last(struct derivation *d)
{
    for (int v = 0; v < d->from->nvalues; v++)
        if (is_last(&d->from->values[v]))
            return copy_value(d, v);
    return -1;
}

static int make_ring(struct derivation *d, int64_t places)
{
    struct graph *g = d->to;
    for (int i = 0; i < d->nrings; i++)
        if (d->rings[i].places == places)
            return d->rings[i].value;
    int last = find_last(d);
    const struct value *of = &g->values[last];
    g->when = FIRST_MICROBATCH; // of a run's only one: each stage that reads it makes it
    int made = graph_op(g, &(struct op_args){.op = OP_RING,
                                             .nin = 1,
                                             .in = &last,
                                             .nout_dims = 2,
                                             .out_dims = (enum dim[]){DIM_BATCH, DIM_NONE},
                                             .sizes = (int64_t[]){of->shape.dim[0], places},
                                             .dtype = DT_I32});
    g->when = EVERY_MICROBATCH;
    d->rings = arena_grow(g->arena, d->rings, sizeof *d->rings, d->nrings, &d->rings_cap);
    d->rings[d->nrings++] = (struct ring){places, made};
    return made;
}

// The cache of a value with its rows appended.
static int append_rows(struct derivation *d, int old, int64_t places, int positions)
{
    struct graph *g = d->to;
    if (d->cached[old] >= 0)
        return d->cached[old];
    struct value v = g->values[d->map[old]];
    v.dims[KEYS_SEQ] = DIM_NONE;
    v.born[KEYS_SEQ] = DIM_NONE;
    v.shape.dim[KEYS_SEQ] = places;
    v.kind = VALUE_CACHE;
    v.name = arena_printf(g->arena, "cache/%d", d->ncaches++);
    v.producer = -1;
    int cache = graph_value(g, v.kind, v.name, v.dtype, v.shape.n, v.dims, v.shape.dim);
    g->values[cache] = v;
    const int in[] = {cache, d->map[old], positions, find_last(d)};
    int made = graph_shaped(g, OP_APPEND, 4, in, cache, NULL, v.dtype);
    if (!g->failed)
        g->values[made].alias = cache;
    return d->cached[old] = made;
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
    if (find_last(d) < 0)
        return refuse(d, n, "the logits are not of each text's last token");
    begin_like(d, n, d->from->values[n->in[o.k]].point);
    const int64_t places = count_places(d, d->sees[n->in[o.k]]);
    const int keys[] = {o.k, o.v, o.kr};
    for (int k = 0; k < 3; k++)
        if (keys[k] >= 0)
            in[keys[k]] = append_rows(d, n->in[keys[k]], places, in[o.at_k]);
    in[o.at_k] = make_ring(d, places);
    // The keys lie as a ring, which kernels that go by the order in memory would not know.
    attr.in_order = false;
    graph_at(g, d->from->values[n->out[ATTENTION_Y]].point);
    int made = attention(g, n->nin, in, &attr);
    for (int k = 0; k < ATTENTION_OUTPUTS; k++)
        d->map[n->out[k]] = made + k;
    return g->failed;
}

static int make_node(struct derivation *d, const struct node *n)
{
    struct node copy = *n;
    if (n->op == OP_ATTENTION)
        return make_attention(d, n);
    for (int k = 0; k < n->nin; k++)
        copy.in[k] = copy_value(d, n->in[k]);
    for (int k = 0; k < n->nout; k++)
        copy.out[k] = copy_value(d, n->out[k]);
    graph_node(d->to, &copy);
    return 0;
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
                           .wanted = arena_array(a, bool, sample->nnodes),
                           .map = arena_array(a, int, sample->nvalues),
                           .cached = arena_array(a, int, sample->nvalues),
                           .sees = arena_array(a, int64_t, sample->nvalues)};
    int rc = 0;
    for (int v = 0; v < sample->nvalues; v++)
        d.map[v] = d.cached[v] = -1;
    find_wanted(&d);
    for (int i = 0; i < sample->nnodes && !rc; i++)
        rc = d.wanted[i] ? check_node(&d, &sample->nodes[i]) : 0;
    if (rc)
        return rc;
    find_sights(&d);
    out->scopes = arena_dup(a, sample->scopes, sizeof *sample->scopes * (size_t)sample->nscopes);
    out->nscopes = out->scopes_cap = sample->nscopes;
    out->nlayers = sample->nlayers;
    out->ordered = sample->ordered;
    out->mixed = sample->mixed;
    for (int i = 0; i < sample->nnodes && !rc; i++)
        rc = d.wanted[i] ? make_node(&d, &sample->nodes[i]) : 0;
    if (!rc)
        make_loss(&d);
    return rc;
}
