// SPDX-License-Identifier: Apache-2.0
// Packed heads: found, then rewritten. See pack.h.
//
// A bundle is what one parameter's copy leads to. It is found by visiting values that must be
// transposed together, from one to the next; the first thing that does not fit ends the search, and
// nothing has been changed by then.
#include "common/compile/program/pack.h"

#include <string.h>

#include "common/compile/graph/operand.h"

enum { QUERIES = 3, ABSENT = -1 };
enum { WEIGHT_DIMS = 4, WHOLE_DIMS = 5 };
enum { BUNDLE_MAX = 64, HEADS_MAX = 16 };

// Where each dimension of a transposed value was before.
static const int weight_order[WEIGHT_DIMS] = {1, 0, 2, 3};
static const int whole_order[WHOLE_DIMS] = {1, 2, 0, 3, 4};

// One ATTENTION or its gradient. Queries are rotated where there are three pieces.
struct attend {
    int node, whole;     // what it reads of the bundle
    int rotary[QUERIES]; // ROTARY of each piece; ABSENT
    int stack;           // of the gradient: the node that puts the pieces together; else ABSENT
    int back[QUERIES];   // ROTARY of each gradient; ABSENT
};

struct packer {
    struct graph *g;
    int *first, *readers; // value → its readers' place in `readers`
    bool *in_bundle;      // value → it is of the bundle
    bool *gone;           // node → it is no longer there
    int pieces;           // of this bundle
    int nvalues, value[BUNDLE_MAX];
    int nheads;
    struct attend heads[HEADS_MAX];
};

static const struct value *get_value(const struct packer *p, int v)
{
    return &p->g->values[v];
}

static const struct node *get_producer(const struct packer *p, int v)
{
    int at = p->g->values[v].producer;
    return at < 0 ? NULL : &p->g->nodes[at];
}

static bool is_op(const struct node *n, enum op op)
{
    return n && n->kind == NODE_OP && n->op == op;
}

// The one node that reads a value; ABSENT: several do, or none.
static int find_only_reader(const struct packer *p, int v)
{
    return p->first[v + 1] - p->first[v] == 1 ? p->readers[p->first[v]] : ABSENT;
}

static int find_input(const struct node *n, int v)
{
    for (int k = 0; k < n->nin; k++)
        if (n->in[k] == v)
            return k;
    return ABSENT;
}

// ---- what is transposed together ---------------------------------------------------------------

static bool visit_value(struct packer *p, int v);

// Whether the value has the pieces as its first dimension, whole and in bf16.
static bool has_pieces(const struct packer *p, int v, int dims)
{
    const struct value *x = get_value(p, v);
    return x->kind == VALUE_TEMP && x->alias < 0 && x->dtype == DT_BF16 && x->shape.n == dims &&
           x->shape.dim[0] == p->pieces && x->spec.dim[0].n == 0 && !spec_partial(&x->spec);
}

// Whether dimension d of operand j runs over the loop of dimension e of operand k.
static bool same_loop(const struct node *n, int j, int d, int k, int e)
{
    return n->attr.label[j][d] == n->attr.label[k][e];
}

// x [batch, seq, ..] by the weight makes the whole: its rows are x's, pieces and heads the weight's.
static bool is_forward_product(const struct packer *p, const struct node *n, int weight)
{
    int w = find_input(n, weight);
    return is_op(n, OP_MATMUL) && n->in[0] != n->in[1] && has_pieces(p, n->out[0], WHOLE_DIMS) &&
           get_value(p, n->in[1 - w])->shape.n >= 2 && same_loop(n, 2, 0, w, 0) &&
           same_loop(n, 2, 1, 1 - w, 0) && same_loop(n, 2, 2, 1 - w, 1) &&
           same_loop(n, 2, 3, w, 2) && same_loop(n, 2, 4, w, 3);
}

// The whole's gradient by the weight: pieces and heads are summed, as they lie in both.
static bool is_backward_product(const struct packer *p, const struct node *n, int weight)
{
    int w = find_input(n, weight), whole = is_op(n, OP_MATMUL) ? n->in[1 - w] : ABSENT;
    return whole >= 0 && whole != weight && has_pieces(p, whole, WHOLE_DIMS) &&
           get_value(p, n->out[0])->shape.n == 3 && same_loop(n, 1 - w, 0, w, 0) &&
           same_loop(n, 1 - w, 3, w, 2) && same_loop(n, 1 - w, 4, w, 3) && same_loop(n, 2, 2, w, 1);
}

