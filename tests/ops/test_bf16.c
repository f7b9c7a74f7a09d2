// SPDX-License-Identifier: Apache-2.0
// bf16 operands on every op: the reference's numbers, rounded once. What is one correctly rounded
// f32 operation is held to the bit; sums and functions, where they are bf16, to one unit of its
// last place beyond their f32 tolerance, else to that tolerance.
#include "tests/ops/everywhere.h"

#include "common/op/attention.h"

static const struct extents shapes[] = {
    {1, 1, 1, 1},   {1, 7, 3, 2},    {7, 1, 2, 3},     {5, 16, 4, 1},
    {33, 17, 9, 3}, {3, 1031, 5, 2}, {257, 129, 3, 1}, {40, 513, 33, 1},
};

// The operands that are bf16, a bit each, outputs behind the inputs.
#define BF16(k) (1u << (k))
#define ALL     0xffffu

enum { EXACT, ROUNDED };
static const double ULP = 0x1p-7; // a tie may fall to the other side: one unit of the last place

static void case_make(struct rig_case *c, struct arena *a, enum op op, const char *einsum,
                      unsigned bf16, struct extents s, double lo, double hi)
{
    int64_t ext[26];
    letters(ext, s);
    rig_case(c, a, op, einsum, ext);
    c->attr.eps = 1e-5f;
    c->attr.center = true;
    c->attr.scale = 0.75f;
    c->attr.rotary.theta = 1000;
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct ref_tensor *t = k < c->nin ? &c->in[k] : &c->start[k - c->nin];
        bool ids = t->dtype == DT_I32;
        if (bf16 >> k & 1 && !ids)
            t->dtype = DT_BF16;
        rig_fill(t, (uint64_t)k + 1, ids ? -1 : lo, ids ? 12 : hi);
    }
}

