// SPDX-License-Identifier: Apache-2.0
// How tokens go to experts and back, in plain f64. See reference.h.
//
// Each number is said by itself: how many come before an element is its rank, how many choices of
// an expert come before one is its place.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/op/chain.h"
#include "tests/ops/reference.h"

// ---- the greatest of a row ---------------------------------------------------------------------

static int64_t rank_in_row(const double *row, int64_t n, int64_t i)
{
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++) {
        bool greater = isnan(row[i])
                           ? isnan(row[j]) && j < i
                           : isnan(row[j]) || row[j] > row[i] || (row[j] == row[i] && j < i);
        before += j != i && greater;
    }
    return before;
}

static void topk(const struct ref_tensor *in, int nin, struct ref_tensor *out)
{
    const double *by = in[nin > 1].v;
    int64_t n = in[0].shape.dim[in[0].shape.n - 1], k = out[0].shape.dim[out[0].shape.n - 1];
    for (int64_t i = 0; i < shape_count(&in[0].shape); i++) {
        int64_t row = i / n, rank = rank_in_row(by + row * n, n, i % n);
        if (rank >= k)
            continue;
        out[0].v[row * k + rank] = in[0].v[i];
        out[1].v[row * k + rank] = (double)(i % n);
    }
}

static void topk_grad(const struct ref_tensor *in, struct ref_tensor *out)
{
    int64_t n = out[0].shape.dim[out[0].shape.n - 1], k = in[0].shape.dim[in[0].shape.n - 1];
    for (int64_t i = 0; i < shape_count(&out[0].shape); i++)
        out[0].v[i] = 0;
    for (int64_t i = 0; i < shape_count(&in[0].shape); i++)
        out[0].v[i / k * n + (int64_t)in[0].v[i]] += in[1].v[i];
}

// ---- loads -------------------------------------------------------------------------------------

static void balance(const struct op_attr *attr, const struct ref_tensor *in, struct ref_tensor *out)
{
    int64_t n = shape_count(&in[0].shape);
    const double *load = in[1].v + attr->start;
    double all = 0;
    for (int64_t i = 0; i < n; i++)
        all += load[i];
    for (int64_t i = 0; i < n; i++) {
        double way = (double)n * load[i] < all ? 1 : (double)n * load[i] > all ? -1 : 0;
        out[0].v[i] = in[0].v[i] + (in[2].v[CLIP_SKIP] != 0 ? 0 : (double)attr->scale * way);
    }
}

// ---- slots -------------------------------------------------------------------------------------

struct dealing {
    const double *ids, *weights, *positions;
    int64_t seq, choices;
};

// A weight in 4,096ths, from 0 to 1; a NaN is 0.
static double key_of(double weight)
{
    double units = floor(4096 * weight + 0.5);
    return units > 4096 ? 4096 : units > 0 ? units : 0;
}

// Whether token a comes before token b of the same group.
static bool is_before(const struct dealing *d, int64_t a, int64_t b)
{
    double key_a = key_of(d->weights[a * d->choices]), key_b = key_of(d->weights[b * d->choices]);
    if (key_a != key_b)
        return key_a > key_b;
    if (a / d->seq != b / d->seq)
        return a / d->seq < b / d->seq;
    return (int64_t)d->positions[a] % d->seq < (int64_t)d->positions[b] % d->seq;
}

static void slots(const struct op_attr *attr, const struct ref_tensor *in, struct ref_tensor *out)
{
    const struct op_slots *s = &attr->slots;
    struct dealing d = {in[0].v, in[1].v, in[2].v, in[0].shape.dim[1], in[0].shape.dim[2]};
    int64_t tokens = s->group * d.seq, all = shape_count(&in[0].shape);
    PRE(in[0].shape.dim[0] % s->group == 0);
    for (int64_t i = 0; i < shape_count(&out[1].shape); i++)
        out[1].v[i] = 0;
    for (int64_t at = 0; at < all; at++) {
        int64_t token = at / d.choices, first = token / tokens * tokens, place = 0;
        for (int64_t other = first * d.choices; other < (first + tokens) * d.choices; other++) {
            int64_t j = other % d.choices, mine = at % d.choices;
            place += d.ids[other] == d.ids[at] &&
                     (j < mine || (j == mine && is_before(&d, other / d.choices, token)));
        }
        bool fits = place < s->capacity;
        out[0].v[at] = fits ? d.ids[at] * (double)s->capacity + (double)place : -1;
        for (int64_t b = 0; b < s->group; b++)
            out[1].v[(first / d.seq + b) * s->experts + (int64_t)d.ids[at]]++;
    }
}

// ---- rows by slots -----------------------------------------------------------------------------

// Where the row of choice `at` begins in y [groups, experts, places, width]; −1: not here.
static int64_t row_begins(const struct op_attr *attr, const struct ref_tensor *y,
                          const struct ref_tensor *slot, int64_t at)
{
    const struct op_slots *s = &attr->slots;
    const int64_t *dim = y->shape.dim;
    int64_t sample = at / (slot->shape.dim[1] * slot->shape.dim[2]), number = (int64_t)slot->v[at];
    int64_t expert = number / s->capacity - s->first.expert;
    int64_t place = number % s->capacity - s->first.place;
    if (number < 0 || expert < 0 || expert >= dim[1] || place < 0 || place >= dim[2])
        return -1;
    return ((sample / s->group * dim[1] + expert) * dim[2] + place) * dim[3];
}

