// SPDX-License-Identifier: Apache-2.0
// Products as descriptors of NVIDIA's own library: it takes every attribute, and gives it back as
// column-major matrices, worked out by hand. On a machine with a GPU it is asked for algorithms
// too; where none is this says SKIPPED.
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/layout.h"
#include "tests/unit/unit.h"

// Addresses that nobody follows.
static void *at(uintptr_t address)
{
    return (void *)address;
}

static struct product product_of(int64_t m, int64_t n, int64_t k, int64_t batch, bool ta, bool tb,
                                 enum dtype in, enum dtype to)
{
    struct gemm g = {.batch = batch,
                     .m = m,
                     .n = n,
                     .k = k,
                     .trans_a = ta,
                     .trans_b = tb,
                     .lda = ta ? m : k,
                     .ldb = tb ? k : n,
                     .ldc = n,
                     .stride_a = m * k,
                     .stride_b = k * n,
                     .stride_c = m * n};
    return (struct product){.g = g,
                            .in = in,
                            .to = to,
                            .a = at(0x1000),
                            .b = at(0x2000),
                            .out = at(0x3000),
                            .workspace = at(0x100000),
                            .workspace_bytes = 32 << 20};
}

static void with_end(struct product *p, enum product_end end)
{
    p->end = end;
    if (end == END_BIAS || end == END_GELU_BIAS || end == END_GELU_AUX_BIAS)
        p->bias = at(0x4000);
    if (end == END_GELU_AUX || end == END_GELU_AUX_BIAS || end == END_DGELU)
        p->aux = at(0x5000);
    if (end == END_BGRADA || end == END_BGRADB)
        p->sums = at(0x6000);
}

static void make(const struct product *p, struct layout *l)
{
    struct err e = {0};
    if (layout_make(p, l, &e))
        fail_msg("%s", e.text);
}

// ---- what the library gives back ---------------------------------------------------------------

struct matrix { // of a matrix
    uint32_t type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batch;
};

