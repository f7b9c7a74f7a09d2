// SPDX-License-Identifier: Apache-2.0
// Who works together: the ranks of a group, of a stage group and on both sides of a boundary, as
// written down by hand for {dp: 2, pp: 3, tp: 2}, whose rank is (dp·3 + pp)·2 + tp.
#include <string.h>

#include "common/compile/program/group.h"
#include "tests/unit/unit.h"

enum { DP, PP, TP };
static const struct mesh mesh = {.n = 3, .axis = {{"dp", 2}, {"pp", 3}, {"tp", 2}}};

static void expect(struct group c, int rank, int n, const int *ranks, const char *name)
{
    int got[12];
    struct buf text = {0};
    assert_int_equal(group_size(&c, &mesh), n);
    assert_int_equal(group_ranks(&c, &mesh, rank, got), n);
    assert_memory_equal(got, ranks, sizeof *ranks * (size_t)n);
    group_print(&c, &mesh, &text);
    assert_string_equal(buf_str(&text), name);
    buf_clear(&text);
}

static struct instr message(enum phase phase, enum instr_kind kind, int peer)
{
    return (struct instr){.kind = kind, .phase = phase, .axis = PP, .peer = peer};
}

static void a_group_is_in_the_order_of_its_axes(void **state)
{
    struct instr i = {.kind = INSTR_START, .group = {2, {TP, DP}}};
    (void)state;
    expect(group_of(&i, 0), 9, 4, (int[]){2, 8, 3, 9}, "[tp, dp]");
}

static void a_stage_group_shares_all_other_coordinates(void **state)
{
    struct instr i = {.kind = INSTR_START, .axis = PP, .stages = 5}; // stages 0 and 2
    (void)state;
    expect(group_of(&i, 0), 1, 2, (int[]){1, 5}, "pp 0,2");
    expect(group_of(&i, 0), 10, 2, (int[]){6, 10}, "pp 0,2");
}

static void both_sides_of_a_boundary_see_one_group_each_way(void **state)
{
    struct instr send_up = message(PHASE_FORWARD, INSTR_SEND, 2);
    struct instr get_up = message(PHASE_FORWARD, INSTR_RECV, 1);
    struct instr send_down = message(PHASE_BACKWARD, INSTR_SEND, 1);
    struct instr get_down = message(PHASE_BACKWARD, INSTR_RECV, 2);
    struct group up = group_of(&send_up, 1), down = group_of(&send_down, 2), other;
    (void)state;
    expect(up, 8, 2, (int[]){8, 10}, "pp 1>2");
    expect(down, 10, 2, (int[]){8, 10}, "pp 2>1");
    assert_false(group_equal(&up, &down));
    other = group_of(&get_up, 2);
    assert_true(group_equal(&up, &other));
    other = group_of(&get_down, 1);
    assert_true(group_equal(&down, &other));
    struct instr lower = message(PHASE_FORWARD, INSTR_SEND, 1);
    other = group_of(&lower, 0);
    assert_false(group_equal(&up, &other));
    struct instr sum = {
        .kind = INSTR_START, .axis = PP, .stages = 6}; // the same two ranks in another business
    other = group_of(&sum, 1);
    assert_false(group_equal(&up, &other));
}

// Of two stages each follows the other: forwards go down where a chunk ends, backwards up.
static void where_the_ring_of_stages_closes_is_a_boundary_of_its_own(void **state)
{
    struct instr end = message(PHASE_FORWARD, INSTR_SEND, 0);
    struct instr back = message(PHASE_BACKWARD, INSTR_SEND, 1);
    struct instr up = message(PHASE_FORWARD, INSTR_SEND, 1);
    struct group closing = group_of(&end, 1), opening = group_of(&back, 0),
                 plain = group_of(&up, 0);
    (void)state;
    expect(closing, 2, 2, (int[]){0, 2}, "pp 1>0 closing");
    expect(opening, 0, 2, (int[]){0, 2}, "pp 0>1 closing");
    expect(plain, 0, 2, (int[]){0, 2}, "pp 0>1");
    assert_false(group_equal(&opening, &plain));
}

static void more_groups_than_a_world_has_communicators_are_refused(void **state)
{
    struct instr i[COMMUNICATORS + 2] = {{.kind = INSTR_START, .stages = 1}}; // twice the first
    struct program p = {.instrs = i, .ninstrs = COMMUNICATORS + 1}, *all[] = {&p};
    int count;
    struct err e = {0};
    (void)state;
    for (int k = 1; k < COMMUNICATORS + 2; k++)
        i[k] = (struct instr){.kind = INSTR_START, .stages = (uint64_t)k};
    assert_int_equal(group_count(all, 1, &count, &e), 0);
    assert_int_equal(count, COMMUNICATORS);
    p.ninstrs++;
    assert_int_equal(group_count(all, 1, &count, &e), ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_in_the_order_of_its_axes),
        cmocka_unit_test(a_stage_group_shares_all_other_coordinates),
        cmocka_unit_test(both_sides_of_a_boundary_see_one_group_each_way),
        cmocka_unit_test(where_the_ring_of_stages_closes_is_a_boundary_of_its_own),
        cmocka_unit_test(more_groups_than_a_world_has_communicators_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
