// SPDX-License-Identifier: Apache-2.0
// The op table and its checks of operands. See optable.h.
#include "common/compile/graph/optable.h"

#include "common/compile/graph/op_experts.h"
#include "common/compile/graph/op_scratch.h"
#include "common/compile/graph/operand.h"
#include "common/op/attention.h"
#include "common/op/chain.h"
#include "common/op/gemm.h"
#include "common/op/widen.h"

static int want_dtype(const struct graph *g, const struct node *n, int k, enum dtype t,
                      struct err *e)
{
    const struct value *v = get_operand(g, n, k);
    if (v->dtype == t)
        return 0;
    return err_set(e, ERR_INTERNAL, "%s: %s is %s, not %s", op_name(n->op), operand_name(v),
                   dtype_name(v->dtype), dtype_name(t));
}

static int want_outputs(const struct graph *g, const struct node *n, enum dtype t, struct err *e)
{
    int rc = 0;
    for (int k = 0; k < n->nout && !rc; k++)
        rc = want_dtype(g, n, n->nin + k, t, e);
    return rc;
}

// The op takes whatever its row in ops.def says.
static int infer_any(const struct graph *g, const struct node *n, struct err *e)
{
    (void)g;
    (void)n;
    (void)e;
    return 0;
}

// Activations: one dtype in and out.
static int infer_alike(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = 0;
    for (int k = 1; k < n->nin + n->nout && !rc; k++)
        rc = want_dtype(g, n, k, get_operand(g, n, 0)->dtype, e);
    return rc;
}

// Sums: the output may be f32 whatever the operands are, as gradients are.
static int infer_added(const struct graph *g, const struct node *n, struct err *e)
{
    return g->values[n->out[0]].dtype == DT_F32 ? 0 : infer_alike(g, n, e);
}

static int infer_matmul(const struct graph *g, const struct node *n, struct err *e)
{
    struct gemm gemm;
    const struct value *out = &g->values[n->out[0]];
    if (!gemm_from_labels(&n->attr, &get_operand(g, n, 0)->shape, &get_operand(g, n, 1)->shape,
                          &out->shape, &gemm))
        return err_set(e, ERR_UNSUPPORTED, "matmul of %s and %s needs a transpose",
                       operand_name(get_operand(g, n, 0)), operand_name(get_operand(g, n, 1)));
    return 0;
}

// The rows of operand k are the leading dimensions of what is n's row operand.
static int want_rows(const struct graph *g, const struct node *n, int k, const struct value *rows,
                     struct err *e)
{
    const struct value *v = get_operand(g, n, k);
    bool same = v->shape.n == rows->shape.n - 1;
    for (int d = 0; same && d < v->shape.n; d++)
        same = v->shape.dim[d] == rows->shape.dim[d];
    return same ? 0
                : err_set(e, ERR_INTERNAL, "%s: %s has not the rows of %s", op_name(n->op),
                          operand_name(v), operand_name(rows));
}

// Checks ops over rows: operands with one number for each row are f32, whatever the rows are.
static int infer_rows(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = 0;
    for (int k = 1; k < n->nin && !rc; k++) {
        rc = want_rows(g, n, k, get_operand(g, n, 0), e);
        if (!rc)
            rc = want_dtype(g, n, k, DT_F32, e);
    }
    if (rc || n->op == OP_ROW_ARGMAX)
        return rc;
    return want_outputs(g, n, n->op == OP_ROW_EXP_MUL ? get_operand(g, n, 0)->dtype : DT_F32, e);
}

static int infer_pick(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = want_rows(g, n, 1, get_operand(g, n, 0), e);
    return rc ? rc : want_outputs(g, n, DT_F32, e);
}

static int infer_pick_grad(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = want_rows(g, n, 0, &g->values[n->out[0]], e);
    rc = rc ? rc : want_rows(g, n, 1, &g->values[n->out[0]], e);
    return rc ? rc : want_dtype(g, n, 1, DT_F32, e);
}

