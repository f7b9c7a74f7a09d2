// SPDX-License-Identifier: Apache-2.0
// Functions of a mixture of experts: who chooses whom, who gets a place, there and back. See
// functions.h; what the ops mean is in compile/graph/experts.h.
#include "common/compile/graph/build.h"
#include "common/compile/graph/experts.h"
#include "common/model/functions.h"
#include "common/model/model_inputs.h"
#include "common/model/parameter.h"

static bool is_router_like(struct builder *b, int x)
{
    const struct value *v = &b->g->values[x];
    bool fine = !b->failed && v->dtype == DT_F32 && v->shape.n == 3 && v->dims[0] == DIM_BATCH &&
                v->dims[1] == DIM_SEQ && v->dims[2] == DIM_ROUTER;
    if (!b->failed && !fine)
        build_fail(b,
                   "scores have %s: try [batch, seq, router] in f32, as of linear(f32(x), "
                   "router[embed, router = experts])",
                   dims_of(b, x));
    else if (fine && v->limit[2])
        build_fail(b, "scores of a size that is `padded`: a router has one for each expert");
    return !b->failed;
}

// The bias that follows the experts' loads; −1: none is asked for.
static int find_bias(struct builder *b, const struct term *arg, int64_t experts)
{
    const struct dimension along = {.dim = DIM_ROUTER, .extent = experts};
    const int turn = b->turn;
    if (arg->kind == TERM_NOTHING)
        return -1;
    b->turn = 0; // top and slots name one bias: that it is read twice is meant
    int bias = param_make(b, arg->param->path, "", 1, &along, INIT_ZERO, 0);
    b->turn = turn;
    return bias;
}

struct term call_top(struct builder *b, const struct term *arg)
{
    int s = as_value(b, arg[0]), ids, by = -1;
    if (!is_router_like(b, s))
        return (struct term){0};
    int64_t experts = b->g->values[s].shape.dim[2];
    int bias = find_bias(b, &arg[2], experts);
    if (b->failed)
        return (struct term){0};
    build_at_like(b, s);
    if (bias >= 0)
        by = add(b->g, s, bias);
    struct term w = term_value(experts_top(b->g, s, by, (int64_t)arg[1].number.value, &ids));
    w.nvalues = 2;
    return w;
}

// The scores that a node of `top` has chosen by, as each token's shares, whose sum is 1. Scores
// that may be below 0 have their softmax's.
static int make_shares(struct graph *g, int ids)
{
    int s = g->nodes[g->values[ids].producer].in[0], by = g->values[s].producer;
    enum op made_by = by < 0 || g->nodes[by].kind != NODE_OP ? OP_ADD : g->nodes[by].op;
    if (made_by == OP_SOFTMAX)
        return s;
    if (made_by != OP_SIGMOID && made_by != OP_SOFTPLUS && made_by != OP_EXP)
        return apply(g, OP_SOFTMAX, s);
    const enum dim token[] = {DIM_BATCH, DIM_SEQ};
    int total = sum(g, s, 2, token, 1, DT_NONE);
    return graph_like(g, OP_DIV, 2, (int[]){s, total}, s);
}

// A layer's −Σ p ln p, the mean over the step's tokens, of shares p: 0 for a router that is sure, ln n
// for one that does not tell n experts apart. A share of 0 adds 0.
static int make_entropy(struct graph *g, int shares, double tokens)
{
    graph_at(g, POINT_NONE);
    int least = scale(g, graph_one(g), 1e-30f);
    graph_at(g, POINT_SEQ);
    int bits = mul(g, shares, apply(g, OP_LOG, add(g, shares, least)));
    graph_at(g, POINT_NONE);
    return sum(g, bits, 0, NULL, (float)(-1 / tokens), DT_NONE);
}

// What every layer of experts reports: how often each was chosen, the share of choices that found no
// place, and of the router n · Σ over n experts of (share of choices · mean share of scores), a mean
// over groups, which is 1 where experts are chosen alike and up to n, and its entropy. Returns the
// part of the first.
static int report_loads(struct builder *b, const struct experts_dealing *how, int ids, int chosen)
{
    struct graph *g = b->g;
    const enum dim router = DIM_ROUTER;
    if (ends_at_logits(b) || g->failed)
        return 0;
    double choices = (double)g->values[ids].shape.dim[2], seq = (double)g->values[ids].shape.dim[1];
    double tokens = (double)b->run.step_batch * seq;
    graph_at(g, POINT_NONE);
    int load = sum(g, chosen, 1, &router, 1 / (float)how->group, DT_NONE);
    int part = graph_report(g, "expert_tokens", load);
    graph_at(g, POINT_SEQ);
    int places = spread(g, graph_one(g), chosen, (float)how->capacity, DT_F32);
    int over = apply(g, OP_RELU, sub(g, chosen, places));
    graph_at(g, POINT_NONE);
    double all = tokens * choices * (double)how->group;
    graph_report(g, "expert_dropped", sum(g, over, 0, NULL, (float)(1 / all), DT_NONE));
    graph_at(g, POINT_SEQ);
    int shares = make_shares(g, ids), both = mul(g, shares, chosen);
    graph_at(g, POINT_NONE);
    double by = (double)how->experts / (choices * tokens * seq * (double)how->group);
    graph_report(g, "expert_balance", sum(g, both, 0, NULL, (float)by, DT_NONE));
    graph_report(g, "router_entropy", make_entropy(g, shares, tokens));
    return part;
}

