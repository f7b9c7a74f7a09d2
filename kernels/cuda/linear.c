// SPDX-License-Identifier: Apache-2.0
// LINEAR: a product and the chain behind it.
//
// Where cuBLASLt has the chain as an epilogue the sums never leave the registers: 2mn elements are
// not read again. It has a bias, a sum with another tensor (as beta · C), relu and gelu after them
// (storing what the gelu read, which the backward needs), and gelu's slope times the sums. All
// other chains, and those for which the library has no kernel or a slower one, are the product into
// an output and cuda_chain.h's kernel over it. Which is faster is told by the device's clock where
// calls are tuned.
//
// The library takes the gelu's tanh form, as ours is. Numbers between the steps are f32; apart from
// the epilogue, the product is rounded to its output's dtype once more.
#include "kernels/cuda/cuda_chain.h"
#include "kernels/cuda/cuda_gemm.h"

// ---- chains as epilogues -----------------------------------------------------------------------

// How far a chain has been matched: register `at` holds the result of the steps so far.
struct match {
    const struct op_call *call;
    const struct op_chain *chain;
    struct product *p;
    int at, before; // before: what the gelu read, −1
    enum op shape;  // RELU, GELU, GELU_GRAD; MATMUL: none yet
};

static const struct tensor *operand_of(const struct match *m, int reg)
{
    return reg > 0 && reg < m->chain->inputs ? &m->call->in[chain_operand(OP_LINEAR, reg)] : NULL;
}

// How far a dense operand moves along a dimension of the output; 0: it lacks it.
static int64_t stride_along(const struct match *m, int reg, int label)
{
    const struct tensor *t = operand_of(m, reg);
    const int8_t *of = m->call->attr->label[chain_operand(OP_LINEAR, reg)];
    int64_t stride = 1;
    for (int d = t->shape.n - 1; d >= 0; stride *= t->shape.dim[d--])
        if (of[d] == label)
            return stride;
    return 0;
}

// Whether the operand has the output's dtype, shape and memory order.
static bool is_whole(const struct match *m, int reg)
{
    const struct tensor *t = operand_of(m, reg), *out = &m->call->out[0];
    int64_t stride = 1;
    if (!t || t->dtype != out->dtype || !shape_equal(&t->shape, &out->shape))
        return false;
    for (int d = out->shape.n - 1; d >= 0; stride *= out->shape.dim[d--])
        if (out->shape.dim[d] > 1 &&
            stride_along(m, reg, m->call->attr->label[m->call->nin][d]) != stride)
            return false;
    return true;
}

// Whether the operand moves along the output's dimensions [first, end) as `inner` numbers that lie
// side by side do, each step `unit` of them; or not at all (unit 0).
static bool moves_alike(const struct match *m, int reg, int first, int end, int64_t unit)
{
    const struct tensor *out = &m->call->out[0];
    for (int d = end - 1; d >= first; unit *= out->shape.dim[d--])
        if (out->shape.dim[d] > 1 &&
            stride_along(m, reg, m->call->attr->label[m->call->nin][d]) != unit)
            return false;
    return true;
}

// The output's dimensions are batch, rows, columns: where rows and columns begin.
static void find_parts(const struct match *m, int *rows, int *columns)
{
    const struct shape *s = &m->call->out[0].shape;
    int64_t n = 1, batch = 1;
    *columns = s->n;
    *rows = 0;
    while (n < m->p->g.n)
        n *= s->dim[--*columns];
    while (batch < m->p->g.batch)
        batch *= s->dim[(*rows)++];
}

// Whether the operand is a bias: one number for each column, the same in all rows. Each batch may
// have a bias of its own, or all share one.
static bool is_bias(struct match *m, int reg)
{
    const struct tensor *t = operand_of(m, reg);
    int rows, columns;
    if (!t || t->dtype != m->p->to)
        return false;
    find_parts(m, &rows, &columns);
    if (!moves_alike(m, reg, columns, m->call->out[0].shape.n, 1) ||
        !moves_alike(m, reg, rows, columns, 0))
        return false;
    m->p->bias_stride = moves_alike(m, reg, 0, rows, 0) ? 0 : m->p->g.n;
    return moves_alike(m, reg, 0, rows, m->p->bias_stride);
}

static bool match_add(struct match *m, const struct op_step *s)
{
    int reg = s->in[0] == m->at ? s->in[1] : s->in[0];
    bool reads = s->in[0] == m->at || s->in[1] == m->at;
    if (!reads || m->shape != OP_MATMUL || !operand_of(m, reg))
        return false;
    if (!m->p->bias && is_bias(m, reg)) {
        m->p->bias = operand_of(m, reg)->data;
        return true;
    }
    if (m->p->c || !is_whole(m, reg))
        return false;
    m->p->c = operand_of(m, reg)->data;
    return true;
}

