// SPDX-License-Identifier: Apache-2.0
// Schema rows of `model:`.
#include "common/model/model_schema.h"

#include "common/job/job.h"
#include "common/job/preset.h"

#define MLP     "model.kind=mlp"
#define DECODER "model.kind=decoder"
#define VAE     "model.kind=vae"
#define DENSE   "model.kind=mlp|vae"
#define SIZE(path_, field, max_, derived_, unit_, doc_)                                       \
    {                                                                                         \
        .path = "model." path_, .type = SCHEMA_INT, .offset = AT(field), .derived = derived_, \
        .unit = unit_, .min = 1, .max = (max_), .when = DECODER, .doc = doc_                  \
    }
#define DROPOUT(path_, field, def_, derived_, doc_)                                              \
    {                                                                                            \
        .path = "model." path_, .type = SCHEMA_FLOAT, .offset = AT(field), .def = def_,          \
        .derived = derived_, .min = 0, .max = 1, .below_max = true, .when = DECODER, .doc = doc_ \
    }
#define AT(field) offsetof(struct job_model, field)
static const char *const kinds[] = {"mlp", "decoder", "vae", NULL};
static const char *const activations[] = {"relu", "gelu", "tanh", NULL};

static const struct schema_row rows[] = {
    {.path = "model.kind",
     .type = SCHEMA_ENUM,
     .offset = AT(kind),
     .def = "mlp",
     .names = kinds,
     .doc = "mlp: fully connected layers, a classifier; decoder: a transformer that predicts the "
            "next token; vae: a variational autoencoder of images"},
    {.path = "model.inputs",
     .type = SCHEMA_INT,
     .offset = AT(inputs),
     .min = 1,
     .max = 1 << 24,
     .unit = "features",
     .when = DENSE,
     .doc = "of a sample; for images height times width"},
    {.path = "model.hidden",
     .type = SCHEMA_INT_LIST,
     .offset = AT(hidden),
     .min = 1,
     .max = 1 << 20,
     .min_items = 1,
     .max_items = 64,
     .unit = "features",
     .when = DENSE,
     .doc = "widths of the hidden layers; a vae has one, in its encoder and in its decoder"},
    {.path = "model.classes",
     .type = SCHEMA_INT,
     .offset = AT(classes),
     .min = 2,
     .max = 1 << 20,
     .unit = "classes",
     .when = MLP,
     .doc = "labels are 0 to classes - 1"},
    {.path = "model.latent",
     .type = SCHEMA_INT,
     .offset = AT(latent),
     .min = 1,
     .max = 1 << 20,
     .unit = "features",
     .when = VAE,
     .doc = "of what an image is encoded to"},
    {.path = "model.activation",
     .type = SCHEMA_ENUM,
     .offset = AT(activation),
     .def = "relu",
     .names = activations,
     .when = DENSE,
     .doc = "after each hidden layer; gelu in its tanh form"},
    {.path = "model.preset",
     .type = SCHEMA_ENUM,
     .offset = AT(preset),
     .def = "gpt2",
     .names = preset_names,
     .when = DECODER,
     .doc = "the family and its sizes, each of which may be given: gpt2 (124M), llama (1B), "
            "cookbook (of JAX's training cookbook)"},
    SIZE("layers", layers, 1024, "the preset's", "layers", "of the decoder"),
    SIZE("embed", embed, 1 << 17, "the preset's", "features", "of a token between the layers"),
    SIZE("heads", heads, 1 << 10, "the preset's", "heads", "of queries"),
    {.path = "model.kv_heads",
     .type = SCHEMA_INT,
     .offset = AT(kv_heads),
     .derived = "the preset's where it divides heads, else heads",
     .unit = "heads",
     .min = 1,
     .max = 1 << 10,
     .when = "model.preset=" PRESETS_LLAMA,
     .doc = "of keys and values, shared by heads / kv_heads queries"},
    SIZE("head_dim", head_dim, 1 << 10, "embed / heads where one is given, else the preset's",
         "features", "of a head"),
    SIZE("mlp", mlp, 1 << 18, "the preset's, in proportion to embed", "features",
         "of a hidden layer"),
    SIZE("seq", seq, 1 << 17, "the preset's", "tokens", "of a sample"),
    SIZE("vocab", vocab, 1 << 19, "the preset's", "tokens", "ids are 0 to vocab - 1"),
    {.path = "model.vocab_multiple",
     .type = SCHEMA_INT,
     .offset = AT(vocab_multiple),
     .def = "128",
     .unit = "tokens",
     .min = 1,
     .max = 1 << 16,
     .when = DECODER,
     .doc = "the vocabulary's parameters are padded to a multiple of this"},
    {.path = "model.theta",
     .type = SCHEMA_FLOAT,
     .offset = AT(theta),
     .def = "500000",
     .max = 1e12,
     .min = 1,
     .when = "model.preset=" PRESETS_LLAMA,
     .doc = "base of the rotary positions' wavelengths"},
    DROPOUT("dropout", dropout, "0", NULL,
            "share that training drops of what the three keys below name"),
    DROPOUT("dropout_attention", dropout_attention, NULL, "dropout", "of the attention weights"),
    DROPOUT("dropout_residual", dropout_residual, NULL, "dropout",
            "of what each block adds to the residual"),
    DROPOUT("dropout_embedding", dropout_embedding, NULL, "dropout", "of the embedding's output"),
};

const struct schema_table model_schema = {rows, sizeof rows / sizeof *rows,
                                          offsetof(struct job, model)};