static const struct row {
    enum op op;
    const char *einsum;
    unsigned bf16;
    int kind;
    double lo, hi, rtol, atol;
} table[] = {
    {OP_CAST, "ij->ij", BF16(0), EXACT, -9, 9, 0, 0},
    {OP_CAST, "ij->ij", BF16(1), EXACT, -9, 9, 0, 0},
    {OP_CAST, "ji->ij", ALL, EXACT, -9, 9, 0, 0},
    {OP_ADD, "ij,ij->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_ADD, "ij,j->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_ADD, "ij,i->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_ADD, "ij,ji->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_SUB, "kji,j->ijk", ALL, EXACT, -1, 1, 0, 0},
    {OP_MUL, "ijk,j->ijk", ALL, EXACT, -1, 1, 0, 0},
    {OP_DIV, "ij,ij->ij", ALL, EXACT, 0.5, 2, 0, 0},
    {OP_SCALE, "ij->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_SCALE, "j->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_RELU, "ij->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_RELU_GRAD, "ij,ij->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_SPLIT, "cij->ij", ALL, EXACT, -1, 1, 0, 0},
    {OP_STACK, "ij,ij,ij->cij", ALL, EXACT, -1, 1, 0, 0},
    {OP_EMBED, "il,kj->ilj", ALL, EXACT, -1, 1, 0, 0},
    {OP_PICK, "ij,i->i", BF16(0), EXACT, -1, 1, 0, 0},
    {OP_PICK_GRAD, "i,i->ij", BF16(2), EXACT, -1, 1, 0, 0},
    {OP_ROW_MAX, "kij->ki", BF16(0), EXACT, -9, 9, 0, 0},
    {OP_ROW_ARGMAX, "ij->i", BF16(0), EXACT, -9, 9, 0, 0},
    {OP_GELU, "ij->ij", ALL, ROUNDED, -4, 4, 2e-6, 1e-8},
    {OP_GELU_GRAD, "ij,ij->ij", ALL, ROUNDED, -4, 4, 2e-6, 2e-6},
    {OP_TANH, "ij->ij", ALL, ROUNDED, -4, 4, 3e-7, 0},
    {OP_TANH_GRAD, "ij,ij->ij", ALL, ROUNDED, -1, 1, 2e-7, 1e-7},
    {OP_SILU, "ij->ij", ALL, ROUNDED, -9, 9, 2e-6, 1e-8},
    {OP_SILU_GRAD, "ij,ij->ij", ALL, ROUNDED, -4, 4, 2e-6, 2e-6},
    {OP_SIGMOID, "ij->ij", ALL, ROUNDED, -9, 9, 2e-6, 1e-8},
    {OP_SIGMOID_GRAD, "ij,ij->ij", ALL, ROUNDED, 0, 1, 3e-7, 1e-8},
    {OP_LOG, "ij->ij", ALL, ROUNDED, 2, 30, 3e-7, 0},
    {OP_EXP, "ij->ij", ALL, ROUNDED, -4, 4, 3e-7, 0},
    {OP_SOFTPLUS, "ij->ij", ALL, ROUNDED, -9, 9, 3e-7, 0},
    {OP_SOFTPLUS_GRAD, "ij,ij->ij", ALL, ROUNDED, -4, 4, 3e-7, 0},
    {OP_ROW_SUM_EXP, "kij,ki->ki", BF16(0), ROUNDED, -4, 4, 2e-6, 0},
    {OP_SOFTMAX, "ij->ij", ALL, ROUNDED, -4, 4, 2e-6, 1e-9},
    {OP_SOFTMAX_GRAD, "kij,kij->kij", ALL, ROUNDED, -1, 1, 2e-6, 2e-5},
    {OP_ROW_EXP_MUL, "ij,i,i->ij", BF16(0) | BF16(3), ROUNDED, -4, 4, 2e-6, 0},
    {OP_ROW_EXP_MUL, "kij,ik,i->kij", BF16(0) | BF16(3), ROUNDED, -4, 4, 2e-6, 0},
    {OP_MATMUL, "ik,kj->ij", ALL, ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL, "ki,kj->ij", BF16(0) | BF16(1), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL, "ilk,kj->ilj", ALL, ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL, "lik,lkj->ij", ALL, ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL, "lik,lkj->ij", BF16(0) | BF16(1), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL_SUM, "ki,kj->ij,j", BF16(0) | BF16(1), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL_SUM, "ki,kj->ij,i", BF16(0) | BF16(1), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_MATMUL_SUM, "ik,kj->ij,j", BF16(0) | BF16(1), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_SUM, "ij->j", BF16(0), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_SUM, "ij->i", ALL, ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_SUM, "ijk->ki", BF16(0), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_SUM, "ij->", BF16(0), ROUNDED, -1, 1, 1e-6, 1e-5},
    {OP_EMBED_GRAD, "il,ilj->kj", BF16(1), ROUNDED, -1, 1, 1e-5, 1e-5},
    {OP_NORM, "kij,j,j->kij", ALL, ROUNDED, -1, 3, 1e-5, 2e-6},
    {OP_NORM_WEIGHT_GRAD, "kij,kij->j", BF16(0) | BF16(1), ROUNDED, -1, 3, 1e-5, 2e-5},
    {OP_ADD_NORM, "kij,kij,j,j->kij,kij", ALL, ROUNDED, -1, 3, 1e-5, 2e-6},
    {OP_ROW_LOSS, "kij,ki->ki,ki,ki", BF16(0), ROUNDED, -4, 4, 2e-6, 0},
    {OP_ROW_LOSS_BOTH, "kij,ki,->ki,ki,ki,kij", BF16(0) | BF16(6), ROUNDED, -4, 4, 2e-6, 1e-6},
    {OP_ROW_LOSS_GRAD, "kij,ki,ki,ki,ki->kij", BF16(0) | BF16(5), ROUNDED, -4, 4, 2e-6, 1e-6},
};

static void run(const struct rig_case *c, const char *name, int kind, double rtol, double atol)
{
    bool rounds = false;
    for (int k = 0; k < c->nout; k++)
        rounds = rounds || (c->start[k].dtype == DT_BF16 && kind == ROUNDED);
    run_everywhere(c, name, rtol + (rounds ? ULP : 0), atol);
}

static void every_op_gives_the_references_numbers_rounded(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof table / sizeof *table; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const struct row *r = &table[t];
            struct arena a = {0};
            struct rig_case c;
            case_make(&c, &a, r->op, r->einsum, r->bf16, shapes[s], r->lo, r->hi);
            run(&c, r->einsum, r->kind, r->rtol, r->atol);
            arena_clear(&a);
        }
}

// Of attention whose operands were made bf16: the log-sum-exp is f32 again.
static void mend_statistics(struct rig_case *c)
{
    if (c->op == OP_ATTENTION)
        c->start[ATTENTION_LSE].dtype = DT_F32;
    if (c->op == OP_ATTENTION_GRAD)
        c->in[c->nout + 2].dtype = DT_F32;
    rig_attend(c);
}