#define MATRIX(l, what, to)                                                                        \
    assert_int_equal(                                                                              \
        cublasLtMatrixLayoutGetAttribute(l, CUBLASLT_MATRIX_LAYOUT_##what, &(to), sizeof(to), &n), \
        CUBLAS_STATUS_SUCCESS)
static struct matrix read_matrix(cublasLtMatrixLayoutOpaque_t *l)
{
    struct matrix t;
    size_t n;
    int32_t order;
    MATRIX(l, ORDER, order);
    assert_int_equal(order, CUBLASLT_ORDER_COL);
    MATRIX(l, TYPE, t.type);
    MATRIX(l, ROWS, t.rows);
    MATRIX(l, COLS, t.columns);
    MATRIX(l, LD, t.ld);
    MATRIX(l, BATCH_COUNT, t.batch);
    MATRIX(l, STRIDED_BATCH_OFFSET, t.stride);
    return t;
}

static void expect_matrix(cublasLtMatrixLayoutOpaque_t *l, cudaDataType_t type, uint64_t rows,
                          uint64_t columns, int64_t ld, int32_t batch, int64_t stride)
{
    struct matrix t = read_matrix(l);
    assert_int_equal(t.type, type);
    assert_int_equal(t.rows, rows);
    assert_int_equal(t.columns, columns);
    assert_int_equal(t.ld, ld);
    assert_int_equal(t.batch, batch);
    assert_int_equal(t.stride, stride);
}

#define OPERATION(l, what, type, want)                                                         \
    do {                                                                                       \
        type got_;                                                                             \
        size_t n_;                                                                             \
        assert_int_equal(cublasLtMatmulDescGetAttribute(&(l)->op, CUBLASLT_MATMUL_DESC_##what, \
                                                        &got_, sizeof got_, &n_),              \
                         CUBLAS_STATUS_SUCCESS);                                               \
        assert_true(got_ == (want));                                                           \
    } while (0)

// out [2][3][5] = a [2][3][7] · b [2][7][5]. By columns: A is b, 5 × 7; B is a, 7 × 3; D is 5 × 3.
static void a_product_lies_by_columns(void **state)
{
    struct product p = product_of(3, 5, 7, 2, false, false, DT_F32, DT_F32);
    struct layout l;
    (void)state;
    make(&p, &l);
    expect_matrix(&l.a, CUDA_R_32F, 5, 7, 5, 2, 35);
    expect_matrix(&l.b, CUDA_R_32F, 7, 3, 7, 2, 21);
    expect_matrix(&l.d, CUDA_R_32F, 5, 3, 5, 2, 15);
    OPERATION(&l, TRANSA, int32_t, CUBLAS_OP_N);
    OPERATION(&l, TRANSB, int32_t, CUBLAS_OP_N);
    OPERATION(&l, COMPUTE_TYPE, int32_t, CUBLAS_COMPUTE_32F);
    OPERATION(&l, SCALE_TYPE, int32_t, CUDA_R_32F);
    OPERATION(&l, EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_DEFAULT);
}

// a is stored [7][3], b [5][7]: A is 7 × 5 and B 3 × 7, both transposed.
static void what_lies_transposed_is_transposed_there_too(void **state)
{
    struct product p = product_of(3, 5, 7, 1, true, true, DT_BF16, DT_F32);
    struct layout l;
    (void)state;
    make(&p, &l);
    expect_matrix(&l.a, CUDA_R_16BF, 7, 5, 7, 1, 35);
    expect_matrix(&l.b, CUDA_R_16BF, 3, 7, 3, 1, 21);
    expect_matrix(&l.d, CUDA_R_32F, 5, 3, 5, 1, 15);
    OPERATION(&l, TRANSA, int32_t, CUBLAS_OP_T);
    OPERATION(&l, TRANSB, int32_t, CUBLAS_OP_T);
}

// 65,536 tokens by 50,304 ids are over 2^31 elements: strides are of 64 bits.
static void long_strides_stay_whole(void **state)
{
    struct product p = product_of(65536, 50304, 768, 3, false, false, DT_BF16, DT_BF16);
    struct layout l;
    (void)state;
    make(&p, &l);
    expect_matrix(&l.d, CUDA_R_16BF, 50304, 65536, 50304, 3, INT64_C(65536) * 50304);
}

static void tf32_is_asked_for_by_name(void **state)
{
    struct product p = product_of(8, 8, 8, 1, false, false, DT_F32, DT_F32);
    struct layout l;
    (void)state;
    p.tf32 = true;
    make(&p, &l);
    OPERATION(&l, COMPUTE_TYPE, int32_t, CUBLAS_COMPUTE_32F_FAST_TF32);
}

static void what_follows_is_set_with_its_pointers(void **state)
{
    struct product p = product_of(16, 24, 8, 3, false, false, DT_BF16, DT_BF16);
    struct layout l;
    struct err e = {0};
    (void)state;
    with_end(&p, END_GELU_AUX_BIAS);
    p.bias_stride = 24;
    make(&p, &l);
    OPERATION(&l, EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    OPERATION(&l, BIAS_POINTER, const void *, at(0x4000));
    OPERATION(&l, BIAS_BATCH_STRIDE, int64_t, 24);
    OPERATION(&l, BIAS_DATA_TYPE, int32_t, CUDA_R_16BF);
    OPERATION(&l, EPILOGUE_AUX_POINTER, void *, at(0x5000));
    OPERATION(&l, EPILOGUE_AUX_LD, int64_t, 24);
    OPERATION(&l, EPILOGUE_AUX_BATCH_STRIDE, int64_t, 16 * 24);
    OPERATION(&l, EPILOGUE_AUX_DATA_TYPE, int32_t, CUDA_R_16BF);
    p.bias = at(0x7000);
    assert_int_equal(layout_end(&p, &l, &e), 0);
    OPERATION(&l, BIAS_POINTER, const void *, at(0x7000));
}

static void sums_of_an_operand_go_where_a_bias_would_be(void **state)
{
    struct product p = product_of(16, 24, 8, 1, true, false, DT_BF16, DT_F32);
    struct layout l;
    (void)state;
    with_end(&p, END_BGRADA);
    make(&p, &l);
    OPERATION(&l, EPILOGUE, uint32_t, CUBLASLT_EPILOGUE_BGRADA);
    OPERATION(&l, BIAS_POINTER, const void *, at(0x6000));
    OPERATION(&l, BIAS_DATA_TYPE, int32_t, CUDA_R_32F);
}

static void every_end_is_one_of_the_librarys(void **state)
{
    static const cublasLtEpilogue_t want[] = {
        [END_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [END_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [END_GELU] = CUBLASLT_EPILOGUE_GELU,
        [END_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_BIAS,
        [END_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX,
        [END_GELU_AUX_BIAS] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [END_DGELU] = CUBLASLT_EPILOGUE_DGELU,
        [END_BGRADA] = CUBLASLT_EPILOGUE_BGRADA,
        [END_BGRADB] = CUBLASLT_EPILOGUE_BGRADB,
    };
    (void)state;
    for (int end = 0; end < PRODUCT_END_COUNT; end++) {
        struct product p = product_of(16, 24, 8, 1, false, false, DT_F32, DT_F32);
        struct layout l;
        with_end(&p, (enum product_end)end);
        make(&p, &l);
        OPERATION(&l, EPILOGUE, uint32_t, want[end]);
    }
}

#define PREFERENCE(f, what, type, want)                                                      \
    do {                                                                                     \
        type got_;                                                                           \
        size_t n_;                                                                           \
        assert_int_equal(cublasLtMatmulPreferenceGetAttribute(                               \
                             &(f)->p, CUBLASLT_MATMUL_PREF_##what, &got_, sizeof got_, &n_), \
                         CUBLAS_STATUS_SUCCESS);                                             \
        assert_true(got_ == (want));                                                         \
    } while (0)

// a at 2 bytes, b at 8, out at 16 and more; the library's A is our b.
static void an_algorithm_is_asked_for_what_the_pointers_allow(void **state)
{
    struct product p = product_of(16, 24, 64, 1, false, false, DT_BF16, DT_BF16);
    struct preference f;
    struct err e = {0};
    (void)state;
    p.a = at(0x1002);
    p.b = at(0x2008);
    p.out = at(0x3100);
    assert_int_equal(layout_preference(&p, true, &f, &e), 0);
    PREFERENCE(&f, MAX_WORKSPACE_BYTES, uint64_t, 32 << 20);
    PREFERENCE(&f, REDUCTION_SCHEME_MASK, uint32_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    PREFERENCE(&f, MIN_ALIGNMENT_A_BYTES, uint32_t, 8);
    PREFERENCE(&f, MIN_ALIGNMENT_B_BYTES, uint32_t, 2);
    PREFERENCE(&f, MIN_ALIGNMENT_C_BYTES, uint32_t, 16);
    PREFERENCE(&f, MIN_ALIGNMENT_D_BYTES, uint32_t, 16);
    p.c = at(0x6004);
    p.workspace = at(0x100010); // not at 256: left alone
    assert_int_equal(layout_preference(&p, false, &f, &e), 0);
    PREFERENCE(&f, MAX_WORKSPACE_BYTES, uint64_t, 0);
    PREFERENCE(&f, REDUCTION_SCHEME_MASK, uint32_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    PREFERENCE(&f, MIN_ALIGNMENT_C_BYTES, uint32_t, 4);
}

// Any order is allowed where the parts are of f32 in it, too. On tensor cores a sum that is not whole
// steps of 64 is not split at all.
static void sums_in_any_order_are_asked_for_where_they_stay_f32(void **state)
{
    static const struct {
        enum dtype in, to;
        bool tf32, reproducible;
        int64_t k;
        uint32_t want;
    } cases[] = {
        {DT_BF16, DT_F32, false, true, 64, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {DT_BF16, DT_F32, false, false, 64, CUBLASLT_REDUCTION_SCHEME_MASK},
        {DT_BF16, DT_BF16, false, true, 64, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {DT_BF16, DT_BF16, false, false, 64, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
        {DT_BF16, DT_F32, false, false, 72, CUBLASLT_REDUCTION_SCHEME_NONE},
        {DT_BF16, DT_BF16, false, true, 72, CUBLASLT_REDUCTION_SCHEME_NONE},
        {DT_F32, DT_F32, true, false, 72, CUBLASLT_REDUCTION_SCHEME_NONE},
        {DT_F32, DT_F32, false, false, 72, CUBLASLT_REDUCTION_SCHEME_MASK},
        {DT_F32, DT_F32, false, true, 72, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct product p =
            product_of(16, 24, cases[i].k, 1, false, false, cases[i].in, cases[i].to);
        struct preference f;
        struct err e = {0};
        p.tf32 = cases[i].tf32;
        assert_int_equal(layout_preference(&p, cases[i].reproducible, &f, &e), 0);
        PREFERENCE(&f, REDUCTION_SCHEME_MASK, uint32_t, cases[i].want);
    }
}

// ---- on a GPU ----------------------------------------------------------------------------------

static int algorithms(cublasLtHandle_t h, const struct product *p)
{
    cublasLtMatmulHeuristicResult_t r[8];
    struct layout l;
    struct preference f;
    struct err e = {0};
    int n = 0, good = 0;
    make(p, &l);
    assert_int_equal(layout_preference(p, true, &f, &e), 0);
    if (cublasLtMatmulAlgoGetHeuristic(h, &l.op, &l.a, &l.b, &l.d, &l.d, &f.p, 8, r, &n))
        return 0;
    for (int i = 0; i < n; i++)
        good += r[i].state == CUBLAS_STATUS_SUCCESS;
    return good;
}

// GPT-2 124M, 64 × 1,024 tokens: what each end has on this device is printed for whoever tunes.
static void a_device_has_algorithms_for_every_plain_product(void **state)
{
    static const enum dtype dtypes[][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32}};
    cublasLtHandle_t h;
    (void)state;
    cublasStatus_t rc = cublasLtCreate(&h);
    if (rc) {
        printf("SKIPPED: cublasLtCreate says '%s' here: no algorithms were asked for\n",
               cublasLtGetStatusString(rc));
        skip();
    }
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (int end = 0; end < PRODUCT_END_COUNT; end++) {
            struct product p =
                product_of(65536, 3072, 768, 1, false, false, dtypes[t][0], dtypes[t][1]);
            with_end(&p, (enum product_end)end);
            int n = algorithms(h, &p);
            printf("%s to %s, end %d: %d algorithms\n", dtype_name(p.in), dtype_name(p.to), end, n);
            assert_true(n > 0 || end != END_NONE);
        }
    assert_int_equal(cublasLtDestroy(h), CUBLAS_STATUS_SUCCESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_lies_by_columns),
        cmocka_unit_test(what_lies_transposed_is_transposed_there_too),
        cmocka_unit_test(long_strides_stay_whole),
        cmocka_unit_test(tf32_is_asked_for_by_name),
        cmocka_unit_test(what_follows_is_set_with_its_pointers),
        cmocka_unit_test(every_end_is_one_of_the_librarys),
        cmocka_unit_test(an_algorithm_is_asked_for_what_the_pointers_allow),
        cmocka_unit_test(sums_in_any_order_are_asked_for_where_they_stay_f32),
        cmocka_unit_test(a_device_has_algorithms_for_every_plain_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
