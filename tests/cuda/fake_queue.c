// SPDX-License-Identifier: Apache-2.0
// Streams, events and graphs of the fake CUDA runtime. See fake.h.
//
// A stream is a list of work that nobody has done yet. Waiting for a stream or an event runs what
// that needs and nothing else: the latest schedule that CUDA's rules allow, so that whoever forgot
// an event finds the other stream's work undone. With a seed, work also runs at other moments.
//
// A mark is one recording of an event: waits hold the mark that was the last when they were queued.
// While a stream captures, its work becomes nodes of a graph, each behind those that the stream had
// come to; events carry these to other streams, which then capture too and must come back before
// the end. A launched graph runs its nodes in an order of its own: forks first, as late as allowed.
#include "tests/cuda/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulate.h"

enum { MOST_DEPS = 32, MOST_STREAMS = 256, MOST_NODES = 1 << 20 };

struct mark {
    int refs;
    bool done;
    cudaStream_t stream;
    double ms; // when it was reached
};

struct work {
    struct work *next;
    struct mark *reach, *await; // one of these, or run
    void (*run)(const void *args);
    const char *what;
    size_t bytes;
    bool kernel;
    _Alignas(16) char args[];
};

struct deps {
    int n, node[MOST_DEPS];
};

struct node {
    struct work *work;
    struct deps deps;
    int lane;
};

struct capture {
    struct node *node;
    int nodes, lanes;
    bool broken;
    cudaStream_t origin;
};

struct CUstream_st {
    int device;
    struct work *first, **last;
    struct capture *capture;
    struct deps at;
    int lane;
};

struct CUevent_st {
    struct mark *mark;
    struct capture *capture; // recorded while this was captured
    struct deps at;
};

struct CUgraph_st {
    struct node *node;
    int nodes;
};

struct CUgraphExec_st {
    int refs;
    struct node *node; // in the order in which they run
    int nodes;
};

static cudaStream_t streams[MOST_STREAMS];
static int nstreams;
static _Thread_local struct capture *mine; // of this thread
static struct CUstream_st legacy = {.last = &legacy.first};

static double clock_us; // of the devices

void fake_time_passes(double us)
{
    clock_us += us;
}

static cudaStream_t stream_of(cudaStream_t s)
{
    return s ? s : &legacy;
}

// ---- running -----------------------------------------------------------------------------------

static void mark_drop(struct mark *m)
{
    if (m && !--m->refs)
        free(m);
}

static void work_free(struct work *w)
{
    mark_drop(w->reach);
    mark_drop(w->await);
    free(w);
}

static void run_until(cudaStream_t s, const struct mark *until);

static void perform(cudaStream_t s, struct work *w)
{
    if (w->await && !w->await->done)
        run_until(w->await->stream, w->await);
    if (w->reach) {
        w->reach->done = true;
        w->reach->ms = clock_us / 1000;
    }
    if (!w->run || fake_failed_of(s->device))
        return;
    if (w->kernel && fake_kernel_fails()) {
        fake_fail(s->device, cudaErrorIllegalAddress);
        return;
    }
    fake_time_passes(1);
    w->run(w->args);
}

static void run_one(cudaStream_t s)
{
    struct work *w = s->first;
    s->first = w->next;
    if (!s->first)
        s->last = &s->first;
    perform(s, w);
    work_free(w);
}

// Until the mark is reached; null: until nothing is left.
static void run_until(cudaStream_t s, const struct mark *until)
{
    fake_memory_open();
    while (s->first && !(until && until->done))
        run_one(s);
    fake_memory_close();
}

void fake_finish_all(void)
{
    run_until(&legacy, NULL);
    for (int i = 0; i < nstreams; i++)
        if (streams[i]->device == fake_device())
            run_until(streams[i], NULL);
}

// With a seed some work may be done now.
static void perhaps_run(void)
{
    static uint64_t state;
    long seed = 0;
    if (!fake_scene("seed", &seed) || !nstreams)
        return;
    state = (state ? state : (uint64_t)seed + 1) * 6364136223846793005u + 1442695040888963407u;
    cudaStream_t s = streams[(state >> 33) % (uint64_t)nstreams];
    fake_memory_open();
    for (int n = (int)(state >> 60); n > 0 && s->first; n--)
        run_one(s);
    fake_memory_close();
}

