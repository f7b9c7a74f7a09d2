// SPDX-License-Identifier: Apache-2.0
// The loss's rows: maximum, sum of exponentials and pick become ROW_LOSS where the vocabulary is
// whole (a cut one has a reduction behind each); the two parts of their gradient and the sum of
// these ROW_LOSS_GRAD, cut or not. See fuse.h.
//
// That gradient may be written over the logits, since it is the last to read them: of three tensors
// of their size one remains. Where every row's loss has one cotangent, known before there is a
// loss, both become ROW_LOSS_BOTH, in the forward: a row is read the second time while it is in a
// cache. What the forward then leaves for the backward is the gradient, in the logits' place.
#include <string.h>

#include "common/compile/program/fuse_match.h"

static bool is_op(const struct fuse *f, int node, enum op op)
{
    const struct node *n = &f->g->nodes[node];
    return f->into[node] == node && n->kind == NODE_OP && n->op == op;
}

// The rows of operand k, one number each, in the order of those of operand `wide`.
static bool has_rows(const struct graph *g, const struct node *n, int k, int wide)
{
    const struct value *v = &g->values[wide < n->nin ? n->in[wide] : n->out[0]];
    return memcmp(n->attr.label[k], n->attr.label[wide], (size_t)v->shape.n - 1) == 0;
}

// The pick from the rows of x that stands beside a node; −1: none.
static int find_pick(const struct fuse *f, int x, int node)
{
    const struct graph *g = f->g;
    for (int r = f->first[x]; r < f->first[x + 1]; r++) {
        int at = f->readers[r];
        if (is_op(f, at, OP_PICK) && fuse_beside(f, at, node) && has_rows(g, &g->nodes[at], 1, 0) &&
            has_rows(g, &g->nodes[at], 2, 0))
            return at;
    }
    return -1;
}

static void put_loss(struct fuse *f, int max, int sum, int pick)
{
    struct graph *g = f->g;
    struct node made = g->nodes[sum];
    made.op = OP_ROW_LOSS;
    made.in[1] = g->nodes[pick].in[1];
    made.nout = 3;
    made.out[0] = g->nodes[max].out[0];
    made.out[1] = g->nodes[sum].out[0];
    made.out[2] = g->nodes[pick].out[0];
    for (int k = 1; k < made.nin + made.nout; k++)
        memcpy(made.attr.label[k], g->nodes[sum].attr.label[1], sizeof made.attr.label[k]);
    fuse_put(f, sum, max, max, &made);
    fuse_put(f, pick, max, max, &made);
}

int fuse_row_loss(struct fuse *f, int node)
{
    const struct graph *g = f->g;
    const struct node *sum = &g->nodes[node];
    int at = is_op(f, node, OP_ROW_SUM_EXP) ? fuse_near(f, node, 1) : -1;
    if (at < 0 || !is_op(f, at, OP_ROW_MAX) || g->nodes[at].in[0] != sum->in[0] ||
        g->nodes[at].attr.limit != sum->attr.limit || !has_rows(g, sum, 1, 0) ||
        !has_rows(g, sum, 2, 0) || !has_rows(g, &g->nodes[at], 1, 0))
        return -1;
    int pick = find_pick(f, sum->in[0], node);
    if (pick < 0 || g->values[g->nodes[pick].in[1]].producer >= at)
        return -1;
    put_loss(f, at, node, pick);
    return -1;
}

static bool is_only_reader(const struct fuse *f, int node, int reader)
{
    return !fuse_read_by_others(f, f->g->nodes[node].out[0], node, reader);
}

static void put_loss_grad(struct fuse *f, int exp, int pick, int add)
{
    struct graph *g = f->g;
    const struct node *first = &g->nodes[exp], *second = &g->nodes[pick];
    struct node made = g->nodes[add];
    made.op = OP_ROW_LOSS_GRAD;
    made.sums_cotangent = false;
    made.attr = first->attr;
    made.nin = 5;
    for (int k = 0; k < 3; k++)
        made.in[k] = first->in[k];
    for (int k = 0; k < 2; k++)
        made.in[3 + k] = second->in[k];
    for (int k = 1; k < 6; k++)
        memcpy(made.attr.label[k], first->attr.label[k < 5 ? 1 : 0], sizeof made.attr.label[k]);
    fuse_put(f, exp, add, add, &made);
    fuse_put(f, pick, add, add, &made);
}

int fuse_row_loss_grad(struct fuse *f, int node)
{
    const struct graph *g = f->g;
    const struct node *add = &g->nodes[node];
    for (int k = 0; k < 2 && fuse_adds_alike(g, add); k++) {
        int exp = fuse_near(f, node, k), pick = fuse_near(f, node, 1 - k);
        if (exp < 0 || pick < 0 || !is_op(f, exp, OP_ROW_EXP_MUL) || !is_op(f, pick, OP_PICK_GRAD))
            continue;
        const struct node *first = &g->nodes[exp], *second = &g->nodes[pick];
        const struct value *x = &g->values[first->in[0]], *made = &g->values[add->out[0]];
        bool rows = has_rows(g, first, 1, 0) && has_rows(g, first, 2, 0) &&
                    has_rows(g, second, 0, 2) && has_rows(g, second, 1, 2);
        bool same = shape_equal(&x->shape, &made->shape) && spec_equal(&x->spec, &made->spec) &&
                    x->dtype == made->dtype && g->values[second->out[0]].dtype == made->dtype;
        if (!rows || !same || !is_only_reader(f, exp, node) || !is_only_reader(f, pick, node))
            continue;
        put_loss_grad(f, exp, pick, node);
        return -1;
    }
    return -1;
}

