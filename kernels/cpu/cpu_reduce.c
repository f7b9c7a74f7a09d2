// SPDX-License-Identifier: Apache-2.0
// SUM and SQNORM.
//
// Partial sums are kept in double, in an order that depends on shapes alone: a column adds blocks
// of rows in row order; a run of contiguous elements adds chunks in order. Threads share columns,
// kept elements or chunks, never one partial sum. The squares of all gradients are one loop.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = 16 * 1024 }; // least elements of a chunk

// ---- runs of contiguous elements ---------------------------------------------------------------

static int64_t chunk_size(int64_t n)
{
    int64_t size = (n + OP_CHUNKS - 1) / OP_CHUNKS;
    return size < CHUNK ? CHUNK : (size + GRAIN - 1) / GRAIN * GRAIN;
}

struct chunks {
    const struct vec *vec;
    const float *x;
    int64_t n, size;
    double *partial;
};

static void chunk_slice(void *arg, int64_t begin, int64_t end)
{
    const struct chunks *w = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i * w->size, left = w->n - at;
        w->partial[i] = w->vec->sum(w->x + at, left < w->size ? left : w->size);
    }
}

static void put_result(float *out, double value, bool accumulate)
{
    *out = accumulate ? *out + (float)value : (float)value;
}

// ---- SUM ---------------------------------------------------------------------------------------

enum { IN, OUT };

struct reduce_work {
    const struct op_call *call;
    struct device *device;
    struct loops kept, reduced;
    double scale;
};

static const float *find_source(const struct reduce_work *w, int loops, int64_t at)
{
    return (const float *)w->call->in[0].data + loops_offset(&w->kept, loops, IN, at);
}

static float *get_result(const struct reduce_work *w)
{
    return w->call->out[0].data;
}

// Sums rows: what is summed lies contiguous, [.., kept][reduced]. By chunks, as where these are dealt
// out over the threads.
static void rows_slice(void *arg, int64_t begin, int64_t end)
{
    const struct reduce_work *w = arg;
    const int64_t n = w->reduced.extent[0], size = chunk_size(n);
    for (int64_t i = begin; i < end; i++) {
        const float *x = find_source(w, w->kept.n, i);
        double s = 0;
        for (int64_t at = 0; at < n; at += size)
            s += w->device->vec->sum(x + at, n - at < size ? n - at : size);
        put_result(&get_result(w)[i], s * w->scale, w->call->accumulate);
    }
}

static void sum_rows(struct reduce_work *w)
{
    int64_t n = w->reduced.extent[0], count = loops_count(&w->kept, w->kept.n);
    if (count >= pool_threads(w->device->pool) || n < 2 * CHUNK) {
        pool_for(w->device->pool, count, n < GRAIN ? GRAIN / n : 1, rows_slice, w);
        return;
    }
    struct chunks c = {.vec = w->device->vec, .n = n, .size = chunk_size(n)};
    const int64_t chunks = (n + c.size - 1) / c.size;
    c.partial = w->call->workspace;
    PRE((size_t)chunks * sizeof(double) <= w->call->workspace_bytes);
    for (int64_t i = 0; i < count; i++) {
        double s = 0;
        c.x = find_source(w, w->kept.n, i);
        pool_for(w->device->pool, chunks, 1, chunk_slice, &c);
        for (int64_t k = 0; k < chunks; k++)
            s += c.partial[k];
        put_result(&get_result(w)[i], s * w->scale, w->call->accumulate);
    }
}

// Sums columns: what is kept lies contiguous, [.., kept outer][reduced][kept inner].
static void columns_slice(void *arg, int64_t begin, int64_t end)
{
    const struct reduce_work *w = arg;
    const struct loops *k = &w->kept, *r = &w->reduced;
    int64_t cols = k->extent[k->n - 1];
    int64_t rows = r->n ? r->extent[0] : 1, stride = r->n ? r->stride[IN][0] : 0;
    while (begin < end) {
        int64_t outer = begin / cols, at = begin % cols;
        int64_t n = cols - at < end - begin ? cols - at : end - begin;
        w->device->vec->sum_columns(get_result(w) + begin, find_source(w, k->n - 1, outer) + at,
                                    rows, stride, n, (float)w->scale, w->call->accumulate);
        begin += n;
    }
}

