// SPDX-License-Identifier: Apache-2.0
// Every op of the CPU backend against the f64 reference: shapes, broadcasts, threads, instruction
// sets, accumulation, in place; the gradients against finite differences of the reference.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/everywhere.h"
#include "tests/unit/unit.h"

static const struct extents shapes[] = {
    {1, 1, 1, 1},   {1, 7, 3, 2},    {7, 1, 2, 3},     {5, 16, 4, 1},    {33, 17, 9, 3},
    {64, 64, 8, 2}, {3, 1031, 5, 2}, {257, 129, 3, 1}, {1201, 10, 2, 2}, {2, 20011, 1, 1},
};
static const struct extents products[] = {
    {1, 1, 1, 1},      {1, 9, 5, 2},     {9, 1, 5, 3},      {17, 33, 65, 2},
    {64, 300, 128, 1}, {784, 10, 40, 1}, {40, 512, 300, 1},
};

// ---- the table: op × labels --------------------------------------------------------------------

// Operand k is uniform in [lo, hi). Where rtol and atol are 0, the result is exact.
static const struct row {
    enum op op;
    const char *einsum;
    struct {
        double lo, hi;
    } in[6];
    double rtol, atol;
    bool in_place;
} table[] = {
#define UNIT  \
    {         \
        -1, 1 \
    }
    // Elementwise, with every way to broadcast.
    {OP_CAST, "ij->ij", {{-9, 9}}, 2e-7, 0, false},
    {OP_ADD, "ij,ij->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_ADD, "ij,ij->ij", {UNIT, UNIT}, 1e-7, 0, true},
    {OP_ADD, "ij,j->ij", {UNIT, UNIT}, 1e-7, 0, true},
    {OP_ADD, "ij,i->ij", {UNIT, UNIT}, 1e-7, 0, true},
    {OP_ADD, "ij,->ij", {UNIT, UNIT}, 1e-7, 0, true},
    {OP_ADD, ",j->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_ADD, "i,j->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_ADD, "ij,ji->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_SUB, "ij,ij->ij", {UNIT, UNIT}, 1e-7, 0, true},
    {OP_SUB, "i,ij->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_SUB, "ijk,ik->ijk", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_SUB, "kji,j->ijk", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_MUL, "ij,ij->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_MUL, "ijk,j->ijk", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_MUL, "j,i->ij", {UNIT, UNIT}, 1e-7, 0, false},
    {OP_DIV, "ij,ij->ij", {UNIT, {0.5, 2}}, 1e-7, 0, false},
    {OP_DIV, "ij,i->ij", {UNIT, {-2, -0.5}}, 1e-7, 0, true},
    {OP_SCALE, "ij->ij", {UNIT}, 1e-7, 0, true},
    {OP_SCALE, "j->ij", {UNIT}, 1e-7, 0, false},
    {OP_SCALE, "->ij", {UNIT}, 1e-7, 0, false},
    {OP_SCALE, "ki->ijk", {UNIT}, 1e-7, 0, false},
    {OP_LOG, "ij->ij", {{1e-3, 30}}, 3e-7, 0, false},
    {OP_EXP, "ij->ij", {{-20, 20}}, 3e-7, 0, true},
    {OP_SOFTPLUS, "ij->ij", {{-30, 30}}, 3e-7, 0, true},
    {OP_SOFTPLUS_GRAD, "ij,ij->ij", {{-30, 30}, UNIT}, 3e-7, 0, false},
    {OP_RELU, "ij->ij", {UNIT}, 0, 0, true},
    {OP_RELU_GRAD, "ij,ij->ij", {UNIT, UNIT}, 0, 0, false},
    {OP_GELU, "ij->ij", {{-6, 6}}, 2e-6, 1e-9, true},
    {OP_GELU_GRAD, "ij,ij->ij", {{-6, 6}, UNIT}, 2e-6, 2e-7, false},
    {OP_TANH, "ij->ij", {{-4, 4}}, 3e-7, 0, false},
    {OP_TANH_GRAD, "ij,ij->ij", {UNIT, UNIT}, 2e-7, 1e-7, false},
    {OP_SILU, "ij->ij", {{-9, 9}}, 2e-6, 1e-9, true},
    {OP_SILU_GRAD, "ij,ij->ij", {{-9, 9}, UNIT}, 2e-6, 2e-7, false},
    {OP_SIGMOID, "ij->ij", {{-30, 30}}, 2e-6, 0, true},
    {OP_SIGMOID_GRAD, "ij,ij->ij", {{0, 1}, UNIT}, 3e-7, 1e-8, false},
    {OP_EQUAL, "i,i->i", {{0, 3}, {0, 3}}, 0, 0, false},
    {OP_EQUAL, "ij,j->ij", {{0, 3}, {0, 3}}, 0, 0, false},
    // Rows. The rounding of x − m, up to 18, is a relative error of the exponential.
    {OP_ROW_MAX, "ij->i", {{-9, 9}}, 0, 0, false},
    {OP_ROW_MAX, "kij->ki", {{-9, -3}}, 0, 0, false},
    {OP_ROW_SUM_EXP, "ij,i->i", {{-9, 9}, {-9, 9}}, 2e-6, 0, false},
    {OP_ROW_SUM_EXP, "kij,ki->ki", {{-9, 9}, {-9, 9}}, 2e-6, 0, false},
    {OP_ROW_EXP_MUL, "ij,i,i->ij", {{-9, 9}, {-9, 9}, UNIT}, 2e-6, 0, true},
    {OP_SOFTMAX, "ij->ij", {{-9, 9}}, 2e-6, 1e-9, true},
    {OP_SOFTMAX, "kij->kij", {{-9, 9}}, 2e-6, 1e-9, true},
    {OP_SOFTMAX_GRAD, "ij,ij->ij", {UNIT, UNIT}, 2e-6, 2e-5, true},
    {OP_SOFTMAX_GRAD, "kij,kij->kij", {UNIT, UNIT}, 2e-6, 2e-5, true},
    {OP_ROW_EXP_MUL, "ij,i,->ij", {{-9, 9}, {-9, 9}, UNIT}, 2e-6, 0, false},
    {OP_ROW_EXP_MUL, "kij,ik,i->kij", {{-9, 9}, {-9, 9}, UNIT}, 2e-6, 0, false},
    {OP_PICK, "ij,i->i", {UNIT, {-1, 12}}, 0, 0, false},
    {OP_PICK, "kij,ki->ki", {UNIT, {0, 8}}, 0, 0, false},
    {OP_PICK_GRAD, "i,i->ij", {{-1, 12}, UNIT}, 0, 0, false},
    {OP_PICK_GRAD, "ki,->kij", {{0, 8}, UNIT}, 0, 0, false},
    {OP_ROW_ARGMAX, "ij->i", {UNIT}, 0, 0, false},
    {OP_ROW_ARGMAX, "kij->ki", {{-9, -3}}, 0, 0, false},
    // Transformers. The norms' rows are i by j: one row, odd ones, long ones.
    {OP_SPLIT, "cij->ij", {UNIT}, 0, 0, false},
    {OP_STACK, "ij,ij,ij->cij", {UNIT, UNIT, UNIT}, 0, 0, false},
    {OP_EMBED, "il,kj->ilj", {{-1, 12}, UNIT}, 0, 0, false},
    {OP_EMBED, "il,k->il", {{-1, 12}, UNIT}, 0, 0, false},
    {OP_EMBED, "bh,kij->bhij", {{-1, 12}, UNIT}, 0, 0, false},
    {OP_EMBED_GRAD, "il,ilj->kj", {{-1, 12}, UNIT}, 1e-5, 1e-5, false},
    {OP_NORM, "ij->ij", {{-3, 5}}, 1e-5, 2e-6, false},
    {OP_NORM, "kij,j->kij", {{-3, 5}, UNIT}, 1e-5, 2e-6, false},
    {OP_NORM, "ij,j,j->ij", {{-3, 5}, UNIT, UNIT}, 1e-5, 2e-6, false},
    {OP_NORM_WEIGHT_GRAD, "kij,kij->j", {{-3, 5}, UNIT}, 1e-5, 2e-5, false},
    // What fusion makes. Rows of the loss are i by j, one and two loops of them.
    {OP_ADD_NORM, "ij,ij->ij,ij", {{-3, 5}, UNIT}, 1e-5, 2e-6, true},
    {OP_ADD_NORM, "kij,kij,j->kij,kij", {{-3, 5}, UNIT, UNIT}, 1e-5, 2e-6, true},
    {OP_ADD_NORM, "ij,ij,j,j->ij,ij", {{-3, 5}, {-3, 5}, UNIT, UNIT}, 1e-5, 2e-6, false},
    {OP_ROW_LOSS, "ij,i->i,i,i", {{-9, 9}, {-1, 12}}, 2e-6, 0, false},
    {OP_ROW_LOSS, "kij,ki->ki,ki,ki", {{-90, 9}, {-1, 12}}, 1e-5, 0, false},
    {OP_ROW_LOSS_BOTH, "ij,i,->i,i,i,ij", {{-9, 9}, {-1, 12}, UNIT}, 2e-6, 1e-7, true},
    {OP_ROW_LOSS_BOTH, "kij,ki,->ki,ki,ki,kij", {{-9, 9}, {-1, 12}, UNIT}, 2e-6, 1e-7, true},
    {OP_ROW_LOSS_GRAD,
     "ij,i,i,i,i->ij",
     {{-9, 9}, {9, 10}, UNIT, {-1, 12}, UNIT},
     2e-6,
     1e-7,
     true},
    {OP_ROW_LOSS_GRAD,
     "kij,ki,ki,ki,ki->kij",
     {{-9, 9}, {9, 10}, UNIT, {-1, 12}, UNIT},
     2e-6,
     1e-7,
     true},
    // Sums over what the output lacks.
    {OP_SUM, "ij->j", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ij->i", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ij->", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ij->ij", {UNIT}, 1e-6, 0, false},
    {OP_SUM, "ij->ji", {UNIT}, 1e-6, 0, false},
    {OP_SUM, "ijk->j", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ijk->ik", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ijk->ki", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "ijk->k", {UNIT}, 1e-6, 1e-5, false},
    {OP_SUM, "j->ij", {UNIT}, 1e-6, 0, false},
    {OP_SQNORM, "ij->", {UNIT}, 1e-6, 0, false},
    // The update: p, g, states, clip, hyper. Second moments are never negative.
    {OP_SGD, "ij,ij,a,b->ij", {UNIT, UNIT, {0.5, 1}, {0.1, 1}}, 1e-6, 1e-6, true},
    {OP_MOMENTUM, "ij,ij,ij,a,b->ij", {UNIT, UNIT, UNIT, {0.5, 1}, {0.1, 1}}, 1e-6, 1e-6, true},
    {OP_ADAM,
     "ij,ij,ij,ij,a,b->ij",
     {UNIT, UNIT, UNIT, {0.1, 1}, {0.5, 1}, {0.1, 1}},
     1e-5,
     2e-6,
     true},
};

static const char *const matmuls[] = {
    "ik,kj->ij",    "ki,kj->ij",    "ik,jk->ij",   "ki,jk->ij",   "k,kj->j",     "ik,k->i",
    "k,k->",        "ik,lkj->lij",  "lik,lkj->ij", "ki,lkj->lij", "lik,ljk->ij", "i,j->ij",
    "lik,lkj->lij", "lki,ljk->lij", "ilk,kj->ilj", "kl,klj->j",
};

static const struct op_attr usual = {
    .scale = 0.75f, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f, .decay = 0.01f, .lr_scale = 0.5f};

static void attr_set(struct rig_case *c)
{
    c->attr.center = true;
    c->attr.scale = usual.scale;
    c->attr.beta1 = usual.beta1;
    c->attr.beta2 = usual.beta2;
    c->attr.eps = usual.eps;
    c->attr.decay = usual.decay;
    c->attr.lr_scale = usual.lr_scale;
}

static void row_case(struct rig_case *c, struct arena *a, const struct row *row, struct extents s)
{
    int64_t ext[26];
    letters(ext, s);
    rig_case(c, a, row->op, row->einsum, ext);
    attr_set(c);
    for (int k = 0; k < c->nin; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, row->in[k].lo, row->in[k].hi);
    if (op_is(row->op, OP_IS_UPDATE))
        c->in[c->nin - 2].v[CLIP_SKIP] = 0;
}

static void every_op_agrees_with_the_reference(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof table / sizeof *table; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct arena a = {0};
            struct rig_case c;
            row_case(&c, &a, &table[t], shapes[s]);
            run_everywhere(&c, table[t].einsum, table[t].rtol, table[t].atol);
            if (table[t].in_place) {
                c.in_place = true;
                run_everywhere(&c, "in place", table[t].rtol, table[t].atol);
            }
            arena_clear(&a);
        }
}

// How far a product of numbers in [-1, 1) may be off when an element's terms are added one after the
// other, as some of oneDNN's kernels do: the partial sum after i terms is about sqrt(i) / 3, each
// addition is off by up to 2^-24 of it, and these errors add up like a random walk: about
// 0.14 * 2^-24 a term. Seven times that leaves no element of the largest product here beyond it.
static double product_tolerance(struct extents s)
{
    return 0x1p-24 * (double)(s.k * s.l + 4);
}

static void products_agree_in_every_layout(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof matmuls / sizeof *matmuls; t++)
        for (size_t s = 0; s < sizeof products / sizeof *products; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, products[s]);
            rig_case(&c, &a, OP_MATMUL, matmuls[t], ext);
            rig_fill(&c.in[0], 1, -1, 1);
            rig_fill(&c.in[1], 2, -1, 1);
            run_everywhere(&c, matmuls[t], 1e-6, product_tolerance(products[s]));
            arena_clear(&a);
        }
}

