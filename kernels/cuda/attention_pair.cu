// SPDX-License-Identifier: Apache-2.0
// A second pair of scores, for a library that knows only one: joins q|qr and k|kr into rows of d +
// r, and splits their gradients again. See cuda_attention.h.
//
// Each element is read once and written once, in units of 16 bytes where addresses and widths allow;
// no FLOPs but the sum of kr's gradient over the key heads, all of which read it.
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/units.h"

enum { THREADS = 256, BLOCKS_EACH = 8 };

// Distances of pair_rows, in units.
struct steps {
    int64_t d, r, first, second, second_head, units; // units: of the joined rows together
    int64_t unit;                                    // bytes of one
};

static struct steps steps_of(const struct pair_rows *p)
{
    struct steps s;
    uint64_t bits = (uint64_t)(uintptr_t)p->joined | (uint64_t)(uintptr_t)p->first |
                    (uint64_t)(uintptr_t)p->second;
    bits |= 2 * (uint64_t)(p->d | p->r | p->first_pitch | p->second_pitch | p->second_head);
    s.unit = unit_of(bits);
    s.d = 2 * p->d / s.unit;
    s.r = 2 * p->r / s.unit;
    s.first = 2 * p->first_pitch / s.unit;
    s.second = 2 * p->second_pitch / s.unit;
    s.second_head = 2 * p->second_head / s.unit;
    s.units = p->rows * p->heads * (s.d + s.r);
    return s;
}

// Returns where unit i of the joined rows lies in its own operand. *of_second: that is the second.
DEVICE int64_t find_unit(const struct pair_rows *p, const struct steps *s, int64_t i,
                         bool *of_second)
{
    int64_t wide = s->d + s->r, at = i % wide, h = i / wide % p->heads, row = i / wide / p->heads;
    *of_second = at >= s->d;
    return *of_second ? row * s->second + h * s->second_head + at - s->d
                      : row * s->first + h * s->d + at;
}

KERNEL_BESIDE(THREADS, 4) attention_pair_join(struct pair_rows p, struct steps s)
{
    kernel_begin();
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.units; i += stride) {
        bool second;
        int64_t from = find_unit(&p, &s, i, &second);
        unit_copy(p.joined, i, second ? p.second : p.first, from, (int)s.unit);
    }
}

// A second operand that all heads share is left to attention_pair_sum.
KERNEL_BESIDE(THREADS, 4) attention_pair_split(struct pair_rows p, struct steps s)
{
    kernel_begin();
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.units; i += stride) {
        bool second;
        int64_t to = find_unit(&p, &s, i, &second);
        if (!second || s.second_head)
            unit_copy(second ? p.second : p.first, to, p.joined, i, (int)s.unit);
    }
}

// A thread adds up one element, in the order of the heads, however they are cut into portions.
// Between portions the sum so far is kept in `sums`.
KERNEL(THREADS)
attention_pair_sum(struct pair_rows p, float *sums, const bool begins, const bool ends)
{
    kernel_begin();
    int64_t wide = p.d + p.r, n = p.rows * p.r, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += stride) {
        int64_t row = i / p.r, at = i % p.r;
        float sum = begins ? 0 : sums[i];
        for (int64_t h = 0; h < p.heads; h++)
            sum += load_f32(p.joined, DT_BF16, (row * p.heads + h) * wide + p.d + at);
        if (ends)
            store_f32(p.second, DT_BF16, row * p.second_pitch + at, sum);
        else
            sums[i] = sum;
    }
}

static unsigned blocks_for(const struct stream_q *q, int64_t n)
{
    return launch_blocks(n, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
}

void pair_join(struct stream_q *q, const struct pair_rows *p)
{
    struct steps s = steps_of(p);
    LAUNCH(attention_pair_join, blocks_for(q, s.units), THREADS, 0, q, *p, s);
}

void pair_split(struct stream_q *q, const struct pair_rows *p, float *sums, bool begins, bool ends)
{
    struct steps s = steps_of(p);
    LAUNCH(attention_pair_split, blocks_for(q, s.units), THREADS, 0, q, *p, s);
    if (!p->second_head)
        LAUNCH(attention_pair_sum, blocks_for(q, p->rows * p->r), THREADS, 0, q, *p, sums, begins,
               ends);
}
