// SPDX-License-Identifier: Apache-2.0
// LINEAR: a product and the chain of elementwise ops behind it.
//
// There are two ways to compute it. Fused: cuBLASLt applies the chain as the product's epilogue,
// while the sums are still in registers, so that the mn elements of the product are neither written
// nor read back in between. The library has epilogues for a bias, for a sum with another tensor (as
// beta · C), for gelu after these (storing its input, which the backward needs), and for the product
// times gelu's slope. Its relu turns NaN into 0 (NVIDIA's forum, topic 329783), so we use none. In
// two kernels: the product is written to memory and cuda_chain.h's kernel runs the chain over it.
// That serves all other chains, and those for which the library has no kernel or a slower one:
// tuning times both ways on the device.
//
// Both compute gelu in its tanh form. Numbers between the steps of a chain are f32 in both ways. In
// two kernels the product is rounded once more, to the dtype of the output that holds it; so it is in
// one where the library splits the sum (pytorch/pytorch, pull request 180875, of a bias).
#include "kernels/cuda/cuda_chain.h"
#include "kernels/cuda/cuda_gemm.h"

// ---- chains as epilogues -----------------------------------------------------------------------

// How far a chain has been matched with an epilogue.
struct match {
    const struct op_call *call;
    const struct op_chain *chain;
    struct product *p;
    int at;        // the chain's register that holds the result of the steps so far
    int before;    // the register that gelu read; −1: it did not come yet
    enum op shape; // GELU or GELU_GRAD once one came; MATMUL before
};

// Returns the call's operand in a chain's register; null if the register holds a step's result.
static const struct tensor *find_operand(const struct match *m, int reg)
{
    return reg > 0 && reg < m->chain->inputs ? &m->call->in[chain_operand(OP_LINEAR, reg)] : NULL;
}

// Returns the stride of a dense operand along a dimension of the output, named by its label; 0 if
// the operand lacks that dimension.
static int64_t find_stride(const struct match *m, int reg, int label)
{
    const struct tensor *t = find_operand(m, reg);
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
    const struct tensor *t = find_operand(m, reg), *out = &m->call->out[0];
    int64_t stride = 1;
    if (!t || t->dtype != out->dtype || !shape_equal(&t->shape, &out->shape))
        return false;
    for (int d = out->shape.n - 1; d >= 0; stride *= out->shape.dim[d--])
        if (out->shape.dim[d] > 1 &&
            find_stride(m, reg, m->call->attr->label[m->call->nin][d]) != stride)
            return false;
    return true;
}

// Whether the operand's strides along the output's dimensions [first, end) are those of one dense
// run whose innermost stride is `unit`. With unit 0: whether it is the same along all of them.
static bool has_strides(const struct match *m, int reg, int first, int end, int64_t unit)
{
    const struct tensor *out = &m->call->out[0];
    for (int d = end - 1; d >= first; unit *= out->shape.dim[d--])
        if (out->shape.dim[d] > 1 &&
            find_stride(m, reg, m->call->attr->label[m->call->nin][d]) != unit)
            return false;
    return true;
}

// Whether the operand is a bias: one number for each column, the same in all rows. Each batch may
// have a bias of its own, or all share one.
static bool is_bias(struct match *m, int reg)
{
    const struct tensor *t = find_operand(m, reg);
    const struct shape *s = &m->call->out[0].shape;
    // The output's dimensions are those of the batch, then of the product's rows, then of its columns.
    int rows = 0, columns = s->n;
    int64_t n = 1, batch = 1;
    if (!t || t->dtype != m->p->to)
        return false;
    while (n < m->p->g.n)
        n *= s->dim[--columns];
    while (batch < m->p->g.batch)
        batch *= s->dim[rows++];
    if (!has_strides(m, reg, columns, s->n, 1) || !has_strides(m, reg, rows, columns, 0))
        return false;
    m->p->bias_stride = has_strides(m, reg, 0, rows, 0) ? 0 : m->p->g.n;
    return has_strides(m, reg, 0, rows, m->p->bias_stride);
}

