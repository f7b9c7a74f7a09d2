// SPDX-License-Identifier: Apache-2.0
// The algorithms that may run one product. See product_plan.h.
#include "kernels/cuda/product_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void choice_print(const cublasLtMatmulAlgo_t *algo, char choice[CHOICE_SIZE])
{
    for (int i = 0; i < CHOICE_WORDS; i++)
        snprintf(choice + i * 16, 17, "%016llx", (unsigned long long)algo->data[i]);
}

bool choice_read(const char *choice, cublasLtMatmulAlgo_t *algo)
{
    char word[17] = "", *end;
    if (strlen(choice) != CHOICE_SIZE - 1)
        return false;
    for (int i = 0; i < CHOICE_WORDS; i++) {
        memcpy(word, choice + i * 16, 16);
        algo->data[i] = strtoull(word, &end, 16);
        if (*end)
            return false;
    }
    return true;
}

// Whether an algorithm on tensor cores splits the sum as the product does not allow. The preference
// asks for none that does, but cannot leave out those that say they reduce nothing and split all the
// same: they keep the parts in the result's dtype (measured of cuBLASLt 12.8 to 13.2 on an H100 and
// a GB200: facebookexperimental/triton, pull request 2753).
static bool splits_wrongly(const struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    int32_t splits = 0;
    uint32_t scheme = 0;
    size_t n = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                             sizeof splits, &n) ||
        cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                             sizeof scheme, &n))
        return true;
    bool narrow = p->to != DT_F32 && scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return splits != 0 && splits != 1 && (narrow || !layout_may_split(p));
}

// Whether an algorithm computes what the product asks: reads f32 whole, or as tf32, adds in f32, and
// leaves nothing out.
static bool is_exact(const struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    const uint64_t fewer = CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F |
                           CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF |
                           (p->tf32 ? 0 : CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
    uint64_t flags = 0;
    size_t n = 0;
    cublasStatus_t rc = cublasLtMatmulAlgoCapGetAttribute(
        algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof flags, &n);
    if (rc != CUBLAS_STATUS_SUCCESS || flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F)
        return false;
    if (p->in == DT_F32 && flags & fewer)
        return false;
    return !(flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) || !splits_wrongly(p, algo);
}

bool plan_takes(struct plan *plan, const struct product *p, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r;
    struct layout *l = &plan->layout;
    cublasStatus_t rc =
        cublasLtMatmulAlgoCheck(plan->lt, &l->op, &l->a, &l->b, &l->d, &l->d, algo, &r);
    return rc == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= layout_scratch(p) && is_exact(p, algo);
}

// Whether the status means that the library has no kernel for the product, here or on any device.
static bool is_unsuited(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_NOT_SUPPORTED || rc == CUBLAS_STATUS_INVALID_VALUE ||
           rc == CUBLAS_STATUS_ARCH_MISMATCH;
}

int plan_propose(struct plan *plan, struct device *d, const struct product *p, struct err *e)
{
    cublasLtMatmulHeuristicResult_t r[PLAN_ALGOS];
    struct layout *l = &plan->layout;
    struct preference f;
    int n = 0, rc = layout_preference(p, d->deterministic, &f, e);
    plan->n = plan->at = 0;
    if (rc)
        return rc;
    cublasStatus_t said = cublasLtMatmulAlgoGetHeuristic(
        plan->lt, &l->op, &l->a, &l->b, &l->d, &l->d, &f.p, d->switches[SWITCH_CANDIDATES], r, &n);
    if (said != CUBLAS_STATUS_SUCCESS && !is_unsuited(said))
        return layout_check("cublasLtMatmulAlgoGetHeuristic", said, e);
    for (int i = 0; i < n && said == CUBLAS_STATUS_SUCCESS; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && r[i].workspaceSize <= layout_scratch(p) &&
            is_exact(p, &r[i].algo))
            plan->algo[plan->n++] = r[i].algo;
    return 0;
}

cublasStatus_t plan_launch(struct plan *plan, struct stream_q *q, const struct product *p,
                           const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1, beta = p->c ? 1 : 0;
    struct layout *l = &plan->layout;
    size_t scratch = layout_scratch(p);
    return cublasLtMatmul(plan->lt, &l->op, &one, p->b, &l->a, p->a, &l->b, &beta,
                          p->c ? p->c : p->out, &l->d, p->out, &l->d, algo,
                          scratch ? p->workspace : NULL, scratch, q->stream);
}

// Waits for the stream and returns the device's error, or 0 if all is well. While a capture is
// under way this returns 0 unasked, because asking would end the capture.
static int ask_device(struct stream_q *q, struct err *e)
{
    return q->device->captures ? 0 : CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
}

// Whether another algorithm may succeed where this one failed: the library has no kernel for it, or
// could not start it although the device is well.
bool plan_declined(struct stream_q *q, cublasStatus_t rc)
{
    bool broke = rc == CUBLAS_STATUS_EXECUTION_FAILED || rc == CUBLAS_STATUS_INTERNAL_ERROR;
    bool declined = is_unsuited(rc) || (broke && !ask_device(q, NULL));
    if (declined)
        (void)cudaGetLastError(); // what its start left behind is not the next launch's error
    return declined;
}

// Turns a failed launch into an error. If the device has failed its own error is reported, since it
// names the cause; the library's status then says nothing.
int plan_ran(struct stream_q *q, cublasStatus_t rc, struct err *e)
{
    int device = rc == CUBLAS_STATUS_SUCCESS ? 0 : ask_device(q, e);
    return device ? device : layout_check("cublasLtMatmul", rc, e);
}
