// SPDX-License-Identifier: Apache-2.0
// The names of a program's dimensions: those that rules of sharding may use.
#pragma once
#include "common/language/model_program.h"

// Each name once: the sizes that are whole numbers, and what else stands in brackets and braces.
// The list lies in `a`.
const char *const *model_dims(const struct model_program *p, struct arena *a, int *n);
