// SPDX-License-Identifier: Apache-2.0
// The vjp rules: one short function an op, one table at the end. An elementwise op whose cotangent
// is one op over its operand and dy has no function: the slope in its row of ops.def is the rule.
//
// What a rule makes for an input stands at the input's own activation point.
#include "common/compile/graph/vjp.h"

#include <string.h>

#include "common/compile/graph/build.h"
#include "common/op/attention.h"

// The cotangent of `value` as `op` makes it: of its shape and dtype, at its point.
static int make_like(struct tape *t, enum op op, int nin, const int *in, int value,
                     const struct op_attr *attr)
{
    const struct value *v = &t->g->values[value];
    graph_at(t->g, v->point);
    return graph_shaped(t->g, op, nin, in, value, attr, v->dtype);
}

// `by` times a cotangent flows into `value`, summed over the dimensions that it lacks.
static void add_reduced(struct tape *t, int value, int cot, float by)
{
    if (!tape_needs(t, value))
        return;
    graph_at(t->g, t->g->values[value].point);
    tape_add(t, value, tape_reduce_to(t, cot, value, by));
}

// ---- linear algebra ----------------------------------------------------------------------------

// The product of `a` and `b`, one of them the cotangent, is that of `value`.
static void add_product(struct tape *t, int value, int a, int b)
{
    if (!tape_needs(t, value))
        return;
    struct value v = t->g->values[value];
    graph_at(t->g, v.point);
    tape_add(t, value, graph_matmul_as(t->g, a, b, v.shape.n, v.dims, tape_dtype(t, value)));
}

static void vjp_matmul(struct tape *t, const struct node *n, int cot)
{
    add_product(t, n->in[1], n->in[0], cot);
    add_product(t, n->in[0], cot, n->in[1]);
}

static void vjp_sum(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0];
    enum dtype dtype = t->g->values[x].dtype;
    graph_at(t->g, t->g->values[x].point);
    int dx = spread(t->g, cast(t->g, cot, dtype), x, n->attr.scale, dtype);
    // What was summed over gets its share; the zeros in padding that made x get none.
    memcpy(t->g->values[dx].limit, t->g->values[x].limit, sizeof t->g->values[dx].limit);
    tape_add(t, x, graph_pad(t->g, dx, 0));
}

// ---- elementwise -------------------------------------------------------------------------------

static void vjp_cast(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make_like(t, OP_CAST, 1, &cot, n->in[0], &n->attr));
}

// Whether the operand's dimensions stand where they stood, and are called otherwise (graph_permute).
static bool renames_dims(const struct value *x, const struct value *y, const struct node *n)
{
    bool same = x->shape.n == y->shape.n, other = false;
    for (int d = 0; d < x->shape.n && same; d++) {
        same = n->attr.label[0][d] == n->attr.label[1][d];
        other = other || x->dims[d] != y->dims[d];
    }
    return same && other;
}

// Where SCALE renamed dimensions, the input's cotangent gets the old names back.
static void vjp_scale(struct tape *t, const struct node *n, int cot)
{
    struct graph *g = t->g;
    int x = n->in[0];
    const struct value v = g->values[x];
    if (!renames_dims(&v, &g->values[n->out[0]], n)) {
        add_reduced(t, x, cot, n->attr.scale);
        return;
    }
    graph_at(g, v.point);
    tape_add(t, x, graph_permute(g, cot, v.dims, v.dims, tape_dtype(t, x)));
}

static void vjp_add(struct tape *t, const struct node *n, int cot)
{
    add_reduced(t, n->in[0], cot, 1);
    add_reduced(t, n->in[1], cot, 1);
}

static void vjp_sub(struct tape *t, const struct node *n, int cot)
{
    add_reduced(t, n->in[0], cot, 1);
    add_reduced(t, n->in[1], cot, -1);
}

static void vjp_mul(struct tape *t, const struct node *n, int cot)
{
    for (int k = 0; k < 2; k++) {
        int in[2] = {cot, n->in[1 - k]};
        if (tape_needs(t, n->in[k]))
            add_reduced(t, n->in[k], make_like(t, OP_MUL, 2, in, n->out[0], NULL), 1);
    }
}

// The cotangent of a is dy / b, that of b is −dy · (a / b) / b, which the output serves.
static void vjp_div(struct tape *t, const struct node *n, int cot)
{
    int y = n->out[0], b = n->in[1];
    int da = make_like(t, OP_DIV, 2, (int[]){cot, b}, y, NULL);
    add_reduced(t, n->in[0], da, 1);
    if (tape_needs(t, b))
        add_reduced(t, b, make_like(t, OP_MUL, 2, (int[]){da, y}, y, NULL), -1);
}

