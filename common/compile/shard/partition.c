// SPDX-License-Identifier: Apache-2.0
// The partitioner. See partition.h.
//
// The old graph is walked in order. For each node the op's rule is asked with the specs its inputs
// have by now; inputs that differ are brought there (a reshard), the node is emitted, and its
// output is brought to what its point asks for. A contribution to a gradient is brought to the
// gradient's cut as it is made and stays partial over the other axes while microbatches add to it;
// the sum is reduced once, right after its last contribution.
//
// Over which axes all contributions of one gradient are partial is known only when all have been
// seen: where one is not, the walk is made again and the others are reduced over it as they are
// made.
#include "common/compile/shard/partition.h"

#include <string.h>

#include "common/compile/graph/build.h"
#include "common/compile/shard/op_rules.h"
#include "common/compile/shard/refine.h"

// The steps that bring a value from a spec to another: layers that are alike move alike, so each
// path is looked for once.
struct known_path {
    size_t elem;
    struct shape shape;
    struct spec from, to;
    int n;
    const struct reshard_step *step;
};

// A cache lies as its readers want it, so that nothing of it moves: what they want is known when they
// have been met.
struct cache_cut {
    bool asked; // a reader wanted it so; else it lies as its rows do
    struct spec spec;
};

struct pass {
    const struct graph *from;
    struct graph *to;
    const struct mesh *mesh;
    const struct sharding *sharding;
    int *map;         // value of `from` → its present version in `to`, −1 before it is made
    int *sum_of;      // value of `from` → the sum it contributes to, −1
    int *left;        // sum (value of `from`) → contributions still to come
    axis_set *common; // sum → axes over which all its contributions are partial, as known so far
    struct cache_cut *caches; // cache → how it lies
    bool again; // `common` shrank, or a cache lies otherwise: the walk was made with the old ones
    struct shared { // reshards that later nodes of the scope and phase may use
        int to, scope;
        enum phase phase;
        struct spec spec;
        int next; // of the same value
    } * shared;
    int nshared, shared_cap;
    int *first_shared; // value of `to` → its newest, −1
    int nfirst, first_cap;
    struct known_path *paths;
    int npaths, paths_cap;
    int drawn;        // the logits of which each device keeps its rows; −1
    const char *what; // the tensor at hand, for the reshards that it causes
    struct err *err;
};

static const char *get_name(const struct value *v)
{
    return v->name ? v->name : "a value";
}

static int report_indivisible(struct pass *p, const struct value *v, const struct spec *s, int d)
{
    struct buf text = {0};
    spec_print(s, p->mesh, v->shape.n, &text);
    int rc = err_set(p->err, ERR_INVALID,
                     "%s: dimension %s of size %lld does not divide by %d, as %s asks", get_name(v),
                     dims_name(p->from->dims, v->dims[d]), (long long)v->shape.dim[d],
                     dim_parts(p->mesh, &s->dim[d]), buf_str(&text));
    buf_clear(&text);
    return rc;
}

static int copy_value(struct pass *p, int old, const struct spec *s, int *out)
{
    const struct value *v = &p->from->values[old];
    int bad;
    if (!spec_divides(s, p->mesh, &v->shape, &bad))
        return report_indivisible(p, v, s, bad);
    int id = graph_value(p->to, v->kind, v->name, v->dtype, v->shape.n, v->dims, v->shape.dim);
    struct value *copy = &p->to->values[id];
    copy->point = v->point;
    copy->of = v->of < 0 ? -1 : p->map[v->of];
    copy->alias = v->alias < 0 ? -1 : p->map[v->alias];
    copy->init = v->init;
    copy->init_std = v->init_std;
    memcpy(copy->limit, v->limit, sizeof copy->limit);
    copy->spec = *s;
    *out = id;
    return 0;
}

// Whether a value is a cache, or one with its rows appended.
static bool is_cache(const struct pass *p, int old)
{
    const struct value *v = &p->from->values[old];
    return (v->alias < 0 ? v : &p->from->values[v->alias])->kind == VALUE_CACHE;
}

