// SPDX-License-Identifier: Apache-2.0
// The transport of devices: collectives that the backend carries from device to device (backend.h,
// `collectives`). The world brings the identities of the communicators to their members, and sees
// peers die.
//
//   computation  ─ready──────────────────────► waits for `done`
//   communicator      └► the call ─done─┘
//
// Marks on the communicator's stream before and behind each call show on the progress page which
// one the device is in. Each communicator has a stream of its own: a receive that waits for its
// message need not hold up another communicator's call, where the device can do both at once. Once
// the communicators are ready a watcher looks at the world and, it alone, at the communicators. When
// a peer is lost, a communicator fails or the attempt is over it ends all communicators: kernels that
// wait for a peer end, so that whoever waits for the device comes back, and finds here why.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "worker/collective/transport.h"
#include "worker/collective/world.h"

#define LOOK_NS  (50 * CLOCK_MS) // between two looks of the watcher
#define QUICK_NS (2 * CLOCK_MS)  // while something is about to be ready
#define PEER_NS  (CLOCK_S)       // for the world to see that a peer is gone
#define ABORT_S  3               // for an abort to end

struct joined {
    struct communicator *hosts; // the same ranks, for the identity
    struct collective_args identity;
    struct collective_ticket ticket;
    struct device_communicator *devices;
    struct stream_q *q;
    char name[TEXT];
    unsigned warmed; // operations that ran once, a bit each
    uint64_t marks;  // seen by the watcher
};

// What the device writes of a communicator: the number of the newest collective, and a count of marks,
// which is odd while the device is in it.
enum { NEWEST, MARKS, WORDS };

struct fabric {
    struct fabric_options o;
    const struct backend_collectives *by;
    unsigned char ids[COMMUNICATORS][COMMUNICATOR_ID];
    struct joined joined[COMMUNICATORS];
    struct device_communicator *opened[COMMUNICATORS];
    int njoined, nopened;
    struct list prepared;
    uint64_t nprepared;
    uint64_t (*words)[WORDS]; // of each communicator, pinned; null: nobody reads them
    uint64_t entered, left;   // of these, as the page counts them
    void *region;
    pthread_t watcher;
    pthread_mutex_t lock; // of the next
    pthread_cond_t wake;
    bool watches, stops;
    struct err lost; // what ended the communicators; written before `is_lost`
    _Atomic bool is_lost;
};

struct collective {
    struct list link;
    struct fabric *fabric;
    struct joined *on;
    const struct collective_args *calls; // one launch
    int n;
    uint64_t number; // of those prepared
    struct event *ready, *done;
};

// ---- the end of an attempt ---------------------------------------------------------------------

static int report_lost(const struct fabric *f, struct err *e)
{
    return f->is_lost ? err_set(e, f->lost.code, "%s", f->lost.text) : 0;
}

static bool is_never(void *arg)
{
    (void)arg;
    return false;
}

// The backend may see a dead peer before the world does, and may not say that it is one: a socket that
// fails. So the world, whose lock is held, has some time to say who is gone; else `e` stays.
static int look_for_lost(struct fabric *f, int rc, struct err *e)
{
    struct err lost = {0};
    if (world_wait(f->o.world, is_never, NULL, PEER_NS, &lost) == ERR_TIMEOUT &&
        !f->o.world->broken.code)
        return rc;
    *e = lost;
    return lost.code;
}

// Looks at peers and communicators: 0, or what is wrong.
static int look_at_all(struct fabric *f, struct err *e)
{
    struct world *w = f->o.world;
    world_lock(w);
    int rc = world_wait(w, is_never, NULL, QUICK_NS, e);
    rc = rc == ERR_TIMEOUT && !w->broken.code ? 0 : rc;
    for (int i = 0; i < f->nopened && !rc; i++)
        if ((rc = f->by->check(f->opened[i], e))) {
            rc = look_for_lost(f, rc, e);
            (void)world_break(w, e);
        }
    world_unlock(w);
    return rc;
}

static bool stops_within(struct fabric *f, int64_t ns)
{
    pthread_mutex_lock(&f->lock);
    if (!f->stops)
        (void)clock_cond_wait(&f->wake, &f->lock, clock_mono_ns() + ns);
    bool stops = f->stops;
    pthread_mutex_unlock(&f->lock);
    return stops;
}

