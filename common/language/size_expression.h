// SPDX-License-Identifier: Apache-2.0
// Expressions of the sizes section: their values, given those of the sizes before.
// Inside common/language/ only.
#pragma once
#include "common/language/model_sizes.h"

struct size_scope {
    const struct model_program *program;
    const struct model_size_value *value; // of the sizes before
    int n;                                // how many these are
    int blamed;                           // the last of them that was read and given, −1: none
    struct model_errors *errs;
    int64_t
        turn; // what `n` stands for where no size is called so, from 1: 1 + the number; 0: nothing
};

// False: the expression has no value, which has been reported.
bool evaluate_size(struct size_scope *r, const struct expr *e, struct number *out);
