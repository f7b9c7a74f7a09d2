// SPDX-License-Identifier: Apache-2.0
// The ops of transformers against the f64 reference, and their gradients against its finite
// differences: attention over any heads and positions, rotary, norms, embeddings, padded rows.
#include "tests/ops/everywhere.h"

// ---- transformers ------------------------------------------------------------------------------

enum {
    IN_ORDER,
    SHUFFLED,
    DEALT, // to two parts: the first and last quarter, the second and third
    AHEAD, // the keys are half their number ahead of the queries: some queries see none
    BEHIND // the queries are as much ahead of the keys
};

// Query and key sequences, heads and what shares a key head, elements of a head.
static const struct heads {
    int64_t batch, queries, keys, heads, group, d;
    int order; // of the positions
} attentions[] = {
    {1, 1, 1, 1, 1, 2, IN_ORDER},      {2, 7, 7, 3, 1, 5, IN_ORDER},
    {1, 64, 64, 2, 2, 8, IN_ORDER},    {2, 65, 65, 4, 2, 16, IN_ORDER},
    {1, 130, 130, 1, 1, 3, SHUFFLED},  {3, 20, 33, 4, 4, 8, SHUFFLED},
    {1, 200, 257, 2, 1, 64, IN_ORDER}, {2, 64, 128, 4, 2, 8, DEALT},
    {1, 1, 70, 2, 1, 1, IN_ORDER},     {1, 33, 35, 2, 2, 80, DEALT},
    {2, 67, 67, 2, 1, 128, SHUFFLED},  {1, 66, 131, 1, 1, 256, IN_ORDER},
    {2, 9, 9, 2, 1, 3, AHEAD},         {1, 130, 65, 4, 2, 16, BEHIND},
    {1, 65, 129, 2, 2, 130, AHEAD},    {1, 15, 256, 2, 1, 128, IN_ORDER}, // see ATTENTION_SMALL_…
    {1, 16, 256, 2, 2, 128, IN_ORDER}, {2, 37, 255, 2, 1, 127, SHUFFLED},
    {1, 16, 257, 2, 1, 32, IN_ORDER},  {1, 17, 100, 2, 1, 129, IN_ORDER},
};

static int64_t position_of(const struct heads *s, int64_t t)
{
    static const int64_t quarter[] = {0, 3, 1, 2};
    int64_t size = s->keys / 4;
    return s->order == SHUFFLED                ? t * 7 % s->keys
           : s->order == DEALT && t < 4 * size ? quarter[t / size] * size + t % size
           : s->order == AHEAD                 ? t + s->keys / 2
                                               : t;
}

// The queries are the last of the keys, unless they are before or after them.
static int64_t query_position_of(const struct heads *s, int64_t i)
{
    return s->order == AHEAD    ? i
           : s->order == BEHIND ? i + s->keys / 2
                                : position_of(s, s->keys - s->queries + i);
}

static void fill_positions(struct rig_case *c, const struct heads *s)
{
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t t = 0; t < s->keys; t++)
            c->in[c->nin - 1].v[b * s->keys + t] = (double)position_of(s, t);
        for (int64_t i = 0; i < s->queries; i++)
            c->in[c->nin - 2].v[b * s->queries + i] = (double)query_position_of(s, i);
    }
}

static void attention_case(struct rig_case *c, struct arena *a, bool grad, struct heads s)
{
    int64_t ext[26] = {[1] = s.batch, [3] = s.d,        [6] = s.heads / s.group,
                       [7] = s.heads, [18] = s.queries, [19] = s.keys};
    rig_case(c, a, grad ? OP_ATTENTION_GRAD : OP_ATTENTION,
             grad ? "bshd,btgd,btgd,bshd,bshd,bhs,bs,bt->bshd,btgd,btgd"
                  : "bshd,btgd,btgd,bs,bt->bshd,bhs",
             ext);
    c->attr.scale = 1 / sqrtf((float)s.d);
    c->attr.group = s.group;
    for (int k = 0; k < c->nin - 2; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, -2, 2);
    fill_positions(c, &s);
    rig_attend(c);
}

