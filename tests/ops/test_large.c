// SPDX-License-Identifier: Apache-2.0
// GPT-2's logits at 64 samples of 1024 positions, on a GPU that has the memory: 65,536 rows of
// 50,304, more than 2^31 elements, as a result and as an operand of products, long sums over the
// rows, and attention by the library against our own kernels. Elsewhere a few rows and columns.
//
// Operands repeat a pattern of numbers whose length divides nothing, so that any element is known
// without the whole on the host; some elements of the results are held against sums in double.
#include "tests/ops/everywhere.h"

#include "common/compile/graph/optable.h"
#include "common/op/attention.h"

enum { PATTERN = 999983, SAMPLES = 200, ROWS = 4 };

static const struct rig *r;
static bool large;
static int64_t m, n, k;
static double pattern[PATTERN]; // as bf16 holds it
static void *x, *table, *logits;
static struct err e;
#define MUST(call)                             \
    do {                                       \
        if (call)                              \
            fail_msg("%s: %s", #call, e.text); \
    } while (0)

static enum dtype dtype(void)
{
    return rig_is_cuda() ? DT_BF16 : DT_F32;
}

// From -7 to 8 thirty-seconds: exact in bf16, and their products' sums in f32.
static void make_pattern(void)
{
    uint64_t draw = 1;
    for (int i = 0; i < PATTERN; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = (double)((int)(draw >> 60) - 7) / 32;
    }
}

static double element(int64_t i)
{
    return pattern[i % PATTERN];
}

static void *patterned(int64_t count)
{
    size_t size = dtype_size(dtype());
    char *host = malloc(PATTERN * size), *memory;
    assert_non_null(host);
    for (int64_t i = 0; i < PATTERN; i++) {
        float f = (float)pattern[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(host + (size_t)i * size, size == 4 ? (void *)&f : (void *)&half, size);
    }
    memory = rig_memory(r, NULL, (size_t)count * size);
    for (int64_t at = 0; at < count; at += PATTERN) {
        int64_t piece = count - at < PATTERN ? count - at : PATTERN;
        MUST(r->backend->stream.copy(r->q, memory + (size_t)at * size, host, (size_t)piece * size,
                                     &e));
    }
    MUST(r->backend->stream.sync(r->q, &e));
    free(host);
    return memory;
}

static double number_at(const void *memory, enum dtype t, int64_t i)
{
    uint32_t bits = 0;
    float f;
    size_t size = dtype_size(t);
    rig_read(r, size == 4 ? (char *)&bits : (char *)&bits + 2,
             (const char *)memory + (size_t)i * size, size);
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

// start: what the output holds before the call, since tuning writes it; null: anything.
static void run_with(struct op_call *c, size_t scratch, const float *start)
{
    c->workspace_bytes = scratch;
    c->workspace = rig_memory(r, NULL, c->workspace_bytes);
    if (r->backend->choice)
        MUST(r->backend->choice->tune(r->q, c, true, &e));
    if (start)
        MUST(r->backend->stream.copy(r->q, c->out[0].data, start,
                                     (size_t)shape_count(&c->out[0].shape) * sizeof *start, &e));
    MUST(r->backend->op.run[c->op](r->q, c, &e));
    MUST(r->backend->stream.sync(r->q, &e));
    rig_free(r, c->workspace);
}

static size_t scratch_of(const struct op_call *c)
{
    return op_workspace(c, rig_is_cuda() ? BACKEND_CUDA : BACKEND_CPU);
}

static void run(struct op_call *c, const float *start)
{
    run_with(c, scratch_of(c), start);
}

static struct tensor matrix(void *data, enum dtype t, int64_t rows, int64_t columns)
{
    return (struct tensor){data, t, {2, {rows, columns}}};
}

// out = a · b as `attr` labels them, or what `start` holds and the product.
static void multiply(const struct op_attr *attr, struct tensor a, struct tensor b,
                     struct tensor out, const float *start)
{
    struct op_call c = {.op = OP_MATMUL, .attr = attr, .nin = 2, .nout = 1, .accumulate = start};
    c.in[0] = a;
    c.in[1] = b;
    c.out[0] = out;
    run(&c, start);
}

static void expect(const char *what, int64_t row, int64_t column, double got, double want,
                   double rtol)
{
    char where[120];
    snprintf(where, sizeof where, "%s at %lld, %lld", what, (long long)row, (long long)column);
    rig_compare(where, &got, &want, 1, rtol, rtol);
}

// Rows and columns to look at: the ends, where element 2^31 is, and any.
static int64_t sample(int at, int64_t extent, int64_t special, uint64_t *draw)
{
    *draw = *draw * 6364136223846793005u + 1442695040888963407u;
    return at == 0                       ? 0
           : at == 1                     ? extent - 1
           : at == 2 && special < extent ? special
                                         : (int64_t)((*draw >> 33) % (uint64_t)extent);
}

static int begin(void **state)
{
    setup(state);
    r = nrigs ? &rigs[0] : NULL;
    if (!r)
        return -1;
    large = rig_is_cuda() && !r->info.shares_host && r->info.memory >= 32ull << 30 &&
            strcmp(r->info.model, "emulated") != 0;
    m = large ? 65536 : 96;
    n = large ? 50304 : 40;
    k = large ? 768 : 24;
    if (!large)
        print_message("SKIPPED: logits of more than 2^31 elements: no GPU of 32 GiB\n");
    make_pattern();
    x = patterned(m * k);
    table = patterned(n * k);
    logits = patterned(m * n);
    return 0;
}

static int end(void **state)
{
    rig_free(r, x);
    rig_free(r, table);
    rig_free(r, logits);
    return teardown(state);
}

static void logits_are_products_of_their_row_and_column(void **state)
{
    static const struct op_attr attr = {.label = {{0, 2}, {1, 2}, {0, 1}}, .labels = 3, .scale = 1};
    void *out = rig_memory(r, NULL, (size_t)(m * n) * dtype_size(dtype()));
    uint64_t draw = 1;
    (void)state;
    multiply(&attr, matrix(x, dtype(), m, k), matrix(table, dtype(), n, k),
             matrix(out, dtype(), m, n), NULL);
    for (int s = 0; s < SAMPLES; s++) {
        int64_t i = sample(s, m, (1ll << 31) / n, &draw);
        int64_t j = sample(s, n, (1ll << 31) % n, &draw);
        double want = 0;
        for (int64_t z = 0; z < k; z++)
            want += element(i * k + z) * element(j * k + z);
        expect("a logit", i, j, number_at(out, dtype(), i * n + j), want, 0x1p-8);
    }
    rig_free(r, out);
}

// The gradient of x: each of its elements is a sum over the row's 50,304 logits.
static void rows_of_logits_times_the_table_are_sums_over_words(void **state)
{
    static const struct op_attr attr = {.label = {{0, 1}, {1, 2}, {0, 2}}, .labels = 3, .scale = 1};
    void *out = rig_memory(r, NULL, (size_t)(m * k) * dtype_size(dtype()));
    uint64_t draw = 2;
    (void)state;
    multiply(&attr, matrix(logits, dtype(), m, n), matrix(table, dtype(), n, k),
             matrix(out, dtype(), m, k), NULL);
    for (int s = 0; s < SAMPLES; s++) {
        int64_t i = sample(s, m, (1ll << 31) / n, &draw), z = sample(s, k, 0, &draw);
        double want = 0;
        for (int64_t j = 0; j < n; j++)
            want += element(i * n + j) * element(j * k + z);
        expect("a gradient of x", i, z, number_at(out, dtype(), i * k + z), want, 0x1p-7);
    }
    rig_free(r, out);
}

// The table's: over all rows, added in f32 to what was there.
static void the_tables_gradient_is_added_up_over_all_rows(void **state)
{
    static const struct op_attr attr = {.label = {{0, 1}, {0, 2}, {1, 2}}, .labels = 3, .scale = 1};
    float *start = calloc((size_t)(n * k), sizeof *start);
    uint64_t draw = 3;
    (void)state;
    assert_non_null(start);
    start[0] = start[n * k - 1] = 100;
    void *out = rig_memory(r, NULL, (size_t)(n * k) * sizeof *start);
    multiply(&attr, matrix(logits, dtype(), m, n), matrix(x, dtype(), m, k),
             matrix(out, DT_F32, n, k), start);
    for (int s = 0; s < SAMPLES; s++) {
        int64_t j = sample(s, n, 0, &draw), z = sample(s, k, 0, &draw);
        double want = (double)start[j * k + z];
        for (int64_t i = 0; i < m; i++)
            want += element(i * n + j) * element(i * k + z);
        expect("a gradient of the table", j, z, number_at(out, DT_F32, j * k + z), want, 1e-6);
    }
    rig_free(r, out);
    free(start);
}

// A library that splits a sum may leave its end out: the last of these lengths lie behind whole steps
// of 64.
static void a_long_product_misses_none(void **state)
{
    static const struct op_attr attr = {.label = {{0, 2}, {2, 1}, {0, 1}}, .labels = 3, .scale = 1};
    static const int64_t lengths[] = {129, 194, 11528, 57608};
    enum { SIDE = 8 };
    (void)state;
    for (int t = 0; t < 4; t++) {
        const int64_t deep = lengths[t];
        void *a = patterned(SIDE * deep), *b = patterned(deep * SIDE);
        void *out = rig_memory(r, NULL, SIDE * SIDE * sizeof(float));
        multiply(&attr, matrix(a, dtype(), SIDE, deep), matrix(b, dtype(), deep, SIDE),
                 matrix(out, DT_F32, SIDE, SIDE), NULL);
        for (int64_t at = 0; at < (int64_t)SIDE * SIDE; at++) {
            double want = 0;
            for (int64_t z = 0; z < deep; z++)
                want += element(at / SIDE * deep + z) * element(z * SIDE + at % SIDE);
            expect("a long product", at / SIDE, at % SIDE, number_at(out, DT_F32, at), want, 1e-6);
        }
        rig_free(r, a);
        rig_free(r, b);
        rig_free(r, out);
    }
}

// Sums over 65,536 rows are made in chunks: the gradient of a bias.
static void a_sum_over_all_rows_misses_none(void **state)
{
    static const struct op_attr attr = {.label = {{0, 1}, {1}}, .labels = 2, .scale = 1};
    struct op_call c = {.op = OP_SUM, .attr = &attr, .nin = 1, .nout = 1};
    const int64_t widths[] = {k, n};
    (void)state;
    for (int t = 0; t < 2; t++) {
        int64_t width = widths[t];
        uint64_t draw = 4;
        void *out = rig_memory(r, NULL, (size_t)width * sizeof(float));
        c.in[0] = (struct tensor){t ? logits : x, dtype(), {2, {m, width}}};
        c.out[0] = (struct tensor){out, DT_F32, {1, {width}}};
        run(&c, NULL);
        for (int s = 0; s < SAMPLES; s++) {
            int64_t j = sample(s, width, 0, &draw);
            double want = 0;
            for (int64_t i = 0; i < m; i++)
                want += element(i * width + j);
            expect("a sum", 0, j, number_at(out, DT_F32, j), want, 1e-6);
        }
        rig_free(r, out);
    }
}

// The gradient of what a layer's queries, keys and values are made of, in its layout: GPT-2's three
// of 768 from 768, Llama 1B's keys and values of 512 from 2,048. On CUDA sums over them are kept in
// f32 some rows at a time and rounded once, which 2^-9 separates from a rounding between.
static void a_product_over_all_rows_is_summed_in_chunks_and_rounded_once(void **state)
{
    static const struct op_attr attr = {
        .label = {{0, 1, 2}, {0, 3, 2}, {1, 3}}, .labels = 4, .scale = 1};
    static const int64_t widths[][3] = {{3, 768, 768}, {2, 512, 2048}};
    (void)state;
    for (int t = 0; t < 2; t++) {
        const int64_t l = widths[t][0], j = large ? widths[t][1] : 24,
                      to = large ? widths[t][2] : 40;
        struct op_call c = {.op = OP_MATMUL, .attr = &attr, .nin = 2, .nout = 1};
        c.in[0] = (struct tensor){patterned(l * m * j), dtype(), {3, {l, m, j}}};
        c.in[1] = (struct tensor){patterned(l * to * j), dtype(), {3, {l, to, j}}};
        c.out[0] =
            matrix(rig_memory(r, NULL, (size_t)(m * to) * dtype_size(dtype())), dtype(), m, to);
        // Half of it is for the sums; 64 rows are the least, and a step.
        size_t scratch = large || !rig_is_cuda() ? scratch_of(&c) : 2 * 64 * 40 * sizeof(float);
        int64_t chunk = (int64_t)(scratch / 2 / sizeof(float)) / to / 64 * 64;
        uint64_t draw = 5;
        run_with(&c, scratch, NULL);
        assert_true(!rig_is_cuda() || chunk < m);
        for (int s = 0; s < SAMPLES; s++) { // the borders of chunks are among them
            int64_t border = s / 2 * chunk + s % 2 - 1;
            int64_t i = border < m && border >= 0 ? border : sample(s, m, 0, &draw);
            int64_t z = sample(s, to, 0, &draw);
            double want = 0;
            for (int64_t at = 0; at < l * j; at++)
                want += element((at / j * m + i) * j + at % j) *
                        element((at / j * to + z) * j + at % j);
            expect("a sum of products", i, z, number_at(c.out[0].data, dtype(), i * to + z), want,
                   0x1p-9);
        }
        rig_free(r, c.in[0].data);
        rig_free(r, c.in[1].data);
        rig_free(r, c.out[0].data);
    }
}

// ---- attention ---------------------------------------------------------------------------------

enum { B, S, H, G, D }; // samples, positions, heads, key heads, elements of a head

struct attended {
    struct op_call call;
    void *memory[OP_MAX_IN + OP_MAX_OUT];
    int n;
};

static struct tensor operand(struct attended *a, const int64_t size[4], bool out)
{
    struct shape shape = {4, {size[0], size[1], size[2], size[3]}};
    int64_t count = shape_count(&shape);
    void *memory = out ? rig_memory(r, NULL, (size_t)count * dtype_size(dtype()))
                       : patterned(count + a->n * 1000);
    a->memory[a->n++] = memory; // each operand begins elsewhere in the pattern
    return (struct tensor){(char *)memory +
                               (out ? 0 : (size_t)(a->n - 1) * 1000 * dtype_size(dtype())),
                           dtype(), shape};
}

// made: a forward of the same operands, of a gradient.
static void attend(struct attended *a, const struct attended *made, const struct op_attr *attr,
                   const int64_t size[4], const int32_t *positions)
{
    struct shape order = {2, {size[0], size[1]}}, rows = {3, {size[0], size[2], size[1]}};
    size_t numbers = (size_t)shape_count(&rows) * sizeof(float);
    *a = (struct attended){.call = {.op = made ? OP_ATTENTION_GRAD : OP_ATTENTION,
                                    .attr = attr,
                                    .nin = made ? 8 : 5,
                                    .nout = made ? 3 : ATTENTION_OUTPUTS}};
    for (int i = 0; i < (made ? 4 : 3); i++)
        a->call.in[i] = operand(a, size, false);
    for (int i = 0; i < ATTENTION_OUTPUTS && made; i++)
        a->call.in[4 + i] = made->call.out[i];
    for (int i = a->call.nin - 2; i < a->call.nin; i++) {
        a->memory[a->n] = rig_memory(r, positions, (size_t)shape_count(&order) * sizeof *positions);
        a->call.in[i] = (struct tensor){a->memory[a->n++], DT_I32, order};
    }
    for (int i = 0; i < a->call.nout; i++)
        a->call.out[i] = operand(a, size, true);
    if (!made) {
        rig_free(r, a->memory[a->n - 1]);
        a->memory[a->n - 1] = rig_memory(r, NULL, numbers);
        a->call.out[ATTENTION_LSE] = (struct tensor){a->memory[a->n - 1], DT_F32, rows};
    }
    run(&a->call, NULL);
}

static double *numbers_of(const struct tensor *t)
{
    int64_t count = shape_count(&t->shape);
    double *v = malloc((size_t)count * sizeof *v);
    void *host = malloc((size_t)count * dtype_size(t->dtype));
    assert_true(v && host);
    rig_read(r, host, t->data, (size_t)count * dtype_size(t->dtype));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        float f;
        if (t->dtype == DT_BF16)
            bits = (uint32_t)((const uint16_t *)host)[i] << 16;
        else
            bits = ((const uint32_t *)host)[i];
        memcpy(&f, &bits, sizeof f);
        v[i] = (double)f;
    }
    free(host);
    return v;
}

static void compare(const char *what, double *a, double *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(b[i]));
    assert_true(most > 0);
    rig_compare(what, a, b, count, 0, most * 0x1p-6);
    free(a);
    free(b);
}

// The library serves it, where the backend was built with one; on a large device in several turns
// over its scratch.
static void check_served(bool grad)
{
    struct buf text = {0};
    MUST(r->backend->choice->write(r->device, &text, &e));
    const char *line = strstr(buf_str(&text), grad ? "attention_grad " : "attention ");
    const char *by = line ? strstr(line, "= cudnn-") : NULL;
    const char *portion = by ? strchr(by + strlen("= cudnn-"), '-') : NULL; // "-8x12"
    if (!portion && (large || line))
        fail_msg("the library does not serve it:\n%s", buf_str(&text));
    if (large && grad && portion && atoi(portion + 1) > 16)
        fail_msg("it does not take several turns:\n%s", buf_str(&text));
    buf_clear(&text);
}

static const struct op_attr forward = {
    .label = {{B, S, H, D}, {B, S, G, D}, {B, S, G, D}, {B, S}, {B, S}, {B, S, H, D}, {B, H, S}},
    .labels = 5,
    .scale = 8,
    .group = 1,
    .in_order = true};
static const struct op_attr gradient = {.label = {{B, S, H, D},
                                                  {B, S, G, D},
                                                  {B, S, G, D},
                                                  {B, S, H, D},
                                                  {B, S, H, D},
                                                  {B, H, S},
                                                  {B, S},
                                                  {B, S},
                                                  {B, S, H, D},
                                                  {B, S, G, D},
                                                  {B, S, G, D}},
                                        .labels = 5,
                                        .scale = 8,
                                        .group = 1,
                                        .in_order = true};

// 32 samples of 12 heads of 1,024 positions; the gradient's scratch is for 8 of them.
static void the_librarys_attention_is_our_own(void **state)
{
    const int64_t size[4] = {large ? 32 : 2, large ? 1024 : 40, large ? 12 : 2, large ? 64 : 16};
    const struct rig *library = r;
    struct rig own;
    int32_t *positions = malloc((size_t)(size[0] * size[1]) * sizeof *positions);
    (void)state;
    assert_non_null(positions);
    for (int64_t i = 0; i < size[0] * size[1]; i++)
        positions[i] = (int32_t)(i % size[1]);
    if (!rig_is_cuda()) {
        free(positions);
        return;
    }
    setenv("WEFT_CUDA_LIBRARY_ATTENTION", "0", 1);
    rig_open(&own, 1, NULL);
    unsetenv("WEFT_CUDA_LIBRARY_ATTENTION");
    enum { FORWARD, GRADIENT };
    double *got[2][2][3];
    struct attended by[2];
    for (int way = 0; way < 2; way++) {
        r = way ? &own : library;
        attend(&by[FORWARD], NULL, &forward, size, positions);
        attend(&by[GRADIENT], &by[FORWARD], &gradient, size, positions);
        for (int grad = FORWARD; grad <= GRADIENT; grad++) {
            for (int i = 0; i < by[grad].call.nout; i++)
                got[way][grad][i] = numbers_of(&by[grad].call.out[i]);
            if (!way)
                check_served(grad);
        }
        for (int grad = FORWARD; grad <= GRADIENT; grad++)
            while (by[grad].n)
                rig_free(r, by[grad].memory[--by[grad].n]);
    }
    for (int grad = FORWARD; grad <= GRADIENT; grad++)
        for (int i = 0; i < by[grad].call.nout; i++)
            compare(grad ? "a gradient by the library, and by our own kernels"
                         : "forward by the library, and by our own kernels",
                    got[0][grad][i], got[1][grad][i], shape_count(&by[grad].call.out[i].shape));
    r = library;
    rig_close(&own);
    free(positions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_products_of_their_row_and_column),
        cmocka_unit_test(rows_of_logits_times_the_table_are_sums_over_words),
        cmocka_unit_test(the_tables_gradient_is_added_up_over_all_rows),
        cmocka_unit_test(a_long_product_misses_none),
        cmocka_unit_test(a_sum_over_all_rows_misses_none),
        cmocka_unit_test(a_product_over_all_rows_is_summed_in_chunks_and_rounded_once),
        cmocka_unit_test(the_librarys_attention_is_our_own),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
