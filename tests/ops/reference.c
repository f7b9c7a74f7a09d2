// SPDX-License-Identifier: Apache-2.0
// The op table in plain f64. See reference.h.
#include "tests/ops/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/rand.h"
#include "common/op/attention.h"
#include "common/op/chain.h"
#include "tests/support/normal.h"

// ---- loop indices ------------------------------------------------------------------------------

enum { LABELS = 128 };

// An assignment of loop indices, stepped through like an odometer; the labels it runs over are
// listed outermost first.
struct index {
    int n;
    int label[LABELS];
    int64_t extent[LABELS]; // by label; 0: not run over
    int64_t at[LABELS];     // by label
};

static void index_add(struct index *x, const struct ref_tensor *t, const int8_t *label, int dims)
{
    for (int d = 0; d < dims; d++) {
        int l = label[d];
        PRE(l >= 0 && (!x->extent[l] || x->extent[l] == t->shape.dim[d]));
        if (x->extent[l])
            continue;
        x->extent[l] = t->shape.dim[d];
        x->label[x->n++] = l;
    }
}

static bool index_next(struct index *x)
{
    for (int i = x->n - 1; i >= 0; i--) {
        int l = x->label[i];
        if (++x->at[l] < x->extent[l])
            return true;
        x->at[l] = 0;
    }
    return false;
}

// Where the tensor's first `dims` dimensions point, in units of what lies behind them.
static int64_t place(const struct index *x, const struct ref_tensor *t, const int8_t *label,
                     int dims)
{
    int64_t at = 0;
    for (int d = 0; d < dims; d++) {
        PRE(x->extent[label[d]] == t->shape.dim[d]);
        at = at * t->shape.dim[d] + x->at[label[d]];
    }
    return at;
}

struct call {
    enum op op;
    const struct op_attr *attr;
    const struct ref_tensor *in;
    int nin;
    struct ref_tensor *out;
    int nout;
    bool accumulate;
};

static double *in_at(const struct call *c, int k, const struct index *x)
{
    return &c->in[k].v[place(x, &c->in[k], c->attr->label[k], c->in[k].shape.n)];
}

static double *out_at(const struct call *c, const struct index *x)
{
    return &c->out[0].v[place(x, &c->out[0], c->attr->label[c->nin], c->out[0].shape.n)];
}

static void matmul_or_sum(const struct call *c)
{
    ref_product(c->op, c->attr, c->in, c->nin, c->out, c->accumulate);
}

// ---- elementwise -------------------------------------------------------------------------------

static void elementwise(const struct call *c)
{
    struct index x = {0};
    index_add(&x, &c->out[0], c->attr->label[c->nin], c->out[0].shape.n);
    const int inner = x.n ? x.label[--x.n] : -1;
    const int64_t steps = inner < 0 ? 1 : x.extent[inner];
    const int64_t a_step = ref_stride(inner, &c->in[0], c->attr->label[0]),
                  b_step = c->nin > 1 ? ref_stride(inner, &c->in[1], c->attr->label[1]) : 0,
                  to_step = ref_stride(inner, &c->out[0], c->attr->label[c->nin]);
    const double scale = (double)c->attr->scale, none = 0;
    do {
        const double *a = in_at(c, 0, &x), *b = c->nin > 1 ? in_at(c, 1, &x) : &none;
        double *to = out_at(c, &x);
        for (int64_t i = 0; i < steps; i++)
            to[i * to_step] = ref_step(c->op, a[i * a_step], b[i * b_step], scale);
    } while (index_next(&x));
}

// ---- random draws ------------------------------------------------------------------------------

static struct rand_site site_of(const struct op_draw *d, double step)
{
    return (struct rand_site){.seed = d->seed, .stream = d->stream, .step = (uint32_t)step};
}

static uint64_t draw_index(const struct op_draw *d, const int64_t at[DRAW_DIMS])
{
    uint64_t index = 0;
    for (int k = 0; k < d->n; k++)
        index = index * (uint64_t)d->extent[k] + (uint64_t)at[k];
    return index;
}

