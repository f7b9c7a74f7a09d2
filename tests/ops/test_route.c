// SPDX-License-Identifier: Apache-2.0
// The ops that deal tokens to experts: the greatest of a row, places in the order of weights, rows to
// the places and back, on every backend as their definitions say.
#include "tests/ops/everywhere.h"

// Samples, tokens of one, experts, choices, samples a group, places of an expert, width.
static const struct dealt {
    int64_t b, s, experts, k, group, places, width;
} dealings[] = {
    {1, 1, 1, 1, 1, 1, 1},    {4, 5, 3, 2, 2, 4, 7},     {6, 16, 4, 2, 1, 6, 8},
    {6, 16, 4, 2, 3, 20, 12}, {2, 64, 8, 3, 1, 12, 16},  {2, 300, 16, 2, 2, 75, 5},
    {3, 33, 5, 5, 1, 33, 10}, {1, 1031, 7, 2, 1, 99, 3}, {2, 9, 4, 2, 1, 3, 1030},
    {4, 61, 75, 6, 2, 9, 2},
};
enum { DEALINGS = sizeof dealings / sizeof *dealings };

static void extents_of(int64_t ext[26], const struct dealt *d)
{
    memset(ext, 0, 26 * sizeof *ext);
    ext['b' - 'a'] = d->b;
    ext['s' - 'a'] = d->s;
    ext['e' - 'a'] = d->experts;
    ext['k' - 'a'] = d->k;
    ext['g' - 'a'] = d->b / d->group;
    ext['c' - 'a'] = d->places;
    ext['m' - 'a'] = d->width;
}

static void case_of(struct rig_case *c, struct arena *a, enum op op, const char *einsum,
                    const struct dealt *d)
{
    int64_t ext[26];
    extents_of(ext, d);
    rig_case(c, a, op, einsum, ext);
    c->attr.slots = (struct op_slots){d->group, d->experts, d->places, {0, 0}};
    for (int k = 0; k < c->nin; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, c->in[k].dtype == DT_I32 ? 0 : -1, 1);
}

// Different experts for each token, as a TOPK gives.
static void choose_experts(struct ref_tensor *ids, const struct dealt *d, int64_t fewer)
{
    for (int64_t i = 0; i < shape_count(&ids->shape); i++) {
        int64_t token = i / d->k, first = token * 7 % (d->experts - fewer);
        ids->v[i] = (double)((first + i % d->k) % d->experts);
    }
}

// Positions of a sample in an order that is not theirs: every fifth, round and round.
static void shuffle_positions(struct ref_tensor *at, const struct dealt *d)
{
    int64_t step = d->s % 5 ? 5 : 1;
    for (int64_t i = 0; i < shape_count(&at->shape); i++)
        at->v[i] = (double)(i % d->s * step % d->s);
}

static void slots_case(struct rig_case *c, struct arena *a, const struct dealt *d)
{
    case_of(c, a, OP_SLOTS, "bsk,bsk,bs->bsk,be", d);
    choose_experts(&c->in[0], d, d->experts > 2);
    rig_fill(&c->in[1], 2, 0, 1);
    shuffle_positions(&c->in[2], d);
}

// The slots of a case of SLOTS, for the ops that read them: some choices have none.
static void slots_of(struct rig_case *c, struct arena *a, int operand, const struct dealt *d)
{
    struct rig_case made;
    double *out[OP_MAX_OUT];
    slots_case(&made, a, d);
    rig_reference(&made, a, out);
    memcpy(c->in[operand].v, out[0], sizeof(double) * (size_t)(d->b * d->s * d->k));
}

// ---- which are the greatest --------------------------------------------------------------------

