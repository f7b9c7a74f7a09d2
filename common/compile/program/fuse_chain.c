// SPDX-License-Identifier: Apache-2.0
// Elementwise ops one after the other become a CHAIN, behind a product a LINEAR. See fuse.h.
//
// One rule: a value that a step reads as it is, element by element, is made by a step or a product;
// then the two are one. What others read of it becomes an output. So a bias and an activation
// behind a product, an activation's gradient behind the product that makes its cotangent, a gated
// activation, residual sums and a KL divergence all follow from it.
#include <string.h>

#include "common/compile/program/fuse_match.h"
#include "common/op/chain.h"

// A node as registers and steps. Values: of input registers (−1: the product), then of the steps.
struct form {
    bool product;
    int value[CHAIN_REGISTERS];
    int8_t label[CHAIN_INPUTS][MAX_DIMS]; // dimensions of the output
    struct op_chain chain;
};

static const struct value *get_output(const struct graph *g, const struct node *n)
{
    return &g->values[n->out[0]];
}

static void take_input(const struct graph *g, const struct node *n, int k, int reg, struct form *f)
{
    f->value[reg] = n->in[k];
    for (int d = 0; d < g->values[n->in[k]].shape.n; d++)
        f->label[reg][d] = (int8_t)operand_find_loop(g, n, n->nin, n->attr.label[k][d]);
}

// Writes a node as a form. False unless it is an elementwise op, a product or fused of these.
static bool make_form(const struct graph *g, const struct node *n, struct form *f)
{
    bool fused = op_is(n->op, OP_HAS_CHAIN);
    *f = (struct form){.product = op_is(n->op, OP_IS_PRODUCT)};
    memset(f->value, -1, sizeof f->value);
    if (!fused && !f->product && !op_is(n->op, OP_IS_STEP))
        return false;
    if (fused)
        f->chain = *n->attr.chain;
    else if (f->product)
        f->chain = (struct op_chain){.inputs = 1};
    else
        f->chain = (struct op_chain){.inputs = n->nin,
                                     .steps = 1,
                                     .step = {{n->op, {0, n->nin > 1 ? 1 : -1}, n->attr.scale}},
                                     .out = {(int8_t)n->nin}};
    for (int r = f->product; r < f->chain.inputs; r++)
        take_input(g, n, f->product ? r + 1 : r, r, f);
    for (int k = 0; k < n->nout; k++)
        f->value[f->chain.out[k]] = n->out[k];
    return true;
}

// ---- joining two --------------------------------------------------------------------------------

// The register that a form makes a value in; −1: it does not.
static int find_register(const struct form *f, int value)
{
    int end = f->chain.inputs + f->chain.steps;
    for (int r = f->product ? 0 : f->chain.inputs; r < end; r = r ? r + 1 : f->chain.inputs)
        if (f->value[r] == value)
            return r;
    return -1;
}

static bool element_by_element(const struct form *f, int reg, int dims)
{
    for (int d = 0; d < dims; d++)
        if (f->label[reg][d] != d)
            return false;
    return true;
}

// An input that is read in one form only is held once.
static int add_input(struct form *to, int value, const int8_t *label)
{
    int r = to->product;
    while (r < to->chain.inputs &&
           (to->value[r] != value || memcmp(to->label[r], label, sizeof to->label[r]) != 0))
        r++;
    if (r == CHAIN_INPUTS)
        return -1;
    if (r == to->chain.inputs)
        to->chain.inputs++;
    to->value[r] = value;
    memcpy(to->label[r], label, sizeof to->label[r]);
    return r;
}

// Adds one form's inputs to another; `at` gets each one's register there. Inputs that `first` makes
// are skipped.
static bool join_inputs(struct form *to, const struct form *from, const struct form *first, int *at)
{
    for (int r = from->product; r < from->chain.inputs; r++) {
        if (first && find_register(first, from->value[r]) >= 0)
            continue;
        at[r] = add_input(to, from->value[r], from->label[r]);
        if (at[r] < 0)
            return false;
    }
    return true;
}

static bool join_steps(struct form *to, const struct form *from, int *at)
{
    if (to->chain.steps + from->chain.steps > CHAIN_STEPS)
        return false;
    for (int s = 0; s < from->chain.steps; s++) {
        struct op_step step = from->chain.step[s];
        for (int k = 0; k < op_inputs(step.op); k++)
            step.in[k] = (int8_t)at[step.in[k]];
        at[from->chain.inputs + s] = to->chain.inputs + to->chain.steps;
        to->value[at[from->chain.inputs + s]] = from->value[from->chain.inputs + s];
        to->chain.step[to->chain.steps++] = step;
    }
    return true;
}

static bool join_forms(const struct form *a, const struct form *b, struct form *to)
{
    int at_a[CHAIN_REGISTERS] = {0}, at_b[CHAIN_REGISTERS] = {0};
    *to = (struct form){.product = a->product || b->product};
    memset(to->value, -1, sizeof to->value);
    to->chain.inputs = to->product;
    if (to->product)
        to->value[0] = a->product ? a->value[0] : b->value[0];
    if (!join_inputs(to, a, NULL, at_a) || !join_inputs(to, b, a, at_b) || !join_steps(to, a, at_a))
        return false;
    for (int r = b->product; r < b->chain.inputs; r++)
        if (find_register(a, b->value[r]) >= 0)
            at_b[r] = at_a[find_register(a, b->value[r])];
    return join_steps(to, b, at_b);
}

