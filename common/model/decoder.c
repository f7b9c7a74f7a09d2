// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer that predicts the next token, in three families (job.h):
//   gpt2      learned positions; layer norm before each block; GELU; biases; head tied to the
//             embedding
//   llama     rotary positions; RMS norm before each block; SwiGLU; shared key heads; no biases
//   cookbook  of JAX's training cookbook: learned positions born zero; norms without parameters
//             after each residual sum; GELU; no biases
// Rows of the vocabulary are padded to model.vocab_multiple: born zero, outside the softmax.
// Training drops attention weights, what a block adds to the residual, and the embedding's output.
// For samples the same layers run over a window of model.seq tokens, and the head over the one
// position of each that comes next.
//
// Not here: keys and values kept from one token to the next.
#include <math.h>

#include "common/compile/graph/build.h"
#include "common/model/built_in.h"
#include "common/model/draws.h"
#include "common/model/loss.h"
#include "common/model/model.h"

#define PATH(...) arena_printf(d->g->arena, __VA_ARGS__)

static const float STD = 0.02f;

struct decoder {
    struct graph *g;
    const struct built_in *m;
    struct draws draws;
    int64_t batch, vocab; // vocab: padded
    int positions;
    bool sampling;
    bool biases, rotary;
    float eps;
    const char *at; // "layers/3"
};

// ---- pieces ------------------------------------------------------------------------------------

static int param(struct decoder *d, const char *name, int n, const enum dim *dims,
                 const int64_t *sizes, float std)
{
    return graph_param(d->g, name, n, dims, sizes, std > 0 ? INIT_NORMAL : INIT_ZERO, std);
}

static int norm_vector(struct decoder *d, const char *name, enum init_kind init)
{
    return graph_param(d->g, name, 1, (enum dim[]){DIM_NORM}, &d->m->embed, init, 0);
}

// "layers/3/norm1": layer norm, RMS norm, or RMS norm without a weight.
static int norm(struct decoder *d, int x, const char *name)
{
    struct graph *g = d->g;
    struct op_attr attr = {.eps = d->eps, .center = d->m->family == FAMILY_GPT2};
    int in[3] = {x}, n = 1;
    if (d->m->family != FAMILY_COOKBOOK)
        in[n++] = norm_vector(d, PATH("%s/weight", name), INIT_ONE);
    if (d->biases)
        in[n++] = norm_vector(d, PATH("%s/bias", name), INIT_ZERO);
    graph_at(g, POINT_SEQ);
    return graph_shaped(g, OP_NORM, n, in, x, &attr, DT_NONE);
}

// x · weight over the dimension `in` (heads: with their elements), and a bias as wide as what is
// left. The output is [batch, seq, ..], behind the stack of queries, keys and values if there is
// one.
static int linear(struct decoder *d, int x, const char *name, int n, const enum dim *dims,
                  const int64_t *sizes, enum dim in, float std)
{
    enum dim out[MAX_DIMS], bias[MAX_DIMS];
    int64_t width[MAX_DIMS];
    int nout = 0, nbias = 0;
    int w = param(d, PATH("%s/weight", name), n, dims, sizes, std);
    for (int i = 0; i < n; i++) {
        if (dims[i] == in || (in == DIM_HEADS && dims[i] == DIM_HEAD_DIM))
            continue;
        if (nout == 0 && dims[i] != DIM_QKV) {
            out[nout++] = DIM_BATCH;
            out[nout++] = DIM_SEQ;
        }
        out[nout++] = dims[i];
        if (dims[i] == DIM_QKV) {
            out[nout++] = DIM_BATCH;
            out[nout++] = DIM_SEQ;
        }
        width[nbias] = sizes[i];
        bias[nbias++] = dims[i] == DIM_EMBED ? DIM_NORM : dims[i];
    }
    int y = graph_matmul(d->g, x, w, nout, out);
    if (!d->biases)
        return y;
    int b = param(d, PATH("%s/bias", name), nbias, bias, width, 0);
    return add(d->g, y, b);
}

static int rotate(struct decoder *d, int x)
{
    struct op_attr attr = {.scale = 1, .rotary.theta = (float)d->m->theta};
    int in[2] = {x, d->positions};
    return graph_shaped(d->g, OP_ROTARY, 2, in, x, &attr, DT_NONE);
}

// ---- a layer -----------------------------------------------------------------------------------

// The projections that are stacked in one weight: the first of `n` values.
static int split(struct decoder *d, int x, const char *name, int n, enum dim heads, int64_t count)
{
    const enum dim dims[] = {DIM_QKV, DIM_EMBED, heads, DIM_HEAD_DIM};
    const enum dim out[] = {DIM_BATCH, DIM_SEQ, heads, DIM_HEAD_DIM};
    const int64_t sizes[] = {n, d->m->embed, count, d->m->head_dim};
    int y = linear(d, x, PATH("%s/attn/%s", d->at, name), 4, dims, sizes, DIM_EMBED, STD);
    return graph_op(
        d->g, &(struct op_args){
                  .op = OP_SPLIT, .nin = 1, .in = &y, .nout_dims = 4, .out_dims = out, .nout = n});
}

