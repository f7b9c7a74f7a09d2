// SPDX-License-Identifier: Apache-2.0
// What CHAIN and LINEAR do: elementwise steps one after the other, on registers, element by
// element.
//
// Every register but an input that is broadcast has the labels of the output. Registers are the
// inputs in order (LINEAR: the product, then the operands from the third on), then what the steps
// make. Numbers are f32 between the steps, whatever the operands are, so they are not rounded
// there.
#pragma once
#include "common/op/op.h"

enum { CHAIN_STEPS = 8, CHAIN_INPUTS = 8, CHAIN_REGISTERS = CHAIN_INPUTS + CHAIN_STEPS };
enum { CHAIN_OUTPUTS = 3 };

struct op_step {
    enum op op;
    int8_t in[2]; // registers; in[1] of an op of one input: −1
    float scale;  // of SCALE and CAST
};
struct op_chain {
    int inputs, steps;
    struct op_step step[CHAIN_STEPS];
    int8_t out[CHAIN_OUTPUTS]; // the register that each output is; of CHAIN a step's
};

// The operand that input register `reg` is; −1: the product.
int chain_operand(enum op op, int reg);
// What is wrong with a CHAIN or LINEAR of so many operands; null: nothing.
const char *chain_fault(enum op op, const struct op_chain *c, int nin, int nout);
// A LINEAR's labels of a, b and the product, as a MATMUL has them.
struct op_attr linear_product(const struct op_attr *attr, int nin);
