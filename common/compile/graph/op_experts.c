// SPDX-License-Identifier: Apache-2.0
// What the ops of experts mean to the compiler. See op_experts.h.
#include "common/compile/graph/op_experts.h"

#include "common/compile/graph/operand.h"
#include "common/op/chain.h"
#include "common/op/gemm.h"
#include "common/op/route.h"

int experts_infer_topk(const struct graph *g, const struct node *n, struct err *e)
{
    bool grad = n->op == OP_TOPK_GRAD;
    const struct value *wide = grad ? &g->values[n->out[0]] : get_operand(g, n, 0);
    const struct value *narrow = grad ? get_operand(g, n, 0) : &g->values[n->out[0]];
    bool same = wide->shape.n == narrow->shape.n && wide->shape.n > 0;
    for (int d = 0; same && d < wide->shape.n - 1; d++)
        same = wide->shape.dim[d] == narrow->shape.dim[d];
    if (!same || narrow->shape.dim[narrow->shape.n - 1] > wide->shape.dim[wide->shape.n - 1])
        return err_set(e, ERR_INTERNAL, "%s: %s has not the rows of %s", op_name(n->op),
                       operand_name(narrow), operand_name(wide));
    if (!grad && n->nin > 1 && !shape_equal(&get_operand(g, n, 1)->shape, &wide->shape))
        return err_set(e, ERR_INTERNAL, "topk: it is asked by what is not like %s",
                       operand_name(wide));
    return 0;
}

int experts_infer_slots(const struct graph *g, const struct node *n, struct err *e)
{
    struct op_call c = {.attr = &n->attr};
    struct route route;
    for (int k = 0; k < n->nin; k++)
        c.in[k].shape = get_operand(g, n, k)->shape;
    for (int k = 0; k < n->nout; k++)
        c.out[k].shape = g->values[n->out[k]].shape;
    if (!route_of(&c, &route) || route.capacity < 1 || route.capacity > INT32_MAX / route.experts)
        return err_set(e, ERR_INTERNAL, "slots: operands disagree about the groups");
    return 0;
}

static size_t count_workspace_slots(const struct op_call *c, size_t (*each)(const struct route *r))
{
    struct route route;
    return route_of(c, &route) ? (size_t)route.groups * each(&route) : 0;
}

size_t experts_workspace_slots_cpu(const struct op_call *c)
{
    return count_workspace_slots(c, route_scratch_cpu);
}

size_t experts_workspace_slots_cuda(const struct op_call *c)
{
    return count_workspace_slots(c, route_scratch_cuda);
}

// The operand, inputs first, that lies by places.
static int find_places_operand(const struct node *n)
{
    return n->op == OP_DISPATCH ? n->nin : 0;
}

int experts_infer_dispatch(const struct graph *g, const struct node *n, struct err *e)
{
    bool dot = n->op == OP_SLOT_DOT;
    const struct op_slots *s = &n->attr.slots;
    const struct value *places = get_operand(g, n, find_places_operand(n));
    const struct value *tokens = get_operand(g, n, n->op == OP_DISPATCH ? 0 : dot ? 2 : n->nin);
    const struct shape *x = &tokens->shape, *y = &places->shape;
    if (x->n != 3 || y->n != 4 || x->dim[0] != y->dim[0] * s->group || y->dim[1] != s->experts ||
        y->dim[2] != s->capacity || x->dim[2] != y->dim[3])
        return err_set(e, ERR_INTERNAL, "%s: %s has not the places of %s", op_name(n->op),
                       operand_name(places), operand_name(tokens));
    return 0;
}

void experts_place_dispatch(const struct graph *g, const struct node *n, const struct op_at *at,
                            struct op_attr *attr)
{
    enum { EXPERT = 1, PLACE = 2 };
    const struct value *places = get_operand(g, n, find_places_operand(n));
    int64_t start[MAX_DIMS];
    spec_start(&places->spec, at->mesh, &places->shape, at->rank, start);
    attr->slots.first.expert = start[EXPERT];
    attr->slots.first.place = start[PLACE];
}

// Rows of the product's first operand are the places, by expert and group, and its second has a matrix
// for each expert.
int experts_infer_product(const struct graph *g, const struct node *n, struct err *e)
{
    const struct op_attr attr = linear_product(&n->attr, n->nin);
    const struct op_slots *s = &n->attr.slots;
    const struct shape *a = &get_operand(g, n, 0)->shape, *b = &get_operand(g, n, 1)->shape,
                       *chosen = &get_operand(g, n, 2)->shape;
    struct gemm gemm;
    if (a->n != 4 || chosen->n != 2 ||
        !gemm_from_labels(&attr, a, b, &g->values[n->out[0]].shape, &gemm) || gemm.trans_a ||
        gemm.batch != a->dim[0] || gemm.m != a->dim[1] * a->dim[2] || a->dim[0] != s->experts ||
        a->dim[2] != s->capacity || chosen->dim[0] != a->dim[1] * s->group ||
        chosen->dim[1] != s->experts)
        return err_set(e, ERR_INTERNAL, "%s: %s has not the places of %s", op_name(n->op),
                       operand_name(get_operand(g, n, 0)), operand_name(get_operand(g, n, 2)));
    return 0;
}

void experts_place_product(const struct graph *g, const struct node *n, const struct op_at *at,
                           struct op_attr *attr)
{
    enum { EXPERT, GROUP, PLACE };
    const struct value *a = get_operand(g, n, 0);
    int64_t start[MAX_DIMS];
    spec_start(&a->spec, at->mesh, &a->shape, at->rank, start);
    attr->slots.first.expert = start[EXPERT];
    attr->slots.first.place = start[PLACE];
}
