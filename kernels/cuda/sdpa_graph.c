// SPDX-License-Identifier: Apache-2.0
// The graphs of attention and of its gradient, written in cuDNN's small operations: a pattern that
// its flash engines know as a whole, so nothing of a sequence's square is ever stored.
//
//   forward   s = q·kᵀ; s = s·scale; s = row ≥ col ? s : hidden; m = max s; e = exp(s − m);
//             l = Σ e; lse = m + ln l; p = e / l; y = p·v                          (14 operations)
//   window    s = col + window > row ? s : hidden, after row ≥ col                  (5 more)
//   cap       s = cap·tanh(s / cap) before it is hidden; ds·(1 − tanh²) before ·scale (3 or 4 more)
//   backward  mean = (Σ dy∘y)·1; s as above, less the lse; p = exp(s); dv = pᵀ·dy;
//             ds = (dy·vᵀ − mean)·p·scale; dk = dsᵀ·q; dq = ds·k                      (21 or 22)
//
// Where the bits must not change from run to run, one product makes dq (cuDNN then stores ds, for
// as many heads as a run has). Else dq is summed in f32 in any order and rounded at the end. Where
// heads share keys, dk and dv are made for every query head and then summed.
#include "kernels/cuda/sdpa.h"

#include <stdio.h>

#include "common/base/err.h"

#define F32  CUDNN_DATA_FLOAT
#define BF16 CUDNN_DATA_BFLOAT16
#define I32  CUDNN_DATA_INT32
#define BOOL CUDNN_DATA_BOOLEAN

// ---- descriptors -------------------------------------------------------------------------------

static void note_failure(struct sdpa_made *m, cudnnStatus_t status)
{
    char last[96] = "";
    if (status == CUDNN_STATUS_SUCCESS || m->status != CUDNN_STATUS_SUCCESS)
        return;
    m->status = status;
    m->api->GetLastErrorString(last, sizeof last);
    snprintf(m->said, sizeof m->said, "%.60s: %.95s", m->api->GetErrorString(status), last);
}

