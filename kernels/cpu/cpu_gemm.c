// SPDX-License-Identifier: Apache-2.0
// MATMUL, cut between our threads: packed.c's products or oneDNN's sgemm, called serially in each
// thread.
//
// oneDNN's own threading is slow for small products, so its OpenMP is held to one thread and the
// product is cut here: over batches if there are as many as threads, else over the longer side of
// the output, so that the threads read as little as possible twice. k is never cut: an element is
// summed by one thread.
//
// Without AVX-512 oneDNN often reads b where it lies and runs at half its rate where b's rows are
// a multiple of 2 KB apart or a is stored [k][m]; packed products do not care. With few rows or
// columns packing does not pay. With AVX-512 oneDNN is as fast or a little faster, but with few
// rows of a and much of b; and it knows no bf16. Which of the two is taken follows from the whole
// product's shape and dtypes alone, never from a clock or the number of threads: so ranks agree, and
// so does a second run.
//
// LINEAR is made in pieces that fit into the last-level cache. The chain's steps run over each
// piece right after its product, so they need no trip to memory of their own. Smaller pieces, which
// would fit into L2, cost more than they save (7 % of a llama's step), because oneDNN packs an
// operand again for each.
#include "kernels/cpu/cpu_chain.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

// libgomp has it, which oneDNN runs on; clang has no omp.h on a bare Debian.
extern void omp_set_num_threads(int n);

enum { COLUMN_GRAIN = 16, ROW_GRAIN = 8, STREAM_GRAIN = 128 };
enum { PACKED_LEAST = 64 };                    // rows and columns of a product that is packed
enum { MUCH = 1 << 20 };                       // elements of b that no L2 holds
enum { PIECE = 2048 };                         // rows and columns of a piece, at most
static const int64_t THREAD_WORK = 128 * 1024; // multiply-adds worth a thread: some µs

struct gemm_work {
    struct gemm g;
    const void *a, *b;
    bool half;    // a and b are in bf16
    bool streams; // few rows, and b is read as it lies (packed.h)
    float *c, beta;
    float *room; // for packed products, PACKED_FLOATS a slice; null: oneDNN's
    packed_multiply multiply;
    _Atomic int taken;         // how many slices have their room
    int64_t batch;             // the one in work, when rows or columns are cut
    int64_t shares;            // batches of a and c in a row that have one b
    struct places_call places; // of experts' rows
    int64_t first_expert, first_place, experts;
    bool adds;                     // the output lacks the batch: later ones add to the first
    const struct chain_walk *then; // steps that follow on each piece; null: none
    _Atomic int status;
};

int gemm_serial(bool trans_a, bool trans_b, const struct gemm *g, float alpha, const float *a,
                const float *b, float beta, float *c)
{
    omp_set_num_threads(1);
    return dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', g->m, g->n, g->k, alpha, a, g->lda,
                      b, g->ldb, beta, c, g->ldc);
}

static void multiply_piece(struct gemm_work *w, float *room, int64_t batch, int64_t m0, int64_t m,
                           int64_t n0, int64_t n)
{
    const struct gemm *g = &w->g;
    const void *a =
        find_element(w->a, w->half, batch * g->stride_a + m0 * (g->trans_a ? 1 : g->lda));
    const void *b = find_element(w->b, w->half,
                                 batch / w->shares * g->stride_b + n0 * (g->trans_b ? g->ldb : 1));
    float *c = w->c + batch * g->stride_c + m0 * g->ldc + n0;
    struct gemm piece = *g;
    piece.m = m;
    piece.n = n;
    if (room) {
        w->multiply(&(struct packed_product){.m = m,
                                             .n = n,
                                             .k = g->k,
                                             .a = a,
                                             .b = b,
                                             .c = c,
                                             .lda = g->lda,
                                             .ldb = g->ldb,
                                             .ldc = g->ldc,
                                             .trans_a = g->trans_a,
                                             .trans_b = g->trans_b,
                                             .half = w->half,
                                             .add = w->beta != 0,
                                             .streams = w->streams,
                                             .room = room});
        return;
    }
    int rc = gemm_serial(g->trans_a, g->trans_b, &piece, 1.0f, a, b, w->beta, c);
    if (rc)
        w->status = rc;
}