// A step of a gather, or a slice, of a weight on other dimensions than the pieces.
static bool moves_weight(const struct node *n)
{
    return n->kind == NODE_RESHARD && n->step.dim > 0 &&
           (n->step.kind == RESHARD_ALL_GATHER || n->step.kind == RESHARD_SLICE);
}

static bool visit_weight(struct packer *p, int v)
{
    const struct node *by = get_producer(p, v);
    bool fits = by && (moves_weight(by) ? visit_value(p, by->in[0])
                                        : node_casts_param(by) && by->attr.scale == 1 &&
                                              get_value(p, by->in[0])->kind == VALUE_PARAM);
    for (int r = p->first[v]; r < p->first[v + 1] && fits; r++) {
        const struct node *n = &p->g->nodes[p->readers[r]];
        if (moves_weight(n) || is_forward_product(p, n, v))
            fits = visit_value(p, n->out[0]);
        else
            fits = is_backward_product(p, n, v) && visit_value(p, n->in[n->in[0] == v]);
    }
    return fits;
}

// A bias of the pieces and heads is added to the whole `v`.
static bool adds_bias(const struct packer *p, const struct node *n, int v)
{
    int k = find_input(n, v);
    return is_op(n, OP_ADD) && !n->sums_cotangent && has_pieces(p, n->out[0], WHOLE_DIMS) &&
           get_value(p, n->in[1 - k])->shape.n < WHOLE_DIMS && operand_same_loops(n, k, 2);
}

// The gradient of the weight, x^T by the whole's gradient, or of the bias: both keep the pieces first.
static bool makes_gradient(const struct packer *p, const struct node *n, int v)
{
    int k = find_input(n, v);
    const struct value *made = get_value(p, n->out[0]);
    if (is_op(n, OP_SUM))
        return made->shape.n == 3 && same_loop(n, 1, 0, 0, 0) && same_loop(n, 1, 1, 0, 3) &&
               same_loop(n, 1, 2, 0, 4);
    return is_op(n, OP_MATMUL) && n->in[0] != n->in[1] && made->shape.n == WEIGHT_DIMS &&
           get_value(p, n->in[1 - k])->shape.n == 3 && same_loop(n, 2, 0, k, 0) &&
           same_loop(n, 2, 1, 1 - k, 2) && same_loop(n, 2, 2, k, 3) && same_loop(n, 2, 3, k, 4);
}

static bool visit_attention(struct packer *p, int node);

static bool visit_readers_of_piece(struct packer *p, int v, bool rotated)
{
    bool fits = true;
    for (int r = p->first[v]; r < p->first[v + 1] && fits; r++) {
        const struct node *n = &p->g->nodes[p->readers[r]];
        if (is_op(n, OP_ROTARY) && !rotated && n->in[0] == v)
            fits = visit_readers_of_piece(p, n->out[0], true);
        else
            fits = (is_op(n, OP_ATTENTION) || is_op(n, OP_ATTENTION_GRAD)) &&
                   visit_attention(p, p->readers[r]);
    }
    return fits;
}

// The gradients that STACK puts together come from one ATTENTION_GRAD, which reads the pieces.
static bool visit_stack(struct packer *p, const struct node *stack)
{
    const struct node *by = get_producer(p, stack->in[0]);
    if (is_op(by, OP_ROTARY))
        by = get_producer(p, by->in[0]);
    return stack->nin == p->pieces && is_op(by, OP_ATTENTION_GRAD) &&
           visit_attention(p, (int)(by - p->g->nodes));
}

static bool visit_whole(struct packer *p, int v)
{
    const struct node *by = get_producer(p, v);
    bool fits = by && by->when == EVERY_MICROBATCH;
    if (fits && is_op(by, OP_STACK))
        fits = visit_stack(p, by);
    else if (fits && is_op(by, OP_ADD))
        fits = visit_value(p, by->in[get_value(p, by->in[0])->shape.n < WHOLE_DIMS]) &&
               adds_bias(p, by, by->in[get_value(p, by->in[0])->shape.n < WHOLE_DIMS]);
    else
        fits = fits && is_op(by, OP_MATMUL) &&
               visit_value(p, by->in[get_value(p, by->in[0])->shape.n != WEIGHT_DIMS]);
    for (int r = p->first[v]; r < p->first[v + 1] && fits; r++) {
        const struct node *n = &p->g->nodes[p->readers[r]];
        if (adds_bias(p, n, v))
            fits = visit_value(p, n->out[0]);
        else if (is_op(n, OP_SPLIT))
            for (int k = 0; k < n->nout && fits; k++)
                fits = visit_readers_of_piece(p, n->out[k], false);
        else if (!makes_gradient(p, n, v))
            fits = is_op(n, OP_MATMUL) && visit_value(p, n->in[n->in[0] == v]);
    }
    return fits;
}

