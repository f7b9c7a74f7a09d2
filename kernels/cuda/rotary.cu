// SPDX-License-Identifier: Apache-2.0
// ROTARY: rotates by angles that follow from positions. The gradient is the same op with scale −1:
// it turns back.
//
// Every element is read and written once, for 3 FLOPs, so the kernel is bound by memory. A block
// works on whole rows (positions): cosines and sines are computed once for all heads that turn
// alike, and lie in shared memory. Angles are in double, since f32 cannot hold a position times a
// frequency; what is left of one after whole quarter turns is small enough for a short polynomial.
#include <string.h>

#include "common/op/rotary.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum { THREADS = 256, ANGLES = 1024, BLOCKS = 2048 };

// A row is what shares its angles: the heads of a position, or in a sweep one head of it.
struct rotary {
    const void *x;
    void *out;
    enum dtype type, out_type;
    const int32_t *position;
    int64_t rows, offset, first_head;
    int64_t pitch, turned;     // elements of a row, and those of them that turn: the first
    int heads, half, together; // that turn; half of a head; rows that a block takes at a time
    int sweep;                 // heads of a position in a sweep; 0: there is none
    bool pairs;
    double scale, gain;
    struct rotary_series series;
};

// Taylor's series, for up to an eighth of a turn to both sides: the error is below 1e-10.
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

// Returns cosine and sine of any angle. Whole quarter turns are subtracted in two parts, so that
// what remains keeps its digits.
DEVICE float2 rotation_of(double angle)
{
    const double quarters = rint(angle * 0.63661977236758134308);
    double x = fma(-quarters, 1.57079632679489661923, angle);
    x = fma(-quarters, 6.1232339957367658e-17, x);
    const int quarter = (int)((int64_t)quarters & 3);
    float c = (float)cosine(x), s = (float)sine(x);
    float across = quarter & 1 ? s : c, up = quarter & 1 ? c : s;
    return make_float2(quarter == 1 || quarter == 2 ? -across : across, quarter >= 2 ? -up : up);
}

// Computes what rotary_speed() of common/op does.
DEVICE double speed_of(const struct rotary_series *s, int64_t pair)
{
    const double f = exp2(-s->octaves * (double)pair);
    const double share = s->share + s->by_pair * (double)pair + s->by_speed * f;
    return f * (share >= 1 ? 1 : share <= 0 ? 1 / s->factor : share + (1 - share) / s->factor);
}

DEVICE float2 angle_of(const struct rotary *c, int64_t row, int i, const double *speed)
{
    const int64_t at = c->sweep ? row / c->sweep : row;
    const double f =
        c->sweep ? speed_of(&c->series, (c->first_head + row % c->sweep) * c->half + i) : speed[i];
    float2 rotation = rotation_of(c->scale * (double)(c->position[at] + c->offset) * f);
    rotation.x = (float)(c->gain * (double)rotation.x);
    rotation.y = (float)(c->gain * (double)rotation.y);
    return rotation;
}

// Rotates a pack of a head's first half, from element `at` on, with its partners half a head
// further.
DEVICE void rotate_halves(const struct rotary *c, struct pack p, const float2 *rotation, int64_t at)
{
    const enum dtype from = pack_type(p, c->type), to = pack_type(p, c->out_type);
    float a[LANES], b[LANES], low[LANES], high[LANES];
    pack_load(a, c->x, from, at, p.wide);
    pack_load(b, c->x, from, at + c->half, p.wide);
    for (int k = 0; k < p.wide; k++) {
        low[k] = a[k] * rotation[k].x - b[k] * rotation[k].y;
        high[k] = b[k] * rotation[k].x + a[k] * rotation[k].y;
    }
    pack_store(c->out, to, at, p.wide, low);
    pack_store(c->out, to, at + c->half, p.wide, high);
}

