// SPDX-License-Identifier: Apache-2.0
// The values that a parameter is born with. See initial_values.h.
//
// A number takes about 50 ns (a logarithm and a cosine in double), so a billion parameters would
// keep a GPU waiting for a minute if one thread drew them all.
#include "worker/rank/exec/initial_values.h"

#include <math.h>
#include <pthread.h>

#include "common/base/hash.h"
#include "common/base/rand.h"

enum {
    THREADS_MAX = 64,
    SHARE_MIN = 1 << 12, // elements below which starting a thread costs more than it saves
};

// The global row-major index of element `i` of a box.
static uint64_t compute_global_index(const struct box *b, const struct shape *global, int64_t i)
{
    uint64_t index = 0, stride = 1;
    for (int d = b->shape.n - 1; d >= 0; d--) {
        int64_t at = b->start[d] + i % b->shape.dim[d];
        i /= b->shape.dim[d];
        index += (uint64_t)at * stride;
        stride *= (uint64_t)global->dim[d];
    }
    return index;
}

// Where element `i` of a box lies in dimension d of the whole tensor.
static int64_t find_global_index(const struct box *b, int d, int64_t i)
{
    for (int k = b->shape.n - 1; k > d; k--)
        i /= b->shape.dim[k];
    return b->start[d] + i % b->shape.dim[d];
}

// Puts to 0 what of elements [at, at + len) of a box is padding.
static void clear_padding(const struct deal_part *p, const struct value *v, int64_t at, int64_t len,
                          float *out)
{
    for (int d = 0; d < v->shape.n; d++)
        for (int64_t i = 0; v->limit[d] && i < len; i++)
            if (find_global_index(&p->box, d, at + i) >= v->limit[d])
                out[i] = 0;
}

// Makes a truncated normal of a normal x: it lies within ±2, and the share of truncated normals below
// it is the share of all normals below x. This is t of erf(t / √2) = erf(√2) · erf(x / √2), which
// Newton's steps find without overshooting when they begin at 0. The result is t over the deviation
// of truncated normals, so that its own deviation is 1.
static float truncate_normal(float x)
{
    static const double root = 0.70710678118654752, slope = 0.79788456080286536, // √½, √(2/π)
        deviation = 0.87962566103423978;
    double target = erf(1 / root) * erf(fabs((double)x) * root), t = 0, step = 1;
    for (int i = 0; i < 12 && step > 1e-9; i++) {
        step = (target - erf(t * root)) / (slope * exp(-t * t / 2));
        t += step;
    }
    return (float)copysign(fmin(t, 2) / deviation, (double)x);
}

// Draws numbers of mean 0 and deviation 1, of the kind that a value is born with, by their indices.
static void draw_row(const struct rand_site *site, enum init_kind init, uint64_t first, int64_t n,
                     float *out)
{
    static const float half = 1.7320508f; // of a uniform's width: its deviation is that over √3
    if (init == INIT_UNIFORM)
        for (int64_t i = 0; i < n; i++)
            out[i] = half * (2 * rand_uniform(site, first + (uint64_t)i) - 1);
    else
        rand_normals(site, first, (size_t)n, out);
    for (int64_t i = 0; init == INIT_TRUNCATED && i < n; i++)
        out[i] = truncate_normal(out[i]);
}

// Draws elements [at, at + len) of a box, a row at a time: a row's elements are neighbours in the
// whole tensor too. Numbers are drawn as if padding were not there.
static void draw_values(const struct deal_part *p, const struct value *v, uint64_t seed, int64_t at,
                        int64_t len, float *out)
{
    struct rand_site site = {.seed = seed, .stream = hash_fnv1a32(v->name)};
    struct shape unpadded = p->global;
    for (int d = 0; d < v->shape.n; d++)
        unpadded.dim[d] = v->limit[d] ? v->limit[d] : unpadded.dim[d];
    int last = p->box.shape.n - 1;
    int64_t row = last < 0 ? 1 : p->box.shape.dim[last];
    for (int64_t i = 0; i < len;) {
        int64_t left = row - (at + i) % row, n = left < len - i ? left : len - i;
        draw_row(&site, v->init, compute_global_index(&p->box, &unpadded, at + i), n, out + i);
        i += n;
    }
    for (int64_t i = 0; i < len; i++)
        out[i] *= v->init_std;
}

struct share { // one thread's
    const struct deal_part *part;
    const struct value *value;
    uint64_t seed;
    int64_t at, len;
    float *out;
    pthread_t thread;
    bool started;
};

static void *draw_share(void *arg)
{
    const struct share *s = arg;
    if (s->value->init == INIT_ONE)
        for (int64_t i = 0; i < s->len; i++)
            s->out[i] = 1;
    else
        draw_values(s->part, s->value, s->seed, s->at, s->len, s->out);
    clear_padding(s->part, s->value, s->at, s->len, s->out);
    return NULL;
}

// As many threads as are allowed, but each with enough to do.
static int count_shares(int64_t len, int threads)
{
    int64_t most = (len + SHARE_MIN - 1) / SHARE_MIN;
    most = most < threads ? most : threads;
    return most > THREADS_MAX ? THREADS_MAX : most < 1 ? 1 : (int)most;
}

void initial_values(const struct deal_part *p, const struct value *v, uint64_t seed, int64_t at,
                    int64_t len, int threads, float *out)
{
    struct share shares[THREADS_MAX];
    int n = count_shares(len, threads);
    for (int i = 0; i < n; i++) {
        int64_t from = len * i / n, to = len * (i + 1) / n;
        shares[i] = (struct share){.part = p,
                                   .value = v,
                                   .seed = seed,
                                   .at = at + from,
                                   .len = to - from,
                                   .out = out + from};
    }
    for (int i = 1; i < n; i++)
        shares[i].started = !pthread_create(&shares[i].thread, NULL, draw_share, &shares[i]);
    for (int i = 0; i < n; i++)
        if (!shares[i].started)
            draw_share(&shares[i]);
    for (int i = 1; i < n; i++)
        if (shares[i].started)
            pthread_join(shares[i].thread, NULL);
}
