// SPDX-License-Identifier: Apache-2.0
// Decoding with cached keys: whatever tokens a call computes of each text, its logits are those of a
// forward pass over the whole text; and what cannot have caches is refused by its line. With WEFT_RIG=cuda
// the device is the CUDA backend's emulated twin, and what needs no device is left to the run without.
#include "tests/ops/rig.h"
#include "tests/support/random_text.h"
#include "tests/unit/decode_case.h"

// On the twin, which takes long, every other case in one setting of several, but with WEFT_LONG;
// under sanitizers a third of them.
static bool is_left_out(int k, size_t setting, int settings)
{
    return (rig_is_cuda() && !getenv("WEFT_LONG") &&
            (k & 1 || setting != (size_t)(k / 2 % settings))) ||
           is_spared();
}

static const char *job_text(const char *model, const char *more)
{
    char all[400];
    snprintf(all, sizeof all, "%s%s", more, rig_is_cuda() ? "resources: {kind: cuda}\n" : "");
    return job_on(model, "dp: 1", TEXTS, all);
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
            for (int runs = rig_is_cuda(); runs < 2 && !is_left_out(k, i, 4); runs++)
                check_model(job_text(sized(models[k]), ""), rows[i], i == 2 ? 11 : 0, runs,
                            (uint64_t)k * 10 + i, set_params);
}

