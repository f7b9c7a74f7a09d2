// SPDX-License-Identifier: Apache-2.0
// The updates of many parameters in one call: each as it would be alone, bit by bit.
#include "tests/ops/everywhere.h"

// More than one launch takes, of lengths around what a thread or a block gets.
enum { UPDATES = 60 };
static const int64_t lengths[] = {1, 3, 4097, 33, 257, 2, 1024, 5};

struct bank { // all that the calls of an op touch, in one buffer: clip and hyper, then the operands
    struct op_call call[UPDATES];
    struct op_attr attr[UPDATES];
    char *memory;
    size_t bytes;
};
enum { STEP = CLIP_SLOTS + HYPER_SLOTS };

static int64_t length_of(int k)
{
    return lengths[(size_t)k % (sizeof lengths / sizeof *lengths)];
}

// What an update's vectors hold before it; to be freed.
static float *numbers(int vectors, bool skip, size_t *bytes)
{
    const float step[STEP] = {[CLIP_SCALE] = 0.5f,
                              [CLIP_SKIP] = skip,
                              [CLIP_SLOTS + HYPER_LR] = 0.01f,
                              [CLIP_SLOTS + HYPER_BIAS1] = 1.5f,
                              [CLIP_SLOTS + HYPER_BIAS2] = 1.25f};
    struct ref_tensor x = {.dtype = DT_F32, .shape = {1, {STEP}}};
    for (int k = 0; k < UPDATES; k++)
        x.shape.dim[0] += vectors * length_of(k);
    size_t n = (size_t)x.shape.dim[0];
    float *v = malloc(n * sizeof *v);
    x.v = malloc(n * sizeof *x.v);
    assert_true(v && x.v);
    rig_fill(&x, 1, 0, 1);
    for (size_t i = 0; i < n; i++)
        v[i] = i < STEP ? step[i] : (float)x.v[i];
    free(x.v);
    *bytes = n * sizeof *v;
    return v;
}

static struct tensor vector(char **at, int64_t n)
{
    struct tensor t = {.dtype = DT_F32, .shape = {1, {n}}, .data = *at};
    *at += (size_t)n * sizeof(float);
    return t;
}

// Decay and rate differ from parameter to parameter, what all of a job share differs once.
static void bank_open(const struct rig *r, enum op op, const float *from, size_t bytes,
                      struct bank *b)
{
    int nout = op_outputs(op);
    b->bytes = bytes;
    char *at = b->memory = rig_memory(r, from, bytes);
    struct tensor clip = vector(&at, CLIP_SLOTS), hyper = vector(&at, HYPER_SLOTS);
    for (int k = 0; k < UPDATES; k++) {
        struct op_call *to = &b->call[k];
        b->attr[k] = (struct op_attr){.beta1 = 0.9f,
                                      .beta2 = k == 20 ? 0.5f : 0.95f,
                                      .eps = 1e-8f,
                                      .decay = k % 3 ? 0 : 0.1f,
                                      .lr_scale = k % 5 ? 1 : 0.25f};
        *to = (struct op_call){.op = op, .attr = &b->attr[k], .nin = nout + 3, .nout = nout};
        for (int i = 0; i <= nout; i++)
            to->in[i] = vector(&at, length_of(k));
        to->in[nout + 1] = clip;
        to->in[nout + 2] = hyper;
        for (int o = 0; o < nout; o++)
            to->out[o] = to->in[o ? o + 1 : 0];
    }
}

static float *bank_close(const struct rig *r, struct bank *b)
{
    float *v = malloc(b->bytes);
    assert_non_null(v);
    rig_read(r, v, b->memory, b->bytes);
    rig_free(r, b->memory);
    return v;
}

static void together_as_alone(const struct rig *r, enum op op, bool skip)
{
    static struct bank alone, together;
    struct err e = {0};
    size_t bytes;
    float *before = numbers(op_outputs(op) + 1, skip, &bytes);
    bank_open(r, op, before, bytes, &alone);
    bank_open(r, op, before, bytes, &together);
    for (int k = 0; k < UPDATES; k++)
        if (r->backend->ops[op](r->q, &alone.call[k], &e))
            fail_msg("%s", e.text);
    if (r->backend->many[op](r->q, together.call, UPDATES, &e))
        fail_msg("%s", e.text);
    float *x = bank_close(r, &alone), *y = bank_close(r, &together);
    if (memcmp(x, y, bytes) != 0)
        fail_msg("%s on %s: together they differ from alone", op_name(op), r->info.isa);
    if ((memcmp(before, y, bytes) == 0) != skip)
        fail_msg("%s on %s: %s", op_name(op), r->info.isa, skip ? "not skipped" : "skipped");
    free(before);
    free(x);
    free(y);
}

static void many_updates_at_once_have_the_bits_of_each_alone(void **state)
{
    static const enum op ops[] = {OP_SGD, OP_MOMENTUM, OP_ADAM};
    (void)state;
    for (int r = 0; r < nrigs; r++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (int skip = 0; skip < 2; skip++)
                together_as_alone(&rigs[r], ops[o], skip);
}

// An update of other lengths among them is refused by name, as it is alone.
static void one_that_is_wrong_is_refused(void **state)
{
    (void)state;
    for (int r = 0; r < nrigs; r++) {
        static struct bank b;
        struct err e = {0};
        size_t bytes;
        float *before = numbers(4, false, &bytes);
        bank_open(&rigs[r], OP_ADAM, before, bytes, &b);
        b.call[40].in[1].shape.dim[0]++;
        assert_int_equal(rigs[r].backend->many[OP_ADAM](rigs[r].q, b.call, UPDATES, &e),
                         ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "adam: operands differ in size"));
        free(bank_close(&rigs[r], &b));
        free(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_updates_at_once_have_the_bits_of_each_alone),
        cmocka_unit_test(one_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