static void attention_agrees_whatever_the_heads_and_the_order_of_positions(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2 * sizeof attentions / sizeof *attentions; t++) {
        struct arena a = {0};
        struct rig_case c;
        attention_case(&c, &a, t % 2, attentions[t / 2]);
        run_everywhere(&c, t % 2 ? "gradient" : "forward", 2e-5, 2e-5);
        arena_clear(&a);
    }
}

// q, k and v in one row, or k and v behind q: the same case, whose operands lie otherwise.
static void packed_case(struct rig_case *c, struct arena *a, bool grad, struct heads s, int pieces)
{
    static const char *const einsum[2][2] = {
        {"bshd,btpgd,bs,bt->bshd,bhs", "bshd,btpgd,bshd,bshd,bhs,bs,bt->bshd,btpgd"},
        {"bsphd,bs,bs->bshd,bhs", "bsphd,bshd,bshd,bhs,bs,bs->bsphd"}};
    int64_t ext[26] = {
        [1] = s.batch, [3] = s.d,    [6] = s.heads / s.group, [7] = s.heads, [15] = pieces,
        [18] = s.keys, [19] = s.keys};
    rig_case(c, a, grad ? OP_ATTENTION_PACKED_GRAD : OP_ATTENTION_PACKED, einsum[pieces > 2][grad],
             ext);
    c->attr.scale = 1 / sqrtf((float)s.d);
    c->attr.group = s.group;
    for (int k = 0; k < c->nin - 2; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, -2, 2);
    s.queries = s.keys;
    fill_positions(c, &s);
    rig_attend(c);
}

static void attention_agrees_where_heads_are_packed(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4 * sizeof attentions / sizeof *attentions; t++) {
        struct heads s = attentions[t / 4];
        struct arena a = {0};
        struct rig_case c;
        if (t & 2)
            s.group = 1;
        packed_case(&c, &a, t & 1, s, t & 2 ? 3 : 2);
        run_everywhere(&c, t & 1 ? "gradient" : "forward", 2e-5, 2e-5);
        arena_clear(&a);
    }
}

// What a model may ask for beside the plain softmax: see ops.def.
static const struct variant {
    const char *name;
    int64_t window;
    bool ahead;
    float cap;
    int64_t e, r; // elements of a head's values, 0: as many as its keys have; of the second pair
} variants[] = {
    {"a window", .window = 16},
    {"a window of one", .window = 1},
    {"what lies ahead", .ahead = true},
    {"a window to both sides", .window = 9, .ahead = true},
    {"a window as long as the sequence", .window = 1000},
    {"a cap", .cap = 1.5f},
    {"narrow values", .e = 5},
    {"wide values", .e = 70},
    {"a second pair", .r = 6},
    {"all of it", .window = 20, .cap = 2, .e = 12, .r = 66},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void variant_case(struct rig_case *c, struct arena *a, bool grad, struct heads s,
                         const struct variant *v)
{
    static const char *const einsum[2][2] = {
        {"bshd,btgd,btge,bs,bt->bshe,bhs", "bshd,btgd,btge,bshe,bshe,bhs,bs,bt->bshd,btgd,btge"},
        {"bshd,btgd,btge,bshr,btr,bs,bt->bshe,bhs",
         "bshd,btgd,btge,bshr,btr,bshe,bshe,bhs,bs,bt->bshd,btgd,btge,bshr,btr"}};
    int64_t ext[26] = {[1] = s.batch, [3] = s.d,   [4] = v->e ? v->e : s.d, [6] = s.heads / s.group,
                       [7] = s.heads, [17] = v->r, [18] = s.queries,        [19] = s.keys};
    rig_case(c, a, grad ? OP_ATTENTION_GRAD : OP_ATTENTION, einsum[v->r > 0][grad], ext);
    c->attr.scale = 1 / sqrtf((float)(s.d + v->r));
    c->attr.group = s.group;
    c->attr.window = v->window;
    c->attr.ahead = v->ahead;
    c->attr.cap = v->cap;
    for (int k = 0; k < c->nin - 2; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, -2, 2);
    fill_positions(c, &s);
    rig_attend(c);
}

static void attention_agrees_in_every_variant(void **state)
{
    static const struct heads some[] = {
        {1, 1, 1, 1, 1, 2, IN_ORDER},      {2, 65, 65, 4, 2, 16, IN_ORDER},
        {2, 64, 128, 4, 2, 8, DEALT},      {3, 20, 33, 4, 4, 8, SHUFFLED},
        {1, 200, 257, 2, 1, 20, IN_ORDER}, {2, 9, 9, 2, 1, 3, AHEAD},
        {1, 130, 65, 4, 2, 16, BEHIND},
    };
    enum { SOME = sizeof some / sizeof *some };
    (void)state;
    for (size_t t = 0; t < 2 * SOME * VARIANTS; t++) {
        struct arena a = {0};
        struct rig_case c;
        const struct variant *v = &variants[t / 2 / SOME];
        variant_case(&c, &a, t % 2, some[t / 2 % SOME], v);
        run_everywhere(&c, v->name, 2e-5, 2e-5);
        arena_clear(&a);
    }
}

// A rank holds query heads 3 and 4 of 6 and all three key heads.
static void a_part_of_the_heads_reads_its_own_key_heads(void **state)
{
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        struct arena a = {0};
        struct rig_case c;
        attention_case(&c, &a, grad, (struct heads){2, 9, 9, 6, 2, 4, IN_ORDER});
        for (int k = 0; k < c.nin; k++) {
            bool of_heads = k == 0 || (grad && (k == 3 || k == 4));
            c.in[k].shape.dim[2] = of_heads ? 2 : c.in[k].shape.dim[2];
        }
        c.start[0].shape.dim[2] = 2;
        (grad ? &c.in[5] : &c.start[1])->shape.dim[1] = 2;
        c.attr.start = 3;
        rig_attend(&c);
        run_everywhere(&c, "of two heads", 2e-5, 2e-5);
        arena_clear(&a);
    }
}

