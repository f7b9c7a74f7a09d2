// SPDX-License-Identifier: Apache-2.0
// Staging. See staging.h.
#include "worker/collective/staging.h"

#include <sched.h>
#include <stdlib.h>

#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/log.h"

struct copy {
    char *device, *host;
    size_t bytes;
};
enum { COPIES = 2 };

struct staged {
    struct list all, pending; // pending: started, not yet announced
    struct staging *staging;
    struct communicator *communicator;
    struct collective_args args; // the host's addresses
    struct collective_ticket ticket;
    struct copy down[COPIES], up[COPIES];
    struct event *made, *down_done, *up_done;
};

struct staging {
    struct fabric_options o;
    struct stream_q *q; // of all copies
    char *region, *window;
    uint64_t bytes;
    struct list all, pending;
};

// ---- what travels ------------------------------------------------------------------------------

// Which part of its operand a collective reads, and so is copied down before it starts, and which
// part it changes, and so is copied up afterwards.
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

static void *find_on_host(const struct staging *s, void *device)
{
    return s->window + ((char *)device - s->region);
}

static struct copy make_copy(const struct staging *s, void *device, size_t from, size_t bytes)
{
    size_t at = (size_t)((char *)device - s->region) + from;
    PRE(at + bytes <= s->bytes);
    return (struct copy){s->region + at, s->window + at, bytes};
}

static void plan_copies(const struct staging *s, const struct communicator *c,
                        const struct collective_args *a, enum part part, struct copy out[COPIES])
{
    size_t n = (size_t)communicator_size(c), all = (size_t)a->count * dtype_size(a->dtype);
    size_t slice = all / n, own = slice * (size_t)communicator_coordinate(c);
    if (part == PART_WHOLE) {
        out[0] = make_copy(s, a->buf, 0, all);
    } else if (part == PART_FROM) {
        out[0] = make_copy(s, a->from, 0, all);
    } else if (part == PART_OWN) {
        out[0] = make_copy(s, a->buf, own, slice);
    } else if (part == PART_OTHERS) {
        out[0] = make_copy(s, a->buf, 0, own);
        out[1] = make_copy(s, a->buf, own + slice, all - own - slice);
    }
}

// ---- life --------------------------------------------------------------------------------------

int staging_open(const struct fabric_options *o, struct staging **out, struct err *e)
{
    struct staging *s = heap_alloc(sizeof *s);
    s->o = *o;
    list_init(&s->all);
    list_init(&s->pending);
    int rc = o->backend->stream.create(o->device, STREAM_USUAL, &s->q, e);
    if (rc)
        staging_close(s);
    else
        *out = s;
    return rc;
}

int staging_mirror(struct staging *s, void *window, uint64_t bytes, void **region, struct err *e)
{
    const struct backend *b = s->o.backend;
    struct err why = {0};
    *region = NULL;
    if (!bytes)
        return 0;
    // Unless it is pinned the driver copies through buffers of its own, and the host waits for
    // each.
    if (b->memory.adopt && b->memory.adopt(s->o.device, window, bytes, &why))
        log_warn("staging",
                 "the memory for collectives cannot be pinned, so copies between it and the device "
                 "are slower: %s",
                 why.text);
    int rc = b->memory.alloc(s->o.device, bytes, region, e);
    s->region = *region;
    s->window = window;
    s->bytes = bytes;
    return rc;
}

static void free_staged(struct staged *op)
{
    struct event *events[] = {op->made, op->down_done, op->up_done};
    for (int i = 0; i < 3; i++)
        if (events[i])
            op->staging->o.backend->event.destroy(events[i]);
    free(op);
}

void staging_close(struct staging *s)
{
    if (!s)
        return;
    if (s->q) // the window is another's and may go: nothing may be on its way there
        (void)s->o.backend->stream.sync(s->q, NULL);
    list_for_each (it, &s->all)
        free_staged(list_entry(it, struct staged, all));
    if (s->region)
        s->o.backend->memory.free(s->o.device, s->region);
    if (s->q)
        s->o.backend->stream.destroy(s->q);
    free(s);
}

