// SPDX-License-Identifier: Apache-2.0
// A child's end is waited for, but not for ever.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"

static void a_child_that_ends_says_how(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    if (!pid)
        _exit(7);
    assert_true(child_end(pid, 60 * CLOCK_S, &status));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void a_child_that_never_ends_is_killed(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    while (!pid)
        pause();
    assert_true(child_end(pid, CLOCK_MS, &status));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_that_ends_says_how),
        cmocka_unit_test(a_child_that_never_ends_is_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