static void rotary_turns_each_pair_by_its_position(void **state)
{
    (void)state;
    for (int64_t d = 2; d <= 128; d = d * 2 + 2) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[1] = 2, [3] = d, [7] = 3, [18] = 37};
        rig_case(&c, &a, OP_ROTARY, "bshd,bs->bshd", ext);
        c.attr.rotary.theta = 10000;
        c.attr.scale = d % 4 ? 1 : -1;
        rig_fill(&c.in[0], 1, -1, 1);
        rig_fill(&c.in[1], 2, 0, 8192);
        run_everywhere(&c, "of heads", 1e-6, 3e-7);
        c.in_place = true;
        run_everywhere(&c, "in place", 1e-6, 3e-7);
        arena_clear(&a);
    }
}

// All but the last turn; out of place that one is copied.
static void packed_rotary_leaves_the_values_as_they_are(void **state)
{
    (void)state;
    for (int64_t pieces = 2; pieces <= 3; pieces++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[1] = 2, [3] = 16, [7] = 3, [15] = pieces, [18] = 37};
        rig_case(&c, &a, OP_ROTARY_PACKED, "bsphd,bs->bsphd", ext);
        c.attr.rotary.theta = 10000;
        rig_fill(&c.in[0], 1, -1, 1);
        rig_fill(&c.in[1], 2, 0, 8192);
        run_everywhere(&c, "packed", 1e-6, 3e-7);
        c.in_place = true;
        run_everywhere(&c, "packed, in place", 1e-6, 3e-7);
        arena_clear(&a);
    }
}