// ---- the node -----------------------------------------------------------------------------------

// Copies a product's operand and renumbers its labels: a label of the output becomes the number of
// its dimension there; contracted labels get the numbers after those.
static void copy_product_input(const struct graph *g, const struct node *n, int k, int8_t name[],
                               struct node *to)
{
    to->in[k] = n->in[k];
    for (int d = 0; d < g->values[n->in[k]].shape.n; d++) {
        int label = n->attr.label[k][d], dim = operand_find_loop(g, n, n->nin, label);
        if (dim < 0 && name[label] < 0)
            name[label] = to->attr.labels++;
        to->attr.label[k][d] = (int8_t)(dim < 0 ? name[label] : dim);
    }
}

static void put_inputs(const struct form *f, struct node *to)
{
    for (int r = f->product; r < f->chain.inputs; r++) {
        int k = chain_operand(to->op, r);
        to->in[k] = f->value[r];
        memcpy(to->attr.label[k], f->label[r], sizeof f->label[r]);
        to->nin = k + 1;
    }
}

// Makes outputs of those values of a and b that are needed outside of the two. False: there are
// more of them than a node may have, or none.
static bool put_outputs(const struct fuse *fuse, const struct form *f, int a, int b,
                        struct op_chain *chain, struct node *to)
{
    const struct graph *g = fuse->g;
    for (int side = 0; side < 2; side++) {
        const struct node *n = &g->nodes[side ? b : a];
        for (int k = 0; k < n->nout; k++) {
            if (!fuse_read_by_others(fuse, n->out[k], a, b))
                continue;
            if (to->nout == CHAIN_OUTPUTS)
                return false;
            chain->out[to->nout] = (int8_t)find_register(f, n->out[k]);
            to->out[to->nout++] = n->out[k];
        }
    }
    return to->nout > 0;
}

// Whether the product can lie, before the steps run over it, in the output that the kernels put it
// into: its own, if it is one, else the first. A product of f32 is not made in a narrower dtype.
static bool has_room_for_product(const struct graph *g, const struct node *n,
                                 const struct op_chain *chain)
{
    int place = 0;
    for (int k = 0; k < n->nout; k++)
        place = chain->out[k] == 0 ? k : place;
    return dtype_size(g->values[n->out[place]].dtype) >= dtype_size(g->values[n->in[0]].dtype);
}

static bool make_node(const struct fuse *fuse, const struct form *f, int a, int b, struct node *to)
{
    struct graph *g = fuse->g;
    const struct node *x = &g->nodes[a], *y = &g->nodes[b];
    const struct node *product = op_is(x->op, OP_IS_PRODUCT) ? x : y;
    int dims = get_output(g, y)->shape.n;
    int8_t name[MAX_DIMS * 4];
    struct op_chain chain = f->chain;
    *to = *y;
    to->op = f->product ? OP_LINEAR : OP_CHAIN;
    to->attr = (struct op_attr){
        .labels = (int8_t)dims, .tf32 = product->attr.tf32, .streams = product->attr.streams};
    to->nin = f->product ? 2 : 0;
    to->nout = 0;
    memset(name, -1, sizeof name);
    for (int k = 0; k < 2 && f->product; k++)
        copy_product_input(g, product, k, name, to);
    put_inputs(f, to);
    if (!put_outputs(fuse, f, a, b, &chain, to) ||
        (f->product && !has_room_for_product(g, to, &chain)))
        return false;
    for (int k = 0; k < to->nout; k++)
        for (int d = 0; d < dims; d++)
            to->attr.label[to->nin + k][d] = (int8_t)d;
    to->attr.chain = arena_dup(g->arena, &chain, sizeof chain);
    return true;
}

// Whether b reads a's outputs only element by element, and not as operands of its product.
static bool reads_elementwise(const struct graph *g, const struct node *x, const struct node *y,
                              const struct form *a, const struct form *b)
{
    const struct value *from = get_output(g, x), *to = get_output(g, y);
    for (int k = 0; k < 2 && b->product; k++)
        if (find_register(a, y->in[k]) >= 0)
            return false;
    for (int r = b->product; r < b->chain.inputs; r++)
        if (find_register(a, b->value[r]) >= 0 && !element_by_element(b, r, to->shape.n))
            return false;
    return shape_equal(&from->shape, &to->shape) && spec_equal(&from->spec, &to->spec);
}

static int join_nodes(struct fuse *f, int a, int b)
{
    struct graph *g = f->g;
    struct form x, y, both;
    struct node made;
    if (!make_form(g, &g->nodes[a], &x) || !make_form(g, &g->nodes[b], &y) ||
        g->nodes[b].op == OP_MATMUL || (x.product && y.product) ||
        !reads_elementwise(g, &g->nodes[a], &g->nodes[b], &x, &y))
        return -1;
    int place = fuse_place(f, a, b);
    if (place < 0 || !join_forms(&x, &y, &both) || !make_node(f, &both, a, b, &made))
        return -1;
    fuse_put(f, a, b, place, &made);
    return place;
}

int fuse_chain(struct fuse *f, int node)
{
    const struct node *n = &f->g->nodes[node];
    for (int k = 0; k < n->nin; k++) {
        int by = fuse_producer(f, node, k);
        int at = by < 0 ? -1 : join_nodes(f, by, node);
        if (at >= 0)
            return at;
    }
    return -1;
}
