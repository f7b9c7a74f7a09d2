// SPDX-License-Identifier: Apache-2.0
// A log that is read several times: each line is shown once, and what never came is counted.
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/buf.h"
#include "coordinator/cli/log_order.h"
#include "tests/unit/unit.h"

// Rank 0's log of an attempt goes on with `text`, which begins at `from`.
static void hear(struct log_order *o, uint64_t attempt, int64_t from, const char *text)
{
    Weft__V1__LogLines m;
    weft__v1__log_lines__init(&m);
    m.host = frame_text("h");
    m.attempt = attempt;
    m.text.data = (uint8_t *)frame_text(text);
    m.text.len = strlen(text);
    m.ends_at = from + (int64_t)m.text.len;
    log_order_add(o, &m);
}

// What is shown: "<N>" where N bytes were left out, then the line.
static void assert_shown(struct log_order *o, const char *want)
{
    struct buf b = {0};
    log_order_sort(o);
    for (int i = 0; i < o->n; i++) {
        if (o->lines[i].left_out)
            buf_printf(&b, "<%lld>", (long long)o->lines[i].left_out);
        buf_append(&b, o->lines[i].text, o->lines[i].len);
        buf_putc(&b, ' ');
    }
    assert_string_equal(buf_str(&b), want);
    buf_clear(&b);
    log_order_empty(o);
}

// A rank's only line with a time came long ago, and a second reading begins behind it.
static void lines_without_a_time_are_shown_in_a_second_reading(void **state)
{
    (void)state;
    struct log_order o = {0};
    hear(&o, 1, 0, "2026-01-02T03:04:05.678Z start\na\nb\n");
    assert_shown(&o, "2026-01-02T03:04:05.678Z start a b ");
    assert_true(log_order_again(&o));
    hear(&o, 1, 33, "b\nc\n"); // b was shown
    hear(&o, 1, 37, "d\n");
    assert_shown(&o, "c d ");
    log_order_clear(&o);
}

static void lines_of_one_millisecond_are_each_shown_once(void **state)
{
    (void)state;
    struct log_order o = {0};
    hear(&o, 1, 0, "2026-01-02T03:04:05.678Z a\n");
    assert_shown(&o, "2026-01-02T03:04:05.678Z a ");
    assert_true(log_order_again(&o));
    hear(&o, 1, 0, "2026-01-02T03:04:05.678Z a\n2026-01-02T03:04:05.678Z b\n");
    assert_shown(&o, "2026-01-02T03:04:05.678Z b ");
    log_order_clear(&o);
}

static void what_never_came_is_counted_once(void **state)
{
    (void)state;
    struct log_order o = {0};
    hear(&o, 1, 100, "a\nb\n"); // no more is kept
    assert_shown(&o, "<100>a b ");
    hear(&o, 1, 150, "c\nd\n"); // it came too fast
    assert_shown(&o, "<46>c d ");
    assert_true(log_order_again(&o));
    hear(&o, 1, 120, "x\n"); // had been left out, and comes too late
    hear(&o, 1, 1000, "e\n");
    hear(&o, 2, 10, "f\n"); // another attempt has a log of its own
    assert_shown(&o, "<846>e <10>f ");
    log_order_clear(&o);
}

// Who asks for the last lines does not want those before, in a second reading neither.
static void the_last_lines_stay_the_last_lines(void **state)
{
    (void)state;
    struct log_order o = {.some = true};
    hear(&o, 2, 50, "a\n");
    assert_shown(&o, "a ");
    assert_true(log_order_again(&o));
    hear(&o, 3, 7, "c\n");
    hear(&o, 2, 0, "2026-01-02T03:04:05.678Z old\n");
    hear(&o, 2, 50, "a\nb\n");
    hear(&o, 1, 0, "older\n");
    assert_shown(&o, "<7>c b ");
    assert_true(log_order_again(&o));
    hear(&o, 1, 0, "older\n");
    hear(&o, 3, 9, "d\n");
    assert_shown(&o, "d ");
    log_order_clear(&o);
}

static void nothing_came_yet(void **state)
{
    (void)state;
    struct log_order o = {.some = true};
    assert_false(log_order_again(&o));
    hear(&o, 1, 50, "a\n");
    assert_shown(&o, "a ");
    log_order_clear(&o);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_without_a_time_are_shown_in_a_second_reading),
        cmocka_unit_test(lines_of_one_millisecond_are_each_shown_once),
        cmocka_unit_test(what_never_came_is_counted_once),
        cmocka_unit_test(the_last_lines_stay_the_last_lines),
        cmocka_unit_test(nothing_came_yet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
