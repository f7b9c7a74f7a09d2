// SPDX-License-Identifier: Apache-2.0
// Dealing: every byte exactly once, level loads, the same answer for everybody.
#include "tests/unit/ckpt_fixture.h"

struct model {
    int nparts, nranks;
    struct deal_part parts[64];
    int ranks[64][16];
    char names[64][16];
};

static struct deal must_deal(struct arena *a, const struct model *m)
{
    struct deal d;
    struct err e = {0};
    assert_int_equal(deal_make(a, m->parts, m->nparts, m->nranks, &d, &e), 0);
    return d;
}

static void add(struct model *m, struct shape global, struct box box, int first, int stride, int n)
{
    int i = m->nparts++;
    snprintf(m->names[i], sizeof m->names[i], "t%d", i);
    for (int k = 0; k < n; k++)
        m->ranks[i][k] = first + k * stride;
    m->parts[i] = (struct deal_part){m->names[i], DT_F32, global, box, n, m->ranks[i], {0}};
}

static void add_replicated(struct model *m, int64_t rows, int64_t cols)
{
    struct shape s = {2, {rows, cols}};
    add(m, s, (struct box){.shape = s}, 0, 1, m->nranks);
}

// Bytes of each part that the deal covers; slices lie inside their part, do not overlap, go only to
// ranks that hold the part, and `at` is where the rows lie in its memory.
static void check_cover(const struct model *m, const struct deal *d)
{
    uint64_t covered[64] = {0};
    for (int r = 0; r < d->nranks; r++) {
        uint64_t sum = 0;
        for (int i = 0; i < d->rank[r].n; i++) {
            const struct deal_slice *s = &d->rank[r].slices[i];
            const struct deal_part *p = &m->parts[s->part];
            bool holds = false;
            for (int k = 0; k < p->nranks; k++)
                holds |= p->ranks[k] == r;
            assert_true(holds);
            assert_true(i == 0 || s->part > d->rank[r].slices[i - 1].part);
            assert_int_equal(s->bytes, box_bytes(&s->box, p->dtype));
            uint64_t row =
                p->box.shape.n ? box_bytes(&p->box, p->dtype) / (uint64_t)p->box.shape.dim[0] : 0;
            uint64_t rows = p->box.shape.n ? (uint64_t)(s->box.start[0] - p->box.start[0]) : 0;
            assert_int_equal(s->at, row * rows);
            for (int k = 0; k < s->box.shape.n && s->bytes; k++) {
                int64_t from = s->box.start[k], end = from + s->box.shape.dim[k];
                assert_true(from >= p->box.start[k]);
                assert_true(end <= p->box.start[k] + p->box.shape.dim[k]);
            }
            for (int q = 0; q < r; q++)
                for (int k = 0; k < d->rank[q].n; k++)
                    if (d->rank[q].slices[k].part == s->part)
                        assert_false(box_overlap(&d->rank[q].slices[k].box, &s->box));
            covered[s->part] += s->bytes;
            sum += s->bytes;
        }
        assert_int_equal(sum, d->rank[r].bytes);
    }
    for (int i = 0; i < m->nparts; i++)
        assert_int_equal(covered[i], box_bytes(&m->parts[i].box, m->parts[i].dtype));
}

static void random_models_are_covered_exactly(void **state)
{
    (void)state;
    srand(3);
    for (int round = 0; round < 300; round++) {
        struct arena a;
        struct model m = {.nranks = 1 + rand() % 8};
        arena_init(&a);
        for (int i = rand() % 12; i >= 0; i--)
            add_replicated(&m, 1 + rand() % 300, 1 + rand() % 300);
        if (m.nranks % 2 == 0)
            for (int half = 0; half < 2; half++) // cut over an axis of two, replicated on the rest
                add(&m, (struct shape){2, {64, 128}}, (struct box){{0, half * 64}, {2, {64, 64}}},
                    half, 2, m.nranks / 2);
        struct deal d = must_deal(&a, &m);
        check_cover(&m, &d);
        arena_clear(&a);
    }
}

