// SPDX-License-Identifier: Apache-2.0
// An NCCL over the fake CUDA runtime, between processes; see fake.h. Types are the real header's.
//
// Members of a communicator meet in a file of shared memory that the maker of its identity holds: the
// identity is that process's pid and descriptor. There is a ring of bytes from each member to each
// other one. A call sends a head (what the call is) and bytes, and takes those of its peers, when the
// stream comes to it; until its peers have come to theirs the stream stands still, and with it whoever
// waits for it.
//
// Work of the fake runtime runs as late as can be, so a device here comes to its calls in the order in
// which they were launched, as a GPU does, not in that in which streams are waited for.
//
// Ends the program where NCCL would hang or corrupt memory: calls that differ between ranks, calls of
// several communicators that were launched in orders that do not fit (fake_nccl_wait.c; a send waits
// for its receiver), in-place operands that overlap otherwise than NCCL allows, a communicator that is
// used after it was given back, or by two threads at once, or on a stream of another device. Returns
// what NCCL returns where one is used that is still in progress, and where two ranks of one host have
// one device (NCCL_HOSTID is the host's name).
//
// WEFT_FAKE_CUDA, beside what fake_runtime.c says:
//   nccl_absent     there is no library            nccl_version:N  another one (22809)
//   nccl_init       no communicator gets ready     nccl_launch:N   the N-th group stays in progress
//   nccl_hang:N     the N-th call never ends       nccl_remote:N   nor does it, with ncclRemoteError
//   but when its communicator is aborted
//   nccl_refuses:N  no communicator can be opened, by the N-th ncclResult_t (2: ncclSystemError)
//   nccl_spins      once a communicator with calls was aborted its stream has a kernel that never ends; after
//   any abort exit() does not end either
//   nccl_sticks     no abort ends                 nccl_memory     it may have none of the device's memory
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/cuda/fake_nccl.h"

enum { COMM_MEMORY = 3 << 20, GRANULARITY = 2 << 20, VERSION = 22809 };

// Of what follows and of references, so that an abort need not wait for the runtime's lock, which
// whoever stands in a call holds.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *comms[MOST_COMMS];
static int ncomms;
static struct group *first, **last = &first; // launched and not done, in that order
static _Thread_local struct group *open_group;
static _Thread_local int depth;
static _Thread_local char said[200]; // what NCCL would log

// ---- what NCCL does not allow ------------------------------------------------------------------

static void check_lives(const struct ncclComm *c)
{
    for (int i = 0; i < ncomms; i++)
        if (comms[i] == c)
            return;
    END_PROGRAM((const struct ncclComm *)NULL,
                "a communicator is used that was given back, or never was");
}

// Nothing of NCCL's keeps threads apart, not even from an abort.
static void enter(struct ncclComm *c)
{
    pthread_mutex_lock(&lock);
    check_lives(c);
    pthread_mutex_unlock(&lock);
    if (atomic_exchange(&c->inside, true))
        END_PROGRAM(c, "two threads are in its calls at once");
}

static void leave(struct ncclComm *c)
{
    c->inside = false;
}

// ---- identities and members --------------------------------------------------------------------

static ncclResult_t get_version(int *version)
{
    long n = VERSION;
    fake_scene("nccl_version", &n);
    *version = (int)n;
    return ncclSuccess;
}

static const char *error_string(ncclResult_t rc)
{
    return rc == ncclSuccess           ? "no error"
           : rc == ncclRemoteError     ? "remote process exited or there was a network error"
           : rc == ncclInvalidArgument ? "invalid argument (run with NCCL_DEBUG=WARN for details)"
           : rc == ncclInvalidUsage
               ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
               : "unhandled system error (run with NCCL_DEBUG=INFO for details)";
}

static const char *last_error(ncclComm_t c)
{
    (void)c;
    return said;
}