double ref_kept(const struct op_draw *d, double step, const int64_t at[DRAW_DIMS])
{
    const struct rand_site site = site_of(d, step);
    double rate = (double)d->rate;
    return (double)rand_uniform(&site, draw_index(d, at)) >= rate ? 1 / (1 - rate) : 0;
}

static void drawn(const struct call *c)
{
    const struct op_draw *d = &c->attr->draw;
    const struct shape *s = &c->out[0].shape;
    struct index x = {0};
    index_add(&x, &c->out[0], c->attr->label[c->nin], s->n);
    do {
        int64_t at[DRAW_DIMS];
        for (int k = 0; k < s->n; k++)
            at[k] = d->from[k] + x.at[c->attr->label[c->nin][k]];
        if (d->place)
            at[d->place - 1] = (int64_t)*in_at(c, c->op == OP_DROPOUT ? 2 : 1, &x);
        const struct rand_site site = site_of(d, c->in[0].v[0]);
        *out_at(c, &x) = c->op == OP_DROPOUT ? *in_at(c, 0, &x) * ref_kept(d, c->in[1].v[0], at)
                                             : (double)draw_normal(&site, draw_index(d, at));
    } while (index_next(&x));
}

// ---- padding ------------------------------------------------------------------------------------

static void pad(const struct call *c)
{
    const struct shape *s = &c->out[0].shape;
    struct index x = {0};
    index_add(&x, &c->out[0], c->attr->label[c->nin], s->n);
    do {
        int64_t at = c->attr->start + x.at[c->attr->label[c->nin][c->attr->along]];
        *out_at(c, &x) = at < c->attr->limit ? *in_at(c, 0, &x) : (double)c->attr->scale;
    } while (index_next(&x));
}

// ---- rows --------------------------------------------------------------------------------------

// Elements of a row of n that are there: from attr.limit on they are padding.
static int64_t real(const struct call *c, int64_t n)
{
    int64_t end = c->attr->limit ? c->attr->limit - c->attr->start : n;
    return end < 0 ? 0 : end < n ? end : n;
}

static double row_max(const double *x, int64_t n)
{
    double max = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double row_sum_exp(const double *x, int64_t n, double m)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - m);
    return sum;
}

static double row_argmax(const double *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (double)best;
}

static bool picked(const struct call *c, double id, int64_t n)
{
    return id >= (double)c->attr->start && id < (double)(c->attr->start + n);
}

static void rows_narrow(const struct call *c)
{
    const struct ref_tensor *wide = &c->in[0];
    int64_t n = wide->shape.dim[wide->shape.n - 1];
    struct index x = {0};
    index_add(&x, wide, c->attr->label[0], wide->shape.n - 1);
    do {
        const double *row = wide->v + place(&x, wide, c->attr->label[0], wide->shape.n - 1) * n;
        double other = c->nin > 1 ? *in_at(c, 1, &x) : 0;
        if (c->op == OP_ROW_MAX)
            *out_at(c, &x) = row_max(row, real(c, n));
        else if (c->op == OP_ROW_SUM_EXP)
            *out_at(c, &x) = row_sum_exp(row, real(c, n), other);
        else if (c->op == OP_ROW_ARGMAX)
            *out_at(c, &x) = row_argmax(row, real(c, n));
        else // PICK; an id outside belongs to another rank
            *out_at(c, &x) = picked(c, other, n) ? row[(int64_t)other - c->attr->start] : 0;
    } while (index_next(&x));
}

static void rows_wide(const struct call *c)
{
    const struct ref_tensor *wide = &c->out[0];
    const int8_t *label = c->attr->label[c->nin];
    int64_t n = wide->shape.dim[wide->shape.n - 1];
    struct index x = {0};
    index_add(&x, wide, label, wide->shape.n - 1);
    do {
        int64_t at = place(&x, wide, label, wide->shape.n - 1) * n;
        for (int64_t i = 0; i < n; i++) {
            if (c->op == OP_ROW_EXP_MUL)
                wide->v[at + i] =
                    i < real(c, n) ? exp(c->in[0].v[at + i] - *in_at(c, 1, &x)) * *in_at(c, 2, &x)
                                   : 0;
            else
                wide->v[at + i] =
                    (double)(i + c->attr->start) == *in_at(c, 0, &x) ? *in_at(c, 1, &x) : 0;
        }
    } while (index_next(&x));
}