// Of the second operand and of the first, stored either way, with several loops contracted and kept;
// the last is a sum of batches' products. Extents are drawn, the table's come first.
static void a_products_operand_is_summed_with_it_in_every_layout(void **state)
{
    static const char *const layouts[] = {"ki,kj->ij,j",    "ki,kj->ij,i",    "ik,kj->ij,j",
                                          "ki,jk->ij,j",    "ik,jk->ij,i",    "lki,lkj->ij,j",
                                          "ki,klj->ilj,lj", "kli,kj->lij,li", "lik,lkj->ij,j",
                                          "ki,lkj->lij,lj", "lki,kj->lij,li", "ki,lkj->lij,i"};
    enum { LAYOUTS = sizeof layouts / sizeof *layouts, DRAWN = 40 };
    const size_t given = sizeof products / sizeof *products;
    uint64_t draw = 1;
    (void)state;
    for (size_t t = 0; t < LAYOUTS * (given + DRAWN); t++) {
        struct extents s = t / LAYOUTS < given ? products[t / LAYOUTS] : (struct extents){0};
        int64_t *const extent[] = {&s.i, &s.j, &s.k, &s.l};
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        for (int n = 0; n < 4 && t / LAYOUTS >= given; n++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            *extent[n] = 1 + (int64_t)((draw >> 33) % (n == 3 ? 4 : 90));
        }
        letters(ext, s);
        rig_case(&c, &a, OP_MATMUL_SUM, layouts[t % LAYOUTS], ext);
        for (int k = 0; k < 2; k++) {
            rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
            rig_fill(&c.start[k], 9, -1, 1);
        }
        c.accumulate = t / LAYOUTS % 3 == 2;
        run_everywhere(&c, layouts[t % LAYOUTS], 1e-6, product_tolerance(s));
        arena_clear(&a);
    }
}

