// SPDX-License-Identifier: Apache-2.0
// A product of rows in experts' places learns how many of them have a token: MATMUL_PLACES. See fuse.h.
//
// Outside training an expert has a place for each token, of which few are filled: those that come first.
// SLOTS has counted them, and what it made is here where nothing moved the rows on their way from DISPATCH.
// Where they came from other devices (ep) the product stays a MATMUL of all places.
#include <string.h>

#include "common/compile/program/fuse_match.h"

// The dimensions of a value along which its rows lie in places.
enum { EXPERT, GROUP, PLACE, ALONG };
static const int dispatched[ALONG] = {1, 0, 2}, multiplied[ALONG] = {0, 1, 2};

// The input of a node that has the three dimensions of its output, which become that input's; −1: none.
static int find_source(const struct graph *g, const struct node *n, int dim[ALONG])
{
    for (int k = 0; k < n->nin; k++) {
        int at[ALONG], found = 0;
        for (int i = 0; i < ALONG; i++) {
            at[i] = operand_find_loop(g, n, k, n->attr.label[n->nin][dim[i]]);
            found += at[i] >= 0;
        }
        if (found == ALONG) {
            memcpy(dim, at, sizeof at);
            return k;
        }
    }
    return -1;
}

// The DISPATCH that brought a value's rows to their places, from which each came by itself; null: none,
// or the rows were moved between devices since.
static const struct node *find_dispatch(const struct graph *g, int value)
{
    int dim[ALONG];
    memcpy(dim, multiplied, sizeof dim);
    for (;;) {
        const int by = g->values[value].producer;
        const struct node *n = by < 0 ? NULL : &g->nodes[by];
        if (!n || n->kind != NODE_OP)
            return NULL;
        if (n->op == OP_DISPATCH)
            return memcmp(dim, dispatched, sizeof dim) == 0 ? n : NULL;
        if (op_is(n->op, OP_OWN_LOOPS) && n->op != OP_MATMUL_PLACES)
            return NULL;
        const int k = find_source(g, n, dim);
        if (k < 0)
            return NULL;
        value = n->in[k];
    }
}

// Whether the second operand has a matrix for each expert, and the output the rows of the first.
static bool is_of_experts(const struct graph *g, const struct node *n)
{
    const struct value *a = &g->values[n->in[0]], *out = &g->values[n->out[0]];
    bool fits = a->shape.n == ALONG + 1 && out->shape.n == ALONG + 1;
    for (int i = 0; fits && i < ALONG; i++)
        fits = n->attr.label[2][i] == n->attr.label[0][i] &&
               (operand_find_loop(g, n, 1, n->attr.label[0][i]) >= 0) == (i == EXPERT);
    return fits;
}

int fuse_places(struct fuse *f, int node)
{
    struct graph *g = f->g;
    struct node *n = &g->nodes[node];
    if (n->kind != NODE_OP || n->op != OP_MATMUL || !n->attr.streams || !is_of_experts(g, n))
        return -1;
    const struct node *from = find_dispatch(g, n->in[0]);
    const int by = from ? g->values[from->in[1]].producer : -1;
    if (by < 0 || g->nodes[by].kind != NODE_OP || g->nodes[by].op != OP_SLOTS)
        return -1;
    n->op = OP_MATMUL_PLACES;
    n->attr.slots = from->attr.slots;
    n->in[n->nin++] = g->nodes[by].out[1];
    memcpy(n->attr.label[3], n->attr.label[2], sizeof n->attr.label[3]);
    for (int d = 0; d < 2; d++) // loops of the counts alone
        n->attr.label[2][d] = n->attr.labels++;
    return -1;
}
