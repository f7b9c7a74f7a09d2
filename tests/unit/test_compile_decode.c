// SPDX-License-Identifier: Apache-2.0
// Decoding with cached keys: whatever tokens a call computes of each text, its logits are those of a
// forward pass over the whole text; and what cannot have caches is refused by its line.
#include "tests/ops/rig.h"
#include "tests/support/random_text.h"
#include "tests/unit/compile_case.h"
#include "worker/rank/exec/exec.h"

enum { SEQ = 16, VOCAB = 21, PADDED = 24, TEXTS = 3, CALLS = 16 };

static const char *const models[] = {
    "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: gpt3, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: llama, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 24, theta: 50",
    "program: llama2, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, theta: 50",
    "program: qwen2, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, theta: 50",
    "program: qwen3, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, theta: 50",
    "program: palm, embed: 24, heads: 4, head_dim: 6, mlp: 24, theta: 50",
    "program: cookbook, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: starter, embed: 24, heads: 4",
    "program: nanochat, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24",
    "program: mistral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, window: 5",
    "program: mistral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, window: 1",
    "program: gemma2, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, query: 6, mlp: 24, window: 4",
};
enum { MODELS = sizeof models / sizeof *models };

static const char *job_text(const char *model, const char *more)
{
    static char text[4000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {%s}\nmesh: {dp: 1}\n"
             "data: {format: tokens, tokenizer: ids, train: {tokens: t}, batch: %d}\n"
             "train: {steps: 3, seed: 5}\n%s",
             model, TEXTS, more);
    return text;
}

static const char *sized(const char *model)
{
    static char text[1000];
    int n = snprintf(text, sizeof text, "%s, layers: 2, seq: %d, vocab: %d", model, SEQ, VOCAB);
    if (!strstr(model, "starter"))
        snprintf(text + n, sizeof text - (size_t)n, ", vocab_multiple: %d", PADDED);
    return text;
}

static int compile_only(struct fixture *f, const char *job, enum program_kind only, int64_t rows,
                        int64_t context)
{
    const struct compile_options o = {.only = only, .rows = rows, .context = context};
    parse_with(f, job, NULL, 0);
    return plan_compile(&f->job, &o, &f->a, &f->c, NULL, &f->e);
}

static void must_compile(struct fixture *f, const char *job, enum program_kind only, int64_t rows,
                         int64_t context)
{
    if (compile_only(f, job, only, rows, context))
        fail_msg("%s: %s", job, f->e.text);
}

// ---- texts, and what their whole forward pass gives --------------------------------------------

struct texts {
    int seq, vocab, padded;
    int32_t ids[TEXTS][64];
    int n[TEXTS]; // tokens that a text has got
    struct interp whole;
    struct rand_site site;
    uint64_t asked;
};

static int draw(struct texts *t, int below)
{
    return (int)((double)rand_uniform(&t->site, t->asked++) * below);
}

static void begin_text(struct texts *t, int k)
{
    t->n[k] = 0;
    for (int i = 0; i < t->seq; i++)
        t->ids[k][i] = draw(t, t->vocab);
}

// The logits that follow each text, of the sample program, whose interpreter is open.
static double *find_whole(struct texts *t)
{
    double *tokens = calloc((size_t)(TEXTS * t->seq), sizeof *tokens);
    double *positions = calloc((size_t)(TEXTS * t->seq), sizeof *positions), last[TEXTS];
    for (int i = 0; i < TEXTS * t->seq; i++) {
        int k = i / t->seq, at = i % t->seq;
        tokens[i] = at < t->n[k] ? t->ids[k][at] : (at * 5 + k) % t->vocab;
        positions[i] = at;
        last[k] = t->n[k] ? t->n[k] - 1 : 0;
    }
    interp_feed(&t->whole, "sample/tokens", tokens, 0);
    interp_feed(&t->whole, "sample/positions", positions, 0);
    interp_feed(&t->whole, "sample/last", last, 0);
    interp_phase(&t->whole, PHASE_FORWARD, 0);
    interp_phase(&t->whole, PHASE_UPDATE, 0);
    free(tokens);
    free(positions);
    return interp_get(&t->whole, "metrics");
}

// ---- a machine that decodes --------------------------------------------------------------------

// By the interpreter, in double precision, or by a rank's executor on the CPU.
struct machine {
    const struct compiled *c;
    bool runs;           // on the CPU
    struct interp of[2]; // FILL and STEP; they share the caches
    struct exec *exec;
    struct device *device;
    const struct backend *backend;
    double tolerance;
};

