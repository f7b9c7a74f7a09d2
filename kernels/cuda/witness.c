// SPDX-License-Identifier: Apache-2.0
// Compares the results of a product by two algorithms. See witness.h.
#include "kernels/cuda/witness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESULTS = 3, WINDOWS = 16, WINDOW = 64 << 10 };
enum { NANS = 0xff, SMALL = 0x3c }; // bytes that make a NaN, or a small number, in f32 and in bf16

// A result: `batch` matrices of `rows` rows, in elements.
struct result {
    char *data;
    enum dtype dtype;
    int64_t rows, columns, ld, batch, stride;
    int with;        // the byte that fills it before a run
    double sums_off; // by how much sums may differ
};

struct witness {
    struct result result[RESULTS];
    int n;
    char *trusted[RESULTS], *other[RESULTS]; // the pieces of both runs, one after the other
};

// ---- results -----------------------------------------------------------------------------------

static void list_results(struct witness *w, const struct product *p)
{
    const struct gemm *g = &p->g;
    const bool writes_aux = p->end == END_GELU_AUX || p->end == END_GELU_AUX_BIAS;
    w->result[w->n++] = (struct result){.data = p->out,
                                        .rows = g->m,
                                        .columns = g->n,
                                        .ld = g->ldc,
                                        .stride = g->stride_c,
                                        .with = p->c == p->out ? SMALL : NANS};
    if (writes_aux)
        w->result[w->n++] = (struct result){.data = p->aux,
                                            .rows = g->m,
                                            .columns = g->n,
                                            .ld = g->n,
                                            .stride = g->m * g->n,
                                            .with = NANS};
    if (p->sums) {
        const int64_t n = p->end == END_BGRADA ? g->n : g->m;
        w->result[w->n++] = (struct result){.data = p->sums,
                                            .rows = 1,
                                            .columns = n,
                                            .ld = n,
                                            .stride = p->bias_stride,
                                            .with = NANS};
    }
    for (int i = 0; i < w->n; i++) {
        w->result[i].dtype = p->to;
        w->result[i].batch = g->batch;
    }
}

static size_t measure_span(const struct result *r)
{
    int64_t last = (r->batch - 1) * r->stride + (r->rows - 1) * r->ld + r->columns;
    return (size_t)last * dtype_size(r->dtype);
}

static int count_windows(const struct result *r)
{
    return measure_span(r) > (size_t)WINDOWS * WINDOW ? WINDOWS : 1;
}

static size_t measure_window(const struct result *r)
{
    return count_windows(r) > 1 ? WINDOW : measure_span(r);
}

// Returns where piece i begins, in bytes.
static size_t find_window(const struct result *r, int i)
{
    const size_t size = dtype_size(r->dtype), most = measure_span(r) - measure_window(r);
    return most * (size_t)i / (WINDOWS - 1) / size * size;
}

// Whether the element belongs to the result and does not lie between two of its rows.
static bool is_inside(const struct result *r, int64_t at)
{
    const bool batches_within_rows = r->batch > 1 && r->stride < r->ld;
    const int64_t outer = batches_within_rows ? r->ld : r->batch > 1 ? r->stride : INT64_MAX;
    const int64_t inner = batches_within_rows ? r->stride : r->ld;
    const int64_t a = at / outer, b = at % outer / inner, column = at % outer % inner;
    return column < r->columns &&
           (batches_within_rows ? a < r->rows && b < r->batch : a < r->batch && b < r->rows);
}

// ---- a run -------------------------------------------------------------------------------------

static int fill_result(struct stream_q *q, const struct result *r, struct err *e)
{
    const size_t size = dtype_size(r->dtype), row = (size_t)r->columns * size;
    const size_t pitch = (size_t)r->ld * size;
    int rc = 0;
    if (r->ld == r->columns && (r->batch == 1 || r->stride == r->rows * r->ld))
        return CUDA(q->device, q, e, cudaMemsetAsync(r->data, r->with, measure_span(r), q->stream));
    for (int64_t b = 0; b < r->batch && !rc; b++)
        rc = CUDA(q->device, q, e,
                  cudaMemset2DAsync(r->data + (size_t)(b * r->stride) * size, pitch, r->with, row,
                                    (size_t)r->rows, q->stream));
    return rc;
}

static int read_result(struct stream_q *q, const struct result *r, char *to, struct err *e)
{
    const size_t bytes = measure_window(r);
    int rc = 0;
    for (int i = 0; i < count_windows(r) && !rc; i++)
        rc = CUDA(q->device, q, e,
                  cudaMemcpyAsync(to + (size_t)i * bytes, r->data + find_window(r, i), bytes,
                                  cudaMemcpyDefault, q->stream));
    return rc;
}

