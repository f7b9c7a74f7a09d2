// SPDX-License-Identifier: Apache-2.0
// What the ranks of one attempt do with each other directly: collectives, and losing a peer.
#include "tests/sim/rank.h"

#include <string.h>

#include "common/base/err.h"
#include "tests/sim/sim_check.h"

struct sim_attempt *sim_attempt_join(struct rank *r)
{
    struct world *w = r->w;
    struct sim_attempt *c = w->attempts;
    while (c && (c->number != r->attempt || strcmp(c->job, r->job) != 0))
        c = c->next;
    if (!c) {
        c = arena_new(&w->sim.arena, struct sim_attempt);
        c->w = w;
        c->number = r->attempt;
        c->n = r->n;
        memcpy(c->job, r->job, sizeof c->job);
        c->next = w->attempts;
        w->attempts = c;
    }
    if (c->rank[r->rank])
        sim_fail(&w->sim, "rank %d of job %.8s attempt %d lived before and is spawned again",
                 r->rank, r->job, (int)r->attempt);
    c->rank[r->rank] = r;
    c->begun++;
    return c;
}

static void notices(void *arg, uint64_t tag)
{
    (void)tag;
    rank_lost_peer(arg);
}

static void soon_notices(struct rank *r)
{
    if (!r->peer_lost)
        proc_after(&r->proc, sim_between(&r->w->sim, 5 * MS, 600 * MS), notices, r, 0);
    r->peer_lost = true;
}

static bool in_collective(const struct rank *r)
{
    return r->entered > r->left;
}

// A rank that is through all its steps is missed by nobody.
void sim_attempt_gone(struct rank *r, bool done)
{
    for (int i = 0; i < r->shared->n && !done; i++) {
        struct rank *o = r->shared->rank[i];
        if (o && o != r && !o->proc.dead && in_collective(o))
            soon_notices(o);
    }
}

static void stepped(void *arg, uint64_t step)
{
    struct rank *r = arg;
    r->left = r->entered;
    rank_stepped(r, (int64_t)step);
}

void sim_attempt_arrives(struct rank *r, int64_t step, unsigned bits)
{
    struct sim_attempt *c = r->shared;
    struct sim *s = &r->w->sim;
    PRE(step <= MAX_STEPS);
    c->bits[step] |= bits;
    r->entered++;
    if (++c->arrived[step] == c->n) {
        int64_t ns = sim_between(s, 40 * MS, 400 * MS);
        for (int i = 0; i < c->n; i++)
            proc_after(&c->rank[i]->proc, ns + sim_between(s, 0, 2 * MS), stepped, c->rank[i],
                       (uint64_t)step);
        return;
    }
    for (int i = 0; i < c->n; i++)
        if (c->rank[i] && c->rank[i]->proc.dead)
            soon_notices(r);
}