// The published settings: Llama 3.1's, DeepSeek-V2's; JAXformer's sweep over all heads.
static void rotary_turns_as_its_scaling_says(void **state)
{
    static const struct {
        const char *name, *einsum;
        int64_t d, start;
        struct op_rotary rotary;
    } cases[] = {
        {"pairs", "bshd,bs->bshd", 10, 0, {.theta = 10000, .pairs = true}},
        {"many pairs", "bshd,bs->bshd", 64, 0, {.theta = 10000, .pairs = true}},
        {"an offset", "bshd,bs->bshd", 8, 0, {.theta = 100, .offset = 1}},
        {"a gain", "bshd,bs->bshd", 8, 0, {.theta = 100, .gain = 1.25f}},
        {"no heads", "bsd,bs->bsd", 32, 0, {.theta = 10000, .pairs = true, .offset = 1}},
        {"linear", "bshd,bs->bshd", 32, 0, {.theta = 10000, .scaling = ROTARY_LINEAR, .factor = 4}},
        {"llama3",
         "bshd,bs->bshd",
         128,
         0,
         {.theta = 500000,
          .scaling = ROTARY_LLAMA3,
          .factor = 8,
          .slow = 1,
          .fast = 4,
          .length = 8192}},
        {"yarn",
         "bshd,bs->bshd",
         64,
         0,
         {.theta = 10000,
          .scaling = ROTARY_YARN,
          .factor = 40,
          .slow = 1,
          .fast = 32,
          .length = 4096,
          .pairs = true,
          .gain = 0.707f}},
        {"yarn of few pairs",
         "bshd,bs->bshd",
         4,
         0,
         {.theta = 10000,
          .scaling = ROTARY_YARN,
          .factor = 4,
          .slow = 1,
          .fast = 32,
          .length = 64}},
        {"a sweep",
         "bshd,bs->bshd",
         16,
         0,
         {.theta = 10000, .sweep = true, .heads = 3, .pairs = true, .offset = 1}},
        {"a part of a sweep",
         "bshd,bs->bshd",
         130,
         4,
         {.theta = 10000, .sweep = true, .heads = 12}},
    };
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26] = {[1] = 2, [3] = cases[t].d, [7] = 3, [18] = 37};
        rig_case(&c, &a, OP_ROTARY, cases[t].einsum, ext);
        c.attr.rotary = cases[t].rotary;
        c.attr.start = cases[t].start;
        rig_fill(&c.in[0], 1, -1, 1);
        rig_fill(&c.in[1], 2, 0, 8192);
        for (int in_place = 0; in_place < 2; in_place++) {
            c.in_place = in_place;
            run_everywhere(&c, cases[t].name, 1e-6, 3e-7);
        }
        arena_clear(&a);
    }
}

static void padding_takes_no_part_in_a_row(void **state)
{
    static const int64_t limits[] = {0, 30, 25, 22, 10}; // 11 of a row's elements, from 22 on
    static const enum op ops[] = {OP_ROW_MAX, OP_ROW_SUM_EXP, OP_ROW_EXP_MUL, OP_SOFTMAX};
    static const char *const einsum[] = {"ij->i", "ij,i->i", "ij,i,i->ij", "ij->ij"};
    (void)state;
    for (size_t t = 0; t < 20; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){20, 11, 1, 1});
        rig_case(&c, &a, ops[t % 4], einsum[t % 4], ext);
        for (int k = 0; k < c.nin; k++)
            rig_fill(&c.in[k], (uint64_t)k + 1, -2, 2);
        c.attr.start = 22;
        c.attr.limit = limits[t / 4];
        run_everywhere(&c, "with padding", 2e-6, 0);
        arena_clear(&a);
    }
}

// A rank whose part of the vocabulary is all padding adds nothing, even where the maximum is −∞.
static void a_row_of_padding_alone_sums_up_to_nothing(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){20, 11, 1, 1});
    rig_case(&c, &a, OP_ROW_SUM_EXP, "ij,i->i", ext);
    rig_fill(&c.in[0], 1, -2, 2);
    for (int64_t i = 0; i < 20; i++)
        c.in[1].v[i] = -INFINITY;
    c.attr.start = c.attr.limit = 22;
    run_everywhere(&c, "of padding alone", 0, 0);
    arena_clear(&a);
}

static void embeddings_of_a_part_of_the_table_leave_the_rest_to_others(void **state)
{
    (void)state;
    for (int grad = 0; grad < 2; grad++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){40, 37, 9, 3});
        rig_case(&c, &a, grad ? OP_EMBED_GRAD : OP_EMBED, grad ? "il,ilj->kj" : "il,kj->ilj", ext);
        rig_fill(&c.in[0], 1, 0, 30);
        rig_fill(&c.in[1], 2, -1, 1);
        c.attr.start = 9;
        run_everywhere(&c, "of a part", 1e-5, 1e-5);
        arena_clear(&a);
    }
}