static bool visit_value(struct packer *p, int v)
{
    if (p->in_bundle[v])
        return true;
    int dims = get_value(p, v)->shape.n;
    if (p->nvalues == BUNDLE_MAX || !has_pieces(p, v, dims))
        return false;
    p->in_bundle[v] = true;
    p->value[p->nvalues++] = v;
    return dims == WEIGHT_DIMS ? visit_weight(p, v) : dims == WHOLE_DIMS && visit_whole(p, v);
}

// ---- attention ---------------------------------------------------------------------------------

// Which of q, k and v, or of their gradients, is piece k.
static int operand_of(const struct packer *p, int k)
{
    return QUERIES - p->pieces + k;
}

static bool same_rotary(const struct op_rotary *a, const struct op_rotary *b)
{
    return a->theta == b->theta && a->pairs == b->pairs && a->sweep == b->sweep &&
           a->offset == b->offset && a->gain == b->gain && a->scaling == b->scaling &&
           a->factor == b->factor && a->slow == b->slow && a->fast == b->fast &&
           a->length == b->length;
}

// Whether two ROTARYs rotate alike, by the same positions; ABSENT is like ABSENT.
static bool rotate_alike(const struct packer *p, int a, int b)
{
    if (a < 0 || b < 0)
        return a == b;
    const struct node *x = &p->g->nodes[a], *y = &p->g->nodes[b];
    return x->in[1] == y->in[1] && x->attr.scale == y->attr.scale && !x->attr.rotary.sweep &&
           same_rotary(&x->attr.rotary, &y->attr.rotary);
}

// Whether all pieces are rotated alike but the last, the values, which are not rotated.
static bool rotate_as_packed(const struct packer *p, const int *rotary)
{
    bool fits = rotary[p->pieces - 1] < 0;
    for (int k = 1; k < p->pieces - 1; k++)
        fits = fits && rotate_alike(p, rotary[0], rotary[k]);
    return fits && (rotary[0] < 0 || rotate_alike(p, rotary[0], rotary[0]));
}

// What attention reads are the pieces of one whole, in their order.
static bool reads_pieces(const struct packer *p, const struct node *n, struct attend *a)
{
    for (int k = 0; k < p->pieces; k++) {
        int v = n->in[operand_of(p, k)];
        const struct node *by = get_producer(p, v);
        a->rotary[k] = is_op(by, OP_ROTARY) ? get_value(p, v)->producer : ABSENT;
        v = a->rotary[k] < 0 ? v : by->in[0];
        by = get_producer(p, v);
        if (!is_op(by, OP_SPLIT) || by->nout != p->pieces || by->out[k] != v ||
            (k && by->in[0] != a->whole))
            return false;
        a->whole = by->in[0];
    }
    return rotate_as_packed(p, a->rotary);
}

// What the gradient makes is put together again, by one STACK in the same order.
static bool makes_pieces(const struct packer *p, const struct node *n, struct attend *a)
{
    for (int k = 0; k < p->pieces; k++) {
        int v = n->out[operand_of(p, k)], at = find_only_reader(p, v);
        a->back[k] = at >= 0 && is_op(&p->g->nodes[at], OP_ROTARY) ? at : ABSENT;
        if (a->back[k] >= 0) {
            v = p->g->nodes[at].out[0];
            at = find_only_reader(p, v);
        }
        const struct node *stack = at < 0 ? NULL : &p->g->nodes[at];
        if (!is_op(stack, OP_STACK) || stack->nin != p->pieces || stack->in[k] != v ||
            (k && at != a->stack))
            return false;
        a->stack = at;
    }
    return rotate_as_packed(p, a->back);
}

