// SPDX-License-Identifier: Apache-2.0
// Communicators: who is in one, what its members announced, and who is missing. A communicator is
// known to its members by a key made of its name, its ranks and how many alike came before, so
// ranks that are in different ones may number them differently; making one waits for nobody, the
// first operation finds the peers' halves. Slots are not used twice, so a peer that is behind can
// never read a successor's notes.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/collective/sum_tree.h"
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
        return err_set(e, ERR_INVALID, "%d ranks in a world of %d", n, w->ranks);
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= w->ranks)
            return err_set(e, ERR_INVALID, "there is no rank %d", ranks[i]);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return err_set(e, ERR_INVALID, "rank %d is in it twice", ranks[i]);
        if (ranks[i] == w->rank)
            *me = i;
    }
    return *me >= 0 ? 0 : err_set(e, ERR_INVALID, "rank %d is not in it", w->rank);
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

static bool alloc_arrays(struct communicator *c)
{
    size_t n = (size_t)c->n;
    c->members = calloc(n, sizeof(struct peer *));
    c->slots = calloc(n, sizeof *c->slots);
    c->src = calloc(n, sizeof(void *));
    c->dst = calloc(n, sizeof(void *));
    c->counters = calloc(n * COUNTERS * COLLECTIVES_OPEN, sizeof *c->counters);
    if (!c->members || !c->slots || !c->src || !c->dst || !c->counters)
        return false;
    uint64_t *at = c->counters;
    for (int i = 0; i < COLLECTIVES_OPEN; i++) {
        struct operation *o = &c->ops[i];
        uint64_t **arrays[COUNTERS] = {&o->sent[0], &o->sent[1], &o->got[0], &o->got[1],
                                       &o->allowed};
        for (int k = 0; k < COUNTERS; k++, at += n)
            *arrays[k] = at;
    }
    return true;
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
    if (!rc && w->ncommunicators == COMMUNICATORS)
        rc = err_set(e, ERR_LIMIT, "a world has at most %d communicators", COMMUNICATORS);
    if (rc) {
        if (e)
            err_wrap(e, "communicator '%s'", name);
        return rc;
    }
    struct communicator *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for communicator '%s'", name);
    c->w = w;
    c->n = n;
    c->me = me;
    c->slot = w->ncommunicators;
    snprintf(c->name, sizeof c->name, "%s", name);
    if (!alloc_arrays(c) || !fill_members(c, ranks)) {
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

// ---- the last entered one ----
void peer_page_enter(struct world *w, uint64_t number, const char *name, uint32_t hash)
{
    char text[TEXT] = "";
    if (name)
        strncpy(text, name, TEXT - 1);
    for (int i = 0; i < TEXT / 8; i++) {
        uint64_t part;
        memcpy(&part, text + 8 * i, 8);
        atomic_store_explicit(&w->page->text[i], part, memory_order_relaxed);
    }
    atomic_store_explicit(&w->page->entered, number, memory_order_relaxed);
    struct progress_page *p = w->progress;
    if (!p)
        return;
    memcpy(p->coll_text, text, TEXT);
    atomic_store_explicit(&p->coll_name, hash, memory_order_relaxed);
    atomic_store_explicit(&p->coll_entered, number, memory_order_relaxed);
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
}

size_t peer_page_text(const struct peer_page *p, char out[TEXT])
{
    for (int i = 0; i < TEXT / 8; i++) {
        uint64_t part = atomic_load_explicit(&p->text[i], memory_order_relaxed);
        memcpy(out + 8 * i, &part, 8);
    }
    out[TEXT - 1] = 0;
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    return strlen(out);
}

// ---- what an operation's members announced ----
enum collective_op collective_counterpart(enum collective_op op)
{
    return op == COLLECTIVE_SEND ? COLLECTIVE_RECV : op == COLLECTIVE_RECV ? COLLECTIVE_SEND : op;
}

// The member that alone has something to give, −1: all have.
static int find_source(const struct communicator *c, const struct operation *o)
{
    if (o->args.op == COLLECTIVE_BROADCAST)
        return o->args.root;
    return o->args.op == COLLECTIVE_SEND ? c->me : o->args.op == COLLECTIVE_RECV ? 1 - c->me : -1;
}

struct span operation_slice(const struct communicator *c, const struct operation *o, int member)
{
    int source = find_source(c, o);
    if (source >= 0)
        return (struct span){0, member == source ? o->bytes : 0};
    int64_t lo = member * o->per, hi = lo + o->per;
    if (lo > o->args.count)
        lo = o->args.count;
    if (hi > o->args.count)
        hi = o->args.count;
    return (struct span){(size_t)lo * o->esize, (size_t)(hi - lo) * o->esize};
}

static bool find_slot(struct communicator *c, int member)
{
    const struct peer_page *p = c->members[member]->page;
    // All of them: of a remote peer we see only those that we are in.
    for (int i = 0; i < COMMUNICATORS; i++)
        if (atomic_load_explicit(&p->communicators[i].key, memory_order_acquire) == c->key) {
            c->slots[member] = i;
            return true;
        }
    return false;
}

struct note *operation_note(const struct communicator *c, const struct operation *o, int member)
{
    int slot = c->slots[member];
    return slot < 0 ? NULL : &c->members[member]->page->communicators[slot].notes[o->seq % NOTES];
}

bool operation_is_announced(struct communicator *c, struct operation *o, int member)
{
    if (c->slots[member] < 0 && !find_slot(c, member))
        return false;
    const struct note *n = operation_note(c, o, member);
    return atomic_load_explicit(&n->seq, memory_order_acquire) == o->seq;
}

static bool is_same(const struct communicator *c, const struct operation *o, int member)
{
    const struct note *n = operation_note(c, o, member), *mine = operation_note(c, o, c->me);
    const struct peer *p = c->members[member];
    return n->op == collective_counterpart((enum collective_op)mine->op) &&
           n->dtype == mine->dtype && n->count == mine->count && n->root == mine->root &&
           n->name == mine->name && n->inlined == mine->inlined &&
           (o->inlined || !p->local ||
            (n->offset <= p->window_size && o->bytes <= p->window_size - n->offset));
}

static void report_difference(struct communicator *c, const struct operation *o, int member)
{
    const struct note *n = operation_note(c, o, member);
    const struct peer *p = c->members[member];
    char text[TEXT], theirs[TEXT + 24] = "another name";
    struct err e;
    if (atomic_load(&p->page->entered) == n->number && peer_page_text(p->page, text))
        snprintf(theirs, sizeof theirs, "%s", text);
    err_set(&e, ERR_INTERNAL,
            "ranks disagree in communicator '%s': rank %d entered %s #%" PRIu64 " (%s) of %lld "
            "elements, rank %d entered %s #%" PRIu64 " (%s) of %lld",
            c->name, c->w->rank, collective_op_name(o->args.op), o->number,
            o->args.name ? o->args.name : "", (long long)o->args.count, p->rank,
            n->op <= COLLECTIVE_BARRIER ? collective_op_name((enum collective_op)n->op) : "?",
            n->number, theirs, (long long)n->count);
    world_break(c->w, &e);
}

bool operation_agrees(struct communicator *c, struct operation *o)
{
    for (; o->seen < c->n; o->seen++) {
        if (o->seen == c->me)
            continue;
        if (!operation_is_announced(c, o, o->seen))
            return false;
        if (!is_same(c, o, o->seen)) {
            report_difference(c, o, o->seen);
            return false;
        }
    }
    return o->agreed = true;
}

// ---- who is missing ----
bool operation_owes(struct communicator *c, struct operation *o, int member)
{
    const struct operation_kind *k = &operation_kinds[o->args.op];
    const struct peer *p = c->members[member];
    if (member == c->me)
        return false;
    if (!operation_is_announced(c, o, member))
        return true;
    if (o->inlined)
        return !p->local && !tcp_is_flushed(p);
    if (p->local) // what a sender has left to do is to learn of it
        return o->args.op != COLLECTIVE_RECV &&
               atomic_load_explicit(&p->page->communicators[c->slots[member]].done,
                                    memory_order_acquire) < o->seq;
    size_t mine = operation_slice(c, o, c->me).len, its = operation_slice(c, o, member).len;
    return (k->scatter && (o->got[0][member] < mine || o->sent[0][member] < its)) ||
           (k->gather && (o->got[1][member] < its || o->sent[1][member] < mine)) ||
           !tcp_is_flushed(p);
}

static void name_missing(char *out, size_t size, const struct peer *p, const char *verb)
{
    char text[TEXT];
    size_t len = strlen(out);
    uint64_t entered = atomic_load(&p->page->entered);
    if (!entered)
        snprintf(out + len, size - len, "%srank %d has not %s it; it has entered none",
                 len ? ", " : "", p->rank, verb);
    else {
        peer_page_text(p->page, text);
        snprintf(out + len, size - len,
                 "%srank %d has not %s it; it last entered #%" PRIu64 " (%s)", len ? ", " : "",
                 p->rank, verb, entered, text);
    }
}

int operation_late(struct communicator *c, struct operation *o, struct err *e)
{
    char who[600] = "";
    for (int i = 0; i < c->n; i++)
        if (i != c->me && !operation_is_announced(c, o, i))
            name_missing(who, sizeof who, c->members[i], "entered");
    for (int i = 0; i < c->n && o->agreed; i++)
        if (operation_owes(c, o, i))
            name_missing(who, sizeof who, c->members[i], "finished");
    return err_set(e, ERR_TIMEOUT, "%s #%" PRIu64 " (%s) in '%s' took over %.3g s: %s",
                   collective_op_name(o->args.op), o->number, o->args.name ? o->args.name : "",
                   c->name, (double)c->w->deadline_ns / 1e9, who);
}

struct awaited {
    const struct peer *peer;
    uint64_t entered, got;
};

// Of those that owe something the others wait for the one that entered least; among equals for
// whom least came from (another host's: what a rank of this host finished is seen elsewhere).
static bool comes_before(const struct awaited *a, const struct awaited *b)
{
    if (!b->peer || a->entered != b->entered)
        return !b->peer || a->entered < b->entered;
    return a->peer->local != b->peer->local ? b->peer->local : a->got < b->got;
}

// Whom the first open operation of a communicator waits for.
static void find_first_awaited(struct communicator *c, struct awaited *first)
{
    struct operation *o = &c->ops[(c->completed + 1) % COLLECTIVES_OPEN];
    for (int k = 0; k < c->n && !c->freed && c->completed < c->started; k++) {
        if (!operation_owes(c, o, k))
            continue;
        const struct peer *p = c->members[k];
        struct awaited a = {p, atomic_load(&p->page->entered), o->got[0][k] + o->got[1][k]};
        if (comes_before(&a, first))
            *first = a;
    }
}

// What is open elsewhere holds nobody up: a receive, say, that was started early.
uint64_t world_find_awaited(struct world *w)
{
    struct awaited first = {0};
    if (w->waits)
        find_first_awaited(w->waits, &first);
    for (int i = 0; i < w->ncommunicators && !first.peer; i++)
        find_first_awaited(w->communicators[i], &first);
    return first.peer ? (uint64_t)(first.peer->rank + 1) << 48 | first.entered : 0;
}

static int find_deserter(struct communicator *c)
{
    for (uint64_t seq = c->completed + 1; seq <= c->started; seq++)
        for (int i = 0; i < c->n; i++) {
            const struct peer *p = c->members[i];
            bool left = i != c->me &&
                        atomic_load_explicit(&p->page->state, memory_order_acquire) == PEER_LEFT &&
                        (p->local || p->dead);
            if (left && operation_owes(c, &c->ops[seq % COLLECTIVES_OPEN], i))
                return p->rank;
        }
    return -1;
}

int world_find_deserter(const struct world *w)
{
    for (int i = 0; i < w->ncommunicators; i++) {
        int gone = w->communicators[i]->freed ? -1 : find_deserter(w->communicators[i]);
        if (gone >= 0)
            return gone;
    }
    return -1;
}
