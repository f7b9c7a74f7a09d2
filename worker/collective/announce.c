// SPDX-License-Identifier: Apache-2.0
// What the members of an operation announced, whether they agree, and who is missing.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/collective/world.h"

// ---- the members' notes ----
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
    // A slot without a key does not end the list: a remote peer sends us its keys only where we are
    // a member, so its page has gaps.
    for (int i = 0; i < WORLD_COMMUNICATORS; i++)
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

static bool is_announced(struct communicator *c, struct operation *o, int member)
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
        if (!is_announced(c, o, o->seen))
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
    if (!is_announced(c, o, member))
        return true;
    if (o->inlined)
        return !p->local && !tcp_is_flushed(p);
    if (p->local) // a sender that has announced has done its part: this rank copies
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
        if (i != c->me && !is_announced(c, o, i))
            name_missing(who, sizeof who, c->members[i], "entered");
    for (int i = 0; i < c->n && o->agreed; i++)
        if (operation_owes(c, o, i))
            name_missing(who, sizeof who, c->members[i], "finished");
    return err_set(e, ERR_TIMEOUT, "%s #%" PRIu64 " (%s) in '%s' took over %.3g s: %s",
                   collective_op_name(o->args.op), o->number, o->args.name ? o->args.name : "",
                   c->name, (double)c->w->deadline_ns / 1e9, who);
}

struct member_debt {
    const struct peer *peer;
    uint64_t entered, got;
};

// Orders members that owe something by how likely they hold up the rest. First comes the one that
// entered the fewest operations. Among equals a rank of another host comes before one of this host,
// and of two on other hosts the one that fewer bytes came from.
static bool comes_before(const struct member_debt *a, const struct member_debt *b)
{
    if (!b->peer || a->entered != b->entered)
        return !b->peer || a->entered < b->entered;
    return a->peer->local != b->peer->local ? b->peer->local : a->got < b->got;
}

// Sets `first` to the member that holds up the communicator's oldest open operation, if that one
// comes before who is there already.
static void find_first_awaited(struct communicator *c, struct member_debt *first)
{
    struct operation *o = &c->ops[(c->completed + 1) % COLLECTIVES_OPEN];
    for (int k = 0; k < c->n && !c->freed && c->completed < c->started; k++) {
        if (!operation_owes(c, o, k))
            continue;
        const struct peer *p = c->members[k];
        struct member_debt a = {p, atomic_load(&p->page->entered), o->got[0][k] + o->got[1][k]};
        if (comes_before(&a, first))
            *first = a;
    }
}

// Starts with the communicator that this rank waits in, if any. Operations that are open in others,
// such as a receive that was started early, then hold nobody up.
uint64_t find_awaited(struct world *w)
{
    struct member_debt first = {0};
    if (w->waits)
        find_first_awaited(w->waits, &first);
    for (int i = 0; i < w->ncommunicators && !first.peer; i++)
        find_first_awaited(w->communicators[i], &first);
    return first.peer ? (uint64_t)(first.peer->rank + 1) << 48 | first.entered : 0;
}

static int find_deserter_of(struct communicator *c)
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

int find_deserter(const struct world *w)
{
    for (int i = 0; i < w->ncommunicators; i++) {
        int gone = w->communicators[i]->freed ? -1 : find_deserter_of(w->communicators[i]);
        if (gone >= 0)
            return gone;
    }
    return -1;
}
