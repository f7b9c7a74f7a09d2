// SPDX-License-Identifier: Apache-2.0
// A variational autoencoder of images: one hidden layer on either side of a normal latent.
//
//   encoder  h = act(in(x)), mean and log variance = linear(h), z = mean + e^(logvar/2) · noise
//   decoder  logits = out(act(in(z)))
//   loss     Σ over pixels of ln(1 + e^logit) − x·logit, the cross-entropy of pixels in [0, 1] with
//            Bernoulli means, plus the divergence of the latent from a standard normal,
//            ½ Σ (mean² + e^logvar − 1 − logvar); each a mean over the samples
//
// Layers carry (embed, mlp) and (mlp, embed) in turn, the latent has no rule: cutting `mlp` leaves
// mean, logvar and all that is made of them whole. Training draws the noise at [batch, latent]; an
// evaluation decodes the mean. The latent and the loss are f32, whatever the layers compute in.
#include "common/compile/graph/build.h"
#include "common/model/dense.h"
#include "common/model/draws.h"
#include "common/model/loss.h"
#include "common/model/model.h"

struct vae {
    struct graph *g;
    const struct built_in *m;
    struct draws draws;
    struct dense_width pixels, hidden, latent;
};

// by · Σ over what is not the batch.
static int sum_samples(struct graph *g, int x, float by)
{
    return sum(g, x, 1, (enum dim[]){DIM_BATCH}, by, DT_NONE);
}

static int hidden(struct vae *v, const char *name, int x, struct dense_width in)
{
    graph_at(v->g, POINT_HIDDEN);
    int h = dense_linear(v->g, name, x, in, v->hidden, dense_gain(v->m->activation));
    return dense_activate(v->g, h, v->m->activation);
}

// z and, a number a sample, the divergence.
static int encoder(struct vae *v, int x, int64_t batch, int *divergence)
{
    struct graph *g = v->g;
    int h = hidden(v, "encoder/in", x, v->pixels);
    graph_at(g, POINT_SEQ);
    int mean = cast(g, dense_linear(g, "encoder/mean", h, v->hidden, v->latent, 1), DT_F32);
    int logvar = cast(g, dense_linear(g, "encoder/logvar", h, v->hidden, v->latent, 1), DT_F32);
    int square = mul(g, mean, mean);
    int excess = sub(g, apply(g, OP_EXP, logvar), graph_one(g));
    *divergence = sum_samples(g, add(g, square, sub(g, excess, logvar)), 0.5f);
    if (!v->draws.on)
        return mean;
    int noise = draws_normal(&v->draws, 2, (enum dim[]){DIM_BATCH, DIM_LATENT},
                             (int64_t[]){batch, v->latent.size}, "encoder/noise");
    int deviation = apply(g, OP_EXP, scale(g, logvar, 0.5f));
    return add(g, mean, mul(g, deviation, noise));
}

// What the pixels cost, a number a sample.
static int decoder(struct vae *v, int z, int x)
{
    struct graph *g = v->g;
    int h = hidden(v, "decoder/in", cast(g, z, g->compute ? g->compute : DT_F32), v->latent);
    graph_at(g, POINT_LOGITS);
    int logits = cast(g, dense_linear(g, "decoder/out", h, v->hidden, v->pixels, 1), DT_F32);
    x = cast(g, x, DT_F32);
    return sum_samples(g, sub(g, apply(g, OP_SOFTPLUS, logits), mul(g, logits, x)), 1);
}

static void part(struct graph *g, const char *name, int rows, int64_t of)
{
    loss_report(g, name, rows, of);
}

int vae_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch)
{
    const struct built_in sizes = built_in_of(job), *m = &sizes;
    struct vae v = {.g = g,
                    .m = m,
                    .draws = draws_init(g, job->train.seed, kind == PROGRAM_TRAIN),
                    .pixels = {DIM_EMBED, m->inputs},
                    .hidden = {DIM_MLP, *(const int64_t *)m->hidden.items},
                    .latent = {DIM_LATENT, m->latent}};
    int divergence;
    if (m->hidden.n != 1)
        return g->failed = err_set(g->err, ERR_INVALID,
                                   "model.hidden: a vae has one width, of its encoder and of its "
                                   "decoder: [%lld] would do",
                                   (long long)*(const int64_t *)m->hidden.items);
    graph_scope(g, "encoder");
    int x = dense_images(g, job, batch);
    int z = encoder(&v, x, batch, &divergence);
    graph_scope(g, "decoder");
    int pixels = decoder(&v, z, x);
    int rows = add(g, pixels, divergence);
    g->loss = loss_mean(g, "loss", rows, step_batch);
    part(g, "reconstruction", pixels, step_batch);
    part(g, "kl", divergence, step_batch);
    return g->failed;
}
