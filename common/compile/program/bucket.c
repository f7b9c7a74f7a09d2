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
    int nbuckets;
};

// The sum of a gradient, or of what it was rounded to. Of one in two steps only the first waits: its
// buffer can be in one bucket.
static bool may_wait(const struct graph *g, const struct node *n)
{
    if (n->kind != NODE_RESHARD || n->step.kind != RESHARD_ALL_REDUCE || n->when != LAST_MICROBATCH)
        return false;
    int made = g->values[n->in[0]].producer;
    return made < 0 || g->nodes[made].kind == NODE_OP;
}

static bool same_bucket(const struct graph *g, const struct node *a, const struct node *b)
{
    const struct value *x = &g->values[a->in[0]], *y = &g->values[b->in[0]];
    return a->chunk == b->chunk && a->stages == b->stages &&
           dim_equal(&a->step.cut, &b->step.cut) && x->dtype == y->dtype && x->kind == y->kind &&
           !x->spec.partial_max == !y->spec.partial_max;
}

// Closes the bucket in which a node is: all that wait in it come to stand here.
static void close_bucket(struct bucketing *b, const struct node *with)
{
    struct graph *g = b->g;
    int first = b->nmade, kept = 0;
    for (int i = 0; i < b->nwaiting; i++) {
        const struct node *n = &g->nodes[b->waiting[i]];
        if (!same_bucket(g, n, with)) {
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

static uint64_t count_waiting_bytes(const struct bucketing *b, const struct node *with)
{
    uint64_t bytes = 0;
    for (int i = 0; i < b->nwaiting; i++) {
        const struct node *n = &b->g->nodes[b->waiting[i]];
        const struct value *v = &b->g->values[n->in[0]];
        struct shape local = spec_local(&v->spec, b->mesh, &v->shape);
        if (same_bucket(b->g, n, with))
            bytes += (uint64_t)shape_count(&local) * dtype_size(v->dtype);
    }
    return bytes;
}

void bucket_nodes(struct graph *g, const struct mesh *m)
{
    struct arena scratch = {0};
    bool any = false;
    for (int i = 0; i < g->nnodes && g->bucket && !any; i++)
        any = may_wait(g, &g->nodes[i]);
    if (!any)
        return;
    struct bucketing b = {.g = g,
                          .mesh = m,
                          .made = arena_array(&scratch, struct node, g->nnodes),
                          .waiting = arena_array(&scratch, int, g->nnodes),
                          .waits = arena_array(&scratch, bool, g->nvalues)};
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        while (b.nwaiting && g->nodes[b.waiting[0]].phase != n->phase)
            close_bucket(&b, &g->nodes[b.waiting[0]]);
        close_buckets_read(&b, n);
        if (!may_wait(g, n)) {
            b.made[b.nmade++] = *n;
            continue;
        }
        b.waiting[b.nwaiting++] = i;
        b.waits[n->out[0]] = true;
        if (count_waiting_bytes(&b, n) >= (uint64_t)g->bucket)
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
