// SPDX-License-Identifier: Apache-2.0
// For tests of experts: a small decoder with latent attention and a mixture of experts in every
// second layer, built op by op. Sizes are such that cuts of 2, 3, 4 and 6 divide what they should.
#pragma once
#include <math.h>

#include "common/compile/graph/build.h"
#include "common/compile/graph/experts.h"
#include "common/compile/program/program.h"
#include "common/job/job.h"
#include "common/model/draws.h"
#include "common/model/loss.h"

enum { BATCH = 12, SEQ = 12, VOCAB = 21, EMBED = 12, HEADS = 6, MLP = 24, LATENT = 5 };

// What the job's file has no keys for.
struct moe {
    int64_t experts, choices, shared, group; // shared: of how many experts' width; 0: none
    double factor;                           // of the capacity; 0: nothing is dropped
    double dropout, balance;
    int layers;
    double rate; // of the bias that balances the experts; 0: none
};
static const struct moe usual = {6, 2, 1, 1, 1.5, 0, 0.01, 2, 0};
static struct moe moe; // what the next compile builds

struct moe_build {
    struct graph *g;
    int64_t batch, step_batch;
    int positions;
    bool training;
    struct draws draws;
    const char *at; // "layers/3"
    int balance;    // sum of the loss
};

// x with its first two dimensions in the other order.
static inline int swap_experts(struct graph *g, int x)
{
    struct value v = g->values[x];
    const enum dim dims[] = {v.dims[1], v.dims[0], v.dims[2], v.dims[3]};
    const struct op_attr attr = {.scale = 1};
    return graph_op(
        g,
        &(struct op_args){
            .op = OP_SCALE, .nin = 1, .in = &x, .nout_dims = 4, .out_dims = dims, .attr = &attr});
}

#define MOE_PATH(...) arena_printf(b->g->arena, __VA_ARGS__)

static inline int64_t moe_size(enum dim d)
{
    static const int64_t sizes[] = {[DIM_EMBED] = EMBED, [DIM_MLP] = MLP,
                                    [DIM_HEADS] = HEADS, [DIM_HEAD_DIM] = EMBED / HEADS,
                                    [DIM_VOCAB] = 24,    [DIM_LATENT] = LATENT,
                                    [DIM_QKV] = 2,       [DIM_NORM] = EMBED};
    return d == DIM_ROUTER || d == DIM_EXPERT ? moe.experts : sizes[d];
}

static inline int moe_param(struct moe_build *b, const char *name, int n, const enum dim *dims,
                            int64_t wider)
{
    int64_t sizes[MAX_DIMS];
    for (int d = 0; d < n; d++)
        sizes[d] = moe_size(dims[d]) * (dims[d] == DIM_MLP ? wider : 1);
    return graph_param(b->g, MOE_PATH("%s%s%s", b->at, b->at[0] ? "/" : "", name), n, dims, sizes,
                       INIT_NORMAL, 0.1f);
}

// x · NAME/weight + NAME/bias. The weight has `nw` dimensions, the output `no`, the bias those that
// the weight brings.
static inline int moe_linear(struct moe_build *b, int x, const char *name, int nw,
                             const enum dim *weight, int no, const enum dim *out, int nb,
                             const enum dim *bias, int64_t wider)
{
    int w = moe_param(b, MOE_PATH("%s/weight", name), nw, weight, wider);
    int y = graph_matmul(b->g, x, w, no, out);
    int v = moe_param(b, MOE_PATH("%s/bias", name), nb, bias, wider);
    return add(b->g, y, v);
}
#define DIMS(...)                                                           \
    (int)(sizeof(enum dim[]){__VA_ARGS__} / sizeof(enum dim)), (enum dim[]) \
    {                                                                       \
        __VA_ARGS__                                                         \
    }