// ---- queueing ----------------------------------------------------------------------------------

static struct work *work_new(void (*run)(const void *), const void *args, size_t bytes,
                             const char *what)
{
    struct work *w = calloc(1, sizeof *w + bytes + 1);
    if (!w)
        abort();
    w->run = run;
    w->what = what;
    w->bytes = bytes;
    if (args)
        memcpy(w->args, args, bytes);
    return w;
}

static void append(cudaStream_t s, struct work *w)
{
    *s->last = w;
    s->last = &w->next;
}

static void deps_add(struct deps *d, int node)
{
    for (int i = 0; i < d->n; i++)
        if (d->node[i] == node)
            return;
    if (d->n == MOST_DEPS)
        abort();
    d->node[d->n++] = node;
}

static void capture_add(cudaStream_t s, struct work *w)
{
    struct capture *c = s->capture;
    if (c->nodes == MOST_NODES)
        abort();
    if (!(c->nodes & (c->nodes - 1)))
        c->node = realloc(c->node, sizeof *c->node * (c->nodes ? 2 * (size_t)c->nodes : 1));
    c->node[c->nodes] = (struct node){.work = w, .deps = s->at, .lane = s->lane};
    s->at = (struct deps){.n = 1, .node = {c->nodes++}};
}

static cudaError_t queue(cudaStream_t s, struct work *w)
{
    cudaError_t rc = fake_failed_of(s->device);
    if (!rc && s->capture && s->capture->broken)
        rc = cudaErrorStreamCaptureInvalidated;
    if (rc)
        work_free(w);
    else if (s->capture)
        capture_add(s, w);
    else
        append(s, w);
    if (!rc && !s->capture)
        perhaps_run();
    return rc;
}

cudaError_t fake_enqueue(cudaStream_t stream, void (*run)(const void *args), const void *args,
                         size_t bytes, const char *what)
{
    fake_lock();
    cudaError_t rc = queue(stream_of(stream), work_new(run, args, bytes, what));
    fake_unlock();
    return fake_error(rc);
}

// ---- kernels -----------------------------------------------------------------------------------

struct launch {
    struct emulate_kernel kernel;
    size_t bytes;
    _Alignas(16) char args[];
};

static void run_kernel(const void *args)
{
    const struct launch *l = args;
    emulate_run(&l->kernel, l->args);
}

static cudaError_t launch_error(const struct emulate_kernel *k, cudaStream_t s)
{
    uint64_t threads = (uint64_t)k->block.x * k->block.y * k->block.z;
    bool grid = k->grid.x && k->grid.y && k->grid.z && k->grid.x <= 0x7fffffff &&
                k->grid.y <= 65535 && k->grid.z <= 65535;
    if (!grid || !threads || threads > 1024 || k->block.z > 64)
        return cudaErrorInvalidConfiguration;
    if (k->shared_bytes > fake_shared_allowed(k->function))
        return cudaErrorInvalidValue;
    return s->device == fake_device() || s == &legacy ? cudaSuccess
                                                      : cudaErrorInvalidResourceHandle;
}

void emulate_launch(const struct emulate_kernel *k, const void *args, size_t bytes,
                    cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = stream_of(stream);
    cudaError_t rc = launch_error(k, s);
    const void *stray = fake_memory_stray(args, bytes);
    if (stray) {
        fprintf(stderr,
                "fake cuda: kernel %s (%s:%d) is given %p, which is no memory of the device (or an "
                "argument that was never set)\n",
                k->name, k->at.file, k->at.line, stray);
        abort();
    }
    if (!rc) {
        struct work *w = work_new(run_kernel, NULL, sizeof(struct launch) + bytes, k->name);
        struct launch *l = (struct launch *)(void *)w->args;
        l->kernel = *k;
        l->bytes = bytes;
        memcpy(l->args, args, bytes);
        w->kernel = true;
        rc = queue(s, w);
    }
    fake_unlock();
    fake_error(rc);
}