static void fail_if(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->text);
}

static void put(struct machine *m, enum program_kind kind, const char *name, const double *from,
                int64_t n)
{
    struct err e = {0};
    void *device = NULL;
    const struct buffer *b = exec_buffer(m->exec, kind, name, &device);
    assert_non_null(b);
    void *host = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        if (b->dtype == DT_I32)
            ((int32_t *)host)[i] = (int32_t)from[i];
        else
            ((float *)host)[i] = (float)from[i];
    fail_if(exec_put(m->exec, device, host, (size_t)n * 4, &e), &e);
    free(host);
}

// Caches hold anything but what is no number: rows that a text before left there.
static void put_junk(struct machine *m)
{
    const struct graph *g = m->of[0].g;
    for (int v = 0; v < g->nvalues; v++) {
        if (g->values[v].kind != VALUE_CACHE)
            continue;
        int64_t n = shape_count(&g->values[v].shape);
        double *junk = malloc(sizeof *junk * (size_t)n);
        for (int64_t i = 0; i < n; i++)
            junk[i] = (double)((i * 7 + v) % 23) - 11;
        for (int k = 0; k < 2; k++)
            interp_set(&m->of[k], g->values[v].name, junk);
        if (m->runs)
            put(m, PROGRAM_FILL, g->values[v].name, junk, n);
        free(junk);
    }
}

static void machine_open(struct machine *m, const struct compiled *c, bool runs,
                         void (*set)(struct interp *x))
{
    struct err e = {0};
    *m = (struct machine){.c = c, .runs = runs, .tolerance = runs ? 1e-5 : 1e-10};
    for (int k = 0; k < 2; k++) {
        interp_init(&m->of[k], c->program[PROGRAM_FILL + k]->graph, &c->mesh, 1);
        set(&m->of[k]);
    }
    if (runs) {
        rig_find_backend();
        fail_if(backend_load("cpu", &m->backend, &e), &e);
        const struct device_options d = {.threads = 2};
        fail_if(m->backend->device.open(&d, &m->device, &e), &e);
        const struct exec_options o = {.compiled = c, .backend = m->backend, .device = m->device};
        fail_if(exec_open(&o, &m->exec, &e), &e);
        for (int v = 0; v < m->of[0].g->nvalues; v++) {
            const struct value *val = &m->of[0].g->values[v];
            if (val->kind == VALUE_PARAM)
                put(m, PROGRAM_FILL, val->name, m->of[0].value[v], shape_count(&val->shape));
        }
        fail_if(exec_copies(m->exec, &e), &e);
    }
    put_junk(m);
}

static void machine_close(struct machine *m)
{
    exec_close(m->exec);
    if (m->device)
        m->backend->device.close(m->device);
    for (int k = 0; k < 2; k++)
        interp_clear(&m->of[k]);
}

static void share_caches(struct machine *m, int from)
{
    const struct graph *g = m->of[from].g;
    for (int v = 0; v < g->nvalues; v++) {
        if (g->values[v].kind != VALUE_CACHE)
            continue;
        double *rows = interp_get(&m->of[from], g->values[v].name);
        interp_set(&m->of[1 - from], g->values[v].name, rows);
        free(rows);
    }
}

static double *machine_call(struct machine *m, enum program_kind kind, const double *tokens,
                            const double *positions, const double *last, int64_t rows, int padded)
{
    const char *of = program_name(kind);
    const double *what[] = {tokens, positions, last};
    static const char *const names[] = {"tokens", "positions", "last"};
    struct interp *x = &m->of[kind - PROGRAM_FILL];
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s/%s", of, names[i]);
        if (m->runs)
            put(m, kind, name, what[i], i == 2 ? TEXTS : TEXTS * rows);
        else
            interp_feed(x, name, what[i], 0);
    }
    if (!m->runs) {
        interp_phase(x, PHASE_FORWARD, 0);
        interp_phase(x, PHASE_UPDATE, 0);
        share_caches(m, kind - PROGRAM_FILL);
        return interp_get(x, "metrics");
    }
    void *device = NULL;
    float *host = calloc((size_t)(TEXTS * padded), sizeof *host);
    double *out = calloc((size_t)(TEXTS * padded), sizeof *out);
    exec_buffer(m->exec, kind, "metrics", &device);
    fail_if(exec_run(m->exec, kind, &e), &e);
    fail_if(exec_get(m->exec, host, device, sizeof *host * (size_t)(TEXTS * padded), &e), &e);
    for (int i = 0; i < TEXTS * padded; i++)
        out[i] = (double)host[i];
    free(host);
    return out;
}

