// SPDX-License-Identifier: Apache-2.0
// The sizes of a program as numbers: what a job gives, else the defaults, in the order of the text,
// each an expression of those before it. Held against their ranges.
#pragma once
#include "common/language/initial.h"
#include "common/language/model_program.h"
#include "common/language/number.h"

// A size that is given, as text: "12", "gelu", or the items of a list.
struct model_given {
    const char *name, *text; // text null: a list
    int n;
    const char *const *item;
};

struct model_size_value {
    struct number number; // of a CHOICE the index of its word
    int64_t padded;       // as a dimension: `number` rounded up to a multiple of what `padded` says
    bool given;
};

struct model_sizes {
    const struct model_program *program;
    struct initial initial;         // what the job says of its weights (model.init)
    struct model_size_value *value; // one for each of program->sizes
};

// Everything lies in errs->arena. 0, or ERR_INVALID with every size that is wrong in `errs`: item.size
// names the given size that is at fault, or else the size itself.
int model_sizes_resolve(const struct model_program *p, const struct model_given *given, int ngiven,
                        struct model_sizes *out, struct model_errors *errs);

// Returns the value of a size by its name; `otherwise` if the program lacks it.
int64_t model_sizes_whole(const struct model_sizes *s, const char *name, int64_t otherwise);
double model_sizes_number(const struct model_sizes *s, const char *name, double otherwise);