static inline int moe_norm(struct moe_build *b, int x, const char *name)
{
    struct op_attr attr = {.eps = 1e-6f};
    int in[3] = {x, moe_param(b, MOE_PATH("%s/weight", name), DIMS(DIM_NORM), 1),
                 moe_param(b, MOE_PATH("%s/bias", name), DIMS(DIM_NORM), 1)};
    graph_at(b->g, POINT_SEQ);
    return graph_shaped(b->g, OP_NORM, 3, in, x, &attr, DT_NONE);
}

static inline int moe_split(struct moe_build *b, int x, enum dim last, enum dim before)
{
    enum dim out[] = {DIM_BATCH, DIM_SEQ, before, last};
    if (before == DIM_NONE)
        out[2] = last;
    return graph_op(b->g, &(struct op_args){.op = OP_SPLIT,
                                            .nin = 1,
                                            .in = &x,
                                            .nout_dims = before == DIM_NONE ? 3 : 4,
                                            .out_dims = out,
                                            .nout = 2});
}

// Of the last layer of a block: keys and values of one latent, queries of another.
static inline int moe_attention(struct moe_build *b, int x)
{
    graph_at(b->g, POINT_LATENT);
    int low =
        moe_linear(b, x, "attn/down", DIMS(DIM_QKV, DIM_EMBED, DIM_LATENT),
                   DIMS(DIM_QKV, DIM_BATCH, DIM_SEQ, DIM_LATENT), DIMS(DIM_QKV, DIM_LATENT), 1);
    graph_at(b->g, POINT_ATT);
    low = moe_split(b, low, DIM_LATENT, DIM_NONE);
    int kv = moe_linear(b, low, "attn/kv", DIMS(DIM_QKV, DIM_LATENT, DIM_HEADS, DIM_HEAD_DIM),
                        DIMS(DIM_QKV, DIM_BATCH, DIM_SEQ, DIM_HEADS, DIM_HEAD_DIM),
                        DIMS(DIM_QKV, DIM_HEADS, DIM_HEAD_DIM), 1);
    kv = moe_split(b, kv, DIM_HEAD_DIM, DIM_HEADS);
    int q = moe_linear(b, low + 1, "attn/q", DIMS(DIM_LATENT, DIM_HEADS, DIM_HEAD_DIM),
                       DIMS(DIM_BATCH, DIM_SEQ, DIM_HEADS, DIM_HEAD_DIM),
                       DIMS(DIM_HEADS, DIM_HEAD_DIM), 1);
    struct op_attr attr = {.scale = 1 / sqrtf((float)EMBED / HEADS), .group = 1, .in_order = true};
    int y = attention(b->g, 5, (int[]){q, kv, kv + 1, b->positions, b->positions}, &attr);
    graph_at(b->g, POINT_SEQ);
    return moe_linear(b, y, "attn/out", DIMS(DIM_HEADS, DIM_HEAD_DIM, DIM_EMBED),
                      DIMS(DIM_BATCH, DIM_SEQ, DIM_EMBED), DIMS(DIM_NORM), 1);
}

static inline int moe_ffn(struct moe_build *b, int x, const char *name, int64_t wider)
{
    graph_at(b->g, POINT_HIDDEN);
    int h = moe_linear(b, x, MOE_PATH("%s/in", name), DIMS(DIM_EMBED, DIM_MLP),
                       DIMS(DIM_BATCH, DIM_SEQ, DIM_MLP), DIMS(DIM_MLP), wider);
    h = apply(b->g, OP_GELU, h);
    graph_at(b->g, POINT_SEQ);
    return moe_linear(b, h, MOE_PATH("%s/out", name), DIMS(DIM_MLP, DIM_EMBED),
                      DIMS(DIM_BATCH, DIM_SEQ, DIM_EMBED), DIMS(DIM_NORM), wider);
}

