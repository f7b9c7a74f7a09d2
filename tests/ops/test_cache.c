// SPDX-License-Identifier: Apache-2.0
// Caches of keys: rows that are appended go to their places in a ring, and no others do; each place
// has the position that was appended there last.
#include "tests/ops/everywhere.h"

enum { BATCH = 4, HEADS = 3 };

struct rows {
    int64_t places, rows, width;
    enum dtype dtype;
    bool in_place;
};

// Of each sample so many rows from a position on: all, some, none, and those at which a ring runs over.
static void place_rows(struct rig_case *c, const struct rows *r)
{
    const int64_t starts[BATCH] = {0, r->places - 1, 2 * r->places + 1, 5};
    const int64_t counts[BATCH] = {r->rows, r->rows, 0, (r->rows + 1) / 2};
    for (int64_t b = 0; b < BATCH; b++) {
        c->in[3].v[b] = (double)(starts[b] + counts[b] - 1);
        for (int64_t i = 0; i < r->rows; i++)
            c->in[2].v[b * r->rows + i] = (double)(starts[b] + i);
    }
}

static void rows_go_to_their_places_up_to_the_last(void **state)
{
    static const struct rows cases[] = {
        {1, 1, 1, DT_F32, false},  {8, 3, 4, DT_F32, true},    {8, 8, 4, DT_F32, false},
        {33, 7, 5, DT_BF16, true}, {33, 7, 3, DT_BF16, false}, {700, 64, 64, DT_F32, true},
        {9, 2, 1, DT_BF16, true},
    };
    (void)state;
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        const struct rows *r = &cases[t];
        struct arena a = {0};
        struct rig_case c;
        const int64_t ext[26] = {
            [1] = BATCH, [3] = r->width, [7] = HEADS, [17] = r->places, [18] = r->rows};
        rig_case(&c, &a, OP_APPEND, "brhd,bshd,bs,b->brhd", ext);
        c.in[0].dtype = c.in[1].dtype = c.start[0].dtype = r->dtype;
        rig_fill(&c.in[0], 1, -1, 1);
        rig_fill(&c.in[1], 2, 1, 2);
        place_rows(&c, r);
        c.in_place = r->in_place;
        run_everywhere(&c, "of a cache", 0, 0);
        arena_clear(&a);
    }
}

static void a_place_has_the_newest_position_that_is_its_own(void **state)
{
    (void)state;
    for (int64_t at = 0; at < 8; at++) {
        const int64_t places = 1 + at / 2 * 13;
        struct arena a = {0};
        struct rig_case c;
        const int64_t ext[26] = {[1] = 90, [17] = places};
        rig_case(&c, &a, OP_RING, "b->br", ext);
        c.attr.limit = at % 2 ? 1 << 30 : 0;
        for (int64_t b = 0; b < 90; b++)
            c.in[0].v[b] = (double)(b - 1); // -1: nothing yet
        run_everywhere(&c, "of positions", 0, 0);
        arena_clear(&a);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    struct arena a = {0};
    struct rig_case c;
    const int64_t ext[26] = {[1] = 2, [3] = 4, [17] = 3, [18] = 4};
    (void)state;
    rig_case(&c, &a, OP_APPEND, "brd,bsd,bs,b->brd", ext);
    for (int r = 0; r < nrigs; r++) {
        struct op_call call = {.op = OP_APPEND, .attr = &c.attr, .nin = 4, .nout = 1};
        struct err e = {0};
        for (int k = 0; k < 4; k++)
            call.in[k] = (struct tensor){.dtype = c.in[k].dtype, .shape = c.in[k].shape};
        call.out[0] = call.in[0];
        assert_int_equal(rigs[r].backend->op.run[OP_APPEND](rigs[r].q, &call, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "disagree about an extent"));
    }
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_to_their_places_up_to_the_last),
        cmocka_unit_test(a_place_has_the_newest_position_that_is_its_own),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