// The gradient of the forward's input k against finite differences of the reference.
static void slope_of(const char *what, struct rig_case *f, int k, const double *cot,
                     const double *grad)
{
    struct arena a = {0};
    for (int64_t i = 0; i < shape_count(&f->in[k].shape); i++) {
        double *out[2][OP_MAX_OUT], was = f->in[k].v[i], slope = 0;
        const double h = 1e-5;
        f->in[k].v[i] = was + h;
        rig_reference(f, &a, out[0]);
        f->in[k].v[i] = was - h;
        rig_reference(f, &a, out[1]);
        f->in[k].v[i] = was;
        for (int64_t o = 0; o < shape_count(&f->start[0].shape); o++)
            slope += cot[o] * (out[0][0][o] - out[1][0][o]) / (2 * h);
        if (!(fabs(slope - grad[i]) <= 3e-5 + 3e-5 * fabs(slope)))
            fail_msg("%s: gradient %d of %lld is %.9g, by differences %.9g", what, k, (long long)i,
                     grad[i], slope);
    }
    arena_clear(&a);
}

static void attentions_gradients_are_slopes(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case f, g;
    double *d[OP_MAX_OUT];
    const struct heads s = {2, 6, 6, 4, 2, 6, SHUFFLED};
    attention_case(&f, &a, false, s);
    attention_case(&g, &a, true, s);
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &g, &a, d);
        for (int k = 0; k < 3; k++)
            slope_of("attention", &f, k, g.in[3].v, d[k]);
    }
    arena_clear(&a);
}

static void every_variants_gradients_are_slopes(void **state)
{
    const struct heads s = {2, 6, 6, 4, 2, 6, SHUFFLED};
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        struct arena a = {0};
        struct rig_case f, g;
        struct variant v = variants[i];
        double *d[OP_MAX_OUT];
        v.window = v.window > 6 ? 3 : v.window;
        variant_case(&f, &a, false, s, &v);
        variant_case(&g, &a, true, s, &v);
        for (int r = 0; r < nrigs; r += MAX_THREADS) {
            rig_run(&rigs[r], &g, &a, d);
            for (int k = 0; k < g.nout; k++)
                slope_of(v.name, &f, k, g.in[g.nout].v, d[k]);
        }
        arena_clear(&a);
    }
}

static void softmaxs_gradients_are_slopes(void **state)
{
    struct arena a = {0};
    struct rig_case f, g;
    double *d[OP_MAX_OUT], *y[OP_MAX_OUT];
    int64_t ext[26];
    (void)state;
    letters(ext, (struct extents){4, 19, 1, 1});
    rig_case(&f, &a, OP_SOFTMAX, "ij->ij", ext);
    rig_case(&g, &a, OP_SOFTMAX_GRAD, "ij,ij->ij", ext);
    rig_fill(&f.in[0], 1, -2, 2);
    rig_fill(&g.in[0], 2, -1, 1);
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &f, &a, y);
        g.in[1].v = y[0];
        rig_run(&rigs[r], &g, &a, d);
        slope_of("softmax", &f, 0, g.in[0].v, d[0]);
    }
    arena_clear(&a);
}

// −∞ is what a mask makes. A row of it alone has no softmax, and a NaN is never hidden.
static void softmax_gives_nothing_to_what_is_hidden(void **state)
{
    enum { SHORT = 5, LONG = 1300 };
    (void)state;
    for (int64_t n = SHORT; n <= LONG; n += LONG - SHORT) {
        struct arena a = {0};
        struct rig_case c;
        double *y[OP_MAX_OUT];
        int64_t ext[26];
        letters(ext, (struct extents){4, n, 1, 1});
        rig_case(&c, &a, OP_SOFTMAX, "ij->ij", ext);
        for (int64_t i = 0; i < 4 * n; i++)
            c.in[0].v[i] = i < n || i % n == n - 1  ? -INFINITY
                           : i < 2 * n || i % n < 2 ? 3
                                                    : -INFINITY;
        c.in[0].v[3 * n + 1] = NAN;
        for (int r = 0; r < nrigs; r++) {
            rig_run(&rigs[r], &c, &a, y);
            for (int64_t i = 0; i < 3 * n; i++) {
                double want = c.in[0].v[i] == -INFINITY ? 0
                              : i < 2 * n               ? 1.0 / (double)(n - 1)
                                                        : 0.5;
                if (!(fabs(y[0][i] - want) <= 1e-6))
                    fail_msg("element %lld is %g, not %g", (long long)i, y[0][i], want);
            }
            assert_true(isnan(y[0][3 * n]) && isnan(y[0][3 * n + 1]));
        }
        arena_clear(&a);
    }
}

