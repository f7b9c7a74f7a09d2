// SPDX-License-Identifier: Apache-2.0
// Random draws of the backend against base/rand.h, number by number: dropout, normals, dropout
// within attention; whatever part of the whole step's tensor a rank holds.
#include "tests/ops/everywhere.h"

#include "common/base/rand.h"
#include "tests/support/normal.h"

// A part of a tensor: where it begins, how much of it is here, the whole.
static const struct part {
    int n;
    int64_t from[DRAW_DIMS], here[DRAW_DIMS], whole[DRAW_DIMS];
    float rate;
    int32_t step;
} parts[] = {
    {1, {0}, {1}, {1}, 0.5f, 0},
    {1, {3}, {77}, {100}, 0.1f, 1},
    {2, {0, 0}, {5, 7}, {5, 7}, 0.25f, 2},
    {2, {2, 3}, {9, 130}, {40, 333}, 0.9f, -1},        // the step's 32 bits count, all of them
    {2, {70000, 0}, {3, 64}, {90000, 70001}, 0.1f, 3}, // past 2^32
    {3, {1, 2, 5}, {3, 4, 65}, {8, 16, 70}, 0.1f, 4},
    {3, {0, 0, 0}, {4, 33, 48}, {4, 33, 48}, 0.0f, 5},
    {4, {1, 0, 2, 0}, {2, 3, 2, 17}, {4, 3, 8, 17}, 0.3f, 6},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void set_draw(struct rig_case *c, const struct part *p)
{
    struct op_draw *d = &c->attr.draw;
    d->seed = 0x0123456789abcdefu;
    d->stream = 0xfeedbeefu;
    d->rate = p->rate;
    d->n = p->n;
    memcpy(d->from, p->from, sizeof d->from);
    memcpy(d->extent, p->whole, sizeof d->extent);
}

static void part_case(struct rig_case *c, struct arena *a, enum op op, const struct part *p)
{
    static const char *const labels[2][DRAW_DIMS] = {
        {"i,->i", "ij,->ij", "ijk,->ijk", "ijkl,->ijkl"}, {"->i", "->ij", "->ijk", "->ijkl"}};
    int64_t ext[26] = {0};
    memcpy(&ext['i' - 'a'], p->here, sizeof p->here);
    rig_case(c, a, op, labels[op == OP_NORMAL][p->n - 1], ext);
    set_draw(c, p);
    int step = op == OP_NORMAL ? 0 : 1;
    if (step)
        rig_fill(&c->in[0], 5, 1, 2);
    c->in[step].v[0] = p->step;
}

static void dropout_drops_what_the_site_draws(void **state)
{
    (void)state;
    for (int t = 0; t < PARTS; t++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct arena a = {0};
            struct rig_case c;
            part_case(&c, &a, OP_DROPOUT, &parts[t]);
            c.in_place = in_place;
            run_everywhere(&c, "of a part", 2e-7, 0);
            arena_clear(&a);
        }
}

static void normals_are_the_sites_own(void **state)
{
    (void)state;
    for (int t = 0; t < PARTS; t++) {
        struct arena a = {0};
        struct rig_case c;
        part_case(&c, &a, OP_NORMAL, &parts[t]);
        run_everywhere(&c, "of a part", 5e-7, 0);
        arena_clear(&a);
    }
}

// A sequence in another order is drawn as it would be in its own, wherever its dimension stands.
static void positions_are_the_place_in_the_sequence(void **state)
{
    enum { B = 2, S = 12, E = 37, STACK = 3, L = 5 };
    static const struct {
        const char *einsum[2]; // dropout, normals
        int place;
    } orders[] = {{{"bse,,bs->bse", ",bs->bse"}, 1},
                  {{"bsel,,bs->bsel", ",bs->bsel"}, 1},
                  {{"sbe,,bs->sbe", ",bs->sbe"}, 0},
                  {{"besl,,bs->besl", ",bs->besl"}, 2},
                  {{"cbsel,,bs->cbsel", ",bs->cbsel"}, 2}};
    (void)state;
    for (size_t t = 0; t < 2 * sizeof orders / sizeof *orders; t++) {
        struct arena a = {0};
        struct rig_case c;
        const int normal = (int)(t % 2), step = 1 - normal, place = orders[t / 2].place;
        const char *out = strchr(orders[t / 2].einsum[normal], '>') + 1;
        int64_t ext[26] = {['b' - 'a'] = B,
                           ['s' - 'a'] = S,
                           ['e' - 'a'] = E,
                           ['c' - 'a'] = STACK,
                           ['l' - 'a'] = L};
        rig_case(&c, &a, normal ? OP_NORMAL : OP_DROPOUT, orders[t / 2].einsum[normal], ext);
        struct op_draw *d = &c.attr.draw;
        *d = (struct op_draw){.seed = 3, .stream = 4, .rate = 0.4f, .n = (int)strlen(out)};
        for (int k = 0; k < d->n; k++) {
            d->from[k] = k + 1;
            d->extent[k] = 2 * ext[out[k] - 'a'] + 7;
        }
        d->place = (int8_t)(place + 1);
        if (!normal)
            rig_fill(&c.in[0], 5, 1, 2);
        c.in[step].v[0] = 9;
        for (int i = 0; i < B * S; i++)
            c.in[step + 1].v[i] = (double)(i % S * 7 % 24);
        run_everywhere(&c, out, normal ? 5e-7 : 2e-7, 0);
        arena_clear(&a);
    }
}

// A million of each, on the best instruction set; bounds are five sigmas. The first numbers are
// base/rand.h's, which test_rand holds against Random123.
static void the_share_and_the_moments_are_right(void **state)
{
    enum { N = 1 << 20 };
    struct part p = {1, {0}, {N}, {N}, 0.3f, 17};
    struct arena a = {0};
    struct rig_case c;
    double *out[OP_MAX_OUT], dropped = 0, m[5] = {0};
    (void)state;
    part_case(&c, &a, OP_DROPOUT, &p);
    rig_run(&rigs[0], &c, &a, out);
    for (int i = 0; i < N; i++)
        dropped += out[0][i] == 0;
    assert_true(fabs(dropped / N - 0.3) < 5 * sqrt(0.3 * 0.7 / N));
    part_case(&c, &a, OP_NORMAL, &p);
    rig_run(&rigs[0], &c, &a, out);
    const struct rand_site site = {
        .seed = c.attr.draw.seed, .stream = c.attr.draw.stream, .step = 17};
    for (int i = 0; i < N; i++) {
        double z = out[0][i], want = (double)draw_normal(&site, (uint64_t)i);
        if (!(fabs(z - want) <= 5e-7 * fabs(want)))
            fail_msg("normal %d is %.9g, not %.9g", i, z, want);
        for (int k = 1; k < 5; k++)
            m[k] += pow(z, k) / N;
    }
    // Variances of the estimates: 1/N, 2/N, 15/N, 96/N.
    assert_true(fabs(m[1]) < 5 * sqrt(1.0 / N) && fabs(m[2] - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m[3]) < 5 * sqrt(15.0 / N) && fabs(m[4] - 3) < 5 * sqrt(96.0 / N));
    arena_clear(&a);
}

// ---- attention ---------------------------------------------------------------------------------

static const struct heads {
    int64_t batch, queries, keys, heads, group, d;
    bool shuffled;
    int64_t from[2]; // batch, head
    float rate;
} attentions[] = {
    {1, 1, 1, 1, 1, 2, false, {0, 0}, 0.5f},    {2, 7, 7, 3, 1, 5, false, {0, 0}, 0.1f},
    {2, 65, 65, 4, 2, 16, false, {6, 4}, 0.2f}, {1, 70, 130, 2, 1, 3, true, {1, 2}, 0.5f},
    {3, 20, 33, 4, 4, 8, true, {3, 0}, 0.1f},
};

static void attention_case(struct rig_case *c, struct arena *a, bool grad, struct heads s)
{
    int64_t ext[26] = {['b' - 'a'] = s.batch,           ['d' - 'a'] = s.d,
                       ['g' - 'a'] = s.heads / s.group, ['h' - 'a'] = s.heads,
                       ['s' - 'a'] = s.queries,         ['t' - 'a'] = s.keys};
    rig_case(c, a, grad ? OP_ATTENTION_GRAD : OP_ATTENTION,
             grad ? "bshd,btgd,btgd,bshd,bshd,bhs,bs,bt,->bshd,btgd,btgd"
                  : "bshd,btgd,btgd,bs,bt,->bshd,bhs",
             ext);
    int positions = grad ? 6 : 3;
    set_draw(c, &(struct part){
                    4, {s.from[0], s.from[1]}, {0}, {16, 8, s.queries, 2 * s.keys}, s.rate, 0});
    c->attr.scale = 1 / sqrtf((float)s.d);
    c->attr.group = s.group;
    c->in[positions + 2].v[0] = 21;
    for (int k = 0; k < positions; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, -2, 2);
    double *at_q = c->in[positions].v, *at_k = c->in[positions + 1].v;
    for (int64_t b = 0; b < s.batch; b++) {
        for (int64_t t = 0; t < s.keys; t++)
            at_k[b * s.keys + t] = (double)(s.shuffled ? t * 7 % s.keys : t);
        for (int64_t i = 0; i < s.queries; i++)
            at_q[b * s.queries + i] = at_k[(b + 1) * s.keys - s.queries + i];
    }
    rig_attend(c);
}

static void attention_drops_the_weights_that_the_site_draws(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2 * sizeof attentions / sizeof *attentions; t++) {
        struct arena a = {0};
        struct rig_case c;
        attention_case(&c, &a, t % 2, attentions[t / 2]);
        run_everywhere(&c, t % 2 ? "gradient with dropout" : "with dropout", 3e-5, 3e-5);
        arena_clear(&a);
    }
}