cudnnBackendDescriptor_t made_new(struct sdpa_made *m, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (m->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    PRE(m->n < SDPA_DESCRIPTORS);
    note_failure(m, m->api->BackendCreateDescriptor(type, &d));
    if (m->status == CUDNN_STATUS_SUCCESS)
        m->all[m->n++] = d;
    return d;
}

void made_set(struct sdpa_made *m, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (m->status == CUDNN_STATUS_SUCCESS)
        note_failure(m, m->api->BackendSetAttribute(d, name, type, n, values));
}

void made_end(struct sdpa_made *m, cudnnBackendDescriptor_t d)
{
    if (m->status == CUDNN_STATUS_SUCCESS)
        note_failure(m, m->api->BackendFinalize(d));
}

void sdpa_made_clear(struct sdpa_made *m)
{
    while (m->n)
        m->api->BackendDestroyDescriptor(m->all[--m->n]);
}

// ---- tensors and operations --------------------------------------------------------------------

struct tensor_form {
    int64_t dim[4], stride[4];
};

enum { OPERATIONS_MAX = 40 };
struct sdpa_graph {
    struct sdpa_made *m;
    struct sdpa_shape s;
    cudnnBackendDescriptor_t op[OPERATIONS_MAX];
    int n;
    int64_t inner; // the name of the next tensor between two operations
};

// A tensor lies in the call's memory, exists only between two operations, or is a number on the
// host.
enum storage { STORED, BETWEEN, NUMBER };

static cudnnBackendDescriptor_t add_tensor(struct sdpa_graph *g, int64_t name, cudnnDataType_t type,
                                           const struct tensor_form *f, enum storage storage)
{
    const int64_t align = 16;
    const bool yes = true;
    struct sdpa_made *m = g->m;
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    made_set(m, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    made_set(m, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, f->dim);
    made_set(m, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, f->stride);
    made_set(m, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (storage == BETWEEN)
        made_set(m, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (storage == NUMBER)
        made_set(m, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    made_end(m, d);
    return d;
}

static cudnnBackendDescriptor_t add_between(struct sdpa_graph *g, cudnnDataType_t type,
                                            const struct tensor_form *f)
{
    return add_tensor(g, g->inner++, type, f, BETWEEN);
}

static cudnnBackendDescriptor_t add_number(struct sdpa_graph *g, enum sdpa_name name,
                                           cudnnDataType_t type)
{
    const struct tensor_form one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return add_tensor(g, name, type, &one, NUMBER);
}

static void set_operand(struct sdpa_graph *g, cudnnBackendDescriptor_t op,
                        cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t t)
{
    if (t)
        made_set(g->m, op, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &t);
}

static void end_op(struct sdpa_graph *g, cudnnBackendDescriptor_t op)
{
    made_end(g->m, op);
    PRE(g->n < (int)(sizeof g->op / sizeof *g->op));
    g->op[g->n++] = op;
}

static struct tensor_form packed_form(const struct sdpa_graph *g, int64_t rows, int64_t cols)
{
    int64_t b = g->s.batch, h = g->s.heads;
    return (struct tensor_form){{b, h, rows, cols}, {h * rows * cols, rows * cols, cols, 1}};
}

// y = mode(x, b) or, for a selection, y = t ? x : b.
struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t in; // the type in which it is computed
    cudnnBackendDescriptor_t x, b, t, y;
    int64_t axis; // GEN_INDEX: the axis whose index is made
};

static cudnnBackendDescriptor_t add_pointwise(struct sdpa_graph *g, const struct pointwise *p)
{
    struct sdpa_made *m = g->m;
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    made_set(m, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->in);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        made_set(m, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    made_end(m, d);
    cudnnBackendDescriptor_t op = made_new(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->t);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->y);
    end_op(g, op);
    return p->y;
}

static cudnnBackendDescriptor_t add_unary(struct sdpa_graph *g, cudnnPointwiseMode_t mode,
                                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    return add_pointwise(g, &(struct pointwise){.mode = mode, .in = F32, .x = x, .y = y});
}

static cudnnBackendDescriptor_t add_binary(struct sdpa_graph *g, cudnnPointwiseMode_t mode,
                                           cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                                           cudnnBackendDescriptor_t y)
{
    return add_pointwise(g, &(struct pointwise){.mode = mode, .in = F32, .x = x, .b = b, .y = y});
}

// dy · (1 − tanh² x).
static cudnnBackendDescriptor_t add_slope(struct sdpa_graph *g, cudnnBackendDescriptor_t dy,
                                          cudnnBackendDescriptor_t x)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_TANH_BWD;
    const cudnnDataType_t in = F32;
    struct sdpa_made *m = g->m;
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq);
    cudnnBackendDescriptor_t dx = add_between(g, F32, &pairs);
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    made_set(m, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &in);
    made_end(m, d);
    cudnnBackendDescriptor_t op = made_new(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy);
    set_operand(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx);
    end_op(g, op);
    return dx;
}

static cudnnBackendDescriptor_t add_reduction(struct sdpa_graph *g, cudnnReduceTensorOp_t how,
                                              cudnnBackendDescriptor_t x,
                                              cudnnBackendDescriptor_t y)
{
    const cudnnDataType_t in = F32;
    struct sdpa_made *m = g->m;
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    made_set(m, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in);
    made_end(m, d);
    cudnnBackendDescriptor_t op = made_new(m, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_operand(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    set_operand(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_operand(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    end_op(g, op);
    return y;
}

static cudnnBackendDescriptor_t add_product(struct sdpa_graph *g, cudnnBackendDescriptor_t a,
                                            cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c)
{
    const cudnnDataType_t in = F32;
    struct sdpa_made *m = g->m;
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &in);
    made_end(m, d);
    cudnnBackendDescriptor_t op = made_new(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    set_operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_operand(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    end_op(g, op);
    return c;
}

static cudnnBackendDescriptor_t add_reshape(struct sdpa_graph *g, cudnnBackendDescriptor_t x,
                                            cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t op = made_new(g->m, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_operand(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_operand(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    end_op(g, op);
    return y;
}

// ---- how operands lie --------------------------------------------------------------------------

static struct tensor_form transposed_form(struct tensor_form f)
{
    int64_t dim = f.dim[2], stride = f.stride[2];
    f.dim[2] = f.dim[3];
    f.stride[2] = f.stride[3];
    f.dim[3] = dim;
    f.stride[3] = stride;
    return f;
}

// `heads` heads of an operand with `pitch` elements from a position to the next.
static struct tensor_form rows_of(const struct sdpa_graph *g, int64_t heads, int64_t pitch,
                                  int64_t width)
{
    const struct sdpa_shape *s = &g->s;
    return (struct tensor_form){{s->batch, heads, s->seq, width},
                                {s->seq * pitch, width, pitch, 1}};
}

static struct tensor_form query_form(const struct sdpa_graph *g)
{
    return rows_of(g, g->s.heads, g->s.q_pitch, g->s.d);
}

static struct tensor_form key_form(const struct sdpa_graph *g)
{
    return rows_of(g, g->s.kv_heads, g->s.k_pitch, g->s.d);
}

static struct tensor_form value_form(const struct sdpa_graph *g)
{
    return rows_of(g, g->s.kv_heads, g->s.v_pitch, g->s.e);
}

static struct tensor_form y_form(const struct sdpa_graph *g) // and of dy
{
    return rows_of(g, g->s.heads, g->s.y_pitch, g->s.e);
}

// ---- the graphs --------------------------------------------------------------------------------

// Keeps a score where its positions x and b compare by `mode`, and hides it elsewhere.
static cudnnBackendDescriptor_t select_where(struct sdpa_graph *g, cudnnPointwiseMode_t mode,
                                             cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                                             cudnnBackendDescriptor_t score)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq);
    cudnnBackendDescriptor_t sees = add_between(g, BOOL, &pairs);
    add_pointwise(g, &(struct pointwise){.mode = mode, .in = BOOL, .x = x, .b = b, .y = sees});
    return add_pointwise(g, &(struct pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                                .in = F32,
                                                .x = score,
                                                .b = add_number(g, SDPA_HIDDEN, F32),
                                                .t = sees,
                                                .y = add_between(g, F32, &pairs)});
}

// The positions of the queries (axis 2) or of the keys (axis 3).
static cudnnBackendDescriptor_t add_positions(struct sdpa_graph *g, cudnnBackendDescriptor_t s,
                                              int64_t axis)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq);
    return add_pointwise(g, &(struct pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                                .in = F32,
                                                .axis = axis,
                                                .x = s,
                                                .y = add_between(g, I32, &pairs)});
}

// Hides scores of keys that come after the query, and of those that the window does not reach.
static cudnnBackendDescriptor_t hide_scores(struct sdpa_graph *g, cudnnBackendDescriptor_t s)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq);
    if (g->s.ahead)
        return s;
    s = select_where(g, CUDNN_POINTWISE_CMP_GE, add_positions(g, s, 2), add_positions(g, s, 3), s);
    if (!g->s.window)
        return s;
    cudnnBackendDescriptor_t query = add_positions(g, s, 2), key = add_positions(g, s, 3);
    key = add_pointwise(g, &(struct pointwise){.mode = CUDNN_POINTWISE_ADD,
                                               .in = I32,
                                               .x = key,
                                               .b = add_number(g, SDPA_WINDOW, I32),
                                               .y = add_between(g, I32, &pairs)});
    return select_where(g, CUDNN_POINTWISE_CMP_GT, key, query, s);
}

// Returns cap · tanh(s / cap); *below: s / cap.
static cudnnBackendDescriptor_t cap_scores(struct sdpa_graph *g, cudnnBackendDescriptor_t s,
                                           cudnnBackendDescriptor_t *below)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq);
    if (!g->s.cap)
        return s;
    cudnnBackendDescriptor_t cap = add_number(g, SDPA_CAP, F32);
    *below = add_binary(g, CUDNN_POINTWISE_DIV, s, cap, add_between(g, F32, &pairs));
    s = add_unary(g, CUDNN_POINTWISE_TANH_FWD, *below, add_between(g, F32, &pairs));
    return add_binary(g, CUDNN_POINTWISE_MUL, s, cap, add_between(g, F32, &pairs));
}

static void build_forward(struct sdpa_graph *g)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq),
                       stat = packed_form(g, g->s.seq, 1);
    struct tensor_form q = query_form(g), kt = transposed_form(key_form(g)), v = value_form(g),
                       y = y_form(g);
    cudnnBackendDescriptor_t s, e, most, sum, below;
    s = add_product(g, add_tensor(g, SDPA_Q, BF16, &q, STORED),
                    add_tensor(g, SDPA_K, BF16, &kt, STORED), add_between(g, F32, &pairs));
    s = add_binary(g, CUDNN_POINTWISE_MUL, s, add_number(g, SDPA_SCALE, F32),
                   add_between(g, F32, &pairs));
    s = hide_scores(g, cap_scores(g, s, &below));
    most = add_reduction(g, CUDNN_REDUCE_TENSOR_MAX, s, add_between(g, F32, &stat));
    e = add_binary(g, CUDNN_POINTWISE_SUB, s, most, add_between(g, F32, &pairs));
    e = add_unary(g, CUDNN_POINTWISE_EXP, e, add_between(g, F32, &pairs));
    sum = add_reduction(g, CUDNN_REDUCE_TENSOR_ADD, e, add_between(g, F32, &stat));
    add_binary(g, CUDNN_POINTWISE_ADD, most,
               add_unary(g, CUDNN_POINTWISE_LOG, sum, add_between(g, F32, &stat)),
               add_tensor(g, SDPA_LSE, F32, &stat, STORED));
    add_product(g, add_binary(g, CUDNN_POINTWISE_DIV, e, sum, add_between(g, BF16, &pairs)),
                add_tensor(g, SDPA_V, BF16, &v, STORED), add_tensor(g, SDPA_Y, BF16, &y, STORED));
}

