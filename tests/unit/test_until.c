// SPDX-License-Identifier: Apache-2.0
// When a training is to stop, and what squeue says is left.
#include <stdlib.h>
#include <time.h>

#include "common/job/until.h"
#include "tests/unit/unit.h"

enum { MINUTE = 60 * 1000 };

static int64_t at(int year, int month, int day, int hour, int minute)
{
    struct tm t = {.tm_year = year - 1900,
                   .tm_mon = month - 1,
                   .tm_mday = day,
                   .tm_hour = hour,
                   .tm_min = minute,
                   .tm_isdst = -1};
    return (int64_t)mktime(&t) * 1000;
}

static void durations_and_times_of_the_clock(void **state)
{
    (void)state;
    static const char *const good[] = {"2h", "90m", "1.5h", "45s", "23:40", "00:00"},
                             *const bad[] = {"",     "2",        "24:00", "23:60",
                                             "7:30", "23:40:00", "0h",    "-2h",
                                             "soon", "23.40",    "1:",    "999999999999h"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!until_ok(good[i]))
            fail_msg("%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (until_ok(bad[i]))
            fail_msg("%s", bad[i]);
}

static void the_next_time_that_the_clock_shows_it(void **state)
{
    (void)state;
    assert_int_equal(setenv("TZ", "Europe/Berlin", 1), 0);
    tzset();
    int64_t now = at(2026, 11, 28, 22, 0);
    assert_int_equal(until_end_ms("2h", now) - now, 120 * MINUTE);
    assert_int_equal(until_end_ms("23:40", now), at(2026, 11, 28, 23, 40));
    assert_int_equal(until_end_ms("22:00", now), at(2026, 11, 29, 22, 0));
    assert_int_equal(until_end_ms("06:00", now), at(2026, 11, 29, 6, 0));
    now = at(2026, 12, 31, 23, 59);
    assert_int_equal(until_end_ms("00:01", now), now + 2LL * MINUTE);
    // Over the night in which the clock is put back.
    now = at(2026, 10, 24, 22, 0);
    assert_int_equal(until_end_ms("06:00", now) - now, 9LL * 60 * MINUTE);
}

static void what_squeue_says(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t seconds;
    } all[] = {{"0:53", 53},      {"53:07\n", 3187},   {"2:03:04", 7384}, {"1-02:03:04", 93784},
               {"UNLIMITED", -1}, {"NOT_SET", -1},     {"INVALID", -1},   {"", -1},
               {"53", -1},        {"1:2:3:4", -1},     {"1-", -1},        {":", -1},
               {"1-2-3:4", -1},   {"99999999:00", -1}, {"0:00", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (until_read_time_left(all[i].text) != all[i].seconds)
            fail_msg("%s: %lld", all[i].text, (long long)until_read_time_left(all[i].text));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_and_times_of_the_clock),
        cmocka_unit_test(the_next_time_that_the_clock_shows_it),
        cmocka_unit_test(what_squeue_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
