// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the device, found, opened, described, closed; and the table that libweft_cuda.so
// exports.
//
// Every op is called through run_op, which binds the device, refuses one that has failed, and notes
// the op on its stream, so that a failure that is seen later can name it. Ops only queue work:
// nothing here waits.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/op/attention.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_collectives.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/mark.h"

// ---- finding devices ---------------------------------------------------------------------------

static void print_version(char *to, size_t room, int version)
{
    snprintf(to, room, "%d.%d", version / 1000, version % 1000 / 10);
}

static int explain_no_device(cudaError_t rc, struct err *e)
{
    int driver = 0, runtime = 0;
    char has[16], needs[16];
    (void)cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    print_version(has, sizeof has, driver);
    print_version(needs, sizeof needs, runtime);
    if (rc == cudaErrorInsufficientDriver && !driver)
        return err_set(e, ERR_DEVICE,
                       "no NVIDIA driver on this host: install one that serves CUDA %s, or give "
                       "this container its GPUs",
                       needs);
    if (rc == cudaErrorInsufficientDriver)
        return err_set(e, ERR_DEVICE,
                       "the NVIDIA driver is too old: it serves CUDA %s, this build needs %s; "
                       "install a newer driver",
                       has, needs);
    if (rc == cudaErrorNoDevice || rc == cudaErrorInvalidDevice) // of a wrong list
        return err_set(e, ERR_DEVICE,
                       "no NVIDIA device on this host that CUDA shows (CUDA_VISIBLE_DEVICES is %s)",
                       getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "not set");
    // Where nvidia_uvm is not loaded CUDA calls the error unknown.
    return err_set(e, ERR_DEVICE, "cannot count CUDA devices: %s (%s)%s", cudaGetErrorString(rc),
                   cudaGetErrorName(rc),
                   cuda_advice(rc == cudaErrorUnknown ? cudaErrorOperatingSystem : rc));
}

static int device_count(struct err *e)
{
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess) {
        explain_no_device(rc, e);
        return -1;
    }
    return n;
}

// ---- what it is --------------------------------------------------------------------------------

static void describe_peers(const struct device *d, char *to, size_t room)
{
    int n = 0;
    size_t used = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        return;
    for (int i = 0; i < n && used < room; i++) {
        int reach = 0, atomics = 0;
        if (i == d->ordinal)
            continue;
        // Atomics of the other's memory are what NVLink has and PCI lacks.
        cudaDeviceGetP2PAttribute(&reach, cudaDevP2PAttrAccessSupported, d->ordinal, i);
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, d->ordinal, i);
        if (reach)
            used += (size_t)snprintf(to + used, room - used, "%s%d %s", used ? ", " : "", i,
                                     atomics ? "nvlink" : "pcie");
    }
    (void)cudaGetLastError();
}

// Once, since the driver takes its time, and a device that has failed says nothing more.
static void describe_device(const struct device *d, const struct cudaDeviceProp *p,
                            struct device_info *out)
{
    int driver = 0, runtime = 0;
    char cuda[16];
    *out =
        (struct device_info){.memory = d->memory, .threads = 1, .deterministic = d->deterministic};
    snprintf(out->model, sizeof out->model, "%s", d->model);
    snprintf(out->isa, sizeof out->isa, "sm_%d%d", d->major, d->minor);
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    print_version(cuda, sizeof cuda, runtime);
    print_version(out->driver, sizeof out->driver, driver);
    snprintf(out->libraries, sizeof out->libraries,
             "kernels %d cuda %s driver %.15s cublaslt %s cudnn %s", KERNELS_VERSION, cuda,
             out->driver, gemm_version(), attention_version());
    const char *of = strstr(p->name, " MIG ") ? "MIG-" : "GPU-"; // a part of a GPU has its own
    size_t n = (size_t)snprintf(out->uuid, sizeof out->uuid, "%s", of);
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(out->uuid + n, sizeof out->uuid - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                              (unsigned char)p->uuid.bytes[i]);
    cudaDeviceGetPCIBusId(out->pci, sizeof out->pci, d->ordinal);
    describe_peers(d, out->peers, sizeof out->peers);
}

static void device_info(const struct device *d, struct device_info *out)
{
    *out = d->info;
    out->allocated = d->allocated;
}

// ---- open and close ----------------------------------------------------------------------------

static void device_close(struct device *d)
{
    if (!d || device_is_abandoned(d))
        return;
    struct err e = {0};
    device_bind(d, &e); // a failed device is closed as far as it goes
    stream_clear(d);
    attention_close(d);
    gemm_close(d);
    memory_clear(d);
    free(d);
}

static bool is_asked_for(const char *variable)
{
    const char *is = getenv(variable);
    return is && is[0] && strcmp(is, "0") != 0;
}

