// SPDX-License-Identifier: Apache-2.0
// Work of the fake CUDA runtime: queued, and done as late as can be. See fake_work.h.
//
// Waiting for a stream or an event runs what that needs and nothing else: the latest schedule that
// CUDA's rules allow, so that whoever forgot an event finds the other stream's work undone. With a
// seed, work also runs at other moments.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulate.h"
#include "tests/cuda/fake_work.h"

cudaStream_t fake_streams[MOST_STREAMS];
int fake_nstreams;
static struct CUstream_st legacy = {.last = &legacy.first};

static double clock_us; // of the devices

void fake_time_passes(double us)
{
    clock_us += us;
}

cudaStream_t fake_stream(cudaStream_t s)
{
    return s ? s : &legacy;
}

// ---- running -----------------------------------------------------------------------------------

void mark_drop(struct mark *m)
{
    if (m && !--m->refs)
        free(m);
}

void work_free(struct work *w)
{
    mark_drop(w->reach);
    mark_drop(w->await);
    exec_drop(w->exec);
    free(w);
}

void work_perform(cudaStream_t s, struct work *w)
{
    if (w->await && !w->await->done)
        work_run_until(w->await->stream, w->await);
    if (w->reach) {
        w->reach->done = true;
        w->reach->ms = clock_us / 1000;
    }
    if (fake_failed_of(s->device))
        return;
    if (!w->run)
        return;
    if (w->kernel && fake_kernel_fails()) {
        fake_fail(s->device, cudaErrorIllegalAddress);
        return;
    }
    if (w->kernel)
        fake_kernel_begins();
    fake_time_passes(1);
    w->run(w->args);
}

// A graph stays in front until its last node has run.
void work_run_one(cudaStream_t s)
{
    struct work *w = s->first;
    if (w->exec && !fake_failed_of(s->device) && !exec_perform(s, w->exec, &w->at))
        return;
    s->first = w->next;
    if (!s->first)
        s->last = &s->first;
    work_perform(s, w);
    work_free(w);
}

void work_run_until(cudaStream_t s, const struct mark *until)
{
    if (!s->first)
        return;
    fake_memory_open();
    while (s->first && !(until && until->done))
        work_run_one(s);
    fake_memory_close();
}

void fake_finish_all(void)
{
    work_run_until(&legacy, NULL);
    for (int i = 0; i < fake_nstreams; i++)
        if (fake_streams[i]->device == fake_device())
            work_run_until(fake_streams[i], NULL);
}

// With a seed some work may be done now.
static void perhaps_run(void)
{
    static uint64_t state;
    long seed = 0;
    if (!fake_scene("seed", &seed) || !fake_nstreams)
        return;
    state = (state ? state : (uint64_t)seed + 1) * 6364136223846793005u + 1442695040888963407u;
    cudaStream_t s = fake_streams[(state >> 33) % (uint64_t)fake_nstreams];
    fake_memory_open();
    for (int n = (int)(state >> 60); n > 0 && s->first; n--)
        work_run_one(s);
    fake_memory_close();
}

// ---- queueing ----------------------------------------------------------------------------------

struct work *work_new(void (*run)(const void *), const void *args, size_t bytes, const char *what)
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

struct work *work_again(const struct work *w)
{
    struct work *copy = malloc(sizeof *w + w->bytes + 1);
    if (!copy)
        abort();
    memcpy(copy, w, sizeof *w + w->bytes);
    return copy;
}

static void append(cudaStream_t s, struct work *w)
{
    *s->last = w;
    s->last = &w->next;
}

cudaError_t work_queue(cudaStream_t s, struct work *w)
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
    cudaError_t rc = work_queue(fake_stream(stream), work_new(run, args, bytes, what));
    fake_unlock();
    return fake_error(rc);
}

// ---- kernels -----------------------------------------------------------------------------------

struct launch {
    struct emulate_kernel kernel;
    size_t bytes;
    _Alignas(16) char args[];
};

