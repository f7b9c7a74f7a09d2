// SPDX-License-Identifier: Apache-2.0
// A program built from text, for tests of the language.
#pragma once
#include <math.h>
#include <string.h>

#include "common/language/model_facts.h"
#include "common/model/builder.h"
#include "tests/support/model_errors_text.h"
#include "tests/unit/unit.h"

struct model_case {
    struct arena arena;
    struct model_errors errs;
    const struct model_program *program;
    struct model_sizes sizes;
    struct dims dims;
    struct graph g;
    struct err e;
};

// Reads and builds; 0, or what the reader or the builder returned. `layers`: null, or filled in.
static inline int model_case_count(struct model_case *c, const char *text, size_t len,
                                   enum program_kind kind, struct job_layers *layers)
{
    const struct model_run run = {
        .kind = kind, .batch = 4, .step_batch = 8, .seed = 1, .layers = layers};
    *c = (struct model_case){0};
    arena_init(&c->arena);
    c->errs.arena = &c->arena;
    if (model_program_read("t", text, len, &c->program, &c->errs) ||
        model_sizes_resolve(c->program, NULL, 0, &c->sizes, &c->errs))
        return first_model_error(&c->errs, &c->e);
    dims_init(&c->dims, &c->arena);
    graph_init(&c->g, &c->arena, &c->dims, &c->e);
    return model_build(&c->g, &c->sizes, &run);
}

static inline int model_case_build(struct model_case *c, const char *text, size_t len,
                                   enum program_kind kind)
{
    return model_case_count(c, text, len, kind, NULL);
}

static inline void model_case_clear(struct model_case *c)
{
    arena_clear(&c->arena);
}
