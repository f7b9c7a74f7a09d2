// SPDX-License-Identifier: Apache-2.0
// The log: one line an event with its context, never two, never cut without its end. And the clock
// that stamps it.
#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/stderr_to.h"
#include "tests/unit/unit.h"

static int fds[2], own;

static int start(void **state)
{
    (void)state;
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC))
        return -1;
    own = lead_stderr(fds[1]);
    log_context(NULL, -1);
    log_step(-1);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    lead_back(own);
    close(fds[1]);
    return close(fds[0]);
}

static const char *logged(void)
{
    static char text[8192];
    ssize_t n = read(fds[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void a_line_is_stamped_in_utc_with_its_level_and_subsystem(void **state)
{
    (void)state;
    regex_t re;
    assert_int_equal(regcomp(&re,
                             "^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
                             "[.][0-9]{3}Z warn ckpt saved 7 of 8\n$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    log_warn("ckpt", "saved %d of %d", 7, 8);
    assert_int_equal(regexec(&re, logged(), 0, NULL, 0), 0);
    regfree(&re);
}

static void the_context_stands_on_every_line(void **state)
{
    (void)state;
    log_context("job-a", 3);
    log_step(12);
    log_info("rank", "text");
    assert_non_null(strstr(logged(), "Z info rank job=job-a rank=3 step=12 text\n"));
    log_context(NULL, 0);
    log_step(0);
    log_error("rank", "text");
    assert_non_null(strstr(logged(), "Z error rank rank=0 step=0 text\n"));
}

static void control_characters_cannot_forge_a_second_line(void **state)
{
    (void)state;
    log_info("a", "one\ntwo\r\t\x1b[31mthree");
    const char *text = logged();
    assert_non_null(strstr(text, "one two   [31mthree\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void an_overlong_line_is_cut_and_still_ends(void **state)
{
    (void)state;
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    log_info("a", "%s", longer);
    const char *text = logged();
    size_t n = strlen(text);
    assert_true(n > 1000 && n < 4096);
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
}

static void errno_survives_a_line(void **state)
{
    (void)state;
    close(STDERR_FILENO);
    errno = ENOENT;
    log_info("a", "nobody reads this");
    assert_int_equal(errno, ENOENT);
}

static void monotonic_time_passes_at_least_as_long_as_a_sleep(void **state)
{
    (void)state;
    int64_t before = clock_mono_ns();
    clock_sleep_ms(3);
    assert_true(clock_mono_ns() - before >= 3 * CLOCK_MS);
    assert_true(clock_wall_ms() > 1700000000000); // after 2023: milliseconds, not seconds
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        CASE(a_line_is_stamped_in_utc_with_its_level_and_subsystem),
        CASE(the_context_stands_on_every_line),
        CASE(control_characters_cannot_forge_a_second_line),
        CASE(an_overlong_line_is_cut_and_still_ends),
        CASE(errno_survives_a_line),
        CASE(monotonic_time_passes_at_least_as_long_as_a_sleep),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
