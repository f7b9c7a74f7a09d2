// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight, a product with f32 sums, and that of the bias beside it, the SUM of one
// of the product's operands over what the product contracts, become MATMUL_SUM. See fuse.h.
//
// It comes last: a bias whose sum is made with a norm's gradient (fuse_norm.c) is gone by then.
// Contributions to gradients are made in their turn, and a reduction may read their sum right behind
// them: so the fused node stands where the first of the two stood, if all that it reads is there.
#include <string.h>

#include "common/compile/program/fuse_match.h"

// Writes down the product's labels of those loops of its output that are input k's; their number, or
// −1: the other input has one of them as well.
static int list_own_loops(const struct graph *g, const struct node *product, int k, int8_t *own)
{
    int n = 0;
    for (int d = 0; d < g->values[product->out[0]].shape.n; d++) {
        int label = product->attr.label[2][d];
        if (operand_find_loop(g, product, k, label) < 0)
            continue;
        if (operand_find_loop(g, product, 1 - k, label) >= 0)
            return -1;
        own[n++] = (int8_t)label;
    }
    return n;
}

// Whether a node is the SUM of the product's input k that keeps the loops in `own`, in this order.
static bool sums_input(const struct graph *g, const struct node *product, int k, const int8_t *own,
                       int n, const struct node *sum)
{
    bool same =
        sum->op == OP_SUM && sum->attr.scale == 1 && n > 0 && g->values[sum->out[0]].shape.n == n;
    for (int i = 0; i < n && same; i++) {
        int d = operand_find_loop(g, product, k, own[i]);
        same = sum->attr.label[1][i] == sum->attr.label[0][d];
    }
    return same;
}

static int find_sum(const struct fuse *f, int product, int k, const int8_t *own, int n)
{
    const struct graph *g = f->g;
    const int value = g->nodes[product].in[k];
    for (int r = f->first[value]; r < f->first[value + 1]; r++) {
        int at = f->readers[r];
        if (f->into[at] == at && fuse_sums_beside(f, product, at) &&
            sums_input(g, &g->nodes[product], k, own, n, &g->nodes[at]))
            return at;
    }
    return -1;
}

static void put_both(struct fuse *f, int product, int sum, const int8_t *own, int n)
{
    struct graph *g = f->g;
    const struct node *by = &g->nodes[product];
    int place = product < sum ? product : sum;
    if (!fuse_ready_at(f, product, place))
        return;
    struct node made = g->nodes[place];
    made.op = OP_MATMUL_SUM;
    made.attr = by->attr;
    made.nin = made.nout = 2;
    memcpy(made.in, by->in, sizeof made.in);
    memcpy(made.attr.label[3], own, sizeof *own * (size_t)n);
    made.out[0] = by->out[0];
    made.out[1] = g->nodes[sum].out[0];
    fuse_put(f, product, sum, place, &made);
}

int fuse_matmul_sum(struct fuse *f, int node)
{
    const struct node *n = &f->g->nodes[node];
    if (n->kind != NODE_OP || n->op != OP_MATMUL)
        return -1;
    for (int k = 0; k < 2; k++) {
        int8_t own[MAX_DIMS] = {0};
        int loops = list_own_loops(f->g, n, k, own);
        int sum = loops < 0 ? -1 : find_sum(f, node, k, own, loops);
        if (sum >= 0) {
            put_both(f, node, sum, own, loops);
            return -1;
        }
    }
    return -1;
}
