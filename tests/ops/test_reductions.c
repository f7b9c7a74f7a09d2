// SPDX-License-Identifier: Apache-2.0
// Reductions where their shapes are hard: many rows of few columns and few of many, rows longer
// than any team of threads holds at once, ids that repeat as words do or not at all, numbers that
// are none. Every backend may cut such work in parts; the reference adds one after the other.
#include "tests/ops/everywhere.h"

static bool thorough(void)
{
    const char *set = getenv("WEFT_LONG");
    return set && set[0] == '1';
}

static void to_bf16(struct rig_case *c, unsigned operands)
{
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct ref_tensor *t = k < c->nin ? &c->in[k] : &c->start[k - c->nin];
        t->dtype = operands >> k & 1 ? DT_BF16 : t->dtype;
    }
}

// ---- sums --------------------------------------------------------------------------------------

static void sums_of_tall_and_of_wide_arrays_agree(void **state)
{
    static const struct {
        const char *einsum;
        struct extents s;
    } cases[] = {
        {"ij->j", {20011, 3, 1, 1}},   {"ij->j", {4099, 37, 1, 1}},  {"ij->j", {1536, 264, 1, 1}},
        {"ij->j", {513, 1023, 1, 1}},  {"ij->j", {2, 30001, 1, 1}},  {"ij->i", {2, 60013, 1, 1}},
        {"ij->i", {30011, 2, 1, 1}},   {"ij->i", {300, 1025, 1, 1}}, {"ij->", {301, 1000, 1, 1}},
        {"ij->ji", {300, 50, 1, 1}},   {"ijk->j", {300, 5, 24, 1}},  {"ijk->k", {70, 21, 16, 1}},
        {"ijk->ik", {3, 1025, 40, 1}}, {"ijk->ki", {3, 1025, 8, 1}}, {"ijk->i", {2, 129, 130, 1}},
        {"lijk->jk", {21, 3, 17, 8}},  {"kij->kji", {33, 65, 3, 1}}, {"ijk->ik", {130, 41, 256, 1}},
    };
    (void)state;
    for (size_t t = 0; t < 4 * sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, cases[t / 4].s);
        rig_case(&c, &a, OP_SUM, cases[t / 4].einsum, ext);
        c.attr.scale = 0.75f;
        c.accumulate = t & 1;
        to_bf16(&c, t & 2 ? 1 : 0);
        rig_fill(&c.in[0], t, -1, 1);
        run_everywhere(&c, cases[t / 4].einsum, 1e-6, 2e-5);
        arena_clear(&a);
    }
}

// A square of 1e-30 is no f32, a sum of a million of them is one after the scale.
static void small_gradients_still_have_a_norm(void **state)
{
    static const int64_t sizes[] = {1, 7, 8191, 8192, 8193, 70001};
    (void)state;
    for (size_t t = 0; t < sizeof sizes / sizeof *sizes; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {['i' - 'a'] = sizes[t]};
        rig_case(&c, &a, OP_SQNORM, "i->", ext);
        rig_fill(&c.in[0], 1, -1e-15, 1e-15);
        c.attr.scale = 1e20f;
        run_everywhere(&c, "of small numbers", 1e-5, 0);
        arena_clear(&a);
    }
}

// ---- rows --------------------------------------------------------------------------------------

// Rows about the lengths at which more threads share one.
static const int64_t lengths[] = {31, 256, 1023, 1024, 1032, 4096, 4104, 9001, 16384, 16392, 50257};

