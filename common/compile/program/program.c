// SPDX-License-Identifier: Apache-2.0
// What is asked of a program. See program.h.
#include "common/compile/program/program.h"

#include <string.h>

const char *program_name(enum program_kind k)
{
    static const char *const names[PROGRAM_KINDS] = {"train", "eval", "sample",
                                                     "score", "fill", "step"};
    return names[k];
}

int program_find(const struct program *p, const char *name)
{
    for (int i = 0; i < p->nbuffers; i++)
        if (p->buffers[i].name && strcmp(p->buffers[i].name, name) == 0)
            return i;
    return -1;
}

void program_rows(const struct program *p, int rank, int64_t *first, int64_t *count)
{
    int64_t end = 0;
    *first = INT64_MAX;
    for (int b = 0; b < p->nbuffers; b++) {
        int64_t start[MAX_DIMS];
        if (p->buffers[b].source != VALUE_INPUT)
            continue;
        const struct value *v = &p->graph->values[p->buffers[b].value];
        spec_start(&v->spec, &p->mesh, &v->shape, rank, start);
        int64_t stop = start[0] + p->buffers[b].shape.dim[0];
        *first = start[0] < *first ? start[0] : *first;
        end = stop > end ? stop : end;
    }
    *count = end > *first ? end - *first : 0;
}

const struct op_attr *program_attr(const struct program *p, const struct instr *i)
{
    return i->attr ? i->attr : &p->graph->nodes[i->node].attr;
}

int64_t program_span(const struct program *p, const struct instr *start)
{
    const struct buffer *first = &p->buffers[start->out[0].buffer];
    const struct buffer *last = &p->buffers[start[start->with].out[0].buffer];
    return (int64_t)((last->offset - first->offset) / dtype_size(first->dtype)) +
           shape_count(&last->shape);
}

bool program_goes_with(const struct program *p, const struct instr *i)
{
    const struct instr *s = i->kind == INSTR_WAIT ? &p->instrs[i->start] : i, *first = s;
    while (first > p->instrs && first[-1].kind == INSTR_START && first[-1].with < s - first + 1)
        first--;
    return s->kind == INSTR_START && first > p->instrs && first[-1].kind == INSTR_START;
}