// Returns the spec that the job asks of a value, whatever the ops around it would choose. *has is
// false if it asks none.
static struct spec find_wanted(const struct pass *p, int old, bool *has)
{
    const struct value *v = &p->from->values[old];
    *has = true;
    if (p->sum_of[old] >= 0) {
        int of = p->from->values[p->sum_of[old]].of;
        *has = of >= 0;
        return of >= 0 ? refine_grad(p->sharding, p->mesh, &p->from->values[of]) : (struct spec){0};
    }
    if (v->kind == VALUE_TEMP && v->of >= 0) // a parameter's copy lies as the parameter does
        return sharding_spec(p->sharding, p->mesh, &p->from->values[v->of]);
    *has = v->point != POINT_NONE && !is_cache(p, old);
    return *has ? sharding_spec(p->sharding, p->mesh, v) : (struct spec){0};
}

// Emits one step of a reshard. An all-reduce works in place; every other step makes a new buffer.
static int emit_step(struct pass *p, int id, const struct reshard_step *step, enum node_when when)
{
    struct graph *g = p->to;
    struct value v = g->values[id];
    bool in_place = step->kind == RESHARD_ALL_REDUCE;
    int made = graph_value(g, in_place ? v.kind : VALUE_TEMP, v.name, v.dtype, v.shape.n, v.dims,
                           v.shape.dim);
    struct value *w = &g->values[made];
    w->point = v.point;
    w->of = v.of;
    w->alias = in_place ? id : -1;
    w->spec = step->after;
    struct node n = {.kind = NODE_RESHARD,
                     .step = *step,
                     .what = v.name ? v.name : p->what,
                     .nin = 1,
                     .in = {id},
                     .nout = 1,
                     .out = {made},
                     .scope = g->scope,
                     .place = g->place,
                     .phase = g->phase,
                     .when = when};
    graph_node(g, &n);
    return made;
}

static int report_no_path(struct pass *p, int id, const struct spec *need)
{
    const struct value *v = &p->to->values[id];
    struct buf text = {0};
    spec_print(&v->spec, p->mesh, v->shape.n, &text);
    buf_puts(&text, " to ");
    spec_print(need, p->mesh, v->shape.n, &text);
    err_wrap(p->err, "%s: from %s", get_name(v), buf_str(&text));
    buf_clear(&text);
    return p->err->code;
}

static int find_newest_shared(struct pass *p, int id)
{
    PRE(id >= 0);
    while (p->nfirst <= id) {
        p->first_shared = arena_grow(p->to->arena, p->first_shared, sizeof *p->first_shared,
                                     p->nfirst, &p->first_cap);
        p->first_shared[p->nfirst++] = -1;
    }
    return p->first_shared[id];
}

// Finds the steps from a value's spec to another, null with `err` set: there are none.
static const struct known_path *find_path(struct pass *p, const struct value *v,
                                          const struct spec *to)
{
    struct arena scratch = {0}, *a = p->to->arena;
    size_t elem = dtype_size(v->dtype);
    struct reshard path;
    for (int i = p->npaths - 1; i >= 0; i--) {
        const struct known_path *w = &p->paths[i];
        if (w->elem == elem && shape_equal(&w->shape, &v->shape) && spec_equal(&w->to, to) &&
            spec_equal(&w->from, &v->spec))
            return w;
    }
    int rc = reshard_find(p->mesh, &v->shape, elem, &v->spec, to, &scratch, &path, p->err);
    arena_clear(&scratch);
    if (rc)
        return NULL;
    p->paths = arena_grow(a, p->paths, sizeof *p->paths, p->npaths, &p->paths_cap);
    p->paths[p->npaths] = (struct known_path){
        elem, v->shape, v->spec,
        *to,  path.n,   arena_dup(a, path.step, sizeof *path.step * (size_t)path.n)};
    return &p->paths[p->npaths++];
}

