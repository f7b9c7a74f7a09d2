// SPDX-License-Identifier: Apache-2.0
// A program's table of flags: what is read, and what is said of what is wrong.
#include "common/base/flag.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/unit/unit.h"

struct flags {
    const char *text, *names[2];
    int number, nnames;
    int64_t time_ns, seconds_ns;
    bool on;
};
#define AT(member) offsetof(struct flags, member)
static const struct flag_row rows[] = {
    {"text", FLAG_TEXT, AT(text), 0, 0, 0},
    {"number", FLAG_NUMBER, AT(number), 1, 20, 0},
    {"time", FLAG_DURATION, AT(time_ns), 100, 0, 0},
    {"seconds", FLAG_SECONDS, AT(seconds_ns), 1000, 0, 0},
    {"on", FLAG_SWITCH, AT(on), 0, 0, 0},
    {"s", FLAG_LIST, AT(names), 0, 2, AT(nnames)},
};
enum { ROWS = sizeof rows / sizeof *rows, ARGS_MAX = 16 };

// Reads words that blanks part; the struct keeps pointers into `line`.
static int read_line(struct flags *f, char *line, struct err *e)
{
    char program[] = "program", *argv[ARGS_MAX] = {program}, *save;
    int argc = 1;
    *f = (struct flags){.number = -1};
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    return flags_read_all(rows, ROWS, argc, argv, f, e);
}

static void each_kind_of_flag_is_read_into_its_member(void **state)
{
    char line[] = "--text words --number=17 --time 1.5s --on -s a -s b";
    struct flags f;
    struct err e = {0};
    (void)state;
    assert_int_equal(read_line(&f, line, &e), 0);
    assert_string_equal(f.text, "words");
    assert_int_equal(f.number, 17);
    assert_true(f.time_ns == 1500 * CLOCK_MS && f.on);
    assert_int_equal(f.nnames, 2);
    assert_string_equal(f.names[0], "a");
    assert_string_equal(f.names[1], "b");
}

static void a_time_that_was_in_seconds_may_lack_its_unit(void **state)
{
    static const struct {
        const char *text;
        int64_t ns; // 0: refused
    } cases[] = {{"3600", 3600 * CLOCK_S},
                 {"90s", 90 * CLOCK_S},
                 {"24h", 24 * 3600 * CLOCK_S},
                 {"0", 0},
                 {"1.5", 0},
                 {"-5", 0},
                 {"1d", 0},
                 {"00000000000000000000000000000001", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[80];
        struct flags f;
        struct err e = {0};
        snprintf(line, sizeof line, "--seconds %s", cases[i].text);
        assert_int_equal(read_line(&f, line, &e), cases[i].ns ? 0 : ERR_INVALID);
        assert_true(f.seconds_ns == cases[i].ns);
    }
    char line[] = "--time 3600"; // others never had it
    struct flags f;
    struct err e = {0};
    assert_int_equal(read_line(&f, line, &e), ERR_INVALID);
}

static void a_flag_that_is_not_given_leaves_its_member_alone(void **state)
{
    char line[] = "--on";
    struct flags f;
    struct err e = {0};
    (void)state;
    assert_int_equal(read_line(&f, line, &e), 0);
    assert_true(f.on && !f.text && f.number == -1 && f.nnames == 0);
}

static void times_have_a_unit(void **state)
{
    static const struct {
        const char *line;
        int64_t ns;
    } times[] = {{"--time 250ms", 250 * CLOCK_MS},
                 {"--time 2m", 120 * CLOCK_S},
                 {"--time 1h", 3600 * CLOCK_S}};
    struct flags f;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        char line[40];
        snprintf(line, sizeof line, "%s", times[i].line);
        assert_int_equal(read_line(&f, line, &e), 0);
        assert_true(f.time_ns == times[i].ns);
    }
}

static void what_is_wrong_with_a_flag_is_reported_with_a_suggestion(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"--number x", "--number: 'x' is not a number from 1 to 20"},
        {"--number=", "--number: '' is not a number from 1 to 20"},
        {"--number 1x", "'1x' is not a number from 1 to 20"},
        {"--number 0", "'0' is not a number from 1 to 20"},
        {"--number 21", "'21' is not a number from 1 to 20"},
        {"--number 99999999999999999999", "is not a number from 1 to 20"},
        {"--time 5", "--time: 5 has no unit: ns, us, ms, s, m or h, as in 5s"},
        {"--time ms", "must be a duration such as 5s, not 'ms'"},
        {"--time -1s", "must be a duration such as 5s, not '-1s'"},
        {"--time 1d", "'d' is not a unit of time"},
        {"--time nans", "must be a duration such as 5s, not 'nans'"},
        {"--time 1e9h", "'e9h' is not a unit of time"},
        {"--time 1000001h", "'1000001h' is too long: at most 1000000h"},
        {"--time 1e1s", "'e1s' is not a unit of time"},
        {"--time +1s", "must be a duration such as 5s, not '+1s'"},
        {"--time 0x1s", "'x1s' is not a unit of time"},
        {"--time 1.5.5s", "'.5s' is not a unit of time"},
        {"--time 99ms", "--time: '99ms' is too short: at least 100ms"},
        {"-s a -s b -s c", "-s: may stand 2 times at most"},
        {"--nonsense", "unknown flag, or a flag without its value: --nonsense"},
        {"-x", "unknown flag, or a flag without its value: -x"},
        {"--text", "unknown flag, or a flag without its value: --text"},
        {"--on word", "unexpected argument 'word'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct flags f;
        struct err e = {0};
        char line[60];
        snprintf(line, sizeof line, "%s", cases[i].line);
        assert_int_not_equal(read_line(&f, line, &e), 0);
        if (!strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].line, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_flag_is_read_into_its_member),
        cmocka_unit_test(a_time_that_was_in_seconds_may_lack_its_unit),
        cmocka_unit_test(a_flag_that_is_not_given_leaves_its_member_alone),
        cmocka_unit_test(times_have_a_unit),
        cmocka_unit_test(what_is_wrong_with_a_flag_is_reported_with_a_suggestion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
