// SPDX-License-Identifier: Apache-2.0
// Expressions of the model section: what they stand for, in the order they are written.
// Inside common/model/ only.
#pragma once
#include "common/model/term.h"

struct term evaluate(struct builder *b, const struct expr *e);
// Evaluates what is a number, a list or a word: no layers are opened for it.
struct term evaluate_outside(struct builder *b, const struct expr *e);
double evaluate_number(struct builder *b, const struct expr *e);

// "layers/3/attn/out": a path under a prefix.
const char *path_join(struct builder *b, const char *prefix, const struct path *path);
void bind_name(struct builder *b, const char *name, struct term t);