// Brings a value to a spec. Within a scope and phase the same reshard happens once.
static int reshard_to(struct pass *p, int id, const struct spec *need, enum node_when when,
                      int *out)
{
    struct graph *g = p->to;
    const struct value *v = &g->values[id];
    *out = id;
    if (spec_equal(&v->spec, need))
        return 0;
    for (int i = find_newest_shared(p, id); i >= 0; i = p->shared[i].next) {
        const struct shared *s = &p->shared[i];
        if (s->scope != g->scope || s->phase != g->phase || !spec_equal(&s->spec, need))
            continue;
        *out = s->to;
        return 0;
    }
    const struct known_path *path = find_path(p, v, need);
    if (!path)
        return report_no_path(p, id, need);
    for (int i = 0; i < path->n; i++)
        *out = emit_step(p, *out, &path->step[i], when);
    p->shared = arena_grow(g->arena, p->shared, sizeof *p->shared, p->nshared, &p->shared_cap);
    p->shared[p->nshared] =
        (struct shared){*out, g->scope, g->phase, *need, find_newest_shared(p, id)};
    p->first_shared[id] = p->nshared++;
    return 0;
}

// Leaves get their spec when they are first met, except for inputs from data: their first reader
// chooses it.
static int place_leaf(struct pass *p, int old)
{
    const struct value *v = &p->from->values[old];
    if (p->map[old] >= 0 || v->kind == VALUE_INPUT)
        return 0;
    struct spec s = {0};
    if (v->kind == VALUE_CACHE && p->caches[old].asked)
        s = p->caches[old].spec;
    else if (v->kind == VALUE_PARAM || v->kind == VALUE_CACHE)
        s = sharding_spec(p->sharding, p->mesh, v);
    if (v->of >= 0)
        s = refine_state(p->sharding, p->mesh, &p->from->values[v->of]);
    // Control bits: every rank sets its own, the metrics sum adds them up.
    return copy_value(p, old, &s, &p->map[old]);
}

// A reader wants a cache, whose rows it reads, in this spec. Where another wanted another, it cannot be.
static int ask_cache(struct pass *p, int old, const struct spec *need)
{
    const struct value *v = &p->from->values[old];
    struct cache_cut *c = is_cache(p, old) && v->alias >= 0 ? &p->caches[v->alias] : NULL;
    if (!c || spec_equal(&p->to->values[p->map[old]].spec, need))
        return 0;
    if (c->asked && spec_equal(&c->spec, need))
        return 0;
    if (c->asked)
        return err_set(
            p->err, ERR_UNSUPPORTED,
            "the model's line %d: keys that are kept would be moved at each token, since "
            "what reads them lies differently (sharding.activations)",
            p->from->nodes[v->producer].line);
    *c = (struct cache_cut){true, *need};
    p->again = true;
    return 0;
}

// An input is read in every cut that is asked of it, a buffer each.
static int read_input(struct pass *p, int old, const struct spec *need, int *out)
{
    for (int v = 0; v < p->to->nvalues; v++) {
        const struct value *have = &p->to->values[v];
        if (have->kind != VALUE_INPUT || strcmp(have->name, p->from->values[old].name) != 0 ||
            !spec_equal(&have->spec, need))
            continue;
        *out = v;
        return 0;
    }
    int rc = copy_value(p, old, need, out);
    p->map[old] = p->map[old] < 0 ? *out : p->map[old];
    return rc;
}

// Returns the spec that each contribution to a gradient is brought to as soon as it is made: the
// gradient's cut, partial over those axes over which all contributions are partial.
static struct spec find_contribution_spec(struct pass *p, int old_sum, const struct spec *made)
{
    int of = p->from->values[old_sum].of;
    if (of < 0)
        return *made; // the loss and its parts: never reduced in the graph
    struct spec s = refine_grad(p->sharding, p->mesh, &p->from->values[of]);
    axis_set open = (axis_set)(made->partial_sum & ~spec_axes(&s));
    if (p->common[old_sum] & ~open) {
        p->common[old_sum] &= open;
        p->again = true;
    }
    s.partial_sum = p->common[old_sum];
    return s;
}