static bool match_step(struct match *m, const struct op_step *s)
{
    if (s->op == OP_ADD)
        return match_add(m, s);
    if (m->shape != OP_MATMUL)
        return false;
    m->shape = s->op;
    m->before = m->at;
    if (s->op == OP_RELU || s->op == OP_GELU)
        return s->in[0] == m->at;
    if (s->op != OP_GELU_GRAD || s->in[1] != m->at || m->at != 0 || !is_whole(m, s->in[0]))
        return false;
    m->p->aux = operand_of(m, s->in[0])->data;
    return true;
}

// The epilogue can store only the chain's result and what its gelu read.
static bool match_outputs(struct match *m)
{
    bool ends = false;
    for (int k = 0; k < m->call->nout; k++) {
        const struct tensor *out = &m->call->out[k];
        if (m->chain->out[k] == m->at) {
            m->p->out = out->data;
            ends = true;
        } else if (m->shape == OP_GELU && m->chain->out[k] == m->before) {
            m->p->aux = out->data;
        } else {
            return false;
        }
        if (out->dtype != m->p->to)
            return false;
    }
    return ends;
}

static enum product_end end_of(const struct match *m)
{
    bool bias = m->p->bias != NULL;
    switch (m->shape) {
    case OP_RELU:
        return bias ? END_RELU_BIAS : END_RELU;
    case OP_GELU_GRAD:
        return END_DGELU;
    case OP_GELU:
        if (m->p->aux)
            return bias ? END_GELU_AUX_BIAS : END_GELU_AUX;
        return bias ? END_GELU_BIAS : END_GELU;
    default:
        return bias ? END_BIAS : END_NONE;
    }
}

// Extends p, the bare product into out[0], by an epilogue that does the whole chain. False: the
// library has none.
static bool match_epilogue(const struct op_call *c, struct product *p)
{
    struct match m = {.call = c, .chain = c->attr->chain, .p = p, .before = -1, .shape = OP_MATMUL};
    if (p->g.batch > 1 && !p->g.stride_c)
        return false;
    for (int s = 0; s < m.chain->steps; s++) {
        if (!match_step(&m, &m.chain->step[s]))
            return false;
        m.at = m.chain->inputs + s;
    }
    if (!match_outputs(&m))
        return false;
    p->end = end_of(&m);
    return product_end_fits(p);
}

// ---- both ways ---------------------------------------------------------------------------------

// Returns where the bare product is written: if it is itself an output, there; else the first
// output, where the chain's result then replaces it.
static const struct tensor *place_product(const struct op_call *c)
{
    for (int k = 0; k < c->nout; k++)
        if (c->attr->chain->out[k] == 0)
            return &c->out[k];
    return &c->out[0];
}

struct linear {
    struct stream_q *q;
    const struct op_call *call;
    struct product fused, bare; // bare: into product_place
    bool fits;                  // fused is one
};

static int linear_of(struct stream_q *q, const struct op_call *c, struct linear *l, struct err *e)
{
    const char *fault = chain_fault(c->op, c->attr->chain, c->nin, c->nout);
    const struct op_attr attr = linear_product(c->attr, c->nin);
    *l = (struct linear){.q = q, .call = c};
    if (fault || c->accumulate)
        return op_refuse(c, e, fault ? fault : "adds to nothing");
    int rc = product_of(c, &attr, place_product(c), &l->bare, e);
    l->fused = l->bare;
    l->fused.to = c->out[0].dtype;
    l->fits = !rc && q->device->switches[SWITCH_EPILOGUES] && match_epilogue(c, &l->fused);
    return rc;
}

static int run_fused(void *ctx, struct err *e)
{
    const struct linear *l = ctx;
    bool ran;
    return product_run(l->q, &l->fused, &ran, e);
}

static int run_apart(void *ctx, struct err *e)
{
    const struct linear *l = ctx;
    int rc = gemm_run(l->q, l->call, &l->bare, e);
    return rc ? rc : chain_apply(l->q, l->call, place_product(l->call), e);
}

int op_linear(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct linear l;
    bool ran = false;
    int rc = linear_of(q, c, &l, e);
    if (!rc && l.fits)
        rc = product_run(q, &l.fused, &ran, e);
    if (!rc && !ran)
        rc = run_apart(&l, e);
    return rc ? rc : op_launched(q, c, e);
}

// Drops the epilogue if the product and a kernel of its own are faster.
static int compare_ways(struct linear *l, struct err *e)
{
    double fused, apart;
    int rc = product_stopwatch(l->q, run_fused, l, &fused, e);
    rc = rc ? rc : product_stopwatch(l->q, run_apart, l, &apart, e);
    if (!rc && apart < fused)
        product_drop(l->q, &l->fused, fused, apart);
    return rc;
}

int linear_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    enum product_choice how = PRODUCT_NONE;
    struct linear l;
    int rc = linear_of(q, c, &l, e);
    if (!rc && l.fits)
        rc = product_tune(q, &l.fused, time, &how, e);
    if (rc || how == PRODUCT_KNOWN)
        return rc;
    rc = gemm_tune(q, c, &l.bare, time, e);
    return rc || how == PRODUCT_NONE ? rc : compare_ways(&l, e);
}
