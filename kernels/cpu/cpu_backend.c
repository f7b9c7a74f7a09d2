// SPDX-License-Identifier: Apache-2.0
// The CPU backend: device, streams and events, and the table that libweft_cpu.so exports.
//
// Every call is done when it returns: a stream holds no work, an event has always happened. Copies
// are plain memcpy, so a second thread may make them while ops run. There is nothing to capture and
// any host memory serves the ops, so those tables are missing.
//
// The best instruction set of the machine is taken; WEFT_CPU_ISA (a name in `sets`) holds it to a
// lower one, so that unlike hosts compute alike. It is in the numerics record (device_info).
#include <cpuid.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu_device.h"

// ---- the device --------------------------------------------------------------------------------

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

// The kernel lets a process have tiles that asks for them, and then all its threads.
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 &&
           d & AMX_TILE && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_baseline(void)
{
    return true;
}

// The sets of instructions that kernels are built for, the best first.
static const struct set {
    const char *name;
    const struct vec *vec;
    bool (*runs)(void);
    dnnl_cpu_isa_t onednn;
    packed_multiply multiply, multiply_bf16, multiply_tiles;
} sets[] = {
    {"amx", &vec_avx512, has_amx, dnnl_cpu_isa_avx512_core, packed_multiply_avx512,
     packed_multiply_avx512bf16, tiled_multiply_amx},
    {"avx512bf16", &vec_avx512, has_avx512bf16, dnnl_cpu_isa_avx512_core, packed_multiply_avx512,
     packed_multiply_avx512bf16, NULL},
    {"avx512", &vec_avx512, has_avx512, dnnl_cpu_isa_avx512_core, packed_multiply_avx512,
     packed_multiply_avx512, NULL},
    {"avx2", &vec_avx2, has_avx2, dnnl_cpu_isa_avx2, packed_multiply_avx2, packed_multiply_avx2,
     NULL},
    {"baseline", &vec_baseline, has_baseline, dnnl_cpu_isa_sse41, NULL, NULL, NULL},
};

// oneDNN's limit is the process's and must come before its first use: of several devices the first
// one sets it.
static int choose_isa(struct device *d, struct err *e)
{
    const char *limit = getenv("WEFT_CPU_ISA");
    bool limited = limit && limit[0], allowed = !limited;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        bool named = limited && strcmp(sets[i].name, limit) == 0;
        allowed |= named;
        if (named)
            dnnl_set_max_cpu_isa(sets[i].onednn);
        if (!d->vec && allowed && sets[i].runs()) {
            d->isa = sets[i].name;
            d->vec = sets[i].vec;
            d->multiply = sets[i].multiply;
            d->multiply_bf16 = sets[i].multiply_bf16;
            d->multiply_tiles = sets[i].multiply_tiles;
        }
    }
    if (d->vec)
        return 0;
    return err_set(e, ERR_INVALID,
                   "WEFT_CPU_ISA is '%s': not amx, avx512bf16, avx512, avx2 or baseline", limit);
}

static int device_count(struct err *e)
{
    (void)e;
    return 1;
}

// WEFT_CPU_PRODUCTS=onednn leaves all products to oneDNN, packed takes on AVX-512 all that AVX2
// takes: to compare them.
static int open_packed(struct device *d, int threads, struct err *e)
{
    const char *set = getenv("WEFT_CPU_PRODUCTS");
    bool onednn = set && strcmp(set, "onednn") == 0, packed = set && strcmp(set, "packed") == 0;
    void *room = NULL;
    if (set && set[0] && !onednn && !packed)
        return err_set(e, ERR_INVALID, "WEFT_CPU_PRODUCTS is '%s': not packed or onednn", set);
    if (!d->multiply || onednn)
        return 0;
    d->packs_few = d->vec == &vec_avx512 && !packed;
    int rc = memory_host_alloc(d, (size_t)threads * PACKED_FLOATS * sizeof(float), &room, e);
    d->packed = room;
    return rc;
}

static int device_open(const struct device_options *o, struct device **out, struct err *e)
{
    struct device *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "no memory for a device");
    list_init(&d->regions);
    list_init(&d->streams);
    list_init(&d->events);
    int rc = choose_isa(d, e);
    rc = rc ? rc : pool_new(o->threads, &d->pool, e);
    rc = rc ? rc : open_packed(d, o->threads, e);
    if (rc) {
        pool_free(d->pool);
        free(d);
    } else {
        *out = d;
    }
    return rc;
}

static void destroy_stream(struct stream_q *q)
{
    if (!q)
        return;
    list_remove(&q->link);
    free(q);
}

static void event_destroy(struct event *ev)
{
    if (!ev)
        return;
    list_remove(&ev->link);
    free(ev);
}

static void device_close(struct device *d)
{
    if (!d)
        return;
    list_for_each (it, &d->streams)
        destroy_stream(list_entry(it, struct stream_q, link));
    list_for_each (it, &d->events)
        event_destroy(list_entry(it, struct event, link));
    memory_clear(d);
    pool_free(d->pool);
    free(d);
}

