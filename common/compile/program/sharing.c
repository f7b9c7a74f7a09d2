// SPDX-License-Identifier: Apache-2.0
// Which values share a buffer. See sharing.h.
#include "common/compile/program/sharing.h"

#include "common/compile/graph/operand.h"
#include "common/compile/graph/optable.h"
#include "common/compile/program/memory_plan.h"

// Whether this stage runs a node.
static bool runs_here(const struct sharing *s, const struct node *n)
{
    return n->stages >> s->stage & 1;
}

static void find_roots(struct sharing *s)
{
    const struct graph *g = s->g;
    const struct id_list *values = &s->part->values;
    for (int i = 0; i < values->n; i++)
        s->root[values->at[i]] = values->at[i];
    for (int i = 0; i < s->part->sums.n; i++) {
        const struct sum *sum = &g->sums[s->part->sums.at[i]];
        for (int c = 0, first = 1; c < sum->n; c++) {
            int v = sum->contrib[c];
            s->root[v] = sum->value;
            s->first_of[v] = first ? 1 : 2;
            first &= !runs_here(s, &g->nodes[g->values[v].producer]);
        }
    }
    // Aliases point at what was there before them; follow each to its end.
    for (int i = 0; i < values->n; i++) {
        int v = values->at[i], r = v;
        while (g->values[r].alias >= 0 || s->root[r] != r)
            r = g->values[r].alias >= 0 ? g->values[r].alias : s->root[r];
        s->root[v] = r;
    }
}

struct shape sharing_shape(const struct sharing *s, int value)
{
    const struct value *v = &s->g->values[value];
    return spec_local(&v->spec, s->mesh, &v->shape);
}

static uint64_t count_bytes(const struct sharing *s, int value)
{
    struct shape shape = sharing_shape(s, value);
    return (uint64_t)shape_count(&shape) * dtype_size(s->g->values[value].dtype);
}

bool sharing_all_microbatches(const struct sharing *s, int root)
{
    const struct value *v = &s->g->values[root];
    return v->kind != VALUE_TEMP ||
           (v->producer >= 0 && s->g->nodes[v->producer].when == FIRST_MICROBATCH);
}

// A value's root, once roots have been joined: chains are cut short on the way.
static int find_root(struct sharing *s, int v)
{
    while (s->root[s->root[v]] != s->root[v])
        s->root[v] = s->root[s->root[v]];
    return s->root[v];
}

// Whether output k of a node may lie over an input: a temporary of its own shape and dtype, which
// it reads last, once, and in the same order.
static bool may_cover(struct sharing *s, int node, int input, int output)
{
    const struct graph *g = s->g;
    const struct node *n = &g->nodes[node];
    int in = find_root(s, n->in[input]), out = n->out[output];
    struct shape a = sharing_shape(s, n->in[input]), b = sharing_shape(s, out);
    bool free = s->root[out] == out && g->values[in].kind == VALUE_TEMP && s->within[in] < 0 &&
                s->within[out] < 0 && s->last_read[in] == node && shape_equal(&a, &b) &&
                g->values[in].dtype == g->values[out].dtype && !sharing_all_microbatches(s, in) &&
                operand_same_loops(n, input, n->nin + output);
    for (int k = 0; k < n->nin && free; k++)
        free = k == input || find_root(s, n->in[k]) != in;
    return free;
}

// ---- pieces of a whole -------------------------------------------------------------------------

int sharing_place(const struct sharing *s, int value, uint64_t *offset)
{
    int root = s->root[value];
    *offset = 0;
    for (; s->within[root] >= 0; root = s->root[s->within[root]])
        *offset += s->at[root];
    return root;
}

bool sharing_in_pieces(const struct sharing *s, const struct node *n)
{
    bool split = op_is(n->op, OP_MAKES_PIECES);
    if (n->kind != NODE_OP || (!split && !op_is(n->op, OP_TAKES_PIECES)))
        return false;
    int piece = s->root[split ? n->out[0] : n->in[0]], whole = split ? n->in[0] : n->out[0];
    return s->within[piece] >= 0 && s->root[s->within[piece]] == s->root[whole];
}

// Whether a value is a temporary that is made again in each microbatch and has a place of its own.
static bool is_free(const struct sharing *s, int value)
{
    return s->g->values[value].kind == VALUE_TEMP && s->root[value] == value &&
           s->within[value] < 0 && !sharing_all_microbatches(s, value);
}

static void put_within(struct sharing *s, int piece, int whole, int k)
{
    s->within[piece] = whole;
    s->at[piece] = (uint64_t)k * count_bytes(s, piece);
}

// Whether a piece may lie in its whole. It must begin where a buffer might, since kernels rely on
// that alignment, and no collective or send may touch it, since these work on whole buffers.
static bool may_lie_within(const struct sharing *s, int piece, const struct readers *of)
{
    return !of[piece].others && is_free(s, piece) && count_bytes(s, piece) % PLAN_ALIGN == 0;
}