// Runs the chain's steps over a piece of the product. Where batches are added up, only after the
// last one.
static void run_steps(const struct gemm_work *w, int64_t batch, int64_t m0, int64_t m, int64_t n0,
                      int64_t n)
{
    const struct gemm *g = &w->g;
    if (w->adds && batch < g->batch - 1)
        return;
    int64_t at = batch * g->stride_c + m0 * g->ldc + n0;
    bool rows = n == g->ldc; // which then lie one behind the other
    for (int64_t i = 0; i < (rows ? 1 : m); i++)
        chain_walk_run(w->then, at + i * g->ldc, at + i * g->ldc + (rows ? m * n : n));
}

// A slice of a loop over the threads asks for its room; there are never more slices than threads.
static float *take_room(struct gemm_work *w)
{
    return w->room ? w->room + (int64_t)PACKED_FLOATS * w->taken++ : NULL;
}

static void multiply_part(struct gemm_work *w, float *room, int64_t batch, int64_t m0, int64_t m,
                          int64_t n0, int64_t n)
{
    int64_t width = w->then ? cut_evenly(n, PIECE, COLUMN_GRAIN) : n,
            height = w->then ? cut_evenly(m, PIECE, COLUMN_GRAIN) : m;
    for (int64_t j = 0; j < n; j += width)
        for (int64_t i = 0; i < m; i += height) {
            int64_t rows = m - i < height ? m - i : height, columns = n - j < width ? n - j : width;
            multiply_piece(w, room, batch, m0 + i, rows, n0 + j, columns);
            if (w->then)
                run_steps(w, batch, m0 + i, rows, n0 + j, columns);
        }
}

static void multiply_batches(void *arg, int64_t begin, int64_t end)
{
    struct gemm_work *w = arg;
    float *room = take_room(w);
    for (int64_t i = begin; i < end; i++)
        multiply_part(w, room, i, 0, w->g.m, 0, w->g.n);
}

static void multiply_columns(void *arg, int64_t begin, int64_t end)
{
    struct gemm_work *w = arg;
    multiply_part(w, take_room(w), w->batch, 0, w->g.m, begin, end - begin);
}

static void multiply_rows(void *arg, int64_t begin, int64_t end)
{
    struct gemm_work *w = arg;
    multiply_part(w, take_room(w), w->batch, begin, end - begin, 0, w->g.n);
}

// Columns of all batches, one batch after the other.
static void multiply_streams(void *arg, int64_t begin, int64_t end)
{
    struct gemm_work *w = arg;
    float *room = take_room(w);
    for (int64_t n; begin < end; begin += n) {
        const int64_t from = begin % w->g.n, left = w->g.n - from;
        n = end - begin < left ? end - begin : left;
        multiply_part(w, room, begin / w->g.n, 0, w->g.m, from, n);
    }
}

static int64_t at_least(int64_t x, int64_t low)
{
    return x < low ? low : x;
}

// Makes the product of the batch in work.
static void run_batch(struct pool *p, struct gemm_work *w)
{
    const struct gemm *g = &w->g;
    bool by_columns = g->n >= g->m || g->m < 2 * ROW_GRAIN;
    int64_t quantum = by_columns ? COLUMN_GRAIN : ROW_GRAIN;
    int64_t quantum_work = quantum * g->k * (by_columns ? g->m : g->n);
    int64_t grain = quantum * at_least((THREAD_WORK + quantum_work - 1) / quantum_work, 1);
    w->taken = 0;
    pool_for(p, by_columns ? g->n : g->m, grain, by_columns ? multiply_columns : multiply_rows, w);
}

static void run_work(struct pool *p, struct gemm_work *w)
{
    const struct gemm *g = &w->g;
    if (w->streams && !w->adds) {
        const int64_t work = STREAM_GRAIN * g->k * g->m;
        pool_for(p, g->batch * g->n, STREAM_GRAIN * at_least(THREAD_WORK / work, 1),
                 multiply_streams, w);
        return;
    }
    if (g->batch >= pool_threads(p) && !w->adds) {
        pool_for(p, g->batch, at_least(THREAD_WORK / (g->m * g->n * g->k), 1), multiply_batches, w);
        return;
    }
    for (w->batch = 0; w->batch < g->batch; w->batch++) {
        w->beta = w->adds && w->batch ? 1.0f : w->beta;
        run_batch(p, w);
    }
}

// Whether a product reads b once, for few rows.
static bool is_streamed(const struct stream_q *q, const struct op_attr *attr, const struct gemm *g)
{
    return q->device->packed && attr->streams && g->m <= STREAMED_HEIGHT;
}