// ---- copies ------------------------------------------------------------------------------------

struct copy {
    void *to;
    const void *from; // null: what lies behind this
    size_t bytes;
    int with; // of a fill
    _Alignas(16) char staged[];
};

static void run_copy(const void *args)
{
    const struct copy *c = args;
    memmove(c->to, c->from ? c->from : c->staged, c->bytes);
}

static void run_fill(const void *args)
{
    const struct copy *c = args;
    memset(c->to, c->with, c->bytes);
}

// What is pageable is read before the call returns, and written before it returns.
static cudaError_t copy_async(void *to, const void *from, size_t bytes, cudaStream_t s)
{
    enum fake_where t, f;
    if (!fake_memory_where(to, bytes, &t) || !fake_memory_where(from, bytes, &f))
        return cudaErrorInvalidValue;
    bool staged = f == FAKE_PAGEABLE && !s->capture;
    size_t room = sizeof(struct copy) + (staged ? bytes : 0);
    struct copy *c = calloc(1, room);
    if (!c)
        abort();
    *c = (struct copy){.to = to, .from = staged ? NULL : from, .bytes = bytes};
    if (staged)
        memcpy(c->staged, from, bytes);
    cudaError_t rc = queue(s, work_new(run_copy, c, room, "copy"));
    free(c);
    if (!rc && t == FAKE_PAGEABLE && !s->capture)
        run_until(s, NULL);
    return rc ? rc : fake_failed_of(s->device);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    fake_lock();
    cudaError_t rc = copy_async(to, from, bytes, stream_of(stream));
    fake_unlock();
    return fake_error(rc);
}

static cudaError_t fill_async(void *to, int with, size_t bytes, cudaStream_t s)
{
    enum fake_where t;
    const struct copy c = {.to = to, .with = with, .bytes = bytes};
    if (!fake_memory_where(to, bytes, &t) || (t == FAKE_PAGEABLE && bytes))
        return cudaErrorInvalidValue;
    return queue(s, work_new(run_fill, &c, sizeof c, "fill"));
}

cudaError_t cudaMemsetAsync(void *to, int with, size_t bytes, cudaStream_t stream)
{
    fake_lock();
    cudaError_t rc = fill_async(to, with, bytes, stream_of(stream));
    fake_unlock();
    return fake_error(rc);
}

// The legacy stream's: all that other streams have stays where it is, for ours never wait for it.
cudaError_t cudaMemset(void *to, int with, size_t bytes)
{
    fake_lock();
    cudaError_t rc = fake_refused_in_capture();
    rc = rc ? rc : fill_async(to, with, bytes, &legacy);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    fake_lock();
    cudaError_t rc = fake_refused_in_capture();
    rc = rc ? rc : copy_async(to, from, bytes, &legacy);
    if (!rc)
        run_until(&legacy, NULL);
    fake_unlock();
    return fake_error(rc);
}

struct host_call {
    cudaHostFn_t run;
    void *arg;
};

static void run_host(const void *args)
{
    const struct host_call *h = args;
    fake_memory_close(); // such a function may call nothing of CUDA's and reads no device memory
    h->run(h->arg);
    fake_memory_open();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t run, void *arg)
{
    const struct host_call h = {run, arg};
    return fake_enqueue(stream, run_host, &h, sizeof h, "host function");
}

// ---- streams -----------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    fake_lock();
    cudaError_t rc = fake_failed();
    if (!rc && nstreams == MOST_STREAMS)
        rc = cudaErrorMemoryAllocation;
    if (!rc) {
        struct CUstream_st *s = calloc(1, sizeof *s);
        if (!s)
            abort();
        s->device = fake_device();
        s->last = &s->first;
        *out = streams[nstreams++] = s;
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    fake_lock();
    run_until(s, NULL);
    for (int i = 0; i < nstreams; i++)
        if (streams[i] == s)
            streams[i] = streams[--nstreams];
    cudaError_t rc = fake_failed_of(s->device);
    free(s);
    fake_unlock();
    return fake_error(rc);
}