static void the_greatest_of_a_row_come_first_and_of_equals_the_earlier(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {5, 4, 2}, {33, 16, 2}, {7, 129, 5}, {2, 9, 9}};
    (void)state;
    for (int few = 0; few < 2; few++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26] = {[8] = sizes[s][0], [9] = sizes[s][1], [10] = sizes[s][2]};
            rig_case(&c, &a, OP_TOPK, "ij->ik", ext);
            rig_fill(&c.in[0], 1, -1, 1);
            for (int64_t i = 0; few && i < shape_count(&c.in[0].shape); i++)
                c.in[0].v[i] = floor(3 * c.in[0].v[i]); // many equals
            run_everywhere(&c, few ? "with equals" : "of all unlike", 0, 0);
            rig_case(&c, &a, OP_TOPK, "ij,ij->ik", ext);
            for (int k = 0; k < 2; k++)
                rig_fill(&c.in[k], (uint64_t)k + 1, -1, 1);
            run_everywhere(&c, "by others", 0, 0);
            rig_case(&c, &a, OP_TOPK_GRAD, "ik,ik->ij", ext);
            for (int64_t i = 0; i < shape_count(&c.in[0].shape); i++)
                c.in[0].v[i] = (double)((i / sizes[s][2] + i % sizes[s][2]) % sizes[s][1]);
            rig_fill(&c.in[1], 2, -1, 1);
            run_everywhere(&c, "back", 0, 0);
            arena_clear(&a);
        }
}

// A weight that is no number is chosen, so that what is made with it is none either.
static void a_nan_is_chosen_before_any_number(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26] = {[8] = 3, [9] = 6, [10] = 2};
    rig_case(&c, &a, OP_TOPK, "ij->ik", ext);
    rig_fill(&c.in[0], 1, -1, 1);
    c.in[0].v[4] = c.in[0].v[6] = c.in[0].v[11] = NAN;
    c.in[0].v[13] = INFINITY;
    run_everywhere(&c, "with NaN", 0, 0);
    arena_clear(&a);
}

// ---- who gets which place ----------------------------------------------------------------------

static void places_go_by_choice_then_weight_then_position(void **state)
{
    (void)state;
    for (int d = 0; d < DEALINGS; d++) {
        struct arena a = {0};
        struct rig_case c;
        slots_case(&c, &a, &dealings[d]);
        run_everywhere(&c, "of some weights", 0, 0);
        // Weights that differ by less than a 4,096th tie, and go by their positions.
        for (int64_t i = 0; i < shape_count(&c.in[1].shape); i++)
            c.in[1].v[i] = (double)(float)(0.5 + 1e-6 * c.in[1].v[i]);
        run_everywhere(&c, "of equal weights", 0, 0);
        arena_clear(&a);
    }
}

// What a router of NaNs gives: all rows, or some. Experts and places are still ones that there are,
// the bytes around each operand stay, and the rows that come back are NaN for who was weighed by
// one.
static void a_router_of_nans_writes_where_any_other_does(void **state)
{
    static const struct dealt d = {4, 33, 5, 2, 2, 9, 3};
    (void)state;
    for (int every = 1; every <= 3; every += 2) {
        struct arena a = {0};
        struct rig_case top, deal, back;
        int64_t ext[26] = {[8] = d.b * d.s, [9] = d.experts, [10] = d.k};
        double *chosen[OP_MAX_OUT], *slots[OP_MAX_OUT];
        rig_case(&top, &a, OP_TOPK, "ij->ik", ext);
        rig_fill(&top.in[0], 1, 0, 1);
        for (int64_t i = 0; i < shape_count(&top.in[0].shape); i++)
            top.in[0].v[i] = i / d.experts % every ? top.in[0].v[i] : NAN;
        rig_reference(&top, &a, chosen);
        slots_case(&deal, &a, &d);
        deal.in[0].v = chosen[1];
        deal.in[1].v = chosen[0];
        rig_reference(&deal, &a, slots);
        case_of(&back, &a, OP_COMBINE, "gecm,bsk,bsk->bsm", &d);
        back.in[1].v = slots[0];
        back.in[2].v = chosen[0];
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++)
            top.shift[k] = deal.shift[k] = back.shift[k] = 1;
        run_everywhere(&top, "of NaNs", 0, 0);
        run_everywhere(&deal, "of NaNs", 0, 0);
        run_everywhere(&back, "of NaNs", 1e-6, 1e-6);
        arena_clear(&a);
    }
}