// "layers/0/mlp/in/weight and 3 more"
static void print_name(const struct fabric *f, uint64_t number, size_t size, char *out)
{
    const struct collective *found = NULL;
    list_for_each (it, &f->prepared) {
        const struct collective *c = list_entry(it, struct collective, link);
        found = c->number == number ? c : found;
    }
    const char *name = found && found->calls->name ? found->calls->name : "";
    if (found && found->n > 1)
        snprintf(out, size, "%s and %d more", name, found->n - 1);
    else
        snprintf(out, size, "%s", name);
}

// Brings the progress page up to the marks: how many collectives the device has entered and left, and
// the name of the one that it is in, or was in last.
static void show_marks(struct fabric *f)
{
    struct progress_page *p = f->o.world->progress;
    uint64_t entered = 0, left = 0, newest = 0;
    bool moved = false, inside = false;
    for (int i = 0; i < f->njoined && f->words; i++) {
        struct joined *j = &f->joined[i];
        uint64_t marks = __atomic_load_n(&f->words[i][MARKS], __ATOMIC_ACQUIRE);
        entered += (marks + 1) / 2;
        left += marks / 2;
        if (marks == j->marks)
            continue;
        if (!inside)
            newest = __atomic_load_n(&f->words[i][NEWEST], __ATOMIC_RELAXED);
        moved = true;
        inside = inside || marks % 2;
        j->marks = marks;
    }
    if (!moved)
        return;
    world_lock(f->o.world);
    print_name(f, newest, sizeof p->collective_text, p->collective_text);
    atomic_fetch_add_explicit(&p->collective_entered, entered - f->entered, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->collective_left, left - f->left, memory_order_relaxed);
    atomic_store_explicit(&p->heartbeat_ns, (uint64_t)clock_mono_ns(), memory_order_relaxed);
    world_unlock(f->o.world);
    f->entered = entered;
    f->left = left;
}

static int put_mark(struct collective *c, struct err *e)
{
    const struct fabric *f = c->fabric;
    if (!f->words)
        return 0;
    return f->o.backend->stream.mark(c->on->q, f->words[c->on - f->joined], c->number, 1, e);
}

static void *watch(void *arg)
{
    struct fabric *f = arg;
    struct err why = {0};
    while (!stops_within(f, LOOK_NS)) {
        show_marks(f);
        if (!look_at_all(f, &why))
            continue;
        f->lost = why;
        f->is_lost = true;
        f->by->abort(f->opened, f->nopened);
        break;
    }
    return NULL;
}

static void abort_fabric(struct fabric *f, const char *why)
{
    (void)why; // the world has it
    pthread_mutex_lock(&f->lock);
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
}

static int start_watcher(struct fabric *f, struct err *e)
{
    int rc = pthread_create(&f->watcher, NULL, watch, f);
    f->watches = !rc;
    return rc ? err_set(e, ERR_NOMEM, "cannot start the thread that watches collectives") : 0;
}

// False: it is in an abort that does not end.
static bool stop_watcher(struct fabric *f)
{
    struct timespec until;
    int rc;
    if (!f->watches)
        return true;
    pthread_mutex_lock(&f->lock);
    f->stops = true;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
    do {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += ABORT_S;
        rc = pthread_timedjoin_np(f->watcher, NULL, &until);
    } while (rc && !f->is_lost);
    if (!rc)
        show_marks(f);
    return !rc;
}

// ---- life --------------------------------------------------------------------------------------

static int open_fabric(const struct fabric_options *o, struct fabric **out, struct err *e)
{
    struct collectives_library library;
    const struct backend_collectives *by = o->backend->collectives;
    if (!by)
        return err_set(e, ERR_UNSUPPORTED, "the backend '%s' carries no collectives",
                       o->backend->name);
    int rc = by->load(o->device, !o->world->remotes, &library, e);
    if (rc)
        return rc;
    struct fabric *f = heap_alloc(sizeof *f);
    f->o = *o;
    f->by = by;
    list_init(&f->prepared);
    pthread_mutex_init(&f->lock, NULL);
    clock_cond_init(&f->wake);
    *out = f;
    return 0;
}

static void free_collective(struct collective *c)
{
    const struct backend *b = c->fabric->o.backend;
    if (c->ready)
        b->event.destroy(c->ready);
    if (c->done)
        b->event.destroy(c->done);
    free(c);
}

