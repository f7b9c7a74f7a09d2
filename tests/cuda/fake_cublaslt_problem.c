// SPDX-License-Identifier: Apache-2.0
// What the fake cuBLASLt is asked to compute, and whether the documentation allows it. See
// fake_cublaslt.c.
#include "tests/cuda/fake_cublaslt.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

struct layout *lt_layout_of(cublasLtMatrixLayout_t l)
{
    struct layout *x = (struct layout *)(void *)l;
    return x && x->magic == LT_LAYOUT ? x : NULL;
}

struct operation *lt_operation_of(cublasLtMatmulDesc_t d)
{
    struct operation *x = (struct operation *)(void *)d;
    return x && x->magic == LT_OPERATION ? x : NULL;
}

// ---- a problem, and whether the documentation allows it ----------------------------------------

size_t lt_size_of(int32_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 0;
}

// The rows of cublasLtMatmul()'s table of types that are in the fake: compute, A and B, C and D.
bool lt_types_known(const struct problem *p)
{
    static const int32_t rows[][3] = {
        {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F},
        {CUBLAS_COMPUTE_32F_PEDANTIC, CUDA_R_32F, CUDA_R_32F},
        {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F},
        {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF},
        {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i][0] == p->op.compute && rows[i][1] == p->a.type && rows[i][1] == p->b.type &&
            rows[i][2] == p->c.type && rows[i][2] == p->d.type && p->op.scale == CUDA_R_32F)
            return true;
    return false;
}

static bool layout_right(const struct layout *l, int32_t batch)
{
    return l->order == CUBLASLT_ORDER_COL && l->rows > 0 && l->columns > 0 &&
           l->rows <= INT32_MAX && l->columns <= INT32_MAX && l->ld >= (int64_t)l->rows &&
           l->batch == batch && l->stride >= 0;
}

static bool sides_agree(struct problem *p)
{
    bool ta = p->op.a != CUBLAS_OP_N, tb = p->op.b != CUBLAS_OP_N;
    p->m = (int64_t)p->d.rows;
    p->n = (int64_t)p->d.columns;
    p->k = (int64_t)(ta ? p->a.rows : p->a.columns);
    return (int64_t)(ta ? p->a.columns : p->a.rows) == p->m &&
           (int64_t)(tb ? p->b.columns : p->b.rows) == p->k &&
           (int64_t)(tb ? p->b.rows : p->b.columns) == p->n && (int64_t)p->c.rows == p->m &&
           (int64_t)p->c.columns == p->n;
}

// AUX_LD: "must be divisible by 8 and be no less than the number of rows in the output matrix";
// AUX_BATCH_STRIDE: "must be divisible by 8". Types default to the result's and must be it here.
static bool aux_right(const struct problem *p)
{
    const struct operation *o = &p->op;
    return o->aux && o->aux_ld % 8 == 0 && o->aux_ld >= p->m && o->aux_stride % 8 == 0 &&
           (p->d.batch == 1 || o->aux_stride >= o->aux_ld * p->n) &&
           (o->aux_type == -1 || o->aux_type == p->d.type) && (uintptr_t)o->aux % 16 == 0;
}

static bool bias_right(const struct problem *p)
{
    const struct operation *o = &p->op;
    return o->bias && (uintptr_t)o->bias % lt_size_of(p->d.type) == 0 &&
           (o->bias_type == -1 || o->bias_type == p->d.type);
}

static bool end_known(uint32_t end)
{
    static const uint32_t known[] = {
        CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,      CUBLASLT_EPILOGUE_GELU,
        CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB,
    };
    for (size_t i = 0; i < COUNT(known); i++)
        if (known[i] == end)
            return true;
    return false;
}

cublasStatus_t lt_problem(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d, struct problem *p)
{
    if (!lt_operation_of(op) || !lt_layout_of(a) || !lt_layout_of(b) || !lt_layout_of(c) ||
        !lt_layout_of(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    *p = (struct problem){*lt_operation_of(op),
                          *lt_layout_of(a),
                          *lt_layout_of(b),
                          *lt_layout_of(c),
                          *lt_layout_of(d),
                          0,
                          0,
                          0};
    int32_t batch = p->d.batch;
    if (batch < 1 || !layout_right(&p->a, batch) || !layout_right(&p->b, batch) ||
        !layout_right(&p->c, batch) || !layout_right(&p->d, batch) || !sides_agree(p))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->op.pointer_mode != CUBLASLT_POINTER_MODE_HOST || !end_known(p->op.end) ||
        ((has(p, CUBLASLT_EPILOGUE_BIAS) || has(p, SUMS)) && !bias_right(p)) ||
        (has(p, 128) && !aux_right(p)))
        return CUBLAS_STATUS_INVALID_VALUE;
    return lt_types_known(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
