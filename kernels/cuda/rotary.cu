// SPDX-License-Identifier: Apache-2.0
// ROTARY: positions as angles. The gradient is the same op with scale −1: it turns back.
//
// Every element is read and written once, 3 FLOPs: bound by memory. A block takes rows (positions)
// whole: the angles' cosines and sines are made once for all heads of a row and lie in shared
// memory. Angles are in double, as a position times a frequency is no f32; what is left of one
// after quarter turns is small enough for a short polynomial.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum { THREADS = 256, ANGLES = 1024, BLOCKS = 2048 };

struct rotary {
    const void *x;
    void *out;
    enum dtype type, out_type;
    const int32_t *position;
    int64_t rows;
    int heads, half, together; // half of a head; together: rows of a turn
    double scale, octaves;     // octaves: how far frequencies go down over one head, in powers of 2
};

// Taylor's, on an eighth of a turn to both sides: the error is below 1e-10.
DEVICE double sine(double x)
{
    double y = x * x;
    return x +
           x * y *
               (-1.0 / 6 + y * (1.0 / 120 + y * (-1.0 / 5040 + y * (1.0 / 362880 - y / 39916800))));
}

DEVICE double cosine(double x)
{
    double y = x * x;
    return 1 +
           y * (-0.5 + y * (1.0 / 24 + y * (-1.0 / 720 + y * (1.0 / 40320 + y * (-1.0 / 3628800 +
                                                                                 y / 479001600)))));
}

// Cosine and sine of any angle: a quarter of a turn is taken off in two parts, so that nothing of
// what remains is lost.
DEVICE float2 turn_of(double angle)
{
    const double quarters = rint(angle * 0.63661977236758134308);
    double x = fma(-quarters, 1.57079632679489661923, angle);
    x = fma(-quarters, 6.1232339957367658e-17, x);
    const int quarter = (int)((int64_t)quarters & 3);
    float c = (float)cosine(x), s = (float)sine(x);
    float across = quarter & 1 ? s : c, up = quarter & 1 ? c : s;
    return make_float2(quarter == 1 || quarter == 2 ? -across : across, quarter >= 2 ? -up : up);
}

// A pack of one head's first half, and their partners half a head further.
DEVICE void rotate_pack(const struct rotary *c, struct pack p, const float2 *turn, int64_t at)
{
    const enum dtype from = pack_type(p, c->type), to = pack_type(p, c->out_type);
    float a[LANES], b[LANES], low[LANES], high[LANES];
    pack_load(a, c->x, from, at, p.wide);
    pack_load(b, c->x, from, at + c->half, p.wide);
    for (int k = 0; k < p.wide; k++) {
        low[k] = a[k] * turn[k].x - b[k] * turn[k].y;
        high[k] = b[k] * turn[k].x + a[k] * turn[k].y;
    }
    pack_store(c->out, to, at, p.wide, low);
    pack_store(c->out, to, at + c->half, p.wide, high);
}

DEVICE void rotary(const struct rotary *c, struct pack p)
{
    __shared__ double frequency[ROTARY_PAIRS_MAX];
    __shared__ float2 turn[ANGLES];
    const int packs = c->half / p.wide, items = c->heads * packs;
    for (int i = threadIdx.x; i < c->half; i += THREADS)
        frequency[i] = exp2(-c->octaves * i);
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * c->together; first < c->rows;
         first += (int64_t)gridDim.x * c->together) {
        for (int i = threadIdx.x; i < c->together * c->half; i += THREADS)
            if (first + i / c->half < c->rows)
                turn[i] =
                    turn_of(c->scale * c->position[first + i / c->half] * frequency[i % c->half]);
        __syncthreads();
        for (int i = threadIdx.x; i < c->together * items; i += THREADS) {
            const int row = i / items, head = i % items / packs, at = i % packs * p.wide;
            if (first + row < c->rows)
                rotate_pack(c, p, turn + row * c->half + at,
                            ((first + row) * c->heads + head) * 2 * c->half + at);
        }
        __syncthreads();
    }
}

VARIANTS(THREADS, rotary, rotary)

int op_rotary(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape;
    struct rotary r;
    int rc = op_want_float(c, &c->in[0], e);
    rc = rc ? rc : op_want(c, &c->in[1], DT_I32, e);
    rc = rc ? rc : op_want_float(c, &c->out[0], e);
    if (rc)
        return rc;
    const int64_t n = x->n ? x->dim[x->n - 1] : 0;
    if (x->n < 2 || n % 2 || n / 2 > ROTARY_PAIRS_MAX)
        return op_refuse(c, e, "a head has an even number of elements, at most 1024");
    memset(&r, 0, sizeof r);
    r.rows = shape_count(&c->in[1].shape);
    r.heads = (int)x->dim[x->n - 2];
    r.half = (int)(n / 2);
    if (r.rows * x->dim[x->n - 2] * n != shape_count(x) || !shape_equal(x, &c->out[0].shape))
        return op_refuse(c, e, "operands disagree about an extent");
    const bool alike = c->in[0].dtype == c->out[0].dtype && pack_aligned(c->in[0].data) &&
                       pack_aligned(c->out[0].data);
    const int wide = alike ? pack_wide(c->in[0].dtype, r.half) : 1;
    const int items = r.heads * r.half / wide;
    r.together = items < THREADS ? THREADS / items : 1;
    r.together = r.together < ANGLES / r.half ? r.together : ANGLES / r.half;
    r.x = c->in[0].data;
    r.type = c->in[0].dtype;
    r.out = c->out[0].data;
    r.out_type = c->out[0].dtype;
    r.position = (const int32_t *)c->in[1].data;
    r.scale = (double)c->attr->scale;
    r.octaves = log2((double)c->attr->theta) * 2 / (double)n;
    LAUNCH_VARIANT(rotary, wide, launch_blocks(r.rows, r.together, BLOCKS), THREADS, q->stream, r);
    return op_launched(q, c, e);
}
