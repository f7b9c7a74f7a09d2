// SPDX-License-Identifier: Apache-2.0
// The sample program: the logits of each sample's last token, whole on every device of any mesh.
#include "tests/unit/compile_case.h"

enum { SEQ = 8, VOCAB = 21, PADDED = 24, COUNT = 3, SHORT = 3 };

static const char *const models[] = {
    "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: llama, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 24, theta: 50",
    "program: cookbook, embed: 24, heads: 4, head_dim: 6, mlp: 24",
};
enum { MODELS = 3 };

static const char *sample_text(const char *model, const char *mesh, const char *sharding)
{
    static char text[2000];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {%s, layers: 2, seq: %d, vocab: %d, vocab_multiple: %d}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, tokenizer: ids, train: {tokens: t}, eval: {tokens: t}, "
             "batch: 16}\n"
             "sharding: {%s}\n"
             "eval: {sample: {prompt: '1 2', tokens: 4, count: %d, temperature: 1}}\n"
             "train: {steps: 3, microbatches: 2, seed: 5}\n",
             model, SEQ, VOCAB, PADDED, mesh, sharding, COUNT);
    return text;
}

// Without cached keys.
static void compile_windows(struct fixture *f, const char *text)
{
    const struct compile_options o = {.uncached = true};
    parse_with(f, text, NULL, 0);
    if (plan_compile(&f->job, &o, &f->a, &f->c, NULL, &f->e))
        fail_msg("%s: %s", text, f->e.text);
}

static double token(int row, int place)
{
    return (row * 7 + place * 5 + 3) % VOCAB;
}

// A window with `have` tokens in each row; what is behind them is junk.
static void feed_window(struct interp *x, int batch, int have)
{
    double *tokens = calloc((size_t)(batch * SEQ), sizeof *tokens);
    double *positions = calloc((size_t)(batch * SEQ), sizeof *positions);
    double *last = calloc((size_t)batch, sizeof *last);
    for (int i = 0; i < batch * SEQ; i++) {
        tokens[i] = i % SEQ < have ? token(i / SEQ, i % SEQ) : i % VOCAB;
        positions[i] = i % SEQ;
        last[i / SEQ] = have - 1;
    }
    interp_feed(x, "sample/tokens", tokens, 0);
    interp_feed(x, "sample/positions", positions, 0);
    interp_feed(x, "sample/last", last, 0);
    free(tokens);
    free(positions);
    free(last);
}

// The logits of the first COUNT rows; caller frees. interp_get fails when devices differ.
static double *sample_logits(const struct graph *g, const struct mesh *m, int have)
{
    struct interp x;
    interp_init(&x, g, m, 1);
    set_params(&x);
    int batch = (int)(g->values[g->metrics].shape.dim[0] / PADDED);
    assert_true(batch >= COUNT);
    feed_window(&x, batch, have);
    interp_phase(&x, PHASE_FORWARD, 0);
    interp_phase(&x, PHASE_UPDATE, 0);
    double *out = interp_get(&x, "metrics");
    interp_clear(&x);
    return out;
}

static int logits_of(const struct graph *g)
{
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *val = &g->values[v];
        if (val->point == POINT_LOGITS && val->shape.n == 3 && val->producer >= 0 &&
            g->nodes[val->producer].op == OP_MATMUL)
            return v;
    }
    fail_msg("no logits");
    return -1;
}

// The evaluation computes the logits of every position: those are the reference.
static void check_against_evaluation(const struct fixture *f, int have)
{
    struct interp x;
    double tokens[8 * SEQ], positions[8 * SEQ];
    const struct graph *g = f->c.global[PROGRAM_EVAL];
    interp_init(&x, g, NULL, 1);
    set_params(&x);
    for (int i = 0; i < 8 * SEQ; i++) {
        tokens[i] = i % SEQ < have ? token(i / SEQ, i % SEQ) : 0;
        positions[i] = i % SEQ;
    }
    interp_feed(&x, "tokens", tokens, 0);
    interp_feed(&x, "targets", tokens, 0);
    interp_feed(&x, "positions", positions, 0);
    interp_phase(&x, PHASE_FORWARD, 0);
    const double *want = x.value[logits_of(g)];
    double *got = sample_logits(f->c.global[PROGRAM_SAMPLE], NULL, have);
    for (int k = 0; k < COUNT; k++)
        for (int v = 0; v < VOCAB; v++) {
            double a = want[(k * SEQ + have - 1) * PADDED + v], b = got[k * PADDED + v];
            if (fabs(a - b) > 1e-11 * (1 + fabs(a)))
                fail_msg("row %d, id %d: %.15g by the evaluation, %.15g by the sample program", k,
                         v, a, b);
        }
    free(got);
    interp_clear(&x);
}