static int attention(struct decoder *d, int x)
{
    struct graph *g = d->g;
    const struct built_in *m = d->m;
    const enum dim q_dims[] = {DIM_EMBED, DIM_HEADS, DIM_HEAD_DIM};
    const enum dim out_dims[] = {DIM_HEADS, DIM_HEAD_DIM, DIM_EMBED};
    int in[6] = {[3] = d->positions, [4] = d->positions}, n = 5;
    graph_at(g, POINT_ATT);
    if (m->family == FAMILY_LLAMA) {
        const int64_t sizes[] = {m->embed, m->heads, m->head_dim};
        in[0] = linear(d, x, PATH("%s/attn/q", d->at), 3, q_dims, sizes, DIM_EMBED, STD);
        in[1] = split(d, x, "kv", 2, DIM_KV_HEADS, m->kv_heads);
        in[2] = in[1] + 1;
    } else {
        in[0] = split(d, x, "qkv", 3, DIM_HEADS, m->heads);
        in[1] = in[0] + 1;
        in[2] = in[0] + 2;
    }
    for (int k = 0; k < 2 && d->rotary; k++)
        in[k] = rotate(d, in[k]);
    struct op_attr attr = {
        .scale = 1 / sqrtf((float)m->head_dim), .group = m->heads / m->kv_heads, .in_order = true};
    if (draws_drops(&d->draws, m->dropout_attention)) {
        in[n++] = draws_step(&d->draws);
        attr.draw = draws_site(&d->draws, PATH("%s/attn/dropout", d->at), m->dropout_attention);
    }
    int y = graph_shaped(g, OP_ATTENTION, n, in, in[0], &attr, DT_NONE);
    graph_at(g, POINT_SEQ);
    return linear(d, y, PATH("%s/attn/out", d->at), 3, out_dims,
                  (int64_t[]){m->heads, m->head_dim, m->embed}, DIM_HEADS,
                  STD / sqrtf(2 * (float)m->layers));
}

static int mlp(struct decoder *d, int x)
{
    struct graph *g = d->g;
    const struct built_in *m = d->m;
    const enum dim in[] = {DIM_EMBED, DIM_MLP}, out[] = {DIM_MLP, DIM_EMBED};
    const int64_t in_sizes[] = {m->embed, m->mlp}, out_sizes[] = {m->mlp, m->embed};
    bool gated = m->family == FAMILY_LLAMA;
    graph_at(g, POINT_HIDDEN);
    int h = linear(d, x, PATH("%s/mlp/%s", d->at, gated ? "gate" : "in"), 2, in, in_sizes,
                   DIM_EMBED, STD);
    h = apply(g, gated ? OP_SILU : OP_GELU, h);
    if (gated) {
        int up = linear(d, x, PATH("%s/mlp/up", d->at), 2, in, in_sizes, DIM_EMBED, STD);
        h = mul(g, h, up);
    }
    graph_at(g, POINT_SEQ);
    return linear(d, h, PATH("%s/mlp/out", d->at), 2, out, out_sizes, DIM_MLP,
                  STD / sqrtf(2 * (float)m->layers));
}

static int layer(struct decoder *d, int x, int n)
{
    struct graph *g = d->g;
    bool after = d->m->family == FAMILY_COOKBOOK;
    static int (*const blocks[])(struct decoder *, int) = {attention, mlp};
    static const char *const part[] = {"attn", "mlp"};
    graph_scope(g, "layers/%d", n);
    d->at = PATH("layers/%d", n);
    for (int k = 0; k < 2; k++) {
        const char *name = PATH("%s/norm%d", d->at, k + 1);
        int y = blocks[k](d, after ? x : norm(d, x, name));
        y = draws_dropout(&d->draws, y, d->positions, PATH("%s/%s/out/dropout", d->at, part[k]),
                          d->m->dropout_residual);
        x = add(g, x, y);
        x = after ? norm(d, x, name) : x;
    }
    return x;
}

// ---- the whole ---------------------------------------------------------------------------------

// [batch, seq] or, of one a sample, [batch]. A program of another batch has inputs of its own.
static int input(struct decoder *d, const char *name, int n)
{
    graph_at(d->g, POINT_IDS);
    return graph_value(d->g, VALUE_INPUT, d->sampling ? PATH("sample/%s", name) : name, DT_I32, n,
                       (enum dim[]){DIM_BATCH, DIM_SEQ}, (int64_t[]){d->batch, d->m->seq});
}

