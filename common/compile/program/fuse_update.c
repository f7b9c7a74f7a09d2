// SPDX-License-Identifier: Apache-2.0
// Updates as one: those of all parameters that stand next to each other in a program.
//
// Not a node of the graph: where the parameters lie, and of which shapes they are, differs, and so
// may the numbers of their groups. The instructions stay as they are; the first says how many
// behind it a backend may run in the same call (backend.h, `many`). An update writes what lasts, of
// its own parameter alone, and reads what was there before the first of them: so in whatever order
// they run, the bits are the same.
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
