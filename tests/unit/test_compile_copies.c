// SPDX-License-Identifier: Apache-2.0
// Parameters' copies in bf16: which casts the update takes over and which stay, and what they take
// of memory, counted by hand. That ranks keep every copy what a cast would make of its parameter is
// looked at wherever a ranks runs (tests/support/rank_threads.h: test_compile_programs, .._meshes).
#include "common/explain/cost.h"
#include "tests/unit/decoder_case.h"

static char text[2000];

// 8·16 + 16, 16·8 + 8, 8·4 + 4: 316 numbers in six tensors.
static const char *mlp(const char *mesh, const char *more)
{
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n"
             "mesh: {%s}\n"
             "data: {train: {images: i, labels: l}, eval: {images: i, labels: l}, batch: 16}\n"
             "precision: {compute: bf16}\n%s",
             mesh, more);
    return text;
}

#define ADAMW   "optimizer: {kind: adamw}\n"
#define STEPS   "train: {steps: 1, microbatches: 2}\n"
#define UNFUSED "train: {steps: 1, microbatches: 2, fuse: false}\n"

static const char *decoder(int model, const char *mesh, const char *sharding, const char *more)
{
    snprintf(text, sizeof text, "%sprecision: {compute: bf16}\n%s",
             decoder_text(models[model], mesh, 2, sharding), more);
    return text;
}

static const char *remade(const char *mesh, const char *remat, const char *fuse)
{
    char train[60];
    snprintf(train, sizeof train, "%s%s", remat, fuse);
    snprintf(text, sizeof text, "%sprecision: {compute: bf16}\n",
             decoder_job(models[0], mesh, 2, "", train));
    return text;
}

// ---- what a program does -----------------------------------------------------------------------

struct counts {
    int casts;   // of parameters
    int updates; // and those of them that write a copy
    int copying;
    int copies;      // buffers
    double numbers;  // that updates write into copies
    uint64_t bytes;  // of copies
    uint64_t params; // bytes, of a device
};

static bool of_kind(const struct program *p, const struct view *v, enum buffer_kind kind)
{
    return p->buffers[v->buffer].kind == kind;
}

static struct counts count(const struct compiled *c, enum program_kind kind, int stage)
{
    const struct program *p = compiled_program(c, kind, stage);
    struct counts n = {.bytes = compiled_memory(c, stage)->copies,
                       .params = compiled_memory(c, stage)->params};
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_OP)
            continue;
        n.casts += in->op == OP_CAST && of_kind(p, &in->in[0], BUFFER_PARAM);
        n.updates += op_is(in->op, OP_IS_UPDATE);
        for (int k = 0; k < in->nout; k++)
            if (of_kind(p, &in->out[k], BUFFER_COPY)) {
                assert_true(op_is(in->op, OP_IS_UPDATE) && k == in->nout - 1);
                n.copying++;
                n.numbers += (double)shape_count(&p->buffers[in->out[k].buffer].shape);
            }
    }
    for (int b = 0; b < p->nbuffers; b++)
        n.copies += p->buffers[b].kind == BUFFER_COPY;
    return n;
}

static void sums_are_exact(const struct memory *m)
{
    assert_int_equal(m->arena, m->params + m->grads + m->optimizer + m->copies + m->stash +
                                   m->transient + m->workspace);
}

// ---- the casts ---------------------------------------------------------------------------------

// Every optimiser writes the six, in training nothing is cast but pixels, and an evaluation reads
// what training wrote. Without fusion each is cast once a step, and by each evaluation.
static void the_update_takes_over_every_cast_of_a_parameter(void **state)
{
    static const char *const kinds[] = {"sgd", "momentum", "adam", "adamw"};
    struct fixture f;
    (void)state;
    for (int k = 0; k < 4; k++) {
        char more[200];
        snprintf(more, sizeof more, "optimizer: {kind: %s}\n" STEPS, kinds[k]);
        compile_text(&f, mlp("dp: 1", more), 0);
        struct counts train = count(&f.c, PROGRAM_TRAIN, 0), eval = count(&f.c, PROGRAM_EVAL, 0);
        assert_int_equal(train.casts + eval.casts, 0);
        assert_int_equal(train.updates, 6);
        assert_int_equal(train.copying, 6);
        assert_int_equal(train.copies, 6);
        assert_int_equal(eval.copies, 6);
        assert_int_equal(train.numbers, 316);
        assert_int_equal(train.bytes, 2 * 316);
        assert_int_equal(train.params, 4 * 316);
        sums_are_exact(&f.c.memory);
        fixture_clear(&f);
    }
    compile_text(&f, mlp("dp: 1", ADAMW UNFUSED), 0);
    struct counts train = count(&f.c, PROGRAM_TRAIN, 0), eval = count(&f.c, PROGRAM_EVAL, 0);
    assert_int_equal(train.casts, 6);
    assert_int_equal(eval.casts, 6); // by the first of its microbatches
    assert_int_equal(train.copying + train.copies + eval.copies, 0);
    assert_int_equal(train.bytes, 0);
    fixture_clear(&f);
}

// What f32 and tf32 read are the parameters themselves.
static void there_are_none_where_nothing_is_cast(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, decoder_text(models[0], "dp: 2", 2, ""), 0);
    struct counts n = count(&f.c, PROGRAM_TRAIN, 0);
    assert_int_equal(n.copying + n.copies, 0);
    assert_int_equal(n.bytes, 0);
    fixture_clear(&f);
}

