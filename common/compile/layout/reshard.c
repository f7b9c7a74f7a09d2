// SPDX-License-Identifier: Apache-2.0
// Reshards. See reshard.h.
//
// A best-first search over the specs that lie between. They are few, since a step only works on
// what differs from the target. Each state knows the one before it, and so the path that leads to
// it; paths are compared by (bytes, steps, kinds).
#include "common/compile/layout/reshard.h"

#include <string.h>

const char *reshard_kind_name(enum reshard_kind k)
{
    static const char *const names[RESHARD_KINDS] = {
        [RESHARD_SLICE] = "slice",           [RESHARD_REDUCE_SCATTER] = "reduce_scatter",
        [RESHARD_ALL_GATHER] = "all_gather", [RESHARD_ALL_TO_ALL] = "all_to_all",
        [RESHARD_ALL_REDUCE] = "all_reduce",
    };
    return names[k];
}

uint64_t reshard_ring_bytes(enum reshard_kind kind, uint64_t s, int n)
{
    uint64_t parts = (uint64_t)n;
    if (kind == RESHARD_SLICE || n < 2)
        return 0;
    uint64_t times = kind == RESHARD_ALL_REDUCE ? 2 : 1, each = times * (parts - 1);
    return s / parts * each + (s % parts * each + parts - 1) / parts; // s · each may be too large
}

struct search_state { // a spec, and the path that leads to it
    struct spec spec;
    struct reshard_step step; // the last one
    int from;                 // the state before it, −1 at the start
    int steps;
    uint64_t bytes;
    bool done; // its successors are made: nothing cheaper leads here
};

struct path_search {
    const struct mesh *mesh;
    const struct shape *shape;
    size_t elem;
    const struct spec *to;
    struct arena *arena;
    struct search_state *states;
    int n, cap;
};

// ---- comparing paths ----

static int list_kinds(const struct path_search *s, int at, uint8_t out[RESHARD_STEPS_MAX])
{
    int n = s->states[at].steps;
    for (int i = n; i > 0; at = s->states[at].from)
        out[--i] = (uint8_t)s->states[at].step.kind;
    return n;
}

// Whether going to a state by `step` from `from` beats the path it has.
static bool is_better(const struct path_search *s, int from, const struct reshard_step *step,
                      int has)
{
    const struct search_state *f = &s->states[from], *h = &s->states[has];
    uint64_t bytes = f->bytes + step->bytes;
    if (bytes != h->bytes)
        return bytes < h->bytes;
    if (f->steps + 1 != h->steps)
        return f->steps + 1 < h->steps;
    uint8_t mine[RESHARD_STEPS_MAX], theirs[RESHARD_STEPS_MAX];
    int n = list_kinds(s, from, mine);
    mine[n] = (uint8_t)step->kind;
    (void)list_kinds(s, has, theirs);
    return memcmp(mine, theirs, (size_t)n + 1) < 0;
}

static bool comes_before(const struct path_search *s, int a, int b)
{
    const struct search_state *x = &s->states[a], *y = &s->states[b];
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes;
    if (x->steps != y->steps)
        return x->steps < y->steps;
    uint8_t p[RESHARD_STEPS_MAX], q[RESHARD_STEPS_MAX];
    int n = list_kinds(s, a, p);
    (void)list_kinds(s, b, q);
    return memcmp(p, q, (size_t)n) < 0;
}

static void offer_step(struct path_search *s, int from, struct reshard_step *step)
{
    if (s->states[from].steps == RESHARD_STEPS_MAX)
        return;
    int at = 0;
    while (at < s->n && !spec_equal(&s->states[at].spec, &step->after))
        at++;
    if (at < s->n && (s->states[at].done || !is_better(s, from, step, at)))
        return;
    if (at == s->n) {
        s->states = arena_grow(s->arena, s->states, sizeof *s->states, s->n, &s->cap);
        s->n++;
    }
    s->states[at] = (struct search_state){.spec = step->after,
                                          .step = *step,
                                          .from = from,
                                          .steps = s->states[from].steps + 1,
                                          .bytes = s->states[from].bytes + step->bytes};
}

// ---- the steps that lead out of a state ----

static uint64_t count_local_bytes(const struct path_search *s, const struct spec *spec)
{
    struct shape local = spec_local(spec, s->mesh, s->shape);
    return (uint64_t)shape_count(&local) * s->elem;
}

static bool is_prefix(const struct dim_cut *a, const struct dim_cut *b)
{
    for (int i = 0; i < a->n; i++)
        if (i >= b->n || a->axis[i] != b->axis[i])
            return false;
    return true;
}

static void set_step_bytes(const struct path_search *s, const struct spec *now,
                           struct reshard_step *step)
{
    const struct spec *whole = step->kind == RESHARD_ALL_GATHER ? &step->after : now;
    step->bytes =
        reshard_ring_bytes(step->kind, count_local_bytes(s, whole), dim_parts(s->mesh, &step->cut));
}

