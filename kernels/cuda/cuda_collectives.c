// SPDX-License-Identifier: Apache-2.0
// Collectives between CUDA devices, by NCCL. See backend.h.
//
// A communicator never blocks (blocking = 0): whatever NCCL does with it may be in progress when the
// call returns, and until that has ended nothing more may be asked of it, nor of the stream that it
// queues work on. So `run` asks until its group is queued. A lock keeps NCCL's calls on one
// communicator apart, because an abort, which comes from another thread, gives it back.
//
// Communicators are not split from each other: that is collective over the parent, and the members
// of two groups may come to them in different orders. Each has an identity of its own.
#include "kernels/cuda/cuda_collectives.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/base/clock.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/nccl.h"

_Static_assert(COMMUNICATOR_ID == NCCL_UNIQUE_ID_BYTES, "an identity is NCCL's");

#define ABORT_NS (CLOCK_S)     // for a call that is on its way when an abort comes
#define CLOSE_NS (2 * CLOCK_S) // for the members to close

struct device_communicator {
    struct device *device;
    pthread_mutex_t lock;
    ncclComm_t comm; // null: aborted
    int coordinate, n;
    pthread_t ender; // while it is aborted
    bool has_ender;
    char name[64];
};

static struct nccl nccl;

// ---- the library -------------------------------------------------------------------------------

// What NCCL reads from the environment; whoever starts the rank may have set it otherwise.
static const char *const defaults[][2] = {
    // All connections are made when a communicator is opened, not inside its first calls: memory is
    // taken once, and a capture holds no connecting.
    {"NCCL_RUNTIME_CONNECT", "0"},
    // Kernels of several communicators start on the device in the order in which they were launched, on
    // all ranks: else two devices could be full of kernels that wait for each other's.
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
    // No port on which anybody of this host can ask.
    {"NCCL_RAS_ENABLE", "0"},
};
// For deterministic devices: one algorithm, protocol and number of blocks, which cut a tensor. With 16
// a ring of NVLink is full or nearly so; that is reasoned, not measured.
static const char *const pins[][2] = {{"NCCL_ALGO", "Ring"},
                                      {"NCCL_PROTO", "Simple"},
                                      {"NCCL_NVLS_ENABLE", "0"},
                                      {"NCCL_MIN_CTAS", "16"},
                                      {"NCCL_MAX_CTAS", "16"}};
enum { DEFAULTS = sizeof defaults / sizeof *defaults, PINS = sizeof pins / sizeof *pins };

// Returns whether all have these values now.
static bool set_variables(const char *const (*v)[2], int n)
{
    bool all = true;
    for (int i = 0; i < n; i++) {
        setenv(v[i][0], v[i][1], 0);
        const char *now = getenv(v[i][0]);
        all = all && now && strcmp(now, v[i][1]) == 0;
    }
    return all;
}

// Whether NCCL finds an address on it: in a network of its own a process may have one that is down.
static bool has_loopback(void)
{
    struct ifaddrs *all = NULL;
    bool has = false;
    if (getifaddrs(&all))
        return false;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        has = has || (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP &&
                      strcmp(i->ifa_name, "lo") == 0);
    freeifaddrs(all);
    return has;
}

static int load_nccl(struct device *d, bool local, struct collectives_library *out, struct err *e)
{
    int code = 0;
    (void)set_variables(defaults, DEFAULTS);
    unsetenv("NCCL_COMM_ID"); // identities are ours, one for each communicator
    if (local && has_loopback())
        setenv("NCCL_SOCKET_IFNAME", "=lo", 0);
    *out = (struct collectives_library){.pinned = d->deterministic && set_variables(pins, PINS)};
    const char *why = nccl_load(&nccl);
    if (why)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: install NCCL 2.27 or later, or let LD_LIBRARY_PATH name its folder",
                       why);
    if (nccl.GetVersion(&code) != ncclSuccess || code < NCCL_OLDEST)
        return err_set(e, ERR_UNSUPPORTED,
                       "NCCL %d is too old (it calls 2.27.0 %d): install 2.27 or later, or let "
                       "LD_LIBRARY_PATH name its folder",
                       code, (int)NCCL_OLDEST);
    snprintf(out->version, sizeof out->version, "%d.%d.%d", code / 10000, code / 100 % 100,
             code % 100);
    return 0;
}

