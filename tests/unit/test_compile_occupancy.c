// SPDX-License-Identifier: Apache-2.0
// Where a buffer has room: held against a search that knows nothing of trees, which looks at every
// buffer placed so far.
#include "tests/unit/unit.h"

#include "common/base/rand.h"
#include "common/compile/program/occupancy.h"

enum { BUFFERS = 300, UNIT = 64, BASE = 5 * UNIT };

static struct rand_site site;
static uint64_t draws;

static int draw_below(int n)
{
    return (int)(rand_word(&site, draws++) % (uint32_t)n);
}

// Lifetimes as programs have them: many short, some over most of the step; few sizes, some of none.
static void make_buffers(struct buffer *b, int instrs)
{
    for (int i = 0; i < BUFFERS; i++) {
        int life = draw_below(5) ? draw_below(8) : draw_below(instrs);
        b[i] =
            (struct buffer){.first = draw_below(instrs), .bytes = UNIT * (unsigned)draw_below(9)};
        b[i].last = b[i].first + life < instrs ? b[i].first + life : instrs - 1;
    }
}

static bool is_free(const struct buffer *placed, int n, const struct buffer *b, uint64_t offset)
{
    for (int i = 0; i < n; i++) {
        bool together = placed[i].first <= b->last && b->first <= placed[i].last;
        if (together && placed[i].offset < offset + b->bytes &&
            offset < placed[i].offset + placed[i].bytes)
            return false;
    }
    return true;
}

static uint64_t search_lowest(const struct buffer *placed, int n, const struct buffer *b)
{
    uint64_t offset = BASE;
    while (!is_free(placed, n, b, offset))
        offset += UNIT;
    return offset;
}

static void place_all(int instrs)
{
    struct arena a = {0};
    struct buffer b[BUFFERS], *all[BUFFERS];
    struct occupancy o;
    make_buffers(b, instrs);
    for (int i = 0; i < BUFFERS; i++)
        all[i] = &b[i];
    occupancy_init(&o, all, BUFFERS, &a);
    for (int i = 0; i < BUFFERS; i++) {
        uint64_t lowest = search_lowest(b, i, &b[i]);
        b[i].offset = occupancy_find(&o, &b[i], BASE, b[i].bytes);
        assert_int_equal(b[i].offset, lowest);
        occupancy_add(&o, &b[i], b[i].bytes);
    }
    arena_clear(&a);
}

static void every_buffer_gets_the_lowest_room_there_is(void **state)
{
    static const int instrs[] = {1, 2, 3, 17, 64, 65, 1000, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof instrs / sizeof *instrs; i++)
        for (site.seed = 0; site.seed < 5; site.seed++)
            place_all(instrs[i]);
}

static void a_region_without_buffers_is_free(void **state)
{
    struct arena a = {0};
    struct occupancy o;
    struct buffer b = {.first = 0, .last = 3};
    (void)state;
    occupancy_init(&o, &(struct buffer *){&b}, 1, &a);
    assert_int_equal(occupancy_find(&o, &b, BASE, UNIT), BASE);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_buffer_gets_the_lowest_room_there_is),
        cmocka_unit_test(a_region_without_buffers_is_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
