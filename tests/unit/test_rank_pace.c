// SPDX-License-Identifier: Apache-2.0
// The pace that people are shown: steps over their time, of late.
#include <math.h>

#include "tests/unit/unit.h"
#include "worker/rank/train/pace.h"

// Every other step takes four times as long: the mean is of times, and so no mean of the two speeds.
static void uneven_steps_have_the_mean_of_their_times(void **state)
{
    (void)state;
    struct pace p = {0};
    double mean = 0, least = INFINITY, most = 0;
    for (int i = 0; i < 4000; i++) {
        mean = pace_add(&p, i % 2 ? 4 : 1);
        least = i > 1000 && mean < least ? mean : least;
        most = i > 1000 && mean > most ? mean : most;
    }
    assert_true(fabs(mean - 2.5) < 0.1);
    assert_true(most / least < 1.1); // where single steps differ by four
}

static void the_first_step_is_its_own_mean_and_soon_forgotten(void **state)
{
    (void)state;
    struct pace p = {0};
    assert_true(pace_add(&p, 5000) == 5000);
    double mean = 0;
    for (int i = 0; i < 2000; i++)
        mean = pace_add(&p, 100); // 200 s, twenty times what counts
    assert_true(fabs(mean - 100) < 0.01);
}

// A step of a minute: some of them must count, however long that is.
static void long_steps_count_sixteen_at_least(void **state)
{
    (void)state;
    struct pace p = {0};
    for (int i = 0; i < 200; i++)
        (void)pace_add(&p, 60000);
    double mean = pace_add(&p, 120000);
    assert_true(mean > 60000 * (1 + 0.9 / 17) && mean < 60000 * (1 + 1.1 / 15));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_steps_have_the_mean_of_their_times),
        cmocka_unit_test(the_first_step_is_its_own_mean_and_soon_forgotten),
        cmocka_unit_test(long_steps_count_sixteen_at_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
