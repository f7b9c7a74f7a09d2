// SPDX-License-Identifier: Apache-2.0
// A fake cuBLASLt over the fake runtime, written from NVIDIA's header and documentation: it knows
// matrices by columns and nothing of ours, so that it and kernels/cuda/product.c check each other.
//
// It refuses what the documentation rules out: unknown or wrongly sized attributes, a leading
// dimension below the rows, sides beyond 32 bits, dtypes that no row of the table of types has,
// epilogues without their pointers or with an aux of the wrong type, leading dimension or stride,
// pointers an algorithm is not made for, too little scratch or scratch not at 256 bytes. What would
// be undefined there ends the program here: matrices outside their memory, batches of results that
// overlap, results that lie over what is read.
//
// Its algorithms are in a table. They differ in what they ask for, in how they round (parts of a
// split sum are added one after the other, operands may be read with fewer bits) and in the time
// they say they took. Some are proposed and decline when run, or cannot be started, as real ones
// do; the runtime then has an error to report.
//
// WEFT_FAKE_CUDA (fake_runtime.c) may say lt_without:N (algorithm N is not there any more), lt_bare
// (no kernel for any epilogue), lt_refuses_ends (they are invalid), lt_slow_ends (those kernels are
// slow), lt_slow:N (all take N times as long), lt_none (nothing proposed), lt_cold:N
// (the first N products of a handle take ten times as long).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake.h"
#include "tests/cuda/fake_cublaslt.h"

enum { VERSION = 130100, HANDLE = 0x17ab, PREFERENCE = 0x9ef, ALGO = 0xa190 };

// ---- what the opaque ones hold -----------------------------------------------------------------

struct cublasLtContext {
    int magic;
};

struct preference {
    int32_t magic;
    uint32_t search, schemes, align[4]; // of A, B, C, D
    uint64_t scratch;
};

struct algo {
    int32_t magic, id, types[3]; // compute, of A, of D
};

_Static_assert(sizeof(struct layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "a layout");
_Static_assert(sizeof(struct operation) <= sizeof(cublasLtMatmulDescOpaque_t), "an operation");
_Static_assert(sizeof(struct preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t),
               "preferences");
_Static_assert(sizeof(struct algo) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm");

static struct preference *preference_of(cublasLtMatmulPreference_t p)
{
    struct preference *x = (struct preference *)(void *)p;
    return x && x->magic == PREFERENCE ? x : NULL;
}

// ---- the handle --------------------------------------------------------------------------------

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = malloc(sizeof **out);
    if (!*out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*out)->magic = HANDLE;
    lt_run_cold();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    if (!h || h->magic != HANDLE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    h->magic = 0;
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the GPU program failed to execute";
    default:
        return "an error";
    }
}

// ---- attributes --------------------------------------------------------------------------------

struct attribute {
    int id;
    size_t at, bytes;
};

static cublasStatus_t attribute_set(void *to, const struct attribute *table, size_t n, int id,
                                    const void *value, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].id == id) {
            if (!value || table[i].bytes != bytes)
                return CUBLAS_STATUS_INVALID_VALUE;
            memcpy((char *)to + table[i].at, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    fprintf(stderr, "fake cublaslt: attribute %d is not in the fake\n", id);
    return CUBLAS_STATUS_INVALID_VALUE;
}
#define FIELD(id, type, field)                                \
    {                                                         \
        id, offsetof(type, field), sizeof(((type *)0)->field) \
    }
#define COUNT(table) (sizeof(table) / sizeof *(table))

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t ld)
{
    if (!l || size < sizeof *l)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(l, 0, sizeof *l);
    *(struct layout *)(void *)l = (struct layout){.magic = LT_LAYOUT,
                                                  .type = (int32_t)type,
                                                  .order = CUBLASLT_ORDER_COL,
                                                  .batch = 1,
                                                  .rows = rows,
                                                  .columns = columns,
                                                  .ld = ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t id,
                                                const void *value, size_t bytes)
{
    static const struct attribute table[] = {
        FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, struct layout, order),
        FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, struct layout, batch),
        FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, struct layout, stride),
    };
    return lt_layout_of(l) ? attribute_set(l, table, COUNT(table), (int)id, value, bytes)
                           : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    if (!d || size < sizeof *d)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(d, 0, sizeof *d);
    *(struct operation *)(void *)d = (struct operation){.magic = LT_OPERATION,
                                                        .compute = (int32_t)compute,
                                                        .scale = (int32_t)scale,
                                                        .pointer_mode = CUBLASLT_POINTER_MODE_HOST,
                                                        .a = CUBLAS_OP_N,
                                                        .b = CUBLAS_OP_N,
                                                        .end = CUBLASLT_EPILOGUE_DEFAULT,
                                                        .bias_type = -1,
                                                        .aux_type = -1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t id, const void *value,
                                              size_t bytes)
{
    static const struct attribute table[] = {
        FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, struct operation, pointer_mode),
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, struct operation, a),
        FIELD(CUBLASLT_MATMUL_DESC_TRANSB, struct operation, b),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, struct operation, end),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, struct operation, bias),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, struct operation, bias_stride),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, struct operation, bias_type),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, struct operation, aux),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, struct operation, aux_ld),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, struct operation, aux_stride),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, struct operation, aux_type),
    };
    return lt_operation_of(d) ? attribute_set(d, table, COUNT(table), (int)id, value, bytes)
                              : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t size)
{
    if (!p || size < sizeof *p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(p, 0, sizeof *p);
    *(struct preference *)(void *)p = (struct preference){.magic = PREFERENCE,
                                                          .search = CUBLASLT_SEARCH_BEST_FIT,
                                                          .schemes = CUBLASLT_REDUCTION_SCHEME_MASK,
                                                          .align = {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t id,
                                                    const void *value, size_t bytes)
{
    static const struct attribute table[] = {
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, struct preference, scratch),
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, struct preference, schemes),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, struct preference, align[0]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, struct preference, align[1]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, struct preference, align[2]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, struct preference, align[3]),
    };
    return preference_of(p) ? attribute_set(p, table, COUNT(table), (int)id, value, bytes)
                            : CUBLAS_STATUS_INVALID_VALUE;
}