static int cast_to(struct pass *p, int id, enum dtype t, enum node_when when)
{
    struct graph *g = p->to;
    struct value v = g->values[id];
    g->when = when;
    int made = cast(g, id, t);
    g->when = EVERY_MICROBATCH;
    g->values[made].spec = v.spec;
    g->values[made].name = v.name;
    return made;
}

// A gradient that is summed by a reshard travels in graph.reduce: each device's part is rounded,
// and their sum once more.
static int reduce_gradient(struct pass *p, int id, const struct spec *to, enum node_when when,
                           int *out)
{
    const struct value *v = &p->to->values[id];
    bool narrow = p->from->reduce && p->from->reduce != v->dtype;
    if (narrow && spec_partial(&v->spec) != spec_partial(to))
        id = cast_to(p, id, p->from->reduce, when);
    return reshard_to(p, id, to, when, out);
}

// A gradient that was reduced in a narrower dtype (graph.reduce) is cast back for its readers. The
// result is written over the sum that the gradient was made from, if both have the same cuts.
static int widen_reduced(struct pass *p, int old)
{
    struct graph *g = p->to;
    int id = p->map[old], sum = id;
    if (g->values[id].dtype == p->from->values[old].dtype)
        return id;
    while (g->values[sum].dtype != p->from->values[old].dtype)
        sum = g->nodes[g->values[sum].producer].in[0];
    int made = cast_to(p, id, p->from->values[old].dtype, EVERY_MICROBATCH);
    struct spec cuts = g->values[sum].spec;
    cuts.partial_sum = 0;
    if (g->values[sum].kind == VALUE_SUM && spec_equal(&cuts, &g->values[made].spec))
        g->values[made].alias = sum;
    p->map[old] = made;
    return made;
}

// A reshard cannot add to a sum itself, so a node that adds its result is put behind it.
static int add_to_sum(struct pass *p, int old, int id)
{
    struct graph *g = p->to;
    struct value v = g->values[id];
    int made = sum(g, id, v.shape.n, v.dims, 1, DT_F32);
    g->values[made].spec = v.spec;
    g->values[made].name = p->from->values[old].name;
    return made;
}

static int make_sum(struct pass *p, int old_sum, const struct spec *s)
{
    struct graph *g = p->to;
    int like = -1, rc = copy_value(p, old_sum, s, &like);
    if (rc)
        return rc;
    p->map[old_sum] = like;
    g->sums = arena_grow(g->arena, g->sums, sizeof *g->sums, g->nsums, &g->sums_cap);
    g->sums[g->nsums++] = (struct sum){.value = like};
    return 0;
}

// After the last contribution the gradient is reduced to the optimiser's cut, and the rest of the
// graph reads that version.
static int add_contribution(struct pass *p, int old_sum, int old, int contrib)
{
    struct graph *g = p->to;
    struct spec s = find_contribution_spec(p, old_sum, &g->values[contrib].spec);
    p->what = p->from->values[old_sum].name;
    int there, rc = reduce_gradient(p, contrib, &s, EVERY_MICROBATCH, &there);
    if (!rc && p->map[old_sum] < 0)
        rc = make_sum(p, old_sum, &s);
    if (rc)
        return rc;
    // If an earlier contribution was partial over more axes, the sum was made so too, and does not fit
    // this one. The graph is then walked again with fewer axes. This walk goes to its end all the same, to
    // find what the other sums need, and nothing is added to this one.
    if (!spec_equal(&g->values[p->map[old_sum]].spec, &s))
        p->again = true;
    else
        graph_contribute(g, p->map[old_sum],
                         there == contrib ? contrib : add_to_sum(p, old, there));
    int of = p->from->values[old_sum].of;
    if (--p->left[old_sum] > 0 || of < 0)
        return 0;
    s = refine_state(p->sharding, p->mesh, &p->from->values[of]);
    return reduce_gradient(p, p->map[old_sum], &s, LAST_MICROBATCH, &p->map[old_sum]);
}

