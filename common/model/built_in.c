// SPDX-License-Identifier: Apache-2.0
// Sizes of the models built in C. See built_in.h.
#include "common/model/built_in.h"

#include <string.h>

#include "common/model/language/model_program.h"

static const union job_size *find_size(const struct job_model *m, const char *name)
{
    static const union job_size none;
    int i = model_size_find(m->read, name);
    return i < 0 ? &none : &m->size[i];
}

struct built_in built_in_of(const struct job *job)
{
    const struct job_model *m = &job->model;
    struct built_in b = {.inputs = find_size(m, "inputs")->whole,
                         .hidden = find_size(m, "hidden")->list,
                         .classes = find_size(m, "classes")->whole,
                         .latent = find_size(m, "latent")->whole,
                         .activation = find_size(m, "activation")->word,
                         .family = strcmp(m->program, "llama") == 0      ? FAMILY_LLAMA
                                   : strcmp(m->program, "cookbook") == 0 ? FAMILY_COOKBOOK
                                                                         : FAMILY_GPT2,
                         .layers = find_size(m, "layers")->whole,
                         .embed = find_size(m, "embed")->whole,
                         .heads = find_size(m, "heads")->whole,
                         .kv_heads = find_size(m, "kv_heads")->whole,
                         .head_dim = find_size(m, "head_dim")->whole,
                         .mlp = find_size(m, "mlp")->whole,
                         .seq = find_size(m, "seq")->whole,
                         .vocab = find_size(m, "vocab")->whole,
                         .vocab_multiple = find_size(m, "vocab_multiple")->whole,
                         .theta = find_size(m, "theta")->number,
                         .dropout_attention = find_size(m, "dropout_attention")->number,
                         .dropout_residual = find_size(m, "dropout_residual")->number,
                         .dropout_embedding = find_size(m, "dropout_embedding")->number};
    if (!b.kv_heads)
        b.kv_heads = b.heads;
    return b;
}
