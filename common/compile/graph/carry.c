// SPDX-License-Identifier: Apache-2.0
// What dimensions carry. See carry.h.
#include "common/compile/graph/carry.h"

#include "common/compile/graph/operand.h"
// A loop of the op, as its operands have it.
struct loop {
    bool seen;   // by an input
    bool differ; // born of data in one input, and of none or of other data in another
    bool placed; // positions say the places along it
    bool made;   // an output has it
    int8_t born;
    int64_t limit, size;
};

static int read_loops(struct graph *g, const struct node *n, struct loop loop[CARRY_LOOPS])
{
    for (int k = 0; k < n->nin; k++) {
        const struct value *v = get_operand(g, n, k);
        for (int d = 0; d < v->shape.n; d++) {
            struct loop *l = &loop[n->attr.label[k][d]];
            if (g->phase == PHASE_FORWARD && l->seen && l->limit != v->limit[d])
                return err_set(g->err, ERR_INVALID,
                               "dimension %s is padded in one operand of %s and not in another: "
                               "give both the size that is `padded`",
                               dims_name(g->dims, v->dims[d]), op_name(n->op));
            l->differ = l->differ || (l->seen && l->born != v->born[d]);
            l->born = l->seen && l->born ? l->born : v->born[d];
            l->limit = v->limit[d];
            l->size = v->shape.dim[d];
            l->placed |= v->dtype == DT_I32 && v->born[d] == DIM_SEQ;
            l->seen = true;
        }
    }
    return 0;
}

static void write_outputs(struct graph *g, const struct node *n, struct loop loop[CARRY_LOOPS])
{
    for (int k = 0; k < n->nout; k++) {
        struct value *v = &g->values[n->out[k]];
        for (int d = 0; d < v->shape.n; d++) {
            struct loop *l = &loop[n->attr.label[n->nin + k][d]];
            bool data = v->dims[d] == DIM_BATCH || v->dims[d] == DIM_SEQ;
            // A loop that no input has is along what it is called.
            v->born[d] = (int8_t)(l->seen ? l->born : data ? (int)v->dims[d] : DIM_NONE);
            v->limit[d] = l->seen ? l->limit : 0;
            l->made = true;
        }
    }
}

// ---- the order of a sequence, and of samples ---------------------------------------------------

// Whether the op takes the index along dimension d of operand k for a place.
static bool takes_index(const struct graph *g, const struct node *n, int k, int d,
                        const struct loop *l)
{
    const struct value *v = get_operand(g, n, k);
    switch (op_order(n->op)) {
    case ORDER_NONE:
    case ORDER_ROW:
        return false;
    case ORDER_FIRST:
        return d == 0 && k == operand_ordered(g, n);
    case ORDER_LAST:
        return d == v->shape.n - 1 && k == operand_ordered(g, n);
    case ORDER_POSITIONS: // samples are counted, whoever is first
        return v->born[d] == DIM_SEQ && !l->placed;
    case ORDER_ALL:
        break;
    }
    return true;
}

static void note(struct graph *g, const char **at, const char *text, const struct node *n,
                 enum dim dim)
{
    if (!*at)
        *at = arena_printf(g->arena, "%s %s %s", op_name(n->op), text, dims_name(g->dims, dim));
}

static void note_order(struct graph *g, const struct node *n, const struct loop loop[CARRY_LOOPS])
{
    for (int k = 0; k < n->nin; k++) {
        const struct value *v = get_operand(g, n, k);
        for (int d = 0; d < v->shape.n; d++) {
            const struct loop *l = &loop[n->attr.label[k][d]];
            bool row =
                op_order(n->op) == ORDER_ROW && d == v->shape.n - 1 && k == operand_ordered(g, n);
            if (!l->born)
                continue;
            bool takes = l->differ || takes_index(g, n, k, d, l);
            if (takes && l->born == DIM_SEQ)
                note(g, &g->ordered, "over", n, v->dims[d]);
            if ((takes || row) && l->born == DIM_BATCH)
                note(g, &g->mixed, "reads the samples of a microbatch together, along", n,
                     v->dims[d]);
        }
    }
}

