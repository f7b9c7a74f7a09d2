// SPDX-License-Identifier: Apache-2.0
// How much one node works; see node_work.h.
#include "common/compile/graph/node_work.h"

#include "common/compile/graph/operand.h"
#include "common/compile/graph/optable.h"

struct shapes { // of an op's operands, as one device sees them
    struct shape in[OP_MAX_IN], out[OP_MAX_OUT];
};

static void find_shapes(const struct graph *g, const struct mesh *m, const struct node *n,
                        struct shapes *s)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = get_operand(g, n, k);
        struct shape *to = k < n->nin ? &s->in[k] : &s->out[k - n->nin];
        *to = m ? spec_local(&v->spec, m, &v->shape) : v->shape;
    }
}

double node_flops(const struct graph *g, const struct mesh *m, const struct node *n)
{
    struct shapes s;
    if (n->kind != NODE_OP || !op_row(n->op)->flops)
        return 0;
    find_shapes(g, m, n, &s);
    return op_row(n->op)->flops(n, s.in, s.out);
}

double node_bytes(const struct graph *g, const struct mesh *m, const struct node *n)
{
    struct shapes s;
    find_shapes(g, m, n, &s);
    return op_bytes(g, n, s.in, s.out);
}