// What would be refused again is not the device's fault.
static int error_of(ncclResult_t rc)
{
    const bool refused = rc == ncclInvalidUsage || rc == ncclInvalidArgument;
    return refused ? ERR_UNSUPPORTED : rc == ncclRemoteError ? ERR_PEER : ERR_DEVICE;
}

// A result that is neither success nor progress as an error: the communicator, the call, what NCCL
// says.
static int explain_failure(const struct device_communicator *c, const char *call, ncclResult_t rc,
                           struct err *e)
{
    const char *last = nccl.GetLastError(c ? c->comm : NULL);
    return err_set(e, error_of(rc), "%s%s%s%s: %s%s%s", c ? "communicator " : "", c ? c->name : "",
                   c ? ": " : "", call, nccl.GetErrorString(rc), last && last[0] ? ": " : "",
                   last ? last : "");
}

static int check_result(const struct device_communicator *c, const char *call, ncclResult_t rc,
                        struct err *e)
{
    return rc == ncclSuccess || rc == ncclInProgress ? 0 : explain_failure(c, call, rc, e);
}

static int explain_abort(const struct device_communicator *c, struct err *e)
{
    return err_set(e, ERR_ABORTED, "communicator %s was aborted", c->name);
}

// How far the communicator is with what was asked of it last. Whoever calls holds the lock.
static int look_locked(struct device_communicator *c, const char *call, bool *in_progress,
                       struct err *e)
{
    ncclResult_t state = ncclSuccess;
    int rc = c->comm ? 0 : explain_abort(c, e);
    rc = rc ? rc
            : check_result(c, "ncclCommGetAsyncError", nccl.CommGetAsyncError(c->comm, &state), e);
    rc = rc ? rc : check_result(c, call, state, e);
    *in_progress = state == ncclInProgress;
    return rc;
}

