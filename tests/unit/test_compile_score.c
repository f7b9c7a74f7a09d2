// SPDX-License-Identifier: Apache-2.0
// The score program: of each token how unlikely it was and whether it was the most likely, whole on every
// device of any mesh, by the logits of the evaluation.
#include "tests/unit/compile_case.h"

enum { SEQ = 8, VOCAB = 21, PADDED = 24, BATCH = 16, ROWS = BATCH * SEQ };

static const char *const models[] = {
    "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: llama, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 24, theta: 50",
    "program: cookbook, embed: 24, heads: 4, head_dim: 6, mlp: 24",
};
enum { MODELS = 3 };

static void compile_score(struct fixture *f, const char *model, const char *mesh,
                          const char *sharding, enum program_kind only)
{
    char text[1500];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {%s, layers: 2, seq: %d, vocab: %d, vocab_multiple: %d}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, eval: {tokens: t}, batch: %d}\n"
             "sharding: {%s}\n"
             "train: {steps: 3}\n",
             model, SEQ, VOCAB, PADDED, mesh, BATCH, sharding);
    parse_with(f, text, NULL, 0);
    if (plan_explain(&f->job, &(struct compile_options){.only = only}, &f->a, &f->c, &f->found,
                     NULL, &f->e))
        fail_msg("%s on {%s}: %s", model, mesh, f->e.text);
}

static int token(int row, int place)
{
    return (row * 7 + place * 5 + place * place + 3) % VOCAB;
}

static int most_likely[ROWS]; // by the evaluation
static double lead[ROWS];     // of its logit over the next

// Every fifth one is the most likely.
static int target(int i)
{
    return i % 5 ? token(i / SEQ, i % SEQ + 1) : most_likely[i];
}

// Columns lie in the program's order.
static void feed_tokens(struct interp *x, const struct zigzag *z)
{
    double tokens[ROWS], targets[ROWS], positions[ROWS];
    for (int i = 0; i < ROWS; i++) {
        int at = (int)zigzag_position(z, i % SEQ);
        tokens[i] = token(i / SEQ, at);
        targets[i] = target(i / SEQ * SEQ + at);
        positions[i] = at;
    }
    interp_feed(x, "tokens", tokens, 0);
    interp_feed(x, "targets", targets, 0);
    interp_feed(x, "positions", positions, 0);
}

// What the logits of the evaluation say of each target; then 1 where it is the greatest.
static void score_by_evaluation(const char *model, double *want)
{
    struct fixture f;
    struct interp x;
    compile_score(&f, model, "dp: 1", "", PROGRAM_TRAIN);
    const struct graph *g = f.c.global[PROGRAM_EVAL];
    int logits = -1;
    for (int v = 0; v < g->nvalues && logits < 0; v++)
        if (g->values[v].point == POINT_LOGITS && g->values[v].shape.n == 3 &&
            g->nodes[g->values[v].producer].op == OP_MATMUL)
            logits = v;
    interp_init(&x, g, NULL, 1);
    set_params(&x);
    feed_tokens(&x, &(struct zigzag){SEQ, 1});
    interp_phase(&x, PHASE_FORWARD, 0);
    for (int i = 0; i < ROWS; i++) {
        const double *l = x.value[logits] + i * PADDED;
        int best = 0;
        double total = 0;
        for (int v = 0; v < VOCAB; v++) {
            total += exp(l[v]);
            best = l[v] > l[best] ? v : best;
        }
        most_likely[i] = best;
        lead[i] = INFINITY;
        for (int v = 0; v < VOCAB; v++)
            lead[i] = v == best ? lead[i] : fmin(lead[i], l[best] - l[v]);
        want[i] = log(total) - l[target(i)];
        want[ROWS + i] = best == target(i);
    }
    interp_clear(&x);
    fixture_clear(&f);
}