static void softmax(const struct call *c)
{
    const bool grad = c->op == OP_SOFTMAX_GRAD;
    const int64_t n = c->in[0].shape.dim[c->in[0].shape.n - 1];
    for (int64_t at = 0; at < shape_count(&c->in[0].shape); at += n) {
        const double *x = c->in[0].v + at;
        double max = row_max(x, real(c, n)), sum = 0;
        for (int64_t i = 0; i < (grad ? n : real(c, n)); i++)
            sum += grad ? x[i] * c->in[1].v[at + i] : max > -INFINITY ? exp(x[i] - max) : 0;
        for (int64_t i = 0; i < n; i++)
            c->out[0].v[at + i] = grad                        ? c->in[1].v[at + i] * (x[i] - sum)
                                  : sum > 0 && i < real(c, n) ? exp(x[i] - max) / sum
                                                              : 0;
    }
}

// ---- transformers ------------------------------------------------------------------------------

static void split(const struct call *c)
{
    int64_t n = shape_count(&c->out[0].shape);
    for (int64_t i = 0; i < n * c->nout; i++)
        c->out[i / n].v[i % n] = c->in[0].v[i];
}

static void stack(const struct call *c)
{
    int64_t n = shape_count(&c->in[0].shape);
    for (int64_t i = 0; i < n * c->nin; i++)
        c->out[0].v[i] = c->in[i / n].v[i % n];
}

static void embed(const struct call *c)
{
    int64_t rows = c->in[1].shape.dim[0], width = 1;
    for (int d = 1; d < c->in[1].shape.n; d++)
        width *= c->in[1].shape.dim[d];
    for (int64_t i = 0; i < shape_count(&c->out[0].shape); i++) {
        double row = c->in[0].v[i / width] - (double)c->attr->start;
        c->out[0].v[i] =
            row >= 0 && row < (double)rows ? c->in[1].v[(int64_t)row * width + i % width] : 0;
    }
}

static void embed_grad(const struct call *c)
{
    int64_t rows = c->out[0].shape.dim[0], width = c->out[0].shape.dim[1];
    for (int64_t i = 0; i < rows * width; i++)
        c->out[0].v[i] = c->accumulate ? c->out[0].v[i] : 0;
    for (int64_t i = 0; i < shape_count(&c->in[1].shape); i++) {
        double row = c->in[0].v[i / width] - (double)c->attr->start;
        if (row >= 0 && row < (double)rows)
            c->out[0].v[(int64_t)row * width + i % width] += c->in[1].v[i];
    }
}

// One row's norm without weight and bias; returns the scale.
static double norm_row(const struct call *c, const double *x, int64_t n, double *y)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && c->attr->center; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    double scale = 1 / sqrt(square + (double)c->attr->eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * scale;
    return scale;
}

static void norm(const struct call *c)
{
    int64_t n = c->in[0].shape.dim[c->in[0].shape.n - 1], count = shape_count(&c->in[0].shape);
    for (int64_t at = 0; at < count; at += n) {
        double *y = c->out[0].v + at;
        norm_row(c, c->in[0].v + at, n, y);
        for (int64_t i = 0; i < n; i++) {
            y[i] *= c->nin > 1 ? c->in[1].v[i] : 1;
            y[i] += c->nin > 2 ? c->in[2].v[i] : 0;
        }
    }
}