static int run_once(struct witness *w, struct stream_q *q, witness_run *run, void *ctx,
                    char *to[RESULTS], struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n && !rc; i++)
        rc = fill_result(q, &w->result[i], e);
    if (!rc)
        rc = run(ctx, e);
    for (int i = 0; i < w->n && !rc; i++)
        rc = read_result(q, &w->result[i], to[i], e);
    return rc ? rc : CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
}

// ---- comparing ---------------------------------------------------------------------------------

static double read_number(const char *from, enum dtype t)
{
    uint16_t half;
    uint32_t word;
    float x;
    if (t == DT_BF16) {
        memcpy(&half, from, sizeof half);
        word = (uint32_t)half << 16;
        memcpy(&x, &word, sizeof x);
    } else {
        memcpy(&x, from, sizeof x);
    }
    return (double)x;
}

// Calls `see` for each number of the pieces, with its values of both runs.
static void visit_numbers(const struct result *r, const char *trusted, const char *other,
                          void (*see)(void *ctx, double want, double got), void *ctx)
{
    const size_t size = dtype_size(r->dtype), bytes = measure_window(r);
    for (int i = 0; i < count_windows(r); i++)
        for (size_t k = 0; k < bytes; k += size) {
            const size_t at = (size_t)i * bytes + k;
            if (is_inside(r, (int64_t)((find_window(r, i) + k) / size)))
                see(ctx, read_number(trusted + at, r->dtype), read_number(other + at, r->dtype));
        }
}

struct mean {
    double squares;
    int64_t n;
};

static void add_square(void *ctx, double want, double got)
{
    struct mean *m = ctx;
    (void)got;
    if (isfinite(want)) {
        m->squares += want * want;
        m->n++;
    }
}

struct worst {
    double step, sums, off;
};

static void note_difference(void *ctx, double want, double got)
{
    struct worst *w = ctx;
    const double allowed = w->step * fabs(want) + w->sums;
    if (want == got || (isnan(want) && isnan(got)))
        return;
    const double off = allowed > 0 ? fabs(want - got) / allowed : INFINITY;
    if (!(off <= w->off)) // a NaN is as far off as can be
        w->off = isfinite(off) ? off : INFINITY;
}

static double allow_sums(const struct product *p)
{
    const bool gelu = p->end >= END_GELU && p->end <= END_DGELU;
    return 2 * ((double)p->g.k * 0x1p-23 + (p->tf32 ? 0x1p-7 : 0) + (gelu ? 0x1p-9 : 0));
}

int witness_open(struct stream_q *q, const struct product *p, witness_run *run, void *ctx,
                 struct witness **out, struct err *e)
{
    struct witness *w = calloc(1, sizeof *w);
    int rc = w ? 0 : err_set(e, ERR_NOMEM, "no memory to compare algorithms of a product");
    if (!rc)
        list_results(w, p);
    for (int i = 0; !rc && i < w->n; i++) {
        const size_t bytes = measure_window(&w->result[i]) * (size_t)count_windows(&w->result[i]);
        w->trusted[i] = malloc(bytes);
        w->other[i] = malloc(bytes);
        if (!w->trusted[i] || !w->other[i])
            rc = err_set(e, ERR_NOMEM, "no memory to compare algorithms of a product");
    }
    if (!rc)
        rc = run_once(w, q, run, ctx, w->trusted, e);
    for (int i = 0; !rc && i < w->n; i++) {
        struct mean m = {0};
        visit_numbers(&w->result[i], w->trusted[i], w->trusted[i], add_square, &m);
        w->result[i].sums_off = m.n ? allow_sums(p) * sqrt(m.squares / (double)m.n) : 0;
    }
    if (rc) {
        witness_close(w);
        w = NULL;
    }
    *out = w;
    return rc;
}

void witness_close(struct witness *w)
{
    for (int i = 0; w && i < RESULTS; i++) {
        free(w->trusted[i]);
        free(w->other[i]);
    }
    free(w);
}

int witness_compare(struct witness *w, struct stream_q *q, witness_run *run, void *ctx, double *off,
                    struct err *e)
{
    int rc = run_once(w, q, run, ctx, w->other, e);
    *off = 0;
    for (int i = 0; i < w->n && !rc; i++) {
        const struct result *r = &w->result[i];
        struct worst worst = {
            .step = r->dtype == DT_BF16 ? 0x1p-7 : 0x1p-22, .sums = r->sums_off, .off = *off};
        visit_numbers(r, w->trusted[i], w->other[i], note_difference, &worst);
        *off = worst.off;
    }
    return rc;
}
