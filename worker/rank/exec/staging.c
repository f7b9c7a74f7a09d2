// SPDX-License-Identifier: Apache-2.0
// Staging. See staging.h.
#include "worker/rank/exec/staging.h"

#include <sched.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "common/base/log.h"

struct span {
    char *device, *host;
    size_t bytes;
};
enum { SPANS = 2 };

struct staged {
    struct list all, pending; // pending: started, not yet announced
    struct communicator *comm;
    struct collective_args coll; // the host's addresses
    struct collective_ticket ticket;
    struct span down[SPANS], up[SPANS];
    struct event *made, *down_done, *up_done;
};

struct staging {
    struct staging_options o;
    struct stream_q *q; // of all copies
    struct list all, pending;
};

// ---- what travels ------------------------------------------------------------------------------

// What a collective reads of its operand before it starts, and what it changes.
enum part { PART_NONE, PART_WHOLE, PART_OWN, PART_OTHERS, PART_FROM };
static const struct {
    enum part down, up;
} parts[] = {
    [COLLECTIVE_ALL_REDUCE] = {PART_WHOLE, PART_WHOLE},
    [COLLECTIVE_REDUCE_SCATTER] = {PART_WHOLE, PART_OWN},
    [COLLECTIVE_ALL_GATHER] = {PART_OWN, PART_OTHERS},
    [COLLECTIVE_ALL_TO_ALL] = {PART_FROM, PART_WHOLE},
    [COLLECTIVE_SEND] = {PART_WHOLE, PART_NONE},
    [COLLECTIVE_RECV] = {PART_NONE, PART_WHOLE},
};

static struct span span_at(const struct staging *s, void *device, size_t from, size_t bytes)
{
    size_t at = (size_t)((char *)device - s->o.region) + from;
    PRE(at + bytes <= s->o.bytes);
    return (struct span){s->o.region + at, s->o.window + at, bytes};
}

static void spans_of(const struct staging *s, const struct communicator *c,
                     const struct collective_args *a, enum part part, struct span out[SPANS])
{
    size_t n = (size_t)communicator_size(c), all = (size_t)a->count * dtype_size(a->dtype);
    size_t slice = all / n, own = slice * (size_t)communicator_coordinate(c);
    if (part == PART_WHOLE) {
        out[0] = span_at(s, a->buf, 0, all);
    } else if (part == PART_FROM) {
        out[0] = span_at(s, a->from, 0, all);
    } else if (part == PART_OWN) {
        out[0] = span_at(s, a->buf, own, slice);
    } else if (part == PART_OTHERS) {
        out[0] = span_at(s, a->buf, 0, own);
        out[1] = span_at(s, a->buf, own + slice, all - own - slice);
    }
}

static void *on_host(const struct staging *s, void *device)
{
    return s->o.window + ((char *)device - s->o.region);
}

// ---- life --------------------------------------------------------------------------------------