static void attention_and_rotary_round_what_they_make(void **state)
{
    static const char *const einsum[] = {
        "bshd,bshd,bshd,bs,bs->bshd,bhs", "bshd,bshd,bshd,bshd,bshd,bhs,bs,bs->bshd,bshd,bshd",
        "bshd,bs->bshd", "bshd,bshd,bshe,bshr,bsr,bs,bs->bshe,bhs",
        "bshd,bshd,bshe,bshr,bsr,bshe,bshe,bhs,bs,bs->bshd,bshd,bshe,bshr,bsr"};
    static const enum op ops[] = {OP_ATTENTION, OP_ATTENTION_GRAD, OP_ROTARY, OP_ATTENTION,
                                  OP_ATTENTION_GRAD};
    (void)state;
    for (size_t t = 0; t < 5; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[1] = 2, [3] = 10, [4] = 7, [7] = 3, [17] = 5, [18] = 67};
        rig_case(&c, &a, ops[t], einsum[t], ext);
        c.attr.scale = t != 2 ? 0.3f : 1;
        c.attr.window = t > 2 ? 20 : 0;
        c.attr.cap = t > 2 ? 2 : 0;
        c.attr.group = 1;
        c.attr.rotary = (struct op_rotary){.theta = 100, .pairs = true};
        for (int k = 0; k < c.nin; k++) {
            bool ids = c.in[k].dtype == DT_I32;
            c.in[k].dtype = ids ? DT_I32 : DT_BF16;
            rig_fill(&c.in[k], (uint64_t)k + 1, -2, 2);
            for (int64_t i = 0; ids && i < 2 * 67; i++)
                c.in[k].v[i] = (double)(i % 67);
        }
        for (int k = 0; k < c.nout; k++)
            c.start[k].dtype = DT_BF16;
        mend_statistics(&c);
        run(&c, "of bf16", ROUNDED, 2e-5, 2e-5);
        c.attr.streams = ops[t] == OP_ATTENTION; // keys and values as they are
        if (c.attr.streams)
            run(&c, "of a decoder", ROUNDED, 2e-5, 2e-5);
        c.in_place = ops[t] == OP_ROTARY;
        if (c.in_place)
            run(&c, "in place", ROUNDED, 2e-5, 2e-5);
        arena_clear(&a);
    }
}

// In order and with nothing dropped, as decoder models are: what a library may serve. It rounds the
// weights, and what it makes of their gradients, to bf16 before it multiplies with them.
static void attention_in_order_is_the_same_whoever_serves_it(void **state)
{
    static const struct {
        int64_t batch, seq, heads, group, d;
    } plain[] = {{2, 67, 4, 2, 16}, {1, 1, 1, 1, 8},    {3, 33, 2, 1, 80},
                 {1, 64, 6, 3, 64}, {1, 40, 2, 1, 256}, {5, 20, 3, 1, 24}};
    (void)state;
    for (size_t t = 0; t < 2 * sizeof plain / sizeof *plain; t++) {
        struct arena a = {0};
        struct rig_case c;
        const int64_t n = plain[t / 2].seq, heads = plain[t / 2].heads, d = plain[t / 2].d;
        int64_t ext[26] = {[1] = plain[t / 2].batch,
                           [3] = d,
                           [6] = heads / plain[t / 2].group,
                           [7] = heads,
                           [18] = n};
        rig_case(&c, &a, t % 2 ? OP_ATTENTION_GRAD : OP_ATTENTION,
                 t % 2 ? "bshd,bsgd,bsgd,bshd,bshd,bhs,bs,bs->bshd,bsgd,bsgd"
                       : "bshd,bsgd,bsgd,bs,bs->bshd,bhs",
                 ext);
        c.attr.scale = 1 / sqrtf((float)d);
        c.attr.group = plain[t / 2].group;
        c.attr.in_order = true;
        for (int k = 0; k < c.nin + c.nout; k++) {
            struct ref_tensor *x = k < c.nin ? &c.in[k] : &c.start[k - c.nin];
            bool ids = x->dtype == DT_I32;
            x->dtype = ids ? DT_I32 : DT_BF16;
            rig_fill(x, (uint64_t)k + 1, -1, 1);
            for (int64_t i = 0; ids && i < shape_count(&x->shape); i++)
                x->v[i] = (double)(i % n);
        }
        mend_statistics(&c);
        run(&c, "in order", ROUNDED, rig_is_cuda() ? 2 * ULP : 2e-5, rig_is_cuda() ? 2e-2 : 2e-5);
        c.attr.streams = t % 2 == 0 && !rig_is_cuda();
        if (c.attr.streams)
            run(&c, "of a decoder", ROUNDED, 2e-5, 2e-5);
        arena_clear(&a);
    }
}