// Queries of zeros weigh alike all keys they see, and values that are ones and zeros show each
// weight on its own: it is there or it is not, as base/rand.h says for its place.
static void a_weight_is_dropped_or_not_by_its_own_number(void **state)
{
    enum { KEYS = 40, HEADS = 4 };
    const struct heads s = {2, KEYS, KEYS, HEADS, 2, KEYS, true, {5, 2}, 0.4f};
    struct arena a = {0};
    struct rig_case c;
    double *out[OP_MAX_OUT];
    (void)state;
    attention_case(&c, &a, false, s);
    rig_fill(&c.in[0], 1, 0, 0);
    for (int64_t i = 0; i < shape_count(&c.in[2].shape); i++)
        c.in[2].v[i] = i / (HEADS / 2 * KEYS) % KEYS == i % KEYS; // [b, t, g, d]: t = d
    const struct op_draw *d = &c.attr.draw;
    const struct rand_site site = {.seed = d->seed, .stream = d->stream, .step = 21};
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &c, &a, out);
        for (int64_t i = 0; i < shape_count(&c.start[0].shape); i++) {
            int64_t key = i % KEYS, h = i / KEYS % HEADS, row = i / KEYS / HEADS, b = row / KEYS;
            uint64_t at_q = (uint64_t)c.in[3].v[row], at_k = (uint64_t)c.in[4].v[b * KEYS + key];
            uint64_t head = (uint64_t)((d->from[0] + b) * d->extent[1] + d->from[1] + h);
            uint64_t index = (head * (uint64_t)d->extent[2] + at_q) * (uint64_t)d->extent[3] + at_k;
            bool kept = at_k <= at_q && rand_uniform(&site, index) >= s.rate;
            if ((out[0][i] != 0) != kept)
                fail_msg("the weight of key %lld of row %lld is %.9g", (long long)key,
                         (long long)row, out[0][i]);
        }
    }
    arena_clear(&a);
}