static ncclResult_t refuse(ncclResult_t rc, const char *why)
{
    snprintf(said, sizeof said, "%s", why);
    return rc;
}

static ncclResult_t make_id(ncclUniqueId *id)
{
    struct identity made = {.pid = (int)getpid(), .file = memfd_create("weft-nccl", MFD_CLOEXEC)};
    memset(id, 0, sizeof *id);
    const char *connect = getenv("NCCL_RUNTIME_CONNECT");
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (!connect || strcmp(connect, "0") != 0)
        END_PROGRAM((const struct ncclComm *)NULL,
                    "NCCL_RUNTIME_CONNECT is not 0: it would connect inside the first calls");
    if (!order || strcmp(order, "1") != 0)
        END_PROGRAM(
            (const struct ncclComm *)NULL,
            "NCCL_LAUNCH_ORDER_IMPLICIT is not 1: kernels of two communicators may fill two "
            "devices in different orders");
    if (made.file < 0 || ftruncate(made.file, sizeof(struct shared)) ||
        getrandom(&made.nonce, sizeof made.nonce, 0) != sizeof made.nonce ||
        pwrite(made.file, &made.nonce, sizeof made.nonce, 0) != sizeof made.nonce)
        return refuse(ncclSystemError, "no shared memory");
    memcpy(id->internal, &made, sizeof made);
    return ncclSuccess;
}