// ---- traffic -----------------------------------------------------------------------------------

static void check_logits(const struct texts *t, const int *counts, const double *got,
                         const double *want, double tolerance, const char *what)
{
    double most = 1;
    for (int i = 0; i < TEXTS * t->padded; i++)
        most = counts[i / t->padded] && fabs(want[i]) > most ? fabs(want[i]) : most;
    for (int k = 0; k < TEXTS; k++)
        for (int v = 0; v < t->vocab && counts[k]; v++) {
            double a = want[k * t->padded + v], b = got[k * t->padded + v];
            if (!(fabs(a - b) <= tolerance * most))
                fail_msg("%s: text %d of %d tokens, the last %d new, id %d: %.9g, not %.9g", what,
                         k, t->n[k], counts[k], v, b, a);
        }
}

// One call: of each text as many tokens as `counts` says. What lies behind them is junk.
static void call(struct machine *m, struct texts *t, enum program_kind kind, const int *counts,
                 const char *what)
{
    const int64_t rows = kind == PROGRAM_STEP ? 1 : m->c->rows;
    double *tokens = calloc((size_t)(TEXTS * rows), sizeof *tokens);
    double *positions = calloc((size_t)(TEXTS * rows), sizeof *positions), last[TEXTS];
    for (int k = 0; k < TEXTS; k++) {
        for (int64_t i = 0; i < rows; i++) {
            tokens[k * rows + i] = i < counts[k] ? t->ids[k][t->n[k] + i] : draw(t, t->vocab);
            positions[k * rows + i] = t->n[k] + (double)i;
        }
        t->n[k] += counts[k];
        last[k] = t->n[k] - 1;
    }
    double *got = machine_call(m, kind, tokens, positions, last, rows, t->padded);
    double *want = find_whole(t);
    check_logits(t, counts, got, want, m->tolerance, what);
    free(got);
    free(want);
    free(tokens);
    free(positions);
}

// Texts of any lengths fill, step, wait and begin once more, side by side.
static void run_traffic(struct machine *m, struct texts *t, const char *what)
{
    for (int k = 0; k < TEXTS; k++)
        begin_text(t, k);
    for (int i = 0; i < CALLS; i++) {
        const bool step = draw(t, 2);
        int counts[TEXTS];
        for (int k = 0; k < TEXTS; k++) {
            if (t->n[k] == (int)m->c->context || (t->n[k] && draw(t, 8) == 0))
                begin_text(t, k);
            const int left = (int)m->c->context - t->n[k];
            int most = step ? 1 : (int)m->c->rows;
            most = most < left ? most : left;
            counts[k] = i ? draw(t, most + 1) : most;
            if (counts[k] && draw(t, 3) == 0)
                counts[k] = most;
        }
        call(m, t, step ? PROGRAM_STEP : PROGRAM_FILL, counts, what);
    }
}

static void texts_open(struct texts *t, const struct compiled *c, uint64_t seed,
                       void (*set)(struct interp *x))
{
    const struct graph *g = c->global[PROGRAM_SAMPLE];
    *t = (struct texts){.site = {.seed = seed, .stream = 9}};
    interp_init(&t->whole, g, NULL, 1);
    set(&t->whole);
    const int tokens = interp_find(&t->whole, "sample/tokens");
    t->seq = (int)g->values[tokens].shape.dim[1];
    t->padded = (int)g->values[g->loss].shape.dim[1];
    t->vocab = (int)g->values[g->loss].limit[1] ? (int)g->values[g->loss].limit[1] : VOCAB;
    PRE(t->seq <= 64);
}

static void check_model(const char *job, int64_t rows, int64_t context, bool runs, uint64_t seed,
                        void (*set)(struct interp *x))
{
    struct fixture whole, cached;
    struct machine m;
    struct texts t;
    char what[200];
    must_compile(&whole, job, PROGRAM_SAMPLE, 0, 0);
    must_compile(&cached, job, PROGRAM_FILL, rows, context);
    texts_open(&t, &whole.c, seed, set);
    machine_open(&m, &cached.c, runs, set);
    snprintf(what, sizeof what, "%.90s by %lld of %lld %s", strstr(job, "model: "), (long long)rows,
             (long long)context, runs ? "on the CPU" : "interpreted");
    run_traffic(&m, &t, what);
    interp_clear(&t.whole);
    machine_close(&m);
    fixture_clear(&whole);
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