static void products_repeat_bit_for_bit(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){129, 257, 65, 1});
    rig_case(&c, &a, OP_MATMUL, "ik,kj->ij", ext);
    rig_fill(&c.in[0], 1, -1, 1);
    rig_fill(&c.in[1], 2, -1, 1);
    for (int r = 0; r < nrigs; r++) {
        double *once[OP_MAX_OUT], *again[OP_MAX_OUT];
        rig_run(&rigs[r], &c, &a, once);
        rig_run(&rigs[r], &c, &a, again);
        same_bits("matmul run twice", once[0], again[0], shape_count(&c.start[0].shape));
    }
    arena_clear(&a);
}

static void accumulating_ops_add_to_what_is_there(void **state)
{
    static const struct {
        enum op op;
        const char *einsum;
    } cases[] = {{OP_MATMUL, "ik,kj->ij"},
                 {OP_MATMUL, "ki,kj->ij"},
                 {OP_MATMUL, "lik,lkj->lij"},
                 {OP_SUM, "ij->j"},
                 {OP_SUM, "ij->i"},
                 {OP_SUM, "ij->"},
                 {OP_SUM, "ijk->ki"},
                 {OP_SUM, "ij->ji"},
                 {OP_SQNORM, "ij->"},
                 {OP_MATMUL, "lik,lkj->ij"},
                 {OP_EMBED_GRAD, "i,ij->kj"},
                 {OP_NORM_WEIGHT_GRAD, "ij,ij->j"},
                 {OP_MATMUL_SUM, "ki,kj->ij,j"},
                 {OP_MATMUL_SUM, "ki,kj->ij,i"}};
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){65, 512, 33, 3});
        rig_case(&c, &a, cases[t].op, cases[t].einsum, ext);
        attr_set(&c);
        c.accumulate = true;
        for (int k = 0; k < c.nin; k++)
            rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
        run_everywhere(&c, cases[t].einsum, 1e-6, 1e-5);
        arena_clear(&a);
    }
}

