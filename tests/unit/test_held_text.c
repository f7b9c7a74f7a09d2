// SPDX-License-Identifier: Apache-2.0
// What of a growing text is shown: stop texts and characters at every split.
#include <stdlib.h>
#include <string.h>

#include "coordinator/cli/held_text.h"
#include "tests/unit/unit.h"

// Adds the text in pieces that end where `splits` has a bit, and takes after each. What was taken is
// never taken back, so it must be a start of what the whole comes to.
static void check_splits(const char *text, unsigned splits, const char *const *stops, int nstops,
                         const char *want, bool stopped)
{
    struct held_text h = {.stops = stops, .nstops = nstops};
    struct buf shown = {0};
    size_t len = strlen(text), n;
    bool ended = false;
    for (size_t begin = 0, end = 1; begin < len && !ended; end++) {
        if (end < len && !(splits >> (end - 1) & 1))
            continue;
        ended = held_add(&h, text + begin, end - begin);
        const char *s = held_take(&h, false, &n);
        buf_append(&shown, s, n);
        if (shown.len > strlen(want) || memcmp(buf_str(&shown), want, shown.len) != 0)
            fail_msg("'%s', splits %x: '%s' was shown, and all is '%s'", text, splits,
                     buf_str(&shown), want);
        begin = end;
    }
    const char *s = held_take(&h, true, &n);
    buf_append(&shown, s, n);
    assert_string_equal(buf_str(&shown), want);
    assert_int_equal(ended, stopped);
    held_clear(&h);
    buf_clear(&shown);
}

static void check_all(const char *text, const char *const *stops, int nstops, const char *want,
                      bool stopped)
{
    for (unsigned splits = 0; splits < 1u << (strlen(text) - 1); splits++)
        check_splits(text, splits, stops, nstops, want, stopped);
}

static void a_stop_text_cuts_at_every_split(void **state)
{
    static const char *const end[] = {"END"}, *const two[] = {"bcd", "abcde"},
                             *const self[] = {"aab"};
    (void)state;
    check_all("one twoENDx", end, 1, "one two", true);
    check_all("E EN ENDEND", end, 1, "E EN ", true);
    check_all("all but EN", end, 1, "all but EN", false);
    check_all("xaaaab", self, 1, "xaa", true); // it begins in the middle of its own beginning
    check_all("zabcq", two, 2, "zabcq", false);
}

// Whichever is complete first ends the text; of those that are there at once the earliest cuts.
static void of_several_stop_texts_the_earliest_cuts(void **state)
{
    static const char *const two[] = {"bcd", "abcde"};
    (void)state;
    check_splits("zabcde", 0, two, 2, "z", true);
    check_splits("zabcde", ~0u, two, 2, "za", true);
}

static void a_character_is_shown_whole(void **state)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"; // é € 😀
    (void)state;
    check_all(text, NULL, 0, text, false);
    for (size_t cut = 1; cut < sizeof text; cut++) {
        struct held_text h = {0};
        size_t n;
        held_add(&h, text, cut);
        (void)held_take(&h, false, &n);
        assert_true(cut == 1 ? n == 1 : n == 1 || n == 3 || n == 6 || n >= 10);
        assert_true(n <= cut && cut - n < 4);
        held_clear(&h);
    }
}

static void what_is_no_character_is_not_held_for_ever(void **state)
{
    (void)state;
    check_all("a\x80\x80\xff", NULL, 0, "a\x80\x80\xff", false);
    check_all("a\xf0\x9f", NULL, 0, "a\xf0\x9f", false); // shown at the end
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_text_cuts_at_every_split),
        cmocka_unit_test(of_several_stop_texts_the_earliest_cuts),
        cmocka_unit_test(a_character_is_shown_whole),
        cmocka_unit_test(what_is_no_character_is_not_held_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