// Whether a value is contributed to a part of the metrics, where all of a part's numbers stand.
static bool is_reported(const struct pass *p, int old)
{
    bool any = false;
    for (int i = 0; i < p->from->nparts && p->sum_of[old] >= 0 && !any; i++)
        any = p->from->parts[i].value == p->sum_of[old];
    return any;
}

static int query_node(struct pass *p, const struct node *n, struct shard_query *q,
                      struct spec *want)
{
    q->mesh = p->mesh;
    q->graph = p->from;
    q->node = n;
    *want = find_wanted(p, n->out[0], &q->has_want);
    q->want = want;
    q->uncut = is_reported(p, n->out[0]);
    for (int k = 0; k < n->nin; k++) {
        int rc = place_leaf(p, n->in[k]);
        if (rc)
            return rc;
        bool data = p->from->values[n->in[k]].kind == VALUE_INPUT;
        if (data)
            q->asked[k] = sharding_spec(p->sharding, p->mesh, &p->from->values[n->in[k]]);
        q->in[k] = data ? NULL : &p->to->values[p->map[n->in[k]]].spec;
    }
    if (n->out[0] == p->drawn && q->in[0])
        want->dim[0] = q->in[0]->dim[0];
    op_shard(q);
    return 0;
}

static int emit_outputs(struct pass *p, const struct node *n, const struct shard_query *q,
                        struct node *copy)
{
    for (int k = 0; k < n->nout; k++) {
        int old = n->out[k];
        struct spec s = q->out[k];
        // A scalar of the loss is whole on the axes it is not partial over: it counts once there. Logits
        // or scores are whole on all devices of their stage, and only other stages lack them.
        bool part_of_loss = p->sum_of[old] >= 0 && p->from->values[p->sum_of[old]].of < 0;
        bool once = op_is(n->op, OP_COUNTS_ONCE);
        bool whole = p->sum_of[old] == p->from->loss && p->from->values[old].shape.n > 1;
        if ((part_of_loss && !whole) || once)
            copy->owner =
                (axis_set)(mesh_cuts(p->mesh) & ~(once ? spec_axes(q->in[0]) : s.partial_sum));
        if (part_of_loss)
            s.partial_sum = whole ? mesh_all(p->mesh) & p->mesh->stages : mesh_all(p->mesh);
        int rc = copy_value(p, old, &s, &copy->out[k]);
        if (rc)
            return rc;
        p->map[old] = copy->out[k];
        for (int j = 0; j < n->nin; j++) // what is changed in place may be a cut of it
            if (p->from->values[old].alias == n->in[j])
                p->to->values[copy->out[k]].alias = copy->in[j];
    }
    graph_node(p->to, copy);
    return 0;
}

// "layers/0/act_hidden": what has no name of its own is called by the place where it is made; a
// cotangent as the gradient of that.
static const char *name_by_place(struct pass *p, int old)
{
    const struct value *v = &p->from->values[old];
    if (v->producer < 0 || v->of >= 0)
        return v->name;
    const struct node *n = &p->from->nodes[v->producer];
    return arena_printf(p->to->arena, "%s%s/%s",
                        n->phase == PHASE_BACKWARD && !n->again ? "grad/" : "",
                        p->from->scopes[n->scope], point_name(v->point));
}

// A parameter that was updated on its optimiser's cut is gathered into its own buffer.
static int gather_param(struct pass *p, int old, int param)
{
    int made = p->map[old];
    p->what = p->to->values[param].name;
    int rc = reshard_to(p, made, &p->to->values[param].spec, EVERY_MICROBATCH, &p->map[old]);
    if (p->map[old] != made)
        p->to->values[p->map[old]].alias = param;
    return rc;
}