// What the slope of a row is taken over, in this order.
enum slope_of { NOTHING, X_DY, Y_DY, DY_X, DY_Y };
static const struct slope {
    enum op op;
    enum slope_of of;
} slopes[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = {OP_##slope, of},
#include "common/op/ops.def"
};

static void apply_slope(struct tape *t, const struct node *n, int dy)
{
    const struct slope *s = &slopes[n->op];
    int x = n->in[0], other = s->of == X_DY || s->of == DY_X ? x : n->out[0];
    bool last = s->of == X_DY || s->of == Y_DY; // dy is the second operand
    int in[2] = {last ? other : dy, last ? dy : other};
    tape_add(t, x, make_like(t, s->op, 2, in, x, NULL));
}

// The cotangent is dropped by the draws that dropped the value, made again: no mask is kept.
static void vjp_dropout(struct tape *t, const struct node *n, int cot)
{
    enum { X, STEP, POSITIONS };
    int in[3] = {cot, n->in[STEP], n->in[POSITIONS]};
    const struct value x = t->g->values[n->in[X]];
    struct op_args args = {.op = OP_DROPOUT,
                           .nin = n->nin,
                           .in = in,
                           .nout_dims = x.shape.n,
                           .out_dims = x.dims,
                           .attr = &n->attr,
                           .dtype = x.dtype};
    enum dim as[MAX_DIMS];
    if (n->nin > POSITIONS) { // called as the dimensions of x that they say the places of
        const struct value *p = &t->g->values[n->in[POSITIONS]];
        memcpy(as, p->dims, sizeof as);
        for (int k = 0; k < p->shape.n; k++)
            for (int d = 0; d < x.shape.n; d++)
                if (n->attr.label[X][d] == n->attr.label[POSITIONS][k])
                    as[k] = x.dims[d];
        args.read_as = as;
        args.read_input = POSITIONS;
    }
    graph_at(t->g, x.point);
    tape_add(t, n->in[X], graph_op(t->g, &args));
}

static void vjp_pad(struct tape *t, const struct node *n, int cot)
{
    struct op_attr attr = n->attr;
    attr.scale = 0;
    tape_add(t, n->in[0], make_like(t, OP_PAD, 1, &cot, n->in[0], &attr));
}

// ---- rows --------------------------------------------------------------------------------------

// The row maximum is a constant shift that cancels: only x gets a cotangent.
static void vjp_row_sum_exp(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], in[3] = {x, n->in[1], cot};
    tape_add(t, x, make_like(t, OP_ROW_EXP_MUL, 3, in, x, &n->attr));
}

static void vjp_softmax(struct tape *t, const struct node *n, int cot)
{
    int in[2] = {cot, n->out[0]};
    tape_add(t, n->in[0], make_like(t, OP_SOFTMAX_GRAD, 2, in, n->in[0], NULL));
}

static void vjp_pick(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], in[2] = {n->in[1], cot};
    tape_add(t, x, make_like(t, OP_PICK_GRAD, 2, in, x, NULL));
}

// ---- transformers ------------------------------------------------------------------------------

// A piece that nothing reads leaves its part of the whole without a gradient.
static void vjp_split(struct tape *t, const struct node *n, int cot)
{
    int cots[OP_MAX_OUT] = {cot};
    for (int k = 1; k < n->nout; k++)
        cots[k] = tape_cotangent(t, n->out[k]);
    tape_add(t, n->in[0], make_like(t, OP_STACK, n->nout, cots, n->in[0], NULL));
}

static void vjp_embed(struct tape *t, const struct node *n, int cot)
{
    int table = n->in[1], in[2] = {n->in[0], cot};
    graph_at(t->g, t->g->values[table].point);
    tape_add(t, table, graph_shaped(t->g, OP_EMBED_GRAD, 2, in, table, NULL, tape_dtype(t, table)));
}

// A vector along the last dimension of x, whatever that is called.
static void add_norm_weight(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    graph_at(t->g, POINT_NONE);
    tape_add(t, n->in[1],
             graph_op(t->g, &(struct op_args){.op = OP_NORM_WEIGHT_GRAD,
                                              .nin = 2,
                                              .in = (int[]){n->in[0], cot},
                                              .nout_dims = 1,
                                              .out_dims = &x.dims[x.shape.n - 1],
                                              .dtype = tape_dtype(t, n->in[1]),
                                              .attr = &n->attr}));
}