static void a_sample_sees_the_logits_an_evaluation_would(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture f;
        compile_windows(&f, sample_text(models[k], "dp: 1", ""));
        assert_true(compiled_has(&f.c, PROGRAM_SAMPLE));
        assert_int_equal(f.c.program[PROGRAM_SAMPLE]->microbatches, 1);
        for (int have = 1; have <= SEQ; have++)
            check_against_evaluation(&f, have);
        fixture_clear(&f);
    }
}

static void check_same_logits(const struct fixture *f, const double *want, const char *what)
{
    double *got = sample_logits(f->c.program[PROGRAM_SAMPLE]->graph, &f->c.mesh, SHORT);
    for (int v = 0; v < COUNT * PADDED; v++)
        if (fabs(got[v] - want[v]) > 1e-11 * (1 + fabs(want[v])))
            fail_msg("%s, slot %d: %.15g, not %.15g", what, v, got[v], want[v]);
    free(got);
}

static void every_device_of_any_mesh_has_the_same_logits(void **state)
{
    static const struct {
        const char *mesh, *sharding;
    } cases[] = {
        {"dp: 2", ""},
        {"dp: 8", ""},
        {"fsdp: 2", ""},
        {"fsdp: 4", ""},
        {"tp: 2", ""},
        {"tp: 4", ""},
        {"dp: 2, tp: 2", ""},
        {"cp: 2", ""},
        {"cp: 2, tp: 2", ""},
        {"pp: 2", ""},
        {"dp: 2, pp: 2, tp: 2", ""},
        {"tp: 2, fsdp: 2", ""},
        {"dp: 2, fsdp: 2, tp: 2", ""},
        {"fsdp: 2, tp: 4", ""},
        {"x: 2, y: 2", "rules: {batch: x, heads: y, mlp: y, vocab: y}"},
        {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"dp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"data: 2, model: 2", "activations: {act_seq: [batch, ~, model]}"},
        {"dp: 2", "params: [{match: 'embed/tokens', spec: [~, dp]}], gather: [dp]"},
        {"tp: 3", "rules: {heads: ~, mlp: tp, vocab: ~}"},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture whole;
        compile_windows(&whole, sample_text(models[k], "dp: 1", ""));
        double *want = sample_logits(whole.c.global[PROGRAM_SAMPLE], NULL, SHORT);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct fixture f;
            const char *text = sample_text(models[k], cases[i].mesh, cases[i].sharding);
            compile_windows(&f, text);
            check_same_logits(&f, want, text);
            fixture_clear(&f);
        }
        free(want);
        fixture_clear(&whole);
    }
}

// Its logits come after two of four layers: a sample is drawn without the others, whatever stages
// hold them.
#define EARLY                                                                             \
    "program: ./early.model, text: \"sizes\\n  layers = 2\\n  embed = 24\\n  seq = 8\\n"  \
    "  vocab_multiple = 24\\n  vocab = 21 padded vocab_multiple\\nlet body(x)\\n"         \
    "  repeat layers\\n    x = x + tanh(linear(x, w[embed, to = embed])){to as embed}\\n" \
    "  return x\\nmodel\\n  x = early: body(embed(tokens, table[vocab, embed]))\\n"       \
    "  logits = x @ head[embed, vocab]\\n  loss = cross_entropy(logits, targets)\\n"      \
    "  loss += cross_entropy((late: body(x)) @ head[embed, vocab], targets)\\n\""

static void layers_behind_the_logits_are_in_no_sample(void **state)
{
    static const char *const meshes[] = {"pp: 2", "pp: 4", "pp: 2, tp: 2"};
    struct fixture whole;
    (void)state;
    compile_windows(&whole, sample_text(EARLY, "dp: 1", ""));
    assert_int_equal(whole.c.global[PROGRAM_TRAIN]->nlayers, 4);
    assert_int_equal(whole.c.global[PROGRAM_SAMPLE]->nlayers, 2);
    check_against_evaluation(&whole, SHORT);
    double *want = sample_logits(whole.c.global[PROGRAM_SAMPLE], NULL, SHORT);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        struct fixture f;
        compile_windows(&f, sample_text(EARLY, meshes[i], ""));
        check_same_logits(&f, want, meshes[i]);
        fixture_clear(&f);
    }
    free(want);
    fixture_clear(&whole);
}

// Eight rows for a batch cut eight ways, though the job asks for three samples.
static void rows_are_as_many_as_the_batch_axes_need(void **state)
{
    static const struct {
        const char *mesh;
        int rows;
    } cases[] = {{"dp: 1", 3}, {"dp: 2", 4}, {"dp: 2, fsdp: 2", 4}, {"dp: 8", 8}, {"tp: 4", 3}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        compile_windows(&f, sample_text(models[0], cases[i].mesh, ""));
        const struct graph *g = f.c.global[PROGRAM_SAMPLE];
        assert_int_equal(g->values[g->loss].shape.dim[0], cases[i].rows);
        fixture_clear(&f);
    }
}