// Whether a product is made from packed operands: with few rows or columns packing costs more than
// it saves. A decoder's is so too, but where oneDNN is called for AVX-512: for AVX2 its bits hang on
// which row is whose.
static bool is_packed(const struct stream_q *q, const struct op_attr *attr, const struct gemm *g,
                      bool half)
{
    const struct device *d = q->device;
    if (!d->packed)
        return false;
    if (g->m < PACKED_LEAST || g->n < PACKED_LEAST)
        return attr->streams && !d->packs_few;
    return half || !d->packs_few || (g->m <= PACKED_HEIGHT && g->n * g->k >= MUCH);
}

// Whether a product is a decoder's that AMX makes.
static bool is_tiled(const struct stream_q *q, const struct op_attr *attr, const struct gemm *g,
                     bool half)
{
    const struct device *d = q->device;
    return half && d->packed && d->multiply_tiles && attr->streams && g->m >= TILED_HEIGHT;
}

// ---- rows in experts' places -------------------------------------------------------------------

// How many places of an expert and group, which are batch i, have a token. They are the first ones.
static int64_t count_filled(const struct gemm_work *w, int64_t i)
{
    const struct places_call *p = &w->places;
    const int64_t expert = w->first_expert + i / p->groups, sample = i % p->groups * p->samples;
    const int64_t filled = (int64_t)p->chosen[sample * w->experts + expert] - w->first_place;
    return filled < 0 ? 0 : filled < p->places ? filled : p->places;
}

static void clear_unfilled(void *arg, int64_t begin, int64_t end)
{
    const struct gemm_work *w = arg;
    for (int64_t i = begin; i < end; i++)
        if (i % w->g.m >= count_filled(w, i / w->g.m))
            memset(w->c + i * w->g.n, 0, (size_t)w->g.n * sizeof *w->c);
}

// Columns of all batches that have rows, one batch after the other.
static void multiply_filled(void *arg, int64_t begin, int64_t end)
{
    struct gemm_work *w = arg;
    float *room = take_room(w);
    for (int64_t i = 0, at = 0; i < w->g.batch && begin < end; i++) {
        const int64_t rows = count_filled(w, i);
        if (!rows)
            continue;
        at += w->g.n; // the columns up to the end of this batch
        const int64_t to = end < at ? end : at;
        if (begin < to) {
            multiply_part(w, room, i, 0, rows, begin - (at - w->g.n), to - begin);
            begin = to;
        }
    }
}

// An element's bits depend on k alone, whether few rows are multiplied or many, and not on its place.
// AMX has other bits: the caller has chosen it, or not, by the number of places.
static void run_filled(struct pool *p, struct gemm_work *w)
{
    const struct gemm all = w->g;
    int64_t most = 0, batches = 0;
    for (int64_t i = 0; i < all.batch; i++) {
        const int64_t rows = count_filled(w, i);
        most = rows > most ? rows : most;
        batches += rows > 0;
    }
    if (w->beta == 0)
        pool_for(p, all.batch * all.m, GRAIN / all.n + 1, clear_unfilled, w);
    w->streams = most <= STREAMED_HEIGHT;
    if (w->streams) {
        const int64_t work = STREAM_GRAIN * all.k * at_least(most, 1);
        pool_for(p, batches * all.n, STREAM_GRAIN * at_least(THREAD_WORK / work, 1),
                 multiply_filled, w);
        return;
    }
    for (w->batch = 0; w->batch < all.batch; w->batch++) {
        w->g.m = count_filled(w, w->batch);
        w->streams = w->g.m <= STREAMED_HEIGHT;
        if (w->g.m)
            run_batch(p, w);
    }
}

// A batch for each expert becomes one for each expert and group.
static int read_places(struct gemm_work *w, const struct op_call *c, struct err *e)
{
    const struct places_call *p = &w->places;
    int rc = op_check_places(c, &w->places, e);
    if (rc)
        return rc;
    if (w->g.trans_a || w->g.batch != p->experts || w->g.m != p->groups * p->places)
        return op_refuse(c, e, "rows that are not of experts' places");
    w->experts = c->in[2].shape.dim[1];
    w->first_expert = c->attr->slots.first.expert;
    w->first_place = c->attr->slots.first.place;
    w->shares = p->groups;
    w->g.batch *= p->groups;
    w->g.m = p->places;
    w->g.stride_a = w->g.m * w->g.lda;
    w->g.stride_c = w->g.m * w->g.ldc;
    return 0;
}