// A decoder's text whose keys and values are no numbers is beside one with a window: of its rows behind the
// last none sees a key, and what the last rows see does not begin with the first key.
static void a_text_without_finite_keys_spoils_none_beside_it(void **state)
{
    enum { TEXTS = 2, WINDOW = 3 };
    static const int64_t sizes[][2] = {{40, 40}, {100, 300}}; // rows and keys
    (void)state;
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++) {
        const int64_t rows = sizes[t][0], keys = sizes[t][1], d = 5;
        struct arena a = {0};
        struct rig_case c;
        double *want[OP_MAX_OUT], *got[OP_MAX_OUT];
        int64_t ext[26] = {['b' - 'a'] = TEXTS, ['d' - 'a'] = d, ['h' - 'a'] = 1};
        ext['s' - 'a'] = rows;
        ext['t' - 'a'] = keys;
        rig_case(&c, &a, OP_ATTENTION, "bshd,bthd,bthd,bs,bt->bshd,bhs", ext);
        c.attr.window = WINDOW;
        c.attr.group = 1;
        c.attr.streams = true;
        for (int k = 0; k < 3; k++) {
            c.in[k].dtype = DT_BF16;
            rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
        }
        for (int64_t i = 0; i < keys * d; i++)
            c.in[1].v[i] = c.in[2].v[i] = (double)NAN;
        for (int64_t i = 0; i < rows; i++) {
            c.in[3].v[i] = (double)i;
            c.in[3].v[rows + i] = (double)(keys - 5 + i);
        }
        for (int64_t i = 0; i < TEXTS * keys; i++)
            c.in[4].v[i] = (double)(i % keys);
        c.start[0].dtype = DT_BF16;
        rig_reference(&c, &a, want);
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &c, &a, got);
            rig_compare(rigs[r].info.isa, got[0] + rows * d, want[0] + rows * d, rows * d, ULP,
                        2e-5);
        }
        arena_clear(&a);
    }
}

// More rows than scratch holds at once: the last chunk is a short one.
static void what_does_not_fit_one_turn_is_done_in_several(void **state)
{
    static const struct {
        enum op op;
        const char *einsum;
        unsigned bf16;
        struct extents s;
    } cases[] = {
        {OP_SUM, "ij->j", BF16(0), {2101, 2001, 1, 1}},
        {OP_MATMUL, "ik,kj->ij", ALL, {70001, 3, 61, 1}},
        {OP_MATMUL, "ik,ij->kj", BF16(0) | BF16(1), {70001, 3, 61, 1}},
        {OP_MATMUL_SUM, "ki,kj->ij,j", BF16(0) | BF16(1), {3, 61, 70001, 1}},
        {OP_NORM_WEIGHT_GRAD, "ij,ij->j", BF16(0) | BF16(1), {2101, 1007, 1, 1}},
        {OP_ROW_MAX, "ij->i", BF16(0), {2101, 2001, 1, 1}},
    };
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct rig_case c;
        case_make(&c, &a, cases[t].op, cases[t].einsum, cases[t].bf16, cases[t].s, -1, 1);
        run(&c, "in chunks", ROUNDED, 1e-5, 1e-3);
        c.accumulate = c.start[0].dtype == DT_F32 && cases[t].op != OP_ROW_MAX;
        run(&c, "in chunks, adding", ROUNDED, 1e-5, 1e-3);
        arena_clear(&a);
    }
}

// ---- rounding, worked by hand ------------------------------------------------------------------

