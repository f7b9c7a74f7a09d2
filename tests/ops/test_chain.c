// SPDX-License-Identifier: Apache-2.0
// CHAIN and LINEAR against the f64 reference: broadcasts, several outputs, outputs over inputs that
// are read again, products in pieces; and a chain's bits are those of its steps one by one.
#include "common/op/chain.h"
#include "tests/ops/everywhere.h"

static const struct extents shapes[] = {
    {1, 1, 1, 1},    {1, 7, 3, 2},     {7, 1, 2, 3},     {33, 17, 9, 3},
    {3, 1031, 5, 2}, {257, 129, 3, 1}, {1201, 10, 2, 2}, {2, 20011, 1, 1},
};
// The last two: more than one of the CPU's pieces of 2,048 rows or columns for each of two threads,
// the last one shorter.
static const struct extents products[] = {
    {1, 1, 1, 1},     {1, 9, 5, 2},      {9, 1, 5, 3},    {17, 33, 65, 2}, {40, 700, 30, 1},
    {600, 24, 40, 2}, {300, 520, 33, 1}, {3, 4500, 5, 2}, {4500, 3, 5, 2},
};

// Registers are the operands of the einsum, then the steps'.
static const struct chain_row {
    const char *name, *einsum;
    struct op_chain chain;
    int nout;
    bool in_place; // the first output lies over the first operand, the second over the third
} chains[] = {
    {"bias and gelu, both kept",
     "ij,j->ij",
     {2, 2, {{OP_ADD, {0, 1}, 0}, {OP_GELU, {2, -1}, 0}}, {2, 3}},
     2,
     false},
    {"bias and residual",
     "ij,j,ij->ij",
     {3, 2, {{OP_ADD, {0, 1}, 0}, {OP_ADD, {3, 2}, 0}}, {4}},
     1,
     true},
    {"a gated activation backward",
     "ij,ij,ij,ij->ij",
     {4, 3, {{OP_MUL, {0, 1}, 0}, {OP_MUL, {0, 2}, 0}, {OP_SILU_GRAD, {3, 4}, 0}}, {5, 6}},
     2,
     true},
    {"an input read behind what lies over it",
     "ij,j,ij->ij",
     {3, 3, {{OP_ADD, {0, 1}, 0}, {OP_MUL, {3, 0}, 0}, {OP_SUB, {4, 2}, 0}}, {3, 5}},
     2,
     true},
    {"a last output over an input that only it reads",
     "ij,i,ij->ij",
     {3, 3, {{OP_MUL, {0, 2}, 0}, {OP_SUB, {3, 1}, 0}, {OP_TANH, {4, -1}, 0}}, {5, 3}},
     2,
     true},
    {"a number a row, and one for all",
     "ij,i,->ij",
     {3, 3, {{OP_SUB, {0, 1}, 0}, {OP_MUL, {3, 2}, 0}, {OP_EXP, {4, -1}, 0}}, {5}},
     1,
     false},
    {"an operand that lies across",
     "ij,ji,j->ij",
     {3, 2, {{OP_MUL, {0, 1}, 0}, {OP_ADD, {3, 2}, 0}}, {4}},
     1,
     false},
    {"a middle dimension",
     "ijk,j,ik->ijk",
     {3, 3, {{OP_ADD, {0, 1}, 0}, {OP_RELU, {3, -1}, 0}, {OP_MUL, {4, 2}, 0}}, {3, 4, 5}},
     3,
     false},
    {"no output but broadcast ones in",
     "i,j->ij",
     {2, 2, {{OP_ADD, {0, 1}, 0}, {OP_SCALE, {2, -1}, -0.5f}}, {3}},
     1,
     false},
    {"eight steps",
     "ij,ij,j->ij",
     {3,
      8,
      {{OP_EXP, {0, -1}, 0},
       {OP_ADD, {3, 3}, 0},
       {OP_LOG, {4, -1}, 0},
       {OP_TANH_GRAD, {1, 5}, 0},
       {OP_SOFTPLUS, {6, -1}, 0},
       {OP_DIV, {2, 7}, 0},
       {OP_CAST, {8, -1}, 1},
       {OP_SOFTPLUS_GRAD, {9, 0}, 0}},
      {5, 10}},
     2,
     false},
    {"gradients of activations",
     "ij,ij,ij->ij",
     {3,
      4,
      {{OP_GELU_GRAD, {0, 1}, 0},
       {OP_RELU_GRAD, {2, 3}, 0},
       {OP_SILU, {4, -1}, 0},
       {OP_SUB, {5, 3}, 0}},
      {6}},
     1,
     true},
};

static void chain_case(struct rig_case *c, struct arena *a, const struct chain_row *row,
                       struct extents s)
{
    int64_t ext[26];
    letters(ext, s);
    rig_case(c, a, OP_CHAIN, row->einsum, ext);
    c->nout = row->nout;
    c->attr.chain = &row->chain;
    c->in_place = row->in_place;
    for (int k = 0; k < c->nin; k++)
        rig_fill(&c->in[k], 5 + (uint64_t)k, -1, 1);
}