// ---- the algorithms ----------------------------------------------------------------------------

// In the order in which they are proposed.
static const struct row rows[] = {
    {40, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1, CUBLAS_STATUS_SUCCESS, false, true},
    {41, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1, CUBLAS_STATUS_SUCCESS, true, false},
    {48, 0, 2, CUBLASLT_REDUCTION_SCHEME_NONE, 1, CUBLAS_STATUS_SUCCESS, false, false},
    {42, 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1, CUBLAS_STATUS_NOT_SUPPORTED, false, false},
    {47, 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1, CUBLAS_STATUS_EXECUTION_FAILED, false, false},
    {43, 0, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE, 2, CUBLAS_STATUS_SUCCESS, false, false},
    {44, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 30, CUBLAS_STATUS_SUCCESS, false, false},
    {45, 0, 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 20, CUBLAS_STATUS_SUCCESS, false, false},
    {46, 16, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 10, CUBLAS_STATUS_SUCCESS, false, false},
};
static const struct row *row_of(const cublasLtMatmulAlgo_t *algo)
{
    const struct algo *a = (const struct algo *)(const void *)algo;
    long without = 0;
    if (!a || a->magic != ALGO)
        return NULL;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].id == a->id && !(fake_scene("lt_without", &without) && without == a->id))
            return &rows[i];
    return NULL;
}

static size_t scratch_of(const struct problem *p, const struct row *r)
{
    size_t sums = (size_t)(p->m * p->n) * (size_t)p->d.batch * sizeof(float);
    return r->scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? sums * (size_t)r->splits
           : r->scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE    ? 4096
                                                               : 0;
}

static bool layout_aligned(const struct layout *l, unsigned align)
{
    size_t size = lt_size_of(l->type);
    return !align || ((size_t)l->ld * size % align == 0 && (size_t)l->stride * size % align == 0);
}

static bool row_fits(const struct problem *p, const struct row *r)
{
    return layout_aligned(&p->a, r->align) && layout_aligned(&p->b, r->align) &&
           layout_aligned(&p->c, r->align) && layout_aligned(&p->d, r->align) &&
           (!r->halves || p->a.type == CUDA_R_32F) &&
           (!row_chains(r) || p->a.type == CUDA_R_16BF) &&
           !(fake_scene("lt_bare", NULL) && p->op.end != CUBLASLT_EPILOGUE_DEFAULT);
}

