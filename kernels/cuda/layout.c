// SPDX-License-Identifier: Apache-2.0
// A product in cuBLASLt's words. See layout.h.
#include "kernels/cuda/layout.h"

#include <string.h>

enum { ALIGNED = 16 };

int layout_check(const char *call, cublasStatus_t rc, struct err *e)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return 0;
    return err_set(e, ERR_DEVICE, "cuda: %.*s: %s", (int)strcspn(call, "("), call,
                   cublasLtGetStatusString(rc));
}

unsigned layout_alignment(const void *p)
{
    uintptr_t at = (uintptr_t)p;
    return !p || at % ALIGNED == 0 ? ALIGNED : (unsigned)(at & -at);
}

size_t layout_scratch(const struct product *p)
{
    return (uintptr_t)p->workspace % 256 ? 0 : p->workspace_bytes;
}

static cudaDataType_t get_type(enum dtype t)
{
    return t == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Describes a matrix of ours with `rows` rows of `columns`, as it is stored.
static int describe_matrix(cublasLtMatrixLayout_t l, enum dtype t, int64_t rows, int64_t columns,
                           int64_t ld, int64_t batch, int64_t stride, struct err *e)
{
    int32_t count = (int32_t)batch;
    int rc = LT(e, cublasLtMatrixLayoutInit(l, get_type(t), (uint64_t)columns, (uint64_t)rows, ld));
    rc = rc ? rc
            : LT(e, cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                     sizeof count));
    return rc ? rc
              : LT(e, cublasLtMatrixLayoutSetAttribute(
                          l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
}

#define DESCRIBE(op, what, value) \
    LT(e, cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_##what, &(value), sizeof(value)))

int layout_end(const struct product *p, struct layout *l, struct err *e)
{
    static const cublasLtEpilogue_t ends[] = {
#define X(id, name, lt) [END_##id] = CUBLASLT_EPILOGUE_##lt,
        PRODUCT_ENDS(X)
#undef X
    };
    int32_t type = (int32_t)get_type(p->to);
    int64_t aux_stride = p->g.m * p->g.n;
    cublasLtMatmulDesc_t op = &l->op;
    const void *bias = p->sums ? p->sums : p->bias; // the sums go where a bias would lie
    int rc = DESCRIBE(op, EPILOGUE, ends[p->end]);
    if (!rc && bias) {
        rc = DESCRIBE(op, BIAS_POINTER, bias);
        rc = rc ? rc : DESCRIBE(op, BIAS_DATA_TYPE, type);
        rc = rc ? rc : DESCRIBE(op, BIAS_BATCH_STRIDE, p->bias_stride);
    }
    if (!rc && p->aux) {
        rc = DESCRIBE(op, EPILOGUE_AUX_POINTER, p->aux);
        rc = rc ? rc : DESCRIBE(op, EPILOGUE_AUX_DATA_TYPE, type);
        rc = rc ? rc : DESCRIBE(op, EPILOGUE_AUX_LD, p->g.n);
        rc = rc ? rc : DESCRIBE(op, EPILOGUE_AUX_BATCH_STRIDE, aux_stride);
    }
    return rc;
}

int layout_make(const struct product *p, struct layout *l, struct err *e)
{
    const struct gemm *g = &p->g;
    const cublasComputeType_t compute = p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t a = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int rc = LT(e, cublasLtMatmulDescInit(&l->op, compute, CUDA_R_32F));
    rc = rc ? rc : DESCRIBE(&l->op, TRANSA, a);
    rc = rc ? rc : DESCRIBE(&l->op, TRANSB, b);
    rc = rc ? rc : layout_end(p, l, e);
    rc = rc ? rc
            : describe_matrix(&l->a, p->in, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n,
                              g->ldb, g->batch, g->stride_b, e);
    rc = rc ? rc
            : describe_matrix(&l->b, p->in, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k,
                              g->lda, g->batch, g->stride_a, e);
    return rc ? rc : describe_matrix(&l->d, p->to, g->m, g->n, g->ldc, g->batch, g->stride_c, e);
}

#define PREFER(f, what, value)                                                                 \
    LT(e, cublasLtMatmulPreferenceSetAttribute(&(f)->p, CUBLASLT_MATMUL_PREF_##what, &(value), \
                                               sizeof(value)))

bool layout_may_split(const struct product *p)
{
    enum { STEP = 64 };
    return p->g.k % STEP == 0;
}

int layout_preference(const struct product *p, bool reproducible, struct preference *f,
                      struct err *e)
{
    bool on_tensor_cores = p->in != DT_F32 || p->tf32;
    uint64_t scratch = layout_scratch(p);
    // The parts of a split sum may be added in place, in the order in which they are done, or in a
    // step of its own. Only COMPUTE_TYPE keeps them in f32, the others keep them in the output's
    // dtype. So a bf16 output always takes it: a fixed order may be given up, sums in f32 may not.
    uint32_t split = on_tensor_cores && !layout_may_split(p) ? CUBLASLT_REDUCTION_SCHEME_NONE
                     : reproducible || p->to != DT_F32 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                       : CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t a = layout_alignment(p->b), b = layout_alignment(p->a), out = layout_alignment(p->out);
    uint32_t c = p->c ? layout_alignment(p->c) : out;
    int rc = LT(e, cublasLtMatmulPreferenceInit(&f->p));
    rc = rc ? rc : PREFER(f, MAX_WORKSPACE_BYTES, scratch);
    rc = rc ? rc : PREFER(f, REDUCTION_SCHEME_MASK, split);
    rc = rc ? rc : PREFER(f, MIN_ALIGNMENT_A_BYTES, a);
    rc = rc ? rc : PREFER(f, MIN_ALIGNMENT_B_BYTES, b);
    rc = rc ? rc : PREFER(f, MIN_ALIGNMENT_C_BYTES, c);
    return rc ? rc : PREFER(f, MIN_ALIGNMENT_D_BYTES, out);
}

bool product_end_fits(const struct product *p)
{
    const void *bias = p->sums ? p->sums : p->bias;
    bool biases = !bias || (layout_alignment(bias) == ALIGNED &&
                            p->bias_stride * (int64_t)dtype_size(p->to) % ALIGNED == 0);
    bool aux = !p->aux || (layout_alignment(p->aux) == ALIGNED && p->g.n % 8 == 0);
    return biases && aux;
}
