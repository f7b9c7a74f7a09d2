// SPDX-License-Identifier: Apache-2.0
// What is wrong with a program or with the sizes it was given, and where.
// Inside common/language/ only.
#pragma once
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

enum { MODEL_MAX_ERRORS = 20 }; // kept; the rest are counted

// A place in a program's text, from 1; line 0: none.
struct text_place {
    int line, column;
};

struct model_error {
    struct text_place at; // line 0: it is about a size that was given, not about the text
    const char *size;     // the size it is about, or null
    const char *message;  // lower case, with a suggestion
};

struct model_errors { // zeroed but for the arena: none
    struct arena *arena;
    int n, more; // more: found beyond MODEL_MAX_ERRORS
    struct model_error item[MODEL_MAX_ERRORS];
};

// Returns ERR_INVALID.
int model_error_at(struct model_errors *errs, struct text_place at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int model_error_size(struct model_errors *errs, struct text_place at, const char *size,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));
