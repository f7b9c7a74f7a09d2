// SPDX-License-Identifier: Apache-2.0
// For tests of decoders: small ones whose every dimension any cut of up to 8 divides, a batch of
// tokens made by a formula, and a step of the f64 interpreter on it.
#pragma once
#include "common/compile/layout/zigzag.h"
#include "tests/unit/compare_values.h"
#include "tests/unit/compile_case.h"

enum { BATCH = 8, SEQ = 8, VOCAB = 21 }; // 21 ids in 24 rows

static const char *const models[] = {
    "program: gpt2, embed: 24, heads: 4, head_dim: 6, mlp: 24",
    "program: llama, embed: 24, heads: 8, kv_heads: 4, head_dim: 4, mlp: 24, theta: 50",
    "program: cookbook, embed: 24, heads: 4, head_dim: 6, mlp: 24",
};
enum { MODELS = 3 };

// `train`: what else the train section says, with a comma in front.
static inline const char *decoder_long(const char *model, int seq, const char *mesh,
                                       int microbatches, const char *sharding, const char *train)
{
    static char text[1000];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {%s, layers: 2, seq: %d, vocab: %d, vocab_multiple: 24}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: %d}\n"
             "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.5}\n"
             "schedule: {kind: constant, value: 0.01}\n"
             "sharding: {%s}\n"
             "train: {steps: 3, microbatches: %d, seed: 5%s}\n",
             model, seq, VOCAB, mesh, BATCH, sharding, microbatches, train);
    return text;
}

static inline const char *decoder_job(const char *model, const char *mesh, int microbatches,
                                      const char *sharding, const char *train)
{
    return decoder_long(model, SEQ, mesh, microbatches, sharding, train);
}

static inline const char *decoder_text(const char *model, const char *mesh, int microbatches,
                                       const char *sharding)
{
    return decoder_job(model, mesh, microbatches, sharding, "");
}

// A step's tokens, the same at each logical position, in the columns of an order.
static inline void feed_columns(struct interp *x, int microbatch, const struct zigzag *z)
{
    enum { LONGEST = 64 };
    double tokens[BATCH * LONGEST], targets[BATCH * LONGEST], positions[BATCH * LONGEST];
    struct rand_site site = {.seed = 11, .stream = 1};
    assert_true(z->seq <= LONGEST);
    for (int64_t i = 0; i < BATCH * z->seq; i++) {
        int64_t at = zigzag_position(z, i % z->seq), l = i / z->seq * z->seq + at;
        tokens[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)l));
        targets[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)(l + 1)));
        positions[i] = (double)at;
    }
    interp_feed(x, "tokens", tokens, microbatch);
    interp_feed(x, "targets", targets, microbatch);
    interp_feed(x, "positions", positions, microbatch);
}

static inline void feed_tokens(struct interp *x, int microbatch)
{
    feed_columns(x, microbatch, &(struct zigzag){SEQ, 1});
}

static inline void decoder_step_in(struct interp *x, const struct zigzag *z)
{
    const double hyper[HYPER_SLOTS] = {0.01, 1 / (1 - 0.9), 1 / (1 - 0.999)};
    const double control[CONTROL_SLOTS] = {0, 0}, one = 1;
    interp_set(x, "one", &one);
    interp_set(x, "hyper", hyper);
    interp_set(x, "control", control);
    for (int m = 0; m < x->microbatches; m++) {
        feed_columns(x, m, z);
        interp_phase(x, PHASE_FORWARD, m);
        interp_phase(x, PHASE_BACKWARD, m);
    }
    interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
}

static inline void decoder_step(struct interp *x)
{
    decoder_step_in(x, &(struct zigzag){SEQ, 1});
}

// Two forms of one model, `off` without what `on` is made with, make the same step.
static inline void expect_equal_steps(const struct fixture *off, const struct fixture *on,
                                      bool exact, const char *what)
{
    struct interp x[2];
    const struct fixture *f[] = {off, on};
    for (int i = 0; i < 2; i++) {
        const struct program *p = f[i]->c.program[PROGRAM_TRAIN];
        interp_init(&x[i], p->graph, &f[i]->c.mesh, 2);
        x[i].exact = exact;
        set_params(&x[i]);
        decoder_step_in(&x[i], &(struct zigzag){SEQ, on->c.program[PROGRAM_TRAIN]->zigzag.parts});
    }
    compare_to(&x[0], &x[1], 1e-12, what);
    compare(&x[0], &x[1], "metrics");
    for (int i = 0; i < 2; i++)
        interp_clear(&x[i]);
}
