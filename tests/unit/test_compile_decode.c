// SPDX-License-Identifier: Apache-2.0
// Decoding with cached keys: whatever tokens a call computes of each text, its logits are those of a
// forward pass over the whole text; and what cannot have caches is refused by its line.
#include "tests/support/random_text.h"
#include "tests/unit/decode_case.h"

static const char *job_text(const char *model, const char *more)
{
    return job_on(model, "dp: 1", TEXTS, more);
}

static void check_model(const char *job, int64_t rows, int64_t context, bool runs, uint64_t seed,
                        void (*set)(struct interp *x))
{
    struct fixture cached;
    must_compile(&cached, job, PROGRAM_FILL, rows, context);
    check_decoding(job, &cached.c, runs, seed, set, strstr(job, "model: "));
    fixture_clear(&cached);
}

static void every_call_gives_the_logits_of_a_whole_forward_pass(void **state)
{
    static const int64_t rows[] = {1, 3, 7, 0};
    (void)state;
    for (int k = 0; k < MODELS; k++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int runs = 0; runs < 2; runs++)
                check_model(job_text(sized(models[k]), ""), rows[i], i == 2 ? 11 : 0, runs,
                            (uint64_t)k * 10 + i, set_params);
}

static void bf16_has_caches_of_its_own_rows(void **state)
{
    struct fixture f;
    (void)state;
    must_compile(&f, job_text(sized(models[2]), "precision: {compute: bf16}\n"), PROGRAM_FILL, 4,
                 0);
    const struct program *p = f.c.program[PROGRAM_STEP];
    int caches = 0;
    for (int b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].kind == BUFFER_CACHE) {
            assert_int_equal(p->buffers[b].dtype, DT_BF16);
            assert_true(p->buffers[b].persistent);
            caches++;
        }
    assert_int_equal(caches, 4); // keys and values of two layers
    assert_int_equal(f.c.memory.cache, 4 * TEXTS * SEQ * 4 * 4 * 2);
    fixture_clear(&f);
}

// A ring has room for what the window sees and for what a call writes over while its first row reads.
static void a_window_makes_a_ring_of_it_and_a_call(void **state)
{
    static const struct {
        int window, rows, places;
    } cases[] = {{5, 1, 5}, {5, 3, 7}, {5, 12, SEQ}, {14, 1, 14}, {15, 4, SEQ}, {40, 4, SEQ}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        char model[300];
        snprintf(model, sizeof model,
                 "program: mistral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, "
                 "window: %d",
                 cases[i].window);
        must_compile(&f, job_text(sized(model), ""), PROGRAM_FILL, cases[i].rows, 0);
        for (int k = PROGRAM_FILL; k <= PROGRAM_STEP; k++) {
            const struct graph *g = f.c.program[k]->graph;
            for (int v = 0; v < g->nvalues; v++)
                if (g->values[v].kind == VALUE_CACHE)
                    assert_int_equal(g->values[v].shape.dim[1], cases[i].places);
        }
        fixture_clear(&f);
    }
}

// A call of as many rows as there are places looks as if it had its keys in order.
static void no_kernel_may_take_a_ring_for_keys_in_order(void **state)
{
    struct fixture f;
    int found = 0;
    (void)state;
    must_compile(&f, job_text(sized(models[0]), ""), PROGRAM_FILL, 0, 0);
    const struct graph *g = f.c.program[PROGRAM_FILL]->graph;
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].op == OP_ATTENTION) {
            assert_int_equal(g->values[g->nodes[i].in[1]].shape.dim[1], SEQ);
            assert_int_equal(g->values[g->nodes[i].in[0]].shape.dim[1], SEQ);
            assert_false(g->nodes[i].attr.in_order);
            found++;
        }
    assert_int_equal(found, 2);
    fixture_clear(&f);
}

// ---- refusals ----------------------------------------------------------------------------------

#define FRAME(line5)                                                                           \
    "program: ./own.model, text: \"sizes\\n  seq = 16\\n  embed = 8\\n  vocab = 21\\nmodel\\n" \
    "  x = embed(tokens, table[vocab, embed])\\n" line5                                        \
    "  logits = x @ head[embed, vocab]\\n  loss = cross_entropy(logits, targets)\\n\""

