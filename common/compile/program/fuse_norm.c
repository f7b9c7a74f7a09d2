// SPDX-License-Identifier: Apache-2.0
// A residual sum and its norm become ADD_NORM, a norm's gradient and its sum with what else leads
// to the same place NORM_GRAD_ADD. See fuse.h.
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
    if (at < 0 || !fuse_adds_alike(g, &g->nodes[at]) || !fuse_same_loops(norm, 0, norm->nin) ||
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
        if (!grad || grad->op != OP_NORM_GRAD || fuse_kept(f, grad->out[0], at, node) ||
            !fuse_same_loops(grad, 0, grad->nin) || !fuse_same_loops(grad, 1, grad->nin) ||
            !same_layout(g, grad->in[0], grad->out[0]) ||
            !same_layout(g, grad->in[1], grad->out[0]))
            continue;
        grad_add(f, at, node, add->in[1 - k]);
        return -1;
    }
    return -1;
}
