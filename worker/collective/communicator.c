// SPDX-License-Identifier: Apache-2.0
// Communicators: their making and their end. A communicator is known to its members by a key made
// of its name, its ranks and how many alike came before, so ranks that are in different ones may
// number them differently; making one waits for nobody, the first operation finds the peers'
// halves. Slots are not used twice, so a peer that is behind can never read a successor's notes.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/heap.h"
#include "worker/collective/world.h"

// ---- life ----
static uint64_t make_key(const char *name, const int *ranks, int n, int before)
{
    struct sha256 s;
    uint64_t key;
    unsigned char digest[32];
    sha256_init(&s);
    sha256_update(&s, name, strlen(name) + 1);
    sha256_update(&s, &before, sizeof before);
    sha256_update(&s, ranks, (size_t)n * sizeof *ranks);
    sha256_final(&s, digest);
    memcpy(&key, digest, sizeof key);
    return key ? key : 1;
}

static uint64_t find_free_key(const struct world *w, const char *name, const int *ranks, int n)
{
    for (int before = 0;; before++) {
        uint64_t key = make_key(name, ranks, n, before);
        int i = 0;
        while (i < w->ncommunicators && w->communicators[i]->key != key)
            i++;
        if (i == w->ncommunicators)
            return key;
    }
}

static int check_ranks(const struct world *w, const int *ranks, int n, int *me, struct err *e)
{
    *me = -1;
    if (n < 1 || n > w->ranks)
        return err_set(e, ERR_INVALID, "it has %d ranks, the world has %d", n, w->ranks);
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= w->ranks)
            return err_set(e, ERR_INVALID, "rank %d is in it, the world has %d ranks", ranks[i],
                           w->ranks);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return err_set(e, ERR_INVALID, "rank %d is in it twice", ranks[i]);
        if (ranks[i] == w->rank)
            *me = i;
    }
    return *me >= 0 ? 0 : err_set(e, ERR_INVALID, "rank %d is not in it, but opens it", w->rank);
}

void communicator_delete(struct communicator *c)
{
    if (!c)
        return;
    free(c->members);
    free(c->slots);
    free(c->counters);
    free(c->stage);
    free(c->src);
    free(c->dst);
    free(c);
}

enum { COUNTERS = 5 }; // arrays of an op

static void alloc_arrays(struct communicator *c)
{
    size_t n = (size_t)c->n;
    c->members = heap_alloc(sizeof(struct peer *) * n);
    c->slots = heap_alloc(sizeof *c->slots * n);
    c->src = heap_alloc(sizeof(void *) * n);
    c->dst = heap_alloc(sizeof(void *) * n);
    c->counters = heap_alloc(sizeof *c->counters * n * COUNTERS * COLLECTIVES_OPEN);
    uint64_t *at = c->counters;
    for (int i = 0; i < COLLECTIVES_OPEN; i++) {
        struct operation *o = &c->ops[i];
        uint64_t **arrays[COUNTERS] = {&o->sent[0], &o->sent[1], &o->got[0], &o->got[1],
                                       &o->allowed};
        for (int k = 0; k < COUNTERS; k++, at += n)
            *arrays[k] = at;
    }
}

static bool fill_members(struct communicator *c, const int *ranks)
{
    struct world *w = c->w;
    for (int i = 0; i < c->n; i++) {
        c->members[i] = &w->peers[ranks[i]];
        c->slots[i] = i == c->me ? c->slot : -1;
        c->remote |= !c->members[i]->local;
    }
    if (c->remote)
        c->stage = aligned_alloc(64, (size_t)c->n * STAGE); // touched only where a peer is remote
    return !c->remote || c->stage;
}

int communicator_new(struct world *w, const char *name, const int *ranks, int n,
                     struct communicator **out, struct err *e)
{
    int me, rc = world_look(w, e);
    *out = NULL;
    if (!rc)
        rc = check_ranks(w, ranks, n, &me, e);
    if (!rc && w->ncommunicators == WORLD_COMMUNICATORS)
        rc = err_set(e, ERR_LIMIT, "a world has at most %d communicators", WORLD_COMMUNICATORS);
    if (rc) {
        if (e)
            err_wrap(e, "communicator '%s'", name);
        return rc;
    }
    struct communicator *c = heap_alloc(sizeof *c);
    c->w = w;
    c->n = n;
    c->me = me;
    c->slot = w->ncommunicators;
    snprintf(c->name, sizeof c->name, "%s", name);
    alloc_arrays(c);
    if (!fill_members(c, ranks)) {
        communicator_delete(c);
        return err_set(e, ERR_NOMEM, "no memory for communicator '%s'", name);
    }
    c->key = find_free_key(w, name, ranks, n);
    world_lock(w);
    w->communicators[w->ncommunicators++] = c;
    atomic_store_explicit(&w->page->communicators[c->slot].key, c->key, memory_order_release);
    for (int i = 0; i < n; i++)
        if (c->members[i]->link)
            tcp_send_key(c->members[i], c->slot, c->key);
    world_unlock(w);
    *out = c;
    return 0;
}

void communicator_free(struct communicator *c)
{
    if (!c)
        return;
    world_lock(c->w);
    PRE(c->started == c->completed || world_look(c->w, NULL)); // broken or aborted
    c->freed = true; // the world deletes it: a peer may still look for its key
    free(c->stage);
    c->stage = NULL;
    world_unlock(c->w);
}

int communicator_size(const struct communicator *c)
{
    return c->n;
}

int communicator_coordinate(const struct communicator *c)
{
    return c->me;
}
