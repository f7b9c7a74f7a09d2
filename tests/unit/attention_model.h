// SPDX-License-Identifier: Apache-2.0
// For tests of attention: a small decoder of four layers, each with another kind of attention, built
// op by op. Sizes are such that cuts of 2, 3, 4, 6 and 8 divide what they should.
//
//   layer  keys seen               scores                              values
//   0      a window of 7           a cap; keys turn as Llama 3's       as wide as keys, 2 key heads
//   1      those not after         a second pair in one sweep          narrower
//   2      a window to both sides  keys turn as with YaRN, by pairs    wider, 4 key heads
//   3      a window of 15          a cap, a second pair, dropout       narrower, 2 key heads
#pragma once
#include "common/compile/graph/build.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"
#include "common/model/draws.h"
#include "common/model/loss.h"
#include "tests/support/mean_loss.h"

struct attention_layer {
    struct op_attr attr;
    struct op_rotary turn; // of q and k; theta 0: none
    int64_t kv_heads, width;
    bool pair;
    double dropout;
};
static const struct attention_layer attention_layers[] = {
    {.attr = {.window = 7, .cap = 1.5f},
     .turn =
         {.theta = 50, .scaling = ROTARY_LLAMA3, .factor = 4, .slow = 1, .fast = 3, .length = 16},
     .kv_heads = 2,
     .width = 4,
     .dropout = 0.1},
    {.attr = {.cap = 0}, .kv_heads = 8, .width = 3, .pair = true},
    {.attr = {.window = 5, .ahead = true},
     .turn = {.theta = 50,
              .scaling = ROTARY_YARN,
              .factor = 4,
              .slow = 1,
              .fast = 3,
              .length = 16,
              .pairs = true,
              .gain = 1.1f},
     .kv_heads = 4,
     .width = 6},
    {.attr = {.window = 15, .cap = 2}, .kv_heads = 2, .width = 3, .pair = true, .dropout = 0.2},
};

struct attention_build {
    struct graph *g;
    int n; // layer
    int positions;
    struct draws draws;
    enum dim rotary, width;
};

static inline int64_t attention_size(const struct attention_build *b, enum dim d)
{
    const struct attention_layer *l = &attention_layers[b->n];
    static const int64_t sizes[DIM_KNOWN] = {
        [DIM_EMBED] = 24, [DIM_HEADS] = 8, [DIM_HEAD_DIM] = 4, [DIM_VOCAB] = 24};
    return d == b->rotary      ? 6
           : d == b->width     ? l->width
           : d == DIM_KV_HEADS ? l->kv_heads
                               : sizes[d];
}

// x · layers/N/NAME [embed, dims ..] at the point of attention.
static inline int attention_linear(struct attention_build *b, int x, const char *name, int n,
                                   const enum dim *dims)
{
    enum dim weight[4] = {DIM_EMBED}, out[4] = {DIM_BATCH, DIM_SEQ};
    int64_t sizes[4] = {attention_size(b, DIM_EMBED)};
    for (int d = 0; d < n; d++) {
        weight[1 + d] = out[2 + d] = dims[d];
        sizes[1 + d] = attention_size(b, dims[d]);
    }
    int w = graph_param(b->g, arena_printf(b->g->arena, "layers/%d/%s", b->n, name), n + 1, weight,
                        sizes, INIT_NORMAL, 0.3f);
    return graph_matmul(b->g, x, w, n + 2, out);
}

static inline int attention_turn(struct attention_build *b, int x, const struct op_rotary *turn)
{
    struct op_attr attr = {.scale = 1, .rotary = *turn};
    return graph_shaped(b->g, OP_ROTARY, 2, (int[]){x, b->positions}, x, &attr, DT_NONE);
}

static inline int attention_norm(struct attention_build *b, int x)
{
    struct op_attr attr = {.eps = 1e-5f};
    graph_at(b->g, POINT_SEQ);
    return graph_shaped(b->g, OP_NORM, 1, &x, x, &attr, DT_NONE);
}