// By the quotient rule, element by element: y_i depends on x_j through the mean and the scale.
static void norm_grad(const struct call *c)
{
    int64_t n = c->in[0].shape.dim[c->in[0].shape.n - 1], count = shape_count(&c->in[0].shape);
    double *y = calloc((size_t)n, sizeof *y);
    PRE(y);
    for (int64_t at = 0; at < count; at += n) {
        double scale = norm_row(c, c->in[0].v + at, n, y);
        for (int64_t j = 0; j < n; j++) {
            double dx = 0;
            for (int64_t i = 0; i < n; i++) {
                double g = c->in[1].v[at + i] * (c->nin > 2 ? c->in[2].v[i] : 1);
                double direct = (i == j) - (c->attr->center ? 1 / (double)n : 0);
                dx += g * scale * (direct - y[i] * y[j] / (double)n);
            }
            c->out[0].v[at + j] = dx;
        }
    }
    free(y);
}

static void norm_weight_grad(const struct call *c)
{
    int64_t n = c->in[0].shape.dim[c->in[0].shape.n - 1], count = shape_count(&c->in[0].shape);
    double *y = calloc((size_t)n, sizeof *y);
    PRE(y);
    for (int64_t i = 0; i < n; i++)
        c->out[0].v[i] = c->accumulate ? c->out[0].v[i] : 0;
    for (int64_t at = 0; at < count; at += n) {
        norm_row(c, c->in[0].v + at, n, y);
        for (int64_t i = 0; i < n; i++)
            c->out[0].v[i] += c->in[1].v[at + i] * y[i];
    }
    free(y);
}

// What fusion alone makes is what its parts make, one after the other: operands are named again for
// each of them, the labels of a row of a part are those its operand has in the whole.
static void part(const struct call *c, enum op op, const int *in, int nin, int out,
                 struct ref_tensor *to)
{
    struct op_attr attr = *c->attr;
    struct ref_tensor operand[OP_MAX_IN], made = *to;
    for (int k = 0; k < nin; k++) {
        operand[k] = in[k] < c->nin ? c->in[in[k]] : c->out[in[k] - c->nin];
        memcpy(attr.label[k], c->attr->label[in[k]], sizeof attr.label[k]);
    }
    memcpy(attr.label[nin], c->attr->label[out], sizeof attr.label[nin]);
    if (op == OP_PICK || op == OP_PICK_GRAD)
        attr.limit = 0;
    if (op == OP_SUM)
        attr.scale = 1;
    ref_op(op, &attr, operand, nin, &made, 1, false);
}

static void add_norm(const struct call *c)
{
    part(c, OP_ADD, (int[]){0, 1}, 2, c->nin, &c->out[0]);
    part(c, OP_NORM, (int[]){c->nin, 2, 3}, c->nin - 1, c->nin + 1, &c->out[1]);
}

static void row_loss(const struct call *c)
{
    part(c, OP_ROW_MAX, (int[]){0}, 1, 2, &c->out[0]);
    part(c, OP_ROW_SUM_EXP, (int[]){0, 2}, 2, 3, &c->out[1]);
    part(c, OP_PICK, (int[]){0, 1}, 2, 4, &c->out[2]);
}

static void row_loss_both(const struct call *c)
{
    const struct ref_tensor *x = &c->in[0];
    int64_t n = x->shape.dim[x->shape.n - 1], rows = shape_count(&x->shape) / n;
    double cotangent = (double)c->attr->scale * c->in[2].v[0];
    part(c, OP_ROW_MAX, (int[]){0}, 1, 3, &c->out[0]);
    part(c, OP_ROW_SUM_EXP, (int[]){0, 3}, 2, 4, &c->out[1]);
    part(c, OP_PICK, (int[]){0, 1}, 2, 5, &c->out[2]);
    for (int64_t i = 0; i < rows * n; i++) {
        int64_t r = i / n, id = i % n + c->attr->start;
        bool padding = c->attr->limit && id >= c->attr->limit;
        double share = padding ? 0 : exp(x->v[i] - c->out[0].v[r]) / c->out[1].v[r];
        c->out[3].v[i] = cotangent * (share - (id == (int64_t)c->in[1].v[r]));
    }
}