// Parameter, gradient and moments are of one shape; clip and hyper are the step's vectors.
static int infer_update(const struct graph *g, const struct node *n, struct err *e)
{
    int copy = op_outputs(n->op);
    const struct value *last = &g->values[n->out[n->nout - 1]];
    if (n->nout > copy && !shape_equal(&last->shape, &get_operand(g, n, 0)->shape))
        return err_set(e, ERR_INTERNAL, "%s: %s is no copy of %s", op_name(n->op),
                       operand_name(last), operand_name(get_operand(g, n, 0)));
    for (int k = 1; k < n->nin - 2; k++)
        if (!shape_equal(&get_operand(g, n, k)->shape, &get_operand(g, n, 0)->shape))
            return err_set(e, ERR_INTERNAL, "%s: %s is not of the shape of %s", op_name(n->op),
                           operand_name(get_operand(g, n, k)), operand_name(get_operand(g, n, 0)));
    return 0;
}

// ---- made by fusion: what the pass took for granted is checked as well --------------------------

// Operand k, inputs first, has the whole loops of the first input, or all but its last, or that
// alone.
static int want_loops(const struct graph *g, const struct node *n, int k, int from, int to,
                      struct err *e)
{
    const struct value *v = get_operand(g, n, k);
    const struct value *like = get_operand(g, n, 0);
    bool same = v->shape.n == to - from;
    for (int d = from; same && d < to; d++)
        same = n->attr.label[k][d - from] == n->attr.label[0][d] &&
               v->shape.dim[d - from] == like->shape.dim[d];
    return same ? 0
                : err_set(e, ERR_INTERNAL, "%s: %s has not the loops of %s", op_name(n->op),
                          operand_name(v), operand_name(like));
}

// A row of the first input is on one device.
static int want_whole(const struct graph *g, const struct node *n, struct err *e)
{
    const struct value *v = get_operand(g, n, 0);
    if (v->shape.n > 0 && v->spec.dim[v->shape.n - 1].n == 0)
        return 0;
    return err_set(e, ERR_INTERNAL, "%s: rows of %s are cut", op_name(n->op), operand_name(v));
}

// The first `wide` inputs and the outputs are alike, the rest vectors.
static int infer_norm_fused(const struct graph *g, const struct node *n, struct err *e)
{
    int wide = n->op == OP_ADD_NORM ? 2 : 3, dims = get_operand(g, n, 0)->shape.n;
    int rc = want_whole(g, n, e);
    for (int k = 0; k < n->nin + n->nout && !rc; k++) {
        bool vector = k >= wide && k < n->nin;
        rc = want_loops(g, n, k, vector ? dims - 1 : 0, dims, e);
    }
    return rc ? rc : infer_alike(g, n, e);
}

// The last input is the weight: it and the sums are vectors, all others are alike.
static int infer_norm_grads(const struct graph *g, const struct node *n, struct err *e)
{
    int dims = get_operand(g, n, 0)->shape.n, sums = n->nin + 1;
    if (n->nin > 4 || n->nout > 4)
        return err_set(e, ERR_INTERNAL, "%s: %d inputs, %d outputs", op_name(n->op), n->nin,
                       n->nout);
    int rc = want_whole(g, n, e);
    for (int k = 1; k < n->nin + n->nout && !rc; k++) {
        bool vector = k == n->nin - 1 || k >= sums;
        rc = want_loops(g, n, k, vector ? dims - 1 : 0, dims, e);
    }
    return rc ? rc : want_dtype(g, n, n->nin - 1, get_operand(g, n, 0)->dtype, e);
}

// The first input is the rows, and the last output of the two gradients has rows like them. All other
// operands have one number, in f32, or one id for each row, but for the cotangent of ROW_LOSS_BOTH,
// which is a scalar.
static int infer_row_loss(const struct graph *g, const struct node *n, struct err *e)
{
    int dims = get_operand(g, n, 0)->shape.n, last = n->nin + n->nout - 1;
    bool grad = n->op == OP_ROW_LOSS_GRAD, both = n->op == OP_ROW_LOSS_BOTH;
    enum dtype t = get_operand(g, n, 0)->dtype;
    int rc = grad ? 0 : want_whole(g, n, e);
    for (int k = 1; k <= last && !rc; k++) {
        bool row = k == last && (grad || both), scalar = both && k == 2;
        rc = want_loops(g, n, k, 0, row ? dims : scalar ? 0 : dims - 1, e);
        if (!rc)
            rc = want_dtype(g, n, k, row ? t : k == (grad ? 3 : 1) ? DT_I32 : DT_F32, e);
    }
    return rc;
}

static double flops_matmul(const struct node *n, const struct shape *in, const struct shape *out)
{
    struct gemm g;
    if (!gemm_from_labels(&n->attr, &in[0], &in[1], &out[0], &g))
        return 0;
    return 2.0 * (double)g.batch * (double)g.m * (double)g.n * (double)g.k;
}

