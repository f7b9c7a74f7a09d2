// SPDX-License-Identifier: Apache-2.0
// Rows in packs, and the threads that share a row. Inside kernels/cuda/ only.
//
// A pack is what one access of 16 bytes moves of a row: 8 bf16 or 4 f32, or, where a row's length
// or place allows no such access, one element. Whatever it is, neighbours in a warp have
// neighbouring packs, so that its accesses leave no gaps. Which it is, is decided on the host and
// is a constant of the kernel: VARIANTS makes a kernel for each. A row belongs to a team of
// threads: a warp, or the whole block.
#pragma once
#include "kernels/cuda/lanes.h"

// ---- packs -------------------------------------------------------------------------------------

// Returns the elements of a pack where rows have n elements.
static inline int pack_wide(enum dtype t, int64_t n)
{
    int most = t == DT_F32 ? 4 : 8;
    return n % most ? 1 : most;
}

static inline bool pack_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

// Loads the pack at element i of p, f32 or bf16.
DEVICE void pack_load(float *v, const void *p, enum dtype t, int64_t i, int wide)
{
    if (wide == 1)
        v[0] = load_f32(p, t, i);
    else if (t == DT_BF16)
        lanes_load_bf16((const uint16_t *)p + i, wide, v);
    else
        for (int k = 0; k < wide; k += 4) {
            float4 a = *(const float4 *)(const void *)((const float *)p + i + k);
            v[k] = a.x, v[k + 1] = a.y, v[k + 2] = a.z, v[k + 3] = a.w;
        }
}

DEVICE void pack_store(void *p, enum dtype t, int64_t i, int wide, const float *v)
{
    if (wide == 1)
        store_f32(p, t, i, v[0]);
    else if (t == DT_BF16)
        lanes_store_bf16((uint16_t *)p + i, wide, v);
    else
        for (int k = 0; k < wide; k += 4)
            *(float4 *)(void *)((float *)p + i + k) =
                make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]);
}

DEVICE float pack_sum(const float *v, int wide)
{
    if (wide == 1)
        return v[0];
    float sum = (v[0] + v[1]) + (v[2] + v[3]);
    return wide == 4 ? sum : sum + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Skips a NaN, as the CPU does: the sum that is made beside the maximum keeps it.
DEVICE float pack_max(const float *v, int wide, float m)
{
    for (int k = 0; k < wide; k++)
        m = v[k] > m ? v[k] : m;
    return m;
}

// ---- kernels for each pack ---------------------------------------------------------------------

// What is constant in a kernel of VARIANTS. With packs of one element each operand may have a dtype
// of its own.
struct pack {
    enum dtype type;
    int wide;
};

DEVICE struct pack pack_of(enum dtype type, int wide)
{
    struct pack p;
    p.type = type;
    p.wide = wide;
    return p;
}

// Returns the dtype of an operand that has rows; `own`: as the call says.
DEVICE enum dtype pack_type(struct pack p, enum dtype own)
{
    return p.wide == 1 ? own : p.type;
}

// Makes three kernels of a function DEVICE void NAME(const struct WHAT *c, struct pack p), and
// launch_NAME(), which launches the one for packs of `wide` elements.
#define VARIANTS(threads, name, what) VARIANTS_OF(KERNEL(threads), KERNEL(threads), name, what)
#define VARIANTS_BESIDE(threads, blocks, name, what) \
    VARIANTS_OF(KERNEL_BESIDE(threads, blocks), KERNEL_BESIDE(threads, blocks), name, what)
// With at most so many registers; where each element is an access of its own there are too few.
#define VARIANTS_HELD(threads, registers, name, what) \
    VARIANTS_OF(KERNEL_HELD(threads, registers), KERNEL(threads), name, what)
#define VARIANTS_OF(kernel, kernel_element, name, what)                                          \
    kernel name##_bf16(struct what c)                                                            \
    {                                                                                            \
        kernel_begin();                                                                          \
        name(&c, pack_of(DT_BF16, 8));                                                           \
    }                                                                                            \
    kernel name##_f32(struct what c)                                                             \
    {                                                                                            \
        kernel_begin();                                                                          \
        name(&c, pack_of(DT_F32, 4));                                                            \
    }                                                                                            \
    kernel_element name##_element(struct what c)                                                 \
    {                                                                                            \
        kernel_begin();                                                                          \
        name(&c, pack_of(DT_NONE, 1));                                                           \
    }                                                                                            \
    static void launch_##name(const struct stream_q *q, int wide, unsigned grid, unsigned block, \
                              const struct what *c)                                              \
    {                                                                                            \
        if (wide == 8)                                                                           \
            LAUNCH(name##_bf16, grid, block, 0, q, *c);                                          \
        else if (wide == 4)                                                                      \
            LAUNCH(name##_f32, grid, block, 0, q, *c);                                           \
        else                                                                                     \
            LAUNCH(name##_element, grid, block, 0, q, *c);                                       \
    }

// ---- teams -------------------------------------------------------------------------------------

// `part` is shared memory of 32 elements. If a team is the whole block, all its threads must call.
DEVICE float team_sum(float x, int team, float *part)
{
    return team == WARP ? warp_sum(x) : block_sum(x, part);
}

DEVICE double team_sum_f64(double x, int team, double *part)
{
    return team == WARP ? warp_sum_f64(x) : block_sum_f64(x, part);
}

DEVICE float team_max(float x, int team, float *part)
{
    return team == WARP ? warp_max(x) : block_max(x, part);
}

// The row with which a thread begins, and how far it is to its next.
DEVICE int64_t team_row(int team)
{
    return (int64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
}

DEVICE int64_t team_step(int team)
{
    return (int64_t)gridDim.x * (blockDim.x / team);
}

// The lanes of the warp before the caller's.
DEVICE unsigned lanes_below(void)
{
    return (1u << threadIdx.x % WARP) - 1;
}
