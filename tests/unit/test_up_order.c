// SPDX-License-Identifier: Apache-2.0
// What `weft up` says to a host: what was printed is read, and nothing else is taken for it.
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "coordinator/cli/up_order.h"
#include "tests/unit/unit.h"

static const char id[] = "0123456789abcdef0123456789abcdef", secret[] = "sixteen and more of them";

static struct up_order example(void)
{
    struct up_order o = {
        .index = 2, .size = 3, .id = id, .secret = secret, .host = "a", .folder = "/x"};
    o.nwords = 4;
    o.words[0] = "-s";
    o.words[1] = "tags=a\nb";
    o.words[2] = "";
    o.words[3] = "job.yaml";
    return o;
}

// Prints it, and returns where its bytes begin.
static const char *print(const struct up_order *o, struct buf *out, size_t *len)
{
    char line[64];
    struct err e = {0};
    assert_int_equal(up_order_print(o, out, &e), 0);
    const char *end = strchr(out->data, '\n');
    snprintf(line, sizeof line, "%.*s", (int)(end - out->data), out->data);
    assert_int_equal(up_order_length(line, len, &e), 0);
    assert_int_equal((size_t)(end + 1 - out->data) + *len, out->len);
    return end + 1;
}

static void what_is_printed_is_read(void **state)
{
    (void)state;
    struct up_order o = example(), got;
    struct several s;
    struct buf out = {0};
    struct err e = {0};
    size_t len;
    const char *bytes = print(&o, &out, &len);
    assert_int_equal(up_order_parse(bytes, len, &got, &e), 0);
    assert_int_equal(got.nwords, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(got.words[i], o.words[i]);
    assert_string_equal(got.folder, "/x");
    up_order_take(&got, &s);
    assert_int_equal(s.a.kind, ALLOCATION_UP);
    assert_int_equal(s.a.index, 2);
    assert_int_equal(s.a.size, 3);
    assert_string_equal(s.a.host, "a");
    assert_string_equal(s.secret.text, secret);
    buf_clear(&out);
}

static void one_that_is_torn_is_none(void **state)
{
    (void)state;
    struct up_order o = example(), got;
    struct buf out = {0};
    struct err e = {0};
    size_t len, words = 0;
    const char *bytes = print(&o, &out, &len);
    for (size_t n = 0; n < len; n++) // but where a word ends
        if (up_order_parse(bytes, n, &got, &e) == 0)
            words++;
    assert_int_equal(words, 3);
    buf_clear(&out);
}

static void what_no_weft_up_says_is_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {"",
                                        "weft up 1",
                                        "weft up 1 ",
                                        "weft up 1 0",
                                        "weft up 1 -5",
                                        "weft up 1 60001",
                                        "weft up 1 99999999999",
                                        "weft up 1 12x",
                                        "weft up 2 12",
                                        "hello"};
    struct err e = {0};
    size_t len;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(up_order_length(lines[i], &len, &e), ERR_DATA);
    char host[400];
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = 0;
    for (int i = 0; i < 7; i++) {
        struct up_order o = example(), got;
        struct buf out = {0};
        switch (i) {
        case 0:
            o.index = 3;
            break;
        case 1:
            o.size = ALLOCATION_MAX + 1;
            break;
        case 2:
            o.id = "0123";
            break;
        case 3:
            o.secret = "short";
            break;
        case 4:
            o.host = host;
            break;
        case 5:
            o.folder = "x";
            break;
        default:
            o.nwords = 0;
        }
        const char *bytes = print(&o, &out, &len);
        assert_int_equal(up_order_parse(bytes, len, &got, &e), ERR_DATA);
        buf_clear(&out);
    }
}

static void one_longer_than_a_pipe_is_refused(void **state)
{
    (void)state;
    static char word[UP_ORDER_MAX];
    struct up_order o = example();
    struct buf out = {0};
    struct err e = {0};
    memset(word, 'w', sizeof word - 1);
    o.words[3] = word;
    assert_int_equal(up_order_print(&o, &out, &e), ERR_INVALID);
    buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_is_read),
        cmocka_unit_test(one_that_is_torn_is_none),
        cmocka_unit_test(what_no_weft_up_says_is_refused),
        cmocka_unit_test(one_longer_than_a_pipe_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