static int read_labels(const struct op_call *c, const struct op_attr *labels,
                       const struct tensor *out, struct gemm *g, struct err *e)
{
    if (gemm_from_labels(labels, &c->in[0].shape, &c->in[1].shape, &out->shape, g))
        return 0;
    return op_refuse(c, e, "needs a transpose that strides cannot express");
}

// Makes out = a · b by the labels, then runs the steps of `then` over it. In bf16 operands are
// taken where there are packed products.
static int multiply_call(struct stream_q *q, const struct op_call *c, const struct op_attr *labels,
                         const struct tensor *out, const struct chain_walk *then, struct err *e)
{
    struct gemm_work w = {.a = c->in[0].data,
                          .b = c->in[1].data,
                          .half = c->in[0].dtype == DT_BF16,
                          .c = out->data,
                          .beta = c->accumulate ? 1.0f : 0.0f,
                          .shares = 1,
                          .then = then};
    if (out->dtype != DT_F32 || (w.half && !q->device->packed))
        return op_refuse(c, e, "does not take bf16");
    int rc = read_labels(c, labels, out, &w.g, e);
    if (rc)
        return rc;
    w.multiply = is_tiled(q, c->attr, &w.g, w.half) ? q->device->multiply_tiles
                 : w.half                           ? q->device->multiply_bf16
                                                    : q->device->multiply;
    if (c->op == OP_MATMUL_PLACES && q->device->packed) {
        w.room = q->device->packed;
        rc = read_places(&w, c, e);
        if (!rc)
            run_filled(q->device->pool, &w);
        return rc;
    }
    w.adds = w.g.batch > 1 && w.g.stride_c == 0;
    w.streams = is_streamed(q, c->attr, &w.g);
    w.room = w.half || w.streams || is_packed(q, c->attr, &w.g, false) ? q->device->packed : NULL;
    run_work(q->device->pool, &w);
    return w.status ? err_set(e, ERR_DEVICE, "cpu: %s: onednn status %d", op_name(c->op), w.status)
                    : 0;
}

int op_matmul(struct stream_q *q, const struct op_call *c, struct err *e)
{
    return multiply_call(q, c, c->attr, &c->out[0], NULL, e);
}

int op_matmul_places(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_attr labels = linear_product(c->attr, c->nin);
    return multiply_call(q, c, &labels, &c->out[0], NULL, e);
}

bool gemm_takes_bf16(const struct stream_q *q, const struct op_call *c)
{
    struct gemm g;
    if (c->op == OP_MATMUL_PLACES)
        return q->device->packed != NULL;
    return c->op == OP_MATMUL && !read_labels(c, c->attr, &c->out[0], &g, NULL) &&
           (is_packed(q, c->attr, &g, true) || is_streamed(q, c->attr, &g) ||
            is_tiled(q, c->attr, &g, true));
}

// If the product is itself an output it is written there, else to the first output, where the
// chain's result then replaces it.
int op_linear(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_chain *chain = c->attr->chain;
    const struct op_attr labels = linear_product(c->attr, c->nin);
    const struct tensor *product = &c->out[0];
    struct chain_walk then;
    for (int k = 0; k < c->nout; k++)
        product = chain->out[k] == 0 ? &c->out[k] : product;
    int rc = chain_walk_init(&then, q->device->vec, c, chain, product, e);
    return rc ? rc : multiply_call(q, c, &labels, product, &then, e);
}

// oneDNN writes the code of a product when it first meets its transposes and beta: 10 to 40 ms. The
// size is one that its small and thin paths do not take.
void gemm_warm_up(void)
{
    enum { N = 64 };
    static const struct {
        char a, b;
        float beta;
    } kinds[] = {{'N', 'N', 0}, {'N', 'T', 0}, {'T', 'N', 0}, {'N', 'N', 1}, {'T', 'N', 1}};
    float *a = calloc(3 * N * N, sizeof *a);
    omp_set_num_threads(1);
    for (size_t i = 0; a && i < sizeof kinds / sizeof *kinds; i++)
        (void)dnnl_sgemm(kinds[i].a, kinds[i].b, N, N, N, 1.0f, a, N, a + N * N, N, kinds[i].beta,
                         a + 2 * N * N, N);
    free(a);
}