static int embed(struct decoder *d, int ids, int table)
{
    graph_at(d->g, POINT_SEQ);
    return graph_op(d->g,
                    &(struct op_args){.op = OP_EMBED,
                                      .nin = 2,
                                      .in = (int[]){ids, table},
                                      .nout_dims = 3,
                                      .out_dims = (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_EMBED}});
}

static int embeddings(struct decoder *d, int *tokens)
{
    const struct built_in *m = d->m;
    graph_scope(d->g, "embed");
    int ids = input(d, "tokens", 2);
    d->positions = input(d, "positions", 2);
    *tokens = param(d, "embed/tokens", 2, (enum dim[]){DIM_VOCAB, DIM_EMBED},
                    (int64_t[]){d->vocab, m->embed}, STD);
    d->g->values[*tokens].limit = m->vocab;
    int x = embed(d, ids, *tokens);
    if (d->rotary)
        return x;
    int table = param(d, "embed/positions", 2, (enum dim[]){DIM_POSITION, DIM_EMBED},
                      (int64_t[]){m->seq, m->embed}, m->family == FAMILY_COOKBOOK ? 0 : STD);
    int at = embed(d, d->positions, table);
    return add(d->g, x, at);
}

// Of each sample the row at its last position: a product with ones and zeros, so it is exact.
static int last_rows(struct decoder *d, int x)
{
    static const enum dim dims[] = {DIM_BATCH, DIM_SEQ};
    int in[2] = {d->positions, input(d, "last", 1)};
    int at = graph_op(
        d->g,
        &(struct op_args){
            .op = OP_EQUAL, .nin = 2, .in = in, .nout_dims = 2, .out_dims = dims, .dtype = DT_F32});
    at = graph_shaped(d->g, OP_CAST, 1, &at, at, &(struct op_attr){.scale = 1}, DT_NONE);
    graph_at(d->g, POINT_NONE);
    return graph_matmul(d->g, at, x, 2, (enum dim[]){DIM_BATCH, DIM_EMBED});
}

// Every device gets the logits of all samples: a sum like the loss's carries them.
static int samples(struct decoder *d, int logits)
{
    struct graph *g = d->g;
    int whole = scale(g, logits, 1);
    int part = sum(g, whole, 2, (enum dim[]){DIM_BATCH, DIM_VOCAB}, 1, DT_NONE);
    g->loss = g->failed ? -1 : graph_sum(g, "logits", -1, part);
    graph_contribute(g, g->loss, part);
    return g->failed;
}

static int head(struct decoder *d, int x, int tokens)
{
    const struct built_in *m = d->m;
    graph_scope(d->g, "head");
    if (m->family != FAMILY_COOKBOOK)
        x = norm(d, x, "norm");
    int w = tokens;
    if (m->family != FAMILY_GPT2) {
        w = param(d, "head/weight", 2, (enum dim[]){DIM_EMBED, DIM_VOCAB},
                  (int64_t[]){m->embed, d->vocab}, STD);
        d->g->values[w].limit = m->vocab;
    }
    if (d->sampling)
        return graph_matmul_as(d->g, last_rows(d, x), w, 2, (enum dim[]){DIM_BATCH, DIM_VOCAB},
                               DT_F32);
    graph_at(d->g, POINT_LOGITS);
    return graph_matmul(d->g, x, w, 3, (enum dim[]){DIM_BATCH, DIM_SEQ, DIM_VOCAB});
}

int decoder_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                  int64_t step_batch)
{
    const struct built_in sizes = built_in_of(job), *m = &sizes;
    int64_t pad = m->vocab_multiple;
    struct decoder d = {.g = g,
                        .m = m,
                        .draws = draws_init(g, job->train.seed, kind == PROGRAM_TRAIN),
                        .batch = batch,
                        .vocab = (m->vocab + pad - 1) / pad * pad,
                        .sampling = kind == PROGRAM_SAMPLE,
                        .biases = m->family == FAMILY_GPT2,
                        .rotary = m->family == FAMILY_LLAMA,
                        .eps = m->family == FAMILY_COOKBOOK ? 1e-6f : 1e-5f};
    int tokens;
    int x = embeddings(&d, &tokens);
    x = draws_dropout(&d.draws, x, d.positions, "embed/dropout", m->dropout_embedding);
    for (int n = 0; n < m->layers; n++)
        x = layer(&d, x, n);
    if (d.sampling)
        return samples(&d, head(&d, x, tokens));
    int logits = head(&d, x, tokens);
    int targets = input(&d, "targets", 2);
    graph_at(g, POINT_LOGITS);
    int64_t limit = d.vocab > m->vocab ? m->vocab : 0;
    int rows = loss_cross_entropy(g, logits, targets, limit);
    g->loss = loss_mean(g, "loss", rows, step_batch * m->seq);
    return g->failed;
}
