// SPDX-License-Identifier: Apache-2.0
// Lets updates of parameters that follow each other in a program run in one call, and so the squares
// of gradients that are added to one norm.
//
// They do not become one node of the graph, because the parameters have different places and shapes
// and their groups may have different hyperparameters. The instructions stay as they are; the first
// says how many behind it a backend may run in the same call (backend.h, `many`). An update writes
// only its own parameter and state, and reads nothing that another of them writes, so the bits are
// the same in whatever order they run. Squares are added in the order of the instructions.
#include "common/compile/program/fuse.h"

// What is no parameter or state may lie where an op before it reads.
static bool is_of_row(const struct program *p, const struct instr *i)
{
    bool is = i->kind == INSTR_OP && i->phase == PHASE_UPDATE && op_is(i->op, OP_RUNS_MANY);
    for (int k = 0; k < i->nout && is; k++)
        is = p->buffers[i->out[k].buffer].persistent;
    return is;
}

// Whether `next` may run in the call that began with `first`.
static bool may_join(const struct program *p, const struct instr *first, const struct instr *next)
{
    if (!is_of_row(p, next) || next->op != first->op)
        return false;
    return !op_is(first->op, OP_ACCUMULATES) ||
           (next->accumulate && next->out[0].buffer == first->out[0].buffer);
}

void fuse_updates(struct program *p)
{
    for (int i = 0, end; i < p->ninstrs; i = end) {
        struct instr *first = &p->instrs[i];
        for (end = i + 1; is_of_row(p, first) && end < p->ninstrs; end++)
            if (!may_join(p, first, &p->instrs[end]))
                break;
        if (is_of_row(p, first))
            first->with = end - i - 1;
    }
}