static cublasLtMatmulAlgo_t algo_of(const struct problem *p, const struct row *r)
{
    cublasLtMatmulAlgo_t out = {{0}};
    *(struct algo *)(void *)&out =
        (struct algo){ALGO, r->id, {p->op.compute, p->a.type, p->d.type}};
    return out;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *n)
{
    struct problem p;
    const struct preference *f = preference_of(preference);
    *n = 0;
    if (!h || h->magic != HANDLE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (fake_refused_in_capture()) // as from 13.3 on
        return CUBLAS_STATUS_INTERNAL_ERROR;
    cublasStatus_t rc = lt_problem(op, a, b, c, d, &p);
    bool refused = fake_scene("lt_refuses_ends", NULL) && p.op.end != CUBLASLT_EPILOGUE_DEFAULT;
    if (rc || !f || most < 1 || refused)
        return rc ? rc : CUBLAS_STATUS_INVALID_VALUE;
    for (size_t i = 0; i < COUNT(rows) && *n < most && !fake_scene("lt_none", NULL); i++) {
        const struct row *r = &rows[i];
        cublasLtMatmulAlgo_t algo = algo_of(&p, r);
        bool allowed = row_of(&algo) && row_fits(&p, r) && scratch_of(&p, r) <= f->scratch &&
                       (!r->scheme || f->schemes & r->scheme);
        for (int k = 0; k < 4; k++)
            allowed = allowed && f->align[k] >= r->align;
        if (!allowed)
            continue;
        out[*n] = (cublasLtMatmulHeuristicResult_t){.algo = algo,
                                                    .workspaceSize = scratch_of(&p, r),
                                                    .state = r->failed ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                       : CUBLAS_STATUS_SUCCESS,
                                                    .wavesCount = 1};
        ++*n;
    }
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t algo_check(const struct problem *p, const cublasLtMatmulAlgo_t *algo,
                                 const struct row **out)
{
    const struct algo *a = (const struct algo *)(const void *)algo;
    const struct row *r = row_of(algo);
    *out = r;
    if (!r || r->failed || !row_fits(p, r))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (a->types[0] != p->op.compute || a->types[1] != p->a.type || a->types[2] != p->d.type)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *out)
{
    struct problem p;
    const struct row *r;
    if (!h || h->magic != HANDLE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    cublasStatus_t rc = lt_problem(op, a, b, c, d, &p);
    rc = rc ? rc : algo_check(&p, algo, &r);
    out->state = rc;
    out->workspaceSize = rc ? 0 : scratch_of(&p, r);
    out->wavesCount = 1;
    return rc;
}

// ---- what an algorithm says of itself ----------------------------------------------------------

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t id,
                                                    void *out, size_t bytes, size_t *written)
{
    const struct row *r = row_of(algo);
    const size_t size =
        id == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? sizeof(uint16_t) : sizeof(uint32_t);
    if (!r || !out || bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(out, 0, size);
    if (id == CUBLASLT_ALGO_CONFIG_ID)
        memcpy(out, &r->id, size);
    if (id == CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
        memcpy(out, &r->splits, size);
    if (id == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
        memcpy(out, &r->scheme, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t flags_of(const struct algo *a, const struct row *r)
{
    bool half = a->types[1] == CUDA_R_16BF || r->halves;
    uint64_t flags = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F;
    return flags |
           (half ? CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF
            : a->types[0] == CUBLAS_COMPUTE_32F_FAST_TF32
                ? CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32
                : CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t id, void *out,
                                                 size_t bytes, size_t *written)
{
    const struct row *r = row_of(algo);
    uint64_t flags;
    if (!r || !out || id != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS || bytes != sizeof flags)
        return CUBLAS_STATUS_INVALID_VALUE;
    flags = flags_of((const struct algo *)(const void *)algo, r);
    memcpy(out, &flags, sizeof flags);
    *written = sizeof flags;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the call ----------------------------------------------------------------------------------

static void undefined(const char *what)
{
    fprintf(stderr, "fake cublaslt: cublasLtMatmul: %s\n", what);
    abort();
}

struct span {
    const char *from, *end;
};

static struct span span_of(const void *p, const struct layout *l)
{
    int64_t last =
        (l->batch - 1) * l->stride + ((int64_t)l->columns - 1) * l->ld + (int64_t)l->rows;
    return (struct span){p, (const char *)p + (size_t)last * lt_size_of(l->type)};
}

static bool meet(struct span a, struct span b)
{
    return a.from < b.end && b.from < a.end;
}

static void held(struct span s, const char *what)
{
    enum fake_where where;
    if (!fake_memory_where(s.from, (size_t)(s.end - s.from), &where) || where == FAKE_PAGEABLE)
        undefined(what);
}

static void check_memory(const struct job *j)
{
    const struct problem *p = &j->p;
    const struct operation *o = &p->op;
    struct span a = span_of(j->a, &p->a), b = span_of(j->b, &p->b), d = span_of(j->d, &p->d);
    struct layout aux = {.type = p->d.type, .batch = p->d.batch, .rows = p->d.rows};
    struct layout bias = aux;
    held(a, "A is not memory of the device");
    held(b, "B is not memory of the device");
    held(d, "D is not memory of the device");
    if (j->beta != 0)
        held(span_of(j->c, &p->c), "C is not memory of the device");
    if (meet(a, d) || meet(b, d))
        undefined("D lies over what is read");
    if (j->beta != 0 && j->c != j->d && meet(span_of(j->c, &p->c), d))
        undefined("C and D overlap");
    if (p->d.batch > 1 && p->d.stride < p->d.ld * ((int64_t)p->d.columns - 1) + (int64_t)p->d.rows)
        undefined("the batches of D overlap");
    aux.columns = p->d.columns;
    aux.ld = o->aux_ld;
    aux.stride = o->aux_stride;
    bias.columns = 1;
    bias.stride = o->bias_stride;
    if (has(p, CUBLASLT_EPILOGUE_BIAS))
        held(span_of(o->bias, &bias), "the bias is not memory of the device");
    if (has(p, SUMS)) {
        bias.rows = (uint64_t)(has(p, CUBLASLT_EPILOGUE_BGRADA) ? p->m : p->n);
        held(span_of(o->bias, &bias), "the sums are not memory of the device");
        struct span sums = span_of(o->bias, &bias);
        if (p->d.batch > 1 && bias.stride < (int64_t)bias.rows)
            undefined("the batches of the sums overlap");
        if (meet(sums, a) || meet(sums, b) || meet(sums, d))
            undefined("the sums lie over an operand");
    }
    if (has(p, 128)) {
        held(span_of(o->aux, &aux), "the aux is not memory of the device");
        if (meet(span_of(o->aux, &aux), d))
            undefined("aux and D overlap");
    }
}

static bool pointers_aligned(const struct job *j)
{
    const void *all[] = {j->a, j->b, j->c, j->d};
    for (int i = 0; i < 4; i++) {
        size_t size = lt_size_of(i < 2 ? j->p.a.type : j->p.d.type);
        if ((uintptr_t)all[i] % (j->row.align ? j->row.align : size))
            return false;
    }
    return true;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t at, const void *b,
                              cublasLtMatrixLayout_t bt, const void *beta, const void *c,
                              cublasLtMatrixLayout_t ct, void *d, cublasLtMatrixLayout_t dt,
                              const cublasLtMatmulAlgo_t *algo, void *scratch, size_t bytes,
                              cudaStream_t stream)
{
    struct job j = {.a = a, .b = b, .c = c, .d = d};
    const struct row *r;
    enum fake_where where;
    if (!h || h->magic != HANDLE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!alpha || !beta || !algo || !a || !b || !c || !d)
        return CUBLAS_STATUS_INVALID_VALUE;
    j.alpha = *(const float *)alpha;
    j.beta = *(const float *)beta;
    cublasStatus_t rc = lt_problem(op, at, bt, ct, dt, &j.p);
    rc = rc ? rc : algo_check(&j.p, algo, &r);
    if (rc)
        return rc;
    j.row = *r;
    if (bytes < scratch_of(&j.p, r) || (bytes && (!scratch || (uintptr_t)scratch % 256)) ||
        !pointers_aligned(&j))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes && (!fake_memory_where(scratch, bytes, &where) || where != FAKE_DEVICE))
        undefined("the workspace is not memory of the device");
    if (r->says != CUBLAS_STATUS_SUCCESS) {
        fake_error(cudaErrorInvalidConfiguration); // of a launch, which the runtime remembers
        return r->says;
    }
    check_memory(&j);
    return fake_enqueue(stream, lt_run, &j, sizeof j, "cublasLtMatmul") == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