// Worked by hand: two experts of two places; four tokens all choose expert 0 first, expert 1 second.
// The best two by weight get 0's places; tokens 0 and 2 tie, and 2 stands before 0.
static void four_tokens_of_which_two_find_a_place(void **state)
{
    static const double first[] = {0.6, 0.9, 0.6, 0.5}, position[] = {3, 1, 2, 0};
    static const double want[] = {-1, -1, 0, 2, 1, 3, -1, -1}, chosen[] = {4, 4};
    static const struct dealt d = {1, 4, 2, 2, 1, 2, 1};
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    double *got[OP_MAX_OUT];
    slots_case(&c, &a, &d);
    for (int t = 0; t < 4; t++) {
        c.in[0].v[2 * t] = 0;
        c.in[0].v[2 * t + 1] = 1;
        c.in[1].v[2 * t] = (double)(float)first[t];
        c.in[1].v[2 * t + 1] = (double)(float)(1 - first[t]);
        c.in[2].v[t] = position[t];
    }
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &c, &a, got);
        rig_compare("slots", got[0], want, 8, 0, 0);
        rig_compare("chosen", got[1], chosen, 2, 0, 0);
    }
    arena_clear(&a);
}

// ---- loads -------------------------------------------------------------------------------------

// Loads of 9, 3, 6 and 6: the mean is 6. The first is chosen less, the second more.
static void what_is_chosen_too_often_is_biased_down_and_the_rest_up(void **state)
{
    static const double bias[] = {0.5, -0.25, 0, 1}, want[] = {0.375, -0.125, 0, 1};
    static const double metrics[] = {2, 1, 9, 3, 6, 6, 4};
    (void)state;
    for (int skip = 0; skip < 2; skip++) {
        struct arena a = {0};
        struct rig_case c;
        double *got[OP_MAX_OUT];
        int64_t ext[26] = {[0] = CLIP_SLOTS, [8] = 4, [12] = 7};
        rig_case(&c, &a, OP_BALANCE, "i,m,a->i", ext);
        c.attr.scale = 0.125f;
        c.attr.start = 2;
        memcpy(c.in[0].v, bias, sizeof bias);
        memcpy(c.in[1].v, metrics, sizeof metrics);
        c.in[2].v[CLIP_SKIP] = skip;
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &c, &a, got);
            rig_compare("bias", got[0], skip ? bias : want, 4, 0, 0);
        }
        c.in_place = true;
        run_everywhere(&c, "in place", 0, 0);
        arena_clear(&a);
    }
}

// Six of 32: a mean that is made of sixths of them is a little less.
static void a_load_that_is_the_mean_moves_no_bias(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    double *got[OP_MAX_OUT];
    int64_t ext[26] = {[0] = CLIP_SLOTS, [8] = 6, [12] = 6};
    (void)state;
    rig_case(&c, &a, OP_BALANCE, "i,m,a->i", ext);
    c.attr.scale = 0.125f;
    for (int i = 0; i < 6; i++) {
        c.in[0].v[i] = i * 0.25;
        c.in[1].v[i] = 32;
    }
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &c, &a, got);
        rig_compare("bias", got[0], c.in[0].v, 6, 0, 0);
    }
    arena_clear(&a);
}

// ---- there and back ----------------------------------------------------------------------------

static const struct moved {
    enum op op;
    const char *einsum;
    int slots; // operand
    double tolerance;
} moves[] = {
    {OP_DISPATCH, "bsm,bsk->gecm", 1, 0},        {OP_DISPATCH, "bsm,bsk,bsk->gecm", 1, 1e-7},
    {OP_COMBINE, "gecm,bsk->bsm", 1, 1e-6},      {OP_COMBINE, "gecm,bsk,bsk->bsm", 1, 1e-6},
    {OP_SLOT_DOT, "gecm,bsk,bsm->bsk", 1, 1e-5},
};
enum { MOVES = sizeof moves / sizeof *moves };

static bool is_rows(const struct rig_case *c, int k)
{
    bool dots = c->op == OP_SLOT_DOT;
    return k == 0 || (dots && k == 2) || (!dots && k == c->nin);
}