static void slope_of(struct rig_case *f, int k, const double *cot, const double *grad)
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
        if (!(fabs(slope - grad[i]) <= 5e-5 + 5e-5 * fabs(slope)))
            fail_msg("gradient %d of %lld is %.9g, by differences %.9g", k, (long long)i, grad[i],
                     slope);
    }
    arena_clear(&a);
}

static void gradients_with_dropout_are_slopes(void **state)
{
    const struct heads s = {2, 6, 6, 4, 2, 6, true, {2, 4}, 0.3f};
    struct arena a = {0};
    struct rig_case f, g;
    double *d[OP_MAX_OUT];
    (void)state;
    attention_case(&f, &a, false, s);
    attention_case(&g, &a, true, s);
    for (int r = 0; r < nrigs; r++) {
        rig_run(&rigs[r], &g, &a, d);
        for (int k = 0; k < 3; k++)
            slope_of(&f, k, g.in[3].v, d[k]);
    }
    part_case(&f, &a, OP_DROPOUT, &parts[3]);
    part_case(&g, &a, OP_DROPOUT, &parts[3]); // its own gradient: of a cotangent
    rig_run(&rigs[0], &g, &a, d);
    slope_of(&f, 0, g.in[0].v, d[0]);
    arena_clear(&a);
}

// ---- bf16 --------------------------------------------------------------------------------------

static void to_bf16(struct ref_tensor *t, uint64_t seed)
{
    t->dtype = DT_BF16;
    rig_fill(t, seed, 1, 2);
}

static void bf16_is_dropped_as_f32_is(void **state)
{
    (void)state;
    for (int t = 0; t < PARTS; t++) {
        struct arena a = {0};
        struct rig_case c;
        part_case(&c, &a, OP_DROPOUT, &parts[t]);
        to_bf16(&c.in[0], 6);
        c.start[0].dtype = DT_BF16;
        run_everywhere(&c, "of bf16", 0x1p-8, 0);
        arena_clear(&a);
    }
}

// So many keys that the samples are widened in chunks: the second one's draws are its own.
static void attention_in_turns_draws_for_each_sample(void **state)
{
    const struct heads s = {2, 1, 8192, 4, 1, 64, false, {3, 0}, 0.3f};
    struct arena a = {0};
    struct rig_case c;
    (void)state;
    attention_case(&c, &a, false, s);
    for (int k = 0; k < 3; k++)
        to_bf16(&c.in[k], (uint64_t)k + 9);
    c.start[0].dtype = DT_BF16;
    run_everywhere(&c, "of bf16, in chunks", 0x1p-8, 1e-4);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_drops_what_the_site_draws),
        cmocka_unit_test(normals_are_the_sites_own),
        cmocka_unit_test(positions_are_the_place_in_the_sequence),
        cmocka_unit_test(the_share_and_the_moments_are_right),
        cmocka_unit_test(attention_drops_the_weights_that_the_site_draws),
        cmocka_unit_test(a_weight_is_dropped_or_not_by_its_own_number),
        cmocka_unit_test(gradients_with_dropout_are_slopes),
        cmocka_unit_test(bf16_is_dropped_as_f32_is),
        cmocka_unit_test(attention_in_turns_draws_for_each_sample),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
