// SPDX-License-Identifier: Apache-2.0
// A residual sum and its norm become ADD_NORM, a norm's gradient and its sum with what else leads
// to the same place NORM_GRAD_ADD. See fuse.h.
//
// On a GPU that becomes NORM_GRADS with the sums over rows that read the same: those for the norm's
// weight and bias, and that of the gradient it makes, which is a bias's before it. So does the
// gradient of the last norm, which nothing is added to. Contributions to gradients are made in their
// turn, and a reduction may read their sum right behind them: so the fused node stands where the
// first of its parts stood.
//
// A sum at a layer's end and the norm that the next begins with are two scopes: these two alone
// become one across scopes. A reshard or a send between them keeps them apart.
#include <string.h>

#include "common/compile/program/fuse_match.h"

static bool same_layout(const struct graph *g, int a, int b)
{
    const struct value *x = &g->values[a], *y = &g->values[b];
    return x->dtype == y->dtype && shape_equal(&x->shape, &y->shape) &&
           spec_equal(&x->spec, &y->spec);
}

static void label_as(struct node *to, int k, const struct node *from, int j)
{
    memcpy(to->attr.label[k], from->attr.label[j], sizeof to->attr.label[k]);
}

int fuse_add_norm(struct fuse *f, int node)
{
    struct graph *g = f->g;
    const struct node *norm = &g->nodes[node];
    int at = norm->kind == NODE_OP && norm->op == OP_NORM ? fuse_near(f, node, 0) : -1;
    if (at < 0 || !fuse_adds_alike(g, &g->nodes[at]) || !operand_same_loops(norm, 0, norm->nin) ||
        !same_layout(g, norm->in[0], norm->out[0]))
        return -1;
    int place = fuse_place(f, at, node);
    if (place < 0)
        return -1;
    const struct node *add = &g->nodes[at];
    struct node made = g->nodes[place];
    made.op = OP_ADD_NORM;
    made.sums_cotangent = false;
    made.attr = norm->attr;
    made.nin = norm->nin + 1;
    made.nout = 2;
    for (int k = 0; k < 2; k++) {
        made.in[k] = add->in[k];
        label_as(&made, k, norm, 0);
        label_as(&made, made.nin + k, norm, 0);
    }
    for (int k = 1; k < norm->nin; k++) {
        made.in[k + 1] = norm->in[k];
        label_as(&made, k + 1, norm, k);
    }
    made.out[0] = add->out[0];
    made.out[1] = norm->out[0];
    fuse_put(f, at, node, place, &made);
    return -1;
}

// Whether a norm's gradient, its x and dy are alike.
static bool is_alike(const struct graph *g, const struct node *grad)
{
    bool same = true;
    for (int k = 0; k < 2; k++)
        same = same && operand_same_loops(grad, k, grad->nin) &&
               same_layout(g, grad->in[k], grad->out[0]);
    return same;
}

static void grad_add(struct fuse *f, int grad_at, int add_at, int other)
{
    struct graph *g = f->g;
    const struct node *grad = &g->nodes[grad_at];
    struct node made = g->nodes[add_at];
    made.op = OP_NORM_GRAD_ADD;
    made.sums_cotangent = false;
    made.attr = grad->attr;
    made.nin = grad->nin + 1;
    made.in[0] = other;
    for (int k = 0; k < grad->nin; k++) {
        made.in[k + 1] = grad->in[k];
        label_as(&made, k + 1, grad, k);
    }
    label_as(&made, 0, grad, grad->nin);
    label_as(&made, made.nin, grad, grad->nin);
    fuse_put(f, grad_at, add_at, add_at, &made);
}

int fuse_norm_grad_add(struct fuse *f, int node)
{
    const struct graph *g = f->g;
    const struct node *add = &g->nodes[node];
    if (!fuse_adds_alike(g, add) || add->in[0] == add->in[1])
        return -1;
    for (int k = 0; k < 2; k++) {
        int at = fuse_near(f, node, k);
        const struct node *grad = at < 0 ? NULL : &g->nodes[at];
        if (!grad || grad->op != OP_NORM_GRAD || fuse_read_by_others(f, grad->out[0], at, node) ||
            !is_alike(g, grad))
            continue;
        grad_add(f, at, node, add->in[1 - k]);
        return -1;
    }
    return -1;
}

