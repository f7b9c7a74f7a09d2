// SPDX-License-Identifier: Apache-2.0
// Who works together: the ranks of a group, of a stage group and on both sides of a boundary, as
// written down by hand for {dp: 2, pp: 3, tp: 2}, whose rank is (dp·3 + pp)·2 + tp.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/rank/exec/crew.h"

enum { DP, PP, TP };
static const struct mesh mesh = {.n = 3, .axis = {{"dp", 2}, {"pp", 3}, {"tp", 2}}};

static void expect(struct crew c, int rank, int n, const int *ranks, const char *name)
{
    int got[12];
    struct buf text = {0};
    assert_int_equal(crew_size(&c, &mesh), n);
    assert_int_equal(crew_ranks(&c, &mesh, rank, got), n);
    assert_memory_equal(got, ranks, sizeof *ranks * (size_t)n);
    crew_print(&c, &mesh, &text);
    assert_string_equal(buf_str(&text), name);
    buf_clear(&text);
}

static struct instr message(enum instr_kind kind, int peer)
{
    return (struct instr){.kind = kind, .axis = PP, .peer = peer};
}

static void a_group_is_in_the_order_of_its_axes(void **state)
{
    struct dim_cut cut = {2, {TP, DP}};
    (void)state;
    expect(crew_of_axes(&cut), 9, 4, (int[]){2, 8, 3, 9}, "[tp, dp]");
}

static void a_stage_group_shares_all_other_coordinates(void **state)
{
    struct instr i = {.axis = PP, .stages = 5}; // stages 0 and 2
    (void)state;
    expect(crew_of_stages(&i), 1, 2, (int[]){1, 5}, "pp 0,2");
    expect(crew_of_stages(&i), 10, 2, (int[]){6, 10}, "pp 0,2");
}

static void both_sides_of_a_boundary_see_one_crew_each_way(void **state)
{
    struct instr send_up = message(INSTR_SEND, 2), get_up = message(INSTR_RECV, 1);
    struct instr send_down = message(INSTR_SEND, 1), get_down = message(INSTR_RECV, 2);
    struct crew up = crew_of_message(&send_up, 1), down = crew_of_message(&send_down, 2), other;
    (void)state;
    expect(up, 8, 2, (int[]){8, 10}, "pp 1>2");
    expect(down, 10, 2, (int[]){8, 10}, "pp 2>1");
    assert_false(crew_equal(&up, &down));
    other = crew_of_message(&get_up, 2);
    assert_true(crew_equal(&up, &other));
    other = crew_of_message(&get_down, 1);
    assert_true(crew_equal(&down, &other));
    struct instr lower = message(INSTR_SEND, 1);
    other = crew_of_message(&lower, 0);
    assert_false(crew_equal(&up, &other));
    struct instr sum = {.axis = PP, .stages = 6}; // the same two ranks in another business
    other = crew_of_stages(&sum);
    assert_false(crew_equal(&up, &other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_in_the_order_of_its_axes),
        cmocka_unit_test(a_stage_group_shares_all_other_coordinates),
        cmocka_unit_test(both_sides_of_a_boundary_see_one_crew_each_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