static const struct row {
    enum op op;
    const char *einsum;
    unsigned bf16;
    double rtol, atol;
} row_ops[] = {
    {OP_ROW_MAX, "ij->i", 0, 0, 0},
    {OP_ROW_MAX, "ij->i", 1, 0, 0},
    {OP_ROW_SUM_EXP, "ij,i->i", 0, 3e-6, 0},
    {OP_ROW_SUM_EXP, "ij,i->i", 1, 3e-6, 0},
    {OP_ROW_EXP_MUL, "ij,i,i->ij", 0, 3e-6, 0},
    {OP_ROW_EXP_MUL, "ij,i,i->ij", 1, 3e-6, 0},
    {OP_ROW_EXP_MUL, "ij,i,i->ij", 9, 0x1p-7, 0},
    {OP_PICK, "ij,i->i", 1, 0, 0},
    {OP_PICK_GRAD, "i,i->ij", 0, 0, 0},
    {OP_PICK_GRAD, "i,i->ij", 4, 0x1p-7, 0},
    {OP_ROW_ARGMAX, "ij->i", 0, 0, 0},
    {OP_ROW_ARGMAX, "ij->i", 1, 0, 0},
    {OP_ROW_LOSS, "ij,i->i,i,i", 0, 3e-6, 0},
    {OP_ROW_LOSS, "ij,i->i,i,i", 1, 3e-6, 0},
    {OP_ROW_LOSS_BOTH, "ij,i,->i,i,i,ij", 0, 3e-6, 1e-6},
    {OP_ROW_LOSS_BOTH, "ij,i,->i,i,i,ij", 65, 0x1p-7, 1e-6},
    {OP_ROW_LOSS_GRAD, "ij,i,i,i,i->ij", 0, 3e-6, 1e-6},
    {OP_ROW_LOSS_GRAD, "ij,i,i,i,i->ij", 33, 0x1p-7, 1e-6},
    {OP_NORM, "ij->ij", 0, 1e-5, 4e-6},
    {OP_NORM, "ij,j,j->ij", 0, 1e-5, 4e-6},
    {OP_NORM, "ij,j,j->ij", 15, 0x1p-7, 4e-6},
    {OP_NORM, "ij,j->ij", 5, 0x1p-7, 4e-6},
    {OP_ADD_NORM, "ij,ij,j,j->ij,ij", 0, 1e-5, 4e-6},
    {OP_ADD_NORM, "ij,ij,j->ij,ij", 31, 0x1p-7, 4e-6},
    {OP_NORM_WEIGHT_GRAD, "ij,ij->j", 0, 1e-5, 2e-5},
    {OP_NORM_WEIGHT_GRAD, "ij,ij->j", 3, 1e-5, 2e-5},
};

static void fill_rows(struct rig_case *c, const struct row *row, int64_t n)
{
    to_bf16(c, row->bf16);
    c->attr.eps = 1e-5f;
    for (int k = 0; k < c->nin; k++) {
        bool ids = c->in[k].dtype == DT_I32;
        rig_fill(&c->in[k], (uint64_t)k + 1, ids ? -1 : -2, ids ? (double)n + 2 : 2);
    }
}

static void long_rows_agree(void **state)
{
    const size_t each = sizeof lengths / sizeof *lengths;
    (void)state;
    for (size_t t = 0; t < sizeof row_ops / sizeof *row_ops; t++)
        for (size_t l = 0; l < each; l++) {
            const struct row *row = &row_ops[t];
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, (struct extents){lengths[l] > 5000 ? 2 : 5, lengths[l], 1, 1});
            rig_case(&c, &a, row->op, row->einsum, ext);
            fill_rows(&c, row, lengths[l]);
            c.attr.center = l % 2;
            run_everywhere(&c, row->einsum, row->rtol, row->atol);
            arena_clear(&a);
        }
}