// The rows of a gradient of EMBED are of one dtype, which the output has too unless it is a sum in f32.
static int infer_embed_grad(const struct graph *g, const struct node *n, struct err *e)
{
    return g->values[n->out[0]].dtype == DT_F32
               ? 0
               : want_outputs(g, n, get_operand(g, n, 1)->dtype, e);
}

// Dimensions of what attention reads.
enum { ATT_BATCH, ATT_SEQ, ATT_HEADS, ATT_WIDTH };

static int infer_rotary(const struct graph *g, const struct node *n, struct err *e)
{
    const struct shape *x = &get_operand(g, n, 0)->shape, *positions = &get_operand(g, n, 1)->shape;
    int heads = x->n - 1 - positions->n, packed = n->op == OP_ROTARY_PACKED;
    if (heads < 2 * packed || heads > 1 + packed || x->dim[x->n - 1] % 2)
        return err_set(e, ERR_INTERNAL, "rotary: %s is no even row a position, nor heads of such",
                       operand_name(get_operand(g, n, 0)));
    if (n->attr.rotary.sweep && heads != 1)
        return err_set(e, ERR_INTERNAL,
                       "rotary: a sweep over the heads of %s, which has none or several",
                       operand_name(get_operand(g, n, 0)));
    return want_outputs(g, n, get_operand(g, n, 0)->dtype, e);
}

static int infer_attention(const struct graph *g, const struct node *n, struct err *e)
{
    struct attention_operands o;
    struct op_call c = {.op = n->op, .attr = &n->attr, .nin = n->nin, .nout = n->nout};
    if (attention_operands(n->op, n->nin, &o) ||
        n->nout != (attention_is_grad(n->op) ? o.dy : ATTENTION_OUTPUTS))
        return err_set(e, ERR_INTERNAL, "%s: %d inputs, %d outputs", op_name(n->op), n->nin,
                       n->nout);
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = get_operand(g, n, k);
        *(k < n->nin ? &c.in[k] : &c.out[k - n->nin]) = (struct tensor){NULL, v->dtype, v->shape};
    }
    if (!attention_takes(&c, &o))
        return err_set(e, ERR_INTERNAL,
                       "%s: an operand has a dtype that the op does not take there",
                       op_name(n->op));
    if (!attention_fits(&c, &o))
        return err_set(e, ERR_INTERNAL, "%s: operands disagree about an extent", op_name(n->op));
    if (attention_place(&c, &o, ATTENTION_Q).heads !=
        attention_place(&c, &o, ATTENTION_K).heads * n->attr.group)
        return err_set(e, ERR_INTERNAL, "%s: heads do not share key heads alike", op_name(n->op));
    return 0;
}

static struct op_call attention_call(const struct node *n, const struct shape *in)
{
    struct op_call c = {.op = n->op, .attr = &n->attr, .nin = n->nin};
    for (int k = 0; k < n->nin; k++)
        c.in[k].shape = in[k];
    return c;
}

// Products of each query with the keys that it sees, for the scores and of the weights with the
// values; a gradient has two for each of them.
static double flops_attention(const struct node *n, const struct shape *in, const struct shape *out)
{
    struct attention_operands o;
    PRE(!attention_operands(n->op, n->nin, &o));
    const struct op_call c = attention_call(n, in);
    const struct attention_place q = attention_place(&c, &o, ATTENTION_Q);
    int64_t r = o.qr < 0 ? 0 : in[o.qr].dim[ATT_WIDTH];
    int64_t width = q.width + r + attention_place(&c, &o, ATTENTION_V).width;
    int64_t keys = attention_place(&c, &o, ATTENTION_K).rows;
    double pairs = (double)(q.batch * q.rows * q.heads) * attention_seen(&n->attr, keys);
    (void)out;
    return (attention_is_grad(n->op) ? 4 : 2) * pairs * (double)width;
}

// Checks the positions, which are the index along a dimension that is not the last.
static int infer_drawn(const struct graph *g, const struct node *n, struct err *e)
{
    const struct value *out = &g->values[n->out[0]];
    int place = n->attr.draw.place - 1, at = n->op == OP_DROPOUT ? 2 : 1;
    if (out->shape.n < 1)
        return err_set(e, ERR_INTERNAL, "%s: a single number is drawn", op_name(n->op));
    const struct value *positions = n->nin > at ? get_operand(g, n, at) : NULL;
    if (positions ? positions->shape.n < 1 || place < 0 || place >= out->shape.n - 1 ||
                        n->attr.label[at][positions->shape.n - 1] != n->attr.label[n->nin][place]
                  : place >= 0)
        return err_set(e, ERR_INTERNAL, "%s: positions of another dimension of %s", op_name(n->op),
                       operand_name(out));
    return 0;
}

