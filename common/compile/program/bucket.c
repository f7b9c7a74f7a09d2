// SPDX-License-Identifier: Apache-2.0
// Buckets. See bucket.h.
#include "common/compile/program/bucket.h"

#include <string.h>

struct bucketing {
    struct graph *g;
    const struct mesh *mesh;
    struct node *made; // the nodes in their new order
    int nmade;
    int *waiting, nwaiting; // nodes of open buckets, in the graph's order
    bool *waits;            // value → a node that waits makes it
    bool *summed;           // value → a SUM reads it
    int nbuckets;
};

// An all-reduce is the sum of a gradient, or of what it was rounded to. Of one in two steps only the
// first may be in a bucket: a buffer can be in one.
static bool may_be_in_bucket(const struct graph *g, const struct node *n)
{
    if (n->kind != NODE_RESHARD || n->step.kind == RESHARD_SLICE)
        return false;
    int made = g->values[n->in[0]].producer;
    return n->step.kind != RESHARD_ALL_REDUCE ||
           (n->when == LAST_MICROBATCH && (made < 0 || g->nodes[made].kind == NODE_OP));
}

// Whether what a node makes comes from a parameter alone, by casts and gathers.
static bool gathers_param(const struct graph *g, const struct node *n)
{
    while (node_casts_param(n) || (n->kind == NODE_RESHARD && n->step.kind == RESHARD_ALL_GATHER)) {
        const struct value *from = &g->values[n->in[0]];
        if (from->kind == VALUE_PARAM || from->kind == VALUE_COPY || from->producer < 0)
            return from->kind == VALUE_PARAM || from->kind == VALUE_COPY;
        n = &g->nodes[from->producer];
    }
    return false;
}

// How long a node may wait: until another passes that is not of its bucket, for the rest of its layer, for
// the rest of the phase.
enum patience { PATIENCE_NONE, PATIENCE_LAYER, PATIENCE_PHASE };

static enum patience find_patience(const struct bucketing *b, const struct node *n)
{
    bool scatters = n->step.kind == RESHARD_REDUCE_SCATTER;
    if (n->when == LAST_MICROBATCH || n->phase == PHASE_UPDATE)
        return PATIENCE_PHASE;
    return gathers_param(b->g, n) || (scatters && b->summed[n->out[0]]) ? PATIENCE_LAYER
                                                                        : PATIENCE_NONE;
}

static bool same_bucket(const struct bucketing *b, const struct node *n, const struct node *o)
{
    const struct value *x = &b->g->values[n->in[0]], *y = &b->g->values[o->in[0]];
    return n->step.kind == o->step.kind && n->when == o->when && n->chunk == o->chunk &&
           n->stages == o->stages && dim_equal(&n->step.cut, &o->step.cut) &&
           find_patience(b, n) == find_patience(b, o) &&
           (n->step.kind != RESHARD_ALL_REDUCE || (x->dtype == y->dtype && x->kind == y->kind &&
                                                   !x->spec.partial_max == !y->spec.partial_max));
}

// Whether a node that waits may do so while another passes.
static bool may_wait(const struct bucketing *b, const struct node *n, const struct node *passing)
{
    enum patience has = find_patience(b, n);
    if (n->phase != passing->phase)
        return false;
    if (has == PATIENCE_NONE)
        return may_be_in_bucket(b->g, passing) && same_bucket(b, n, passing);
    return has == PATIENCE_PHASE || n->scope == passing->scope;
}

// Closes the bucket in which a node is: all that wait in it come to stand here.
static void close_bucket(struct bucketing *b, const struct node *with)
{
    struct graph *g = b->g;
    int first = b->nmade, kept = 0;
    for (int i = 0; i < b->nwaiting; i++) {
        const struct node *n = &g->nodes[b->waiting[i]];
        if (!same_bucket(b, n, with)) {
            b->waiting[kept++] = b->waiting[i];
            continue;
        }
        b->waits[n->out[0]] = false;
        b->made[b->nmade++] = *n;
    }
    b->nwaiting = kept;
    b->nbuckets++;
    for (int i = first; i < b->nmade && b->nmade > first + 1; i++)
        b->made[i].bucket = b->nbuckets;
}

static void close_buckets_read(struct bucketing *b, const struct node *by)
{
    for (int k = 0; k < by->nin; k++)
        if (b->waits[by->in[k]])
            close_bucket(b, &b->g->nodes[b->g->values[by->in[k]].producer]);
}

static void close_buckets_passed(struct bucketing *b, const struct node *by)
{
    for (int i = 0; i < b->nwaiting; i++) {
        const struct node *n = &b->g->nodes[b->waiting[i]];
        if (may_wait(b, n, by))
            continue;
        close_bucket(b, n);
        i = -1;
    }
}

// Whether the bucket in which a node is has bytes enough: of its tensors as they are whole in the group.
static bool is_full(const struct bucketing *b, const struct node *with)
{
    uint64_t bytes = 0;
    int n = 0;
    for (int i = 0; i < b->nwaiting; i++) {
        const struct node *one = &b->g->nodes[b->waiting[i]];
        bool gathers = one->step.kind == RESHARD_ALL_GATHER;
        const struct value *v = &b->g->values[gathers ? one->out[0] : one->in[0]];
        if (!same_bucket(b, one, with))
            continue;
        struct shape local = spec_local(&v->spec, b->mesh, &v->shape);
        bytes += (uint64_t)shape_count(&local) * dtype_size(v->dtype);
        n++;
    }
    return bytes >= (uint64_t)b->g->bucket ||
           (n == GROUP_MOST && with->step.kind != RESHARD_ALL_REDUCE);
}

void bucket_nodes(struct graph *g, const struct mesh *m)
{
    struct arena scratch = {0};
    bool any = false;
    for (int i = 0; i < g->nnodes && g->bucket && !any; i++)
        any = may_be_in_bucket(g, &g->nodes[i]);
    if (!any)
        return;
    struct bucketing b = {.g = g,
                          .mesh = m,
                          .made = arena_array(&scratch, struct node, g->nnodes),
                          .waiting = arena_array(&scratch, int, g->nnodes),
                          .waits = arena_array(&scratch, bool, g->nvalues),
                          .summed = arena_array(&scratch, bool, g->nvalues)};
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_SUM)
            b.summed[g->nodes[i].in[0]] = true;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        close_buckets_passed(&b, n);
        close_buckets_read(&b, n);
        if (!may_be_in_bucket(g, n)) {
            b.made[b.nmade++] = *n;
            continue;
        }
        b.waiting[b.nwaiting++] = i;
        b.waits[n->out[0]] = true;
        if (is_full(&b, n))
            close_bucket(&b, n);
    }
    while (b.nwaiting)
        close_bucket(&b, &g->nodes[b.waiting[0]]);
    memcpy(g->nodes, b.made, sizeof *b.made * (size_t)b.nmade);
    for (int i = 0; i < b.nmade; i++)
        for (int k = 0; k < g->nodes[i].nout; k++)
            g->values[g->nodes[i].out[k]].producer = i;
    arena_clear(&scratch);
}
