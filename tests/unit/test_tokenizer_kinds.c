// SPDX-License-Identifier: Apache-2.0
// The kinds of tokenizers without a file: bytes and ids.
#include <string.h>

#include "common/tokenizer/tokenizer.h"
#include "tests/unit/unit.h"

struct kind_case {
    struct tokenizer *t;
    struct tokenizer_work *w;
    struct token_ids ids;
    struct buf text;
    struct err e;
};

static void begin(struct kind_case *c, const char *name)
{
    *c = (struct kind_case){0};
    assert_int_equal(tokenizer_open(&c->t, name, &c->e), 0);
    c->w = tokenizer_work_new(c->t);
}

static void end(struct kind_case *c)
{
    tokenizer_work_free(c->w);
    tokenizer_close(c->t);
    token_ids_clear(&c->ids);
    buf_clear(&c->text);
}

static void every_byte_is_a_token_and_comes_back(void **state)
{
    struct kind_case c;
    char all[256];
    (void)state;
    begin(&c, "bytes");
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_int_equal(tokenizer_encode(c.t, c.w, all, sizeof all, true, &c.ids, &c.e), 0);
    assert_int_equal(c.ids.n, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(c.ids.data[i], i);
    tokenizer_decode(c.t, c.ids.data, c.ids.n, true, &c.text);
    assert_int_equal(c.text.len, sizeof all);
    assert_memory_equal(c.text.data, all, sizeof all);
    assert_int_equal(tokenizer_vocab(c.t), 256);
    assert_string_equal(tokenizer_identity(c.t), "bytes");
    end(&c);
}

static void an_id_that_is_no_byte_is_visible(void **state)
{
    struct kind_case c;
    (void)state;
    begin(&c, "bytes");
    tokenizer_decode(c.t, (const int32_t[]){'a', 300, -1, 'b'}, 4, false, &c.text);
    assert_string_equal(buf_str(&c.text), "a<300><-1>b");
    end(&c);
}

static void a_stream_holds_back_what_is_no_whole_character(void **state)
{
    static const struct {
        int32_t id;
        const char *text; // after it
    } steps[] = {{'a', "a"},
                 {0xe2, "a"},
                 {0x82, "a"},
                 {0xac, "a€"},
                 {0xc3, "a€"},
                 {'b', "a€\xc3"
                       "b"}, // it broke off
                 {0xf0, "a€\xc3"
                        "b"},
                 {300, "a€\xc3"
                       "b\xf0<300>"},
                 {0xf4, "a€\xc3"
                        "b\xf0<300>"},
                 {0x90, "a€\xc3"
                        "b\xf0<300>\xf4\x90"}}; // no character begins so
    struct kind_case c;
    (void)state;
    begin(&c, "bytes");
    struct tokenizer_stream *s = tokenizer_stream_new(c.t, false);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tokenizer_stream_put(s, steps[i].id, &c.text);
        assert_string_equal(buf_str(&c.text), steps[i].text);
    }
    buf_reset(&c.text);
    tokenizer_stream_put(s, 0xc3, &c.text);
    tokenizer_stream_end(s, &c.text);
    assert_string_equal(buf_str(&c.text), "\xc3");
    tokenizer_stream_free(s);
    end(&c);
}

static void ids_are_numbers_with_spaces(void **state)
{
    static const char *const wrong[] = {"1 -2", "1,2", "x", "12a", "1 2.5"};
    struct kind_case c;
    (void)state;
    begin(&c, "ids");
    const char *text = " 15496  0\n995 99999999999999999999 ";
    assert_int_equal(tokenizer_encode(c.t, c.w, text, strlen(text), false, &c.ids, &c.e), 0);
    assert_int_equal(c.ids.n, 4);
    assert_memory_equal(c.ids.data, ((int32_t[]){15496, 0, 995, INT32_MAX}), 16);
    tokenizer_decode(c.t, c.ids.data, 3, false, &c.text);
    assert_string_equal(buf_str(&c.text), "15496 0 995");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(
            tokenizer_encode(c.t, c.w, wrong[i], strlen(wrong[i]), false, &c.ids, &c.e),
            ERR_INVALID);
    assert_int_equal(tokenizer_vocab(c.t), 0);
    end(&c);
}

static void neither_has_an_end_of_documents(void **state)
{
    static const char *const kinds[] = {"bytes", "ids"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kind_case c;
        int32_t id = 7;
        begin(&c, kinds[i]);
        assert_int_equal(tokenizer_find_end(c.t, NULL, &id, &c.e), 0);
        assert_int_equal(id, -1);
        assert_int_equal(tokenizer_find_end(c.t, "</s>", &id, &c.e), ERR_INVALID);
        end(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_a_token_and_comes_back),
        cmocka_unit_test(an_id_that_is_no_byte_is_visible),
        cmocka_unit_test(a_stream_holds_back_what_is_no_whole_character),
        cmocka_unit_test(ids_are_numbers_with_spaces),
        cmocka_unit_test(neither_has_an_end_of_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
