// SPDX-License-Identifier: Apache-2.0
// Operands of a node: operand k is its input k, and behind its inputs come its outputs.
#pragma once
#include <string.h>

#include "common/compile/graph/graph.h"

static inline int operand_id(const struct node *n, int k)
{
    return k < n->nin ? n->in[k] : n->out[k - n->nin];
}

static inline const struct value *get_operand(const struct graph *g, const struct node *n, int k)
{
    return &g->values[operand_id(n, k)];
}

// The dimension of operand k that runs over a loop; −1: none does.
static inline int operand_find_loop(const struct graph *g, const struct node *n, int k, int label)
{
    for (int d = 0; d < get_operand(g, n, k)->shape.n; d++)
        if (n->attr.label[k][d] == label)
            return d;
    return -1;
}

// Whether operands j and k run over the same loops.
static inline bool operand_same_loops(const struct node *n, int j, int k)
{
    return memcmp(n->attr.label[j], n->attr.label[k], sizeof n->attr.label[j]) == 0;
}

// The operand whose dimensions the op's order speaks of.
static inline int operand_ordered(const struct graph *g, const struct node *n)
{
    int widest = 0;
    if (op_order(n->op) == ORDER_FIRST)
        return n->nin - 1;
    for (int k = 1; k < n->nin; k++)
        if (get_operand(g, n, k)->shape.n > get_operand(g, n, widest)->shape.n)
            widest = k;
    return widest;
}

// For messages.
static inline const char *operand_name(const struct value *v)
{
    return v->name ? v->name : "a value";
}
