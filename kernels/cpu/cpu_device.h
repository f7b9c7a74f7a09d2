// SPDX-License-Identifier: Apache-2.0
// What the files of the CPU backend share: the device and its streams. Inside kernels/cpu/ only.
#pragma once
#include "common/base/list.h"
#include "common/op/gemm.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/kernel.h"

// The fewest elements that are worth another thread, and the alignment of slices: 16 KB of f32.
enum { GRAIN = 4096 };

struct device {
    struct pool *pool;
    const char *isa; // the set of instructions, as WEFT_CPU_ISA names it
    const struct vec *vec;
    // Products of packed operands, and those of two in bf16; null: there are none.
    packed_multiply multiply, multiply_bf16;
    packed_multiply
        multiply_tiles; // a decoder's, of two in bf16; null: they are made as all others
    float *packed;      // PACKED_FLOATS a thread; null: products are oneDNN's
    bool packs_few;     // in f32, only products of few rows; else all that packing pays for
    struct list regions, streams, events; // what device_close frees
    uint64_t allocated;                   // bytes of device memory asked for and not freed
};

struct stream_q {
    struct device *device;
    struct list link;
};

struct event {
    struct list link;
};

// cpu_memory.c
int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e);
void memory_free(struct device *d, void *p);
void memory_clear(struct device *d);

// cpu_draw.c: the site that an op's numbers come from at the step that its operand holds.
struct vec_draw draw_site(const struct op_call *c, const struct tensor *step);

// cpu_widen.c: whether a call has bf16 operands which its kernel does not take; and runs it on that
// kernel with f32 operands.
bool widen_wanted(const struct op_call *c);
// `taken`: the kernel takes the inputs in bf16 as they are.
int widen_run(struct stream_q *q, const struct op_call *c, backend_op kernel, bool taken,
              struct err *e);

// cpu_gemm.c
void gemm_warm_up(void);
bool gemm_takes_bf16(const struct stream_q *q, const struct op_call *c);
// Makes one product in the calling thread; of g it reads m, n, k and the row strides. Returns 0 or
// onednn's status.
int gemm_serial(bool trans_a, bool trans_b, const struct gemm *g, float alpha, const float *a,
                const float *b, float beta, float *c);