static int infer_pad(const struct graph *g, const struct node *n, struct err *e)
{
    const struct value *x = get_operand(g, n, 0);
    if (n->attr.along < 0 || n->attr.along >= x->shape.n || n->attr.limit < 1)
        return err_set(e, ERR_INTERNAL, "pad: from %lld on of dimension %d of %s",
                       (long long)n->attr.limit, n->attr.along, operand_name(x));
    return infer_alike(g, n, e);
}

// A cache is [batch, places, ..], and so are its rows, but for how many a sample has of them.
static int infer_append(const struct graph *g, const struct node *n, struct err *e)
{
    const struct value *cache = get_operand(g, n, 0), *rows = get_operand(g, n, 1);
    const struct shape *at = &get_operand(g, n, 2)->shape, *last = &get_operand(g, n, 3)->shape;
    const struct value *out = &g->values[n->out[0]];
    bool fits = cache->shape.n >= 2 && rows->shape.n == cache->shape.n && at->n == 2 &&
                last->n == 1 && shape_equal(&out->shape, &cache->shape) &&
                rows->shape.dim[1] <= cache->shape.dim[1] && at->dim[1] == rows->shape.dim[1] &&
                rows->shape.dim[0] == cache->shape.dim[0] && at->dim[0] == rows->shape.dim[0] &&
                last->dim[0] == rows->shape.dim[0];
    for (int d = 2; d < cache->shape.n && fits; d++)
        fits = rows->shape.dim[d] == cache->shape.dim[d];
    return fits ? 0
                : err_set(e, ERR_INTERNAL, "append: the rows do not fit %s, or have no positions",
                          operand_name(cache));
}

static int infer_ring(const struct graph *g, const struct node *n, struct err *e)
{
    const struct shape *last = &get_operand(g, n, 0)->shape, *out = &g->values[n->out[0]].shape;
    return last->n == 1 && out->n == 2 && out->dim[0] == last->dim[0]
               ? 0
               : err_set(e, ERR_INTERNAL, "ring: it is not of the samples of %s",
                         operand_name(get_operand(g, n, 0)));
}

static int64_t find_start(const struct graph *g, int value, const struct op_at *at, int d)
{
    const struct value *v = &g->values[value];
    int64_t start[MAX_DIMS];
    spec_start(&v->spec, at->mesh, &v->shape, at->rank, start);
    return start[d];
}

static void place_table(const struct graph *g, const struct node *n, const struct op_at *at,
                        struct op_attr *attr)
{
    attr->start = find_start(g, n->op == OP_EMBED ? n->in[1] : n->out[0], at, 0);
}

// Sets dimension d of a draw from dimension `of` of a value: its extent in the whole step and where
// this rank's part begins. A batch's extent counts all microbatches.
static void place_draw(struct op_draw *draw, int d, const struct value *v, int of, bool batch,
                       int64_t start, const struct op_at *at)
{
    draw->extent[d] = v->shape.dim[of] * (batch ? at->microbatches : 1);
    draw->from[d] = start + (batch ? at->microbatch * v->shape.dim[of] : 0);
    draw->n = d + 1;
}

static void place_drawn(const struct graph *g, const struct node *n, const struct op_at *at,
                        struct op_attr *attr)
{
    const struct value *out = &g->values[n->out[0]];
    for (int d = 0; d < out->shape.n; d++)
        place_draw(&attr->draw, d, out, d, d == attr->draw.batch - 1,
                   find_start(g, n->out[0], at, d), at);
}

static void place_padding(const struct graph *g, const struct node *n, const struct op_at *at,
                          struct op_attr *attr)
{
    attr->start = find_start(g, n->out[0], at, attr->along);
}