// How many of its inputs, the first ones, an op may write over.
static int count_covered(const struct node *n)
{
    bool any = op_is(n->op, OP_IS_FUSED) || op_is(n->op, OP_OVER_ANY);
    return n->kind != NODE_OP || !op_is(n->op, OP_IN_PLACE) ? 0 : any ? n->nin : 1;
}

// Whether an op may write over input k where that is, or will be, a piece of a whole.
static bool may_cover_piece(struct sharing *s, int node, int k, const struct readers *of)
{
    const struct node *n = &s->g->nodes[node];
    return n->when == EVERY_MICROBATCH && runs_here(s, n) && n->nout == 1 &&
           !op_is(n->op, OP_IS_FUSED) && k < count_covered(n) && may_cover(s, node, k, 0) &&
           may_lie_within(s, n->in[k], of) && may_lie_within(s, n->out[0], of);
}

// Whether node `end` is the last to read a value. Where its last reader is an op that may write its
// output over it, that output is asked instead, and so on; if `root` is not −1, all outputs on the
// way become aliases of `root`.
static bool lasts_until(struct sharing *s, int value, int end, const struct readers *of, int root)
{
    int at = s->last_read[value], k = 0;
    if (at < 0 || at >= end)
        return at == end;
    const struct node *n = &s->g->nodes[at];
    while (n->in[k] != value) {
        k++;
        PRE(k < n->nin);
    }
    if (!may_cover_piece(s, at, k, of) || !lasts_until(s, n->out[0], end, of, root))
        return false;
    if (root >= 0)
        s->root[n->out[0]] = root;
    return true;
}

// Whether ops may write over piece k of a SPLIT, `end` being the last node to read their results:
// nothing reads the whole after this SPLIT, and nobody reads the piece that an earlier SPLIT made
// there later than this one.
static bool may_be_covered(struct sharing *s, const struct node *n, int k, int end,
                           const struct node *earlier, const struct readers *of)
{
    int last = s->last_read[n->out[k]];
    return s->last_read[n->in[0]] == (int)(n - s->g->nodes) &&
           (!earlier || s->last_read[earlier->out[k]] <= last) &&
           lasts_until(s, n->out[k], end, of, -1);
}

// Whether the pieces of a SPLIT may lie in their whole. SPLITs alone may read the whole, and the
// pieces must all be read for the last time by one node, or not after the whole: else the whole
// buffer would live on for the sake of one piece. What is made over a piece counts as that piece.
static bool may_share_split(struct sharing *s, const struct node *n, int end,
                            const struct node *earlier, const struct readers *of)
{
    int whole = n->in[0], kept = s->last_read[whole];
    bool may = !of[whole].ops && !of[whole].others && s->g->values[whole].kind == VALUE_TEMP &&
               s->root[whole] == whole && !sharing_all_microbatches(s, whole);
    for (int k = 0; k < n->nout && may; k++)
        may = may_lie_within(s, n->out[k], of) && (end <= kept || s->last_read[n->out[k]] == end ||
                                                   may_be_covered(s, n, k, end, earlier, of));
    return may;
}

// Puts the pieces of a SPLIT into their whole. Where a SPLIT of the same whole has run before, its
// pieces are there already, and the later ones become aliases of them.
static void share_split(struct sharing *s, const struct node *n, const struct readers *of,
                        const struct node **split)
{
    int whole = n->in[0], end = -1;
    const struct node *earlier = split[whole];
    for (int k = 0; k < n->nout; k++)
        end = s->last_read[n->out[k]] > end ? s->last_read[n->out[k]] : end;
    if (!may_share_split(s, n, end, earlier, of))
        return;
    for (int k = 0; k < n->nout; k++) {
        int piece = n->out[k], root = earlier ? earlier->out[k] : piece;
        if (end > s->last_read[whole] && lasts_until(s, piece, end, of, root))
            s->last_read[piece] = end;
        if (!earlier)
            put_within(s, piece, whole, k);
        else if (s->last_read[piece] > s->last_read[root])
            s->last_read[root] = s->last_read[piece];
        s->root[piece] = root;
    }
    split[whole] = earlier ? earlier : n;
}

// Finds the output of node `from` which `value` is, or over which a row of ops, one after the other,
// made `value`; −1: there is none. With `alias` all that these ops made become aliases of it.
static int find_origin(struct sharing *s, int value, int from, const struct readers *of, bool alias)
{
    int at = s->g->values[value].producer, origin = -1;
    if (at < 0 || at == from)
        return at < 0 ? -1 : value;
    const struct node *n = &s->g->nodes[at];
    for (int k = 0; k < n->nin && origin < 0; k++)
        if (may_cover_piece(s, at, k, of))
            origin = find_origin(s, n->in[k], from, of, alias);
    if (origin >= 0 && alias)
        s->root[value] = origin;
    return origin;
}