// ---- ops with operands of their own kind -------------------------------------------------------

static void pixels_and_integers_are_cast_and_scaled(void **state)
{
    static const enum dtype from[] = {DT_U8, DT_I32};
    static const char *const einsum[] = {"ij->ij", "ji->ij", "j->ij", "i->ij"};
    (void)state;
    for (size_t t = 0; t < 8; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, shapes[s]);
            rig_case(&c, &a, OP_CAST, einsum[t / 2], ext);
            c.attr.scale = 1.0f / 255;
            c.in[0].dtype = from[t % 2];
            rig_fill(&c.in[0], 1, 0, 256);
            run_everywhere(&c, "of integers", 1e-7, 0);
            arena_clear(&a);
        }
}

// A block of `from` goes to a strided place; what lies between stays.
static void blocks_go_from_stride_to_stride(void **state)
{
    static const struct op_block blocks[] = {
        {{1, 1, 1}, {0, 0, 1}, {0, 0, 1}},
        {{1, 1, 70000}, {0, 0, 1}, {0, 0, 1}},       // one row: cut into pieces
        {{3, 5, 7}, {7, 21, 1}, {35, 7, 1}},         // along an inner dimension, into parts
        {{3, 5, 7}, {35, 7, 1}, {7, 21, 1}},         // and back
        {{4, 33, 9}, {500, 10, 1}, {400, 12, 1}},    // with gaps on both sides
        {{2, 3, 100}, {400, 1, 4}, {300, 100, 1}},   // elements apart
        {{2, 90, 40}, {3600, 40, 1}, {3600, 1, 90}}, // a transpose
    };
    static const enum dtype types[] = {DT_F32, DT_I32};
    (void)state;
    for (size_t t = 0; t < 2 * sizeof blocks / sizeof *blocks; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[0] = 70000, [1] = 70000};
        rig_case(&c, &a, OP_COPY, "a->b", ext);
        c.attr.block = blocks[t / 2];
        c.in[0].dtype = c.start[0].dtype = types[t % 2];
        rig_fill(&c.in[0], 1, -1000, 1000);
        rig_fill(&c.start[0], 2, -1000, 1000);
        run_everywhere(&c, "of a block", 0, 0);
        arena_clear(&a);
    }
}

