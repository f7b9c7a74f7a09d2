// SPDX-License-Identifier: Apache-2.0
// Rematerialisation: it changes what is kept and what is communicated, never a bit of what is
// trained. Bytes and counts are worked out by hand.
#include "common/explain/cost.h"
#include "tests/unit/decoder_case.h"

static const char *const modes[] = {", remat: none", ", remat: block", ", remat: full"};
enum { NONE, BLOCK, FULL, MODES };

// ---- the same step -----------------------------------------------------------------------------

static void run_decoder(struct fixture *f, struct interp *x, const char *model, const char *mesh,
                        const char *sharding, int mode)
{
    compile_text(f, decoder_job(model, mesh, 2, sharding, modes[mode]), 0);
    interp_init(x, f->c.program[PROGRAM_TRAIN]->graph, &f->c.mesh, 2);
    set_params(x);
    decoder_step(x);
    decoder_step(x);
}

// Loss and gradients are the last step's, parameters of two.
static void assert_same_bits(const struct interp *kept, const struct interp *again,
                             const char *what)
{
    compare_to(kept, again, 0, what);
    for (int v = 0; v < kept->g->nvalues; v++) {
        const struct value *val = &kept->g->values[v];
        if (val->kind != VALUE_SUM || val->alias >= 0 || spec_partial(&val->spec))
            continue;
        double *a = interp_get(kept, val->name), *b = interp_get(again, val->name);
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            if (a[i] != b[i])
                fail_msg("%s: %s[%lld]: %.17g, not %.17g", what, val->name, (long long)i, b[i],
                         a[i]);
        free(a);
        free(b);
    }
}

static void decoders_train_to_the_same_bits_on_any_mesh(void **state)
{
    static const struct {
        const char *mesh, *sharding;
    } cases[] = {
        {"dp: 1", ""},
        {"dp: 2", ""},
        {"fsdp: 2", ""},
        {"tp: 2", ""},
        {"dp: 2, tp: 2", ""},
        {"fsdp: 4", ""},
        {"dp: 2, fsdp: 2", ""},
        {"fsdp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"x: 2, y: 2", "rules: {batch: x, embed: y, heads: y}, gather: [x, y]"},
        {"dp: 2, fsdp: 2, tp: 2", ""},
        {"pp: 2, dp: 2", ""},
        {"tp: 2, pp: 2", ""},
    };
    const int count = getenv("WEFT_LONG") ? MODELS : 2;
    (void)state;
    for (int k = 0; k < count; k++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct fixture f[MODES];
            struct interp x[MODES];
            for (int m = 0; m < MODES; m++)
                run_decoder(&f[m], &x[m], models[k], cases[c].mesh, cases[c].sharding, m);
            assert_same_bits(&x[NONE], &x[BLOCK], cases[c].mesh);
            assert_same_bits(&x[NONE], &x[FULL], cases[c].mesh);
            for (int m = 0; m < MODES; m++) {
                interp_clear(&x[m]);
                fixture_clear(&f[m]);
            }
        }
}

static const char *mlp_text(const char *mesh, int mode)
{
    static char text[500];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4, activation: gelu}\n"
             "mesh: {%s}\n"
             "data: {train: {images: i, labels: l}, batch: 24}\n"
             "optimizer: {kind: momentum, clip_norm: 0.5}\n"
             "train: {steps: 3, microbatches: 2%s}\n",
             mesh, modes[mode]);
    return text;
}

static void a_classifier_trains_to_the_same_bits_on_any_mesh(void **state)
{
    static const char *const meshes[] = {"dp: 1",        "dp: 2",   "dp: 3",
                                         "fsdp: 2",      "tp: 2",   "tp: 4",
                                         "dp: 3, tp: 2", "fsdp: 4", "dp: 2, fsdp: 2"};
    (void)state;
    for (size_t c = 0; c < sizeof meshes / sizeof *meshes; c++) {
        struct fixture f[MODES];
        struct interp x[MODES];
        for (int m = 0; m < MODES; m++) {
            compile_text(&f[m], mlp_text(meshes[c], m), 0);
            make_batch(&f[m]);
            interp_init(&x[m], f[m].c.program[PROGRAM_TRAIN]->graph, &f[m].c.mesh, 2);
            set_params(&x[m]);
            step(&f[m], &x[m]);
            step(&f[m], &x[m]);
        }
        assert_same_bits(&x[NONE], &x[BLOCK], meshes[c]);
        assert_same_bits(&x[NONE], &x[FULL], meshes[c]);
        for (int m = 0; m < MODES; m++) {
            interp_clear(&x[m]);
            fixture_clear(&f[m]);
        }
    }
}

// ---- what is kept ------------------------------------------------------------------------------

// A sample keeps, in floats: the cast image 8, before and after each activation 2·16 and 2·8, the
// logits' gradient 4, which the loss makes. `block` makes again what stays inside the first two
// layers, which leaves what they hand on, 16 and 8; `full` only what the last layer reads.
static void a_classifier_keeps_what_it_should(void **state)
{
    static const uint64_t floats[] = {8 + 32 + 16 + 4, 16 + 8 + 4, 8 + 4};
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fixture f;
        compile_text(&f, mlp_text("dp: 2", m), 0);
        assert_int_equal(f.c.memory.stash, 24 / 2 / 2 * 4 * floats[m]);
        fixture_clear(&f);
    }
}