static void what_has_no_caches_is_refused_by_its_line(void **state)
{
    static const struct {
        const char *model, *says;
    } cases[] = {
        {FRAME("  x = x + mean(x, seq)\\n"),
         "line 7: sum over seq: a token would see those behind it"},
        {FRAME("  x = x + sum(x * x, seq)\\n"), "line 7: sum over seq"},
        {FRAME("  x = x * softmax(x, seq)\\n"), "line 7: softmax over seq"},
        {FRAME("  x = x + bias[seq, embed]\\n"), "line 7: a number for each place of seq"},
        {FRAME("  x = x + embed(labels, kinds[classes = 3, embed])\\n"),
         "line 7: labels are read, which are no row for each token"},
        {FRAME("  k = x{seq as key}\\n  s = softmax(causal(x @ k), key)\\n  x = s @ k\\n"),
         "line 7: seq is read as key"},
        {FRAME("  q, k, v = linear(x, w[3, embed, heads = 2, head_dim = 4])\\n"
               "  x = linear(attention(q, k, v, causal = 0), o[heads, head_dim, embed])\\n"),
         "line 8: attention with causal = 0: a token would see those behind it"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        int rc = compile_only(&f, job_text(cases[i].model, ""), PROGRAM_FILL, 4, 0);
        if (rc != ERR_UNSUPPORTED || !strstr(f.e.text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].says, rc, f.e.text);
        fixture_clear(&f);
    }
}

static void experts_are_refused_for_now(void **state)
{
    struct fixture f;
    (void)state;
    const char *model = "program: mixtral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24";
    assert_int_equal(compile_only(&f, job_text(sized(model), ""), PROGRAM_FILL, 4, 0),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(f.e.text, "experts have no cached keys"));
    fixture_clear(&f);
}

// ---- random texts ------------------------------------------------------------------------------

static void set_small(struct interp *x)
{
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        int64_t n = shape_count(&val->shape);
        double *w = calloc((size_t)n, sizeof *w);
        struct rand_site site = {.seed = 3, .stream = (uint32_t)strlen(val->name) + (uint32_t)n};
        for (int64_t i = 0; i < n; i++) {
            bool beyond = false;
            for (int64_t d = val->shape.n - 1, at = i; d >= 0; at /= val->shape.dim[d--])
                beyond |= val->limit[d] && at % val->shape.dim[d] >= val->limit[d];
            w[i] = beyond ? 0 : (double)(0.25f * draw_normal(&site, (uint64_t)i));
        }
        interp_set(x, val->name, w);
        free(w);
    }
}

static void random_programs_that_are_accepted_are_equal(void **state)
{
    int accepted = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 300 && accepted < 25; seed++) {
        struct arena a = {0};
        struct random_text r = {0};
        struct buf model = {0};
        struct fixture f;
        random_text_make(&r, seed, &a);
        buf_puts(&model, "program: ./random.model, text: \"");
        for (const char *s = buf_str(&r.text); *s; s++)
            buf_printf(&model, *s == '\n' ? "\\n" : "%c", *s);
        buf_puts(&model, "\"");
        if (model.len < 3500 && strstr(buf_str(&model), "logits = ")) {
            const char *job = job_text(buf_str(&model), "");
            int rc = compile_only(&f, job, PROGRAM_FILL, 5, 0);
            if (rc && rc != ERR_UNSUPPORTED && rc != ERR_INVALID)
                fail_msg("seed %llu: %d %s", (unsigned long long)seed, rc, f.e.text);
            fixture_clear(&f);
            if (!rc)
                check_model(job, 1 + (int64_t)(seed % 6), 0, false, seed, set_small);
            accepted += !rc;
        }
        buf_clear(&model);
        buf_clear(&r.text);
        arena_clear(&a);
    }
    assert_true(accepted >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_gives_the_logits_of_a_whole_forward_pass),
        cmocka_unit_test(bf16_has_caches_of_its_own_rows),
        cmocka_unit_test(a_window_makes_a_ring_of_it_and_a_call),
        cmocka_unit_test(no_kernel_may_take_a_ring_for_keys_in_order),
        cmocka_unit_test(what_has_no_caches_is_refused_by_its_line),
        cmocka_unit_test(experts_are_refused_for_now),
        cmocka_unit_test(random_programs_that_are_accepted_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
