// SPDX-License-Identifier: Apache-2.0
// The models and the settings (meshes, microbatches, remat, cuts, dtypes) under which tests compile
// them: those that run whole programs, and those that look at the ops. MESH_SIZE: samples, tokens.
#pragma once
#include "tests/unit/attention_model.h"
#include "tests/unit/by_hand_model.h"
#include "tests/unit/compile_case.h"

#ifndef MESH_SIZE
#define MESH_SIZE 24
#endif
enum { BATCH = MESH_SIZE, SEQ = MESH_SIZE, VOCAB = 21, PIXELS = 24 };

// Cuts of 2 to 8 divide what models cut. Heads: gpt2 has 12, llama 8 and 2 for keys, cookbook 8.
enum {
    MLP = 1,
    VAE = 2,
    GPT2 = 4,
    LLAMA = 8,
    COOKBOOK = 16,
    ATTENTION = 32,
    BY_HAND = 64,
    MIXTRAL = 128,
    JAXFORMER = 256,
    MODELS = 9
};
enum {
    DECODERS = GPT2 | LLAMA | COOKBOOK | ATTENTION | BY_HAND,
    FOURS = DECODERS | MLP, // of four layers; the vae has eight
    LAYERED = FOURS | VAE,
    ALL = LAYERED,
    THIRDS = MLP | VAE | GPT2,
    EIGHTHS = ALL & ~GPT2,
};