// Whether a value has one number for each choice of a token, as `of` has.
static bool has_choices(const struct builder *b, int x, int of)
{
    const struct value *v = &b->g->values[x], *s = &b->g->values[of];
    bool like = v->dtype == DT_F32 && v->shape.n == s->shape.n;
    for (int d = 0; like && d < s->shape.n; d++)
        like = v->dims[d] == s->dims[d] && v->shape.dim[d] == s->shape.dim[d];
    return like;
}

struct term call_slots(struct builder *b, const struct term *arg)
{
    enum { IDS, WEIGHTS, EXPERTS, CAPACITY, GROUP, BIAS, RATE };
    int ids = as_value(b, arg[IDS]), w = as_value(b, arg[WEIGHTS]), at = input_positions(b), chosen;
    if (b->failed)
        return (struct term){0};
    const struct value v = b->g->values[ids];
    bool chosen_by_top = v.producer >= 0 && b->g->nodes[v.producer].op == OP_TOPK;
    if (!chosen_by_top || v.dtype != DT_I32 || v.shape.n != 3 || v.dims[2] != DIM_CHOICE)
        return build_fail(b, "slots deals what top chose: w, id = top(scores, choices)");
    if (!has_choices(b, w, ids))
        return build_fail(b,
                          "tokens come to their experts by %s: try what top gave, w of w, id = "
                          "top(scores, choices): [batch, seq, choice] in f32",
                          dims_of(b, w));
    int scores = b->g->nodes[v.producer].in[0];
    int64_t router = b->g->values[scores].shape.dim[2];
    if (router != (int64_t)arg[EXPERTS].number.value)
        return build_fail(b, "top chose among %lld experts, the router of %s, and slots has %g",
                          (long long)router, dims_of(b, scores), arg[EXPERTS].number.value);
    bool training = b->run.kind == PROGRAM_TRAIN;
    struct experts_dealing how = {
        .group = training && arg[GROUP].kind != TERM_NOTHING ? (int64_t)arg[GROUP].number.value : 1,
        .experts = (int64_t)arg[EXPERTS].number.value,
        .dim = DIM_ROUTER};
    how.capacity = experts_capacity(how.group * v.shape.dim[1], how.experts,
                                    training ? arg[CAPACITY].number.value : 0);
    build_at_like(b, ids);
    struct term slot = term_value(experts_slots(b->g, &how, ids, w, at, &chosen));
    slot.nvalues = 2;
    build_check(b);
    if (b->failed)
        return (struct term){0};
    int part = report_loads(b, &how, ids, chosen);
    int bias = find_bias(b, &arg[BIAS], how.experts);
    if (!b->failed && bias >= 0 && training)
        graph_balance(b->g, bias, part,
                      arg[RATE].kind == TERM_NOTHING ? 0.001f : (float)arg[RATE].number.value);
    return slot;
}

// Slots are what `slots` made: they know how they were dealt.
static bool is_dealt(struct builder *b, int slot)
{
    int made_by = b->failed ? -1 : b->g->values[slot].producer;
    bool fine = made_by >= 0 && b->g->nodes[made_by].op == OP_SLOTS;
    if (!b->failed && !fine)
        build_fail(b,
                   "places are what slots gives: slot, chosen = slots(id, w, experts, capacity)");
    return fine;
}

struct term call_dispatch(struct builder *b, const struct term *arg)
{
    int x = as_value(b, arg[0]), slot = as_value(b, arg[1]);
    if (!is_dealt(b, slot))
        return (struct term){0};
    const struct value *v = &b->g->values[x], *s = &b->g->values[slot];
    if (v->shape.n != 3 || v->dims[0] != s->dims[0] || v->dims[1] != s->dims[1])
        return build_fail(b, "%s are dispatched: try [batch, seq, embed]", dims_of(b, x));
    const enum dim dims[] = {DIM_GROUP, DIM_EXPERT, DIM_CAPACITY};
    build_at(b, 3, dims);
    return term_value(experts_dispatch(b->g, x, slot));
}

struct term call_combine(struct builder *b, const struct term *arg)
{
    int y = as_value(b, arg[0]), slot = as_value(b, arg[1]), w = as_value(b, arg[2]);
    if (!is_dealt(b, slot))
        return (struct term){0};
    const struct value v = b->g->values[y];
    const struct op_slots *s = &b->g->nodes[b->g->values[slot].producer].attr.slots;
    if (v.shape.n != 4 || v.dims[0] != DIM_GROUP || v.dims[1] != DIM_EXPERT ||
        v.dims[2] != DIM_CAPACITY || v.shape.dim[1] != s->experts || v.shape.dim[2] != s->capacity)
        return build_fail(b, "%s are combined: try [group, expert, capacity, embed]",
                          dims_of(b, y));
    if (!has_choices(b, w, slot))
        return build_fail(b,
                          "a token's rows are weighted by %s: try what top gave, w of w, id = "
                          "top(scores, choices): [batch, seq, choice] in f32",
                          dims_of(b, w));
    const enum dim dims[] = {DIM_BATCH, DIM_SEQ, v.dims[3]};
    build_at(b, 3, dims);
    return term_value(experts_combine(b->g, y, slot, w));
}
