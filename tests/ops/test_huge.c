// SPDX-License-Identifier: Apache-2.0
// Operands of more than 2^31 elements, where a device has the memory for them (32 GiB of its own):
// indices of 32 bits would read and write elsewhere. Nearly all elements are zero; the few that are
// not lie at the ends, around 2^31, and where an index cut to 32 bits would land.
#include "common/compile/graph/optable.h"
#include "tests/ops/everywhere.h"

enum { MARKS = 6 };
#define ROWS  ((int64_t)65539)
#define WIDTH ((int64_t)32771)
#define COUNT (ROWS * WIDTH) // 2,147,778,569 = 2^31 + 294,921

static const int64_t marks[MARKS] = {0, 294920, 1 << 20, (1ll << 31) - 1, 1ll << 31, COUNT - 1};

static const struct rig *r;
static void *x, *y; // of COUNT f32 and bf16: as much as the test needs of the device
static struct err e;
#define MUST(call)                             \
    do {                                       \
        if (call)                              \
            fail_msg("%s: %s", #call, e.text); \
    } while (0)

static bool too_small(void)
{
    return !nrigs || rigs[0].info.shares_host || rigs[0].info.memory < 32ull << 30;
}

static int begin(void **state)
{
    setup(state);
    if (too_small())
        return 0;
    r = &rigs[0];
    MUST(r->backend->memory.alloc(r->device, (size_t)COUNT * sizeof(float), &x, &e));
    MUST(r->backend->memory.alloc(r->device, (size_t)COUNT * sizeof(uint16_t), &y, &e));
    for (int k = 0; k < MARKS; k++) {
        const float mark = (float)(k + 1);
        MUST(r->backend->stream.copy(r->q, (float *)x + marks[k], &mark, sizeof mark, &e));
    }
    MUST(r->backend->stream.sync(r->q, &e));
    return 0;
}

static bool skipped(void)
{
    if (too_small())
        print_message("SKIPPED: operands of more than 2^31 elements: no device of 32 GiB\n");
    return too_small();
}

static struct op_call call_of(enum op op, const struct op_attr *attr)
{
    return (struct op_call){.op = op, .attr = attr, .nin = 1, .nout = 1};
}

static void run(struct op_call *c)
{
    c->workspace_bytes = op_workspace(c, BACKEND_CUDA);
    c->workspace = rig_memory(r, NULL, c->workspace_bytes);
    MUST(r->backend->op.run[c->op](r->q, c, &e));
    MUST(r->backend->stream.sync(r->q, &e));
    rig_free(r, c->workspace);
}

static float sum_of(void *of, enum dtype t)
{
    static const struct op_attr attr = {.label = {{0}}, .labels = 1, .scale = 1};
    struct op_call c = call_of(OP_SUM, &attr);
    float got = -1;
    c.in[0] = (struct tensor){of, t, {1, {COUNT}}};
    c.out[0] = (struct tensor){rig_memory(r, NULL, sizeof got), DT_F32, {0, {0}}};
    run(&c);
    rig_read(r, &got, c.out[0].data, sizeof got);
    rig_free(r, c.out[0].data);
    return got;
}

static void an_elementwise_op_reaches_every_element(void **state)
{
    static const struct op_attr attr = {.label = {{0}, {0}}, .labels = 1, .scale = 2};
    struct op_call c = call_of(OP_SCALE, &attr);
    (void)state;
    if (skipped())
        return;
    c.in[0] = (struct tensor){x, DT_F32, {1, {COUNT}}};
    c.out[0] = (struct tensor){y, DT_BF16, {1, {COUNT}}};
    run(&c);
    for (int k = 0; k < MARKS; k++) {
        uint16_t half;
        rig_read(r, &half, (uint16_t *)y + marks[k], sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        float got;
        memcpy(&got, &bits, sizeof got);
        assert_true(got == 2 * (float)(k + 1));
    }
    assert_true(sum_of(y, DT_BF16) == 2 * 21); // and nothing else is there
}

static void a_sum_of_all_takes_every_element_once(void **state)
{
    (void)state;
    if (!skipped())
        assert_true(sum_of(x, DT_F32) == 1 + 2 + 3 + 4 + 5 + 6);
}

static void every_rows_maximum_is_its_own(void **state)
{
    static const struct op_attr attr = {.label = {{0, 1}, {0}}, .labels = 2, .scale = 1};
    struct op_call c = call_of(OP_ROW_MAX, &attr);
    float *got = malloc((size_t)ROWS * sizeof *got), *want = calloc((size_t)ROWS, sizeof *want);
    (void)state;
    assert_true(got && want);
    if (!skipped()) {
        c.in[0] = (struct tensor){x, DT_F32, {2, {ROWS, WIDTH}}};
        c.out[0] =
            (struct tensor){rig_memory(r, NULL, (size_t)ROWS * sizeof *got), DT_F32, {1, {ROWS}}};
        run(&c);
        rig_read(r, got, c.out[0].data, (size_t)ROWS * sizeof *got);
        for (int k = 0; k < MARKS; k++)
            want[marks[k] / WIDTH] = fmaxf(want[marks[k] / WIDTH], (float)(k + 1));
        for (int64_t i = 0; i < ROWS; i++)
            assert_true(got[i] == want[i]);
        rig_free(r, c.out[0].data);
    }
    free(got);
    free(want);
}

static void the_last_rows_of_a_large_table_are_found(void **state)
{
    static const struct op_attr attr = {.label = {{0}, {1, 2}, {0, 2}}, .labels = 3, .scale = 1};
    struct op_call c = {.op = OP_EMBED, .attr = &attr, .nin = 2, .nout = 1};
    int32_t ids[3] = {(int32_t)(ROWS - 1), 0, (int32_t)((1ll << 31) / WIDTH)};
    float got[2] = {0};
    (void)state;
    if (skipped())
        return;
    c.in[0] = (struct tensor){rig_memory(r, ids, sizeof ids), DT_I32, {1, {3}}};
    c.in[1] = (struct tensor){x, DT_F32, {2, {ROWS, WIDTH}}};
    c.out[0] = (struct tensor){
        rig_memory(r, NULL, 3 * (size_t)WIDTH * sizeof(float)), DT_F32, {2, {3, WIDTH}}};
    run(&c);
    const float *out = c.out[0].data;
    rig_read(r, got, out + WIDTH - 1, sizeof got); // the last of row 0, the first of row 1
    assert_true(got[0] == MARKS && got[1] == 1);
    rig_read(r, got, out + 2 * WIDTH + (1ll << 31) % WIDTH, sizeof *got);
    assert_true(got[0] == 5);
    rig_free(r, c.in[0].data);
    rig_free(r, c.out[0].data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_elementwise_op_reaches_every_element),
        cmocka_unit_test(a_sum_of_all_takes_every_element_once),
        cmocka_unit_test(every_rows_maximum_is_its_own),
        cmocka_unit_test(the_last_rows_of_a_large_table_are_found),
    };
    return cmocka_run_group_tests(tests, begin, teardown);
}