static void check_mesh(const char *model, const char *mesh, const char *sharding,
                       const double *want)
{
    struct fixture f;
    struct interp x;
    compile_score(&f, model, mesh, sharding, PROGRAM_SCORE);
    assert_true(!compiled_has(&f.c, PROGRAM_TRAIN) && !compiled_has(&f.c, PROGRAM_EVAL));
    const struct program *p = f.c.program[PROGRAM_SCORE];
    interp_init(&x, p->graph, &f.c.mesh, 1);
    set_params(&x);
    feed_tokens(&x, &p->zigzag);
    interp_phase(&x, PHASE_FORWARD, 0);
    interp_phase(&x, PHASE_UPDATE, 0);
    double *got = interp_get(&x, "metrics"); // fails where devices differ
    for (int i = 0; i < 2 * ROWS; i++) {
        int64_t at = i / SEQ * SEQ + zigzag_position(&p->zigzag, i % SEQ);
        double w = want[at];
        if (at >= ROWS && lead[at - ROWS] < 1e-9) // rounding chooses
            continue;
        if (fabs(got[i] - w) > 1e-10 * (1 + fabs(w)))
            fail_msg("%s on {%s}, slot %d: %.15g, not %.15g", model, mesh, i, got[i], w);
    }
    free(got);
    interp_clear(&x);
    fixture_clear(&f);
}

static void scores_are_those_of_the_evaluations_logits_on_any_mesh(void **state)
{
    static const struct {
        const char *mesh, *sharding;
    } cases[] = {
        {"dp: 1", ""},
        {"dp: 8", ""},
        {"fsdp: 4", ""},
        {"tp: 4", ""},
        {"cp: 2", ""},
        {"cp: 4", ""},
        {"pp: 2", ""},
        {"dp: 2, cp: 2, tp: 2", ""},
        {"dp: 2, pp: 2, tp: 2", ""},
        {"tp: 2, fsdp: 2", ""},
        {"x: 2, y: 2", "rules: {batch: x, heads: y, mlp: y, vocab: y}"},
        {"dp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"tp: 3", "rules: {heads: ~, mlp: tp, vocab: ~}"},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        double want[2 * ROWS];
        int right = 0;
        score_by_evaluation(models[k], want);
        for (int i = 0; i < ROWS; i++)
            right += want[ROWS + i] > 0 && lead[i] > 1e-9;
        assert_true(right > 0 && right < ROWS);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check_mesh(models[k], cases[i].mesh, cases[i].sharding, want);
    }
}

// Parameters are all that a device holds but what one run needs.
static void a_program_alone_has_no_gradients_and_no_optimiser(void **state)
{
    struct fixture all, alone;
    (void)state;
    compile_score(&all, models[0], "dp: 1", "", PROGRAM_TRAIN);
    compile_score(&alone, models[0], "dp: 1", "", PROGRAM_SCORE);
    assert_int_equal(alone.c.memory.params, all.c.memory.params);
    assert_int_equal(alone.c.memory.grads, 0);
    assert_int_equal(alone.c.memory.optimizer, 0);
    assert_true(alone.c.memory.arena < all.c.memory.arena);
    assert_string_not_equal(alone.c.hash, all.c.hash);
    fixture_clear(&all);
    fixture_clear(&alone);
}

static void a_model_that_takes_its_samples_together_is_not_scored(void **state)
{
    static const char text[] =
        "name: t\nmodel:\n  program: own.model\n  text: |\n"
        "    sizes\n      seq = 8\n      vocab = 21\n      embed = 8\n    model\n"
        "      x = embed(tokens, e[vocab, embed])\n      x = x - mean(x, batch)\n"
        "      logits = x @ e[vocab, embed]\n      loss = cross_entropy(logits, targets)\n"
        "mesh: {dp: 1}\ndata: {format: tokens, train: {tokens: t}, batch: 4}\ntrain: {steps: 1}\n";
    struct fixture f;
    (void)state;
    parse_with(&f, text, NULL, 0);
    assert_int_equal(plan_explain(&f.job, &(struct compile_options){.only = PROGRAM_SCORE}, &f.a,
                                  &f.c, &f.found, NULL, &f.e),
                     ERR_INVALID);
    assert_non_null(strstr(f.e.text, "would depend on those that are drawn or scored with it"));
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_those_of_the_evaluations_logits_on_any_mesh),
        cmocka_unit_test(a_program_alone_has_no_gradients_and_no_optimiser),
        cmocka_unit_test(a_model_that_takes_its_samples_together_is_not_scored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
