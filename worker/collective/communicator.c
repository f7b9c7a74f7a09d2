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
static uint64_t key_of(const char *name, const int *ranks, int n, int before)
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

static uint64_t key_free(const struct world *w, const char *name, const int *ranks, int n)
{
    for (int before = 0;; before++) {
        uint64_t key = key_of(name, ranks, n, before);
        int i = 0;
        while (i < w->ncomms && w->comms[i]->key != key)
            i++;
        if (i == w->ncomms)
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

void comm_delete(struct comm *c)
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

static bool comm_alloc(struct comm *c)
{
    size_t n = (size_t)c->n;
    c->members = calloc(n, sizeof(struct peer *));
    c->slots = calloc(n, sizeof *c->slots);
    c->src = calloc(n, sizeof(void *));
    c->dst = calloc(n, sizeof(void *));
    c->counters = calloc(n * COUNTERS * COLL_MAX_OPEN, sizeof *c->counters);
    if (!c->members || !c->slots || !c->src || !c->dst || !c->counters)
        return false;
    uint64_t *at = c->counters;
    for (int i = 0; i < COLL_MAX_OPEN; i++) {
        struct coll *o = &c->ops[i];
        uint64_t **arrays[COUNTERS] = {&o->sent[0], &o->sent[1], &o->got[0], &o->got[1],
                                       &o->allowed};
        for (int k = 0; k < COUNTERS; k++, at += n)
            *arrays[k] = at;
    }
    return true;
}

static bool comm_fill(struct comm *c, const int *ranks)
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

int comm_new(struct world *w, const char *name, const int *ranks, int n, struct comm **out,
             struct err *e)
{
    int me, rc = world_look(w, e);
    *out = NULL;
    if (!rc)
        rc = check_ranks(w, ranks, n, &me, e);
    if (!rc && w->ncomms == COMM_MAX)
        rc = err_set(e, ERR_LIMIT, "a world has at most %d communicators", COMM_MAX);
    if (rc) {
        if (e)
            err_wrap(e, "communicator '%s'", name);
        return rc;
    }
    struct comm *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for communicator '%s'", name);
    c->w = w;
    c->n = n;
    c->me = me;
    c->slot = w->ncomms;
    snprintf(c->name, sizeof c->name, "%s", name);
    if (!comm_alloc(c) || !comm_fill(c, ranks)) {
        comm_delete(c);
        return err_set(e, ERR_NOMEM, "no memory for communicator '%s'", name);
    }
    c->key = key_free(w, name, ranks, n);
    w->comms[w->ncomms++] = c;
    atomic_store_explicit(&w->page->comms[c->slot].key, c->key, memory_order_release);
    for (int i = 0; i < n; i++)
        if (c->members[i]->link)
            link_comm(c->members[i], c->slot, c->key);
    *out = c;
    return 0;
}

void comm_free(struct comm *c)
{
    if (!c)
        return;
    PRE(c->started == c->completed || world_look(c->w, NULL)); // broken or aborted
    c->freed = true; // the world deletes it: a peer may still look for its key
    free(c->stage);
    c->stage = NULL;
}

int comm_size(const struct comm *c)
{
    return c->n;
}

int comm_coord(const struct comm *c)
{
    return c->me;
}

// ---- the last entered one ----
void page_enter(struct world *w, uint64_t number, const char *name, uint32_t hash)
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

size_t page_text(const struct page *p, char out[TEXT])
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
enum coll_op op_counterpart(enum coll_op op)
{
    return op == COLL_SEND ? COLL_RECV : op == COLL_RECV ? COLL_SEND : op;
}

// The member that alone has something to give, −1: all have.
static int source_of(const struct comm *c, const struct coll *o)
{
    if (o->args.op == COLL_BROADCAST)
        return o->args.root;
    return o->args.op == COLL_SEND ? c->me : o->args.op == COLL_RECV ? 1 - c->me : -1;
}

struct span op_slice(const struct comm *c, const struct coll *o, int member)
{
    int source = source_of(c, o);
    if (source >= 0)
        return (struct span){0, member == source ? o->bytes : 0};
    int64_t lo = member * o->per, hi = lo + o->per;
    if (lo > o->args.count)
        lo = o->args.count;
    if (hi > o->args.count)
        hi = o->args.count;
    return (struct span){(size_t)lo * o->esize, (size_t)(hi - lo) * o->esize};
}

static bool find_slot(struct comm *c, int member)
{
    const struct page *p = c->members[member]->page;
    // All of them: of a remote peer we see only those that we are in.
    for (int i = 0; i < COMM_MAX; i++)
        if (atomic_load_explicit(&p->comms[i].key, memory_order_acquire) == c->key) {
            c->slots[member] = i;
            return true;
        }
    return false;
}

struct note *op_note(const struct comm *c, const struct coll *o, int member)
{
    int slot = c->slots[member];
    return slot < 0 ? NULL : &c->members[member]->page->comms[slot].notes[o->seq % NOTES];
}

bool op_announced(struct comm *c, struct coll *o, int member)
{
    if (c->slots[member] < 0 && !find_slot(c, member))
        return false;
    const struct note *n = op_note(c, o, member);
    return atomic_load_explicit(&n->seq, memory_order_acquire) == o->seq;
}

static bool same(const struct comm *c, const struct coll *o, int member)
{
    const struct note *n = op_note(c, o, member), *mine = op_note(c, o, c->me);
    const struct peer *p = c->members[member];
    return n->op == op_counterpart((enum coll_op)mine->op) && n->dtype == mine->dtype &&
           n->count == mine->count && n->root == mine->root && n->name == mine->name &&
           n->inlined == mine->inlined &&
           (o->inlined || !p->local ||
            (n->offset <= p->window_size && o->bytes <= p->window_size - n->offset));
}

static void differ(struct comm *c, const struct coll *o, int member)
{
    const struct note *n = op_note(c, o, member);
    const struct peer *p = c->members[member];
    char text[TEXT], theirs[TEXT + 24] = "another name";
    struct err e;
    if (atomic_load(&p->page->entered) == n->number && page_text(p->page, text))
        snprintf(theirs, sizeof theirs, "%s", text);
    err_set(&e, ERR_INTERNAL,
            "ranks disagree in communicator '%s': rank %d entered %s #%" PRIu64 " (%s) of %lld "
            "elements, rank %d entered %s #%" PRIu64 " (%s) of %lld",
            c->name, c->w->rank, coll_op_name(o->args.op), o->number,
            o->args.name ? o->args.name : "", (long long)o->args.count, p->rank,
            n->op <= COLL_BARRIER ? coll_op_name((enum coll_op)n->op) : "?", n->number, theirs,
            (long long)n->count);
    world_break(c->w, &e);
}

bool op_agree(struct comm *c, struct coll *o)
{
    for (; o->seen < c->n; o->seen++) {
        if (o->seen == c->me)
            continue;
        if (!op_announced(c, o, o->seen))
            return false;
        if (!same(c, o, o->seen)) {
            differ(c, o, o->seen);
            return false;
        }
    }
    return o->agreed = true;
}

// ---- who is missing ----
bool op_owes(struct comm *c, struct coll *o, int member)
{
    const struct kind *k = &coll_kinds[o->args.op];
    const struct peer *p = c->members[member];
    if (member == c->me)
        return false;
    if (!op_announced(c, o, member))
        return true;
    if (o->inlined)
        return !p->local && !link_flushed(p);
    if (p->local) // what a sender has left to do is to learn of it
        return o->args.op != COLL_RECV &&
               atomic_load_explicit(&p->page->comms[c->slots[member]].done, memory_order_acquire) <
                   o->seq;
    size_t mine = op_slice(c, o, c->me).len, its = op_slice(c, o, member).len;
    return (k->scatter && (o->got[0][member] < mine || o->sent[0][member] < its)) ||
           (k->gather && (o->got[1][member] < its || o->sent[1][member] < mine)) ||
           !link_flushed(p);
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
        page_text(p->page, text);
        snprintf(out + len, size - len,
                 "%srank %d has not %s it; it last entered #%" PRIu64 " (%s)", len ? ", " : "",
                 p->rank, verb, entered, text);
    }
}

int op_late(struct comm *c, struct coll *o, struct err *e)
{
    char who[600] = "";
    for (int i = 0; i < c->n; i++)
        if (i != c->me && !op_announced(c, o, i))
            name_missing(who, sizeof who, c->members[i], "entered");
    for (int i = 0; i < c->n && o->agreed; i++)
        if (op_owes(c, o, i))
            name_missing(who, sizeof who, c->members[i], "finished");
    return err_set(e, ERR_TIMEOUT, "%s #%" PRIu64 " (%s) in '%s' took over %.3g s: %s",
                   coll_op_name(o->args.op), o->number, o->args.name ? o->args.name : "", c->name,
                   (double)c->w->deadline_ns / 1e9, who);
}

struct awaited {
    const struct peer *peer;
    uint64_t entered, got;
};

// Of those that owe something the others wait for the one that entered least; among equals for
// whom least came from (another host's: what a rank of this host finished is seen elsewhere).
static bool before(const struct awaited *a, const struct awaited *b)
{
    if (!b->peer || a->entered != b->entered)
        return !b->peer || a->entered < b->entered;
    return a->peer->local != b->peer->local ? b->peer->local : a->got < b->got;
}

// Whom the first open operation of a communicator waits for.
static void first_awaited(struct comm *c, struct awaited *first)
{
    struct coll *o = &c->ops[(c->completed + 1) % COLL_MAX_OPEN];
    for (int k = 0; k < c->n && !c->freed && c->completed < c->started; k++) {
        if (!op_owes(c, o, k))
            continue;
        const struct peer *p = c->members[k];
        struct awaited a = {p, atomic_load(&p->page->entered), o->got[0][k] + o->got[1][k]};
        if (before(&a, first))
            *first = a;
    }
}

// What is open elsewhere holds nobody up: a receive, say, that was started early.
uint64_t comms_awaited(struct world *w)
{
    struct awaited first = {0};
    if (w->waits)
        first_awaited(w->waits, &first);
    for (int i = 0; i < w->ncomms && !first.peer; i++)
        first_awaited(w->comms[i], &first);
    return first.peer ? (uint64_t)(first.peer->rank + 1) << 48 | first.entered : 0;
}

static int deserter_of(struct comm *c)
{
    for (uint64_t seq = c->completed + 1; seq <= c->started; seq++)
        for (int i = 0; i < c->n; i++) {
            const struct peer *p = c->members[i];
            bool left = i != c->me &&
                        atomic_load_explicit(&p->page->state, memory_order_acquire) == PAGE_LEFT &&
                        (p->local || p->dead);
            if (left && op_owes(c, &c->ops[seq % COLL_MAX_OPEN], i))
                return p->rank;
        }
    return -1;
}

int comms_deserter(const struct world *w)
{
    for (int i = 0; i < w->ncomms; i++) {
        int gone = w->comms[i]->freed ? -1 : deserter_of(w->comms[i]);
        if (gone >= 0)
            return gone;
    }
    return -1;
}
