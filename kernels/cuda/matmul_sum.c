// SPDX-License-Identifier: Apache-2.0
// MATMUL_SUM: the gradient of a weight, x^T · dy, and of the bias beside it, the sum of dy's rows.
//
// There are two ways to compute it. Fused: cuBLASLt sums what it loads of dy for the product as well
// (its epilogues BGRADA and BGRADB, by which operand that is), so that dy is read once. Unfused:
// the product, then a SUM, which reads dy again and takes two launches. Tuning times both on the
// device.
//
// The library writes these sums and cannot add to what is there, as it can with the product. So the
// microbatches behind the first of a step are computed unfused. So are batches whose products are
// added up, and sums that are not aligned. Where batches are not added up (q, k and v), each has
// sums of its own.
#include "kernels/cuda/cuda_gemm.h"

struct matmul_sum {
    struct stream_q *q;
    const struct op_call *call;
    struct product bare, fused; // the product alone; with the sums, if has_epilogue
    bool has_epilogue;
};

static int plan_matmul_sum(struct stream_q *q, const struct op_call *c, struct matmul_sum *m,
                           struct err *e)
{
    *m = (struct matmul_sum){.q = q, .call = c};
    int rc = product_of(c, c->attr, &c->out[0], &m->bare, e);
    m->bare.c = c->accumulate ? m->bare.out : NULL;
    m->fused = m->bare;
    if (rc || c->accumulate || !q->device->switches[SWITCH_EPILOGUES])
        return rc;
    bool second = gemm_summed(c->attr, &c->in[0].shape) == 1;
    m->fused.end = second ? END_BGRADA : END_BGRADB;
    m->fused.sums = c->out[1].data;
    m->fused.bias_stride = m->bare.g.batch == 1 ? 0 : second ? m->bare.g.n : m->bare.g.m;
    // Each batch has its own product and its own operand to sum.
    const struct gemm *g = &m->bare.g;
    bool own = g->batch == 1 || (g->stride_c && (second ? g->stride_b : g->stride_a));
    m->has_epilogue = own && product_end_fits(&m->fused);
    return 0;
}

static int run_unfused(void *ctx, struct err *e)
{
    const struct matmul_sum *m = ctx;
    return op_matmul_sum_unfused(m->q, m->call, e);
}

int op_matmul_sum(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct matmul_sum m;
    bool ran = false;
    int rc = plan_matmul_sum(q, c, &m, e);
    if (!rc && m.has_epilogue)
        rc = product_run(q, &m.fused, &ran, e);
    if (!rc && !ran)
        rc = run_unfused(&m, e);
    return rc ? rc : op_launched(q, c, e);
}

int matmul_sum_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    enum product_choice how = PRODUCT_NONE;
    struct matmul_sum m;
    int rc = plan_matmul_sum(q, c, &m, e);
    if (!rc && m.has_epilogue)
        rc = product_tune(q, &m.fused, time, &how, e);
    if (rc || how == PRODUCT_KNOWN)
        return rc;
    rc = gemm_tune(q, c, &m.bare, time, e);
    return rc || how == PRODUCT_NONE ? rc : product_compare(q, &m.fused, run_unfused, &m, e);
}