// Brings what was made to where its point wants it, no part of a sum any more.
static int settle_output(struct pass *p, int old)
{
    bool has;
    int alias = p->from->values[old].alias;
    if (alias >= 0 && p->from->values[alias].kind == VALUE_PARAM)
        return gather_param(p, old, p->map[alias]);
    struct spec after = find_wanted(p, old, &has), made = p->to->values[p->map[old]].spec;
    if (!has) {
        after = made;
        after.partial_sum = after.partial_max = 0;
    }
    p->what = name_by_place(p, old);
    return reshard_to(p, p->map[old], &after, EVERY_MICROBATCH, &p->map[old]);
}

static int emit_op(struct pass *p, const struct node *n)
{
    struct shard_query q = {0};
    struct spec want;
    int rc = query_node(p, n, &q, &want);
    if (rc)
        return rc;
    struct node copy = *n;
    for (int k = 0; k < n->nin && !rc; k++) {
        if (!q.in[k])
            rc = read_input(p, n->in[k], &q.need[k], &copy.in[k]);
        else if (!(rc = ask_cache(p, n->in[k], &q.need[k]))) {
            p->what = name_by_place(p, n->in[k]);
            rc = reshard_to(p, widen_reduced(p, n->in[k]), &q.need[k], EVERY_MICROBATCH,
                            &copy.in[k]);
        }
    }
    if (!rc)
        rc = emit_outputs(p, n, &q, &copy);
    if (rc)
        return rc;
    int out = n->out[0];
    if (p->sum_of[out] >= 0)
        return add_contribution(p, p->sum_of[out], out, p->map[out]);
    for (int k = 0; k < n->nout && !rc; k++)
        if (!p->from->values[n->out[k]].open)
            rc = settle_output(p, n->out[k]);
    return rc;
}

// ---- cotangents --------------------------------------------------------------------------------

// The addition before this one in the same sum; null: this is the first.
static const struct node *find_earlier_addition(const struct pass *p, const struct node *n)
{
    const struct value *v = &p->from->values[n->in[0]];
    const struct node *before = v->open ? &p->from->nodes[v->producer] : NULL;
    return before && before->sums_cotangent ? before : NULL;
}

// The contributions to a cotangent as they are by now, in the order they were made.
static int list_terms(const struct pass *p, const struct node *last, int **term)
{
    int n = 2;
    for (const struct node *i = last; (i = find_earlier_addition(p, i));)
        n++;
    *term = arena_array(p->to->arena, int, n);
    for (int k = n - 1; k > 0; k--, last = find_earlier_addition(p, last)) {
        (*term)[k] = p->map[last->in[1]];
        (*term)[0] = p->map[last->in[0]]; // of the first addition, which comes last
    }
    return n;
}

static int add_terms(struct pass *p, int a, int b)
{
    int made = add(p->to, a, b);
    p->to->values[made].point = p->to->values[a].point;
    p->to->values[made].spec = p->to->values[a].spec;
    return made;
}

// The first of the terms that is left and those of its spec, added as they are, partial or not.
static int add_alike(struct pass *p, int n, int *term)
{
    struct spec s = p->to->values[term[0]].spec;
    int sum = term[0];
    for (int k = 1; k < n; k++) {
        if (term[k] < 0 || !spec_equal(&p->to->values[term[k]].spec, &s))
            continue;
        sum = add_terms(p, sum, term[k]);
        term[k] = -1;
    }
    return sum;
}

// Brings each sum of contributions with one spec to the value's cuts, and then adds these sums.
static int emit_cotangent_sum(struct pass *p, const struct node *n)
{
    int out = n->out[0], sum = -1, rc = 0, *term;
    bool has;
    if (p->from->values[out].open)
        return 0; // the last one does them all
    int terms = list_terms(p, n, &term);
    struct spec want = find_wanted(p, out, &has);
    if (!has) {
        want = p->to->values[term[0]].spec;
        want.partial_sum = want.partial_max = 0;
    }
    p->what = name_by_place(p, out);
    for (int i = 0; i < terms && !rc; i++) {
        if (term[i] < 0)
            continue;
        int part = add_alike(p, terms - i, term + i);
        rc = reshard_to(p, part, &want, EVERY_MICROBATCH, &part);
        sum = sum < 0 || rc ? part : add_terms(p, sum, part);
    }
    p->map[out] = sum;
    return rc;
}