// What is held against it is made in bf16 too.
static void in_bf16_too(void **state)
{
    static const int64_t rows[] = {1, 4, 0};
    (void)state;
    for (int k = 0; k < MODELS; k++)
        for (int runs = rig_is_cuda(); runs < 2 && !is_left_out(k + 1, 0, 1); runs++)
            check_model(job_text(sized(models[k]), "precision: {compute: bf16}\n"), rows[k % 3],
                        k % 3 == 1 ? 11 : 0, runs, (uint64_t)k, set_params);
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

// Of three products for each mixture of experts; none where their rows come from other devices.
static void products_of_experts_know_how_many_rows_they_have(void **state)
{
    static const struct {
        int model;
        const char *mesh, *more;
        int found;
    } cases[] = {
        {13, "dp: 1", "", 6}, {13, "dp: 1", "precision: {compute: bf16}\n", 6},
        {13, "dp: 2", "", 6}, {13, "tp: 2", "", 6},
        {14, "dp: 1", "", 3}, // its first layer is a dense one
        {0, "dp: 1", "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        must_compile(&f, job_on(sized(models[cases[i].model]), cases[i].mesh, 4, cases[i].more),
                     PROGRAM_FILL, 4, 0);
        for (int k = PROGRAM_FILL; k <= PROGRAM_STEP; k++) {
            const struct graph *g = f.c.program[k]->graph;
            int found = 0;
            for (int n = 0; n < g->nnodes; n++)
                found += g->nodes[n].kind == NODE_OP && g->nodes[n].op == OP_MATMUL_PLACES;
            if (found != cases[i].found)
                fail_msg("%s on {%s}%s: %d products, not %d", models[cases[i].model], cases[i].mesh,
                         cases[i].more, found, cases[i].found);
        }
        fixture_clear(&f);
    }
}

// ---- attention that a text writes out itself ----------------------------------------------------

#define FRAME(line5)                                                                           \
    "program: ./own.model, text: \"sizes\\n  seq = 16\\n  embed = 8\\n  vocab = 21\\nmodel\\n" \
    "  x = embed(tokens, table[vocab, embed])\\n" line5                                        \
    "  logits = x @ head[embed, vocab]\\n  loss = cross_entropy(logits, targets)\\n\""

#define SCORES                                                       \
    "  q, k, v = linear(x, w[3, embed, heads = 2, head_dim = 4])\\n" \
    "  k = k{seq as key}\\n  v = v{seq as key}\\n  s = q @ k{heads*}\\n"
#define OUT "  x = x + linear(p @ v{heads*}, o[heads, head_dim, embed])\\n"

static const char *const written_out[] = {
    FRAME("  k = x{seq as key}\\n  s = softmax(causal(x @ k), key)\\n  x = x + s @ k\\n"),
    FRAME(SCORES "  p = softmax(causal(s), key)\\n" OUT),
    FRAME(SCORES "  p = softmax(causal(0.5 * s, 5), key)\\n" OUT),
    FRAME(SCORES "  e = exp(causal(s))\\n  p = e / sum(e, key)\\n" OUT),
    FRAME(SCORES "  p = sigmoid(causal(s))\\n" OUT),
    FRAME(SCORES "  p = relu(causal(s)) / 16\\n" OUT),
    FRAME(SCORES "  p = silu(causal(s)) * s\\n" OUT),
    // Means of the tokens before.
    FRAME(SCORES "  p = sigmoid(causal(s - s + 1)) / (f32(positions) + 1)\\n" OUT),
    // Scores that fall with distance, in two ways.
    FRAME(SCORES "  s = s + 0.3 * f32(positions){seq as key} - 0.3 * f32(positions)\\n"
                 "  p = softmax(causal(s), key)\\n" OUT),
    FRAME(SCORES "  far = 0.3 * f32(positions)\\n"
                 "  p = softmax(causal(s) + far{seq as key}, key)\\n" OUT),
    // What grows fast with distance: a place that has no row yet must not be far.
    FRAME(SCORES "  r = s - s + f32(positions){seq as key} - f32(positions)\\n"
                 "  p = softmax(causal(s - 0.01 * r * r * r), key)\\n" OUT),
    FRAME(SCORES "  r = s - s + f32(positions){seq as key} - f32(positions)\\n"
                 "  p = softmax(causal(s), key) * exp(0.05 * r)\\n" OUT),
    // A number for each pair, of the sequence and by embed; for each key; for each token.
    FRAME(SCORES "  p = softmax(causal(s + pairs[heads = 2, seq, key = seq]), key)\\n" OUT),
    FRAME(SCORES "  p = softmax(causal(s + embed(positions, pairs[position = seq, key = seq])), "
                 "key)\\n" OUT),
    FRAME(SCORES "  p = softmax(causal(s, 3) + far[key = seq], key)\\n" OUT),
    FRAME("  x = x + bias[seq, embed]\\n" SCORES "  p = softmax(causal(s), key)\\n" OUT),
    FRAME(SCORES "  v = v + late[key = seq, head_dim = 4]\\n  p = softmax(causal(s), key)\\n" OUT),
    FRAME("  x = x * gain[seq]\\n  y = x @ each[seq*, embed, out = 8]\\n  x = x + y{out as "
          "embed}\\n"),
    FRAME(SCORES "  p = softmax(causal(s), key) * rates[seq, heads = 2]\\n" OUT),
    FRAME(SCORES "  p = softmax(causal(s), key)\\n  p = p @ r[heads = 2, h = 2]\\n  p = p{h as "
                 "heads}\\n" OUT),
    FRAME(SCORES
          "  p = softmax(causal(s), key)\\n  x = x + p @ far[key = seq, heads = 2, embed]\\n"),
    // One group of keys, read through several windows.
    FRAME(SCORES "  p = softmax(causal(s, 2), key) + softmax(causal(s, 6), key)\\n" OUT),
    FRAME(SCORES "  p = softmax(causal(s, 2), key) * softmax(causal(s), key)\\n" OUT),
    FRAME(SCORES "  p = sigmoid(causal(s, 2)) + sigmoid(causal(s, 6))\\n" OUT),
    FRAME(SCORES "  p = sigmoid(causal(s, 6)) - sigmoid(causal(s, 2))\\n" OUT),
    // The weights of the last token alone.
    FRAME(SCORES "  p = softmax(causal(s), key)\\n  x = x + linear(p @ v{heads*}, "
                 "o[heads, head_dim, embed])\\n  x = layernorm(x)\\n"),
    // What is kept between attention's own keys and those that are written out.
    FRAME("  q, k, v = linear(x, w[3, embed, heads = 2, head_dim = 4])\\n"
          "  a = attention(q, k, v, window = 3)\\n  s = q @ k{seq as key, heads*}\\n"
          "  p = softmax(causal(s), key)\\n  a = a + p @ v{seq as key, heads*}\\n"
          "  x = x + linear(rotary(a, 50), o[heads, head_dim, embed])\\n"),
};
enum { WRITTEN_OUT = sizeof written_out / sizeof *written_out };

static void attention_that_is_written_out_has_caches_too(void **state)
{
    static const int64_t rows[] = {1, 3, 0};
    (void)state;
    for (int k = 0; k < WRITTEN_OUT; k++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int runs = rig_is_cuda(); runs < 2 && !is_left_out(k, i, 3); runs++)
                check_model(job_text(written_out[k], ""), rows[i], i == 1 ? 11 : 0, runs,
                            (uint64_t)k * 10 + i, set_params);
}

// ---- refusals ----------------------------------------------------------------------------------

static void what_has_no_caches_is_refused_by_its_line(void **state)
{
    static const struct {
        const char *model, *says;
    } cases[] = {
        {FRAME("  x = x + mean(x, seq)\\n"),
         "line 7: sum over seq: a token would see those behind it"},
        {FRAME("  x = x + sum(x * x, seq)\\n"), "line 7: sum over seq"},
        {FRAME("  x = x * softmax(x, seq)\\n"), "line 7: softmax over seq"},
        {FRAME("  x = x + embed(labels, kinds[classes = 3, embed])\\n"),
         "line 7: labels are read, which are no row for each token"},
        {FRAME(SCORES "  p = softmax(s, key)\\n" OUT),
         "line 11: softmax over key, which has not been through causal()"},
        {FRAME(SCORES "  p = s / 16\\n" OUT), "line 12: matmul over key, which has not been"},
        {FRAME(SCORES "  p = relu(s)\\n  x = x + sum(p, key, heads) * x\\n"),
         "line 12: sum over key, which has not been through causal()"},
        {FRAME(SCORES "  p = softmax(-1 * causal(s), key)\\n" OUT), "line 11: softmax over key"},
        {FRAME(SCORES "  p = softmax(causal(s) * 1e-9, key)\\n" OUT), "line 11: softmax over key"},
        {FRAME(SCORES "  p = softmax(causal(s) * s, key)\\n" OUT), "line 11: softmax over key"},
        {FRAME(SCORES "  p = exp(causal(s))\\n  p = sigmoid(p)\\n" OUT),
         "line 13: matmul over key"},
        {FRAME(SCORES "  p = sigmoid(causal(s)) * log(exp(s))\\n" OUT),
         "line 12: matmul over key of what log, sqrt or a division by keys made"},
        {FRAME(SCORES "  p = sigmoid(causal(s))\\n  p = p / sum(k, head_dim)\\n" OUT),
         "line 13: matmul over key of what log, sqrt or a division by keys made"},
        {FRAME(SCORES "  r = s - s + f32(positions) - f32(positions){seq as key}\\n"
                      "  p = softmax(causal(s - sqrt(1 + r)), key)\\n" OUT),
         "line 12: softmax over key of what log, sqrt or a division by keys made: in a place that "
         "has no key yet that may be no number"},
        {FRAME(SCORES "  p = softmax(causal(s), key)\\n  x = x + mean(p, seq, key, heads) * x\\n"),
         "line 12: sum over seq: a token would see those behind it"},
        {FRAME("  k = x{seq as key}\\n  x = x + mean(k, key) * x\\n"), "line 8: sum over key"},
        {FRAME("  k = layernorm(x @ x{seq as key})\\n  x = x + mean(k, key) * x\\n"),
         "line 7: norm over key"},
        {FRAME("  x = x * mean(x{seq as from} @ mix[from = seq, seq], embed)\\n"),
         "line 7: matmul over from, which has not been through causal()"},
        {FRAME("  k = x{seq as a}\\n  j = x{seq as b}\\n  x = x + mean(k @ j, a, b) * x\\n"),
         "line 9: a number for each pair of keys"},
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

// ---- random texts ------------------------------------------------------------------------------

static void random_programs_that_are_accepted_are_equal(void **state)
{
    const int most = how_many(60, 60);
    int accepted = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 300 && accepted < most; seed++) {
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
    assert_int_equal(accepted, most);
}

int main(void)
{
    const struct CMUnitTest on_a_device[] = {
        cmocka_unit_test(every_call_gives_the_logits_of_a_whole_forward_pass),
        cmocka_unit_test(in_bf16_too),
        cmocka_unit_test(attention_that_is_written_out_has_caches_too),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_gives_the_logits_of_a_whole_forward_pass),
        cmocka_unit_test(in_bf16_too),
        cmocka_unit_test(bf16_has_caches_of_its_own_rows),
        cmocka_unit_test(a_window_makes_a_ring_of_it_and_a_call),
        cmocka_unit_test(no_kernel_may_take_a_ring_for_keys_in_order),
        cmocka_unit_test(products_of_experts_know_how_many_rows_they_have),
        cmocka_unit_test(attention_that_is_written_out_has_caches_too),
        cmocka_unit_test(what_has_no_caches_is_refused_by_its_line),
        cmocka_unit_test(random_programs_that_are_accepted_are_equal),
    };
    return rig_is_cuda() ? cmocka_run_group_tests(on_a_device, NULL, NULL)
                         : cmocka_run_group_tests(tests, NULL, NULL);
}