// A bf16 has one bit before the point and seven behind it: 1 + 1/128 is the next after 1.
static void numbers_between_two_go_to_the_nearest_and_ties_to_the_even_one(void **state)
{
    static const struct {
        double from, to;
    } cases[] = {
        {1, 1},
        {1 + 1.0 / 128, 1 + 1.0 / 128},
        {1 + 1.0 / 256, 1},                       // a tie: 1 is even
        {1 + 3.0 / 256, 1 + 2.0 / 128},           // a tie: up to the even
        {1 + 1.0 / 256 + 0x1p-20, 1 + 1.0 / 128}, // just above the tie
        {1 + 3.0 / 256 - 0x1p-20, 1 + 1.0 / 128}, // just below
        {-(1 + 3.0 / 256), -(1 + 2.0 / 128)},
        {2 - 0x1p-20, 2},         // into the next binade
        {0x1.fep127, 0x1.fep127}, // the largest
        {0x1.fefffep127, 0x1.fep127},
        {0x1.ffp127, (double)INFINITY}, // halfway to 2^128
        {-0x1.fffffep127, -(double)INFINITY},
        {0x1p-133, 0x1p-133}, // the smallest
        {0x1p-134, 0},        // a tie: zero is even
        {0x1.8p-134, 0x1p-133},
        {0, 0},
        {(double)INFINITY, (double)INFINITY},
        {(double)NAN, (double)NAN},
    };
    enum { N = sizeof cases / sizeof *cases };
    (void)state;
    for (int r = 0; r < nrigs; r++) {
        struct arena a = {0};
        struct rig_case c;
        double *got[OP_MAX_OUT];
        int64_t ext[26] = {N};
        rig_case(&c, &a, OP_CAST, "a->a", ext);
        c.start[0].dtype = DT_BF16;
        for (int i = 0; i < N; i++)
            c.in[0].v[i] = cases[i].from;
        rig_run(&rigs[r], &c, &a, got);
        for (int i = 0; i < N; i++) {
            if (got[0][i] != cases[i].to && !(isnan(cases[i].to) && isnan(got[0][i])))
                fail_msg("%a becomes %a, not %a", cases[i].from, got[0][i], cases[i].to);
            double ref = ref_bf16(cases[i].from);
            assert_true(ref == cases[i].to || (isnan(ref) && isnan(cases[i].to)));
        }
        arena_clear(&a);
    }
}

// NaNs of every payload too: one whose upper half alone would be an infinity stays NaN.
static void every_pattern_survives_the_way_to_f32_and_back(void **state)
{
    (void)state;
    const struct rig *r = &rigs[0];
    struct op_attr attr = {.scale = 1, .labels = 1};
    enum { N = 1 << 16 };
    uint16_t *half = malloc(N * sizeof *half), *back = malloc(N * sizeof *back);
    float *f = malloc(N * sizeof *f);
    struct err e = {0};
    for (int i = 0; i < N; i++)
        half[i] = (uint16_t)i;
    void *wide = rig_memory(r, NULL, N * sizeof *f);
    struct op_call c = {.op = OP_CAST, .attr = &attr, .nin = 1, .nout = 1};
    c.in[0] = (struct tensor){rig_memory(r, half, N * sizeof *half), DT_BF16, {1, {N}}};
    c.out[0] = (struct tensor){wide, DT_F32, {1, {N}}};
    assert_int_equal(r->backend->op.run[OP_CAST](r->q, &c, &e), 0);
    rig_read(r, f, wide, N * sizeof *f);
    struct tensor halves = c.in[0];
    c.in[0] = c.out[0];
    c.out[0] = halves;
    assert_int_equal(r->backend->op.run[OP_CAST](r->q, &c, &e), 0);
    rig_read(r, back, halves.data, N * sizeof *back);
    for (int i = 0; i < N; i++)
        if (isnan(f[i]) ? (back[i] & 0x7fff) <= 0x7f80 : back[i] != half[i])
            fail_msg("%04x becomes %04x", half[i], back[i]);
    rig_free(r, wide);
    rig_free(r, halves.data);
    free(half);
    free(back);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_gives_the_references_numbers_rounded),
        cmocka_unit_test(attention_and_rotary_round_what_they_make),
        cmocka_unit_test(attention_in_order_is_the_same_whoever_serves_it),
        cmocka_unit_test(a_text_without_finite_keys_spoils_none_beside_it),
        cmocka_unit_test(what_does_not_fit_one_turn_is_done_in_several),
        cmocka_unit_test(numbers_between_two_go_to_the_nearest_and_ties_to_the_even_one),
        cmocka_unit_test(every_pattern_survives_the_way_to_f32_and_back),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