// The parts of a whole loss: rows and their gradient; the cotangent of every row's loss, scale · a
// scalar; that over the sum, and its negative.
enum { LOSS, GRAD, COTANGENT, OVER, NEGATIVE, PARTS };

static int find_maker(const struct fuse *f, int value)
{
    return f->g->values[value].producer;
}

static bool is_made_by(const struct fuse *f, int value, enum op op)
{
    int at = find_maker(f, value);
    return at >= 0 && is_op(f, at, op);
}

static bool same_rows(const struct graph *g, int a, int b)
{
    const struct value *x = &g->values[a], *y = &g->values[b];
    return shape_equal(&x->shape, &y->shape) && spec_equal(&x->spec, &y->spec);
}

// Finds the parts of which `node` is the gradient, each of its operands made by the one it names.
static bool find_parts(const struct fuse *f, int node, int part[PARTS])
{
    const struct graph *g = f->g;
    const struct node *grad = &g->nodes[node];
    if (!is_op(f, node, OP_ROW_LOSS_GRAD) || !is_made_by(f, grad->in[1], OP_ROW_LOSS) ||
        !is_made_by(f, grad->in[2], OP_DIV) || !is_made_by(f, grad->in[4], OP_SCALE))
        return false;
    part[GRAD] = node;
    part[LOSS] = find_maker(f, grad->in[1]);
    part[OVER] = find_maker(f, grad->in[2]);
    part[NEGATIVE] = find_maker(f, grad->in[4]);
    const struct node *over = &g->nodes[part[OVER]];
    part[COTANGENT] = is_made_by(f, over->in[0], OP_SCALE) ? find_maker(f, over->in[0]) : -1;
    return part[COTANGENT] >= 0;
}

// Whether the parts are of one loss, and made of a scalar of the step.
static bool parts_match(const struct fuse *f, const int part[PARTS])
{
    const struct graph *g = f->g;
    const struct node *n[PARTS];
    for (int k = 0; k < PARTS; k++)
        n[k] = &g->nodes[part[k]];
    const struct value *one = &g->values[n[COTANGENT]->in[0]];
    int c = n[COTANGENT]->out[0], m = n[LOSS]->out[0];
    return n[GRAD]->in[0] == n[LOSS]->in[0] && n[GRAD]->in[1] == m &&
           n[GRAD]->in[3] == n[LOSS]->in[1] && n[GRAD]->attr.limit == n[LOSS]->attr.limit &&
           n[OVER]->in[1] == n[LOSS]->out[1] && n[NEGATIVE]->in[0] == c &&
           n[NEGATIVE]->attr.scale == -1 && one->kind == VALUE_SCALAR && one->shape.n == 0 &&
           operand_same_loops(n[OVER], 0, 2) && operand_same_loops(n[OVER], 1, 2) &&
           operand_same_loops(n[NEGATIVE], 0, 1) && same_rows(g, c, m) &&
           same_rows(g, n[OVER]->out[0], m) && same_rows(g, n[NEGATIVE]->out[0], m);
}

// Whether the logits' buffer is free for the gradient: others, such as an accuracy, read them before
// the loss does, in the forward.
static bool are_logits_spent(const struct fuse *f, int logits, int loss, int grad)
{
    const struct graph *g = f->g;
    bool spent =
        g->values[logits].kind == VALUE_TEMP && find_maker(f, logits) >= 0 && !f->named[logits];
    for (int r = f->first[logits]; r < f->first[logits + 1] && spent; r++) {
        int reader = fuse_find_present(f, f->readers[r]);
        spent = reader == loss || reader == grad || (reader < loss && fuse_beside(f, reader, loss));
    }
    return spent;
}

// Whether nobody else reads what goes away.
static bool parts_are_alone(const struct fuse *f, const int part[PARTS])
{
    const struct graph *g = f->g;
    bool alone =
        are_logits_spent(f, g->nodes[part[LOSS]].in[0], part[LOSS], part[GRAD]) &&
        !fuse_read_by_others(f, g->nodes[part[COTANGENT]].out[0], part[OVER], part[NEGATIVE]) &&
        is_only_reader(f, part[OVER], part[GRAD]) && is_only_reader(f, part[NEGATIVE], part[GRAD]);
    for (int k = GRAD; k < PARTS && alone; k++)
        alone = fuse_across(f, part[LOSS], part[k]);
    return alone;
}

int fuse_row_loss_both(struct fuse *f, int node)
{
    int part[PARTS];
    if (find_parts(f, node, part) && parts_match(f, part) && parts_are_alone(f, part)) {
        struct graph *g = f->g;
        const struct node *loss = &g->nodes[part[LOSS]], *c = &g->nodes[part[COTANGENT]];
        struct node made = *loss;
        made.op = OP_ROW_LOSS_BOTH;
        made.in[made.nin++] = c->in[0];
        made.out[made.nout++] = g->nodes[part[GRAD]].out[0];
        made.attr.scale = c->attr.scale;
        const int last = made.nin + made.nout - 1; // the scalar's labels are never looked at
        for (int k = 2; k <= last; k++)
            memcpy(made.attr.label[k], loss->attr.label[k < last], sizeof made.attr.label[k]);
        for (int k = GRAD; k < PARTS; k++)
            fuse_put(f, part[LOSS], part[k], part[LOSS], &made);
    }
    return -1;
}