static void chains_are_their_steps_in_double_precision(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct arena a = {0};
            struct rig_case c;
            chain_case(&c, &a, &chains[i], shapes[s]);
            run_everywhere(&c, chains[i].name, 3e-6, 1e-6);
            arena_clear(&a);
        }
}

// One step as an op of its own, on what the registers hold.
static double *step_alone(const struct rig *r, const struct rig_case *c, struct arena *a, int step,
                          double *const reg[CHAIN_REGISTERS])
{
    const struct op_step *s = &c->attr.chain->step[step];
    struct rig_case one = {.op = s->op, .attr = {.scale = s->scale, .labels = 26}};
    double *out[OP_MAX_OUT];
    one.nin = op_inputs(s->op);
    one.nout = 1;
    one.start[0] = c->start[0];
    for (int k = 0; k < one.nin; k++) {
        int from = s->in[k];
        one.in[k] = from < c->nin ? c->in[from] : c->start[0];
        one.in[k].v = reg[from];
        memcpy(one.attr.label[k], c->attr.label[from < c->nin ? from : c->nin],
               sizeof one.attr.label[k]);
    }
    memcpy(one.attr.label[one.nin], c->attr.label[c->nin], sizeof one.attr.label[0]);
    rig_run(r, &one, a, out);
    return out[0];
}

static void a_chain_has_the_bits_of_its_steps_one_by_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (int r = 0; r < nrigs; r++) {
            struct arena a = {0};
            struct rig_case c;
            double *reg[CHAIN_REGISTERS], *got[OP_MAX_OUT];
            const struct op_chain *chain = &chains[i].chain;
            chain_case(&c, &a, &chains[i], (struct extents){37, 1031, 3, 2});
            for (int k = 0; k < c.nin; k++)
                reg[k] = c.in[k].v;
            for (int s = 0; s < chain->steps; s++)
                reg[c.nin + s] = step_alone(&rigs[r], &c, &a, s, reg);
            rig_run(&rigs[r], &c, &a, got);
            for (int k = 0; k < c.nout; k++)
                same_bits(chains[i].name, got[k], reg[chain->out[k]],
                          shape_count(&c.start[k].shape));
            arena_clear(&a);
        }
}

// ---- behind a product --------------------------------------------------------------------------

// Operands: the product's two, a number a column, one an element.
static const char *const linears[] = {
    "ik,kj,j,ij->ij",      "ki,kj,j,ij->ij",    "ik,jk,j,ij->ij",   "ki,jk,i,ij->ij",
    "k,kj,j,j->j",         "ik,lkj,j,lij->lij", "lik,lkj,j,ij->ij", "lik,lkj,l,lij->lij",
    "lki,ljk,lj,lij->lij", "ilk,kj,j,ilj->ilj",
};

// Register 0 is the product.
static const struct linear_row {
    const char *name;
    struct op_chain chain;
    int nout;
} rows[] = {
    {"bias", {3, 2, {{OP_ADD, {0, 1}, 0}, {OP_ADD, {3, 2}, 0}}, {4}}, 1},
    {"bias and gelu, both kept",
     {3, 3, {{OP_ADD, {0, 1}, 0}, {OP_GELU, {3, -1}, 0}, {OP_MUL, {4, 2}, 0}}, {3, 4, 5}},
     3},
    {"the product kept last", {3, 2, {{OP_GELU_GRAD, {2, 0}, 0}, {OP_ADD, {3, 1}, 0}}, {4, 0}}, 2},
    {"the product read twice",
     {3, 3, {{OP_MUL, {0, 1}, 0}, {OP_MUL, {0, 2}, 0}, {OP_SILU_GRAD, {2, 3}, 0}}, {5, 4}},
     2},
};

static void products_are_followed_by_their_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        for (size_t s = 0; s < sizeof products / sizeof *products; s++)
            for (size_t w = 0; w < sizeof rows / sizeof *rows; w++) {
                struct arena a = {0};
                struct rig_case c;
                int64_t ext[26];
                char name[100];
                letters(ext, products[s]);
                rig_case(&c, &a, OP_LINEAR, linears[i], ext);
                c.nout = rows[w].nout;
                c.attr.chain = &rows[w].chain;
                for (int k = 0; k < c.nin; k++)
                    rig_fill(&c.in[k], 9 + (uint64_t)k, -1, 1);
                snprintf(name, sizeof name, "%s, %s", linears[i], rows[w].name);
                run_everywhere(&c, name, 2e-5, 5e-5);
                arena_clear(&a);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_are_their_steps_in_double_precision),
        cmocka_unit_test(a_chain_has_the_bits_of_its_steps_one_by_one),
        cmocka_unit_test(products_are_followed_by_their_steps),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
