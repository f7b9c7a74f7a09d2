// SPDX-License-Identifier: Apache-2.0
// Labels as nested loops. See loops.h.
#include "kernels/cpu/loops.h"

const struct tensor *loops_tensor(const struct op_call *c, int operand)
{
    return operand < c->nin ? &c->in[operand] : &c->out[operand - c->nin];
}

// The dimension of an operand that has the label; −1: none.
static int find_dim(const struct op_call *c, int operand, int label)
{
    const struct tensor *t = loops_tensor(c, operand);
    for (int d = 0; d < t->shape.n; d++)
        if (c->attr->label[operand][d] == label)
            return d;
    return -1;
}

bool loops_over(const struct op_call *c, int base, int dims, int without, const int *index,
                int operands, struct loops *out)
{
    const struct shape *s = &loops_tensor(c, base)->shape;
    *out = (struct loops){.operands = operands};
    for (int k = 0; k < operands; k++)
        out->covered[k] = 1;
    for (int d = 0; d < dims; d++) {
        const int64_t extent = s->dim[d];
        int label = c->attr->label[base][d];
        if (without >= 0 && find_dim(c, without, label) >= 0)
            continue;
        int64_t stride[MAX_OPERANDS] = {0};
        for (int k = 0; k < operands; k++) {
            const struct shape *o = &loops_tensor(c, index[k])->shape;
            int at = find_dim(c, index[k], label);
            if (at < 0)
                continue;
            if (o->dim[at] != extent)
                return false;
            stride[k] = 1;
            for (int i = at + 1; i < o->n; i++)
                stride[k] *= o->dim[i];
            out->covered[k] *= extent;
        }
        if (extent == 1)
            continue;
        bool merge = out->n > 0; // with the loop before it, where both are one walk
        for (int k = 0; k < operands && merge; k++)
            merge = out->stride[k][out->n - 1] == stride[k] * extent;
        int last = merge ? out->n - 1 : out->n++;
        out->extent[last] = merge ? out->extent[last] * extent : extent;
        for (int k = 0; k < operands; k++)
            out->stride[k][last] = stride[k];
    }
    return true;
}

int64_t loops_count(const struct loops *l, int n)
{
    int64_t count = 1;
    for (int i = 0; i < n; i++)
        count *= l->extent[i];
    return count;
}

int64_t loops_offset(const struct loops *l, int n, int k, int64_t at)
{
    int64_t offset = 0;
    for (int i = n - 1; i > 0; i--) {
        offset += at % l->extent[i] * l->stride[k][i];
        at /= l->extent[i];
    }
    return n ? offset + at * l->stride[k][0] : 0;
}