// Query and key count by their positions: from 0. Where the sequence is cut it is not read in order
// (zigzag.h), and the queries here are a part of it.
static void place_heads(const struct graph *g, const struct node *n, const struct op_at *at,
                        struct op_attr *attr)
{
    struct attention_operands o;
    PRE(!attention_operands(n->op, n->nin, &o));
    const struct value *q = get_operand(g, n, o.q), *k = get_operand(g, n, o.k);
    int64_t first = find_start(g, n->in[o.q], at, q->shape.n - 2);
    attr->start = first - attr->group * find_start(g, n->in[o.k], at, k->shape.n - 2);
    attr->in_order = attr->in_order && q->spec.dim[ATT_SEQ].n == 0;
    place_draw(&attr->draw, 0, q, ATT_BATCH, true, find_start(g, n->in[0], at, ATT_BATCH), at);
    place_draw(&attr->draw, 1, q, q->shape.n - 2, false, first, at);
    place_draw(&attr->draw, 2, q, ATT_SEQ, false, 0, at);
    place_draw(&attr->draw, 3, k, ATT_SEQ, false, 0, at);
}

// Which head is the first here of a sweep over heads, and how many there are in all.
static void place_sweep(const struct graph *g, const struct node *n, const struct op_at *at,
                        struct op_attr *attr)
{
    const struct value *out = &g->values[n->out[0]];
    int heads = out->shape.n - 2;
    if (!attr->rotary.sweep)
        return;
    attr->start = find_start(g, n->out[0], at, heads);
    attr->rotary.heads = out->shape.dim[heads];
}

// ---- made by fusion ----

// What is wrong with an operand of steps: labels that the output lacks.
static int check_broadcast(const struct graph *g, const struct node *n, int k, struct err *e)
{
    const struct value *v = get_operand(g, n, k);
    int dims = g->values[n->out[0]].shape.n;
    for (int d = 0; d < v->shape.n; d++)
        if (n->attr.label[k][d] >= dims)
            return err_set(e, ERR_INTERNAL, "%s: %s has a dimension that its output lacks",
                           op_name(n->op), operand_name(v));
    return 0;
}

// Outputs are alike, with labels in the order of their dimensions; inputs of steps broadcast.
static int infer_chain(const struct graph *g, const struct node *n, struct err *e)
{
    const char *fault = chain_fault(n->op, n->attr.chain, n->nin, n->nout);
    if (fault)
        return err_set(e, ERR_INTERNAL, "%s: %s", op_name(n->op), fault);
    const struct shape *s = &g->values[n->out[0]].shape;
    int rc = 0;
    for (int k = 0; k < n->nout && !rc; k++) {
        const struct value *v = &g->values[n->out[k]];
        bool alike = shape_equal(&v->shape, s);
        for (int d = 0; d < s->n; d++)
            alike = alike && n->attr.label[n->nin + k][d] == d;
        rc = alike ? 0
                   : err_set(e, ERR_INTERNAL, "%s: %s is not like its other outputs",
                             op_name(n->op), operand_name(v));
    }
    for (int k = n->op == OP_LINEAR ? 2 : 0; k < n->nin && !rc; k++)
        rc = check_broadcast(g, n, k, e);
    return rc;
}

static double flops_linear(const struct node *n, const struct shape *in, const struct shape *out)
{
    struct node product = {.attr = linear_product(&n->attr, n->nin)};
    return flops_matmul(&product, in, out);
}

static int infer_linear(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = infer_chain(g, n, e);
    if (rc)
        return rc;
    struct gemm gemm;
    struct op_attr attr = linear_product(&n->attr, n->nin);
    if (!gemm_from_labels(&attr, &get_operand(g, n, 0)->shape, &get_operand(g, n, 1)->shape,
                          &g->values[n->out[0]].shape, &gemm))
        return err_set(e, ERR_INTERNAL, "linear: %s and %s need a transpose",
                       operand_name(get_operand(g, n, 0)), operand_name(get_operand(g, n, 1)));
    return 0;
}

// The second output has those loops of the product that are one input's alone, in its order.
static int want_summed_loops(const struct graph *g, const struct node *n, struct err *e)
{
    const struct shape *made = &g->values[n->out[0]].shape, *sum = &g->values[n->out[1]].shape;
    int of = gemm_summed(&n->attr, &get_operand(g, n, 0)->shape), at = 0;
    bool same = sum->n > 0;
    for (int d = 0; d < made->n && same; d++) {
        if (operand_find_loop(g, n, of, n->attr.label[2][d]) < 0)
            continue;
        same = operand_find_loop(g, n, 1 - of, n->attr.label[2][d]) < 0 && at < sum->n &&
               n->attr.label[3][at] == n->attr.label[2][d] && sum->dim[at] == made->dim[d];
        at++;
    }
    return same && at == sum->n
               ? 0
               : err_set(e, ERR_INTERNAL, "matmul_sum: %s has not the loops of %s",
                         operand_name(&g->values[n->out[1]]), operand_name(get_operand(g, n, of)));
}

