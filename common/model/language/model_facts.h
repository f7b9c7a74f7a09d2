// SPDX-License-Identifier: Apache-2.0
// What the rest of weft asks of a model: which data it reads, how large that is, where a pipeline may
// cut it. Found from the text and the sizes alone; no graph is built.
#pragma once
#include "common/model/language/model_sizes.h"

struct model_facts {
    // As layer_count.h counts them: what a pipeline's stages hold; 0: there are none.
    int64_t layers;
    bool blocks; // has named blocks outside layers
    // The line of a loss or a report, which sampling leaves out, with layers ahead of some that
    // sampling needs; 0: none.
    int skipped;
    int unclear; // the line for which no sizes tell the number of layers: `layers` is 0; 0: none
    bool tokens; // reads tokens, targets or positions
    bool images;
    bool labels;
    bool samples;              // names `logits` and reads tokens: text can be drawn from it
    int64_t seq, vocab;        // of tokens: the sizes of these names; 0: none such
    int64_t features, classes; // of images: size `inputs`, else `embed`; of labels: `classes`
};

// 0, or ERR_INVALID with what cannot be in `errs` (too many layers, or sizes that make no number of
// them).
int model_facts_find(const struct model_sizes *s, struct model_facts *out,
                     struct model_errors *errs);