// The gradient in closed form: the reference goes through all pairs of a row, too slow for these.
static void norm_grad_of(const struct rig_case *c, double *dx)
{
    const int first = c->nin - 3; // what is added comes before it
    int64_t n = c->in[first].shape.dim[1], rows = c->in[first].shape.dim[0];
    for (int64_t r = 0; r < rows; r++) {
        const double *x = c->in[first].v + r * n, *dy = c->in[first + 1].v + r * n;
        const double *w = c->in[first + 2].v;
        double mean = 0, square = 0, g = 0, dot = 0;
        for (int64_t i = 0; i < n && c->attr.center; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            square += (x[i] - mean) * (x[i] - mean) / (double)n;
        double scale = 1 / sqrt(square + (double)c->attr.eps);
        for (int64_t i = 0; i < n; i++) {
            g += c->attr.center ? dy[i] * w[i] / (double)n : 0;
            dot += dy[i] * w[i] * (x[i] - mean) * scale / (double)n;
        }
        for (int64_t i = 0; i < n; i++)
            dx[r * n + i] = (first ? c->in[0].v[r * n + i] : 0) +
                            scale * (dy[i] * w[i] - g - (x[i] - mean) * scale * dot);
    }
}

static void long_rows_norms_have_their_gradients(void **state)
{
    static const struct row ops[] = {
        {OP_NORM_GRAD, "ij,ij,j->ij", 0, 1e-5, 4e-6},
        {OP_NORM_GRAD, "ij,ij,j->ij", 15, 0x1p-7, 4e-6},
        {OP_NORM_GRAD_ADD, "ij,ij,ij,j->ij", 0, 1e-5, 4e-6},
        {OP_NORM_GRAD_ADD, "ij,ij,ij,j->ij", 31, 0x1p-7, 4e-6},
    };
    (void)state;
    for (size_t t = 0; t < 4 * sizeof lengths / sizeof *lengths; t++) {
        struct arena a = {0};
        struct rig_case c;
        double *got[OP_MAX_OUT];
        int64_t ext[26], n = lengths[t / 4];
        letters(ext, (struct extents){3, n, 1, 1});
        rig_case(&c, &a, ops[t % 4].op, ops[t % 4].einsum, ext);
        fill_rows(&c, &ops[t % 4], n);
        c.attr.center = t / 4 % 2;
        double *want = arena_array(&a, double, (size_t)(3 * n));
        norm_grad_of(&c, want);
        for (int turn = 0; turn < c.nin * nrigs; turn++) { // at last over each of the rows
            c.in_place = turn >= nrigs;
            c.over = c.in_place ? turn / nrigs - 1 : 0;
            rig_run(&rigs[turn % nrigs], &c, &a, got);
            rig_compare(ops[t % 4].einsum, got[0], want, 3 * n, ops[t % 4].rtol, ops[t % 4].atol);
        }
        arena_clear(&a);
    }
}

// Enough rows that a backend makes their sum in parts.
static void weights_of_many_rows_get_one_gradient(void **state)
{
    static const struct extents s[] = {
        {700, 5, 1, 1}, {1030, 64, 1, 1}, {515, 1024, 1, 1}, {300, 1500, 1, 1}, {259, 4104, 1, 1}};
    (void)state;
    for (size_t t = 0; t < 4 * sizeof s / sizeof *s; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, s[t / 4]);
        rig_case(&c, &a, OP_NORM_WEIGHT_GRAD, "ij,ij->j", ext);
        to_bf16(&c, t & 1 ? 3 : 0);
        c.attr.eps = 1e-5f;
        c.attr.center = t & 2;
        c.accumulate = t & 1;
        rig_fill(&c.in[0], 1, -1, 2);
        rig_fill(&c.in[1], 2, -1, 1);
        run_everywhere(&c, "of many rows", 1e-5, 1e-4);
        arena_clear(&a);
    }
}

// The sums of the gradients' reference: of the norm's weight, of dy, of the gradient.
static void norm_sums_of(const struct rig_case *c, double *want[OP_MAX_OUT], struct arena *a)
{
    const int x = c->nin - 3;
    const int64_t rows = c->in[x].shape.dim[0], n = c->in[x].shape.dim[1];
    const double *summed[] = {c->in[x + 1].v, want[0]};
    struct rig_case weight;
    double *made[OP_MAX_OUT];
    int64_t ext[26];
    letters(ext, (struct extents){rows, n, 1, 1});
    rig_case(&weight, a, OP_NORM_WEIGHT_GRAD, "ij,ij->j", ext);
    weight.attr = c->attr;
    memcpy(weight.attr.label[2], c->attr.label[c->nin + 1], sizeof weight.attr.label[2]);
    weight.in[0] = c->in[x];
    weight.in[1] = c->in[x + 1];
    weight.start[0] = c->start[1];
    weight.accumulate = c->accumulate;
    rig_reference(&weight, a, made);
    want[1] = made[0];
    for (int k = 2; k < c->nout; k++) {
        want[k] = arena_array(a, double, (size_t)n);
        for (int64_t j = 0; j < n; j++)
            want[k][j] = c->accumulate ? c->start[k].v[j] : 0;
        for (int64_t i = 0; i < rows * n; i++)
            want[k][i % n] += summed[k - 2][i];
    }
}