// A capturing stream cannot be waited for; who tries loses the capture.
static cudaError_t refuse_capturing(cudaStream_t s)
{
    if (!s->capture)
        return cudaSuccess;
    s->capture->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = stream_of(stream);
    cudaError_t rc = refuse_capturing(s);
    if (!rc)
        run_until(s, NULL);
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = stream_of(stream);
    cudaError_t rc = refuse_capturing(s);
    if (!rc && s->first) {
        rc = cudaErrorNotReady;
        fake_memory_open();
        run_one(s); // whoever asks again and again gets there
        fake_memory_close();
    }
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

// ---- events ------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? fake_error(fake_failed()) : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t ev)
{
    fake_lock();
    mark_drop(ev->mark);
    free(ev);
    fake_unlock();
    return cudaSuccess;
}

static struct work *mark_work(struct mark *m, bool reach)
{
    struct work *w = work_new(NULL, NULL, 0, reach ? "record" : "wait");
    m->refs++;
    if (reach)
        w->reach = m;
    else
        w->await = m;
    return w;
}

cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = stream_of(stream);
    cudaError_t rc = cudaSuccess;
    mark_drop(ev->mark);
    ev->mark = NULL;
    ev->capture = s->capture;
    if (s->capture) {
        ev->at = s->at;
        rc = s->capture->broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    } else {
        ev->mark = calloc(1, sizeof *ev->mark);
        if (!ev->mark)
            abort();
        *ev->mark = (struct mark){.refs = 1, .stream = s};
        rc = queue(s, mark_work(ev->mark, true));
    }
    fake_unlock();
    return fake_error(rc);
}

static cudaError_t wait_captured(cudaStream_t s, cudaEvent_t ev)
{
    if (s->capture && s->capture != ev->capture)
        return cudaErrorStreamCaptureIsolation;
    if (!s->capture) {
        s->capture = ev->capture;
        s->at = (struct deps){0};
        s->lane = ++ev->capture->lanes;
    }
    for (int i = 0; i < ev->at.n; i++)
        deps_add(&s->at, ev->at.node[i]);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t ev, unsigned flags)
{
    (void)flags;
    fake_lock();
    cudaStream_t s = stream_of(stream);
    cudaError_t rc = cudaSuccess;
    if (ev->capture) {
        rc = wait_captured(s, ev);
    } else if (s->capture && ev->mark) {
        s->capture->broken = true;
        rc = cudaErrorStreamCaptureIsolation;
    } else if (ev->mark && !ev->mark->done) {
        rc = queue(s, mark_work(ev->mark, false));
    }
    rc = rc ? rc : fake_failed_of(s->device);
    fake_unlock();
    return fake_error(rc);
}

static cudaError_t refuse_captured(cudaEvent_t ev)
{
    if (!ev->capture)
        return cudaSuccess;
    ev->capture->broken = true;
    return cudaErrorCapturedEvent;
}