// ---- sums over a microbatch --------------------------------------------------------------------

// Whether the op may be made of each microbatch's share, and the results added up.
static bool keeps_shares(const struct graph *g, const struct node *n)
{
    int shares = 0, samples = 0;
    for (int k = 0; k < n->nin; k++) {
        const struct value *v = get_operand(g, n, k);
        shares += v->share;
        for (int d = 0; d < v->shape.n && !v->share; d++)
            samples += v->born[d] == DIM_BATCH;
    }
    switch (n->op) {
    case OP_SCALE:
    case OP_CAST:
    case OP_SUM:
    case OP_SPLIT:
    case OP_PAD:
        return true;
    case OP_ADD:
    case OP_SUB:
        return shares == n->nin;
    case OP_MUL:
    case OP_MATMUL:
        return shares == 1 && !samples;
    case OP_DIV:
        return shares == 1 && get_operand(g, n, 0)->share && !samples;
    default:
        return false;
    }
}

static void note_shares(struct graph *g, const struct node *n, const struct loop loop[CARRY_LOOPS])
{
    bool shares = false, adds = false;
    const struct value *v = &g->values[n->out[0]];
    const char *what = NULL;
    int samples = 0;
    for (int k = 0; k < n->nin; k++)
        shares |= get_operand(g, n, k)->share;
    for (int i = 0; i < CARRY_LOOPS && !op_is(n->op, OP_OWN_LOOPS); i++)
        adds |= loop[i].born == DIM_BATCH && !loop[i].made;
    for (int d = 0; d < v->shape.n; d++)
        samples += v->born[d] == DIM_BATCH;
    if ((adds && n->op != OP_SUM && n->op != OP_MATMUL) || (adds && shares))
        what = "reads the samples of a microbatch together";
    else if (shares && !keeps_shares(g, n))
        what = "reads a sum over the samples of a microbatch";
    else if (samples > 1)
        what = "holds the samples of a microbatch against each other";
    if (what && !g->mixed)
        g->mixed = arena_printf(g->arena, "%s %s", op_name(n->op), what);
    for (int k = 0; k < n->nout; k++)
        g->values[n->out[k]].share = shares || adds;
}

int carry_dims(struct graph *g, const struct node *n)
{
    struct loop loop[CARRY_LOOPS] = {{0}};
    int rc = read_loops(g, n, loop);
    if (rc)
        return rc;
    write_outputs(g, n, loop);
    if (g->phase == PHASE_FORWARD) {
        note_order(g, n, loop);
        note_shares(g, n, loop);
    }
    return 0;
}

// ---- padding -----------------------------------------------------------------------------------

// Of zeros in the padding of the operands that have it. What is not here is taken to make others.
bool carry_keeps_zeros(const struct graph *g, const struct node *n, int d)
{
    int label = n->attr.label[n->nin][d];
    switch (n->op) {
    case OP_MATMUL:
    case OP_SUM:
    case OP_CAST:
    case OP_SCALE:
    case OP_MUL:
    case OP_RELU:
    case OP_GELU:
    case OP_TANH:
    case OP_SILU:
    case OP_DROPOUT:
    case OP_SPLIT:
    case OP_EMBED:
    case OP_DISPATCH:
    case OP_COMBINE:
    case OP_PAD:
    case OP_APPEND:
        return true;
    case OP_ADD:
    case OP_SUB:
        return operand_find_loop(g, n, 0, label) >= 0 && operand_find_loop(g, n, 1, label) >= 0;
    case OP_DIV: // its divisors are no zeros
        return operand_find_loop(g, n, 0, label) >= 0;
    case OP_SOFTMAX: // attr.limit
        return d == g->values[n->out[0]].shape.n - 1;
    default:
        return false;
    }
}