static int device_open(const struct device_options *o, struct device **out, struct err *e)
{
    int n = device_count(e);
    if (n < 0)
        return ERR_DEVICE;
    if (o->ordinal < 0 || o->ordinal >= n)
        return err_set(e, ERR_DEVICE,
                       "there is no CUDA device %d: this host has %d, numbered from 0", o->ordinal,
                       n);
    struct device *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for a device");
    d->ordinal = o->ordinal;
    d->deterministic = o->deterministic;
    d->guard = is_asked_for("WEFT_CUDA_GUARD");
    d->blocks = is_asked_for("CUDA_LAUNCH_BLOCKING");
    list_init(&d->regions);
    list_init(&d->streams);
    list_init(&d->events);
    list_init(&d->graphs);
    struct cudaDeviceProp p = {.major = 0};
    int rc = switches_read(d->switches, e);
    rc = rc ? rc : device_bind(d, e);
    rc = rc ? rc : CUDA(d, NULL, e, cudaGetDeviceProperties(&p, d->ordinal));
    rc = rc ? rc : CUDA(d, NULL, e, probe_image(&d->compiled));
    if (!rc) {
        snprintf(d->model, sizeof d->model, "%.63s", p.name);
        d->major = p.major;
        d->minor = p.minor;
        d->processors = p.multiProcessorCount;
        d->memory = p.totalGlobalMem;
        rc = gemm_open(d, e);
    }
    if (!rc)
        rc = attention_open(d, e);
    if (!rc && o->cache)
        gemm_cache(d, o->cache);
    if (!rc)
        describe_device(d, &p, &d->info);
    if (rc)
        device_close(d);
    else
        *out = d;
    return rc;
}

// The driver wakes all of a host's devices, which may take seconds. No context is made, as nobody
// knows yet for which of them.
static void start_driver(void)
{
    int n;
    (void)cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
}

// ---- ops ---------------------------------------------------------------------------------------

#define op_matmul_places op_matmul_places_unfused
static const backend_op kernels[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) [OP_##id] = op_##kernel,
#include "common/op/ops.def"
};

// Binds the device, notes the op, and checks the call.
static int begin_op(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = device_bind(q->device, e);
    q->last = c->op;
    q->any = true;
    return rc ? rc : op_check(c, e);
}

static int end_op(int rc, struct err *e)
{
    if (rc == ERR_UNSUPPORTED)
        (void)err_wrap(e, "cuda");
    return rc;
}

static int run_op(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = begin_op(q, c, e);
    return end_op(rc ? rc : kernels[c->op](q, c, e), e);
}

static const backend_op ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) [OP_##id] = run_op,
#include "common/op/ops.def"
};

static int run_many(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    int rc = begin_op(q, calls, e);
    for (int k = 1; k < n && !rc; k++)
        rc = op_check(&calls[k], e);
    if (!rc)
        rc = op_is(calls->op, OP_IS_UPDATE) ? op_updates(q, calls, n, e)
                                            : op_sqnorms(q, calls, n, e);
    return end_op(rc, e);
}

static const backend_many many[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) \
    [OP_##id] = (OP_RUNS_MANY & (traits)) ? run_many : NULL,
#include "common/op/ops.def"
};

// Only products and attention have a choice.
static int tune_op(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    int rc = begin_op(q, c, e);
    if (rc)
        return end_op(rc, e);
    if (op_is(c->op, OP_IS_ATTENTION))
        rc = attention_tune(q, c, e);
    else if (c->op == OP_MATMUL_SUM)
        rc = matmul_sum_tune(q, c, time, e);
    else if (op_is(c->op, OP_HAS_CHAIN) && op_is(c->op, OP_IS_PRODUCT))
        rc = linear_tune(q, c, time, e);
    else if (op_is(c->op, OP_IS_PRODUCT))
        rc = matmul_tune(q, c, time, e);
    return end_op(rc, e);
}

// ---- the table ---------------------------------------------------------------------------------

static const struct backend_graph graphs = {
    .begin = capture_begin,
    .end = capture_end,
    .launch = graph_launch,
    .destroy = graph_destroy,
};

static const struct backend_choice choices = {
    .tune = tune_op,
    .read = algorithms_read,
    .write = algorithms_write,
};

extern const struct backend weft_backend;
__attribute__((visibility("default"))) const struct backend weft_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .device = {.count = device_count,
               .open = device_open,
               .close = device_close,
               .info = device_info,
               .warm_up = start_driver},
    .memory = {.alloc = memory_alloc,
               .free = memory_free,
               .adopt = memory_adopt,
               .left = memory_left,
               .host_alloc = memory_host_alloc,
               .host_free = memory_free},
    .stream = {.create = cuda_stream_create,
               .destroy = cuda_stream_destroy,
               .sync = cuda_stream_sync,
               .copy = stream_copy,
               .fill_zero = stream_fill_zero,
               .mark = stream_mark},
    .event = {.create = event_create,
              .destroy = event_destroy,
              .record = event_record,
              .wait = event_wait,
              .query = event_query,
              .sync = event_sync},
    .graph = &graphs,
    .choice = &choices,
    .collectives = CUDA_COLLECTIVES,
    .op = {.run = ops, .run_many = many},
};
