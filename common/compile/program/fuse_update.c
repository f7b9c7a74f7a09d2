// SPDX-License-Identifier: Apache-2.0
// Lets updates of parameters that follow each other in a program run in one call.
//
// They do not become one node of the graph, because the parameters have different places and shapes
// and their groups may have different hyperparameters. The instructions stay as they are; the first
// says how many behind it a backend may run in the same call (backend.h, `many`). An update writes
// only its own parameter and state, and reads nothing that another of them writes, so the bits are
// the same in whatever order they run.
#include "common/compile/program/fuse.h"

static bool is_update(const struct instr *i)
{
    return i->kind == INSTR_OP && i->phase == PHASE_UPDATE && op_is(i->op, OP_IS_UPDATE);
}

void fuse_updates(struct program *p)
{
    for (int i = 0, end; i < p->ninstrs; i = end) {
        struct instr *first = &p->instrs[i];
        for (end = i + 1; is_update(first) && end < p->ninstrs; end++)
            if (!is_update(&p->instrs[end]) || p->instrs[end].op != first->op)
                break;
        first->with = end - i - 1;
    }
}
