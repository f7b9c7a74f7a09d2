// SPDX-License-Identifier: Apache-2.0
// When a loop has to wake up.
#include "common/base/deadline.h"
#include "tests/unit/unit.h"

static void the_earlier_of_two_is_never_never(void **state)
{
    (void)state;
    assert_int_equal(deadline_earlier(5, 7), 5);
    assert_int_equal(deadline_earlier(7, 5), 5);
    assert_int_equal(deadline_earlier(0, 5), 5);
    assert_int_equal(deadline_earlier(5, 0), 5);
    assert_int_equal(deadline_earlier(0, 0), 0);
}

static void poll_waits_for_ever_only_for_never(void **state)
{
    (void)state;
    assert_int_equal(deadline_wait_ms(0, 100 * CLOCK_S), -1);
    assert_int_equal(deadline_wait_ms(100 * CLOCK_S, 100 * CLOCK_S), 0);
    assert_int_equal(deadline_wait_ms(99 * CLOCK_S, 100 * CLOCK_S), 0);
}

static void poll_does_not_wake_before_the_time(void **state)
{
    (void)state;
    assert_int_equal(deadline_wait_ms(CLOCK_S + 1, CLOCK_S), 1);
    assert_int_equal(deadline_wait_ms(CLOCK_S + CLOCK_MS, CLOCK_S), 1);
    assert_int_equal(deadline_wait_ms(CLOCK_S + CLOCK_MS + 1, CLOCK_S), 2);
}

static void a_far_time_fits_into_an_int(void **state)
{
    (void)state;
    assert_int_equal(deadline_wait_ms(INT64_MAX, 1), 3600000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_earlier_of_two_is_never_never),
        cmocka_unit_test(poll_waits_for_ever_only_for_never),
        cmocka_unit_test(poll_does_not_wake_before_the_time),
        cmocka_unit_test(a_far_time_fits_into_an_int),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
