// SPDX-License-Identifier: Apache-2.0
// Where a gang of ranks goes, as numbers.

#include "coordinator/decide/placement.h"
#include "tests/unit/unit.h"

#define N(a) ((int)(sizeof(a) / sizeof *(a)))

static void expect(const struct place_want *w, const struct place_host *h, int n,
                   const struct place_share *want, int nwant)
{
    struct place_share got[16];
    assert_int_equal(placement_find(w, h, n, got), nwant);
    for (int i = 0; i < nwant; i++) {
        assert_int_equal(got[i].host, want[i].host);
        assert_int_equal(got[i].ranks, want[i].ranks);
    }
}
#define EXPECT(w, h, ...)                                             \
    expect((w), (h), N(h), (const struct place_share[]){__VA_ARGS__}, \
           N(((const struct place_share[]){__VA_ARGS__})))

static void test_one_host_is_taken_that_it_leaves_the_least_on(void **state)
{
    (void)state;
    const struct place_host h[] = {
        {"r", "a", "", true, 8}, {"r", "b", "", true, 3}, {"r", "c", "", true, 4}};
    const struct place_want w = {.ranks = 3, .naxes = 1, .axes = {3}};
    EXPECT(&w, h, {1, 3});
}

static void test_the_fewest_hosts_are_taken_in_rack_order(void **state)
{
    (void)state;
    const struct place_host h[] = {{"r2", "a", "", true, 4},
                                   {"r1", "b", "", true, 1},
                                   {"r1", "c", "", true, 2},
                                   {"r0", "d", "", true, 4}};
    const struct place_want w = {.ranks = 8, .naxes = 1, .axes = {8}};
    EXPECT(&w, h, {3, 4}, {0, 4});
}

static void test_one_rack_is_better_than_two(void **state)
{
    (void)state;
    const struct place_host h[] = {{"r1", "a", "", true, 4},
                                   {"r2", "b", "", true, 3},
                                   {"r2", "c", "", true, 3},
                                   {"r3", "d", "", true, 4}};
    const struct place_want w = {.ranks = 6, .naxes = 1, .axes = {6}};
    EXPECT(&w, h, {1, 3}, {2, 3});
}

static void test_inner_axes_stay_inside_a_host(void **state)
{
    (void)state;
    const struct place_host h[] = {
        {"r", "a", "", true, 3}, {"r", "b", "", true, 5}, {"r", "c", "", true, 2}};
    const struct place_want w = {.ranks = 8, .naxes = 2, .axes = {4, 2}}; // {dp: 4, tp: 2}
    EXPECT(&w, h, {0, 2}, {1, 4}, {2, 2});
}

static void test_where_inner_axes_fit_no_host_the_outer_of_them_is_cut(void **state)
{
    (void)state;
    const struct place_host h[] = {{"r", "a", "", true, 2}, {"r", "b", "", true, 2}};
    const struct place_want w = {.ranks = 4, .naxes = 3, .axes = {1, 2, 2}};
    EXPECT(&w, h, {0, 2}, {1, 2});
}

static void test_all_or_nothing(void **state)
{
    (void)state;
    const struct place_host h[] = {{"r", "a", "", true, 3}, {"r", "b", "", true, 3}};
    const struct place_want w = {.ranks = 7, .naxes = 1, .axes = {7}};
    expect(&w, h, N(h), NULL, 0);
}

static void test_at_most_so_many_hosts(void **state)
{
    (void)state;
    const struct place_host h[] = {
        {"r", "a", "", true, 2}, {"r", "b", "", true, 1}, {"r", "c", "", true, 2}};
    struct place_want w = {.ranks = 4, .max_hosts = 1, .naxes = 1, .axes = {4}};
    expect(&w, h, N(h), NULL, 0);
    w.max_hosts = 2;
    EXPECT(&w, h, {0, 2}, {2, 2});
    w.ranks = w.axes[0] = 5;
    expect(&w, h, N(h), NULL, 0);
    w.max_hosts = 0;
    EXPECT(&w, h, {0, 2}, {1, 1}, {2, 2});
}

static void test_hosts_without_an_address_are_joined_only_on_one_machine(void **state)
{
    (void)state;
    const struct place_host h[] = {{"r", "a", "m1", false, 2},
                                   {"r", "b", "m2", false, 2},
                                   {"r", "c", "m2", false, 2},
                                   {"r", "d", "", false, 2}};
    struct place_want w = {.ranks = 4, .naxes = 1, .axes = {4}};
    EXPECT(&w, h, {1, 2}, {2, 2});
    w.ranks = w.axes[0] = 6;
    expect(&w, h, N(h), NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host_is_taken_that_it_leaves_the_least_on),
        cmocka_unit_test(test_the_fewest_hosts_are_taken_in_rack_order),
        cmocka_unit_test(test_one_rack_is_better_than_two),
        cmocka_unit_test(test_inner_axes_stay_inside_a_host),
        cmocka_unit_test(test_where_inner_axes_fit_no_host_the_outer_of_them_is_cut),
        cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_at_most_so_many_hosts),
        cmocka_unit_test(test_hosts_without_an_address_are_joined_only_on_one_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