// The watcher may be left in an abort: then all that it looks at stays, and the process ends.
static void close_fabric(struct fabric *f)
{
    if (!f || !stop_watcher(f))
        return;
    const struct backend *b = f->o.backend;
    f->by->close(f->opened, f->nopened);
    for (int i = 0; i < f->njoined; i++) {
        if (f->joined[i].q)
            b->stream.destroy(f->joined[i].q);
        communicator_free(f->joined[i].hosts);
    }
    list_for_each (it, &f->prepared)
        free_collective(list_entry(it, struct collective, link));
    if (f->region)
        b->memory.free(f->o.device, f->region);
    if (f->words)
        b->memory.host_free(f->o.device, f->words);
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static int open_memory(struct fabric *f, uint64_t bytes, void **out, struct err *e)
{
    int rc = bytes ? f->by->alloc(f->o.device, bytes, &f->region, e) : 0;
    *out = f->region;
    return rc;
}

static int explain_opening(const struct fabric *f, int rc, struct err *e)
{
    const struct err why = *e;
    if (rc != ERR_UNSUPPORTED && rc != ERR_IO)
        return rc;
    return err_set(e, rc,
                   "rank %d cannot open its communicators: %.600s: NCCL_DEBUG=INFO in its "
                   "environment logs more; with resources.collectives: host it needs none",
                   f->o.world->rank, why.text);
}

// The first member makes the identity and starts its broadcast. Nobody is waited for: members may
// come to their communicators in different orders.
static int open_communicator(struct fabric *f, const char *name, const int *ranks, int n, int *out,
                             struct err *e)
{
    struct joined *j = &f->joined[f->njoined];
    *out = f->njoined;
    snprintf(j->name, sizeof j->name, "%s", name);
    int rc = communicator_new(f->o.world, name, ranks, n, &j->hosts, e);
    if (rc)
        return rc;
    f->njoined++;
    unsigned char *id = f->ids[*out];
    if (communicator_coordinate(j->hosts) == 0)
        rc = explain_opening(f, f->by->id(f->o.device, id, e), e);
    j->identity = (struct collective_args){.op = COLLECTIVE_BROADCAST,
                                           .dtype = DT_U8,
                                           .buf = id,
                                           .count = COMMUNICATOR_ID,
                                           .name = j->name};
    if (!rc)
        rc = collective_start(j->hosts, &j->identity, &j->ticket, e);
    return rc ? rc : f->o.backend->stream.create(f->o.device, STREAM_URGENT, &j->q, e);
}

static int prepare_collective(struct fabric *f, int communicator,
                              const struct collective_args *calls, int n, struct collective **out,
                              struct err *e)
{
    const struct backend *b = f->o.backend;
    struct collective *c = heap_alloc(sizeof *c);
    list_append(&f->prepared, &c->link);
    c->fabric = f;
    c->on = &f->joined[communicator];
    c->calls = calls;
    c->n = n;
    c->number = f->nprepared++;
    *out = c;
    int rc = b->event.create(f->o.device, &c->ready, e);
    return rc ? rc : b->event.create(f->o.device, &c->done, e);
}

// ---- settling ----------------------------------------------------------------------------------

static int open_devices(struct fabric *f, struct joined *j, struct err *e)
{
    int rc = collective_wait(j->hosts, &j->ticket, e);
    if (rc)
        return rc;
    rc = f->by->open(f->o.device, j->identity.buf, j->name, communicator_size(j->hosts),
                     communicator_coordinate(j->hosts), &j->devices, e);
    if (j->devices)
        f->opened[f->nopened++] = j->devices;
    return rc;
}

struct readiness {
    struct fabric *f;
    int unready; // the first communicator that is not ready
    struct err e;
};

static bool are_ready(void *arg)
{
    struct readiness *r = arg;
    bool ready = true;
    for (; r->unready < r->f->nopened && ready && !r->e.code; r->unready += ready)
        if (r->f->by->ready(r->f->opened[r->unready], &ready, &r->e))
            ready = false;
    return ready || r->e.code;
}

// Until all members of all communicators have joined, within the time that a collective has. That the
// world has lost nobody then counts against the job (ERR_IO): as a lost peer it could repeat for ever.
static int wait_until_ready(struct fabric *f, struct err *e)
{
    struct world *w = f->o.world;
    struct readiness r = {.f = f};
    int64_t until_ns = clock_mono_ns() + w->deadline_ns;
    int rc = ERR_TIMEOUT;
    world_lock(w);
    while (rc == ERR_TIMEOUT && !w->broken.code) {
        rc = world_wait(w, are_ready, &r, QUICK_NS, e);
        if (rc == ERR_TIMEOUT && w->deadline_ns && clock_mono_ns() > until_ns) {
            rc = err_set(e, ERR_IO, "not all ranks of communicator %s joined it within %.3g s",
                         f->joined[r.unready].name, (double)w->deadline_ns / 1e9);
            (void)world_break(w, e);
        }
    }
    if (!rc && r.e.code) {
        *e = r.e;
        rc = look_for_lost(f, r.e.code, e);
        (void)world_break(w, e);
    }
    world_unlock(w);
    return rc;
}

static int start_collective(struct collective *c, struct stream_q *q, struct err *e);

// Runs one call of each kind on each communicator, in the order of the programs: sends and receives
// connect at their first. All regions are zero, and stay so.
static int warm_up(struct fabric *f, struct err *e)
{
    int rc = 0;
    list_for_each (it, &f->prepared) {
        struct collective *c = list_entry(it, struct collective, link);
        unsigned kind = 1u << c->calls[0].op;
        if (!rc && !(c->on->warmed & kind))
            rc = start_collective(c, c->on->q, e);
        c->on->warmed |= kind;
    }
    for (int i = 0; i < f->njoined && !rc; i++)
        rc = f->o.backend->stream.sync(f->joined[i].q, e);
    return rc ? rc : report_lost(f, e);
}

static int open_words(struct fabric *f, struct err *e)
{
    const struct backend *b = f->o.backend;
    void *words = NULL;
    if (!b->stream.mark || !f->o.world->progress)
        return 0;
    int rc = b->memory.host_alloc(f->o.device, sizeof *f->words * COMMUNICATORS, &words, e);
    f->words = words;
    return rc;
}

static uint64_t find_left(const struct fabric *f)
{
    const struct backend *b = f->o.backend;
    uint64_t left = 0;
    return !b->memory.left || b->memory.left(f->o.device, &left, NULL) ? 0 : left;
}

static int settle_fabric(struct fabric *f, struct library_memory *took, struct err *e)
{
    const uint64_t before = find_left(f);
    int rc = 0;
    for (int i = 0; i < f->njoined && !rc; i++)
        rc = open_devices(f, &f->joined[i], e);
    if (!rc)
        rc = wait_until_ready(f, e);
    if (!rc)
        rc = open_words(f, e);
    if (!rc)
        rc = start_watcher(f, e);
    if (!rc)
        rc = warm_up(f, e);
    const uint64_t after = find_left(f);
    if (!rc && took)
        *took = (struct library_memory){f->njoined, after && after < before ? before - after : 0};
    return explain_opening(f, rc, e);
}

// ---- running -----------------------------------------------------------------------------------

static int run_call(struct collective *c, struct err *e)
{
    struct fabric *f = c->fabric;
    int rc = f->by->run(c->on->devices, c->on->q, c->calls, c->n, e);
    if (rc == ERR_ABORTED)
        return report_lost(f, e);
    if (rc) {
        world_lock(f->o.world);
        rc = look_for_lost(f, rc, e);
        world_unlock(f->o.world);
    }
    return rc;
}

static int start_collective(struct collective *c, struct stream_q *q, struct err *e)
{
    struct fabric *f = c->fabric;
    const struct backend *b = f->o.backend;
    int rc = b->event.record(q, c->ready, e);
    rc = rc ? rc : b->event.wait(c->on->q, c->ready, e);
    rc = rc ? rc : put_mark(c, e);
    rc = rc ? rc : run_call(c, e);
    rc = rc ? rc : put_mark(c, e);
    return rc ? rc : b->event.record(c->on->q, c->done, e);
}

static int wait_collective(struct collective *c, struct stream_q *q, struct err *e)
{
    return c->fabric->o.backend->event.wait(q, c->done, e);
}

static int try_open(struct fabric *f, struct err *e)
{
    return report_lost(f, e);
}

const struct transport device_transport = {
    .open = open_fabric,
    .close = close_fabric,
    .abort = abort_fabric,
    .memory = open_memory,
    .communicator = open_communicator,
    .prepare = prepare_collective,
    .settle = settle_fabric,
    .start = start_collective,
    .wait = wait_collective,
    .try = try_open,
};