// α·E/(k·T²·G·samples of the step)·Σ (s / Σ s)·chosen, a term of the loss.
static inline void moe_balance(struct moe_build *b, int s, int chosen)
{
    struct graph *g = b->g;
    int total = sum(g, s, DIMS(DIM_BATCH, DIM_SEQ), 1, DT_NONE);
    int share = graph_like(g, OP_DIV, 2, (int[]){s, total}, s);
    int part = mul(g, share, chosen);
    double by = moe.balance * (double)moe.experts / (double)moe.choices / SEQ / SEQ /
                (double)moe.group / (double)b->step_batch;
    graph_at(g, POINT_NONE);
    part = sum(g, part, 0, NULL, (float)by, DT_NONE);
    if (g->failed)
        return;
    if (g->loss < 0)
        g->loss = graph_sum(g, "loss", -1, part);
    graph_contribute(g, g->loss, part);
}

static inline int moe_experts(struct moe_build *b, int y)
{
    struct graph *g = b->g;
    int ids, chosen;
    graph_at(g, POINT_SEQ);
    int s = moe_linear(b, cast(g, y, DT_F32), "moe/router", DIMS(DIM_EMBED, DIM_ROUTER),
                       DIMS(DIM_BATCH, DIM_SEQ, DIM_ROUTER), DIMS(DIM_ROUTER), 1);
    s = apply(g, OP_SIGMOID, s);
    int bias = -1, by = -1;
    if (moe.rate > 0) {
        bias = moe_param(b, "moe/bias", DIMS(DIM_ROUTER), 1);
        by = add(g, s, bias);
    }
    int w = experts_top(g, s, by, moe.choices, &ids);
    int total = sum(g, w, DIMS(DIM_BATCH, DIM_SEQ), 1, DT_NONE);
    w = graph_like(g, OP_DIV, 2, (int[]){w, total}, w);
    struct experts_dealing how = {
        moe.group, moe.experts,
        experts_capacity(moe.group * SEQ, moe.experts, b->training ? moe.factor : 0), DIM_ROUTER};
    int slot = experts_slots(g, &how, ids, w, b->positions, &chosen);
    moe_balance(b, s, chosen);
    graph_at(g, POINT_NONE);
    int load = sum(g, chosen, DIMS(DIM_ROUTER), 1 / (float)moe.group, DT_NONE);
    int part = graph_report(g, "chosen", load);
    if (bias >= 0)
        graph_balance(g, bias, part, (float)moe.rate);
    graph_at(g, POINT_SLOTS);
    int e = experts_dispatch(g, y, slot);
    graph_at(g, POINT_EXPERT);
    e = swap_experts(g, e);
    graph_at(g, POINT_EXPERT_HIDDEN);
    int h = moe_linear(b, e, "moe/in", DIMS(DIM_EXPERT, DIM_EMBED, DIM_MLP),
                       DIMS(DIM_EXPERT, DIM_GROUP, DIM_CAPACITY, DIM_MLP),
                       DIMS(DIM_EXPERT, DIM_MLP), 1);
    h = apply(g, OP_GELU, h);
    graph_at(g, POINT_EXPERT);
    int o = moe_linear(b, h, "moe/out", DIMS(DIM_EXPERT, DIM_MLP, DIM_EMBED),
                       DIMS(DIM_EXPERT, DIM_GROUP, DIM_CAPACITY, DIM_EMBED),
                       DIMS(DIM_EXPERT, DIM_EMBED), 1);
    o = draws_dropout(&b->draws, o, -1, MOE_PATH("%s/moe/dropout", b->at), moe.dropout);
    graph_at(g, POINT_SLOTS);
    o = swap_experts(g, o);
    graph_at(g, POINT_SEQ);
    int x = experts_combine(g, o, slot, w);
    return moe.shared ? add(g, x, moe_ffn(b, y, "moe/shared", moe.shared)) : x;
}

static inline int moe_layer(struct moe_build *b, int x, int n)
{
    struct graph *g = b->g;
    graph_scope(g, "layers/%d", n);
    graph_layer(g, n);
    b->at = MOE_PATH("layers/%d", n);
    int y = moe_norm(b, x, "norm1");
    x = add(g, x, moe_attention(b, y));
    y = moe_norm(b, x, "norm2");
    return add(g, x, n % 2 ? moe_experts(b, y) : moe_ffn(b, y, "mlp", 1));
}