int staging_open(const struct staging_options *o, struct staging **out, struct err *e)
{
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for staging");
    s->o = *o;
    list_init(&s->all);
    list_init(&s->pending);
    int rc = o->backend->stream.create(o->device, &s->q, e);
    struct err why = {0};
    // Without it the driver copies through buffers of its own, and the host waits for each.
    if (!rc && o->bytes && o->backend->memory.adopt &&
        o->backend->memory.adopt(o->device, o->window, o->bytes, &why))
        log_warn("staging", "the collectives' window cannot be pinned, copies are slower: %s",
                 why.text);
    if (rc) {
        staging_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void staging_close(struct staging *s)
{
    if (!s)
        return;
    if (s->q) // the window is another's and may go: nothing may be on its way there
        (void)s->o.backend->stream.sync(s->q, NULL);
    list_for_each (it, &s->all) {
        struct staged *op = list_entry(it, struct staged, all);
        struct event *events[] = {op->made, op->down_done, op->up_done};
        for (int i = 0; i < 3; i++)
            if (events[i])
                s->o.backend->event.destroy(events[i]);
        free(op);
    }
    if (s->q)
        s->o.backend->stream.destroy(s->q);
    free(s);
}

int staging_bind(struct staging *s, struct communicator *c, const struct collective_args *a,
                 struct staged **out, struct err *e)
{
    const struct backend *b = s->o.backend;
    struct staged *op = calloc(1, sizeof *op);
    if (!op)
        return err_set(e, ERR_NOMEM, "no memory for staging");
    list_append(&s->all, &op->all);
    list_init(&op->pending);
    op->comm = c;
    op->coll = *a;
    op->coll.buf = on_host(s, a->buf);
    op->coll.from = a->op == COLLECTIVE_ALL_TO_ALL ? on_host(s, a->from) : NULL;
    spans_of(s, c, a, parts[a->op].down, op->down);
    spans_of(s, c, a, parts[a->op].up, op->up);
    *out = op;
    int rc = b->event.create(s->o.device, &op->made, e);
    rc = rc ? rc : b->event.create(s->o.device, &op->down_done, e);
    return rc ? rc : b->event.create(s->o.device, &op->up_done, e);
}

// ---- running -----------------------------------------------------------------------------------

static int copy_down(struct staging *s, const struct staged *op, struct err *e)
{
    const struct backend *b = s->o.backend;
    int rc = op->down[0].bytes ? b->event.wait(s->q, op->made, e) : 0;
    for (int i = 0; i < SPANS && !rc; i++)
        if (op->down[i].bytes)
            rc = b->stream.copy(s->q, op->down[i].host, op->down[i].device, op->down[i].bytes, e);
    return rc;
}

// Where nothing went down the copy up must wait for the last reader of what it overwrites.
static int copy_up(struct staging *s, const struct staged *op, struct err *e)
{
    const struct backend *b = s->o.backend;
    bool any = op->up[0].bytes || op->up[1].bytes;
    int rc = any && !op->down[0].bytes ? b->event.wait(s->q, op->made, e) : 0;
    for (int i = 0; i < SPANS && !rc; i++)
        if (op->up[i].bytes)
            rc = b->stream.copy(s->q, op->up[i].device, op->up[i].host, op->up[i].bytes, e);
    if (!rc && any)
        rc = b->event.record(s->q, op->up_done, e);
    return rc || !any ? rc : b->event.wait(s->o.main, op->up_done, e);
}

// Also a receive has an event behind what was copied so far: its place in the window is in use
// until then.
int staging_start(struct staging *s, struct staged *op, struct err *e)
{
    int rc = s->o.backend->event.record(s->o.main, op->made, e);
    rc = rc ? rc : copy_down(s, op, e);
    rc = rc ? rc : s->o.backend->event.record(s->q, op->down_done, e);
    list_append(&s->pending, &op->pending);
    return rc ? rc : staging_poll(s, e);
}

static int announce(struct staged *op, struct err *e)
{
    list_remove(&op->pending);
    return collective_start(op->comm, &op->coll, &op->ticket, e);
}

int staging_poll(struct staging *s, struct err *e)
{
    int rc = 0;
    list_for_each (it, &s->pending) {
        struct staged *op = list_entry(it, struct staged, pending);
        bool here = false;
        rc = s->o.backend->event.query(op->down_done, &here, e);
        if (rc || !here)
            break;
        if ((rc = announce(op, e)))
            break;
    }
    return rc;
}

// All up to this one: the order is every rank's.
static int announce_through(struct staging *s, struct staged *op, struct err *e)
{
    int rc = 0;
    while (!rc && !list_empty(&op->pending)) {
        struct staged *next = list_entry(s->pending.next, struct staged, pending);
        rc = s->o.backend->event.sync(next->down_done, e);
        rc = rc ? rc : announce(next, e);
    }
    return rc;
}

// While later operands are still on their way down the host does not sleep: a peer may wait for
// them, and this collective may need that peer.
static int attend(struct staging *s, struct staged *op, struct err *e)
{
    bool done = false, moved = false;
    int rc = 0;
    while (!rc && !done && !list_empty(&s->pending)) {
        rc = collective_try(op->comm, &op->ticket, &done, &moved, e);
        rc = rc ? rc : staging_poll(s, e);
        if (!rc && !done && !moved)
            (void)sched_yield();
    }
    return rc || done ? rc : collective_wait(op->comm, &op->ticket, e);
}

int staging_wait(struct staging *s, struct staged *op, struct err *e)
{
    int rc = announce_through(s, op, e);
    rc = rc ? rc : attend(s, op, e);
    return rc ? rc : copy_up(s, op, e);
}