static int look(struct device_communicator *c, const char *call, bool *in_progress, struct err *e)
{
    pthread_mutex_lock(&c->lock);
    int rc = look_locked(c, call, in_progress, e);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

// ---- opening -----------------------------------------------------------------------------------

// Before a communicator is ready the device has done nothing: a port, memory or the network failed NCCL,
// and may serve it the next time.
static int spare_device(int rc, struct err *e)
{
    return rc == ERR_DEVICE || rc == ERR_PEER ? e->code = ERR_IO : rc;
}

static int make_id(struct device *d, unsigned char id[COMMUNICATOR_ID], struct err *e)
{
    ncclUniqueId made;
    int rc = device_bind(d, e);
    rc = rc ? rc
            : spare_device(check_result(NULL, "ncclGetUniqueId", nccl.GetUniqueId(&made), e), e);
    if (!rc)
        memcpy(id, made.internal, COMMUNICATOR_ID);
    return rc;
}

static int open_communicator(struct device *d, const unsigned char id[COMMUNICATOR_ID],
                             const char *name, int n, int coordinate,
                             struct device_communicator **out, struct err *e)
{
    ncclUniqueId of;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int rc = device_bind(d, e);
    struct device_communicator *c = rc ? NULL : calloc(1, sizeof *c);
    if (!c)
        return rc ? rc : err_set(e, ERR_NOMEM, "no memory for a communicator");
    c->device = d;
    c->n = n;
    c->coordinate = coordinate;
    snprintf(c->name, sizeof c->name, "%s", name);
    pthread_mutex_init(&c->lock, NULL);
    memcpy(of.internal, id, COMMUNICATOR_ID);
    config.blocking = 0;
    config.commName = c->name;
    rc = check_result(c, "ncclCommInitRankConfig",
                      nccl.CommInitRankConfig(&c->comm, n, of, coordinate, &config), e);
    *out = c; // also one that failed: what NCCL has of it is given back by `close`
    return spare_device(rc, e);
}

static int is_ready(struct device_communicator *c, bool *ready, struct err *e)
{
    bool in_progress = false;
    int rc = look(c, "ncclCommInitRankConfig", &in_progress, e);
    *ready = !rc && !in_progress;
    return spare_device(rc, e);
}

// ---- running -----------------------------------------------------------------------------------

static ncclDataType_t nccl_type(enum dtype t)
{
    static const ncclDataType_t types[] = {[DT_F32] = ncclFloat32,
                                           [DT_BF16] = ncclBfloat16,
                                           [DT_I32] = ncclInt32,
                                           [DT_U8] = ncclUint8};
    return types[t];
}

static ncclResult_t exchange_slices(const struct device_communicator *c, const char *from, char *to,
                                    size_t count, size_t bytes, ncclDataType_t type, cudaStream_t q)
{
    ncclResult_t rc = ncclSuccess;
    if (nccl.AlltoAll)
        return nccl.AlltoAll(from, to, count, type, c->comm, q);
    for (int k = 0; k < c->n && rc == ncclSuccess; k++) {
        rc = nccl.Send(from + (size_t)k * bytes, count, type, k, c->comm, q);
        if (rc == ncclSuccess)
            rc = nccl.Recv(to + (size_t)k * bytes, count, type, k, c->comm, q);
    }
    return rc;
}

static ncclResult_t add_call(const struct device_communicator *c, cudaStream_t q,
                             const struct collective_args *a)
{
    const ncclDataType_t type = nccl_type(a->dtype);
    const ncclRedOp_t reduce = a->reduce == COLLECTIVE_MAX ? ncclMax : ncclSum;
    const size_t all = (size_t)a->count, slice = all / (size_t)c->n;
    const size_t bytes = slice * dtype_size(a->dtype);
    char *own = (char *)a->buf + (size_t)c->coordinate * bytes;
    switch (a->op) {
    case COLLECTIVE_ALL_REDUCE:
        return nccl.AllReduce(a->buf, a->buf, all, type, reduce, c->comm, q);
    case COLLECTIVE_REDUCE_SCATTER:
        return nccl.ReduceScatter(a->buf, own, slice, type, reduce, c->comm, q);
    case COLLECTIVE_ALL_GATHER:
        return nccl.AllGather(own, a->buf, slice, type, c->comm, q);
    case COLLECTIVE_ALL_TO_ALL:
        return exchange_slices(c, a->from, a->buf, slice, bytes, type, q);
    case COLLECTIVE_BROADCAST:
        return nccl.Broadcast(a->buf, a->buf, all, type, a->root, c->comm, q);
    case COLLECTIVE_SEND:
        return nccl.Send(a->buf, all, type, 1 - c->coordinate, c->comm, q);
    case COLLECTIVE_RECV:
        return nccl.Recv(a->buf, all, type, 1 - c->coordinate, c->comm, q);
    case COLLECTIVE_BARRIER:
        break;
    }
    return ncclInvalidArgument;
}

static const char *call_name(enum collective_op op)
{
    static const char *const names[] = {[COLLECTIVE_ALL_REDUCE] = "ncclAllReduce",
                                        [COLLECTIVE_REDUCE_SCATTER] = "ncclReduceScatter",
                                        [COLLECTIVE_ALL_GATHER] = "ncclAllGather",
                                        [COLLECTIVE_ALL_TO_ALL] = "ncclAlltoAll",
                                        [COLLECTIVE_BROADCAST] = "ncclBroadcast",
                                        [COLLECTIVE_SEND] = "ncclSend",
                                        [COLLECTIVE_RECV] = "ncclRecv",
                                        [COLLECTIVE_BARRIER] = "a barrier"};
    return names[op];
}

// A group that was begun is ended, whatever its calls said.
static int add_group(struct device_communicator *c, cudaStream_t q,
                     const struct collective_args *calls, int n, struct err *e)
{
    int rc = check_result(c, "ncclGroupStart", nccl.GroupStart(), e);
    if (rc)
        return rc;
    for (int i = 0; i < n && !rc; i++)
        rc = check_result(c, call_name(calls[i].op), add_call(c, q, &calls[i]), e);
    int ended = check_result(c, "ncclGroupEnd", nccl.GroupEnd(), rc ? NULL : e);
    return rc ? rc : ended;
}

static int run_calls(struct device_communicator *c, struct stream_q *q,
                     const struct collective_args *calls, int n, struct err *e)
{
    bool in_progress = true;
    int rc = device_bind(c->device, e);
    if (rc)
        return rc;
    pthread_mutex_lock(&c->lock);
    rc = c->comm ? add_group(c, q->stream, calls, n, e) : explain_abort(c, e);
    pthread_mutex_unlock(&c->lock);
    while (!rc && in_progress) {
        rc = look(c, call_name(calls[n - 1].op), &in_progress, e);
        if (!rc && in_progress)
            (void)sched_yield();
    }
    return rc;
}

// Another thread may stand in one of NCCL's calls: then there is no news, and nobody waits for it.
static int check_communicator(struct device_communicator *c, struct err *e)
{
    bool in_progress;
    struct err said = {0};
    if (pthread_mutex_trylock(&c->lock))
        return 0;
    int rc = look_locked(c, "collectives", &in_progress, &said);
    pthread_mutex_unlock(&c->lock);
    return !rc || rc == ERR_ABORTED ? 0 : err_set(e, rc, "%s", said.text);
}

// ---- the end -----------------------------------------------------------------------------------

static ncclComm_t take_away(struct device_communicator *c)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_NS / CLOCK_S;
    if (pthread_mutex_timedlock(&c->lock, &until))
        return NULL; // NCCL does not come back from a call: nothing can be done with it
    ncclComm_t comm = c->comm;
    c->comm = NULL;
    pthread_mutex_unlock(&c->lock);
    return comm;
}