// Of the thread's device, as NCCL compares them.
static uint64_t find_place(void)
{
    char host[128] = "";
    uint64_t hash = 14695981039346656037u + (uint64_t)fake_device();
    const char *name = getenv("NCCL_HOSTID");
    gethostname(host, sizeof host - 1);
    for (name = name && name[0] ? name : host; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

// Null when its maker is gone.
static struct shared *map_shared(const struct identity *of)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", of->pid, of->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *p = file < 0
                  ? MAP_FAILED
                  : mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (p == MAP_FAILED)
        return NULL;
    struct shared *s = p;
    if (s->nonce == of->nonce)
        return s;
    munmap(p, sizeof *s);
    return NULL;
}

static ncclResult_t join(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct identity of;
    memcpy(&of, id.internal, sizeof of);
    if (n < 1 || n > MOST_RANKS || rank < 0 || rank >= n || ncomms == MOST_COMMS)
        return refuse(ncclInvalidArgument, "invalid rank or size");
    if (config->blocking != 0)
        END_PROGRAM((const struct ncclComm *)NULL,
                    "a communicator that blocks cannot be aborted while it is opened");
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    *c = (struct ncclComm){
        .n = n, .rank = rank, .device = fake_device(), .nonce = of.nonce, .refs = 1};
    c->shared = map_shared(&of);
    if (c->shared) {
        c->shared->place[rank] = find_place();
        c->shared->process[rank] = wait_process();
    }
    if (!c->shared)
        c->error = ncclRemoteError;
    else if (atomic_fetch_or(&c->shared->joined, 1u << rank) & 1u << rank)
        c->error = ncclInvalidUsage;
    long refuses = ncclSystemError;
    if (fake_scene("nccl_refuses", &refuses) || cudaMalloc(&c->memory, COMM_MEMORY))
        c->error = (int)refuses;
    pthread_mutex_lock(&lock);
    comms[ncomms++] = c;
    pthread_mutex_unlock(&lock);
    *out = c;
    return ncclInProgress;
}

static bool are_all(const struct ncclComm *c, unsigned members)
{
    return members == (1u << c->n) - 1;
}

// ---- running -----------------------------------------------------------------------------------

// A call that the scene says never ends: until its communicator is aborted.
static bool is_held(struct ncclComm *c)
{
    static long count;
    long hang = 0, remote = 0;
    fake_scene("nccl_hang", &hang);
    fake_scene("nccl_remote", &remote);
    count++;
    if (count == remote)
        c->error = ncclRemoteError;
    if (count != hang && count != remote)
        return false;
    while (!c->aborted)
        usleep(100);
    return true;
}

static void drop(struct ncclComm *c)
{
    pthread_mutex_lock(&lock);
    bool last_one = !--c->refs;
    pthread_mutex_unlock(&lock);
    if (!last_one)
        return;
    if (c->shared)
        munmap(c->shared, sizeof *c->shared);
    free(c);
}

static bool is_pair(const struct call *k)
{
    return k->kind == SEND || k->kind == RECV;
}

static void remove_first(void)
{
    struct group *g = first;
    if (!g)
        return;
    first = g->next;
    if (!first)
        last = &first;
    drop(g->comm);
    free(g);
}

static void spin(const void *args)
{
    (void)args;
    for (;;)
        usleep(1000);
}

// Holds the runtime's lock, as all work does.
static void run_group(const void *args)
{
    struct group *g;
    memcpy(&g, args, sizeof g);
    while (first && first != g)
        if (first->stream->first)
            work_run_one(first->stream);
        else
            remove_first(); // its device has failed, which runs nothing more
    for (int i = 0, end; i < g->calls && !g->comm->aborted; i = end) {
        for (end = i + 1; is_pair(&g->call[i]) && end < g->calls && is_pair(&g->call[end]);)
            end++;
        if (is_held(g->comm) || !perform_calls(g, i, end))
            break;
    }
    if (g->comm->aborted && fake_scene("nccl_spins", NULL))
        (void)work_queue(g->stream, work_new(spin, NULL, 0, "a kernel that never ends"));
    remove_first();
}

// ---- groups ------------------------------------------------------------------------------------

static ncclResult_t group_start(void)
{
    depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(void)
{
    struct group *g = open_group;
    if (depth < 1)
        return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--depth || !g)
        return ncclSuccess;
    open_group = NULL;
    pthread_mutex_lock(&lock);
    g->number = g->comm->calls;
    g->comm->calls += (uint64_t)g->calls;
    g->comm->ended = g;
    g->comm->asked = false;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

// Only now it is on its stream: who recorded an event before has recorded too early.
static ncclResult_t queue_ended(struct ncclComm *c)
{
    static long count;
    long stays = 0;
    struct group *g = c->ended;
    fake_scene("nccl_launch", &stays);
    if (!c->asked)
        count++;
    if (!c->asked || count == stays) {
        c->asked = true;
        return ncclInProgress;
    }
    c->ended = NULL;
    fake_lock();
    *last = g;
    last = &g->next;
    cudaError_t rc = work_queue(g->stream, work_new(run_group, &g, sizeof g, "nccl"));
    fake_unlock();
    return rc ? ncclUnhandledCudaError : ncclSuccess;
}

// Whether another member has this one's device.
static bool shares_device(const struct ncclComm *c)
{
    bool shares = false;
    for (int r = 0; r < c->n; r++)
        shares |= r != c->rank && c->shared->place[r] == c->shared->place[c->rank];
    return shares;
}

static ncclResult_t look(ncclComm_t c, ncclResult_t *out)
{
    if (!c->error && are_all(c, c->shared->joined) && shares_device(c)) {
        c->error = ncclInvalidUsage;
        refuse(ncclInvalidUsage, "Duplicate GPU detected");
    }
    if (c->error)
        *out = (ncclResult_t)c->error;
    else if (!are_all(c, c->shared->joined) || fake_scene("nccl_init", NULL))
        *out = ncclInProgress;
    else if (c->ended)
        *out = queue_ended(c);
    else if (c->finalizing)
        *out = are_all(c, c->shared->finalized) ? ncclSuccess : ncclInProgress;
    else
        *out = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t async_error(ncclComm_t c, ncclResult_t *out)
{
    enter(c);
    look(c, out);
    leave(c);
    return ncclSuccess;
}

static bool overlap(const char *a, size_t n, const char *b, size_t m)
{
    return a < b + m && b < a + n;
}

// In place is one thing for each kind.
static void check_places(const struct ncclComm *c, const struct call *k)
{
    const size_t bytes = k->count * type_size(k->type), all = bytes * (size_t)c->n;
    const size_t own = (size_t)c->rank * bytes;
    bool whole = k->kind == ALL_REDUCE || k->kind == BROADCAST;
    size_t from = k->kind == REDUCE_SCATTER || k->kind == ALL_TO_ALL ? all : bytes;
    size_t to = k->kind == ALL_GATHER || k->kind == ALL_TO_ALL ? all : bytes;
    bool in_place = (whole && k->from == k->to) ||
                    (k->kind == REDUCE_SCATTER && k->to == k->from + own) ||
                    (k->kind == ALL_GATHER && k->from == k->to + own);
    enum fake_where where;
    if (!is_pair(k) && !in_place && overlap(k->from, from, k->to, to))
        END_PROGRAM(c, "operand and result of %s overlap", call_names[k->kind]);
    if (k->kind != RECV && (!fake_memory_where(k->from, from, &where) || where != FAKE_DEVICE))
        END_PROGRAM(c, "the operand of %s is no memory of the device", call_names[k->kind]);
    if (k->kind != SEND && (!fake_memory_where(k->to, to, &where) || where != FAKE_DEVICE))
        END_PROGRAM(c, "the result of %s is no memory of the device", call_names[k->kind]);
}

static ncclResult_t add_call(ncclComm_t c, cudaStream_t stream, const struct call *k)
{
    struct group *g = open_group;
    ncclResult_t state = ncclSuccess;
    bool reduces = k->kind == ALL_REDUCE || k->kind == REDUCE_SCATTER;
    look(c, &state);
    if (state == ncclInProgress)
        return refuse(ncclInvalidArgument, "Attempt to use communicator before the previous "
                                           "operation returned ncclSuccess");
    if (state != ncclSuccess)
        return state;
    if (k->peer < 0 || k->peer >= c->n)
        return refuse(ncclInvalidArgument, "invalid peer or root");
    if (reduces && k->type != ncclFloat32 && k->type != ncclBfloat16)
        END_PROGRAM(c, "sums of type %d are not emulated", (int)k->type);
    if (stream->capture)
        END_PROGRAM(c, "captures of collectives are not emulated");
    if (stream->device != c->device)
        END_PROGRAM(c, "its device is %d, the stream's %d", c->device, stream->device);
    fake_lock();
    check_places(c, k);
    fake_unlock();
    group_start();
    if (!g) {
        g = open_group = calloc(1, sizeof *g);
        if (!g)
            abort();
        g->comm = c;
        g->stream = stream;
        pthread_mutex_lock(&lock);
        c->refs++;
        pthread_mutex_unlock(&lock);
    }
    if (g->comm != c || g->stream != stream || g->calls == MOST_CALLS)
        END_PROGRAM(c, "a group of several communicators or streams is not emulated");
    g->call[g->calls++] = *k;
    return group_end();
}

static ncclResult_t add(ncclComm_t c, cudaStream_t stream, const struct call *k)
{
    enter(c);
    ncclResult_t rc = add_call(c, stream, k);
    leave(c);
    return rc;
}

static ncclResult_t all_reduce(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){ALL_REDUCE, from, to, count, type, op, 0});
}

static ncclResult_t reduce_scatter(const void *from, void *to, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){REDUCE_SCATTER, from, to, count, type, op, 0});
}

