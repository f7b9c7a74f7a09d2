// SPDX-License-Identifier: Apache-2.0
// SQNORM, of one tensor or of many in a row: the gradients' norm.
//
// Every gradient is read once: 4 bytes for one multiplication and one addition, so the kernel is
// bound by memory. Both are done in double, because the square of a small gradient is below the
// range of f32. A block sums one chunk of a tensor, of at least CHUNK elements, and leaves a
// double. Then one block adds up each tensor's doubles, a warp for each tensor, and adds the
// tensors' sums in the order of the calls, as f32, to the scalar that all calls write. So a row of
// calls costs two launches for every RANGES of them, and gives the same bits as the calls one by
// one. The order of all additions depends on the tensors' lengths alone.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum { THREADS = 256, CHUNK = 8192, AHEAD = 4, RANGES = 160, ADDERS = 1024 };

// One call's tensor; its chunks are the blocks up to `end`.
struct sqnorm_range {
    const float *x;
    int64_t n;
    int end;
    float scale;
};
struct sqnorm_ranges {
    double *partial; // a double for each block
    int n;
    struct sqnorm_range range[RANGES];
};

// Returns the elements of a chunk: CHUNK, or more where that would make over OP_CHUNKS chunks.
HOST_DEVICE int64_t chunk_of(int64_t n)
{
    int64_t size = ((n + OP_CHUNKS - 1) / OP_CHUNKS + LANES - 1) / LANES * LANES;
    return size < CHUNK ? (int64_t)CHUNK : size;
}

HOST_DEVICE int chunks_of(int64_t n)
{
    int64_t size = chunk_of(n);
    return n > size ? (int)((n + size - 1) / size) : 1;
}

DEVICE double add_squares(double sum, const float v[LANES])
{
    for (int k = 0; k < LANES; k++)
        sum += (double)v[k] * (double)v[k];
    return sum;
}

// Sums the squares of a thread's share of the first n elements: whole packs, then the rest.
DEVICE double sum_squares(const float *x, int64_t n)
{
    const int64_t packs = (uintptr_t)x % 16 == 0 ? n / LANES * LANES : 0, step = THREADS * LANES;
    int64_t i = (int64_t)threadIdx.x * LANES;
    double sum = 0;
    for (; i + (AHEAD - 1) * step < packs; i += AHEAD * step) {
        float v[AHEAD][LANES];
        UNROLL
        for (int k = 0; k < AHEAD; k++)
            pack_load(v[k], x, DT_F32, i + k * step, LANES);
        UNROLL
        for (int k = 0; k < AHEAD; k++)
            sum = add_squares(sum, v[k]);
    }
    for (; i < packs; i += step) {
        float v[LANES];
        pack_load(v, x, DT_F32, i, LANES);
        sum = add_squares(sum, v);
    }
    for (i = packs + threadIdx.x; i < n; i += THREADS)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

KERNEL(THREADS) squares_kernel(struct sqnorm_ranges r)
{
    kernel_begin();
    __shared__ double part[WARP];
    const int block = (int)blockIdx.x;
    int low = 0, high = r.n - 1; // the first range that ends behind this block
    while (low < high) {
        int middle = (low + high) / 2;
        if (r.range[middle].end > block)
            high = middle;
        else
            low = middle + 1;
    }
    const struct sqnorm_range *here = &r.range[low];
    const int64_t size = chunk_of(here->n);
    const int64_t begin = (block - (low ? r.range[low - 1].end : 0)) * size;
    const int64_t left = here->n - begin;
    double sum = block_sum_f64(sum_squares(here->x + begin, left < size ? left : size), part);
    if (threadIdx.x == 0)
        r.partial[block] = sum;
}

KERNEL(ADDERS) squares_add_kernel(struct sqnorm_ranges r, float *to, bool accumulate)
{
    kernel_begin();
    __shared__ float part[RANGES];
    const int lane = threadIdx.x % WARP;
    for (int k = threadIdx.x / WARP; k < r.n; k += ADDERS / WARP) {
        double sum = 0;
        for (int i = (k ? r.range[k - 1].end : 0) + lane; i < r.range[k].end; i += WARP)
            sum += r.partial[i];
        sum = warp_sum_f64(sum);
        if (lane == 0)
            part[k] = (float)(sum * (double)r.range[k].scale);
    }
    __syncthreads();
    if (threadIdx.x)
        return;
    float sum = accumulate ? to[0] + part[0] : part[0];
    for (int k = 1; k < r.n; k++)
        sum += part[k];
    to[0] = sum;
}

static int launch_ranges(struct stream_q *q, const struct op_call *c, const struct sqnorm_ranges *r,
                         bool accumulate, struct err *e)
{
    LAUNCH(squares_kernel, (unsigned)r->range[r->n - 1].end, THREADS, 0, q, *r);
    LAUNCH(squares_add_kernel, 1, ADDERS, 0, q, *r, (float *)c->out[0].data, accumulate);
    return op_launched(q, c, e);
}

int op_sqnorms(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    struct sqnorm_ranges r;
    bool accumulate = calls->accumulate;
    memset(&r, 0, sizeof r);
    r.partial = (double *)calls->workspace;
    for (int k = 0; k < n; k++) {
        const struct op_call *c = &calls[k];
        int before = r.n ? r.range[r.n - 1].end : 0;
        if (c->out[0].data != calls->out[0].data || (k && !c->accumulate))
            return op_refuse(c, e, "calls in a row add to one scalar");
        // The calls of a launch share the first one's scratch, which always has room for one.
        if (r.n == RANGES ||
            (r.n && (size_t)(before + OP_CHUNKS) * sizeof(double) > calls->workspace_bytes)) {
            int rc = launch_ranges(q, calls, &r, accumulate, e);
            if (rc)
                return rc;
            accumulate = true;
            r.n = before = 0;
        }
        // With a scale of 0 another rank counts this tensor. It is not read then: it may hold a NaN,
        // and 0 · NaN is NaN.
        struct sqnorm_range *to = &r.range[r.n++];
        to->x = (const float *)c->in[0].data;
        to->n = c->attr->scale != 0 ? shape_count(&c->in[0].shape) : 0;
        to->end = before + chunks_of(to->n);
        to->scale = c->attr->scale;
    }
    PRE((size_t)r.range[r.n - 1].end * sizeof(double) <= calls->workspace_bytes);
    return launch_ranges(q, calls, &r, accumulate, e);
}

int op_sqnorm(struct stream_q *q, const struct op_call *c, struct err *e)
{
    return op_sqnorms(q, c, 1, e);
}