static bool match_add(struct match *m, const struct op_step *s)
{
    int reg = s->in[0] == m->at ? s->in[1] : s->in[0];
    bool reads = s->in[0] == m->at || s->in[1] == m->at;
    if (!reads || m->shape != OP_MATMUL || !find_operand(m, reg))
        return false;
    if (!m->p->bias && is_bias(m, reg)) {
        m->p->bias = find_operand(m, reg)->data;
        return true;
    }
    if (m->p->c || !is_whole(m, reg))
        return false;
    m->p->c = find_operand(m, reg)->data;
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
    if (s->op == OP_GELU)
        return s->in[0] == m->at;
    if (s->op != OP_GELU_GRAD || s->in[1] != m->at || m->at != 0 || !is_whole(m, s->in[0]))
        return false;
    m->p->aux = find_operand(m, s->in[0])->data;
    return true;
}

// The outputs of the call must be what an epilogue can store: the chain's result, and no more
// than the gelu's input beside it.
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

static enum product_end choose_end(const struct match *m)
{
    bool bias = m->p->bias != NULL;
    switch (m->shape) {
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

// Extends p, the bare product into out[0], by the epilogue that computes the whole chain. Returns
// false if the library has no such epilogue.
static bool match_epilogue(const struct op_call *c, struct product *p)
{
    struct match m = {.call = c, .chain = c->attr->chain, .p = p, .before = -1, .shape = OP_MATMUL};
    if (p->g.batch > 1 && (!p->g.stride_c || p->g.ldc != p->g.n))
        return false;
    for (int s = 0; s < m.chain->steps; s++) {
        if (!match_step(&m, &m.chain->step[s]))
            return false;
        m.at = m.chain->inputs + s;
    }
    if (!match_outputs(&m))
        return false;
    p->end = choose_end(&m);
    return product_end_fits(p);
}

// ---- fused, or in two kernels ------------------------------------------------------------------

// Returns where the product without its chain is written: to the output that wants it, if one does;
// else to the first output, where the chain's result then replaces it.
static const struct tensor *choose_product_output(const struct op_call *c)
{
    for (int k = 0; k < c->nout; k++)
        if (c->attr->chain->out[k] == 0)
            return &c->out[k];
    return &c->out[0];
}

struct linear {
    struct stream_q *q;
    const struct op_call *call;
    struct product fused; // the product with the chain as its epilogue, if has_epilogue
    struct product bare;  // the product alone, into choose_product_output()
    bool has_epilogue;
};

static int plan_linear(struct stream_q *q, const struct op_call *c, struct linear *l, struct err *e)
{
    const char *fault = chain_fault(c->op, c->attr->chain, c->nin, c->nout);
    const struct op_attr attr = linear_product(c->attr, c->nin);
    *l = (struct linear){.q = q, .call = c};
    if (fault)
        return op_refuse(c, e, fault);
    int rc = product_of(c, &attr, choose_product_output(c), &l->bare, e);
    l->fused = l->bare;
    l->fused.to = c->out[0].dtype;
    l->has_epilogue = !rc && q->device->switches[SWITCH_EPILOGUES] && match_epilogue(c, &l->fused);
    return rc;
}

static int run_two_kernels(void *ctx, struct err *e)
{
    const struct linear *l = ctx;
    int rc = gemm_run(l->q, l->call, &l->bare, e);
    return rc ? rc : chain_apply(l->q, l->call, choose_product_output(l->call), e);
}

int op_linear(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct linear l;
    bool ran = false;
    int rc = plan_linear(q, c, &l, e);
    if (!rc && l.has_epilogue)
        rc = product_run(q, &l.fused, &ran, e);
    if (!rc && !ran)
        rc = run_two_kernels(&l, e);
    return rc ? rc : op_launched(q, c, e);
}

int linear_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e)
{
    enum product_choice how = PRODUCT_NONE;
    struct linear l;
    int rc = plan_linear(q, c, &l, e);
    if (!rc && l.has_epilogue)
        rc = product_tune(q, &l.fused, time, &how, e);
    if (rc || how == PRODUCT_KNOWN)
        return rc;
    rc = gemm_tune(q, c, &l.bare, time, e);
    return rc || how == PRODUCT_NONE ? rc : product_compare(q, &l.fused, run_two_kernels, &l, e);
}
