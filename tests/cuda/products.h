// SPDX-License-Identifier: Apache-2.0
// Products for tests on the emulated CUDA device: a device, a call laid in its memory, and how
// a choice reads.
//
// The fake cuBLASLt (fake_cublaslt.c) proposes, in this order: 40 (a failed entry), 41 (reads f32
// as bf16), 48 (of bf16 alone: adds parts to the result and does not say so), 42 (declines when run), 47
// (fails when run; both want 16 bytes of alignment), 43 (adds parts in place, 2 units of time), 44
// (takes any pointers, 30 units), 45 (adds parts in scratch, 20 units), 46 (wants 16 bytes of
// alignment, 10 units).
#pragma once
#include "tests/ops/everywhere.h"

#include <libgen.h>
#include <limits.h>
#include <unistd.h>

enum { INPLACE = 43, ANYWHERE = 44, SPLIT = 45, ALIGNED = 46 };

// ---- a device ----------------------------------------------------------------------------------

static inline void scene(const char *text)
{
    setenv("WEFT_FAKE_CUDA", text, 1);
}

static inline void device_open(struct rig *r, const char *cache, bool deterministic)
{
    const struct device_options o = {.deterministic = deterministic, .cache = cache};
    struct err e = {0};
    *r = (struct rig){0};
    if (backend_load("cuda", &r->backend, &e) || r->backend->device.open(&o, &r->device, &e) ||
        r->backend->stream.create(r->device, STREAM_USUAL, &r->q, &e))
        fail_msg("%s", e.text);
    r->backend->device.info(r->device, &r->info);
}

static inline void exported(const struct rig *r, struct buf *text)
{
    struct err e = {0};
    buf_reset(text);
    if (r->backend->choice->write(r->device, text, &e))
        fail_msg("%s", e.text);
}

// ---- calls -------------------------------------------------------------------------------------

struct placed { // a call whose operands lie `offset` elements behind the begin of their memory
    struct op_call call;
    void *memory[OP_MAX_IN + OP_MAX_OUT], *scratch;
    int n;
};

static inline struct tensor place(const struct rig *r, struct placed *p, const struct ref_tensor *t,
                                  int offset)
{
    size_t size = dtype_size(t->dtype), n = (size_t)shape_count(&t->shape);
    char *host = calloc(n + (size_t)offset, size);
    assert_non_null(host);
    for (size_t i = 0; i < n; i++) {
        float f = (float)t->v[i];
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        uint16_t half = (uint16_t)(u >> 16);
        memcpy(host + (i + (size_t)offset) * size, size == 4 ? (void *)&f : (void *)&half, size);
    }
    char *at = rig_memory(r, host, (n + (size_t)offset) * size);
    free(host);
    p->memory[p->n++] = at;
    return (struct tensor){at + (size_t)offset * size, t->dtype, t->shape};
}

static inline void place_case(const struct rig *r, struct placed *p, const struct rig_case *c,
                              const int *offset, size_t scratch)
{
    *p = (struct placed){.call = {.op = c->op,
                                  .attr = &c->attr,
                                  .nin = c->nin,
                                  .nout = c->nout,
                                  .accumulate = c->accumulate,
                                  .workspace_bytes = scratch}};
    p->scratch = rig_memory(r, NULL, scratch + 1);
    p->call.workspace = scratch ? p->scratch : NULL;
    for (int k = 0; k < c->nin; k++)
        p->call.in[k] = place(r, p, &c->in[k], offset ? offset[k] : 0);
    for (int k = 0; k < c->nout; k++)
        p->call.out[k] = place(r, p, &c->start[k], offset ? offset[c->nin + k] : 0);
}

static inline double *result(const struct rig *r, const struct tensor *t, struct arena *a)
{
    int64_t n = shape_count(&t->shape);
    size_t size = dtype_size(t->dtype);
    char *host = malloc((size_t)n * size);
    double *v = arena_array(a, double, (size_t)n);
    assert_non_null(host);
    rig_read(r, host, t->data, (size_t)n * size);
    for (int64_t i = 0; i < n; i++) {
        float f;
        uint32_t u;
        if (size == 4)
            memcpy(&f, host + (size_t)i * size, size);
        else {
            uint16_t half;
            memcpy(&half, host + (size_t)i * size, size);
            u = (uint32_t)half << 16;
            memcpy(&f, &u, sizeof f);
        }
        v[i] = (double)f;
    }
    free(host);
    return v;
}

static inline void run(const struct rig *r, const struct placed *p)
{
    struct err e = {0};
    if (r->backend->op.run[p->call.op](r->q, &p->call, &e) || r->backend->stream.sync(r->q, &e))
        fail_msg("%s", e.text);
}

static inline void tune(const struct rig *r, const struct placed *p, bool time)
{
    struct err e = {0};
    if (r->backend->choice->tune(r->q, &p->call, time, &e))
        fail_msg("%s", e.text);
}

static inline void release(const struct rig *r, struct placed *p)
{
    while (p->n)
        rig_free(r, p->memory[--p->n]);
    rig_free(r, p->scratch);
}

static inline void product_case(struct rig_case *c, struct arena *a, const char *einsum,
                                struct extents ext, enum dtype in, enum dtype out)
{
    int64_t extent[26];
    letters(extent, ext);
    rig_case(c, a, OP_MATMUL, einsum, extent);
    c->start[0].dtype = out;
    rig_fill(&c->start[0], 9, -1, 1);
    for (int k = 0; k < 2; k++) {
        c->in[k].dtype = in;
        rig_fill(&c->in[k], (uint64_t)k + 1, -1, 1);
    }
}

enum { SCRATCH = 256 << 10, PLANNED = 32 << 20 };
static const struct extents even = {16, 24, 32, 2}; // rows of a multiple of 16 bytes, in bf16 too

// ---- a choice, a program ------------------------------------------------------------------------

// The fake writes an algorithm's number into the upper half of the first word; 0: none is chosen.
static inline int chosen(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    at = at ? strstr(at, " = ") : NULL;
    if (!at) {
        fail_msg("no choice for %s in:\n%s", key, text);
        return 0;
    }
    at += 3;
    return strncmp(at, "none", 4) == 0
               ? 0
               : (int)strtol((char[9]){at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], 0},
                             NULL, 16);
}

// The emulated twin beside the program, not a real one in build/.
static inline bool find_twin(void)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return false;
    self[n] = 0;
    setenv("WEFT_BACKEND_DIR", dirname(self), 1);
    setenv("WEFT_RIG", "cuda", 1);
    return true;
}