static void rows_go_to_their_places_and_back(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < MOVES * DEALINGS; i++) {
            const struct moved *m = &moves[i % MOVES];
            const struct dealt *d = &dealings[i / MOVES];
            struct arena a = {0};
            struct rig_case c;
            case_of(&c, &a, m->op, m->einsum, d);
            slots_of(&c, &a, m->slots, d);
            for (int k = 0; k < c.nin + 1 && half; k++) {
                struct ref_tensor *t = k < c.nin ? &c.in[k] : &c.start[0];
                if (!is_rows(&c, k))
                    continue;
                t->dtype = DT_BF16;
                rig_fill(t, (uint64_t)k + 1, -1, 1);
            }
            bool rounds = c.start[0].dtype == DT_BF16 && m->tolerance > 0;
            run_everywhere(&c, m->einsum, m->tolerance + (rounds ? 0x1p-7 : 0), m->tolerance);
            arena_clear(&a);
        }
}

// A rank has experts 1 and 2 of 4, and the second half of each one's places.
static void a_part_of_the_experts_and_places_leaves_the_rest_to_others(void **state)
{
    static const struct dealt all = {4, 16, 4, 2, 2, 12, 9};
    (void)state;
    for (int i = 0; i < MOVES; i++) {
        struct arena a = {0};
        struct rig_case c;
        struct dealt here = all;
        here.experts = 2;
        here.places = 6;
        case_of(&c, &a, moves[i].op, moves[i].einsum, &here);
        c.attr.slots = (struct op_slots){all.group, all.experts, all.places, {1, 6}};
        slots_of(&c, &a, moves[i].slots, &all);
        run_everywhere(&c, "of a part", moves[i].tolerance, moves[i].tolerance);
        arena_clear(&a);
    }
}

// ---- products of what lies in places -----------------------------------------------------------

// Experts here of all, groups, places of each here, samples of a group, sums of so many, columns.
static const struct multiplied {
    int64_t experts, all, first, groups, places, from, samples, k, n;
} products[] = {
    {4, 4, 0, 1, 6, 0, 2, 9, 7},
    {3, 7, 2, 2, 5, 0, 3, 40, 33},
    {2, 6, 4, 3, 8, 8, 1, 70, 130},
    {5, 5, 0, 1, 1, 0, 1, 600, 80},
    {3, 3, 0, 2, 90, 0, 2, 65, 70},
    {2, 2, 0, 1, 200, 0, 5, 520, 129},
    {16, 16, 0, 1, 16, 0, 16, 64, 96},
    {2, 2, 0, 1, 3, 0, 1, 21000, 200}, // in bf16 one expert after the other
};

// How often each expert was chosen in each group: nobody, some, as many as it has places, and more.
static int64_t choose_filled(const struct multiplied *m, int64_t group, int64_t expert)
{
    const int64_t all = m->from + m->places, some[] = {0, all + 3, all / 2 + 1, 1, all, m->from};
    return some[(group * 5 + expert * 2 + m->places) % 6];
}

// In the places without a token lies what is no number.
static void product_case(struct rig_case *c, struct arena *a, const struct multiplied *m,
                         bool turned, enum dtype t)
{
    const int64_t ext[26] = {['e' - 'a'] = m->experts, ['g' - 'a'] = m->groups,
                             ['c' - 'a'] = m->places,  ['k' - 'a'] = m->k,
                             ['n' - 'a'] = m->n,       ['b' - 'a'] = m->groups * m->samples,
                             ['r' - 'a'] = m->all};
    rig_case(c, a, OP_MATMUL_PLACES, turned ? "egck,enk,br->egcn" : "egck,ekn,br->egcn", ext);
    c->attr.slots = (struct op_slots){m->samples, m->all, m->from + m->places, {m->first, m->from}};
    c->attr.streams = true;
    for (int k = 0; k < 2; k++) {
        c->in[k].dtype = t;
        rig_fill(&c->in[k], (uint64_t)k + 1, -1, 1);
    }
    c->start[0].dtype = t;
    for (int64_t i = 0; i < shape_count(&c->in[2].shape); i++)
        c->in[2].v[i] = (double)choose_filled(m, i / m->all / m->samples, i % m->all);
}

