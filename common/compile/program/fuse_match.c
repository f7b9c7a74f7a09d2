// SPDX-License-Identifier: Apache-2.0
// What a fusion asks of the graph, and how it puts one node in the place of two. See fuse_match.h.
#include "common/compile/program/fuse_match.h"

int fuse_find_present(const struct fuse *f, int node)
{
    while (f->into[node] != node)
        node = f->into[node];
    return node;
}

// Parameters and their copies are changed in the update, long after what forward and backward read
// of them.
static bool touches_pinned(const struct fuse *f, const struct node *n)
{
    for (int k = 0; k < n->nin; k++) {
        enum value_kind kind = f->g->values[n->in[k]].kind;
        bool param = kind == VALUE_PARAM || kind == VALUE_COPY;
        if (f->pinned[n->in[k]] && (!param || n->phase == PHASE_UPDATE))
            return true;
    }
    for (int k = 0; k < n->nout; k++)
        if (f->pinned[n->out[k]] || f->g->values[n->out[k]].alias >= 0)
            return true;
    return false;
}

static bool can_fuse(const struct fuse *f, const struct node *n)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = get_operand(f->g, n, k);
        if (!f->dtypes[v->dtype] || spec_partial(&v->spec))
            return false;
    }
    return n->kind == NODE_OP && !n->owner && n->nout && !touches_pinned(f, n);
}

static bool run_together(const struct node *a, const struct node *b)
{
    return a->when == b->when && a->stage == b->stage && a->stages == b->stages &&
           a->again == b->again;
}

static bool run_alike(const struct fuse *f, const struct node *a, const struct node *b)
{
    return run_together(a, b) && can_fuse(f, a) && can_fuse(f, b);
}

bool fuse_beside(const struct fuse *f, int a, int b)
{
    const struct node *x = &f->g->nodes[a], *y = &f->g->nodes[b];
    return x->phase == y->phase && run_alike(f, x, y);
}

bool fuse_across(const struct fuse *f, int a, int b)
{
    const struct node *x = &f->g->nodes[a], *y = &f->g->nodes[b];
    return x->phase == PHASE_FORWARD && y->phase == PHASE_BACKWARD && run_alike(f, x, y);
}

// Whether a node makes one f32 value, which may be a part of a sum over devices or microbatches but
// is not one of several contributions.
static bool makes_sum(const struct fuse *f, const struct node *n)
{
    if (n->kind != NODE_OP || n->owner || n->nout != 1)
        return false;
    const struct value *made = &f->g->values[n->out[0]];
    return made->kind == VALUE_TEMP && made->alias < 0 && made->dtype == DT_F32 &&
           f->shares[n->out[0]] <= 1;
}

bool fuse_takes_sum(const struct fuse *f, int node, int sum)
{
    const struct node *x = &f->g->nodes[node], *y = &f->g->nodes[sum];
    return x->phase == y->phase && run_together(x, y) && can_fuse(f, x) && makes_sum(f, y);
}

bool fuse_sums_beside(const struct fuse *f, int product, int sum)
{
    const struct node *x = &f->g->nodes[product], *y = &f->g->nodes[sum];
    if (x->phase != y->phase || x->scope != y->scope || !run_together(x, y) || !makes_sum(f, x) ||
        !makes_sum(f, y) || f->shares[x->out[0]] != f->shares[y->out[0]])
        return false;
    for (int k = 0; k < x->nin; k++) {
        const struct value *v = &f->g->values[x->in[k]];
        if (!f->dtypes[v->dtype] || spec_partial(&v->spec) || f->pinned[x->in[k]])
            return false;
    }
    return true;
}

int fuse_near(const struct fuse *f, int node, int k)
{
    int by = f->g->values[f->g->nodes[node].in[k]].producer;
    return by >= 0 && by < node && fuse_beside(f, by, node) ? by : -1;
}

int fuse_producer(const struct fuse *f, int node, int k)
{
    int by = fuse_near(f, node, k);
    return by >= 0 && f->g->nodes[by].scope == f->g->nodes[node].scope ? by : -1;
}

bool fuse_adds_alike(const struct graph *g, const struct node *n)
{
    bool alike = n->kind == NODE_OP && n->op == OP_ADD && operand_same_loops(n, 0, 2) &&
                 operand_same_loops(n, 1, 2);
    const struct value *out = alike ? &g->values[n->out[0]] : NULL;
    for (int k = 0; k < 2 && alike; k++) {
        const struct value *in = &g->values[n->in[k]];
        alike = in->dtype == out->dtype && shape_equal(&in->shape, &out->shape) &&
                spec_equal(&in->spec, &out->spec);
    }
    return alike;
}

bool fuse_read_by_others(const struct fuse *f, int value, int a, int b)
{
    bool kept = f->named[value];
    for (int r = f->first[value]; r < f->first[value + 1] && !kept; r++) {
        int reader = fuse_find_present(f, f->readers[r]);
        kept = reader != a && reader != b;
    }
    return kept;
}

// The stages that have a value, made by node `by`, when node a runs: its own, and those that it was
// sent to before.
static uint64_t find_stages(const struct fuse *f, int value, int by, int a)
{
    uint64_t stages = f->g->nodes[by].stages;
    for (int r = f->first[value]; r < f->first[value + 1] && f->readers[r] < a; r++) {
        const struct node *n = &f->g->nodes[f->readers[r]];
        if (n->kind == NODE_SEND)
            stages |= (uint64_t)1 << n->peer;
    }
    return stages;
}

bool fuse_ready_at(const struct fuse *f, int node, int a)
{
    const struct node *b = &f->g->nodes[node];
    for (int k = 0; k < b->nin; k++) {
        int by = f->g->values[b->in[k]].producer;
        if (by > a || (by >= 0 && (b->stages & ~find_stages(f, b->in[k], by, a))))
            return false;
    }
    return true;
}

// Whether nobody between the two reads what a makes; a itself may, having been several nodes.
static bool unread_until(const struct fuse *f, int a, int b)
{
    const struct node *n = &f->g->nodes[a];
    for (int k = 0; k < n->nout; k++)
        for (int r = f->first[n->out[k]]; r < f->first[n->out[k] + 1]; r++) {
            int reader = fuse_find_present(f, f->readers[r]);
            if (reader < b && reader != a)
                return false;
        }
    return true;
}

int fuse_place(const struct fuse *f, int a, int b)
{
    if (unread_until(f, a, b))
        return b;
    return fuse_ready_at(f, b, a) ? a : -1;
}

void fuse_put(struct fuse *f, int a, int b, int place, const struct node *made)
{
    struct graph *g = f->g;
    struct node fused = *made;
    for (int k = 0; k < g->nodes[a].nout; k++)
        g->values[g->nodes[a].out[k]].producer = -1;
    for (int k = 0; k < g->nodes[b].nout; k++)
        g->values[g->nodes[b].out[k]].producer = -1;
    for (int k = 0; k < fused.nout; k++)
        g->values[fused.out[k]].producer = place;
    f->into[place == a ? b : a] = place;
    g->nodes[place] = fused;
}