static void sum_columns(struct reduce_work *w)
{
    int64_t rows = loops_count(&w->reduced, w->reduced.n);
    int64_t grain = rows < GRAIN / 16 ? GRAIN / rows / 16 * 16 : 16;
    pool_for(w->device->pool, loops_count(&w->kept, w->kept.n), grain, columns_slice, w);
}

static void any_slice(void *arg, int64_t begin, int64_t end)
{
    const struct reduce_work *w = arg;
    int64_t n = loops_count(&w->reduced, w->reduced.n);
    for (int64_t i = begin; i < end; i++) {
        const float *x = find_source(w, w->kept.n, i);
        double s = 0;
        for (int64_t k = 0; k < n; k++)
            s += (double)x[loops_offset(&w->reduced, w->reduced.n, IN, k)];
        put_result(&get_result(w)[i], s * w->scale, w->call->accumulate);
    }
}

int op_sum(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct reduce_work w = {.call = c, .device = q->device, .scale = (double)c->attr->scale};
    const int index[2] = {0, 1};
    if (!loops_over(c, 1, c->out[0].shape.n, -1, index, 2, &w.kept) ||
        !loops_over(c, 0, c->in[0].shape.n, 1, index, 2, &w.reduced))
        return op_refuse(c, e, "operands disagree about an extent");
    const struct loops *k = &w.kept, *r = &w.reduced;
    if (r->n == 1 && r->stride[IN][0] == 1)
        sum_rows(&w);
    else if (r->n <= 1 && k->n && k->stride[IN][k->n - 1] == 1)
        sum_columns(&w);
    else
        pool_for(q->device->pool, loops_count(k, k->n), 64, any_slice, &w);
    return 0;
}

// ---- SQNORM ------------------------------------------------------------------------------------

enum { ROOM = 4 * OP_CHUNKS }; // partial sums that are kept at a time

struct squares { // of several calls, one behind the other
    const struct op_call *calls;
    const struct vec *vec;
    int n;
    double partial[ROOM]; // of each chunk of each call
};

// How many elements are squared. With scale 0 another rank counts this part, and it is not read.
static int64_t count_squared(const struct op_call *c)
{
    return c->attr->scale != 0 ? shape_count(&c->in[0].shape) : 0;
}

static int64_t count_chunks(const struct op_call *c)
{
    int64_t n = count_squared(c), size = chunk_size(n);
    return (n + size - 1) / size;
}

// Makes the chunks that begin in the slice.
static void squares_slice(void *arg, int64_t begin, int64_t end)
{
    struct squares *w = arg;
    double *partial = w->partial;
    int64_t at = 0;
    for (int k = 0; k < w->n && at < end; k++) {
        const struct op_call *c = &w->calls[k];
        int64_t n = count_squared(c), size = chunk_size(n);
        for (int64_t i = 0; i < n; i += size, partial++)
            if (at + i >= begin && at + i < end)
                *partial =
                    w->vec->sqsum((const float *)c->in[0].data + i, n - i < size ? n - i : size);
        at += n;
    }
}

// Adds the squares of as many calls as there is room for, and returns how many.
static int add_squares(struct stream_q *q, const struct op_call *calls, int n)
{
    struct squares w;
    int64_t all = 0;
    w.calls = calls;
    w.vec = q->device->vec;
    w.n = 0;
    for (int64_t room = ROOM; w.n < n && (room -= count_chunks(&calls[w.n])) >= 0; w.n++)
        all += count_squared(&calls[w.n]);
    pool_for(q->device->pool, all, CHUNK, squares_slice, &w);
    const double *partial = w.partial;
    for (int k = 0; k < w.n; k++) {
        double total = 0;
        for (int64_t i = count_chunks(&calls[k]); i > 0; i--)
            total += *partial++;
        put_result(calls[k].out[0].data, (double)calls[k].attr->scale * total, calls[k].accumulate);
    }
    return w.n;
}

int op_sqnorms(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    (void)e;
    for (int k = 0; k < n;)
        k += add_squares(q, calls + k, n - k);
    return 0;
}

int op_sqnorm(struct stream_q *q, const struct op_call *c, struct err *e)
{
    return op_sqnorms(q, c, 1, e);
}