static void norms_gradients_are_slopes(void **state)
{
    (void)state;
    for (int center = 0; center < 2; center++)
        for (int weighted = 0; weighted < 2; weighted++) {
            struct arena a = {0};
            struct rig_case f, x, w;
            double *d[OP_MAX_OUT];
            int64_t ext[26];
            letters(ext, (struct extents){3, 19, 1, 1});
            rig_case(&f, &a, OP_NORM, weighted ? "ij,j->ij" : "ij->ij", ext);
            rig_case(&x, &a, OP_NORM_GRAD, weighted ? "ij,ij,j->ij" : "ij,ij->ij", ext);
            rig_case(&w, &a, OP_NORM_WEIGHT_GRAD, "ij,ij->j", ext);
            f.attr.center = x.attr.center = w.attr.center = center;
            f.attr.eps = x.attr.eps = w.attr.eps = 1e-5f;
            rig_fill(&f.in[0], 1, -1, 2);
            rig_fill(&x.in[1], 2, -1, 1);
            if (weighted)
                rig_fill(&f.in[1], 3, -1, 1);
            x.in[0] = w.in[0] = f.in[0];
            w.in[1] = x.in[1];
            if (weighted)
                x.in[2] = f.in[1];
            for (int r = 0; r < nrigs; r++) {
                rig_run(&rigs[r], &x, &a, d);
                slope_of("norm", &f, 0, x.in[1].v, d[0]);
                rig_run(&rigs[r], &w, &a, d);
                if (weighted)
                    slope_of("norm's weight", &f, 1, x.in[1].v, d[0]);
            }
            arena_clear(&a);
        }
}

static void embeddings_and_rotarys_gradients_are_slopes(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case f, g;
    double *d[OP_MAX_OUT];
    int64_t ext[26] = {[1] = 2, [3] = 6, [7] = 2, [18] = 5, [19] = 4};
    rig_case(&f, &a, OP_EMBED, "bs,td->bsd", ext);
    rig_case(&g, &a, OP_EMBED_GRAD, "bs,bsd->td", ext);
    rig_fill(&f.in[0], 1, 0, 4);
    rig_fill(&f.in[1], 2, -1, 1);
    rig_fill(&g.in[1], 3, -1, 1);
    g.in[0] = f.in[0];
    rig_run(&rigs[0], &g, &a, d);
    slope_of("embed", &f, 1, g.in[1].v, d[0]);
    rig_case(&f, &a, OP_ROTARY, "bshd,bs->bshd", ext);
    rig_case(&g, &a, OP_ROTARY, "bshd,bs->bshd", ext);
    f.attr.rotary = g.attr.rotary = (struct op_rotary){.theta = 100, .pairs = true, .gain = 1.5f};
    g.attr.scale = -1;
    rig_fill(&f.in[0], 1, -1, 1);
    rig_fill(&f.in[1], 2, 0, 50);
    rig_fill(&g.in[0], 3, -1, 1);
    g.in[1] = f.in[1];
    rig_run(&rigs[0], &g, &a, d);
    slope_of("rotary", &f, 0, g.in[0].v, d[0]);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_whatever_the_heads_and_the_order_of_positions),
        cmocka_unit_test(attention_agrees_where_heads_are_packed),
        cmocka_unit_test(attention_agrees_in_every_variant),
        cmocka_unit_test(a_part_of_the_heads_reads_its_own_key_heads),
        cmocka_unit_test(rotary_turns_each_pair_by_its_position),
        cmocka_unit_test(packed_rotary_leaves_the_values_as_they_are),
        cmocka_unit_test(rotary_turns_as_its_scaling_says),
        cmocka_unit_test(padding_takes_no_part_in_a_row),
        cmocka_unit_test(a_row_of_padding_alone_sums_up_to_nothing),
        cmocka_unit_test(embeddings_of_a_part_of_the_table_leave_the_rest_to_others),
        cmocka_unit_test(attentions_gradients_are_slopes),
        cmocka_unit_test(every_variants_gradients_are_slopes),
        cmocka_unit_test(softmaxs_gradients_are_slopes),
        cmocka_unit_test(softmax_gives_nothing_to_what_is_hidden),
        cmocka_unit_test(norms_gradients_are_slopes),
        cmocka_unit_test(embeddings_and_rotarys_gradients_are_slopes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