// The parts of NORM_GRADS: the gradient of x, and sums for weight, bias and the bias before.
enum { GRAD, WEIGHT, BIAS, BEFORE, PARTS };

// Finds the node of this op that sums a value over all its rows and may be made with the gradient;
// −1: there is none.
static int find_sum(const struct fuse *f, int grad, enum op op, int value)
{
    const struct graph *g = f->g;
    const struct node *of = &g->nodes[grad];
    for (int r = f->first[value]; r < f->first[value + 1]; r++) {
        int at = f->readers[r], last = g->values[value].shape.n - 1;
        const struct node *n = &g->nodes[at];
        if (f->into[at] != at || n->kind != NODE_OP || n->op != op || !fuse_takes_sum(f, grad, at))
            continue;
        bool weight = op == OP_NORM_WEIGHT_GRAD;
        bool same = weight ? n->in[0] == of->in[of->nin - 3] && n->in[1] == of->in[of->nin - 2] &&
                                 operand_same_loops(n, 0, 1) && n->attr.eps == of->attr.eps &&
                                 n->attr.center == of->attr.center
                           : n->attr.scale == 1;
        if (same && g->values[n->out[0]].shape.n == 1 &&
            n->attr.label[n->nin][0] == n->attr.label[0][last])
            return at;
    }
    return -1;
}

// Finds the parts that belong to node GRAD, −1 where there is none. A part that adds to a sum over
// microbatches is left out where the weight's does not, and the other way round: one call does
// either. No part is there without the one before it.
static void find_parts(const struct fuse *f, int part[PARTS])
{
    const struct node *n = &f->g->nodes[part[GRAD]];
    const int dy = n->in[n->nin - 2], value[PARTS] = {0, dy, dy, n->out[0]};
    for (int k = WEIGHT; k < PARTS; k++) {
        enum op op = k == WEIGHT ? OP_NORM_WEIGHT_GRAD : OP_SUM;
        part[k] = k > WEIGHT && part[k - 1] < 0 ? -1 : find_sum(f, part[GRAD], op, value[k]);
        if (part[k] >= 0 &&
            f->shares[f->g->nodes[part[k]].out[0]] != f->shares[f->g->nodes[part[WEIGHT]].out[0]])
            part[k] = -1;
    }
}

static void put_grads(struct fuse *f, const int part[PARTS], int place)
{
    struct graph *g = f->g;
    const struct node grad = g->nodes[part[GRAD]];
    const int last = g->values[grad.out[0]].shape.n - 1;
    struct node made = g->nodes[place];
    made.op = OP_NORM_GRADS;
    made.attr = grad.attr;
    made.nin = grad.nin;
    memcpy(made.in, grad.in, sizeof made.in);
    made.nout = 1;
    made.out[0] = grad.out[0];
    for (int k = WEIGHT; k < PARTS && part[k] >= 0; k++) {
        made.attr.label[made.nin + made.nout][0] = grad.attr.label[0][last];
        made.out[made.nout++] = g->nodes[part[k]].out[0];
    }
    for (int k = 0; k < PARTS; k++)
        if (part[k] >= 0 && part[k] != place)
            fuse_put(f, place, part[k], place, &made);
}

int fuse_norm_grads(struct fuse *f, int node)
{
    const struct node *n = &f->g->nodes[node];
    int part[PARTS] = {node}, place = node;
    bool alone = n->kind == NODE_OP && n->op == OP_NORM_GRAD && n->nin == 3 && is_alike(f->g, n);
    bool added = n->kind == NODE_OP && n->op == OP_NORM_GRAD_ADD && n->nin == 4;
    if (!alone && !added)
        return -1;
    find_parts(f, part);
    for (int k = WEIGHT; k < PARTS; k++)
        place = part[k] >= 0 && part[k] < place ? part[k] : place;
    if (part[WEIGHT] >= 0 && fuse_ready_at(f, node, place))
        put_grads(f, part, place);
    return -1;
}