static void samples_cost_no_parameter_and_the_arena_is_the_largest_programs(void **state)
{
    struct fixture with, without;
    char text[1000];
    (void)state;
    compile_windows(&with, sample_text(models[0], "tp: 2", ""));
    snprintf(text, sizeof text, "%s", sample_text(models[0], "tp: 2", ""));
    char *from = strstr(text, "eval: {sample"), *to = strstr(text, "train: {steps");
    memmove(from, to, strlen(to) + 1);
    compile_windows(&without, text);
    assert_false(compiled_has(&without.c, PROGRAM_SAMPLE));
    assert_int_equal(with.c.memory.params, without.c.memory.params);
    assert_int_equal(with.c.memory.optimizer, without.c.memory.optimizer);
    // What lives besides: the window's inputs and the logits, each aligned to 256 bytes. The
    // temporaries of three short rows lie under those of training.
    assert_true(with.c.memory.arena - without.c.memory.arena <= 4 * 256 + 256);
    fixture_clear(&with);
    fixture_clear(&without);
}

// A text whose keys cannot be kept: its samples take a forward pass a token.
#define MIXED                                                                                  \
    "program: ./mixed.model, text: \"sizes\\n  layers = 2\\n  embed = 24\\n  seq = 8\\n"       \
    "  vocab_multiple = 24\\n  vocab = 21 padded vocab_multiple\\nmodel\\n"                    \
    "  x = embed(tokens, table[vocab, embed])\\n  repeat layers\\n    x = x + mean(x, seq)\\n" \
    "  logits = x @ head[embed, vocab]\\n  loss = cross_entropy(logits, targets)\\n\""

// Their keys lie where training has its temporaries, or a step of a decoder makes it as large.
static void samples_keep_keys_where_they_can(void **state)
{
    struct fixture with, windows, mixed;
    (void)state;
    compile_text(&with, sample_text(models[1], "dp: 2", ""), 0);
    compile_windows(&windows, sample_text(models[1], "dp: 2", ""));
    compile_text(&mixed, sample_text(MIXED, "dp: 2", ""), 0);
    assert_true(compiled_has(&with.c, PROGRAM_FILL) && compiled_has(&with.c, PROGRAM_STEP));
    assert_false(compiled_has(&with.c, PROGRAM_SAMPLE));
    assert_int_equal(with.c.memory.cache, 0);
    assert_int_equal(with.c.memory.params, windows.c.memory.params);
    assert_true(with.c.memory.arena <= windows.c.memory.arena + 8 * 256);
    assert_true(compiled_has(&mixed.c, PROGRAM_SAMPLE) && !compiled_has(&mixed.c, PROGRAM_FILL));
    assert_true(mixed.c.whole);
    assert_null(with.c.keyless);
    assert_null(find_finding(&with, FINDING_SAMPLES_KEYLESS, NULL));
    const struct finding *said = find_finding(&mixed, FINDING_SAMPLES_KEYLESS, "eval.sample");
    assert_non_null(said);
    assert_non_null(strstr(said->message, "a whole sequence: the model's line 10: sum over seq: "));
    fixture_clear(&with);
    fixture_clear(&windows);
    fixture_clear(&mixed);
}

// The cached programs of a job are derived from a graph in which a node has lost its scope.
static int build_broken(struct graph *g, const struct job *job, enum program_kind kind,
                        int64_t batch, int64_t step_batch)
{
    int rc = plan_build_job(g, job, kind, batch, step_batch);
    for (int i = 0; i < g->nnodes && kind == PROGRAM_SAMPLE; i++)
        g->nodes[i].scope = -1;
    return rc;
}

// No key is kept where that cannot be; what is a bug is none of it.
static void a_bug_in_deriving_them_is_reported_with_its_graph(void **state)
{
    const struct compile_options o = {0};
    struct fixture f;
    struct buf dump = {0};
    (void)state;
    parse_with(&f, sample_text(models[0], "dp: 1", ""), NULL, 0);
    assert_int_equal(compile_job(&f.job, build_broken, &o, &f.a, &f.c, &dump, &f.e), ERR_INTERNAL);
    assert_non_null(strstr(f.e.text, "graph: node 0 has no scope"));
    assert_non_null(strstr(buf_str(&dump), "fill/tokens"));
    buf_clear(&dump);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_sees_the_logits_an_evaluation_would),
        cmocka_unit_test(every_device_of_any_mesh_has_the_same_logits),
        cmocka_unit_test(layers_behind_the_logits_are_in_no_sample),
        cmocka_unit_test(rows_are_as_many_as_the_batch_axes_need),
        cmocka_unit_test(samples_keep_keys_where_they_can),
        cmocka_unit_test(a_bug_in_deriving_them_is_reported_with_its_graph),
        cmocka_unit_test(samples_cost_no_parameter_and_the_arena_is_the_largest_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