static bool is_filled(const struct multiplied *m, int64_t row)
{
    const int64_t group = row / m->places % m->groups, expert = row / m->places / m->groups;
    return m->from + row % m->places < choose_filled(m, group, m->first + expert);
}

static void put_nan_in_unfilled(struct rig_case *c, const struct multiplied *m)
{
    for (int64_t i = 0; i < shape_count(&c->in[0].shape); i++)
        if (!is_filled(m, i / m->k))
            c->in[0].v[i] = (double)NAN;
}

// Where products are made of packed operands, which every instruction set but the least has, the rows
// without a token are not read.
static void products_are_of_the_places_that_have_a_token(void **state)
{
    static const double zeros[200];
    (void)state;
    for (size_t i = 0; i < 4 * sizeof products / sizeof *products; i++) {
        const struct multiplied *m = &products[i / 4];
        const bool half = i / 2 % 2;
        struct arena a = {0};
        struct rig_case c;
        double *want[OP_MAX_OUT], *got[OP_MAX_OUT];
        product_case(&c, &a, m, i % 2, half ? DT_BF16 : DT_F32);
        put_nan_in_unfilled(&c, m);
        rig_reference(&c, &a, want);
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &c, &a, got);
            const bool stops = !rig_is_cuda() && strcmp(rigs[r].info.isa, "baseline") != 0;
            for (int64_t row = 0; row < m->experts * m->groups * m->places; row++)
                if (is_filled(m, row))
                    rig_compare(rigs[r].info.isa, got[0] + row * m->n, want[0] + row * m->n, m->n,
                                half ? 0x1p-7 : 1e-5, half ? 1e-2 : 1e-4);
                else if (stops)
                    rig_compare("of no token", got[0] + row * m->n, zeros, m->n, 0, 0);
        }
        arena_clear(&a);
    }
}

static void a_rows_bits_hang_neither_on_its_place_nor_on_how_many_there_are(void **state)
{
    static const struct multiplied m = {2, 2, 0, 1, 130, 0, 1, 530, 140};
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct arena a = {0};
        struct rig_case c;
        double *first[OP_MAX_OUT], *got[OP_MAX_OUT];
        const int64_t counts[] = {1, 5, 63, 64, 130};
        product_case(&c, &a, &m, false, half ? DT_BF16 : DT_F32);
        for (int64_t i = 0; i < shape_count(&c.in[0].shape); i++)
            c.in[0].v[i] = c.in[0].v[i % m.k];
        for (int r = 0; r < nrigs && !rig_is_cuda(); r++)
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                if (strcmp(rigs[r].info.isa, "baseline") == 0)
                    continue;
                c.in[2].v[0] = c.in[2].v[1] = (double)counts[n];
                rig_run(&rigs[r], &c, &a, n ? got : first);
                for (int64_t row = 0; row < 2 * m.places; row++)
                    if (n && row % m.places < counts[n])
                        rig_compare(rigs[r].info.isa, got[0] + row * m.n,
                                    first[0] + row / m.places * m.places * m.n, m.n, 0, 0);
            }
        arena_clear(&a);
    }
}