// What a sum of rounded numbers may be off: half a unit of the largest's last place in each row.
// Rows that a block takes are summed before they are rounded.
static double sum_tolerance(const double *dx, int64_t rows, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < rows * n && n > 4096; i++)
        most = fmax(most, fabs(dx[i]));
    return 1e-4 + (double)rows * most * 0x1p-8 / 2;
}

// Of rows for one warp, two teams of a block, a whole block, and of more elements than it takes; of
// lengths that packs divide and that they do not; rows for one block, and for many with a rest.
static void a_norms_gradients_come_in_one_pass(void **state)
{
    static const struct extents s[] = {{1, 768, 1, 1},    {63, 24, 1, 1},     {700, 37, 1, 1},
                                       {1030, 256, 1, 1}, {1030, 1024, 1, 1}, {515, 768, 1, 1},
                                       {131, 1031, 1, 1}, {67, 4096, 1, 1},   {130, 4104, 1, 1}};
    static const struct variant {
        bool bf16, center, accumulate, in_place;
        int sums;
        bool alone; // nothing is added to the gradient
    } v[] = {{false, true, false, false, 3, false}, {true, true, true, true, 3, false},
             {true, true, false, false, 2, false},  {false, false, true, true, 1, false},
             {true, false, false, true, 1, false},  {false, false, true, false, 3, false},
             {false, true, false, true, 3, true},   {true, true, true, false, 3, true},
             {true, false, false, true, 1, true}};
    enum { SHAPES = sizeof s / sizeof *s, VARIANTS = sizeof v / sizeof *v };
    (void)state;
    for (int t = 0; t < SHAPES * VARIANTS; t++) {
        const struct variant *how = &v[t % VARIANTS];
        const int64_t rows = s[t / VARIANTS].i, n = s[t / VARIANTS].j;
        struct arena a = {0};
        struct rig_case c;
        double *got[OP_MAX_OUT], *want[OP_MAX_OUT];
        int64_t ext[26];
        letters(ext, s[t / VARIANTS]);
        rig_case(&c, &a, OP_NORM_GRADS, how->alone ? "ij,ij,j->ij,j,j,j" : "ij,ij,ij,j->ij,j,j,j",
                 ext);
        fill_rows(&c, &(struct row){.bf16 = !how->bf16 ? 0 : how->alone ? 15 : 31}, n);
        c.attr.center = how->center;
        c.accumulate = how->accumulate;
        c.in_place = how->in_place;
        c.over = t / VARIANTS % (c.nin - 1); // the residual's gradient, x or dy
        c.nout = 1 + how->sums;
        want[0] = arena_array(&a, double, (size_t)(rows * n));
        norm_grad_of(&c, want[0]);
        norm_sums_of(&c, want, &a);
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &c, &a, got);
            rig_compare("a gradient", got[0], want[0], rows * n, how->bf16 ? 0x1p-7 : 1e-5, 4e-6);
            for (int k = 1; k < c.nout; k++)
                rig_compare("a sum", got[k], want[k], n, 1e-5,
                            k == 3 && how->bf16 ? sum_tolerance(want[0], rows, n) : 1e-4);
        }
        arena_clear(&a);
    }
}

// ---- ids ---------------------------------------------------------------------------------------

// How ids are dealt out over a table.
enum { LIKE_WORDS, ALL_EQUAL, ALL_DIFFERENT, MOST_OUTSIDE, DEALS };

static double id_of(int deal, int64_t i, int64_t n, int64_t rows)
{
    uint64_t mixed = ((uint64_t)i * 0x9e3779b97f4a7c15u) >> 20;
    double u = ((double)(mixed % 1000003) + 1) / 1000004;
    if (deal == LIKE_WORDS) // the k-th word comes 1/k as often as the first
        return floor(exp(u * log((double)rows + 1))) - 1;
    if (deal == ALL_EQUAL)
        return floor((double)rows / 2);
    if (deal == ALL_DIFFERENT) // in no order
        return (double)((i * 7919 + 13) % (n > rows ? n : rows));
    return floor(u * 40 * (double)rows) - (double)rows * 20;
}

