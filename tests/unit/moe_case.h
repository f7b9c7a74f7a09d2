// SPDX-License-Identifier: Apache-2.0
// For tests of experts: jobs of the decoder of moe_model.h, a batch of tokens made by a formula, and
// steps of the f64 interpreter on it.
#pragma once
#include "common/compile/layout/zigzag.h"
#include "tests/unit/compile_case.h"
#include "tests/unit/moe_model.h"

static inline int moe_input(struct moe_build *b, const char *name)
{
    graph_at(b->g, POINT_IDS);
    return graph_value(b->g, VALUE_INPUT, name, DT_I32, DIMS(DIM_BATCH, DIM_SEQ),
                       (int64_t[]){b->batch, SEQ});
}

static inline int build_moe(struct graph *g, const struct job *job, enum program_kind kind,
                            int64_t batch, int64_t step_batch)
{
    bool training = kind == PROGRAM_TRAIN;
    struct moe_build m = {.g = g,
                          .batch = batch,
                          .step_batch = step_batch,
                          .training = training,
                          .draws = draws_init(g, job->train.seed, training),
                          .at = ""},
                     *b = &m;
    graph_scope(g, "embed");
    int tokens = moe_input(b, "tokens"), targets = moe_input(b, "targets");
    b->positions = moe_input(b, "positions");
    int table = moe_param(b, "embed/tokens", DIMS(DIM_VOCAB, DIM_EMBED), 1);
    graph_at(g, POINT_SEQ);
    int x = graph_op(g, &(struct op_args){.op = OP_EMBED,
                                          .nin = 2,
                                          .in = (int[]){tokens, table},
                                          .nout_dims = 3,
                                          .out_dims = (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_EMBED}});
    for (int n = 0; n < moe.layers; n++)
        x = moe_layer(b, x, n);
    graph_scope(g, "head");
    b->at = "";
    x = moe_norm(b, x, "norm");
    graph_at(g, POINT_LOGITS);
    int logits = graph_matmul(g, x, table, 3, (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_VOCAB});
    int rows = loss_cross_entropy(g, logits, targets, 0);
    graph_at(g, POINT_NONE);
    int part = sum(g, rows, 0, NULL, 1.0f / (float)(step_batch * SEQ), DT_NONE);
    if (g->failed)
        return g->failed;
    if (g->loss < 0)
        g->loss = graph_sum(g, "loss", -1, part);
    graph_contribute(g, g->loss, part);
    return g->failed;
}

// ---- jobs --------------------------------------------------------------------------------------

static inline const char *moe_text(const char *mesh, int microbatches, const char *sharding,
                                   const char *train)
{
    static char text[1200];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: gpt2, layers: %d, embed: 12, heads: 6, seq: %d, vocab: "
             "21, vocab_multiple: 24}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: %d}\n"
             "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.5}\n"
             "schedule: {kind: constant, value: 0.01}\n"
             "sharding: {%s}\n"
             "train: {steps: 3, microbatches: %d, seed: 5%s}\n",
             moe.layers, SEQ, mesh, BATCH, sharding, microbatches, train);
    return text;
}

// What the compiler says is returned.
static inline int compile_moe(struct fixture *f, const char *text)
{
    parse_with(f, text, NULL, 0);
    return explain_job(&f->job, build_moe, &(struct compile_options){0}, &f->a, &f->c, &f->found,
                       NULL, &f->e);
}

// A step's tokens, the same at each logical position, in the columns of an order. The first `equal`
// of each sample are one token: no positions are added, so what attends to them alone is equal.
static inline void feed_moe(struct interp *x, int microbatch, const struct zigzag *z, int equal)
{
    double tokens[BATCH * SEQ], targets[BATCH * SEQ], positions[BATCH * SEQ];
    struct rand_site site = {.seed = 11, .stream = 1};
    for (int64_t i = 0; i < BATCH * SEQ; i++) {
        int64_t at = zigzag_position(z, i % SEQ), l = i / SEQ * SEQ + (at < equal ? 0 : at);
        tokens[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)l));
        targets[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)(l + 1)));
        positions[i] = (double)at;
    }
    interp_feed(x, "tokens", tokens, microbatch);
    interp_feed(x, "targets", targets, microbatch);
    interp_feed(x, "positions", positions, microbatch);
}

static inline void step_moe(struct interp *x, const struct zigzag *z, int step, int equal)
{
    const double hyper[HYPER_SLOTS] = {0.01, 1 / (1 - 0.9), 1 / (1 - 0.999)};
    const double control[CONTROL_SLOTS] = {0, 0}, one = 1, count = step;
    interp_set(x, "one", &one);
    interp_set(x, "hyper", hyper);
    interp_set(x, "control", control);
    if (moe.dropout > 0)
        interp_set(x, "step", &count);
    for (int m = 0; m < x->microbatches; m++) {
        feed_moe(x, m, z, equal);
        interp_phase(x, PHASE_FORWARD, m);
        interp_phase(x, PHASE_BACKWARD, m);
    }
    interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
}