// The second part is added to the first.
static void two_added(const struct call *c)
{
    bool loss = c->op == OP_ROW_LOSS_GRAD;
    int64_t n = shape_count(&c->out[0].shape);
    struct ref_tensor second = c->out[0];
    second.v = calloc((size_t)n, sizeof *second.v);
    PRE(second.v);
    if (loss) {
        part(c, OP_PICK_GRAD, (int[]){3, 4}, 2, 5, &second);
        part(c, OP_ROW_EXP_MUL, (int[]){0, 1, 2}, 3, 5, &c->out[0]);
    } else {
        part(c, OP_NORM_GRAD, (int[]){1, 2, 3}, c->nin - 1, c->nin, &second);
        memcpy(c->out[0].v, c->in[0].v, (size_t)n * sizeof *second.v);
    }
    for (int64_t i = 0; i < n; i++)
        c->out[0].v[i] += second.v[i];
    free(second.v);
}

// The gradient is summed before it is rounded to its dtype.
static void norm_grads(const struct call *c)
{
    const struct ref_tensor *dx = &c->out[0];
    int64_t n = shape_count(&c->out[1].shape), count = shape_count(&dx->shape);
    const int x = c->nin - 3;
    const double *summed[] = {c->in[x + 1].v, dx->v};
    double *weight = calloc((size_t)n, sizeof *weight);
    struct ref_tensor made = c->out[1];
    PRE(weight);
    made.v = weight;
    part(c, OP_NORM_WEIGHT_GRAD, (int[]){x, x + 1}, 2, c->nin + 1, &made);
    if (x)
        part(c, OP_NORM_GRAD_ADD, (int[]){0, 1, 2, 3}, 4, 4, &c->out[0]);
    else
        part(c, OP_NORM_GRAD, (int[]){0, 1, 2}, 3, 3, &c->out[0]);
    for (int k = 1; k < c->nout; k++)
        for (int64_t j = 0; j < n; j++) {
            double sum = k == 1 ? weight[j] : 0;
            for (int64_t i = j; i < count && k > 1; i += n)
                sum += summed[k - 2][i];
            c->out[k].v[j] = sum + (c->accumulate ? c->out[k].v[j] : 0);
        }
    free(weight);
}

// The gradients of a weight and of its bias, each of which may be added to what is there.
static void matmul_sum(const struct call *c)
{
    for (int k = 0; k < 2; k++) {
        int of = k && memchr(c->attr->label[1], c->attr->label[3][0], (size_t)c->in[1].shape.n);
        const int in[2] = {of, 1};
        int64_t n = shape_count(&c->out[k].shape);
        struct ref_tensor made = c->out[k];
        made.v = calloc((size_t)n, sizeof *made.v);
        PRE(made.v);
        part(c, k ? OP_SUM : OP_MATMUL, in, 2 - k, 2 + k, &made);
        for (int64_t i = 0; i < n; i++)
            c->out[k].v[i] = made.v[i] + (c->accumulate ? c->out[k].v[i] : 0);
        free(made.v);
    }
}

static void heads(const struct call *c)
{
    if (c->op == OP_ROTARY)
        ref_rotary(c->attr, c->in, c->out);
    else if (c->op == OP_ROTARY_PACKED)
        ref_rotary_packed(c->attr, c->in, c->out);
    else if (op_is(c->op, OP_IS_PACKED))
        ref_attention_packed(attention_is_grad(c->op), c->attr, c->in, c->nin, c->out);
    else
        ref_attention(c->op, c->attr, c->in, c->nin, c->out, c->nout);
}

// ---- what fusion makes: the ops themselves, one after the other ---------------------------------

