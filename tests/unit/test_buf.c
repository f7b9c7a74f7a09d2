// SPDX-License-Identifier: Apache-2.0
// Bufs: they grow, they always end in a zero byte, they forget but keep their memory.
#include <string.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "tests/unit/unit.h"

static void an_empty_buf_reads_as_an_empty_text(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    buf_reset(&b);
    buf_append(&b, NULL, 0);
    assert_non_null(b.data);
    assert_string_equal(b.data, "");
    buf_clear(&b);
    buf_clear(&b);
    assert_string_equal(buf_str(&b), "");
}

static void text_grows_and_stays_terminated(void **state)
{
    (void)state;
    struct buf b = {0};
    for (size_t i = 0; i < 5000; i++) {
        buf_putc(&b, (char)('a' + i % 26));
        assert_int_equal(b.len, i + 1);
        assert_int_equal(b.data[b.len], 0);
        assert_true(b.cap > b.len);
    }
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    buf_clear(&b);
}

static void appended_bytes_may_hold_zeros(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append(&b, "a\0b", 3);
    buf_puts(&b, "cd");
    assert_int_equal(b.len, 5);
    assert_memory_equal(b.data, "a\0bcd", 6);
    buf_clear(&b);
}

static void formatted_text_follows_what_is_there(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "x=");
    buf_printf(&b, "%d %s", -7, "seven");
    assert_string_equal(buf_str(&b), "x=-7 seven");
    buf_printf(&b, "%*d", 3000, 1);
    assert_int_equal(b.len, 3010);
    assert_int_equal(b.data[3009], '1');
    buf_clear(&b);
}

static void a_reset_keeps_the_memory(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_reserve(&b, 1000);
    const char *data = b.data;
    size_t cap = b.cap;
    buf_puts(&b, "gone");
    buf_reset(&b);
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 1000; i++)
        buf_putc(&b, 'y');
    assert_ptr_equal(b.data, data);
    assert_int_equal(b.cap, cap);
    buf_clear(&b);
}

static void kept_bytes_may_hold_zeros(void **state)
{
    struct arena a = {0};
    struct buf b = {0};
    (void)state;
    buf_append(&b, "\0ab\0c", 5);
    const char *kept = buf_keep(&b, &a);
    assert_memory_equal(kept, "\0ab\0c", 6);
    assert_int_equal(b.len, 0);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buf_reads_as_an_empty_text),
        cmocka_unit_test(text_grows_and_stays_terminated),
        cmocka_unit_test(appended_bytes_may_hold_zeros),
        cmocka_unit_test(formatted_text_follows_what_is_there),
        cmocka_unit_test(a_reset_keeps_the_memory),
        cmocka_unit_test(kept_bytes_may_hold_zeros),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