static void replicas_write_equally_much(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    for (int nranks = 1; nranks <= 8; nranks++) {
        struct model m = {.nranks = nranks};
        add_replicated(&m, 784, 256); // an MLP's parameters and Adam's two moments
        add_replicated(&m, 1, 256);
        add_replicated(&m, 256, 10);
        for (int i = 0; i < 2; i++)
            add_replicated(&m, 784, 256);
        struct deal d = must_deal(&a, &m);
        uint64_t least = UINT64_MAX, most = 0;
        for (int r = 0; r < nranks; r++) {
            least = d.rank[r].bytes < least ? d.rank[r].bytes : least;
            most = d.rank[r].bytes > most ? d.rank[r].bytes : most;
        }
        assert_true(most - least <= 2 * 256 * sizeof(float)); // within a row or two
    }
    arena_clear(&a);
}

static void a_part_with_one_holder_stays_there_and_others_even_it_out(void **state)
{
    (void)state;
    struct arena a;
    struct model m = {.nranks = 2};
    arena_init(&a);
    add(&m, (struct shape){2, {100, 1000}}, (struct box){.shape = {2, {100, 1000}}}, 0, 1, 1);
    add_replicated(&m, 300, 1000);
    struct deal d = must_deal(&a, &m);
    check_cover(&m, &d);
    assert_int_equal(d.rank[0].bytes, 200 * 4000);
    assert_int_equal(d.rank[1].bytes, 200 * 4000);
    arena_clear(&a);
}

static void everybody_deals_the_same(void **state)
{
    (void)state;
    struct arena a;
    struct deal d[2];
    struct err e = {0};
    arena_init(&a);
    for (int i = 0; i < 2; i++)
        assert_int_equal(deal_make(&a, fx_parts, FX_PARTS, FX_RANKS, &d[i], &e), 0);
    for (int r = 0; r < FX_RANKS; r++) {
        assert_int_equal(d[0].rank[r].n, d[1].rank[r].n);
        assert_memory_equal(d[0].rank[r].slices, d[1].rank[r].slices,
                            sizeof(struct deal_slice) * (size_t)d[0].rank[r].n);
    }
    arena_clear(&a);
}

static void parts_that_contradict_are_refused(void **state)
{
    (void)state;
    static const int one[] = {0}, other[] = {1}, none[] = {5}, backwards[] = {1, 0};
    const struct shape g = {1, {10}};
    const struct deal_part bad[][2] = {
        {{"w", DT_F32, g, {{0}, {1, {6}}}, 1, one, {0}},
         {"w", DT_F32, g, {{5}, {1, {5}}}, 1, other, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"w", DT_U8, g, {{5}, {1, {5}}}, 1, other, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"w", DT_F32, g, {{5}, {1, {5}}}, 1, one, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"w", DT_F32, g, {{5}, {1, {6}}}, 1, other, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"v", DT_F32, g, {{0}, {1, {5}}}, 1, none, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"v", DT_F32, g, {{0}, {1, {5}}}, 2, backwards, {0}}},
        {{"w", DT_F32, g, {{0}, {1, {5}}}, 1, one, {0}},
         {"v", DT_F32, g, {{0}, {1, {5}}}, 0, one, {0}}},
    };
    struct arena a;
    arena_init(&a);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct deal d;
        struct err e = {0};
        assert_int_equal(deal_make(&a, bad[i], 2, 2, &d, &e), ERR_INVALID);
        assert_non_null(strstr(e.text, bad[i][1].name));
    }
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_are_covered_exactly),
        cmocka_unit_test(replicas_write_equally_much),
        cmocka_unit_test(a_part_with_one_holder_stays_there_and_others_even_it_out),
        cmocka_unit_test(everybody_deals_the_same),
        cmocka_unit_test(parts_that_contradict_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