static void device_info(const struct device *d, struct device_info *out)
{
    const dnnl_version_t *v = dnnl_version();
    *out = (struct device_info){.threads = pool_threads(d->pool),
                                .allocated = d->allocated,
                                .deterministic = true, // whatever the device was opened with
                                .shares_host = true};
    snprintf(out->model, sizeof out->model, "cpu");
    snprintf(out->isa, sizeof out->isa, "%s", d->isa);
    snprintf(out->libraries, sizeof out->libraries, "kernels %d onednn %d.%d.%d%s", KERNELS_VERSION,
             v->major, v->minor, v->patch,
             !d->packed     ? ""
             : d->packs_few ? ", packed products of few rows or in bf16"
                            : ", packed products");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    out->memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

// ---- streams and events ------------------------------------------------------------------------

static int create_stream(struct device *d, enum stream_priority priority, struct stream_q **out,
                         struct err *e)
{
    (void)priority; // nothing waits in a queue
    struct stream_q *q = calloc(1, sizeof *q);
    if (!q)
        return err_set(e, ERR_NOMEM, "no memory for a stream");
    q->device = d;
    list_append(&d->streams, &q->link);
    *out = q;
    return 0;
}

static int sync_stream(struct stream_q *q, struct err *e)
{
    (void)q;
    (void)e;
    return 0;
}

static int event_create(struct device *d, struct event **out, struct err *e)
{
    struct event *ev = calloc(1, sizeof *ev);
    if (!ev)
        return err_set(e, ERR_NOMEM, "no memory for an event");
    list_append(&d->events, &ev->link);
    *out = ev;
    return 0;
}

static int event_on(struct stream_q *q, struct event *ev, struct err *e)
{
    (void)q;
    (void)ev;
    (void)e;
    return 0;
}

static int event_query(struct event *ev, bool *done, struct err *e)
{
    (void)ev;
    (void)e;
    *done = true;
    return 0;
}

static int event_sync(struct event *ev, struct err *e)
{
    (void)ev;
    (void)e;
    return 0;
}

// ---- bytes -------------------------------------------------------------------------------------

static int stream_copy(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e)
{
    (void)q;
    (void)e;
    if (bytes) // nothing may lie at null
        memmove(to, from, bytes);
    return 0;
}

static int stream_fill_zero(struct stream_q *q, void *to, size_t bytes, struct err *e)
{
    (void)q;
    (void)e;
    if (bytes) // nothing may lie at null
        memset(to, 0, bytes);
    return 0;
}

// ---- the table ---------------------------------------------------------------------------------

// These two run as the ops that they fuse.
#define op_norm_grads op_norm_grads_unfused
#define op_matmul_sum op_matmul_sum_unfused
static const backend_op kernels[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) [OP_##id] = op_##kernel,
#include "common/op/ops.def"
};

static int run_op(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const backend_op kernel = kernels[c->op];
    int rc = op_check(c, e);
    if (!rc && widen_wanted(c))
        rc = widen_run(q, c, kernel, gemm_takes_bf16(q, c), e);
    else if (!rc)
        rc = kernel(q, c, e);
    if (rc == ERR_UNSUPPORTED)
        (void)err_wrap(e, "cpu");
    return rc;
}

static const backend_op ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) [OP_##id] = run_op,
#include "common/op/ops.def"
};

static int run_many(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    int rc = 0;
    for (int k = 0; k < n && !rc; k++)
        rc = op_check(&calls[k], e);
    if (!rc)
        rc = op_is(calls->op, OP_IS_UPDATE) ? op_updates(q, calls, n, e)
                                            : op_sqnorms(q, calls, n, e);
    if (rc == ERR_UNSUPPORTED)
        (void)err_wrap(e, "cpu");
    return rc;
}

static const backend_many many[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) \
    [OP_##id] = (OP_RUNS_MANY & (traits)) ? run_many : NULL,
#include "common/op/ops.def"
};

extern const struct backend weft_backend;
__attribute__((visibility("default"))) const struct backend weft_backend = {
    .abi = BACKEND_ABI,
    .name = "cpu",
    .device = {.count = device_count,
               .open = device_open,
               .close = device_close,
               .info = device_info,
               .warm_up = gemm_warm_up},
    .memory = {.alloc = memory_alloc,
               .free = memory_free,
               .host_alloc = memory_host_alloc,
               .host_free = memory_free},
    .stream = {.create = create_stream,
               .destroy = destroy_stream,
               .sync = sync_stream,
               .copy = stream_copy,
               .fill_zero = stream_fill_zero},
    .event = {.create = event_create,
              .destroy = event_destroy,
              .record = event_on,
              .wait = event_on,
              .query = event_query,
              .sync = event_sync},
    .op = {.run = ops, .run_many = many},
};