static inline int attention_layer(struct attention_build *b, int residual)
{
    static const struct op_rotary key = {.theta = 50, .pairs = true, .offset = 1};
    static const struct op_rotary sweep = {.theta = 50, .pairs = true, .offset = 1, .sweep = true};
    const struct attention_layer *l = &attention_layers[b->n];
    struct op_attr attr = l->attr;
    int in[8], n = 3;
    graph_scope(b->g, "layers/%d", b->n);
    graph_layer(b->g, b->n);
    int x = attention_norm(b, residual);
    graph_at(b->g, POINT_ATT);
    in[0] = attention_linear(b, x, "q", 2, (enum dim[]){DIM_HEADS, DIM_HEAD_DIM});
    in[1] = attention_linear(b, x, "k", 2, (enum dim[]){DIM_KV_HEADS, DIM_HEAD_DIM});
    in[2] = attention_linear(b, x, "v", 2, (enum dim[]){DIM_KV_HEADS, b->width});
    for (int k = 0; k < 2 && l->turn.theta > 0; k++)
        in[k] = attention_turn(b, in[k], &l->turn);
    if (l->pair) {
        int qr = attention_linear(b, x, "qr", 2, (enum dim[]){DIM_HEADS, b->rotary});
        in[n++] = attention_turn(b, qr, &sweep);
        in[n++] = attention_turn(b, attention_linear(b, x, "kr", 1, &b->rotary), &key);
    }
    in[n++] = b->positions;
    in[n++] = b->positions;
    attr.scale = 0.2f;
    attr.group = 8 / l->kv_heads;
    attr.in_order = true;
    if (draws_drops(&b->draws, l->dropout)) {
        in[n++] = draws_step(&b->draws);
        attr.draw = draws_site(&b->draws, arena_printf(b->g->arena, "layers/%d", b->n), l->dropout);
    }
    int y = attention(b->g, n, in, &attr);
    graph_at(b->g, POINT_SEQ);
    const enum dim weight[] = {DIM_HEADS, b->width, DIM_EMBED};
    int out = graph_param(b->g, arena_printf(b->g->arena, "layers/%d/out", b->n), 3, weight,
                          (int64_t[]){8, l->width, 24}, INIT_NORMAL, 0.3f);
    return add(b->g, residual,
               graph_matmul(b->g, y, out, 3, (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_EMBED}));
}

static inline int attention_input(struct attention_build *b, const char *name, int64_t batch)
{
    graph_at(b->g, POINT_IDS);
    return graph_value(b->g, VALUE_INPUT, name, DT_I32, 2, (enum dim[]){DIM_BATCH, DIM_SEQ},
                       (int64_t[]){batch, 24});
}

static inline int attention_build(struct graph *g, const struct job *job, enum program_kind kind,
                                  int64_t batch, int64_t step_batch)
{
    struct attention_build b = {.g = g,
                                .draws = draws_init(g, job->train.seed, kind == PROGRAM_TRAIN),
                                .rotary = dims_id(g->dims, "rotary"),
                                .width = dims_id(g->dims, "width")};
    const enum dim table[] = {DIM_VOCAB, DIM_EMBED}, seq[] = {DIM_BATCH, DIM_SEQ, DIM_EMBED};
    graph_scope(g, "embed");
    int tokens = attention_input(&b, "tokens", batch);
    b.positions = attention_input(&b, "positions", batch);
    int in[2] = {tokens,
                 graph_param(g, "embed/tokens", 2, table, (int64_t[]){24, 24}, INIT_NORMAL, 0.3f)};
    graph_at(g, POINT_SEQ);
    int x = graph_op(
        g, &(struct op_args){.op = OP_EMBED, .nin = 2, .in = in, .nout_dims = 3, .out_dims = seq});
    for (b.n = 0; b.n < 4; b.n++)
        x = attention_layer(&b, x);
    graph_scope(g, "head");
    int targets = attention_input(&b, "targets", batch);
    x = attention_norm(&b, x);
    graph_at(g, POINT_LOGITS);
    int logits = graph_matmul(g, x, in[1], 3, (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_VOCAB});
    g->loss = mean_loss(g, "loss", loss_cross_entropy(g, logits, targets, 0), step_batch * 24);
    return g->failed;
}