static void ids_fill(struct rig_case *c, int deal, int64_t rows)
{
    int64_t n = shape_count(&c->in[0].shape);
    for (int64_t i = 0; i < n; i++)
        c->in[0].v[i] = id_of(deal, i, n, rows) + (double)c->attr.start;
}

static void gradients_of_ids_that_repeat_are_added_up(void **state)
{
    static const struct {
        int64_t ids, rows, width; // of the table
    } cases[] = {
        {1, 1, 1},       {31, 7, 5},    {33, 600, 8},   {700, 1, 24},     {2050, 511, 9},
        {2050, 512, 16}, {997, 40, 70}, {640, 70, 300}, {65, 3000, 1100}, {4097, 70001, 3},
    };
    (void)state;
    for (size_t t = 0; t < DEALS * sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct rig_case c;
        const int64_t rows = cases[t / DEALS].rows;
        int64_t ext[26];
        letters(ext, (struct extents){cases[t / DEALS].ids, cases[t / DEALS].width, rows, 1});
        rig_case(&c, &a, OP_EMBED_GRAD, "i,ij->kj", ext);
        c.attr.start = t % 3 ? 0 : 1000;
        c.accumulate = t % 2;
        to_bf16(&c, t / DEALS % 2 ? 2 : 0);
        ids_fill(&c, (int)(t % DEALS), rows);
        rig_fill(&c.in[1], 2, -1, 1);
        run_everywhere(&c, "of repeated ids", 1e-5, 4e-5);
        arena_clear(&a);
    }
}

// More ids than a backend has tiles of the least size for.
static void a_long_text_gives_every_word_its_gradient(void **state)
{
    (void)state;
    for (int deal = 0; deal < (thorough() ? DEALS : 2); deal++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){70001, 4, 50257, 1});
        rig_case(&c, &a, OP_EMBED_GRAD, "i,ij->kj", ext);
        ids_fill(&c, deal, 50257);
        rig_fill(&c.in[1], 2, -1, 1);
        run_everywhere(&c, "of a long text", 1e-5, 1e-3);
        arena_clear(&a);
    }
}

static void a_row_of_a_bf16_table_is_rounded_once(void **state)
{
    (void)state;
    for (int deal = 0; deal < DEALS; deal++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){500, 40, 30, 1});
        rig_case(&c, &a, OP_EMBED_GRAD, "i,ij->kj", ext);
        to_bf16(&c, 6);
        ids_fill(&c, deal, 30);
        rig_fill(&c.in[1], 2, -1, 1);
        run_everywhere(&c, "of a bf16 table", 0x1p-7, 1e-5);
        arena_clear(&a);
    }
}

// ---- what is no number -------------------------------------------------------------------------

static void what_is_no_number_stays_in_its_row(void **state)
{
    static const int64_t sizes[] = {7, 64, 1500};
    (void)state;
    for (size_t t = 0; t < 3 * sizeof row_ops / sizeof *row_ops; t++) {
        const struct row *row = &row_ops[t / 3];
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26], n = sizes[t % 3];
        letters(ext, (struct extents){4, n, 1, 1});
        rig_case(&c, &a, row->op, row->einsum, ext);
        fill_rows(&c, row, n);
        if (c.in[0].dtype != DT_I32 && row->op != OP_ROW_ARGMAX && row->op != OP_NORM_WEIGHT_GRAD) {
            c.in[0].v[n + 3] = NAN;
            c.in[0].v[2 * n + 1] = INFINITY;
            c.in[0].v[3 * n + 2] = -INFINITY;
            run_everywhere(&c, "with NaN", row->rtol, row->atol);
        }
        arena_clear(&a);
    }
}

static void a_sum_with_nan_or_infinity_is_one(void **state)
{
    static const char *const einsum[] = {"ij->i", "ij->j", "ij->", "ij->ji"};
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){300, 40, 1, 1});
        rig_case(&c, &a, OP_SUM, einsum[t], ext);
        rig_fill(&c.in[0], 1, -1, 1);
        c.in[0].v[77] = NAN;
        c.in[0].v[5000] = INFINITY;
        c.in[0].v[9000] = -INFINITY;
        run_everywhere(&c, einsum[t], 1e-6, 1e-5);
        arena_clear(&a);
    }
}

