// SPDX-License-Identifier: Apache-2.0
// Chains of elementwise steps. See chain.h.
#include "common/op/chain.h"

#include <string.h>

int chain_operand(enum op op, int reg)
{
    return op == OP_LINEAR ? (reg ? reg + 1 : -1) : reg;
}

const char *chain_fault(enum op op, const struct op_chain *c, int nin, int nout)
{
    bool linear = op == OP_LINEAR;
    if (!c || c->steps < 1 || c->steps > CHAIN_STEPS || c->inputs > CHAIN_INPUTS)
        return "its steps are too few or too many";
    if (c->inputs < 1 || c->inputs != nin - linear)
        return "its registers are not its operands";
    for (int s = 0; s < c->steps; s++) {
        const struct op_step *step = &c->step[s];
        if ((int)step->op < 0 || step->op >= OP_COUNT || !op_is(step->op, OP_IS_STEP))
            return "a step is no elementwise op";
        for (int k = 0; k < op_inputs(step->op); k++)
            if (step->in[k] < 0 || step->in[k] >= c->inputs + s)
                return "a step reads a register before it is made";
    }
    for (int k = 0; k < nout; k++) {
        int reg = c->out[k];
        if (reg < (linear ? 0 : c->inputs) || reg >= c->inputs + c->steps ||
            (reg > 0 && reg < c->inputs))
            return "an output is no register that it makes";
        for (int j = 0; j < k; j++)
            if (c->out[j] == reg)
                return "two outputs are one register";
    }
    return nout >= 1 && nout <= CHAIN_OUTPUTS ? NULL : "it has no output";
}

struct op_attr linear_product(const struct op_attr *attr, int nin)
{
    struct op_attr a = *attr;
    memcpy(a.label[2], attr->label[nin], sizeof a.label[2]);
    return a;
}