static void chain(const struct call *c)
{
    const struct op_chain *chain = c->attr->chain;
    const size_t count = (size_t)shape_count(&c->out[0].shape);
    struct ref_tensor reg[CHAIN_REGISTERS];
    const int8_t *label[CHAIN_REGISTERS];
    PRE(!chain_fault(c->op, chain, c->nin, c->nout));
    for (int r = 0; r < chain->inputs + chain->steps; r++) {
        int operand = r < chain->inputs ? chain_operand(c->op, r) : -1;
        label[r] = c->attr->label[operand < 0 ? c->nin : operand];
        if (operand >= 0) {
            reg[r] = c->in[operand];
            continue;
        }
        reg[r] = (struct ref_tensor){
            .shape = c->out[0].shape, .dtype = DT_F32, .v = calloc(count + 1, sizeof(double))};
    }
    struct op_attr product = linear_product(c->attr, c->nin);
    if (c->op == OP_LINEAR)
        ref_op(OP_MATMUL, &product, c->in, 2, &reg[0], 1, false);
    for (int s = 0; s < chain->steps; s++) {
        const struct op_step *step = &chain->step[s];
        struct op_attr attr = {.scale = step->scale, .labels = c->attr->labels};
        struct ref_tensor in[2];
        int n = op_inputs(step->op);
        for (int k = 0; k < n; k++) {
            in[k] = reg[step->in[k]];
            memcpy(attr.label[k], label[step->in[k]], sizeof attr.label[k]);
        }
        memcpy(attr.label[n], c->attr->label[c->nin], sizeof attr.label[n]);
        ref_op(step->op, &attr, in, n, &reg[chain->inputs + s], 1, false);
    }
    for (int k = 0; k < c->nout; k++)
        memcpy(c->out[k].v, reg[chain->out[k]].v, count * sizeof(double));
    for (int r = 0; r < chain->inputs + chain->steps; r++)
        if (r >= chain->inputs || chain_operand(c->op, r) < 0)
            free(reg[r].v);
}

// ---- blocks ------------------------------------------------------------------------------------

static void block_copy(const struct call *c)
{
    const struct op_block *b = &c->attr->block;
    for (int64_t i = 0; i < b->extent[0]; i++)
        for (int64_t j = 0; j < b->extent[1]; j++)
            for (int64_t k = 0; k < b->extent[2]; k++)
                c->out[0].v[i * b->to[0] + j * b->to[1] + k * b->to[2]] =
                    c->in[0].v[i * b->from[0] + j * b->from[1] + k * b->from[2]];
}

// ---- the end of a step -------------------------------------------------------------------------

static void sqnorm(const struct call *c)
{
    double sum = 0;
    for (int64_t i = 0; c->attr->scale != 0 && i < shape_count(&c->in[0].shape); i++)
        sum += c->in[0].v[i] * c->in[0].v[i];
    c->out[0].v[0] = (c->accumulate ? c->out[0].v[0] : 0) + (double)c->attr->scale * sum;
}

static void metrics(const struct call *c)
{
    int64_t at = 0;
    for (int k = 0; k < c->nin; k++)
        for (int64_t i = 0; i < shape_count(&c->in[k].shape); i++)
            c->out[0].v[at++] = c->in[k].v[i];
    PRE(at == shape_count(&c->out[0].shape));
}

static void clip(const struct call *c)
{
    const double *m = c->in[0].v;
    double norm = sqrt(m[METRIC_SQNORM]), limit = (double)c->attr->clip_norm;
    c->out[0].v[CLIP_SCALE] = limit > 0 && norm > limit ? limit / norm : 1;
    c->out[0].v[CLIP_SKIP] = !(isfinite(m[METRIC_LOSS]) && isfinite(m[METRIC_SQNORM]));
}