cudaError_t cudaEventSynchronize(cudaEvent_t ev)
{
    fake_lock();
    cudaError_t rc = refuse_captured(ev);
    if (!rc && ev->mark && !ev->mark->done)
        run_until(ev->mark->stream, ev->mark);
    rc = rc ? rc : fake_failed();
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaEventQuery(cudaEvent_t ev)
{
    fake_lock();
    cudaError_t rc = refuse_captured(ev);
    if (!rc && ev->mark && !ev->mark->done) {
        rc = cudaErrorNotReady;
        fake_memory_open();
        run_one(ev->mark->stream);
        fake_memory_close();
    }
    rc = rc ? rc : fake_failed();
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    fake_lock();
    bool done = from->mark && to->mark && from->mark->done && to->mark->done;
    if (done)
        *ms = (float)(to->mark->ms - from->mark->ms);
    fake_unlock();
    return fake_error(done ? cudaSuccess : cudaErrorNotReady);
}

// ---- capture -----------------------------------------------------------------------------------

cudaError_t fake_refused_in_capture(void)
{
    if (!mine)
        return cudaSuccess;
    mine->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    fake_lock();
    cudaError_t rc = fake_failed_of(s->device);
    if (!rc && s->capture)
        rc = cudaErrorIllegalState;
    if (!rc) {
        s->capture = calloc(1, sizeof *s->capture);
        if (!s->capture)
            abort();
        s->capture->origin = s;
        s->at = (struct deps){0};
        s->lane = 0;
        mine = s->capture;
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

// Every node comes before the origin's last.
static bool joined(const struct capture *c)
{
    bool *seen = calloc((size_t)c->nodes + 1, sizeof *seen), all = true;
    for (int i = 0; i < c->origin->at.n; i++)
        seen[c->origin->at.node[i]] = true;
    for (int node = c->nodes - 1; node >= 0; node--) { // a node lies behind those it waits for
        all &= seen[node];
        for (int i = 0; i < c->node[node].deps.n; i++)
            seen[c->node[node].deps.node[i]] = true;
    }
    free(seen);
    return all;
}

static void nodes_free(struct node *node, int nodes)
{
    for (int i = 0; i < nodes; i++)
        work_free(node[i].work);
    free(node);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    fake_lock();
    struct capture *c = s->capture;
    cudaError_t rc = !c || c->origin != s ? cudaErrorIllegalState
                     : c->broken          ? cudaErrorStreamCaptureInvalidated
                     : !joined(c)         ? cudaErrorStreamCaptureUnjoined
                                          : cudaSuccess;
    *out = NULL;
    if (c && c->origin == s) {
        for (int i = 0; i < nstreams; i++)
            if (streams[i]->capture == c)
                streams[i]->capture = NULL;
        if (rc) {
            nodes_free(c->node, c->nodes);
        } else {
            *out = calloc(1, sizeof **out);
            (*out)->node = c->node;
            (*out)->nodes = c->nodes;
        }
        mine = mine == c ? NULL : mine;
        free(c); // events that were captured are of no use until they are recorded again
    }
    fake_unlock();
    return fake_error(rc);
}

// ---- graphs ------------------------------------------------------------------------------------

static bool ready(const struct node *node, int i, const bool *done)
{
    for (int k = 0; k < node[i].deps.n; k++)
        if (!done[node[i].deps.node[k]])
            return false;
    return !done[i];
}

static struct work *work_again(const struct work *w)
{
    struct work *copy = malloc(sizeof *w + w->bytes + 1);
    if (!copy)
        abort();
    memcpy(copy, w, sizeof *w + w->bytes);
    return copy;
}

// Of those that are ready the one furthest from the origin's stream.
static int pick(const struct CUgraph_st *g, const bool *done, int from)
{
    int best = -1;
    for (int i = from; i < g->nodes; i++)
        if (ready(g->node, i, done) && (best < 0 || g->node[i].lane > g->node[best].lane))
            best = i;
    return best;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    struct CUgraphExec_st *x = calloc(1, sizeof *x);
    bool *done = calloc((size_t)g->nodes + 1, sizeof *done);
    if (!x || !done)
        abort();
    x->refs = 1;
    x->node = calloc((size_t)g->nodes + 1, sizeof *x->node);
    for (int first = 0; x->nodes < g->nodes;) {
        int i = pick(g, done, first);
        done[i] = true;
        x->node[x->nodes++].work = work_again(g->node[i].work);
        while (first < g->nodes && done[first])
            first++;
    }
    free(done);
    *out = x;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    nodes_free(g->node, g->nodes);
    free(g);
    return cudaSuccess;
}

static void exec_drop(struct CUgraphExec_st *x)
{
    if (--x->refs)
        return;
    nodes_free(x->node, x->nodes);
    free(x);
}

struct graph_run {
    struct CUgraphExec_st *exec;
    cudaStream_t stream;
};

static void run_graph(const void *args)
{
    const struct graph_run *g = args;
    for (int i = 0; i < g->exec->nodes; i++)
        perform(g->stream, g->exec->node[i].work);
    exec_drop(g->exec);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = stream_of(stream);
    const struct graph_run g = {x, s};
    cudaError_t rc = s->capture ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
    if (!rc) {
        x->refs++;
        rc = queue(s, work_new(run_graph, &g, sizeof g, "graph"));
    }
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    fake_lock();
    exec_drop(x);
    fake_unlock();
    return cudaSuccess;
}
