// SPDX-License-Identifier: Apache-2.0
// Parameters of a program: made where they are read, once for each path.
// Inside common/model/ only.
#pragma once
#include "common/model/term.h"

// What is written with every `_` filled in by x's last dimension (x −1: there is none).
struct written_param param_fill(struct builder *b, const struct written_param *p, int x);

// The parameter at PATH/leaf, or at PATH for the leaf "": the one that is there, or a new one. −1: it
// failed.
int param_make(struct builder *b, const char *path, const char *leaf, int n,
               const struct dimension *dims, enum init_kind init, float std);

// The weight that is written, born as it says. `over`: which dimensions its reader sums over, or
// null. It is at PATH/leaf, or where the path was first read.
int param_weight(struct builder *b, const struct written_param *p, const char *leaf,
                 const bool *over);
// What is added to the reader's output: zeros at PATH/bias.
int param_bias(struct builder *b, const char *path, int n, const struct dimension *dims);
