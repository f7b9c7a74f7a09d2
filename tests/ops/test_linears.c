// SPDX-License-Identifier: Apache-2.0
// Products and what follows them at a model's sizes, where libraries have other kernels than at a
// test's: chosen by timing where the backend chooses, then some elements of the results held
// against their own sums in double.
//
// The sizes are a model's on a GPU alone; elsewhere some rows and columns.
#include "tests/ops/everywhere.h"

#include "common/compile/graph/optable.h"
#include "common/op/chain.h"

enum { SAMPLES = 400 };

// ---- what is run -------------------------------------------------------------------------------

#define ADD(x, y)         \
    {                     \
        OP_ADD, {x, y}, 0 \
    }
#define ONE(op, x)     \
    {                  \
        op, {x, -1}, 0 \
    }
#define SLOPE(x, dy)             \
    {                            \
        OP_GELU_GRAD, {x, dy}, 0 \
    }

// Register 0 is the product; operands behind its two follow. No steps: a MATMUL.
static const struct linear {
    const char *name, *einsum;
    struct op_chain chain;
    int nout;
    bool adds; // to what the output holds, in f32
} linears[] = {
    {"forward", "ik,kj->ij", {0}, 1, false},
    {"gradient of what was read", "ij,kj->ik", {0}, 1, false},
    {"gradient of the weights", "ki,kj->ij", {0}, 1, true},
    {"batches", "lik,lkj->lij", {0}, 1, false},
    {"bias", "ik,kj,j->ij", {2, 1, {ADD(0, 1)}, {2}}, 1, false},
    {"a bias for all", "lik,lkj,j->lij", {2, 1, {ADD(0, 1)}, {2}}, 1, false},
    {"a bias each", "ik,lkj,lj->lij", {2, 1, {ADD(0, 1)}, {2}}, 1, false},
    {"sum", "ik,kj,ij->ij", {2, 1, {ADD(0, 1)}, {2}}, 1, false},
    {"bias, sum", "ik,kj,j,ij->ij", {3, 2, {ADD(0, 1), ADD(3, 2)}, {4}}, 1, false},
    {"relu", "ik,kj->ij", {1, 1, {ONE(OP_RELU, 0)}, {1}}, 1, false},
    {"bias, relu", "ik,kj,j->ij", {2, 2, {ADD(0, 1), ONE(OP_RELU, 2)}, {3}}, 1, false},
    {"gelu", "ik,kj->ij", {1, 1, {ONE(OP_GELU, 0)}, {1}}, 1, false},
    {"bias, gelu", "ik,kj,j->ij", {2, 2, {ADD(0, 1), ONE(OP_GELU, 2)}, {3}}, 1, false},
    {"gelu, both", "ik,kj->ij,ij", {1, 1, {ONE(OP_GELU, 0)}, {0, 1}}, 2, false},
    {"bias, gelu, both", "ik,kj,j->ij,ij", {2, 2, {ADD(0, 1), ONE(OP_GELU, 2)}, {2, 3}}, 2, false},
    {"gelu's slope", "ik,jk,ij->ij", {2, 1, {SLOPE(1, 0)}, {2}}, 1, false},
};

static bool is_gpu(void)
{
    return rig_is_cuda() && strcmp(rigs[0].info.model, "emulated") != 0;
}

static const struct extents *sizes(void)
{
    static const struct extents of_model[] = {{1024, 3072, 768, 3}, {1000, 1003, 770, 2}};
    static const struct extents of_test[] = {{40, 96, 64, 3}, {33, 57, 30, 2}};
    return is_gpu() ? of_model : of_test;
}

// Sums of about 1: a is up to 1/2, b so small that k of the products are.
static void case_make(struct rig_case *c, struct arena *a, const struct linear *l,
                      struct extents ext, enum dtype t, int shift)
{
    int64_t extent[26];
    letters(extent, ext);
    rig_case(c, a, l->chain.steps ? OP_LINEAR : OP_MATMUL, l->einsum, extent);
    c->attr.chain = l->chain.steps ? &l->chain : NULL;
    c->nout = l->nout;
    c->accumulate = l->adds;
    for (int k = 0; k < c->nin + c->nout; k++)
        c->shift[k] = shift;
    for (int k = 0; k < c->nin; k++) {
        double most = k == 1 ? 4 / sqrt((double)ext.k) : k ? 2 : 0.5;
        c->in[k].dtype = t;
        rig_fill(&c->in[k], (uint64_t)k + 1, -most, most);
    }
    c->in[0].v[0] = NAN; // which all of its row shall show, whatever follows the product
    for (int k = 0; k < c->nout; k++) {
        c->start[k].dtype = l->adds ? DT_F32 : t;
        rig_fill(&c->start[k], 9, -1, 1);
    }
}

// Settles the choice for what rig_run calls next: the same sizes, places and scratch.
static void case_tune(const struct rig *r, const struct rig_case *c)
{
    struct op_call call = {
        .op = c->op, .attr = &c->attr, .nin = c->nin, .nout = c->nout, .accumulate = c->accumulate};
    char *memory[OP_MAX_IN + OP_MAX_OUT];
    struct err e = {0};
    int n = 0;
    if (!r->backend->choice)
        return;
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct ref_tensor *t = k < c->nin ? &c->in[k] : &c->start[k - c->nin];
        size_t size = dtype_size(t->dtype), before = (size_t)c->shift[k] * size;
        memory[n] = rig_memory(r, NULL, before + (size_t)shape_count(&t->shape) * size);
        *(k < c->nin ? &call.in[k] : &call.out[k - c->nin]) =
            (struct tensor){memory[n++] + before, t->dtype, t->shape};
    }
    call.workspace_bytes = op_workspace(&call, BACKEND_CUDA);
    call.workspace = rig_memory(r, NULL, call.workspace_bytes);
    if (r->backend->choice->tune(r->q, &call, true, &e))
        rig_wrong("tuning: %s", e.text);
    while (n)
        rig_free(r, memory[--n]);
    rig_free(r, call.workspace);
}