// NCCL returns to the thread's device at its end, which would else be the first of the host.
static void *abort_communicator(void *arg)
{
    struct device_communicator *c = arg;
    ncclComm_t comm = take_away(c);
    (void)cudaSetDevice(c->device->ordinal);
    if (comm)
        (void)nccl.CommAbort(comm);
    return NULL;
}

// All at once, each by a thread of its own: an abort waits for the communicator's own thread, for its
// stream and to free memory, hence for whatever else is queued on the device. That may be a call of
// another communicator, which ends when this is aborted too.
static void abort_communicators(struct device_communicator **c, int n)
{
    if (n)
        device_abandon(c[0]->device);
    for (int i = 0; i < n; i++)
        c[i]->has_ender = !pthread_create(&c[i]->ender, NULL, abort_communicator, c[i]);
    for (int i = 0; i < n; i++)
        if (!c[i]->has_ender)
            (void)abort_communicator(c[i]);
    for (int i = 0; i < n; i++)
        if (c[i]->has_ender)
            pthread_join(c[i]->ender, NULL);
}

// Whether all that was asked of the communicator is done within the time.
static bool has_ended(struct device_communicator *c, int64_t until_ns)
{
    struct err e = {0};
    bool in_progress = true;
    while (!look(c, "ncclCommFinalize", &in_progress, &e) && in_progress &&
           clock_mono_ns() < until_ns)
        clock_sleep_ms(1);
    return !in_progress && !e.code;
}

static bool finalize(struct device_communicator *c)
{
    struct err e = {0};
    bool in_progress = true;
    return !look(c, "ncclCommFinalize", &in_progress, &e) && !in_progress &&
           !check_result(c, "ncclCommFinalize", nccl.CommFinalize(c->comm), &e);
}

// All are finalised first, as each waits for its members, and these may have them in another order.
// Where one cannot be, or is not done in time (its members are gone), all are aborted: to destroy
// another frees memory, which waits for what that one has on the device.
static void close_communicators(struct device_communicator **c, int n)
{
    int64_t until_ns = clock_mono_ns() + CLOSE_NS;
    struct err e = {0};
    bool bound = n && !device_bind(c[0]->device, &e), ended = bound;
    for (int i = 0; i < n && ended; i++)
        ended = finalize(c[i]);
    for (int i = 0; i < n && ended; i++)
        ended = has_ended(c[i], until_ns);
    for (int i = 0; i < n && ended; i++)
        (void)nccl.CommDestroy(take_away(c[i]));
    if (bound && !ended)
        abort_communicators(c, n);
    for (int i = 0; i < n; i++) {
        pthread_mutex_destroy(&c[i]->lock);
        free(c[i]);
    }
}

// ---- memory ------------------------------------------------------------------------------------

static cudaError_t take_from_nccl(void **out, size_t bytes)
{
    return nccl.MemAlloc(out, bytes) == ncclSuccess ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t give_back_to_nccl(void *p)
{
    return nccl.MemFree(p) == ncclSuccess ? cudaSuccess : cudaErrorInvalidValue;
}

static const char *read_last_error(void)
{
    const char *last = nccl.GetLastError(NULL);
    return last ? last : "";
}

static int alloc_memory(struct device *d, size_t bytes, void **out, struct err *e)
{
    static const struct memory_source source = {"ncclMemAlloc", take_from_nccl, give_back_to_nccl,
                                                read_last_error};
    bytes += COLLECTIVE_PIECE - 1;
    return memory_alloc_from(d, &source, bytes - bytes % COLLECTIVE_PIECE, out, e);
}

const struct backend_collectives cuda_collectives = {
    .load = load_nccl,
    .id = make_id,
    .open = open_communicator,
    .ready = is_ready,
    .run = run_calls,
    .check = check_communicator,
    .abort = abort_communicators,
    .alloc = alloc_memory,
    .close = close_communicators,
};
