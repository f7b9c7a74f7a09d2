// SPDX-License-Identifier: Apache-2.0
// Labels as nested loops: over some dimensions of one operand, and how far every operand moves.
//
// Dimensions of extent 1 are dropped, and neighbours that all operands walk through as one are
// merged, so that the usual call ends as one or two loops.
#pragma once
#include "kernels/backend.h"

enum { MAX_OPERANDS = 9 }; // a chain's inputs and its output

struct loops {
    int n, operands;
    int64_t extent[MAX_DIMS];               // outermost first
    int64_t stride[MAX_OPERANDS][MAX_DIMS]; // in elements; 0: the operand lacks the dimension
    int64_t covered[MAX_OPERANDS];          // elements of the operand that the loops reach
};

// Operands are counted as in attr.label: inputs, then outputs.
const struct tensor *loops_tensor(const struct op_call *c, int operand);

// Loops over the first `dims` dimensions of operand `base`, but not those that operand `without`
// has too (−1: over all). index[] names the operands to follow. False if an operand disagrees
// about an extent.
bool loops_over(const struct op_call *c, int base, int dims, int without, const int *index,
                int operands, struct loops *out);

// Iterations of the first n loops.
int64_t loops_count(const struct loops *l, int n);
// Where followed operand k is at iteration `at` of the first n loops.
int64_t loops_offset(const struct loops *l, int n, int k, int64_t at);