static const char *deep_text(const char *mesh, int mode)
{
    static char text[500];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: gpt2, layers: 4, embed: 32, heads: 4, mlp: 64, "
             "seq: 16, vocab: 50, vocab_multiple: 64}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 8}\n"
             "train: {steps: 3, microbatches: 2%s}\n",
             mesh, modes[mode]);
    return text;
}

// A token keeps, in floats (32 wide, mlp 64, 64 rows of the vocabulary). Of a layer: what comes in,
// its norm, q, k and v, what attention makes, the sum with the residual, its norm: 8·32; before and
// after the GELU: 2·64; a number of each head that attends: 4. Of the head: what comes in and its
// norm, the logits' gradient.
// `block` keeps of each layer what comes in; `full` of the head alone.
static void a_decoder_keeps_what_it_should(void **state)
{
    static const uint64_t layer = 8 * 32 + 2 * 64 + 4, head = 2 * 32 + 64;
    static const uint64_t floats[] = {4 * layer + head, 4 * 32 + head, head};
    uint64_t arena[MODES];
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fixture f;
        compile_text(&f, deep_text("dp: 1", m), 0);
        assert_int_equal(f.c.memory.stash, 4 * 16 * 4 * floats[m]);
        arena[m] = f.c.memory.arena;
        fixture_clear(&f);
    }
    assert_true(arena[BLOCK] < arena[NONE]);
}

// Two stages of two layers, a microbatch at a time on the first (gpipe keeps both). `full` keeps of
// a token what enters the second, 32 floats, and the head's.
static void a_stage_keeps_what_enters_it(void **state)
{
    static const uint64_t layer = 8 * 32 + 2 * 64 + 4, head = 2 * 32 + 64;
    static const uint64_t first[] = {2 * layer, 2 * 32, 0};
    static const uint64_t second[] = {2 * layer + head, 2 * 32 + head, 32 + head};
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fixture f;
        char text[600];
        snprintf(text, sizeof text, "%spipeline: {schedule: gpipe}\n", deep_text("pp: 2", m));
        compile_text(&f, text, 0);
        assert_int_equal(compiled_memory(&f.c, 0)->stash, 2 * 4 * 16 * 4 * first[m]);
        assert_int_equal(compiled_memory(&f.c, 1)->stash, 2 * 4 * 16 * 4 * second[m]);
        fixture_clear(&f);
    }
}

// ---- what it costs -----------------------------------------------------------------------------

static int64_t count_of(const struct cost *c, enum reshard_kind op, enum phase phase,
                        const char *tensor)
{
    int64_t n = 0;
    for (int i = 0; i < c->ncollectives; i++)
        if (c->collectives[i].op == op && c->collectives[i].phase == phase &&
            strstr(c->collectives[i].tensor, tensor) == c->collectives[i].tensor)
            n += c->collectives[i].count;
    return n;
}

// 4 layers, 2 microbatches. Forward 2·4 + 1 sums of activations, as many of gradients. `block` sums
// each attention's output again, since the second norm reads the residual after it; `full` the
// embedding's and the first three MLPs' too.
static void tensor_parallel_sums_again_what_is_made_again(void **state)
{
    static const int64_t again[] = {0, 2 * 4, 2 * (4 + 1 + 3)};
    double flops[MODES], useful[MODES];
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fixture f;
        struct cost cost;
        compile_text(&f, deep_text("tp: 2", m), 0);
        cost_count(&f.c, &f.a, &cost);
        flops[m] = cost.flops_per_step;
        useful[m] = cost.utilisation;
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "layers/"), 2 * 8);
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "embed/"), 2);
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "head/"), 2 * 3);
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, "grad/"), 2 * 9);
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, ""), 2 * 9 + again[m]);
        assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, "embed/"),
                         m == FULL ? 2 : 0);
        fixture_clear(&f);
    }
    // 32·(4·32 + 2·64) weights a layer and 32·64 of the head, 2 FLOPs, three passes; scores and
    // their product with the values, half of 4·16·32 a token and layer.
    assert_true(flops[NONE] == 8.0 * 16 * 3 * (4 * (2 * 32 * 256 + 2 * 16 * 32) + 2 * 32 * 64));
    assert_true(flops[BLOCK] == flops[NONE] && flops[FULL] == flops[NONE]);
    assert_true(useful[BLOCK] == useful[NONE] && useful[FULL] == useful[NONE]);
}

// A weight is gathered once in a layer's backward, whether the vjp or the repeated forward or both
// read it. `full` reads the two tables of the embedding again.
static void repeated_work_shares_the_gathers_of_the_backward(void **state)
{
    static const int64_t again[] = {0, 0, 2 * 2};
    (void)state;
    for (int m = 0; m < MODES; m++) {
        struct fixture f;
        struct cost cost;
        compile_text(&f, deep_text("fsdp: 2", m), 0);
        cost_count(&f.c, &f.a, &cost);
        assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD, ""), 2 * (4 * 4 + 3));
        assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_BACKWARD, ""),
                         2 * (4 * 4 + 1) + again[m]);
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoders_train_to_the_same_bits_on_any_mesh),
        cmocka_unit_test(a_classifier_trains_to_the_same_bits_on_any_mesh),
        cmocka_unit_test(a_classifier_keeps_what_it_should),
        cmocka_unit_test(a_decoder_keeps_what_it_should),
        cmocka_unit_test(a_stage_keeps_what_enters_it),
        cmocka_unit_test(tensor_parallel_sums_again_what_is_made_again),
        cmocka_unit_test(repeated_work_shares_the_gathers_of_the_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