static void ids_count_from_where_the_part_of_the_rows_starts(void **state)
{
    static const struct {
        enum op op;
        const char *einsum;
        int ids;
    } cases[] = {{OP_PICK, "ij,i->i", 1}, {OP_PICK_GRAD, "i,i->ij", 0}};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){200, 11, 1, 1});
        rig_case(&c, &a, cases[t].op, cases[t].einsum, ext);
        for (int k = 0; k < 2; k++)
            rig_fill(&c.in[k], (uint64_t)k + 1, k == cases[t].ids ? 0 : -1,
                     k == cases[t].ids ? 40 : 1);
        c.attr.start = 22; // 11 of 40 ids are here
        run_everywhere(&c, "of a part", 0, 0);
        arena_clear(&a);
    }
}

static void metrics_lie_one_after_the_other(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26] = {[0] = CONTROL_SLOTS, [2] = 3, [25] = 2 + CONTROL_SLOTS + 3};
    rig_case(&c, &a, OP_METRICS, ",,a,c->z", ext);
    for (int k = 0; k < c.nin; k++)
        rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
    run_everywhere(&c, "of four parts", 0, 0);
    arena_clear(&a);
}

static void clip_scales_long_gradients_and_skips_what_is_not_finite(void **state)
{
    static const struct {
        double loss, sqnorm;
        float clip_norm;
    } cases[] = {{2, 16, 1},  {2, 16, 0},       {2, 0.25, 1}, {2, 1, 1},        {2, 0, 1},
                 {NAN, 1, 1}, {INFINITY, 1, 0}, {1, NAN, 1},  {1, INFINITY, 1}, {-INFINITY, 4, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[0] = CLIP_SLOTS, [12] = METRIC_PARTS + 1};
        rig_case(&c, &a, OP_CLIP, "m->a", ext);
        c.attr.clip_norm = cases[i].clip_norm;
        c.in[0].v[METRIC_LOSS] = cases[i].loss;
        c.in[0].v[METRIC_SQNORM] = cases[i].sqnorm;
        run_everywhere(&c, "of one step", 1e-7, 0);
        arena_clear(&a);
    }
}