static bool visit_attention(struct packer *p, int node)
{
    const struct node *n = &p->g->nodes[node];
    struct attend a = {.node = node, .whole = ABSENT, .stack = ABSENT};
    const bool grad = n->op == OP_ATTENTION_GRAD;
    for (int i = 0; i < p->nheads; i++)
        if (p->heads[i].node == node)
            return true;
    if (p->nheads == HEADS_MAX || n->nin != (grad ? 8 : 5) || n->when != EVERY_MICROBATCH ||
        !reads_pieces(p, n, &a) || (grad && !makes_pieces(p, n, &a)))
        return false;
    // A ROTARY is read by those alone that read its partners too.
    for (int i = 0; i < p->nheads; i++)
        for (int k = 0; k < p->pieces; k++)
            if ((p->heads[i].rotary[0] == a.rotary[0]) != (p->heads[i].rotary[k] == a.rotary[k]) &&
                a.rotary[k] >= 0)
                return false;
    p->heads[p->nheads++] = a;
    return visit_value(p, a.whole) && (!grad || visit_value(p, p->g->nodes[a.stack].out[0]));
}

// ---- the same, transposed ----------------------------------------------------------------------

static void transpose_value(struct value *v)
{
    const struct value was = *v;
    const int *from = v->shape.n == WEIGHT_DIMS ? weight_order : whole_order;
    for (int d = 0; d < v->shape.n; d++) {
        v->shape.dim[d] = was.shape.dim[from[d]];
        v->dims[d] = was.dims[from[d]];
        v->spec.dim[d] = was.spec.dim[from[d]];
    }
}

// Loops are counted as the outputs' dimensions are, and the others after them.
static void number_loops(const struct graph *g, struct node *n)
{
    int8_t number[MAX_DIMS * 4];
    int next = 0;
    memset(number, ABSENT, sizeof number);
    for (int k = 0; k < n->nout + n->nin; k++) {
        int operand = k < n->nout ? n->nin + k : k - n->nout;
        const struct value *v = &g->values[k < n->nout ? n->out[k] : n->in[k - n->nout]];
        for (int d = 0; d < v->shape.n; d++) {
            int8_t *label = &n->attr.label[operand][d];
            if (number[*label] < 0)
                number[*label] = (int8_t)next++;
            *label = number[*label];
        }
    }
    n->attr.labels = (int8_t)next;
}

static void transpose_operand(struct node *n, int k, int dims)
{
    const int *from = dims == WEIGHT_DIMS ? weight_order : whole_order;
    int8_t was[MAX_DIMS];
    memcpy(was, n->attr.label[k], sizeof was);
    for (int d = 0; d < dims; d++)
        n->attr.label[k][d] = was[from[d]];
}

static void transpose_node(struct packer *p, struct node *n)
{
    bool any = false;
    for (int k = 0; k < n->nin + n->nout; k++) {
        int v = operand_id(n, k);
        if (!p->in_bundle[v])
            continue;
        if (n->kind == NODE_OP)
            transpose_operand(n, k, get_value(p, v)->shape.n);
        any = true;
    }
    if (any && n->kind == NODE_OP)
        number_loops(p->g, n);
    if (any && n->kind == NODE_RESHARD) {
        int to = 0;
        while (weight_order[to] != n->step.dim)
            to++;
        n->step.dim = to;
        n->step.after = get_value(p, n->out[0])->spec;
    }
}

static int make_like(struct graph *g, int like)
{
    struct value v = g->values[like];
    int made = graph_value(g, VALUE_TEMP, NULL, v.dtype, v.shape.n, v.dims, v.shape.dim);
    g->values[made].spec = v.spec;
    g->values[made].stages = v.stages;
    g->values[made].point = v.point;
    return made;
}

// Node `at` becomes the ROTARY_PACKED that rotates `from` into `to` as ROTARY `like` does.
static void put_rotary(struct packer *p, int at, int like, int from, int to)
{
    struct node *n = &p->g->nodes[at], rotary = p->g->nodes[like];
    n->op = OP_ROTARY_PACKED;
    n->attr = rotary.attr;
    n->nin = 2;
    n->nout = 1;
    n->in[0] = from;
    n->in[1] = rotary.in[1];
    n->out[0] = to;
    memset(n->attr.label, 0, sizeof n->attr.label);
    for (int d = 0; d < WHOLE_DIMS; d++)
        n->attr.label[0][d] = n->attr.label[2][d] = (int8_t)d;
    n->attr.label[1][1] = 1;
    n->attr.labels = WHOLE_DIMS;
    p->g->values[to].producer = at;
}

// The rotated whole that attention reads: made by the first of its ROTARYs, once for all readers.
static int rotate_pieces(struct packer *p, const struct attend *a)
{
    int at = a->rotary[0];
    if (at < 0)
        return a->whole;
    if (p->g->nodes[at].op == OP_ROTARY_PACKED)
        return p->g->nodes[at].out[0];
    for (int k = 1; k < p->pieces - 1; k++)
        p->gone[a->rotary[k]] = true;
    int made = make_like(p->g, a->whole);
    put_rotary(p, at, at, a->whole, made);
    return made;
}

