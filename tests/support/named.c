// SPDX-License-Identifier: Apache-2.0
// Tensors whose dimensions have names. See named.h.
#include "tests/support/named.h"

#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/rand.h"
#include "tests/support/normal.h"

// ---- tensors -----------------------------------------------------------------------------------

int64_t named_count(const struct named *x)
{
    int64_t n = 1;
    for (int d = 0; d < x->n; d++)
        n *= x->size[d];
    return n;
}

static void add_dim(struct named *x, const char *dim, int64_t size)
{
    PRE(x->n < NAMED_DIMS);
    x->dim[x->n] = dim;
    x->size[x->n++] = size;
}

static struct named with_room(struct arena *a, struct named shape)
{
    shape.v = arena_array(a, double, named_count(&shape));
    return shape;
}

struct named named_new(struct arena *a, int n, const char *const *dims, const int64_t *sizes)
{
    struct named x = {0};
    for (int d = 0; d < n; d++)
        add_dim(&x, dims[d], sizes[d]);
    return with_room(a, x);
}

int named_find(const struct named *x, const char *dim)
{
    for (int d = 0; d < x->n; d++)
        if (!strcmp(x->dim[d], dim))
            return d;
    return -1;
}

struct named named_without(const struct named *x, const char *dim)
{
    struct named out = {0};
    for (int d = 0; d < x->n; d++)
        if (strcmp(x->dim[d], dim) != 0)
            add_dim(&out, x->dim[d], x->size[d]);
    return out;
}

static bool is_among(const char *const *names, const char *dim)
{
    for (; *names; names++)
        if (!strcmp(*names, dim))
            return true;
    return false;
}

// How far apart neighbours along each dimension of `over` lie in x; 0 where x lacks it.
static void find_strides(const struct named *x, const struct named *over, int64_t *stride)
{
    for (int d = 0; d < over->n; d++) {
        int at = named_find(x, over->dim[d]);
        stride[d] = at >= 0;
        for (int k = at + 1; at >= 0 && k < x->n; k++)
            stride[d] *= x->size[k];
    }
}

// A walk over all places of `over`, and where each is in up to three tensors.
struct walk {
    struct named over;
    int64_t at[NAMED_DIMS], stride[3][NAMED_DIMS], place[3];
};

static struct walk walk_over(const struct named *over, const struct named *x, const struct named *y,
                             const struct named *z)
{
    struct walk w = {.over = *over};
    const struct named *of[3] = {x, y, z};
    for (int k = 0; k < 3; k++)
        if (of[k])
            find_strides(of[k], over, w.stride[k]);
    return w;
}

static bool walk_next(struct walk *w)
{
    for (int d = w->over.n - 1; d >= 0; d--) {
        bool wraps = ++w->at[d] == w->over.size[d];
        int64_t by = wraps ? 1 - w->over.size[d] : 1;
        for (int k = 0; k < 3; k++)
            w->place[k] += by * w->stride[k][d];
        if (!wraps)
            return true;
        w->at[d] = 0;
    }
    return false;
}

// ---- algebra -----------------------------------------------------------------------------------

struct named named_product(struct arena *a, const struct named *x, const struct named *y,
                           const char *const *kept)
{
    struct named out = {0}, all;
    for (int d = 0; d < x->n; d++)
        if (named_find(y, x->dim[d]) < 0 || !strcmp(x->dim[d], "batch") ||
            is_among(kept, x->dim[d]))
            add_dim(&out, x->dim[d], x->size[d]);
    for (int d = 0; d < y->n; d++)
        if (named_find(x, y->dim[d]) < 0)
            add_dim(&out, y->dim[d], y->size[d]);
    all = out;
    for (int d = 0; d < x->n; d++)
        if (named_find(&out, x->dim[d]) < 0)
            add_dim(&all, x->dim[d], x->size[d]);
    out = with_room(a, out);
    struct walk w = walk_over(&all, &out, x, y);
    do
        out.v[w.place[0]] += x->v[w.place[1]] * y->v[w.place[2]];
    while (walk_next(&w));
    return out;
}

struct named named_operate(struct arena *a, char sign, const struct named *x, const struct named *y)
{
    bool wide = true;
    for (int d = 0; d < y->n; d++)
        wide = wide && named_find(x, y->dim[d]) >= 0;
    struct named out = with_room(a, wide ? *x : *y);
    struct walk w = walk_over(&out, &out, x, y);
    do {
        double p = x->v[w.place[1]], q = y->v[w.place[2]];
        out.v[w.place[0]] = sign == '+' ? p + q : sign == '-' ? p - q : sign == '*' ? p * q : p / q;
    } while (walk_next(&w));
    return out;
}

struct named named_map(struct arena *a, const struct named *x, double (*f)(double))
{
    struct named out = with_room(a, *x);
    for (int64_t i = 0; i < named_count(x); i++)
        out.v[i] = f(x->v[i]);
    return out;
}

struct named named_scale(struct arena *a, const struct named *x, double by, double plus)
{
    struct named out = with_room(a, *x);
    for (int64_t i = 0; i < named_count(x); i++)
        out.v[i] = by * x->v[i] + plus;
    return out;
}