static void an_update_that_must_be_skipped_changes_nothing(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        struct arena a = {0};
        struct rig_case c;
        if (!op_is(table[t].op, OP_IS_UPDATE))
            continue;
        row_case(&c, &a, &table[t], (struct extents){33, 17, 1, 1});
        c.in[c.nin - 2].v[CLIP_SKIP] = 1;
        c.in[1].v[3] = NAN;
        run_everywhere(&c, "skipped", 0, 0);
        c.in_place = true;
        run_everywhere(&c, "skipped in place", 0, 0);
        arena_clear(&a);
    }
}

static void nesterov_momentum_looks_one_step_ahead(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    const struct row row = {
        OP_MOMENTUM, "ij,ij,ij,a,b->ij", {UNIT, UNIT, UNIT, {0.5, 1}, {0.1, 1}}, 1e-6, 1e-6, true};
    row_case(&c, &a, &row, (struct extents){33, 17, 1, 1});
    c.attr.nesterov = true;
    run_everywhere(&c, "nesterov", 1e-6, 1e-6);
    arena_clear(&a);
}

static void a_part_that_another_rank_counts_is_not_read(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){3, 5, 1, 1});
    rig_case(&c, &a, OP_SQNORM, "ij->", ext);
    rig_fill(&c.in[0], 1, -1, 1);
    c.in[0].v[4] = NAN;
    c.attr.scale = 0;
    run_everywhere(&c, "of scale 0", 0, 0);
    c.accumulate = true;
    run_everywhere(&c, "of scale 0, accumulating", 0, 0);
    arena_clear(&a);
}

static void nan_and_infinity_travel_on(void **state)
{
    static const enum op ops[] = {OP_RELU, OP_GELU, OP_TANH, OP_LOG, OP_SCALE};
    (void)state;
    for (size_t t = 0; t < sizeof ops / sizeof *ops; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){3, 11, 1, 1});
        rig_case(&c, &a, ops[t], "ij->ij", ext);
        rig_fill(&c.in[0], 1, 0.5, 1);
        c.in[0].v[2] = c.in[0].v[32] = NAN;
        c.in[0].v[5] = INFINITY;
        c.in[0].v[31] = 0;
        run_everywhere(&c, "with NaN", 1e-6, 0);
        arena_clear(&a);
    }
}

static void argmax_takes_the_first_of_equals(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){200, 37, 1, 1});
    rig_case(&c, &a, OP_ROW_ARGMAX, "ij->i", ext);
    rig_fill(&c.in[0], 1, 0, 1);
    for (int64_t i = 0; i < shape_count(&c.in[0].shape); i++)
        c.in[0].v[i] = floor(c.in[0].v[i] * 4); // four values in 37 places
    run_everywhere(&c, "with equals", 0, 0);
    arena_clear(&a);
}

// ---- gradients ---------------------------------------------------------------------------------

// Σ cotangent · op(x) in the reference, for x with element i moved by h.
static double moved(const struct rig_case *c, const double *cotangent, int64_t i, double h)
{
    struct arena a = {0};
    double *out[OP_MAX_OUT], sum = 0, was = c->in[0].v[i];
    c->in[0].v[i] = was + h;
    rig_reference(c, &a, out);
    c->in[0].v[i] = was;
    for (int64_t k = 0; k < shape_count(&c->start[0].shape); k++)
        sum += cotangent[k] * out[0][k];
    arena_clear(&a);
    return sum;
}