// Rotates two packs of neighbouring pairs, from element `at` on.
DEVICE void rotate_pairs(const struct rotary *c, struct pack p, const float2 *rotation, int64_t at)
{
    const enum dtype from = pack_type(p, c->type), to = pack_type(p, c->out_type);
    float x[2 * LANES];
    pack_load(x, c->x, from, at, p.wide);
    pack_load(x + p.wide, c->x, from, at + p.wide, p.wide);
    for (int k = 0; k < p.wide; k++) {
        const float a = x[2 * k], b = x[2 * k + 1];
        x[2 * k] = a * rotation[k].x - b * rotation[k].y;
        x[2 * k + 1] = b * rotation[k].x + a * rotation[k].y;
    }
    pack_store(c->out, to, at, p.wide, x);
    pack_store(c->out, to, at + p.wide, p.wide, x + p.wide);
}

// Copies, of the rows from `first` on that a block takes, what lies behind the heads that turn.
DEVICE void copy_rest(const struct rotary *c, struct pack p, int64_t first)
{
    const enum dtype from = pack_type(p, c->type), to = pack_type(p, c->out_type);
    const int rest = (int)(c->pitch - c->turned) / p.wide;
    float x[LANES];
    for (int i = threadIdx.x; i < c->together * rest; i += THREADS) {
        const int64_t row = first + i / rest;
        const int64_t at = row * c->pitch + c->turned + (int64_t)(i % rest) * p.wide;
        if (row >= c->rows)
            break;
        pack_load(x, c->x, from, at, p.wide);
        pack_store(c->out, to, at, p.wide, x);
    }
}

DEVICE void rotary(const struct rotary *c, struct pack p)
{
    __shared__ double speed[ROTARY_PAIRS_MAX];
    __shared__ float2 rotation[ANGLES];
    const int packs = c->half / p.wide, items = c->heads * packs;
    for (int i = threadIdx.x; i < c->half; i += THREADS)
        speed[i] = speed_of(&c->series, i);
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * c->together; first < c->rows;
         first += (int64_t)gridDim.x * c->together) {
        for (int i = threadIdx.x; i < c->together * c->half; i += THREADS)
            if (first + i / c->half < c->rows)
                rotation[i] = angle_of(c, first + i / c->half, i % c->half, speed);
        __syncthreads();
        for (int i = threadIdx.x; i < c->together * items; i += THREADS) {
            const int row = i / items, head = i % items / packs, at = i % packs * p.wide;
            const int64_t base = (first + row) * c->pitch + (int64_t)head * 2 * c->half;
            if (first + row >= c->rows)
                continue;
            if (c->pairs)
                rotate_pairs(c, p, rotation + row * c->half + at, base + 2 * at);
            else
                rotate_halves(c, p, rotation + row * c->half + at, base + at);
        }
        if (c->x != c->out)
            copy_rest(c, p, first);
        __syncthreads();
    }
}

VARIANTS(THREADS, rotary, rotary)

int op_rotary(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape;
    struct rotary r;
    int rc = op_check_rotary(c, e);
    if (rc)
        return rc;
    const struct shape *positions = &c->in[1].shape;
    const int64_t n = x->dim[x->n - 1];
    memset(&r, 0, sizeof r);
    r.rows = shape_count(positions);
    const struct rotary_row row = rotary_row_of(c);
    r.heads = (int)row.heads;
    r.half = (int)(n / 2);
    r.pitch = row.pitch;
    r.turned = row.heads * n;
    if (c->attr->rotary.sweep) {
        if (r.turned != r.pitch)
            return op_refuse(c, e, "a sweep over packed heads is not served");
        r.pitch = n;
        r.turned = n;
        r.sweep = r.heads;
        r.rows *= r.heads;
        r.heads = 1;
        r.first_head = c->attr->start;
    }
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
    r.gain = c->attr->rotary.gain != 0 ? (double)c->attr->rotary.gain : 1;
    r.offset = c->attr->rotary.offset;
    r.pairs = c->attr->rotary.pairs;
    r.series = rotary_series_of(&c->attr->rotary, n);
    launch_rotary(q, wide, launch_blocks(r.rows, r.together, BLOCKS), THREADS, &r);
    return op_launched(q, c, e);
}