static ncclResult_t all_gather(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){ALL_GATHER, from, to, count, type, ncclSum, 0});
}

static ncclResult_t all_to_all(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){ALL_TO_ALL, from, to, count, type, ncclSum, 0});
}

static ncclResult_t broadcast(const void *from, void *to, size_t count, ncclDataType_t type,
                              int root, ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){BROADCAST, from, to, count, type, ncclSum, root});
}

static ncclResult_t send_to(const void *from, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t c, cudaStream_t s)
{
    return add(c, s, &(struct call){SEND, from, NULL, count, type, ncclSum, peer});
}

static ncclResult_t receive(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                            cudaStream_t s)
{
    return add(c, s, &(struct call){RECV, NULL, to, count, type, ncclSum, peer});
}

// ---- the end -----------------------------------------------------------------------------------

static ncclResult_t finalize(ncclComm_t c)
{
    ncclResult_t state = ncclSuccess;
    async_error(c, &state);
    if (state != ncclSuccess)
        return refuse(ncclInvalidArgument, "ncclCommFinalize: the communicator is in progress");
    c->finalizing = true;
    atomic_fetch_or(&c->shared->finalized, 1u << c->rank);
    return ncclInProgress;
}

static void give_back(struct ncclComm *c, bool aborts)
{
    enter(c);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ncomms; i++)
        if (comms[i] == c)
            comms[i] = comms[--ncomms];
    if (!aborts && c->refs > 1)
        END_PROGRAM(c, "a communicator is destroyed while its calls are queued");
    c->refs -= c->ended != NULL;
    free(c->ended);
    c->aborted = true;
    pthread_mutex_unlock(&lock);
    drop(c);
}

