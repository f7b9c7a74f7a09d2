// SPDX-License-Identifier: Apache-2.0
// The transport of the hosts: the world's windows are the memory that collectives touch. Where the
// device computes in the host's memory, ops work in the window itself, and a collective is started
// once the stream is idle. Where it has memory of its own, the window mirrors it: staging.h.
#include <stdlib.h>

#include "common/base/heap.h"
#include "common/base/list.h"
#include "worker/collective/staging.h"
#include "worker/collective/transport.h"

struct fabric {
    struct fabric_options o;
    struct communicator *communicator[COMMUNICATORS];
    int ncommunicators;
    struct staging *staging; // null: the device shares the host's memory
    struct list prepared;
};

struct collective {
    struct list link;
    const struct fabric *fabric;
    struct communicator *communicator;
    const struct collective_args *calls;
    int n;
    struct {
        struct collective_ticket ticket;
        struct staged *staged; // where the fabric stages
    } of[];                    // of each call
};

static void close_fabric(struct fabric *f)
{
    if (!f)
        return;
    staging_close(f->staging);
    for (int i = 0; i < f->ncommunicators; i++)
        communicator_free(f->communicator[i]);
    list_for_each (it, &f->prepared)
        free(list_entry(it, struct collective, link));
    free(f);
}

static int open_fabric(const struct fabric_options *o, struct fabric **out, struct err *e)
{
    struct device_info info;
    struct fabric *f = heap_alloc(sizeof *f);
    f->o = *o;
    list_init(&f->prepared);
    o->backend->device.info(o->device, &info);
    int rc = info.shares_host ? 0 : staging_open(o, &f->staging, e);
    if (rc)
        close_fabric(f);
    else
        *out = f;
    return rc;
}

// Opens a window, which all ranks do together: also one that has nothing to put into it.
static int open_memory(struct fabric *f, uint64_t bytes, void **out, struct err *e)
{
    void *window;
    int rc = world_window(f->o.world, bytes, &window, e);
    if (rc)
        return rc;
    if (f->staging)
        return staging_mirror(f->staging, window, bytes, out, e);
    if (bytes && f->o.backend->memory.adopt)
        rc = f->o.backend->memory.adopt(f->o.device, window, bytes, e);
    *out = !rc && bytes ? window : NULL;
    return rc;
}

static int open_communicator(struct fabric *f, const char *name, const int *ranks, int n, int *out,
                             struct err *e)
{
    *out = f->ncommunicators;
    int rc = communicator_new(f->o.world, name, ranks, n, &f->communicator[*out], e);
    f->ncommunicators += !rc;
    return rc;
}

static int prepare_collective(struct fabric *f, int communicator,
                              const struct collective_args *calls, int n, struct collective **out,
                              struct err *e)
{
    struct collective *c = heap_alloc(sizeof *c + (size_t)n * sizeof *c->of);
    int rc = 0;
    list_append(&f->prepared, &c->link);
    c->fabric = f;
    c->communicator = f->communicator[communicator];
    c->calls = calls;
    c->n = n;
    *out = c;
    for (int i = 0; i < n && f->staging && !rc; i++)
        rc = staging_prepare(f->staging, c->communicator, &calls[i], &c->of[i].staged, e);
    return rc;
}

// Peers read an operand as soon as it is announced, so it must be there. What is received overwrites only
// what was read.
static int start_collective(struct collective *c, struct stream_q *q, struct err *e)
{
    const struct fabric *f = c->fabric;
    int rc = f->staging ? 0 : f->o.backend->stream.sync(q, e);
    for (int i = 0; i < c->n && !rc; i++)
        rc = f->staging ? staging_start(c->of[i].staged, q, e)
                        : collective_start(c->communicator, &c->calls[i], &c->of[i].ticket, e);
    return rc;
}

static int wait_collective(struct collective *c, struct stream_q *q, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < c->n && !rc; i++)
        rc = c->fabric->staging ? staging_wait(c->of[i].staged, q, e)
                                : collective_wait(c->communicator, &c->of[i].ticket, e);
    return rc;
}

static int try_open(struct fabric *f, struct err *e)
{
    return f->staging ? staging_try(f->staging, e) : 0;
}

const struct transport host_transport = {
    .open = open_fabric,
    .close = close_fabric,
    .memory = open_memory,
    .communicator = open_communicator,
    .prepare = prepare_collective,
    .start = start_collective,
    .wait = wait_collective,
    .try = try_open,
};