struct named named_sum(struct arena *a, const struct named *x, const char *const *over, double by)
{
    struct named out = {0};
    for (int d = 0; d < x->n && *over; d++)
        if (!is_among(over, x->dim[d]))
            add_dim(&out, x->dim[d], x->size[d]);
    out = with_room(a, out);
    struct walk w = walk_over(x, &out, x, NULL);
    do
        out.v[w.place[0]] += by * x->v[w.place[1]];
    while (walk_next(&w));
    return out;
}

struct named named_mean(struct arena *a, const struct named *x, const char *const *over)
{
    double counted = 1;
    for (int d = 0; d < x->n; d++)
        if (!*over || is_among(over, x->dim[d]))
            counted *= (double)x->size[d];
    return named_sum(a, x, over, 1 / counted);
}

struct named named_softmax(struct arena *a, const struct named *x, const char *over)
{
    struct named e = named_map(a, x, exp);
    struct named total = named_sum(a, &e, (const char *const[]){over, NULL}, 1);
    return named_operate(a, '/', &e, &total);
}

struct named named_rename(const struct named *x, const char *from, const char *to)
{
    struct named out = *x;
    int at = named_find(x, from);
    PRE(at >= 0 && named_find(x, to) < 0);
    out.dim[at] = to;
    return out;
}

struct named named_ordered(struct arena *a, const struct named *x, const char *const *dims)
{
    struct named out = {0};
    for (int d = 0; d < x->n; d++)
        add_dim(&out, dims[d], x->size[named_find(x, dims[d])]);
    out = with_room(a, out);
    struct walk w = walk_over(&out, &out, x, NULL);
    do
        out.v[w.place[0]] = x->v[w.place[1]];
    while (walk_next(&w));
    return out;
}

static double of_root(double x)
{
    return 1 / sqrt(x);
}

struct named named_norm(struct arena *a, const struct named *x, bool center, double eps,
                        const struct named *weight, const struct named *bias)
{
    const char *const last[] = {x->dim[x->n - 1], NULL};
    struct named y = *x;
    if (center) {
        struct named mean = named_mean(a, x, last);
        y = named_operate(a, '-', x, &mean);
    }
    struct named square = named_operate(a, '*', &y, &y), mean = named_mean(a, &square, last);
    struct named shifted = named_scale(a, &mean, 1, eps), by = named_map(a, &shifted, of_root);
    y = named_operate(a, '*', &y, &by);
    if (weight)
        y = named_operate(a, '*', &y, weight);
    return bias ? named_operate(a, '+', &y, bias) : y;
}

struct named named_embed(struct arena *a, const struct named *ids, const struct named *table)
{
    struct named out = *ids;
    int64_t width = table->size[1];
    add_dim(&out, table->dim[1], width);
    out = with_room(a, out);
    for (int64_t i = 0; i < named_count(&out); i++)
        out.v[i] = table->v[(int64_t)ids->v[i / width] * width + i % width];
    return out;
}

// ---- positions ---------------------------------------------------------------------------------

struct named named_causal(struct arena *a, const struct named *scores, int64_t window)
{
    struct named out = with_room(a, *scores);
    int query = named_find(scores, "seq"), key = named_find(scores, "key");
    struct walk w = walk_over(&out, &out, scores, NULL);
    do {
        int64_t back = w.at[query] - w.at[key];
        bool seen = back >= 0 && (!window || back < window);
        out.v[w.place[0]] = seen ? scores->v[w.place[1]] : -INFINITY;
    } while (walk_next(&w));
    return out;
}

struct named named_rotary(struct arena *a, const struct named *x, double theta)
{
    struct named out = with_room(a, *x);
    int64_t width = x->size[x->n - 1], half = width / 2;
    int seq = named_find(x, "seq");
    struct walk w = walk_over(&out, &out, NULL, NULL);
    do {
        int64_t at = w.place[0], e = w.at[x->n - 1], p = e % half;
        double angle = (double)w.at[seq] * pow(theta, -2.0 * (double)p / (double)width);
        double other = e < half ? -x->v[at + half] : x->v[at - half];
        out.v[at] = x->v[at] * cos(angle) + other * sin(angle);
    } while (walk_next(&w));
    return out;
}

struct named named_repeat(struct arena *a, const struct named *x, const char *dim, const char *to,
                          int64_t size)
{
    struct named out = *x;
    int at = named_find(x, dim);
    int64_t times = size / x->size[at];
    out.dim[at] = to;
    out.size[at] = size;
    out = with_room(a, out);
    int64_t stride[NAMED_DIMS];
    find_strides(x, x, stride);
    struct walk w = walk_over(&out, &out, NULL, NULL);
    do {
        int64_t from = 0;
        for (int d = 0; d < x->n; d++)
            from += stride[d] * (d == at ? w.at[d] / times : w.at[d]);
        out.v[w.place[0]] = x->v[from];
    } while (walk_next(&w));
    return out;
}

