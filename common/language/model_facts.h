// SPDX-License-Identifier: Apache-2.0
// What the rest of weft asks of a model: which data it reads and how large that is. Found from the text
// and the sizes alone; no graph is built.
#pragma once
#include "common/language/model_sizes.h"

struct model_facts {
    bool tokens; // reads tokens, targets or positions
    bool images;
    bool labels;
    bool samples;              // names `logits` and reads tokens: text can be drawn from it
    int64_t seq, vocab;        // of tokens: the sizes of these names; 0: none such
    int64_t features, classes; // of images: size `inputs`, else `embed`; of labels: `classes`
};

bool model_reads_tokens(const struct model_program *p); // known before its sizes are
// Whether anything in the text reads a size: an expression, a dimension, or weft by its name.
bool model_size_is_read(const struct model_program *p, const char *size);

void model_facts_find(const struct model_sizes *s, struct model_facts *out);