// Also when it runs: what a graph holds on to may have been given back since it was captured.
static void check_args(const struct emulate_kernel *k, const void *args, size_t bytes)
{
    const void *stray = fake_memory_stray(args, bytes);
    if (!stray)
        return;
    fprintf(stderr,
            "fake cuda: kernel %s (%s:%d) is given %p, which is no memory of the device (or an "
            "argument that was never set)\n",
            k->name, k->at.file, k->at.line, stray);
    abort();
}

static void run_kernel(const void *args)
{
    const struct launch *l = args;
    check_args(&l->kernel, l->args, l->bytes);
    emulate_run(&l->kernel, l->args);
}

static cudaError_t launch_error(const struct emulate_kernel *k, cudaStream_t s)
{
    uint64_t threads = (uint64_t)k->block.x * k->block.y * k->block.z;
    bool grid = k->grid.x && k->grid.y && k->grid.z && k->grid.x <= 0x7fffffff &&
                k->grid.y <= 65535 && k->grid.z <= 65535;
    if (!grid || !threads || threads > 1024 || k->block.z > 64)
        return cudaErrorInvalidConfiguration;
    if (k->when == EMULATE_EARLY && fake_scene("in_turn", NULL))
        return cudaErrorNotSupported;
    if (threads > k->bound)
        return cudaErrorLaunchOutOfResources;
    if (k->shared_bytes > fake_shared_allowed(k->function))
        return cudaErrorInvalidValue;
    return s->device == fake_device() || s == &legacy ? cudaSuccess
                                                      : cudaErrorInvalidResourceHandle;
}

static bool waits_for_launches(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    return blocking && strcmp(blocking, "1") == 0;
}

void emulate_launch(const struct emulate_kernel *k, const void *args, size_t bytes,
                    cudaStream_t stream)
{
    fake_lock();
    cudaStream_t s = fake_stream(stream);
    cudaError_t rc = launch_error(k, s);
    check_args(k, args, bytes);
    if (!rc) {
        struct work *w = work_new(run_kernel, NULL, sizeof(struct launch) + bytes, k->name);
        struct launch *l = (struct launch *)(void *)w->args;
        l->kernel = *k;
        l->bytes = bytes;
        memcpy(l->args, args, bytes);
        w->kernel = true;
        rc = work_queue(s, w);
        if (!rc && !s->capture && waits_for_launches()) {
            work_run_until(s, NULL);
            rc = fake_failed_of(s->device);
        }
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
    fake_memory_fill(c->to, c->with, c->bytes);
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
    cudaError_t rc = work_queue(s, work_new(run_copy, c, room, "copy"));
    free(c);
    if (!rc && t == FAKE_PAGEABLE && !s->capture)
        work_run_until(s, NULL);
    return rc ? rc : fake_failed_of(s->device);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    fake_lock();
    cudaError_t rc = copy_async(to, from, bytes, fake_stream(stream));
    fake_unlock();
    return fake_error(rc);
}

static cudaError_t fill_async(void *to, int with, size_t bytes, cudaStream_t s)
{
    enum fake_where t;
    const struct copy c = {.to = to, .with = with, .bytes = bytes};
    if (!fake_memory_where(to, bytes, &t) || (t == FAKE_PAGEABLE && bytes))
        return cudaErrorInvalidValue;
    return work_queue(s, work_new(run_fill, &c, sizeof c, "fill"));
}

cudaError_t cudaMemsetAsync(void *to, int with, size_t bytes, cudaStream_t stream)
{
    fake_lock();
    cudaError_t rc = fill_async(to, with, bytes, fake_stream(stream));
    fake_unlock();
    return fake_error(rc);
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int with, size_t width, size_t height,
                              cudaStream_t stream)
{
    cudaError_t rc = width > pitch ? cudaErrorInvalidValue : cudaSuccess;
    fake_lock();
    for (size_t row = 0; row < height && !rc; row++)
        rc = fill_async((char *)to + row * pitch, with, width, fake_stream(stream));
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
        work_run_until(&legacy, NULL);
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