// Copies operand `from` of a node, value and labels, to place `to` of another.
static void copy_input(struct node *n, int to, const struct node *was, int from)
{
    n->in[to] = was->in[from];
    memcpy(n->attr.label[to], was->attr.label[from], sizeof n->attr.label[to]);
}

static void put_label_of_pieces(struct node *n, int operand, const struct node *was)
{
    const int8_t *k = was->attr.label[1], pieces = was->attr.labels;
    const int8_t all[WHOLE_DIMS] = {k[0], k[1], pieces, k[2], k[3]};
    memset(n->attr.label[operand], 0, sizeof n->attr.label[operand]);
    memcpy(n->attr.label[operand], all, sizeof all);
}

static void pack_attention(struct packer *p, const struct attend *a)
{
    struct graph *g = p->g;
    int whole = rotate_pieces(p, a), stacked = a->stack < 0 ? ABSENT : g->nodes[a->stack].out[0];
    int made = a->stack >= 0 && a->back[0] >= 0 ? make_like(g, stacked) : stacked;
    struct node was = g->nodes[a->node], *n = &g->nodes[a->node];
    bool grad = was.op == OP_ATTENTION_GRAD;
    n->op = grad ? OP_ATTENTION_PACKED_GRAD : OP_ATTENTION_PACKED;
    n->nin = 0;
    if (p->pieces < QUERIES)
        copy_input(n, n->nin++, &was, 0);
    n->in[n->nin] = whole;
    put_label_of_pieces(n, n->nin++, &was);
    for (int k = QUERIES; k < was.nin; k++)
        copy_input(n, n->nin++, &was, k);
    n->attr.labels = (int8_t)(was.attr.labels + 1);
    n->nout = grad ? 0 : was.nout;
    for (int k = 0; k < (grad ? QUERIES - p->pieces : was.nout); k++) {
        n->out[k] = was.out[k];
        memcpy(n->attr.label[n->nin + k], was.attr.label[was.nin + k], sizeof was.attr.label[0]);
        n->nout = k + 1;
    }
    if (!grad)
        return;
    n->out[n->nout] = made;
    put_label_of_pieces(n, n->nin + n->nout++, &was);
    g->values[made].producer = a->node;
    p->gone[a->stack] = made == stacked;
    if (made != stacked)
        put_rotary(p, a->stack, a->back[0], made, stacked);
    for (int k = 0; k < p->pieces - 1 && a->back[k] >= 0; k++)
        p->gone[a->back[k]] = true;
}

static void transpose_bundle(struct packer *p)
{
    struct graph *g = p->g;
    for (int i = 0; i < p->nvalues; i++)
        transpose_value(&g->values[p->value[i]]);
    for (int i = 0; i < p->nvalues; i++) {
        int v = p->value[i];
        for (int r = p->first[v]; r < p->first[v + 1]; r++)
            p->gone[p->readers[r]] |= is_op(&g->nodes[p->readers[r]], OP_SPLIT);
    }
    for (int i = 0; i < g->nnodes; i++)
        if (!p->gone[i] && !is_op(&g->nodes[i], OP_STACK))
            transpose_node(p, &g->nodes[i]);
    for (int i = 0; i < p->nheads; i++)
        pack_attention(p, &p->heads[i]);
}

void pack_heads(struct graph *g)
{
    struct packer p = {.g = g};
    graph_find_readers(g, &p.first, &p.readers);
    p.in_bundle = arena_array(g->arena, bool, (size_t)g->nvalues + 2 * (size_t)g->nnodes);
    p.gone = arena_array(g->arena, bool, g->nnodes);
    for (int i = 0; i < g->nnodes; i++) {
        if (!node_casts_param(&g->nodes[i]) || p.gone[i])
            continue;
        int copy = g->nodes[i].out[0];
        const struct value *v = &g->values[copy];
        p.pieces = v->shape.n == WEIGHT_DIMS ? (int)v->shape.dim[0] : 0;
        p.nvalues = p.nheads = 0;
        bool fits = (p.pieces == 2 || p.pieces == QUERIES) && visit_value(&p, copy) && p.nheads;
        if (fits)
            transpose_bundle(&p);
        for (int k = 0; k < p.nvalues; k++)
            p.in_bundle[p.value[k]] = false;
    }
    graph_drop_nodes(g, p.gone);
}