// Makes `pairs`ᵀ · rows of all query heads, and sums over those that share a key head.
static void add_key_grad(struct sdpa_graph *g, cudnnBackendDescriptor_t pairs_t,
                         cudnnBackendDescriptor_t rows, struct tensor_form key, enum sdpa_name name)
{
    struct tensor_form all = packed_form(g, g->s.seq, key.dim[3]);
    cudnnBackendDescriptor_t to = add_tensor(g, name, BF16, &key, STORED);
    if (g->s.kv_heads == g->s.heads)
        add_product(g, pairs_t, rows, to);
    else
        add_reduction(g, CUDNN_REDUCE_TENSOR_ADD,
                      add_product(g, pairs_t, rows, add_between(g, BF16, &all)), to);
}

static void build_backward(struct sdpa_graph *g)
{
    struct tensor_form pairs = packed_form(g, g->s.seq, g->s.seq), pairs_t = pairs;
    struct tensor_form stat = packed_form(g, g->s.seq, 1), whole = packed_form(g, g->s.seq, g->s.d);
    struct tensor_form values = packed_form(g, g->s.seq, g->s.e), row = query_form(g),
                       key = key_form(g);
    struct tensor_form key_t = transposed_form(key), value_t = transposed_form(value_form(g));
    struct tensor_form y = y_form(g);
    pairs_t.stride[2] = 1;
    pairs_t.stride[3] = g->s.seq;
    cudnnBackendDescriptor_t q = add_tensor(g, SDPA_Q, BF16, &row, STORED);
    cudnnBackendDescriptor_t kt = add_tensor(g, SDPA_K, BF16, &key_t, STORED);
    cudnnBackendDescriptor_t vt = add_tensor(g, SDPA_V, BF16, &value_t, STORED);
    cudnnBackendDescriptor_t dy = add_tensor(g, SDPA_DY, BF16, &y, STORED);
    cudnnBackendDescriptor_t dq = add_tensor(g, SDPA_DQ, BF16, &row, STORED);
    cudnnBackendDescriptor_t scale = add_number(g, SDPA_SCALE, F32), mean, s, p, ds, below;

    mean = add_binary(g, CUDNN_POINTWISE_MUL, dy, add_tensor(g, SDPA_Y, BF16, &y, STORED),
                      add_between(g, F32, &values));
    mean = add_reduction(g, CUDNN_REDUCE_TENSOR_ADD, mean, add_between(g, F32, &stat));
    mean = add_binary(g, CUDNN_POINTWISE_MUL, mean, add_number(g, SDPA_ONE, F32),
                      add_tensor(g, SDPA_MEAN, F32, &stat, STORED));

    s = add_product(g, q, kt, add_between(g, F32, &pairs));
    s = add_binary(g, CUDNN_POINTWISE_MUL, s, scale, add_between(g, F32, &pairs));
    s = cap_scores(g, s, &below);
    s = add_binary(g, CUDNN_POINTWISE_SUB, s, add_tensor(g, SDPA_LSE, F32, &stat, STORED),
                   add_between(g, F32, &pairs));
    p = add_unary(g, CUDNN_POINTWISE_EXP, hide_scores(g, s), add_between(g, F32, &pairs));
    add_key_grad(g, add_reshape(g, p, add_between(g, BF16, &pairs_t)), dy, value_form(g), SDPA_DV);

    ds = add_product(g, dy, vt, add_between(g, F32, &pairs));
    ds = add_binary(g, CUDNN_POINTWISE_SUB, ds, mean, add_between(g, F32, &pairs));
    ds = add_binary(g, CUDNN_POINTWISE_MUL, ds, p, add_between(g, F32, &pairs));
    if (g->s.cap)
        ds = add_slope(g, ds, below);
    ds = add_binary(g, CUDNN_POINTWISE_MUL, ds, scale, add_between(g, BF16, &pairs));
    add_key_grad(g, add_reshape(g, ds, add_between(g, BF16, &pairs_t)), q, key, SDPA_DK);

    cudnnBackendDescriptor_t k = add_reshape(g, kt, add_between(g, BF16, &key));
    if (g->s.deterministic)
        add_product(g, ds, k, dq);
    else
        add_unary(g, CUDNN_POINTWISE_IDENTITY,
                  add_product(g, ds, k, add_tensor(g, SDPA_DQ_F32, F32, &whole, STORED)), dq);
}

cudnnBackendDescriptor_t sdpa_graph(struct sdpa_made *m, const struct sdpa_on *on,
                                    const struct sdpa_shape *s)
{
    struct sdpa_graph g = {.m = m, .s = *s, .inner = SDPA_NAMES};
    if (s->grad)
        build_backward(&g);
    else
        build_forward(&g);
    cudnnBackendDescriptor_t d = made_new(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    made_set(m, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g.n, g.op);
    if (on->handle)
        made_set(m, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &on->handle);
    made_end(m, d);
    return m->status == CUDNN_STATUS_SUCCESS ? d : NULL;
}