// ---- draws -------------------------------------------------------------------------------------

static struct rand_site site_of(const struct named_draw *d)
{
    return (struct rand_site){d->seed, hash_fnv1a32(d->path), d->step};
}

struct named named_dropout(struct arena *a, const struct named *x, const struct named_draw *d)
{
    struct named out = with_room(a, *x);
    struct rand_site site = site_of(d);
    double rate = (double)(float)d->rate;
    for (int64_t i = 0; i < named_count(x); i++)
        if ((double)rand_uniform(&site, (uint64_t)i) >= rate)
            out.v[i] = x->v[i] / (1 - rate);
    return out;
}

struct named named_normals(struct arena *a, const struct named *like, const struct named_draw *d)
{
    struct named out = with_room(a, *like);
    struct rand_site site = site_of(d);
    for (int64_t i = 0; i < named_count(like); i++)
        out.v[i] = (double)draw_normal(&site, (uint64_t)i);
    return out;
}

// ---- experts -----------------------------------------------------------------------------------

void named_top(struct arena *a, const struct named *scores, int64_t choices, struct named *w,
               struct named *id)
{
    int64_t n = scores->size[2], rows = named_count(scores) / n;
    struct named shape = *scores;
    shape.dim[2] = "choice";
    shape.size[2] = choices;
    *w = with_room(a, shape);
    *id = with_room(a, shape);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            const double *row = scores->v + r * n;
            int64_t better = 0;
            for (int64_t j = 0; j < n; j++)
                better += row[j] > row[i] || (row[j] == row[i] && j < i);
            if (better >= choices)
                continue;
            w->v[r * choices + better] = row[i];
            id->v[r * choices + better] = (double)i;
        }
}

struct named named_places(struct arena *a, const struct named *id, const struct named *w,
                          int64_t experts, int64_t capacity)
{
    const int64_t batch = id->size[0], seq = id->size[1], choices = id->size[2];
    struct named out = named_new(a, 3, (const char *const[]){"group", "expert", "capacity"},
                                 (const int64_t[]){batch, experts, capacity});
    for (int64_t i = 0; i < named_count(&out); i++)
        out.v[i] = -1;
    bool *dealt = arena_array(a, bool, named_count(id));
    int64_t *taken = arena_array(a, int64_t, batch * experts);
    for (int64_t turn = 0; turn < batch * choices * seq; turn++) {
        // The next of this sample to be dealt: its first choices, by weight.
        int64_t b = turn / (choices * seq), j = turn / seq % choices, best = -1;
        double most = -1;
        for (int64_t s = 0; s < seq; s++) {
            int64_t at = (b * seq + s) * choices;
            double key = fmin(fmax(floor(4096 * w->v[at] + 0.5), 0), 4096);
            if (!dealt[at + j] && key > most) {
                most = key;
                best = s;
            }
        }
        int64_t at = (b * seq + best) * choices + j, e = (int64_t)id->v[at];
        dealt[at] = true;
        if (taken[b * experts + e] < capacity)
            out.v[(b * experts + e) * capacity + taken[b * experts + e]++] = (double)best;
    }
    return out;
}

struct named named_dispatch(struct arena *a, const struct named *x, const struct named *places)
{
    struct named out = *places;
    int64_t seq = x->size[1], width = x->size[2], of_sample = places->size[1] * places->size[2];
    add_dim(&out, x->dim[2], width);
    out = with_room(a, out);
    for (int64_t i = 0; i < named_count(&out); i++) {
        int64_t place = i / width, b = place / of_sample;
        if (places->v[place] >= 0)
            out.v[i] = x->v[(b * seq + (int64_t)places->v[place]) * width + i % width];
    }
    return out;
}

struct named named_combine(struct arena *a, const struct named *y, const struct named *places,
                           const struct named *id, const struct named *w)
{
    int64_t seq = id->size[1], choices = id->size[2], width = y->size[3];
    int64_t experts = places->size[1], capacity = places->size[2];
    struct named out = named_new(a, 3, (const char *const[]){"batch", "seq", y->dim[3]},
                                 (const int64_t[]){id->size[0], seq, width});
    for (int64_t p = 0; p < named_count(places); p++) {
        int64_t b = p / (experts * capacity), e = p / capacity % experts, s = (int64_t)places->v[p];
        for (int64_t j = 0; s >= 0 && j < choices; j++) {
            int64_t at = (b * seq + s) * choices + j;
            for (int64_t m = 0; (int64_t)id->v[at] == e && m < width; m++)
                out.v[(b * seq + s) * width + m] += w->v[at] * y->v[p * width + m];
        }
    }
    return out;
}

// ---- losses ------------------------------------------------------------------------------------

double named_cross_entropy(const struct named *logits, const struct named *ids, int64_t real)
{
    int64_t width = logits->size[logits->n - 1], rows = named_count(ids);
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (int64_t i = 0; i < real; i++)
            total += exp(logits->v[r * width + i]);
        sum += log(total) - logits->v[r * width + (int64_t)ids->v[r]];
    }
    return sum / (double)rows;
}