static const struct model {
    const char *name, *text, *data, *optimizer;
    build_fn build;
} models[MODELS] = {
    {"mlp", "{program: mlp, inputs: 24, hidden: [48, 24, 48], classes: 6, activation: gelu}",
     "{format: npy, dtype: u8, train: {images: i, labels: l}, eval: {images: i, labels: l}, ", "",
     NULL},
    {"vae", "{program: vae, inputs: 24, hidden: [24, 24, 24], latent: 6, activation: gelu}",
     "{format: npy, dtype: u8, train: {images: i}, eval: {images: i}, ", "", NULL},
    {"gpt2",
     "{program: gpt2, layers: 4, embed: 24, heads: 12, head_dim: 2, mlp: 48, seq: "
     "24, vocab: 21, vocab_multiple: 24, dropout: 0.2}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ",
     ", groups: [{match: \"*norm*\", lr_scale: 0.5}, {match: layers/2/mlp/*, freeze: true}]", NULL},
    {"llama",
     "{program: llama, layers: 4, embed: 24, heads: 8, kv_heads: 2, head_dim: 4, "
     "mlp: 48, theta: 50, seq: 24, vocab: 21, vocab_multiple: 24, dropout_attention: 0.3, "
     "dropout_residual: 0.1}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL},
    {"cookbook",
     "{program: cookbook, layers: 4, embed: 24, heads: 8, head_dim: 4, mlp: 48, seq: "
     "24, vocab: 21, vocab_multiple: 24}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL},
    {"attention",
     "{program: llama, layers: 4, embed: 24, heads: 8, kv_heads: 2, head_dim: 4, mlp: 48, seq: 24, "
     "vocab: 24}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", attention_build},
    {"by hand", "{program: ./by_hand.model, text: \"" BY_HAND_TEXT "\"}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL},
    {"mixtral",
     "{program: mixtral, layers: 4, embed: 24, heads: 8, kv_heads: 2, head_dim: 4, mlp: 24, seq: "
     "24, vocab: 21, vocab_multiple: 24, theta: 50, experts: 4, capacity: 1}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL},
    {"jaxformer",
     "{program: jaxformer, blocks: 2, layers_per_block: 2, embed: 24, heads: 4, head_dim: 6, "
     "latent: 10, rotary: 4, mlp: 24, experts: 4, capacity: 1, balance: 0.01, seq: 24, vocab: 21, "
     "vocab_multiple: 24, dropout: 0.2}",
     "{format: tokens, train: {tokens: t}, eval: {tokens: t}, ", "", NULL},
};

#define WEIGHTS "rules: {embed: [fsdp, dp]}, gather: [fsdp, dp]"
#define SP      "activations: {act_seq: [batch, [seq, tp]]}"

static const struct setting {
    unsigned models;
    const char *mesh;
    int microbatches;
    const char *train;    // more of that section, with a comma in front
    const char *sharding; // the insides of it
    const char *more;     // further sections
} settings[] = {
    // An axis alone.
    {ALL, "dp: 8", 1, "", "", ""},
    {ALL, "dp: 3", 2, ", remat: block", "", ""},
    {ALL, "fsdp: 4", 1, "", "", ""},
    {ALL, "fsdp: 8", 3, ", remat: full", "", ""},
    {ALL, "tp: 2", 2, "", "", ""},
    {THIRDS, "tp: 3", 1, "", "", ""},
    {ALL, "tp: 4", 1, ", remat: block", "", ""},
    {ALL, "fsdp: 2, tp: 2", 1, ", fuse: false", "", ""},
    {THIRDS, "tp: 6", 2, "", "", ""},
    {EIGHTHS, "tp: 8", 1, "", "", ""},
    {DECODERS, "tp: 4", 2, ", remat: full", SP, ""},
    {DECODERS, "cp: 2", 2, "", "", ""},
    {DECODERS, "cp: 3", 1, ", remat: block", "", ""},
    {DECODERS, "cp: 4", 1, "", "", ""},
    {LAYERED, "pp: 2", 1, "", "", ""},
    {LAYERED, "pp: 3", 3, ", remat: block", "", ""},
    {LAYERED, "pp: 4", 4, "", "", "pipeline: {schedule: gpipe}\n"},
    {LAYERED, "pp: 2, dp: 2", 2, ", fuse: false, remat: full", "", ""},
    {FOURS, "pp: 2", 4, ", remat: full", "", "pipeline: {stages: [1, 3]}\n"},
    {VAE, "pp: 2", 4, ", remat: full", "", "pipeline: {stages: [3, 5]}\n"},
    // Experts: a quarter of the choices find a place at most twice over.
    {MIXTRAL, "ep: 2", 2, "", "", ""},
    {MIXTRAL, "ep: 4", 1, ", remat: block", "", ""},
    {MIXTRAL, "dp: 2, ep: 2", 1, "", "", ""},
    {MIXTRAL, "ep: 2, tp: 2", 2, "", "", ""},
    {MIXTRAL, "ep: 2, tp: 2", 1, ", remat: full", SP, ""},
    {MIXTRAL, "fsdp: 2, ep: 2", 3, ", fuse: false", "", ""},
    {MIXTRAL, "cp: 3, ep: 2", 1, "", "", ""},
    {MIXTRAL, "dp: 2, ep: 2, tp: 2", 1, "", "optimizer: [dp], rules: {expert: ep}", ""},
    {MIXTRAL, "pp: 2, ep: 2", 2, ", remat: block", "", ""},
    {MIXTRAL, "dp: 2, pp: 2, ep: 2", 3, "", "", "pipeline: {schedule: gpipe}\n"},
    // Latent attention, with rotary positions and without, and experts in every second layer.
    {JAXFORMER, "dp: 2, pp: 2, tp: 2", 2, "", "", ""},
    {JAXFORMER, "dp: 2, pp: 2, tp: 2", 3, ", remat: block", "rules: {embed: dp}, gather: [dp], " SP,
     ""},
    {JAXFORMER, "ep: 4", 2, "", "", ""},
    {JAXFORMER, "dp: 2, ep: 2, tp: 2", 1, ", remat: full", SP, ""},
    {JAXFORMER, "cp: 3, ep: 2", 1, "", "", ""},
    {JAXFORMER, "fsdp: 2, pp: 2, ep: 2", 3, "", "", ""},
    {JAXFORMER, "dp: 2, pp: 2", 4, "", "optimizer: [dp]",
     "pipeline: {schedule: circular, chunks: 2}\n"},
    // Pairs.
    {ALL, "dp: 2, fsdp: 2", 2, "", "", ""},
    {ALL, "fsdp: 3, dp: 2", 1, "", "", ""},
    {ALL, "dp: 2, tp: 2", 3, ", remat: full", "", ""},
    {THIRDS, "tp: 3, dp: 2", 2, ", remat: block", "", ""},
    {ALL, "fsdp: 2, tp: 4", 1, "", "", ""},
    {DECODERS, "fsdp: 2, tp: 2", 2, ", remat: block", SP, ""},
    {DECODERS, "cp: 2, tp: 2", 1, "", "", ""},
    {DECODERS, "tp: 4, cp: 2", 2, ", remat: full", "", ""},
    {DECODERS, "cp: 2, tp: 2", 2, ", remat: block", SP, ""},
    {GPT2, "cp: 2, tp: 3", 1, "", SP, ""},
    {DECODERS, "dp: 2, cp: 2", 3, ", remat: block", "", ""},
    {DECODERS, "fsdp: 2, cp: 3", 1, "", "", ""},
    {LAYERED, "pp: 2, fsdp: 2", 2, "", "", ""},
    {FOURS, "fsdp: 2, pp: 3", 4, ", remat: full", "", "pipeline: {stages: [1, 2, 1]}\n"},
    {VAE, "fsdp: 2, pp: 3", 4, ", remat: full", "", "pipeline: {stages: [1, 6, 1]}\n"},
    {LAYERED, "dp: 2, pp: 4", 3, "", "", ""},
    {LAYERED, "pp: 2, tp: 4", 2, ", remat: block", "", "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, tp: 2", 2, "", SP, "pipeline: {stages: [3, 1]}\n"},
    {DECODERS, "pp: 2, cp: 2", 2, "", "", ""},
    {DECODERS, "cp: 2, pp: 4", 4, ", remat: block", "", ""},
    // Other turns of the stages.
    {LAYERED, "pp: 4", 4, ", remat: block", "", "pipeline: {schedule: zero_bubble}\n"},
    {LAYERED, "fsdp: 2, pp: 2, tp: 2", 3, "", "", "pipeline: {schedule: zero_bubble}\n"},
    {LAYERED, "dp: 2, pp: 2", 4, "", "optimizer: [dp]",
     "pipeline: {schedule: interleaved, chunks: 2}\n"},
    {LAYERED, "pp: 2, tp: 4", 2, ", remat: block", "",
     "pipeline: {schedule: interleaved, chunks: 2}\n"},
    {LAYERED, "pp: 2, fsdp: 2", 3, ", remat: full", "",
     "pipeline: {schedule: circular, chunks: 2}\n"},
    {DECODERS, "cp: 2, pp: 2, tp: 2", 2, "", SP, "pipeline: {schedule: circular, chunks: 2}\n"},
    // Three.
    {ALL, "dp: 2, fsdp: 2, tp: 2", 2, ", remat: full", "", ""},
    {DECODERS, "dp: 2, fsdp: 2, tp: 2", 1, ", remat: block", SP, ""},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, "", "", ""},
    {DECODERS, "dp: 2, pp: 2, tp: 2", 4, ", remat: full", SP, "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, cp: 2, tp: 2", 2, ", remat: block", "", ""},
    {DECODERS, "fsdp: 2, cp: 2, tp: 2", 1, "", SP, ""},
    {DECODERS, "fsdp: 2, pp: 2, cp: 2", 3, "", "", "pipeline: {stages: [3, 1]}\n"},
    // State, and gradients too, cut finer than parameters.
    {ALL, "dp: 4", 2, "", "optimizer: [dp]", ""},
    {ALL, "dp: 3", 4, "", "grads: [dp], optimizer: [dp]", ""},
    {ALL, "dp: 2, fsdp: 2", 2, "", "grads: [dp], optimizer: [dp]", ""},
    {ALL, "dp: 2, fsdp: 2, tp: 2", 1, ", remat: block", "optimizer: [dp]", ""},
    {DECODERS, "dp: 2, cp: 2, tp: 2", 2, "", "grads: [dp], optimizer: [dp, cp]", ""},
    {LAYERED, "dp: 2, pp: 2", 3, "", "optimizer: [dp]", ""},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, ", remat: full", "grads: [dp], optimizer: [dp, tp]", ""},
    {LAYERED, "pp: 2, dp: 3", 2, ", remat: block", "grads: [dp], optimizer: [dp]",
     "pipeline: {schedule: gpipe}\n"},
    {DECODERS, "pp: 2, tp: 4", 2, "", "optimizer: [tp], " SP, ""},
    // Names and specs of one's own.
    {ALL, "data: 2, model: 4", 2, "", "", ""},
    {ALL, "host: 2, gpu: 3", 1, "", "rules: {batch: [host, gpu], embed: gpu}, gather: [gpu]", ""},
    {ALL, "x: 2, y: 4", 1, "", "rules: {batch: x, embed: y, heads: y, mlp: x}, gather: [x, y]", ""},
    {LAYERED, "a: 2, b: 2, c: 2", 2, ", remat: block",
     "rules: {batch: a, layers: b, mlp: c, heads: c}, optimizer: [a]", ""},
    {DECODERS, "x: 2, y: 2", 2, "",
     "rules: {batch: x, seq: y}, gather: [x], params: [{match: \"*/mlp/*/weight\", spec: [x, ~]}, "
     "{match: embed/tokens, spec: [~, x]}]",
     ""},
    {DECODERS, "dp: 2, tp: 2", 2, "",
     "activations: {act_seq: [batch, ~, tp], act_logits: [batch, seq]}, params: [{match: "
     "\"*/attn/out/weight\", spec: [~, ~, tp]}, {match: \"*/norm*\", min: [1], spec: [tp]}]",
     ""},
    {MLP, "dp: 2, tp: 3", 2, "",
     "params: [{match: layers/3/weight, spec: [~, tp]}, {match: layers/3/bias, spec: [tp]}], "
     "activations: {act_logits: [batch, tp]}",
     ""},
    // In bf16.
    {ALL, "dp: 2, fsdp: 2, tp: 2", 2, "", "", "precision: {compute: bf16}\n"},
    {LAYERED, "dp: 2, pp: 2, tp: 2", 2, ", remat: block", "grads: [dp], optimizer: [dp]",
     "precision: {compute: bf16}\n"},
    {DECODERS, "fsdp: 2, cp: 2, tp: 2", 2, ", remat: full", SP, "precision: {compute: bf16}\n"},
    {DECODERS, "pp: 2, cp: 2", 3, "", "", "precision: {compute: bf16, reduce: bf16}\n"},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

// What the parser, then what the compiler says is returned.
static inline int compile_setting(struct fixture *f, const struct model *m, const struct setting *s)
{
    char text[16000];
    snprintf(text, sizeof text,
             "name: t\nmodel: %s\nmesh: {%s}\ndata: %sbatch: %d}\n"
             "optimizer: {kind: momentum, clip_norm: 0.5%s}\n"
             "schedule: {kind: constant, value: 0.01}\nsharding: {%s}\n%s"
             "train: {steps: 3, microbatches: %d, seed: 8589934597%s}\n",
             m->text, s->mesh, m->data, BATCH, m->optimizer, s->sharding, s->more, s->microbatches,
             s->train);
    bool parsed;
    own_model = m->build;
    return compile_or_not(f, text, &parsed);
}