// Σ dx · COMBINE(y, w) is linear in y and in w: what DISPATCH and SLOT_DOT make of dx are the slopes.
static void what_goes_back_is_the_slope_of_what_came(void **state)
{
    static const struct dealt d = {4, 8, 3, 2, 2, 4, 5};
    (void)state;
    struct arena a = {0};
    struct rig_case f, dy, dw;
    double *x[OP_MAX_OUT], *of_y[OP_MAX_OUT], *of_w[OP_MAX_OUT];
    case_of(&f, &a, OP_COMBINE, "gecm,bsk,bsk->bsm", &d);
    slots_of(&f, &a, 1, &d);
    case_of(&dy, &a, OP_DISPATCH, "bsm,bsk,bsk->gecm", &d);
    case_of(&dw, &a, OP_SLOT_DOT, "gecm,bsk,bsm->bsk", &d);
    dy.in[1] = dw.in[1] = f.in[1];
    dy.in[2] = f.in[2];
    dw.in[0] = f.in[0];
    dw.in[2] = dy.in[0]; // the cotangent
    for (int r = 0; r < nrigs; r++) {
        double sum = 0, by_y = 0, by_w = 0;
        rig_run(&rigs[r], &f, &a, x);
        rig_run(&rigs[r], &dy, &a, of_y);
        rig_run(&rigs[r], &dw, &a, of_w);
        for (int64_t i = 0; i < shape_count(&f.start[0].shape); i++)
            sum += dy.in[0].v[i] * x[0][i];
        for (int64_t i = 0; i < shape_count(&f.in[0].shape); i++)
            by_y += of_y[0][i] * f.in[0].v[i];
        for (int64_t i = 0; i < shape_count(&f.in[2].shape); i++)
            by_w += of_w[0][i] * f.in[2].v[i];
        assert_true(fabs(sum) > 0.1);
        rig_compare("by the places", &by_y, &sum, 1, 1e-5, 1e-5);
        rig_compare("by the weights", &by_w, &sum, 1, 1e-5, 1e-5);
    }
    arena_clear(&a);
}

// ---- refusals ----------------------------------------------------------------------------------

static const struct served { // a call that is served, operands as dtype and shape
    enum op op;
    int nin, nout;
    struct tensor operand[5];
} served[] = {
    {OP_TOPK,
     1,
     2,
     {{NULL, DT_F32, {2, {3, 4}}}, {NULL, DT_F32, {2, {3, 2}}}, {NULL, DT_I32, {2, {3, 2}}}}},
    {OP_TOPK,
     2,
     2,
     {{NULL, DT_F32, {2, {3, 4}}},
      {NULL, DT_F32, {2, {3, 4}}},
      {NULL, DT_F32, {2, {3, 2}}},
      {NULL, DT_I32, {2, {3, 2}}}}},
    {OP_TOPK_GRAD,
     2,
     1,
     {{NULL, DT_I32, {2, {3, 2}}}, {NULL, DT_F32, {2, {3, 2}}}, {NULL, DT_F32, {2, {3, 4}}}}},
    {OP_SLOT_DOT,
     3,
     1,
     {{NULL, DT_F32, {4, {1, 2, 2, 4}}},
      {NULL, DT_I32, {3, {2, 3, 2}}},
      {NULL, DT_F32, {3, {2, 3, 4}}},
      {NULL, DT_F32, {3, {2, 3, 2}}}}},
    {OP_COMBINE,
     3,
     1,
     {{NULL, DT_F32, {4, {1, 2, 2, 4}}},
      {NULL, DT_I32, {3, {2, 3, 2}}},
      {NULL, DT_F32, {3, {2, 3, 2}}},
      {NULL, DT_F32, {3, {2, 3, 4}}}}},
    {OP_BALANCE,
     3,
     1,
     {{NULL, DT_F32, {1, {4}}},
      {NULL, DT_F32, {1, {7}}},
      {NULL, DT_F32, {1, {CLIP_SLOTS}}},
      {NULL, DT_F32, {1, {4}}}}},
};