// In operands' order p, g, states, clip, hyper; the states are m and v, or the velocity. One output
// more is p as its dtype rounds it.
static void update(const struct call *c)
{
    const struct op_attr *a = c->attr;
    const double *clip_v = c->in[c->nin - 2].v, *hyper = c->in[c->nin - 1].v;
    double b1 = a->beta1, b2 = a->beta2, decay = (double)a->decay;
    double lr = hyper[HYPER_LR] * (double)a->lr_scale;
    int states = c->nin - 4;
    for (int64_t i = 0; i < shape_count(&c->in[0].shape); i++) {
        double p = c->in[0].v[i], g = clip_v[CLIP_SCALE] * c->in[1].v[i];
        double m = states > 0 ? c->in[2].v[i] : 0, v = states > 1 ? c->in[3].v[i] : 0;
        bool skip = clip_v[CLIP_SKIP] != 0;
        if (!skip && c->op == OP_SGD) {
            p -= lr * (g + decay * p);
        } else if (!skip && c->op == OP_MOMENTUM) {
            double d = g + decay * p;
            m = b1 * m + d;
            p -= lr * (a->nesterov ? d + b1 * m : m);
        } else if (!skip) {
            m = b1 * m + (1 - b1) * g;
            v = b2 * v + (1 - b2) * g * g;
            double step = m * hyper[HYPER_BIAS1] / (sqrt(v * hyper[HYPER_BIAS2]) + (double)a->eps);
            p -= lr * (step + decay * p);
        }
        c->out[0].v[i] = p;
        if (states > 0)
            c->out[1].v[i] = m;
        if (states > 1)
            c->out[2].v[i] = v;
        if (c->nout > states + 1)
            c->out[states + 1].v[i] = p;
    }
}

// ---- the table ---------------------------------------------------------------------------------

static void (*const table[OP_COUNT])(const struct call *c) = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = elementwise,
#include "common/op/ops.def"
    [OP_MATMUL] = matmul_or_sum,
    [OP_SUM] = matmul_or_sum,
    [OP_CAST] = elementwise,
    [OP_SCALE] = elementwise,
    [OP_DROPOUT] = drawn,
    [OP_NORMAL] = drawn,
    [OP_PAD] = pad,
    [OP_ROW_MAX] = rows_narrow,
    [OP_ROW_SUM_EXP] = rows_narrow,
    [OP_ROW_EXP_MUL] = rows_wide,
    [OP_PICK] = rows_narrow,
    [OP_PICK_GRAD] = rows_wide,
    [OP_SOFTMAX] = softmax,
    [OP_SOFTMAX_GRAD] = softmax,
    [OP_ROW_ARGMAX] = rows_narrow,
    [OP_EQUAL] = elementwise,
    [OP_SPLIT] = split,
    [OP_STACK] = stack,
    [OP_EMBED] = embed,
    [OP_EMBED_GRAD] = embed_grad,
    [OP_NORM] = norm,
    [OP_NORM_GRAD] = norm_grad,
    [OP_NORM_WEIGHT_GRAD] = norm_weight_grad,
    [OP_ROTARY] = heads,
    [OP_ATTENTION] = heads,
    [OP_ATTENTION_GRAD] = heads,
    [OP_ROTARY_PACKED] = heads,
    [OP_ATTENTION_PACKED] = heads,
    [OP_ATTENTION_PACKED_GRAD] = heads,
    [OP_CHAIN] = chain,
    [OP_LINEAR] = chain,
    [OP_MATMUL_SUM] = matmul_sum,
    [OP_ADD_NORM] = add_norm,
    [OP_NORM_GRAD_ADD] = two_added,
    [OP_NORM_GRADS] = norm_grads,
    [OP_ROW_LOSS] = row_loss,
    [OP_ROW_LOSS_GRAD] = two_added,
    [OP_ROW_LOSS_BOTH] = row_loss_both,
    [OP_COPY] = block_copy,
    [OP_SQNORM] = sqnorm,
    [OP_METRICS] = metrics,
    [OP_CLIP] = clip,
    [OP_SGD] = update,
    [OP_MOMENTUM] = update,
    [OP_ADAM] = update,
};

void ref_op(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
            struct ref_tensor *out, int nout, bool accumulate)
{
    const struct call c = {.op = op,
                           .attr = attr,
                           .in = in,
                           .nin = nin,
                           .out = out,
                           .nout = nout,
                           .accumulate = accumulate};
    if (table[op])
        table[op](&c);
    else
        ref_route(op, attr, in, nin, out, accumulate);
}