static int infer_matmul_sum(const struct graph *g, const struct node *n, struct err *e)
{
    int rc = infer_matmul(g, n, e);
    return rc ? rc : want_summed_loops(g, n, e);
}

// COPY has no row: it is in programs only, never in a graph.
static const struct op_row table[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = {.infer = infer_alike},
#include "common/op/ops.def"
    [OP_MATMUL] = {.infer = infer_matmul,
                   .flops = flops_matmul,
                   .workspace = {[BACKEND_CUDA] = scratch_gemm}},
    [OP_SUM] = {.infer = infer_added, .workspace = {scratch_chunks, scratch_columns}},
    [OP_CAST] = {.infer = infer_any},
    [OP_SCALE] = {.infer = infer_alike},
    [OP_EQUAL] = {.infer = infer_any},
    [OP_PAD] = {.infer = infer_pad, .place = place_padding},
    [OP_ROW_MAX] = {.infer = infer_rows, .rows = 1},
    [OP_ROW_SUM_EXP] = {.infer = infer_rows, .rows = 1},
    [OP_ROW_EXP_MUL] = {.infer = infer_rows, .rows = 1},
    [OP_PICK] = {.infer = infer_pick, .rows = 1},
    [OP_PICK_GRAD] = {.infer = infer_pick_grad, .rows = 3},
    [OP_SOFTMAX] = {.infer = infer_alike, .rows = 1},
    [OP_SOFTMAX_GRAD] = {.infer = infer_alike},
    [OP_ROW_ARGMAX] = {.infer = infer_rows},
    [OP_DROPOUT] = {.infer = infer_drawn, .place = place_drawn},
    [OP_NORMAL] = {.infer = infer_drawn, .place = place_drawn},
    [OP_SPLIT] = {.infer = infer_alike},
    [OP_STACK] = {.infer = infer_alike},
    [OP_EMBED] = {.infer = infer_any, .place = place_table},
    [OP_EMBED_GRAD] = {.infer = infer_embed_grad,
                       .workspace = {[BACKEND_CUDA] = scratch_embed_grad},
                       .place = place_table},
    [OP_NORM] = {.infer = infer_alike},
    [OP_NORM_GRAD] = {.infer = infer_alike},
    [OP_NORM_WEIGHT_GRAD] = {.infer = infer_added, .workspace = {scratch_norm, scratch_norm_parts}},
    [OP_ROTARY] = {.infer = infer_rotary, .place = place_sweep},
    [OP_ATTENTION] = {.infer = infer_attention,
                      .flops = flops_attention,
                      .workspace = {scratch_attention, scratch_attention_cuda},
                      .place = place_heads},
    [OP_ATTENTION_GRAD] = {.infer = infer_attention,
                           .flops = flops_attention,
                           .workspace = {scratch_attention, scratch_attention_cuda},
                           .place = place_heads},
    [OP_ROTARY_PACKED] = {.infer = infer_rotary},
    [OP_ATTENTION_PACKED] = {.infer = infer_attention,
                             .flops = flops_attention,
                             .workspace = {scratch_attention, scratch_attention_cuda},
                             .place = place_heads},
    [OP_ATTENTION_PACKED_GRAD] = {.infer = infer_attention,
                                  .flops = flops_attention,
                                  .workspace = {scratch_attention, scratch_attention_cuda},
                                  .place = place_heads},
    [OP_TOPK] = {.infer = experts_infer_topk},
    [OP_BALANCE] = {.infer = infer_any},
    [OP_TOPK_GRAD] = {.infer = experts_infer_topk},
    [OP_SLOTS] = {.infer = experts_infer_slots,
                  .workspace = {experts_workspace_slots_cpu, experts_workspace_slots_cuda}},
    [OP_DISPATCH] = {.infer = experts_infer_dispatch, .place = experts_place_dispatch},
    [OP_COMBINE] = {.infer = experts_infer_dispatch, .place = experts_place_dispatch},
    [OP_SLOT_DOT] = {.infer = experts_infer_dispatch, .place = experts_place_dispatch},
    [OP_APPEND] = {.infer = infer_append},
    [OP_RING] = {.infer = infer_ring},
    [OP_CHAIN] = {.infer = infer_chain},
    [OP_LINEAR] = {.infer = infer_linear,
                   .flops = flops_linear,
                   .workspace = {[BACKEND_CUDA] = scratch_gemm}},
    [OP_MATMUL_SUM] = {.infer = infer_matmul_sum,
                       .flops = flops_matmul,
                       .workspace = {scratch_matmul_sum, scratch_matmul_sum_cuda}},
    [OP_MATMUL_PLACES] = {.infer = experts_infer_product,
                          .flops = flops_linear,
                          .workspace = {[BACKEND_CUDA] = scratch_gemm},
                          .place = experts_place_product},
    [OP_ADD_NORM] = {.infer = infer_norm_fused},
    [OP_NORM_GRAD_ADD] = {.infer = infer_norm_fused},
    [OP_NORM_GRADS] = {.infer = infer_norm_grads,
                       .workspace = {scratch_norm_grads, scratch_norm_grads_cuda}},
    [OP_ROW_LOSS] = {.infer = infer_row_loss, .rows = 1},
    [OP_ROW_LOSS_GRAD] = {.infer = infer_row_loss, .rows = 1},
    [OP_ROW_LOSS_BOTH] = {.infer = infer_row_loss, .rows = 1},
    [OP_SQNORM] = {.infer = infer_any, .workspace = {scratch_chunks, scratch_chunks}},
    [OP_METRICS] = {.infer = infer_any},
    [OP_CLIP] = {.infer = infer_any},
    [OP_SGD] = {.infer = infer_update},
    [OP_MOMENTUM] = {.infer = infer_update},
    [OP_ADAM] = {.infer = infer_update},
};

