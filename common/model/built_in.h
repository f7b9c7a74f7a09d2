// SPDX-License-Identifier: Apache-2.0
// The sizes of the models that are still built in C, by name, from the program that stands for each.
#pragma once
#include "common/job/job.h"

enum built_in_family { FAMILY_GPT2, FAMILY_LLAMA, FAMILY_COOKBOOK }; // of decoders
enum built_in_activation { ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_TANH };

struct built_in {
    int64_t inputs;            // features a sample
    struct schema_list hidden; // int64_t widths, first layer first
    int64_t classes, latent;
    int activation; // enum built_in_activation
    int family;     // enum built_in_family
    int64_t layers, embed, heads, kv_heads, head_dim, mlp, seq, vocab, vocab_multiple;
    double theta;
    double dropout_attention, dropout_residual, dropout_embedding;
};
struct built_in built_in_of(const struct job *job);