static void vjp_norm(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], in[3] = {x, cot, n->in[1]};
    if (n->nin > 2)
        add_reduced(t, n->in[2], cot, 1);
    if (n->nin > 1 && tape_needs(t, n->in[1]))
        add_norm_weight(t, n, cot);
    if (tape_needs(t, x))
        tape_add(t, x, make_like(t, OP_NORM_GRAD, n->nin > 1 ? 3 : 2, in, x, &n->attr));
}

static void vjp_rotary(struct tape *t, const struct node *n, int cot)
{
    struct op_attr back = n->attr;
    back.scale = -back.scale;
    int in[2] = {cot, n->in[1]};
    tape_add(t, n->in[0], make_like(t, OP_ROTARY, 2, in, n->in[0], &back));
}

// Adds the gradient of attention, which has an output for each operand but the positions and the
// step: these two are the last.
static void vjp_attention(struct tape *t, const struct node *n, int cot)
{
    struct attention_operands o;
    PRE(!attention_operands(n->op, n->nin, &o));
    struct value q = t->g->values[n->in[o.q]];
    int in[OP_MAX_IN], nin = 0, nout = o.at_q;
    for (int k = 0; k < n->nin; k++) {
        if (k == nout) {
            in[nin++] = cot;
            in[nin++] = n->out[ATTENTION_Y];
            in[nin++] = n->out[ATTENTION_LSE];
        }
        in[nin++] = n->in[k];
    }
    graph_at(t->g, q.point);
    int dq = graph_op(t->g, &(struct op_args){.op = OP_ATTENTION_GRAD,
                                              .nin = nin,
                                              .in = in,
                                              .nout_dims = q.shape.n,
                                              .out_dims = q.dims,
                                              .attr = &n->attr,
                                              .nout = nout,
                                              .like = n->in});
    for (int k = 0; k < nout && !t->g->failed; k++)
        tape_add(t, n->in[k], dq + k);
}

// ---- experts -----------------------------------------------------------------------------------

// Only the weights have a cotangent: which scores were the greatest has no derivative.
static void vjp_topk(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], in[2] = {n->out[1], cot};
    tape_add(t, x, make_like(t, OP_TOPK_GRAD, 2, in, x, NULL));
}

static void vjp_dispatch(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], in[2] = {cot, n->in[1]};
    PRE(n->nin == 2); // weighted it is a vjp itself
    tape_add(t, x, make_like(t, OP_COMBINE, 2, in, x, &n->attr));
}

static void vjp_combine(struct tape *t, const struct node *n, int cot)
{
    int y = n->in[0], in[3] = {cot, n->in[1], n->in[2]}, dot[3] = {y, n->in[1], cot};
    tape_add(t, y, make_like(t, OP_DISPATCH, n->nin, in, y, &n->attr));
    if (n->nin > 2 && tape_needs(t, n->in[2]))
        tape_add(t, n->in[2], make_like(t, OP_SLOT_DOT, 3, dot, n->in[2], &n->attr));
}

// ---- the table ---------------------------------------------------------------------------------

static void (*const rules[OP_COUNT])(struct tape *t, const struct node *n, int cotangent) = {
    [OP_MATMUL] = vjp_matmul,
    [OP_SUM] = vjp_sum,
    [OP_CAST] = vjp_cast,
    [OP_SCALE] = vjp_scale,
    [OP_ADD] = vjp_add,
    [OP_SUB] = vjp_sub,
    [OP_MUL] = vjp_mul,
    [OP_DIV] = vjp_div,
    [OP_DROPOUT] = vjp_dropout,
    [OP_PAD] = vjp_pad,
    [OP_SOFTMAX] = vjp_softmax,
    [OP_PICK] = vjp_pick,
    [OP_ROW_SUM_EXP] = vjp_row_sum_exp,
    [OP_SPLIT] = vjp_split,
    [OP_EMBED] = vjp_embed,
    [OP_NORM] = vjp_norm,
    [OP_ROTARY] = vjp_rotary,
    [OP_ATTENTION] = vjp_attention,
    [OP_TOPK] = vjp_topk,
    [OP_DISPATCH] = vjp_dispatch,
    [OP_COMBINE] = vjp_combine,
};

bool vjp_has(enum op op)
{
    return rules[op] || slopes[op].of != NOTHING;
}

int vjp_apply(struct tape *t, const struct node *n, int cotangent)
{
    PRE(vjp_has(n->op));
    if (rules[n->op])
        rules[n->op](t, n, cotangent);
    else
        apply_slope(t, n, cotangent);
    return t->g->failed;
}
