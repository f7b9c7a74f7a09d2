// SPDX-License-Identifier: Apache-2.0
// Models, and texts that are decoded with cached keys: of a batch they fill, step, wait and begin once
// more, side by side, as a seed draws it. What the logits of each call are to be comes of a forward pass
// over each whole text, on one device in double precision.
#pragma once
#include "tests/unit/compile_case.h"

enum { SEQ = 16, VOCAB = 21, PADDED = 24, TEXTS = 3, TEXTS_MAX = 12, CALLS = 16 };

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
    "program: mixtral, embed: 24, heads: 4, kv_heads: 2, head_dim: 6, mlp: 24, experts: 4",
    "program: deepseek-v2-lite, embed: 24, heads: 4, head_dim: 6, rotary: 4, value: 4, latent: 12, "
    "mlp: 24, narrow: 8, experts: 6, choices: 3",
    "program: jaxformer, embed: 24, heads: 4",
};
enum { MODELS = sizeof models / sizeof *models };

static const char *job_on(const char *model, const char *mesh, int batch, const char *more)
{
    static char text[4000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {%s}\nmesh: {%s}\n"
             "data: {format: tokens, tokenizer: ids, train: {tokens: t}, batch: %d}\n"
             "train: {steps: 3, seed: 5}\n%s",
             model, mesh, batch, more);
    return text;
}

static const char *sized(const char *model)
{
    static char text[1000];
    const char *layers =
        strstr(model, "jaxformer") ? "blocks: 1, layers_per_block: 2" : "layers: 2";
    int n = snprintf(text, sizeof text, "%s, %s, seq: %d, vocab: %d", model, layers, SEQ, VOCAB);
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

// Small parameters, and zeros where they are padded: random texts are steep.
static inline void set_small(struct interp *x)
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

// ---- texts, and what their whole forward pass gives --------------------------------------------

struct texts {
    int rows, seq, vocab, padded;
    int32_t ids[TEXTS_MAX][64];
    int n[TEXTS_MAX]; // tokens that a text has got
    struct interp whole;
    struct rand_site site;
    uint64_t asked;
};

// A call of a program: its inputs, of each text how many tokens they have that count, and the logits
// that follow.
struct decode_call {
    enum program_kind kind;
    double *tokens, *positions, last[TEXTS_MAX], *want, *got;
    int counts[TEXTS_MAX], n[TEXTS_MAX];
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

// Parameters, and the number that constants are made of.
static void fill_in(struct interp *x, void (*set)(struct interp *x))
{
    const double one = 1;
    set(x);
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].name && strcmp(x->g->values[v].name, "one") == 0)
            interp_set(x, "one", &one);
}

// `c` is of the sample program, on one device.
static void texts_open(struct texts *t, const struct compiled *c, uint64_t seed,
                       void (*set)(struct interp *x))
{
    const struct graph *g = c->global[PROGRAM_SAMPLE];
    *t = (struct texts){.site = {.seed = seed, .stream = 9}};
    interp_init(&t->whole, g, NULL, 1);
    fill_in(&t->whole, set);
    const struct value *tokens = &g->values[interp_find(&t->whole, "sample/tokens")];
    t->rows = (int)tokens->shape.dim[0];
    t->seq = (int)tokens->shape.dim[1];
    t->padded = (int)g->values[g->loss].shape.dim[1];
    t->vocab = (int)g->values[g->loss].limit[1] ? (int)g->values[g->loss].limit[1] : VOCAB;
    PRE(t->seq <= 64 && t->rows <= TEXTS_MAX);
    for (int k = 0; k < t->rows; k++)
        begin_text(t, k);
}

// The logits that follow each text.
static double *find_whole(struct texts *t)
{
    double *tokens = calloc((size_t)(t->rows * t->seq), sizeof *tokens);
    double *positions = calloc((size_t)(t->rows * t->seq), sizeof *positions), last[TEXTS_MAX];
    for (int i = 0; i < t->rows * t->seq; i++) {
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

// Of each text as many tokens as `counts` says; what lies behind them is junk.
static void make_call(struct texts *t, struct decode_call *c, int64_t rows)
{
    PRE(t->rows > 0 && t->padded > 0 && rows > 0);
    c->tokens = calloc((size_t)(t->rows * rows), sizeof *c->tokens);
    c->positions = calloc((size_t)(t->rows * rows), sizeof *c->positions);
    c->got = calloc((size_t)(t->rows * t->padded), sizeof *c->got);
    for (int k = 0; k < t->rows; k++) {
        for (int64_t i = 0; i < rows; i++) {
            c->tokens[k * rows + i] = i < c->counts[k] ? t->ids[k][t->n[k] + i] : draw(t, t->vocab);
            c->positions[k * rows + i] = t->n[k] + (double)i;
        }
        t->n[k] += c->counts[k];
        c->n[k] = t->n[k];
        c->last[k] = t->n[k] - 1;
    }
    c->want = find_whole(t);
}

static void draw_calls(struct texts *t, struct decode_call *calls, int64_t rows, int64_t context)
{
    for (int i = 0; i < CALLS; i++) {
        struct decode_call *c = &calls[i];
        *c = (struct decode_call){.kind = draw(t, 2) ? PROGRAM_STEP : PROGRAM_FILL};
        const int each = c->kind == PROGRAM_STEP ? 1 : (int)rows;
        for (int k = 0; k < t->rows; k++) {
            if (t->n[k] == (int)context || (t->n[k] && draw(t, 8) == 0))
                begin_text(t, k);
            const int left = (int)context - t->n[k], most = each < left ? each : left;
            c->counts[k] = i ? draw(t, most + 1) : most;
            if (c->counts[k] && draw(t, 3) == 0)
                c->counts[k] = most;
        }
        make_call(t, c, each);
    }
}

static void free_calls(struct decode_call *calls)
{
    for (int i = 0; i < CALLS; i++) {
        free(calls[i].tokens);
        free(calls[i].positions);
        free(calls[i].want);
        free(calls[i].got);
    }
}