// Two bytes for four, in the same cuts, of each of the 28 tensors; the update writes all of them.
static void copies_are_cut_as_their_parameters(void **state)
{
    static const char *const meshes[] = {"dp: 2", "fsdp: 2", "tp: 2", "fsdp: 2, tp: 2", "cp: 2"};
    struct fixture f;
    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        compile_text(&f, decoder(0, meshes[i], "", ""), 0);
        struct counts n = count(&f.c, PROGRAM_TRAIN, 0);
        assert_int_equal(n.casts, 0);
        assert_int_equal(n.copying, 28);
        assert_int_equal(2 * n.bytes, n.params);
        assert_int_equal(4 * n.numbers, n.params);
        sums_are_exact(&f.c.memory);
        fixture_clear(&f);
    }
}

// All casts are alive when the backward begins: what was stash is kept now. Where the fullest
// moment comes later the copies are still there: a device needs no more than their bytes besides,
// each in a place of its own.
static void memory_grows_by_no_more_than_the_copies(void **state)
{
    static const char *const meshes[] = {"dp: 2", "fsdp: 2", "tp: 2", "fsdp: 4"};
    static const char *const remats[] = {", remat: none", ", remat: full"};
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof meshes / sizeof *meshes); i++) {
        struct fixture with, without;
        compile_text(&with, remade(meshes[i / 2], remats[i % 2], ""), 0);
        compile_text(&without, remade(meshes[i / 2], remats[i % 2], ", fuse: false"), 0);
        const struct memory *m = &with.c.memory, *was = &without.c.memory;
        assert_int_equal(count(&without.c, PROGRAM_TRAIN, 0).casts, 28);
        assert_int_equal(was->copies, 0);
        assert_true(m->stash < was->stash);
        assert_true(m->arena <= was->arena + m->copies + 28 * PLAN_ALIGN);
        fixture_clear(&with);
        fixture_clear(&without);
    }
}

// ZeRO-1 on two devices: the update writes half of a parameter, the gather of the rest brings f32.
// What has no dimension that divides stays whole, and has its copy.
static void where_the_update_sees_a_part_the_cast_stays(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, decoder(0, "dp: 2", "optimizer: [dp]", ""), 0);
    struct counts n = count(&f.c, PROGRAM_TRAIN, 0);
    assert_int_equal(n.casts, 28);
    assert_int_equal(n.copying + n.copies, 0);
    assert_int_equal(n.bytes, 0);
    fixture_clear(&f);
    compile_text(&f, mlp("dp: 8", "sharding: {optimizer: [dp]}\n" ADAMW STEPS), 0);
    n = count(&f.c, PROGRAM_TRAIN, 0); // of six only the last bias, of 4, is not cut by 8
    assert_int_equal(n.casts, 5);
    assert_int_equal(n.copying, 1);
    assert_int_equal(n.bytes, 2 * 4);
    assert_int_equal(count(&f.c, PROGRAM_EVAL, 0).casts, 5);
    assert_int_equal(count(&f.c, PROGRAM_EVAL, 0).copies, 1);
    fixture_clear(&f);
}

// Nothing updates it: its copy is made once, by the rank, and stays.
static void a_frozen_parameter_has_a_copy_that_nobody_writes(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f,
                 mlp("fsdp: 2", "optimizer: {kind: adamw, groups: [{match: layers/0/*, freeze: "
                                "true}]}\n" STEPS),
                 0);
    struct counts n = count(&f.c, PROGRAM_TRAIN, 0);
    assert_int_equal(n.casts, 0);
    assert_int_equal(n.updates, 4);
    assert_int_equal(n.copying, 4);
    assert_int_equal(n.copies, 6);
    // Weights are cut by two, the biases' 28 are whole; and the parameters are there, though of two
    // of them the program reads but the copies.
    assert_int_equal(n.bytes, 2 * ((316 - 28) / 2 + 28));
    assert_int_equal(n.params, 4 * ((316 - 28) / 2 + 28));
    fixture_clear(&f);
}

// GPT-2's table is read by the first stage and by the last: a copy on each, as the parameter.
static void a_table_that_two_stages_read_has_a_copy_on_both(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, decoder(0, "pp: 2", "", ""), 0);
    int tables = 0;
    for (int s = 0; s < 2; s++) {
        struct counts n = count(&f.c, PROGRAM_TRAIN, s);
        const struct program *p = compiled_program(&f.c, PROGRAM_TRAIN, s);
        assert_int_equal(n.casts, 0);
        assert_int_equal(n.copying, n.updates);
        assert_int_equal(2 * n.bytes, n.params);
        for (int b = 0; b < p->nbuffers; b++)
            tables += p->buffers[b].kind == BUFFER_COPY &&
                      strcmp(p->buffers[b].name, "bf16/embed/tokens") == 0;
        sums_are_exact(compiled_memory(&f.c, s));
    }
    assert_int_equal(tables, 2);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_update_takes_over_every_cast_of_a_parameter),
        cmocka_unit_test(there_are_none_where_nothing_is_cast),
        cmocka_unit_test(copies_are_cut_as_their_parameters),
        cmocka_unit_test(memory_grows_by_no_more_than_the_copies),
        cmocka_unit_test(where_the_update_sees_a_part_the_cast_stays),
        cmocka_unit_test(a_frozen_parameter_has_a_copy_that_nobody_writes),
        cmocka_unit_test(a_table_that_two_stages_read_has_a_copy_on_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
