// SPDX-License-Identifier: Apache-2.0
// MATMUL: labels as products of cuBLASLt. See cuda_gemm.h.
//
// An output that lacks the batch is the sum of the batches' products: in f32 each adds to what the
// ones before it left. Where the output is bf16 that would round between them, so the sum is made
// in f32 in scratch, some rows at a time, and rounded once.
#include "kernels/cuda/cuda_gemm.h"

enum { ROW_STEP = 64 }; // chunks begin at multiples of so many rows, so that alignment stays

// What to do with each product of a call: `product` either runs it or settles its algorithm.
struct visit {
    struct stream_q *q;
    const struct op_call *call;
    int (*product)(const struct visit *v, const struct product *p, struct err *e);
    bool time;
};

static const void *element_at(const void *p, enum dtype t, int64_t at)
{
    return (const char *)p + (size_t)at * dtype_size(t);
}

// Returns the product of batch `at` alone, and of its m rows from row m0 on.
static struct product cut_part(const struct product *all, int64_t at, int64_t m0, int64_t m)
{
    struct product p = *all;
    const struct gemm *g = &all->g;
    p.g.batch = 1;
    p.g.m = m;
    p.g.stride_a = p.g.stride_b = p.g.stride_c = 0;
    p.a = element_at(all->a, all->in, at * g->stride_a + m0 * (g->trans_a ? 1 : g->lda));
    p.b = element_at(all->b, all->in, at * g->stride_b);
    return p;
}

// Rounds sums, f32 [m][n] in scratch, to rows m0 to m0 + m of the bf16 output.
static int narrow_rows(const struct visit *v, const struct product *all, int64_t m0, int64_t m,
                       void *sums, struct err *e)
{
    const struct op_attr attr = {.label = {{0, 1}, {0, 1}}, .labels = 2, .scale = 1};
    struct op_call cast = {.op = OP_CAST, .attr = &attr, .nin = 1, .nout = 1};
    char *rows = (char *)all->out + (size_t)(m0 * all->g.ldc) * dtype_size(DT_BF16);
    struct shape shape = {2, {m, all->g.n}};
    cast.in[0] = (struct tensor){sums, DT_F32, shape};
    cast.out[0] = (struct tensor){rows, DT_BF16, shape};
    return op_elementwise(v->q, &cast, e);
}

static int sum_bf16(const struct visit *v, const struct product *all, struct err *e)
{
    const struct gemm *g = &all->g;
    size_t half = all->workspace_bytes / 2 / 256 * 256;
    int64_t rows = (int64_t)(half / sizeof(float)) / g->n / ROW_STEP * ROW_STEP;
    rows = rows < g->m ? rows : g->m;
    if (rows < 1)
        return op_refuse(v->call, e, "a sum of batches in bf16 has too little scratch");
    int rc = 0;
    for (int64_t m0 = 0; m0 < g->m && !rc; m0 += rows) {
        int64_t m = g->m - m0 < rows ? g->m - m0 : rows;
        for (int64_t i = 0; i < g->batch && !rc; i++) {
            struct product p = cut_part(all, i, m0, m);
            p.to = DT_F32;
            p.out = all->workspace;
            p.c = i ? p.out : NULL;
            p.workspace = (char *)all->workspace + half;
            p.workspace_bytes = half;
            rc = v->product(v, &p, e);
        }
        if (!rc)
            rc = narrow_rows(v, all, m0, m, all->workspace, e);
    }
    return rc;
}

int product_of(const struct op_call *c, const struct op_attr *attr, const struct tensor *out,
               struct product *p, struct err *e)
{
    const struct tensor *a = &c->in[0], *b = &c->in[1];
    *p = (struct product){.in = a->dtype,
                          .to = out->dtype,
                          .tf32 = attr->tf32 && a->dtype == DT_F32,
                          .a = a->data,
                          .b = b->data,
                          .out = out->data,
                          .workspace = c->workspace,
                          .workspace_bytes = c->workspace_bytes};
    if (!gemm_from_labels(attr, &a->shape, &b->shape, &out->shape, &p->g))
        return op_refuse(c, e, "needs a transpose that strides cannot express");
    const struct gemm *g = &p->g;
    if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX || g->batch > INT32_MAX)
        return op_refuse(c, e, "has a side of over 2^31 - 1");
    return 0;
}

static int run_products(const struct visit *v, const struct product *p, struct err *e)
{
    int rc = 0;
    if (p->g.batch == 1 || p->g.stride_c)
        return v->product(v, p, e);
    if (p->to != DT_F32)
        return sum_bf16(v, p, e);
    for (int64_t i = 0; i < p->g.batch && !rc; i++) {
        struct product part = cut_part(p, i, 0, p->g.m);
        part.c = i ? p->out : p->c;
        rc = v->product(v, &part, e);
    }
    return rc;
}

// ---- run and tune ------------------------------------------------------------------------------

static int run_visit(const struct visit *v, const struct product *p, struct err *e)
{
    bool ran;
    return product_run(v->q, p, &ran, e);
}

static int tune_visit(const struct visit *v, const struct product *p, struct err *e)
{
    enum product_choice how;
    return product_tune(v->q, p, v->time, &how, e);
}

int gemm_run(struct stream_q *q, const struct op_call *c, const struct product *p, struct err *e)
{
    return run_products(&(struct visit){.q = q, .call = c, .product = run_visit}, p, e);
}

int gemm_tune(struct stream_q *q, const struct op_call *c, const struct product *p, bool time,
              struct err *e)
{
    return run_products(&(struct visit){.q = q, .call = c, .product = tune_visit, .time = time}, p,
                        e);
}

static int plan_matmul(const struct op_call *c, struct product *p, struct err *e)
{
    int rc = product_of(c, c->attr, &c->out[0], p, e);
    p->c = c->accumulate ? p->out : NULL;
    return rc;
}

int op_matmul(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct product p;
    int rc = plan_matmul(c, &p, e);
    rc = rc ? rc : gemm_run(q, c, &p, e);
    return rc ? rc : op_launched(q, c, e);
}

int matmul_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    struct product p;
    int rc = plan_matmul(c, &p, e);
    return rc ? rc : gemm_tune(q, c, &p, time, e);
}