int staging_prepare(struct staging *s, struct communicator *c, const struct collective_args *a,
                    struct staged **out, struct err *e)
{
    const struct backend *b = s->o.backend;
    struct staged *op = heap_alloc(sizeof *op);
    list_append(&s->all, &op->all);
    list_init(&op->pending);
    op->staging = s;
    op->communicator = c;
    op->args = *a;
    op->args.buf = find_on_host(s, a->buf);
    op->args.from = a->op == COLLECTIVE_ALL_TO_ALL ? find_on_host(s, a->from) : NULL;
    plan_copies(s, c, a, parts[a->op].down, op->down);
    plan_copies(s, c, a, parts[a->op].up, op->up);
    *out = op;
    int rc = b->event.create(s->o.device, &op->made, e);
    rc = rc ? rc : b->event.create(s->o.device, &op->down_done, e);
    return rc ? rc : b->event.create(s->o.device, &op->up_done, e);
}

// ---- running -----------------------------------------------------------------------------------

static int copy_down(const struct staged *op, struct err *e)
{
    const struct staging *s = op->staging;
    const struct backend *b = s->o.backend;
    int rc = op->down[0].bytes ? b->event.wait(s->q, op->made, e) : 0;
    for (int i = 0; i < COPIES && !rc; i++)
        if (op->down[i].bytes)
            rc = b->stream.copy(s->q, op->down[i].host, op->down[i].device, op->down[i].bytes, e);
    return rc;
}

// A copy down has already waited for everything that the device did with the operand. Without one,
// the copy up must wait itself, since the operand may still be read.
static int copy_up(const struct staged *op, struct stream_q *q, struct err *e)
{
    const struct staging *s = op->staging;
    const struct backend *b = s->o.backend;
    bool any = op->up[0].bytes || op->up[1].bytes;
    int rc = any && !op->down[0].bytes ? b->event.wait(s->q, op->made, e) : 0;
    for (int i = 0; i < COPIES && !rc; i++)
        if (op->up[i].bytes)
            rc = b->stream.copy(s->q, op->up[i].device, op->up[i].host, op->up[i].bytes, e);
    if (!rc && any)
        rc = b->event.record(s->q, op->up_done, e);
    return rc || !any ? rc : b->event.wait(q, op->up_done, e);
}

// A receive, too, has an event behind what was copied so far: its place in the window is in use
// until then.
int staging_start(struct staged *op, struct stream_q *q, struct err *e)
{
    struct staging *s = op->staging;
    int rc = s->o.backend->event.record(q, op->made, e);
    rc = rc ? rc : copy_down(op, e);
    rc = rc ? rc : s->o.backend->event.record(s->q, op->down_done, e);
    list_append(&s->pending, &op->pending);
    return rc ? rc : staging_try(s, e);
}

static int announce_staged(struct staged *op, struct err *e)
{
    list_remove(&op->pending);
    return collective_start(op->communicator, &op->args, &op->ticket, e);
}

int staging_try(struct staging *s, struct err *e)
{
    int rc = 0;
    list_for_each (it, &s->pending) {
        struct staged *op = list_entry(it, struct staged, pending);
        bool done = false;
        rc = s->o.backend->event.query(op->down_done, &done, e);
        if (rc || !done)
            break;
        if ((rc = announce_staged(op, e)))
            break;
    }
    return rc;
}

// Announces all that were started up to this one, since every rank has the same order.
static int announce_through(struct staged *op, struct err *e)
{
    struct staging *s = op->staging;
    int rc = 0;
    while (!rc && !list_empty(&op->pending)) {
        struct staged *next = list_entry(s->pending.next, struct staged, pending);
        rc = s->o.backend->event.sync(next->down_done, e);
        if (!rc)
            rc = announce_staged(next, e);
    }
    return rc;
}

// While later operands are still on their way down the host does not sleep: a peer may wait for
// them, and this collective may need that peer.
static int wait_awake(struct staged *op, struct err *e)
{
    struct staging *s = op->staging;
    bool done = false, moved = false;
    int rc = 0;
    while (!rc && !done && !list_empty(&s->pending)) {
        rc = collective_try(op->communicator, &op->ticket, &done, &moved, e);
        if (!rc)
            rc = staging_try(s, e);
        if (!rc && !done && !moved)
            (void)sched_yield();
    }
    return rc || done ? rc : collective_wait(op->communicator, &op->ticket, e);
}

int staging_wait(struct staged *op, struct stream_q *q, struct err *e)
{
    int rc = announce_through(op, e);
    rc = rc ? rc : wait_awake(op, e);
    return rc ? rc : copy_up(op, q, e);
}