static void check_gradient(const char *what, const struct rig_case *forward,
                           const double *cotangent, const double *gradient)
{
    const double h = 1e-5;
    for (int64_t i = 0; i < shape_count(&forward->in[0].shape); i++) {
        double slope =
            (moved(forward, cotangent, i, h) - moved(forward, cotangent, i, -h)) / (2 * h);
        if (!(fabs(slope - gradient[i]) <= 1e-5 + 1e-5 * fabs(slope)))
            fail_msg("%s: gradient %lld is %.9g, by differences %.9g", what, (long long)i,
                     gradient[i], slope);
    }
}

// Each forward op, its gradient op, and whether that wants x or y = op(x).
static void elementwise_gradients_are_slopes(void **state)
{
    static const struct {
        enum op forward, grad;
        bool of_result;
    } pairs[] = {{OP_RELU, OP_RELU_GRAD, true},          {OP_GELU, OP_GELU_GRAD, false},
                 {OP_TANH, OP_TANH_GRAD, true},          {OP_SILU, OP_SILU_GRAD, false},
                 {OP_SOFTPLUS, OP_SOFTPLUS_GRAD, false}, {OP_SIGMOID, OP_SIGMOID_GRAD, true}};
    (void)state;
    for (size_t t = 0; t < sizeof pairs / sizeof *pairs; t++) {
        struct arena a = {0};
        struct rig_case f, g;
        double *y[OP_MAX_OUT], *dx[OP_MAX_OUT];
        int64_t ext[26];
        letters(ext, (struct extents){5, 13, 1, 1});
        rig_case(&f, &a, pairs[t].forward, "ij->ij", ext);
        rig_fill(&f.in[0], 3, -3, 3); // no element within h of relu's corner
        rig_case(&g, &a, pairs[t].grad, "ij,ij->ij", ext);
        rig_reference(&f, &a, y);
        memcpy(g.in[0].v, pairs[t].of_result ? y[0] : f.in[0].v, 5 * 13 * sizeof(double));
        rig_fill(&g.in[1], 4, -1, 1);
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &g, &a, dx);
            check_gradient(op_name(pairs[t].grad), &f, g.in[1].v, dx[0]);
        }
        arena_clear(&a);
    }
}

// The cotangent of one value a row, carried to the row: of Σ exp(x − m) by ROW_EXP_MUL, of x[ids]
// by PICK_GRAD.
static void row_gradients_are_slopes(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case sum, mul, pick, pick_grad;
    double *dx[OP_MAX_OUT];
    int64_t ext[26];
    letters(ext, (struct extents){4, 11, 1, 1});
    rig_case(&sum, &a, OP_ROW_SUM_EXP, "ij,i->i", ext);
    rig_fill(&sum.in[0], 1, -2, 2);
    rig_fill(&sum.in[1], 2, 0, 2);
    rig_case(&mul, &a, OP_ROW_EXP_MUL, "ij,i,i->ij", ext);
    mul.in[0] = sum.in[0];
    mul.in[1] = sum.in[1];
    rig_fill(&mul.in[2], 3, -1, 1);
    rig_case(&pick, &a, OP_PICK, "ij,i->i", ext);
    pick.in[0] = sum.in[0];
    rig_fill(&pick.in[1], 4, 0, 11);
    rig_case(&pick_grad, &a, OP_PICK_GRAD, "i,i->ij", ext);
    pick_grad.in[0] = pick.in[1];
    pick_grad.in[1] = mul.in[2];
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &mul, &a, dx);
        check_gradient("row_exp_mul", &sum, mul.in[2].v, dx[0]);
        rig_run(&rigs[r], &pick_grad, &a, dx);
        check_gradient("pick_grad", &pick, pick_grad.in[1].v, dx[0]);
    }
    arena_clear(&a);
}

// ---- refusals ----------------------------------------------------------------------------------

