// SPDX-License-Identifier: Apache-2.0
// Text for people: no text from outside steers a terminal or forges a line.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "tests/unit/unit.h"

// What steers a terminal, and how it is shown.
static const struct {
    const char *text, *shown;
} hostile[] = {
    {"\033[2J", "\\x1b[2J"},                  // erases the screen
    {"\033]0;mine\007", "\\x1b]0;mine\\x07"}, // names the window
    {"a\rb", "a\\x0db"},                      // goes back over what was written
    {"\b\177", "\\x08\\x7f"},                 //
    {"\xc2\x9b"
     "2J",
     "\\u009b2J"}, // C1's own beginning of a sequence
    {"\x9b"
     "2J",
     "\\x9b2J"},                         // the same in Latin-1, and no UTF-8
    {"\u202egnp.exe", "\\u202egnp.exe"}, // turns the rest around
    {"\u2066\u2069\u200f\u061c", "\\u2066\\u2069\\u200f\\u061c"}, //
    {"a\u2028b", "a\\u2028b"},                                    // ends a line on some terminals
    {"my\ufeffjob", "my\\ufeffjob"},                              // is not seen at all
    {"\xe2\x82", "\\xe2\\x82"},                                   // cut short
};
enum { HOSTILE = sizeof hostile / sizeof *hostile };

static void what_steers_a_terminal_is_spelt_in_letters(void **state)
{
    (void)state;
    for (int i = 0; i < HOSTILE; i++) {
        struct buf b = {0};
        plain_append(&b, hostile[i].text, strlen(hostile[i].text));
        assert_string_equal(buf_str(&b), hostile[i].shown);
        buf_clear(&b);
    }
}

static void harmless_text_stays_as_it_is(void **state)
{
    (void)state;
    static const char text[] = "naïve, 日本語, 🙂\tand\nlines … – \u00a0";
    struct buf b = {0};
    plain_append(&b, text, strlen(text));
    assert_string_equal(buf_str(&b), text);
    buf_clear(&b);
}

static void a_name_cannot_begin_a_line_of_its_own(void **state)
{
    (void)state;
    struct buf b = {0};
    plain_line(&b, "%s: damaged", "step-1\nstep-2: verified");
    assert_string_equal(buf_str(&b), "step-1\\nstep-2: verified: damaged\n");
    buf_clear(&b);
}

static void a_masked_text_is_as_long_and_steers_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < HOSTILE; i++) {
        char text[64];
        snprintf(text, sizeof text, "é%sé", hostile[i].text);
        plain_mask(text);
        assert_int_equal(strlen(text), strlen(hostile[i].text) + 4);
        for (const char *s = text; *s; s += plain_character(s, strlen(s)))
            assert_int_not_equal(plain_character(s, strlen(s)), 0);
    }
}

// Both go to one file, as with `2>&1`: neither cuts into a line of the other.
static void an_error_comes_behind_the_line_that_was_begun(void **state)
{
    (void)state;
    char path[] = "/tmp/plainXXXXXX", text[200] = "";
    int fd = mkstemp(path), out = dup(1), err = dup(2);
    assert_true(fd >= 0 && out >= 0 && err >= 0);
    fflush(stdout);
    dup2(fd, 1);
    dup2(fd, 2);
    plain_printf(stdout, "step %d", 1);
    plain_puts(stderr, "it failed \033[1m\n");
    plain_puts(stdout, "step 2\n");
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    close(out);
    close(err);
    unlink(path);
    assert_true(n > 0);
    assert_string_equal(text, "step 1\nit failed \\x1b[1m\nstep 2\n");
}

// Somebody interrupts what writes to a terminal that nobody reads.
static void a_line_is_not_ended_where_a_terminal_takes_nothing(void **state)
{
    (void)state;
    static const char line[] = "ten bytes\n";
    char taken[65536];
    int ours = posix_openpt(O_RDWR | O_NOCTTY), out = dup(1);
    assert_true(ours >= 0 && out >= 0 && !grantpt(ours) && !unlockpt(ours));
    int theirs = open(ptsname(ours), O_RDWR | O_NOCTTY | O_NONBLOCK);
    assert_true(theirs >= 0);
    fflush(stdout);
    dup2(theirs, 1);
    plain_end_line();
    assert_int_equal(read(ours, taken, sizeof taken), 2); // a terminal makes \r\n of it
    while (write(theirs, line, sizeof line - 1) > 0)
        ;
    while (write(theirs, line, 1) > 0)
        ;
    assert_int_equal(fcntl(theirs, F_SETFL, O_RDWR), 0); // writes wait from now on
    alarm(60);
    plain_end_line();
    alarm(0);
    dup2(out, 1);
    close(out);
    close(theirs);
    close(ours);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_steers_a_terminal_is_spelt_in_letters),
        cmocka_unit_test(harmless_text_stays_as_it_is),
        cmocka_unit_test(a_name_cannot_begin_a_line_of_its_own),
        cmocka_unit_test(a_masked_text_is_as_long_and_steers_nothing),
        cmocka_unit_test(an_error_comes_behind_the_line_that_was_begun),
        cmocka_unit_test(a_line_is_not_ended_where_a_terminal_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
