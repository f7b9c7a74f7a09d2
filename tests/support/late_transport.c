// SPDX-License-Identifier: Apache-2.0
// Transports of devices. See late_transport.h.
#include "tests/support/late_transport.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "tests/support/late.h"

struct fabric {
    struct fabric_options o;
    const struct late *late;
    char *window, *shown; // the same memory: as the host and as the device addresses it
    struct communicator *communicator[COMMUNICATORS];
    struct stream_q *stream[COMMUNICATORS]; // of the event transport
    int ncommunicators;
    struct list prepared;
};

struct collective {
    struct list link;
    struct fabric *fabric;
    int communicator;
    int n, ndone;               // calls; those that are done
    bool begun;                 // as the device sees it
    struct event *ready, *done; // of the event transport
    struct {
        struct collective_args args; // the host's addresses
        struct collective_ticket ticket;
    } of[];
};

static _Atomic int starts, done, aborts;

struct late_transport_counts late_transport_counts(void)
{
    return (struct late_transport_counts){atomic_exchange(&starts, 0), atomic_exchange(&done, 0),
                                          atomic_exchange(&aborts, 0)};
}

// ---- life --------------------------------------------------------------------------------------

// The library that the backend's table came from.
static const struct late *find_late(const struct backend *b)
{
    Dl_info where;
    void *library = dladdr(b, &where) ? dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    return library ? dlsym(library, "weft_late") : NULL;
}

static int open_fabric(const struct fabric_options *o, struct fabric **out, struct err *e)
{
    const struct late *late = find_late(o->backend);
    struct fabric *f = calloc(1, sizeof *f);
    if (!late || !f) {
        free(f);
        return err_set(e, ERR_UNSUPPORTED, "no device of late.c");
    }
    *f = (struct fabric){.o = *o, .late = late};
    list_init(&f->prepared);
    *out = f;
    return 0;
}

static void close_fabric(struct fabric *f)
{
    const struct backend *b = f->o.backend;
    list_for_each (it, &f->prepared) {
        struct collective *c = list_entry(it, struct collective, link);
        b->event.destroy(c->ready);
        b->event.destroy(c->done);
        free(c);
    }
    for (int i = 0; i < f->ncommunicators; i++) {
        b->stream.destroy(f->stream[i]);
        communicator_free(f->communicator[i]);
    }
    b->memory.free(f->o.device, f->shown);
    free(f);
}

// The world does it: what is on its way ends with ERR_ABORTED.
static void abort_fabric(struct fabric *f, const char *why)
{
    (void)f;
    (void)why;
    atomic_fetch_add(&aborts, 1);
}

static int open_memory(struct fabric *f, uint64_t bytes, void **out, struct err *e)
{
    void *window;
    *out = NULL;
    int rc = world_window(f->o.world, bytes, &window, e);
    f->window = window;
    if (!rc && bytes)
        rc = f->late->map(f->o.device, window, bytes, out, e);
    f->shown = *out;
    return rc;
}

static int open_communicator(struct fabric *f, const char *name, const int *ranks, int n, int *out,
                             struct err *e)
{
    *out = f->ncommunicators;
    int rc = communicator_new(f->o.world, name, ranks, n, &f->communicator[*out], e);
    if (rc)
        return rc;
    f->ncommunicators++;
    return f->o.backend->stream.create(f->o.device, STREAM_URGENT, &f->stream[*out], e);
}

static void *find_on_host(const struct fabric *f, void *device)
{
    return f->window + ((char *)device - f->shown);
}

static int prepare_collective(struct fabric *f, int communicator,
                              const struct collective_args *calls, int n, struct collective **out,
                              struct err *e)
{
    struct collective *c = calloc(1, sizeof *c + (size_t)n * sizeof *c->of);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a collective");
    list_append(&f->prepared, &c->link);
    c->fabric = f;
    c->communicator = communicator;
    c->n = n;
    for (int i = 0; i < n; i++) {
        bool exchange = calls[i].op == COLLECTIVE_ALL_TO_ALL;
        c->of[i].args = calls[i];
        c->of[i].args.buf = find_on_host(f, calls[i].buf);
        c->of[i].args.from = exchange ? find_on_host(f, calls[i].from) : NULL;
    }
    *out = c;
    int rc = f->o.backend->event.create(f->o.device, &c->ready, e);
    return rc ? rc : f->o.backend->event.create(f->o.device, &c->done, e);
}

// ---- running -----------------------------------------------------------------------------------

// What the device does when its stream comes to a collective.
static int step_collective(void *ctx, bool *is_done, struct err *e)
{
    struct collective *c = ctx;
    struct communicator *on = c->fabric->communicator[c->communicator];
    int rc = 0;
    for (int i = 0; i < c->n && !c->begun && !rc; i++)
        rc = collective_start(on, &c->of[i].args, &c->of[i].ticket, e);
    c->begun = true;
    for (*is_done = true; !rc && *is_done && c->ndone < c->n; c->ndone += *is_done)
        rc = collective_try(on, &c->of[c->ndone].ticket, is_done, NULL, e);
    if (!rc && *is_done) {
        c->begun = false;
        c->ndone = 0;
        atomic_fetch_add(&done, 1);
    }
    return rc;
}

static int start_behind_event(struct collective *c, struct stream_q *q, struct err *e)
{
    const struct backend *b = c->fabric->o.backend;
    struct stream_q *own = c->fabric->stream[c->communicator];
    atomic_fetch_add(&starts, 1);
    int rc = b->event.record(q, c->ready, e);
    rc = rc ? rc : b->event.wait(own, c->ready, e);
    rc = rc ? rc : c->fabric->late->call(own, step_collective, c, e);
    return rc ? rc : b->event.record(own, c->done, e);
}

static int wait_for_event(struct collective *c, struct stream_q *q, struct err *e)
{
    return c->fabric->o.backend->event.wait(q, c->done, e);
}

static int start_inline(struct collective *c, struct stream_q *q, struct err *e)
{
    atomic_fetch_add(&starts, 1);
    return c->fabric->late->call(q, step_collective, c, e);
}

static int wait_inline(struct collective *c, struct stream_q *q, struct err *e)
{
    (void)c;
    (void)q;
    (void)e;
    return 0;
}

const struct transport event_transport = {
    .open = open_fabric,
    .close = close_fabric,
    .abort = abort_fabric,
    .memory = open_memory,
    .communicator = open_communicator,
    .prepare = prepare_collective,
    .start = start_behind_event,
    .wait = wait_for_event,
};

const struct transport inline_transport = {
    .captured = true,
    .open = open_fabric,
    .close = close_fabric,
    .abort = abort_fabric,
    .memory = open_memory,
    .communicator = open_communicator,
    .prepare = prepare_collective,
    .start = start_inline,
    .wait = wait_inline,
};