static ncclResult_t destroy(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    check_lives(c);
    pthread_mutex_unlock(&lock);
    if (!c->finalizing || !are_all(c, c->shared->finalized))
        END_PROGRAM(c, "a communicator is destroyed that is not finalized");
    (void)cudaFree(c->memory);
    give_back(c, false);
    return ncclSuccess;
}

static bool do_others_queue(void)
{
    bool found = false;
    fake_lock();
    for (const struct group *g = first; g && !found; g = g->next)
        found = !g->comm->aborted;
    fake_unlock();
    return found;
}

static _Atomic bool waits_at_exit;

__attribute__((destructor)) static void wait_at_exit(void)
{
    while (waits_at_exit)
        pause();
}

// It frees memory, which waits for what other communicators have on the device.
static ncclResult_t abort_comm(ncclComm_t c)
{
    waits_at_exit = fake_scene("nccl_spins", NULL);
    give_back(c, true);
    while (do_others_queue() || fake_scene("nccl_sticks", NULL))
        usleep(1000);
    return ncclSuccess;
}

static ncclResult_t mem_alloc(void **out, size_t bytes)
{
    bytes = (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (fake_scene("nccl_memory", NULL))
        return refuse(ncclUnhandledCudaError, "Cuda failure 800 'operation not permitted'");
    return cudaMalloc(out, bytes) ? refuse(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'")
                                  : ncclSuccess;
}

static ncclResult_t mem_free(void *p)
{
    return cudaFree(p) ? ncclUnhandledCudaError : ncclSuccess;
}

const char *nccl_load(struct nccl *out)
{
    *out = (struct nccl){.GetVersion = get_version,
                         .GetErrorString = error_string,
                         .GetLastError = last_error,
                         .GetUniqueId = make_id,
                         .CommInitRankConfig = join,
                         .CommGetAsyncError = async_error,
                         .CommFinalize = finalize,
                         .CommDestroy = destroy,
                         .CommAbort = abort_comm,
                         .MemAlloc = mem_alloc,
                         .MemFree = mem_free,
                         .GroupStart = group_start,
                         .GroupEnd = group_end,
                         .AllReduce = all_reduce,
                         .ReduceScatter = reduce_scatter,
                         .AllGather = all_gather,
                         .Broadcast = broadcast,
                         .Send = send_to,
                         .Recv = receive};
    int version;
    get_version(&version);
    if (version >= NCCL_VERSION(2, 28, 0))
        out->AlltoAll = all_to_all;
    return fake_scene("nccl_absent", NULL) ? "there is no libnccl.so.2" : NULL;
}