// Finds the one node that makes all pieces of a STACK, or the values over which ops make them; −1:
// there is none. The search begins with the producer of `value`, a piece, and goes back through
// inputs over which ops may write.
static int find_maker(struct sharing *s, const struct node *stack, int value,
                      const struct readers *of)
{
    int from = s->g->values[value].producer, maker = from;
    for (int k = 0; k < stack->nin && maker >= 0; k++)
        maker = find_origin(s, stack->in[k], from, of, false) < 0 ? -1 : from;
    const struct node *n = from < 0 ? NULL : &s->g->nodes[from];
    for (int k = 0; n && k < n->nin && maker < 0; k++)
        if (may_cover_piece(s, from, k, of))
            maker = find_maker(s, stack, n->in[k], of);
    return maker;
}

// Puts the pieces of a STACK into its output, so that they are made where they belong. The STACK
// must be all that reads them, and one node must make them all (find_maker).
static void share_stack(struct sharing *s, const struct node *n, const struct readers *of)
{
    const struct graph *g = s->g;
    int from = is_free(s, n->out[0]) ? find_maker(s, n, n->in[0], of) : -1;
    bool may = from >= 0 && runs_here(s, &g->nodes[from]) && g->nodes[from].phase == n->phase;
    for (int k = 0; k < n->nin && may; k++)
        may = of[n->in[k]].n == 1 && may_lie_within(s, n->in[k], of);
    for (int k = 0; k < n->nin && may; k++) {
        int origin = find_origin(s, n->in[k], from, of, true);
        s->last_read[origin] = s->last_read[n->in[k]];
        put_within(s, origin, n->out[0], k);
    }
}

static void find_pieces(struct sharing *s, struct arena *a)
{
    const struct readers *of = s->part->readers;
    const struct node **split = arena_array(a, const struct node *, s->g->nvalues);
    for (int i = 0; i < s->part->nodes.n; i++) {
        const struct node *n = &s->g->nodes[s->part->nodes.at[i]];
        if (n->kind != NODE_OP || n->when != EVERY_MICROBATCH)
            continue;
        if (op_is(n->op, OP_MAKES_PIECES))
            share_split(s, n, of, split);
        if (op_is(n->op, OP_TAKES_PIECES))
            share_stack(s, n, of);
    }
}

// ---- in place ----------------------------------------------------------------------------------

// Lets ops write over their inputs: one that works in place over its first input, a fused one with
// each output over some input. A sum is not written over an input, for it is made while the inputs
// are still read. NORM_GRAD writes over pieces alone: a whole buffer that it covered would live
// longer, and plans of pipelines would grow. The choice is made on the graph, so it holds for every
// microbatch.
static void find_in_place(struct sharing *s)
{
    const struct graph *g = s->g;
    const struct id_list *nodes = &s->part->nodes, *values = &s->part->values;
    for (int i = 0; i < nodes->n; i++) {
        const struct node *n = &g->nodes[nodes->at[i]];
        int inputs = count_covered(n);
        if (op_is(n->op, OP_OVER_ANY) || (n->nout != 1 && !op_is(n->op, OP_IS_FUSED)))
            continue;
        int end = op_is(n->op, OP_ACCUMULATES) ? op_first_sum(n->op) : n->nout;
        for (int o = 0; o < end; o++)
            for (int k = 0; k < inputs; k++) {
                if (!may_cover(s, nodes->at[i], k, o))
                    continue;
                int in = find_root(s, n->in[k]);
                s->root[n->out[o]] = in;
                s->last_read[in] = s->last_read[n->out[o]];
                break;
            }
    }
    for (int i = 0; i < values->n; i++)
        s->root[values->at[i]] = find_root(s, values->at[i]);
}

void sharing_find(struct sharing *s, const struct graph *g, const struct mesh *m,
                  const struct stage_part *part, int stage, struct arena *a)
{
    *s = (struct sharing){.g = g,
                          .mesh = m,
                          .part = part,
                          .stage = stage,
                          .root = arena_array(a, int, g->nvalues),
                          .last_read = arena_array(a, int, g->nvalues),
                          .first_of = arena_array(a, int, g->nvalues),
                          .within = arena_array(a, int, g->nvalues),
                          .at = arena_array(a, uint64_t, g->nvalues)};
    for (int i = 0; i < part->values.n; i++)
        s->within[part->values.at[i]] = -1;
    find_roots(s);
    for (int i = 0; i < s->part->values.n; i++)
        s->last_read[s->part->values.at[i]] = -1;
    for (int i = 0; i < s->part->nodes.n; i++) {
        const struct node *n = &s->g->nodes[s->part->nodes.at[i]];
        for (int k = 0; k < n->nin; k++)
            s->last_read[s->root[n->in[k]]] = s->part->nodes.at[i];
    }
    find_pieces(s, a);
    find_in_place(s);
}