// ---- what it should be -------------------------------------------------------------------------

// Where an operand has the element at these places of its labels.
static int64_t element_at(const struct shape *s, const int8_t *label, const int64_t at[26])
{
    int64_t p = 0;
    for (int d = 0; d < s->n; d++)
        p = p * s->dim[d] + at[label[d]];
    return p;
}

// The label that both operands have and the output lacks.
static int summed_label(const struct rig_case *c)
{
    for (int d = 0; d < c->in[0].shape.n; d++) {
        int label = c->attr.label[0][d];
        if (!memchr(c->attr.label[c->nin], label, (size_t)c->start[0].shape.n))
            return label;
    }
    fail_msg("nothing is summed");
    return -1;
}

static double product_at(const struct rig_case *c, int summed, int64_t at[26])
{
    const struct shape *s = &c->in[0].shape;
    double sum = 0;
    int64_t n = 1;
    for (int d = 0; d < s->n; d++)
        n = c->attr.label[0][d] == summed ? s->dim[d] : n;
    for (at[summed] = 0; at[summed] < n; at[summed]++)
        sum += c->in[0].v[element_at(s, c->attr.label[0], at)] *
               c->in[1].v[element_at(&c->in[1].shape, c->attr.label[1], at)];
    return sum;
}

// The samples as a LINEAR of their own: the products times one, and what else its steps read.
// where[n]: which element of the output it is; the first and the last are among them.
static void samples_take(const struct rig_case *c, struct rig_case *few, int64_t where[SAMPLES])
{
    const struct shape *out = &c->start[0].shape;
    int summed = summed_label(c);
    uint64_t draw = 1;
    few->in[1].v[0] = 1;
    for (int n = 0; n < SAMPLES; n++) {
        int64_t at[26] = {0};
        for (int d = 0; d < out->n; d++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            int64_t any = (int64_t)((draw >> 33) % (uint64_t)out->dim[d]);
            at[c->attr.label[c->nin][d]] = n == 0 ? 0 : n == 1 ? out->dim[d] - 1 : any;
        }
        where[n] = element_at(out, c->attr.label[c->nin], at);
        few->in[0].v[n] = product_at(c, summed, at);
        for (int k = 2; k < c->nin; k++)
            few->in[k].v[n] = c->in[k].v[element_at(&c->in[k].shape, c->attr.label[k], at)];
    }
}

static void case_check(const struct rig *r, const struct linear *l, struct extents ext,
                       enum dtype t, int shift)
{
    static const char *const einsums[] = {"ik,k->i", "ik,k,i->i", "ik,k,i,i->i"};
    struct arena a = {0};
    struct rig_case c, few;
    double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
    int64_t where[SAMPLES], extent[26] = {['i' - 'a'] = SAMPLES, ['k' - 'a'] = 1};
    char what[120];
    case_make(&c, &a, l, ext, t, shift);
    rig_case(&few, &a, OP_LINEAR, einsums[c.nin - 2], extent);
    samples_take(&c, &few, where);
    few.nout = c.nout;
    few.attr.chain = &l->chain;
    want[0] = few.in[0].v;
    for (int n = 0; n < SAMPLES && l->adds; n++)
        want[0][n] += c.start[0].v[where[n]];
    if (l->chain.steps)
        rig_reference(&few, &a, want);
    case_tune(r, &c);
    rig_run(r, &c, &a, got);
    snprintf(what, sizeof what, "%s of %s, %lldx%lldx%lld, %d behind", l->name, dtype_name(t),
             (long long)ext.i, (long long)ext.j, (long long)ext.k, shift);
    bool half = c.start[0].dtype == DT_BF16;
    for (int k = 0; k < c.nout; k++) {
        double *some = arena_array(&a, double, SAMPLES);
        for (int n = 0; n < SAMPLES; n++)
            some[n] = got[k][where[n]];
        // f32: 3,072 products in any order are off by some 1e-5, read as tf32 by 3e-4.
        rig_compare(what, some, want[k], SAMPLES, half ? 0x1p-6 : 4e-6, half ? 0x1p-6 : 4e-5);
    }
    arena_clear(&a);
}

// On a GPU both sizes, elsewhere one for each shift.
static void products_are_right(int shift)
{
    int first = is_gpu() ? 0 : shift, end = is_gpu() ? 2 : shift + 1;
    for (int n = 0; n < nrigs; n++)
        for (enum dtype t = DT_F32; t <= (rig_is_cuda() ? DT_BF16 : DT_F32); t++)
            for (int s = first; s < end; s++)
                for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
                    case_check(&rigs[n], &linears[i], sizes()[s], t, shift);
}

static void products_of_a_models_size_are_right_with_what_follows_them(void **state)
{
    (void)state;
    products_are_right(0);
}

// No algorithm may count on more than an element's alignment then.
static void so_are_those_whose_operands_begin_an_element_further(void **state)
{
    (void)state;
    products_are_right(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_a_models_size_are_right_with_what_follows_them),
        cmocka_unit_test(so_are_those_whose_operands_begin_an_element_further),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