static int begin_walk(struct pass *p)
{
    const struct graph *from = p->from;
    p->nshared = p->nfirst = 0;
    p->again = false;
    for (int i = 0; i < from->nvalues; i++)
        p->map[i] = p->sum_of[i] = -1;
    for (int i = 0; i < from->nsums; i++) {
        p->left[from->sums[i].value] = from->sums[i].n;
        for (int c = 0; c < from->sums[i].n; c++) {
            int v = from->sums[i].contrib[c];
            if (p->sum_of[v] >= 0 ||
                !op_is(from->nodes[from->values[v].producer].op, OP_ACCUMULATES))
                return err_set(p->err, ERR_INTERNAL, "%s: a contribution that cannot accumulate",
                               from->values[from->sums[i].value].name);
            p->sum_of[v] = from->sums[i].value;
        }
    }
    p->to->nscopes = from->nscopes;
    p->to->scopes =
        arena_dup(p->to->arena, from->scopes, sizeof *from->scopes * (size_t)from->nscopes);
    return 0;
}

// Empties the graph that is made, for a first walk or another. The memory of its nodes and values is
// kept for the next walk; at first there is room for some more than the old graph has.
static void empty_graph(struct pass *p)
{
    const struct graph *from = p->from;
    struct graph *to = p->to, before = *to;
    graph_init(to, before.arena, from->dims, p->err);
    to->reduce = from->reduce;
    to->backend = from->backend;
    to->scratch = from->scratch;
    to->bucket = from->bucket;
    if (!before.nodes) {
        graph_reserve(to, 2 * from->nnodes, 2 * from->nvalues);
        return;
    }
    to->nodes = before.nodes;
    to->nodes_cap = before.nodes_cap;
    to->values = before.values;
    to->values_cap = before.values_cap;
}

static int walk_graph(struct pass *p)
{
    int rc = begin_walk(p);
    for (int i = 0; i < p->from->nnodes && !rc; i++) {
        const struct node *n = &p->from->nodes[i];
        p->to->scope = n->scope;
        p->to->place = n->place;
        p->to->phase = n->phase;
        rc = n->sums_cotangent ? emit_cotangent_sum(p, n) : emit_op(p, n);
        if (rc)
            err_wrap(p->err, "partition: %s", op_name(n->op));
    }
    return rc;
}

// What a sample's sum of logits is made of; −1.
static int find_drawn(const struct graph *g)
{
    for (int i = 0; i < g->nsums; i++)
        if (g->sums[i].value == g->loss)
            return g->nodes[g->values[g->sums[i].contrib[0]].producer].in[0];
    return -1;
}

int partition(const struct graph *g, const struct mesh *m, const struct sharding *s,
              struct graph *out, struct err *e)
{
    struct pass p = {.from = g, .to = out, .mesh = m, .sharding = s, .err = e};
    int rc;
    p.common = arena_array(out->arena, axis_set, g->nvalues);
    for (int i = 0; i < g->nvalues; i++)
        p.common[i] = mesh_cuts(m);
    p.caches = arena_array(out->arena, struct cache_cut, g->nvalues);
    p.map = arena_array(out->arena, int, g->nvalues);
    p.sum_of = arena_array(out->arena, int, g->nvalues);
    p.left = arena_array(out->arena, int, g->nvalues);
    p.drawn = s->own_rows ? find_drawn(g) : -1;
    do {
        empty_graph(&p);
        rc = walk_graph(&p);
    } while (!rc && p.again); // each walk takes axes away or places a cache once: there is an end
    if (rc)
        return rc;
    out->loss = p.map[g->loss];
    out->metrics = p.map[g->metrics];
    out->nparts = g->nparts;
    out->parts = arena_array(out->arena, struct loss_part, g->nparts);
    for (int i = 0; i < g->nparts; i++) {
        out->parts[i] = g->parts[i];
        out->parts[i].value = p.map[g->parts[i].value];
    }
    return 0;
}
