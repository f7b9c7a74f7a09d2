// SPDX-License-Identifier: Apache-2.0
// Operators on values whose dimensions have names. Inside common/model/ only.
#pragma once
#include "common/model/term.h"

// a + b and so on: of numbers, or by name, one side's dimensions being among the other's. x @ y is
// summed over the names that both have, but the batch of two values and starred names.
struct term algebra_operator(struct builder *b, enum sign sign, struct term x, struct term y);
// x @ y of a value and a weight; `made`, or null, gets the weight as it was filled in, `over` its
// dimensions that are summed over.
int product_with_weight(struct builder *b, int x, const struct written_param *w,
                        struct written_param *made, bool *over);
// x{seq as key, heads*}
struct term algebra_rename(struct builder *b, struct term x, const struct expr *e);
// x with its dimensions in this order.
int permute_value(struct builder *b, int x, const enum dim *order);
// An elementwise op of one operand.
struct term algebra_apply(struct builder *b, enum op op, struct term x);