static void refused(const struct op_call *c, const char *why)
{
    char want[200];
    struct err e = {0};
    snprintf(want, sizeof want, "%s: %s: %s", rigs[0].backend->name, op_name(c->op), why);
    assert_int_equal(rigs[0].backend->op.run[c->op](rigs[0].q, c, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, want);
}

// Of every op, each operand in turn: bytes, which no op takes but CAST and those that move any dtype.
static void dtypes_that_an_ops_row_lacks_are_refused_before_anything_is_read(void **state)
{
    static const enum dtype known[] = {
        ['f'] = DT_F32, ['i'] = DT_I32, ['b'] = DT_BF16, ['x'] = DT_F32,
        ['n'] = DT_F32, ['a'] = DT_F32, ['t'] = DT_F32,  ['u'] = DT_F32};
    int refusals = 0;
    (void)state;
    for (int op = 0; op < OP_COUNT; op++) {
        const struct op_attr attr = {.scale = 1};
        struct op_call c = {.op = (enum op)op, .attr = &attr};
        const char *letters = op_dtypes(c.op), *l = letters;
        for (; *l && *l != '>'; l++)
            if (*l != '*' && *l != '?')
                c.in[c.nin++].dtype = known[(int)*l];
        for (; *l; l++)
            if (!strchr("*?>", *l))
                c.out[c.nout++].dtype = known[(int)*l];
        while (c.nin < op_inputs(c.op)) // a letter that stands for several
            c.in[c.nin++].dtype = DT_F32;
        for (int k = letters[0] == 'n' || letters[0] == 'a'; k < c.nin + c.nout && *letters; k++) {
            struct tensor *t = k < c.nin ? &c.in[k] : &c.out[k - c.nin];
            const enum dtype kept = t->dtype;
            struct err e = {0};
            t->dtype = DT_U8;
            if (rigs[0].backend->op.run[op](rigs[0].q, &c, &e) != ERR_UNSUPPORTED ||
                !strstr(e.text, "is u8, which the op does not take there") ||
                !strstr(e.text, op_name(c.op)))
                fail_msg("operand %d of %s in u8: %s", k, op_name(c.op), e.text);
            t->dtype = kept;
            refusals++;
        }
    }
    assert_true(refusals > 100);
}

static void operands_that_no_kernel_serves_are_refused_by_name(void **state)
{
    (void)state;
    void *x = rig_memory(&rigs[0], NULL, 6 * sizeof(float));
    void *y = rig_memory(&rigs[0], NULL, 6 * sizeof(float));
    struct op_attr attr = {.label = {{0, 1}, {0, 1}, {0, 1}}};
    const struct shape wide = {2, {2, 3}}, other = {2, {3, 2}};
    struct op_call c = {.op = OP_ADD, .attr = &attr, .nin = 2, .nout = 1};
    c.in[0] = (struct tensor){x, DT_F32, wide};
    c.in[1] = (struct tensor){x, DT_F32, other};
    c.out[0] = (struct tensor){y, DT_F32, wide};
    refused(&c, "operands disagree about an extent");
    c.in[1] = (struct tensor){x, DT_I32, wide};
    refused(&c, "input 2 is i32, which the op does not take there");
    attr.label[0][1] = 7;
    c.in[1] = (struct tensor){x, DT_F32, wide};
    refused(&c, "an operand has a dimension that the output lacks");
    c.nin = 1;
    refused(&c, "has a number of operands that the op does not have");
    c.op = OP_DROPOUT; // whose step is missing; positions may be
    refused(&c, "has a number of operands that the op does not have");
    rig_free(&rigs[0], x);
    rig_free(&rigs[0], y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_agrees_with_the_reference),
        cmocka_unit_test(products_agree_in_every_layout),
        cmocka_unit_test(a_products_operand_is_summed_with_it_in_every_layout),
        cmocka_unit_test(products_repeat_bit_for_bit),
        cmocka_unit_test(accumulating_ops_add_to_what_is_there),
        cmocka_unit_test(pixels_and_integers_are_cast_and_scaled),
        cmocka_unit_test(blocks_go_from_stride_to_stride),
        cmocka_unit_test(ids_count_from_where_the_part_of_the_rows_starts),
        cmocka_unit_test(metrics_lie_one_after_the_other),
        cmocka_unit_test(clip_scales_long_gradients_and_skips_what_is_not_finite),
        cmocka_unit_test(an_update_that_must_be_skipped_changes_nothing),
        cmocka_unit_test(nesterov_momentum_looks_one_step_ahead),
        cmocka_unit_test(a_part_that_another_rank_counts_is_not_read),
        cmocka_unit_test(nan_and_infinity_travel_on),
        cmocka_unit_test(argmax_takes_the_first_of_equals),
        cmocka_unit_test(elementwise_gradients_are_slopes),
        cmocka_unit_test(row_gradients_are_slopes),
        cmocka_unit_test(dtypes_that_an_ops_row_lacks_are_refused_before_anything_is_read),
        cmocka_unit_test(operands_that_no_kernel_serves_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