// One operand as no kernel reads it: `dtype` where that is not DT_NONE, else dimension `dim`.
static const struct unserved {
    int call, operand, dim;
    int64_t size;
    enum dtype dtype;
    const char *why;
} unserved[] = {
    {0, 0, 1, 1, DT_NONE, "operands disagree about an extent"}, // of one, the two greatest
    {0, 1, 0, 2, DT_NONE, "operands disagree about an extent"},
    {0, 2, 0, 2, DT_NONE, "operands disagree about an extent"},
    {0, 2, 1, 1, DT_NONE, "operands disagree about an extent"},
    {0, 2, 0, 0, DT_F32, "output 2 is f32, which"},
    {1, 1, 0, 2, DT_NONE, "operands disagree about an extent"},
    {1, 1, 0, 0, DT_I32, "input 2 is i32, which"},
    {1, 1, 0, 0, DT_BF16, "input 2 is bf16, which"},
    {2, 0, 0, 2, DT_NONE, "operands disagree about an extent"},
    {2, 1, 1, 1, DT_NONE, "operands disagree about an extent"},
    {2, 2, 1, 1, DT_NONE, "operands disagree about an extent"},
    {3, 1, 2, 3, DT_NONE, "operands disagree about an extent"},
    {3, 2, 1, 4, DT_NONE, "operands disagree about an extent"},
    {3, 3, 1, 2, DT_NONE, "operands disagree about an extent"},
    {3, 3, 2, 1, DT_NONE, "operands disagree about an extent"},
    {3, 3, 0, 0, DT_BF16, "output 1 is bf16, which"},
    {4, 2, 2, 1, DT_NONE, "operands disagree about an extent"},
    {5, 1, 0, 5, DT_NONE, "the experts' loads lie outside the metrics"},
    {5, 2, 0, CLIP_SLOTS - 1, DT_NONE, "the clip vector is too short"},
    {5, 2, 0, 0, DT_I32, "input 3 is i32, which"},
    {5, 3, 0, 3, DT_NONE, "results differ in size"},
};

static int call_served(const struct rig *r, const struct served *s, const struct tensor *operand,
                       int64_t start, struct err *e)
{
    struct op_attr attr = {.scale = 1, .start = start, .slots = {2, 2, 2, {0, 0}}};
    struct op_call c = {.op = s->op, .attr = &attr, .nin = s->nin, .nout = s->nout};
    char zeros[256] = {0};
    void *memory[5];
    for (int k = 0; k < s->nin + s->nout; k++) {
        struct tensor *to = k < s->nin ? &c.in[k] : &c.out[k - s->nin];
        *to = operand[k];
        to->data = memory[k] = rig_memory(r, zeros, sizeof zeros);
    }
    int rc = r->backend->op.run[s->op](r->q, &c, e);
    rig_read(r, zeros, memory[s->nin], sizeof zeros);
    for (int k = 0; k < s->nin + s->nout; k++)
        rig_free(r, memory[k]);
    return rc;
}

static void every_operand_is_looked_at_before_it_is_read(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof served / sizeof *served); i++) {
        struct err e = {0};
        assert_int_equal(call_served(&rigs[0], &served[i], served[i].operand, 2, &e), 0);
    }
    for (int i = 0; i < (int)(sizeof unserved / sizeof *unserved); i++) {
        const struct unserved *u = &unserved[i];
        const struct served *s = &served[u->call];
        struct tensor operand[5];
        struct err e = {0};
        memcpy(operand, s->operand, sizeof operand);
        if (u->dtype == DT_NONE)
            operand[u->operand].shape.dim[u->dim] = u->size;
        else
            operand[u->operand].dtype = u->dtype;
        assert_int_equal(call_served(&rigs[0], s, operand, 2, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, op_name(s->op)));
        assert_non_null(strstr(e.text, u->why));
    }
    struct err e = {0};
    assert_int_equal(call_served(&rigs[0], &served[5], served[5].operand, -1, &e), ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_greatest_of_a_row_come_first_and_of_equals_the_earlier),
        cmocka_unit_test(a_nan_is_chosen_before_any_number),
        cmocka_unit_test(a_router_of_nans_writes_where_any_other_does),
        cmocka_unit_test(places_go_by_choice_then_weight_then_position),
        cmocka_unit_test(four_tokens_of_which_two_find_a_place),
        cmocka_unit_test(what_is_chosen_too_often_is_biased_down_and_the_rest_up),
        cmocka_unit_test(a_load_that_is_the_mean_moves_no_bias),
        cmocka_unit_test(rows_go_to_their_places_and_back),
        cmocka_unit_test(a_part_of_the_experts_and_places_leaves_the_rest_to_others),
        cmocka_unit_test(products_are_of_the_places_that_have_a_token),
        cmocka_unit_test(a_rows_bits_hang_neither_on_its_place_nor_on_how_many_there_are),
        cmocka_unit_test(what_goes_back_is_the_slope_of_what_came),
        cmocka_unit_test(every_operand_is_looked_at_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