// ---- twice the same ----------------------------------------------------------------------------

static void a_second_run_has_the_bits_of_the_first(void **state)
{
    static const struct {
        enum op op;
        const char *einsum;
        struct extents s;
    } cases[] = {
        {OP_SUM, "ij->j", {3000, 70, 1, 1}},
        {OP_SUM, "ij->", {3000, 70, 1, 1}},
        {OP_SQNORM, "ij->", {3000, 70, 1, 1}},
        {OP_EMBED_GRAD, "i,ij->kj", {3000, 70, 50, 1}},
        {OP_NORM_WEIGHT_GRAD, "ij,ij->j", {3000, 70, 1, 1}},
        {OP_ROW_LOSS, "ij,i->i,i,i", {5, 9001, 1, 1}},
        {OP_ROW_LOSS_BOTH, "ij,i,->i,i,i,ij", {5, 9001, 1, 1}},
        {OP_NORM, "ij->ij", {5, 9001, 1, 1}},
    };
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++)
        for (int r = 0; r < nrigs; r++) {
            struct arena a = {0};
            struct rig_case c;
            double *once[OP_MAX_OUT], *again[OP_MAX_OUT];
            int64_t ext[26];
            letters(ext, cases[t].s);
            rig_case(&c, &a, cases[t].op, cases[t].einsum, ext);
            for (int k = 0; k < c.nin; k++)
                rig_fill(&c.in[k], (uint64_t)k + 1, c.in[k].dtype == DT_I32 ? 0 : -1,
                         c.in[k].dtype == DT_I32 ? 50 : 1);
            rig_run(&rigs[r], &c, &a, once);
            rig_run(&rigs[r], &c, &a, again);
            for (int k = 0; k < c.nout; k++)
                same_bits(op_name(c.op), once[k], again[k], shape_count(&c.start[k].shape));
            arena_clear(&a);
        }
}

// Padding begins in the middle of a part, before it, behind it, where it begins, where it ends.
static void padding_has_the_number_that_is_asked_for(void **state)
{
    static const int64_t limits[] = {24, 22, 3, 100, 20, 30};
    static const enum dtype types[] = {DT_F32, DT_BF16};
    (void)state;
    for (int t = 0; t < 6 * 3 * 2 * 2 * 2 * 2; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {['i' - 'a'] = 10, ['j' - 'a'] = 10, ['k' - 'a'] = 10};
        rig_case(&c, &a, OP_PAD, "ijk->ijk", ext);
        c.attr.start = 20;
        c.attr.limit = limits[t % 6];
        c.attr.along = t / 6 % 3;
        c.in[0].dtype = c.start[0].dtype = types[t / 18 % 2];
        c.attr.scale = (float)(t / 36 % 2);
        c.in_place = t / 72 % 2;
        rig_fill(&c.in[0], 1, -4, 4);
        if (t / 144)
            c.in[0].v[999] = (double)INFINITY; // a number takes its place, whatever it is
        run_everywhere(&c, "of padding", 0, 0);
        arena_clear(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_has_the_number_that_is_asked_for),
        cmocka_unit_test(sums_of_tall_and_of_wide_arrays_agree),
        cmocka_unit_test(small_gradients_still_have_a_norm),
        cmocka_unit_test(long_rows_agree),
        cmocka_unit_test(long_rows_norms_have_their_gradients),
        cmocka_unit_test(weights_of_many_rows_get_one_gradient),
        cmocka_unit_test(a_norms_gradients_come_in_one_pass),
        cmocka_unit_test(gradients_of_ids_that_repeat_are_added_up),
        cmocka_unit_test(a_long_text_gives_every_word_its_gradient),
        cmocka_unit_test(a_row_of_a_bf16_table_is_rounded_once),
        cmocka_unit_test(what_is_no_number_stays_in_its_row),
        cmocka_unit_test(a_sum_with_nan_or_infinity_is_one),
        cmocka_unit_test(a_second_run_has_the_bits_of_the_first),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