// Axes that come next in the target's list of `dim`, one more at a time: sliced where the value is
// whole on them, scattered where it is a partial sum.
static void offer_additions(struct path_search *s, int at, int dim)
{
    for (int kind = RESHARD_SLICE; kind <= RESHARD_REDUCE_SCATTER; kind++) {
        struct spec now = s->states[at].spec;
        struct reshard_step step = {.kind = (enum reshard_kind)kind, .dim = dim, .after = now};
        if (!is_prefix(&now.dim[dim], &s->to->dim[dim]))
            return;
        for (int i = now.dim[dim].n; i < s->to->dim[dim].n; i++) {
            int axis = s->to->dim[dim].axis[i];
            axis_set bit = (axis_set)(1u << axis);
            bool ready = kind == RESHARD_SLICE ? !((spec_axes(&now) | spec_partial(&now)) & bit)
                                               : (now.partial_sum & bit) != 0;
            if (!ready)
                break;
            dim_append(&step.cut, axis);
            dim_append(&step.after.dim[dim], axis);
            step.after.partial_sum &= (axis_set)~bit;
            set_step_bytes(s, &now, &step);
            offer_step(s, at, &step);
        }
    }
}

// The `count` minor axes of `dim`, major first.
static struct dim_cut take_minor_axes(const struct dim_cut *c, int count)
{
    struct dim_cut out = {0};
    for (int i = c->n - count; i < c->n; i++)
        dim_append(&out, c->axis[i]);
    return out;
}

// Whether `cut` comes next, in order, in the target's list of dimension `d`.
static bool comes_next(const struct path_search *s, const struct spec *now, int d,
                       const struct dim_cut *cut)
{
    const struct dim_cut *have = &now->dim[d], *want = &s->to->dim[d];
    if (!is_prefix(have, want) || have->n + cut->n > want->n)
        return false;
    for (int i = 0; i < cut->n; i++)
        if (want->axis[have->n + i] != cut->axis[i])
            return false;
    return true;
}

static void offer_removals(struct path_search *s, int at, int dim)
{
    struct spec now = s->states[at].spec;
    if (is_prefix(&now.dim[dim], &s->to->dim[dim]))
        return;
    for (int count = 1; count <= now.dim[dim].n; count++) {
        struct reshard_step step = {.kind = RESHARD_ALL_GATHER,
                                    .dim = dim,
                                    .cut = take_minor_axes(&now.dim[dim], count),
                                    .after = now};
        step.after.dim[dim].n = (uint8_t)(now.dim[dim].n - count);
        memset(step.after.dim[dim].axis + step.after.dim[dim].n, 0, (size_t)count);
        set_step_bytes(s, &now, &step);
        offer_step(s, at, &step);
        struct spec taken = step.after;
        for (int d = 0; d < s->shape->n; d++) {
            if (d == dim || !comes_next(s, &now, d, &step.cut))
                continue;
            step.kind = RESHARD_ALL_TO_ALL;
            step.to = d;
            step.after = taken;
            for (int i = 0; i < step.cut.n; i++)
                dim_append(&step.after.dim[d], step.cut.axis[i]);
            set_step_bytes(s, &now, &step);
            offer_step(s, at, &step);
        }
    }
}

static void offer_reductions(struct path_search *s, int at)
{
    struct spec now = s->states[at].spec;
    axis_set open = spec_partial(&now) & (axis_set)~spec_partial(s->to);
    for (axis_set set = open; set; set = (axis_set)((set - 1) & open)) {
        struct reshard_step step = {.kind = RESHARD_ALL_REDUCE, .dim = -1, .after = now};
        if ((set & now.partial_sum) && (set & now.partial_max))
            continue; // one reduction is either a sum or a maximum
        for (int axis = 0; axis < s->mesh->n; axis++)
            if (set >> axis & 1)
                dim_append(&step.cut, axis);
        step.after.partial_sum &= (axis_set)~set;
        step.after.partial_max &= (axis_set)~set;
        set_step_bytes(s, &now, &step);
        offer_step(s, at, &step);
    }
}

// ---- the search ----

static int find_cheapest_open(const struct path_search *s)
{
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (!s->states[i].done && (best < 0 || comes_before(s, i, best)))
            best = i;
    return best;
}

int reshard_find(const struct mesh *m, const struct shape *shape, size_t elem_bytes,
                 const struct spec *from, const struct spec *to, struct arena *a,
                 struct reshard *out, struct err *e)
{
    struct path_search s = {.mesh = m, .shape = shape, .elem = elem_bytes, .to = to, .arena = a};
    int bad;
    *out = (struct reshard){0};
    PRE(!(spec_partial(to) & ~spec_partial(from)));
    if (!spec_divides(to, m, shape, &bad))
        return err_set(e, ERR_INVALID, "dimension %d of size %lld does not divide by %d", bad,
                       (long long)shape->dim[bad], dim_parts(m, &to->dim[bad]));
    s.states = arena_grow(a, s.states, sizeof *s.states, s.n, &s.cap);
    s.states[s.n++] = (struct search_state){.spec = *from, .from = -1};
    for (int at; (at = find_cheapest_open(&s)) >= 0;) {
        if (spec_equal(&s.states[at].spec, to)) {
            out->n = s.states[at].steps;
            out->bytes = s.states[at].bytes;
            for (int i = out->n; i > 0; at = s.states[at].from)
                out->step[--i] = s.states[at].step;
            return 0;
        }
        s.states[at].done = true;
        for (int d = 0; d < shape->n; d++) {
            offer_additions(&s, at, d);
            offer_removals(&s, at, d);
        }
        offer_reductions(&s, at);
    }
    return err_set(e, ERR_INTERNAL, "no way from one spec to the other");
}