static void dispatch(const struct op_attr *attr, const struct ref_tensor *in, int nin,
                     struct ref_tensor *out)
{
    int64_t width = out[0].shape.dim[3], choices = in[1].shape.dim[2];
    for (int64_t i = 0; i < shape_count(&out[0].shape); i++)
        out[0].v[i] = 0;
    for (int64_t at = 0; at < shape_count(&in[1].shape); at++) {
        int64_t row = row_begins(attr, &out[0], &in[1], at);
        for (int64_t m = 0; row >= 0 && m < width; m++)
            out[0].v[row + m] = in[0].v[at / choices * width + m] * (nin > 2 ? in[2].v[at] : 1);
    }
}

static void combine(const struct op_attr *attr, const struct ref_tensor *in, int nin,
                    struct ref_tensor *out)
{
    int64_t width = out[0].shape.dim[2], choices = in[1].shape.dim[2];
    for (int64_t i = 0; i < shape_count(&out[0].shape); i++)
        out[0].v[i] = 0;
    for (int64_t at = 0; at < shape_count(&in[1].shape); at++) {
        int64_t row = row_begins(attr, &in[0], &in[1], at);
        for (int64_t m = 0; row >= 0 && m < width; m++)
            out[0].v[at / choices * width + m] += in[0].v[row + m] * (nin > 2 ? in[2].v[at] : 1);
    }
}

static void slot_dot(const struct op_attr *attr, const struct ref_tensor *in,
                     struct ref_tensor *out)
{
    int64_t width = in[2].shape.dim[2], choices = in[1].shape.dim[2];
    for (int64_t at = 0; at < shape_count(&in[1].shape); at++) {
        int64_t row = row_begins(attr, &in[0], &in[1], at);
        out[0].v[at] = 0;
        for (int64_t m = 0; row >= 0 && m < width; m++)
            out[0].v[at] += in[0].v[row + m] * in[2].v[at / choices * width + m];
    }
}

// ---- caches ------------------------------------------------------------------------------------

static void append(const struct ref_tensor *in, struct ref_tensor *out)
{
    const int64_t places = out[0].shape.dim[1], rows = in[1].shape.dim[1];
    const int64_t width = shape_count(&in[1].shape) / shape_count(&in[2].shape);
    for (int64_t i = 0; i < shape_count(&out[0].shape); i++)
        out[0].v[i] = in[0].v[i];
    for (int64_t at = 0; at < shape_count(&in[2].shape); at++) {
        int64_t b = at / rows, position = (int64_t)in[2].v[at];
        for (int64_t m = 0; m < width && in[2].v[at] <= in[3].v[b]; m++)
            out[0].v[(b * places + position % places) * width + m] = in[1].v[at * width + m];
    }
}

// Each position in turn takes its place from the one before that had it.
static void ring(const struct op_attr *attr, const struct ref_tensor *in, struct ref_tensor *out)
{
    const int64_t places = out[0].shape.dim[1];
    for (int64_t i = 0; i < shape_count(&out[0].shape); i++)
        out[0].v[i] = attr->limit ? (double)attr->limit : in[0].v[i / places] + 1;
    for (int64_t b = 0; b < out[0].shape.dim[0]; b++)
        for (int64_t p = 0; p <= (int64_t)in[0].v[b]; p++)
            out[0].v[b * places + p % places] = (double)p;
}

// Of the places that have a token; the others are 0, and what they were made of is not read.
static void matmul_places(const struct op_attr *attr, const struct ref_tensor *in,
                          struct ref_tensor *out, bool accumulate)
{
    const struct shape *a = &in[0].shape, *chosen = &in[2].shape;
    const struct op_slots *s = &attr->slots;
    const int64_t width = a->dim[3];
    struct ref_tensor filled[2] = {in[0], in[1]};
    struct op_attr product = linear_product(attr, 3);
    double *rows = calloc((size_t)shape_count(a), sizeof *rows);
    PRE(rows);
    for (int64_t i = 0; i < shape_count(a) / width; i++) {
        const int64_t place = i % a->dim[2], group = i / a->dim[2] % a->dim[1];
        const int64_t expert = s->first.expert + i / a->dim[2] / a->dim[1];
        if (s->first.place + place < (int64_t)in[2].v[group * s->group * chosen->dim[1] + expert])
            memcpy(rows + i * width, in[0].v + i * width, (size_t)width * sizeof *rows);
    }
    filled[0].v = rows;
    ref_op(OP_MATMUL, &product, filled, 2, out, 1, accumulate);
    free(rows);
}

void ref_route(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
               struct ref_tensor *out, bool accumulate)
{
    PRE(op == OP_TOPK || op == OP_TOPK_GRAD || op == OP_SLOTS || op == OP_DISPATCH ||
        op == OP_COMBINE || op == OP_SLOT_DOT || op == OP_BALANCE || op == OP_APPEND ||
        op == OP_RING || op == OP_MATMUL_PLACES);
    if (op == OP_TOPK)
        topk(in, nin, out);
    else if (op == OP_TOPK_GRAD)
        topk_grad(in, out);
    else if (op == OP_APPEND)
        append(in, out);
    else if (op == OP_RING)
        ring(attr, in, out);
    else if (op == OP_BALANCE)
        balance(attr, in, out);
    else if (op == OP_MATMUL_PLACES)
        matmul_places(attr, in, out, accumulate);
    else if (op == OP_SLOTS)
        slots(attr, in, out);
    else if (op == OP_DISPATCH)
        dispatch(attr, in, nin, out);
    else if (op == OP_COMBINE)
        combine(attr, in, nin, out);
    else
        slot_dot(attr, in, out);
}