const struct op_row *op_row(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT && table[op].infer);
    return &table[op];
}

struct op_attr op_attr_on(const struct graph *g, const struct node *n, const struct op_at *at)
{
    struct op_attr attr = n->attr;
    for (int a = 0; a < at->mesh->n; a++)
        if (n->owner >> a & 1 && mesh_coord(at->mesh, at->rank, a) != 0)
            attr.scale = 0;
    if (op_row(n->op)->place)
        op_row(n->op)->place(g, n, at, &attr);
    int k = op_row(n->op)->rows - 1;
    if (k >= 0)
        attr.start = find_start(g, operand_id(n, k), at, get_operand(g, n, k)->shape.n - 1);
    return attr;
}

size_t op_workspace(const struct op_call *c, enum backend_kind b)
{
    struct widen w = {0};
    if (b == BACKEND_CPU)
        widen_of(c, &w);
    const struct op_row *row = op_row(c->op);
    return w.bytes + (row->workspace[b] ? row->workspace[b](c) : 0);
}

int op_infer(const struct graph *g, const struct node *n, struct err *e)
{
    enum dtype t[OP_MAX_IN + OP_MAX_OUT];
    for (int k = 0; k < n->nin + n->nout; k++)
        t[k] = get_operand(g, n, k)->dtype;
    int bad = op_find_misfit(n->op, n->nin, n->nout, t);
    if (bad == OP_WRONG_NUMBER)
        return err_set(e, ERR_INTERNAL, "%s: %d inputs, %d outputs", op_name(n->op), n->nin,
                       n->nout);
    if (bad >= 0)
        return err_set(e, ERR_INTERNAL, "%s: %s %d is %s, which the op does not take there",
                       op_name(n->op), bad < n->nin ? "input" : "output",
                       1 + (bad < n->nin ? bad : bad - n->nin), dtype_name(t[bad]));
    for (int k = 0; k < n->nout; k++) {
        const struct value *v = &g->values[n->out[k]];
        for (int d = 0; d < v->shape.n; d++)
            if (v->shape.dim[d] < 1)
                return err_set(e, ERR_INVALID, "%s: dimension %s would have size %lld",
                               op_name(n->op), dims_name(g->dims, v->dims[d]),
                               (long long)v->shape.dim[d]);
    }
    return op_row(n->op)->infer(g, n, e);
}

double op_bytes(const struct graph *g, const struct node *n, const struct shape *in,
                const struct shape *out)
{
    double bytes = 0;
    for (int k = 0; k < n->nin + n->nout; k++)
        bytes += (double)shape_count(k < n->nin ? &in[k] : &out[k - n->nin]) *
                 (double)dtype_size(get_operand(g, n, k)->dtype);
    return bytes;
}
