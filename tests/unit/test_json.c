// SPDX-License-Identifier: Apache-2.0
// JSON: what RFC 8259 allows is read, all else is refused with its offset; numbers survive a round
// trip bit for bit; what the writer writes, the reader reads.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/rand.h"
#include "tests/unit/unit.h"

// Parses an exact copy on the heap, so that a read past its end is seen.
static int parse(struct arena *a, const char *text, size_t len, struct json **out, struct err *e)
{
    char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, text, len);
    int rc = json_parse(a, copy, len, out, e);
    free(copy);
    return rc;
}

static int verdict(const char *text, size_t len, struct err *e)
{
    struct arena a;
    struct json *v;
    arena_init(&a);
    int rc = parse(&a, text, len, &v, e);
    assert_int_equal(rc == 0, v != NULL);
    arena_clear(&a);
    return rc;
}

// ---- reader ------------------------------------------------------------------------------------
static void valid_texts_are_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "[]",
        "[[]   ]",
        "[\"\"]",
        "{}",
        "null",
        "true",
        "false",
        "42",
        "-0",
        "-0.0",
        "0e1",
        "0E+1",
        "[123e65]",
        "[1E22]",
        "[1e-2]",
        "[123.456e78]",
        "[20e1]",
        "[0.4e6]",
        "[-123]",
        "[1 ]",
        " [1] ",
        "\t\r\n [null, 1, \"1\", {}]\n",
        "[1,null,null,null,2]",
        "\"\"",
        "\" \"",
        "\"\x7f\"",
        "[\"\\u0060\\u012a\\u12AB\"]",
        "[\"\\uD801\\udc37\"]",
        "[\"\\ud83d\\ude39\\ud83d\\udc8d\"]",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
        "[\"\\\\u0000\"]",
        "[\"\\\\a\"]",
        "[\"a/*b*/c\"]",
        "[\"\xc3\xa9\"]",
        "[\"\xe2\x82\xac\"]",
        "[\"\xf0\x9d\x84\x9e\"]",
        "[\"\xf4\x8f\xbf\xbf\"]",
        "[\"\xef\xbf\xbf\"]",
        "[\"\xed\x9f\xbf\"]",
        "[\"\xee\x80\x80\"]",
        "[\"\\uFFFF\"]",
        "{\"a\":\"b\",\"c\":\"d\"}",
        "{\"\":0}",
        "{\"min\": -1.0e+28, \"max\": 1.0e+28}",
        "{\"a\":{\"a\":{\"a\":[]}}}",
        "[1e-400]",
        "[123456789012345678901234567890]",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct err e = {0};
        if (verdict(good[i], strlen(good[i]), &e))
            fail_msg("%s: %s", good[i], e.text);
    }
}

static void invalid_texts_are_refused_with_an_offset(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "[1 true]",
        "[a]",
        "[\"\": 1]",
        "[\"\"],",
        "[,1]",
        "[1,,2]",
        "[\"x\",,]",
        "[\"x\"]]",
        "[\"\",]",
        "[\"x\"",
        "[x",
        "[3[4]]",
        "[1:2]",
        "[,]",
        "[-]",
        "[1,]",
        "[1,\n1\n,1",
        "[{}",
        "[fals]",
        "[nul]",
        "[tru]",
        "[truee]",
        "nulll",
        "[++1]",
        "[+1]",
        "[+Inf]",
        "[-01]",
        "[-1.0.]",
        "[-2.]",
        "[-NaN]",
        "[.-1]",
        "[.2e-3]",
        "[0.1.2]",
        "[0.3e+]",
        "[0.3e]",
        "[0.e1]",
        "[0E]",
        "[0e+]",
        "[1.0e-]",
        "[1 000.0]",
        "[1eE2]",
        "[2.e+3]",
        "[9.e+]",
        "[Infinity]",
        "[NaN]",
        "[0x1]",
        "[0x42]",
        "[1+2]",
        "[- 1]",
        "[012]",
        "[-.1]",
        "[1a]",
        "[1.8011670033376514H-308]",
        "[--2.]",
        "{\"x\"::\"b\"}",
        "{\"x\", null}",
        "{\"a\" b}",
        "{:\"b\"}",
        "{\"a\":",
        "{\"a\"",
        "{1:1}",
        "{'a':0}",
        "{\"id\":0,}",
        "{\"a\":\"b\",,\"c\":\"d\"}",
        "{a: \"b\"}",
        "{\"a\":\"a",
        "{\"a\":1 2}",
        "{\"a\":\"b\"}#",
        "{\"a\":\"b\"}/**/",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"\\u0061\":2}",
        "{]",
        "[}",
        "[\"\\ud800\"]",
        "[\"\\ud800\\n\"]",
        "[\"\\ud800\\ud800\"]",
        "[\"\\udc00\"]",
        "[\"\\udc00\\ud800\"]",
        "[\"\\udc00\\udc00\"]",
        "[\"\\ud800abc\"]",
        "[\"\\u00A\"]",
        "[\"\\u00g0\"]",
        "[\"\\u\"]",
        "[\"\\x00\"]",
        "[\"\\a\"]",
        "[\"\\",
        "[\"\\\"]",
        "[\"\\u{20}\"]",
        "[\"\\uD834\\uDd\"]",
        "[\"\\u0000\"]",
        "[\"new\nline\"]",
        "[\"\t\"]",
        "[\"\x1f\"]",
        "\"",
        "[\"\xff\"]",
        "[\"\x80\"]",
        "[\"\xc0\xaf\"]",
        "[\"\xc1\xbf\"]",
        "[\"\xc3\"]",
        "[\"\xe0\x9f\xbf\"]",
        "[\"\xed\xa0\x80\"]",
        "[\"\xe2\x82\"]",
        "[\"\xf0\x8f\xbf\xbf\"]",
        "[\"\xf4\x90\x80\x80\"]",
        "[\"\xf5\x80\x80\x80\"]",
        "[\"\xf0\x9d\x84\"]",
        "[\"\xe2\x28\xa1\"]",
        "\xef\xbb\xbf{}",
        "[\f]",
        "[\xc2\xa0]",
        "'a'",
        "[1]x",
        "1 2",
        "[1]//",
        "*",
        "<.>",
        "[True]",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        int rc = verdict(bad[i], strlen(bad[i]), &e);
        if (rc != ERR_DATA || strncmp(e.text, "JSON at byte ", 13) != 0)
            fail_msg("%s: code %d '%s'", bad[i], rc, e.text);
    }
}

static void zero_bytes_are_refused_wherever_they_stand(void **state)
{
    (void)state;
    static const char text[] = "{\"k\":[1,true,\"s\"]}";
    for (size_t i = 0; i <= sizeof text - 1; i++) {
        char with[sizeof text];
        memcpy(with, text, i);
        with[i] = 0;
        memcpy(with + i + 1, text + i, sizeof text - 1 - i);
        assert_int_equal(verdict(with, sizeof text, NULL), ERR_DATA);
    }
}

static void the_offset_is_that_of_the_first_bad_byte(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"[1, 2, x]", "JSON at byte 7: a value is missing"},
        {"{\"a\": 1 \"b\"}", "JSON at byte 8: ',' or '}' is missing"},
        {"[1, 2", "JSON at byte 5: the text ends too early"},
        {"{} {}", "JSON at byte 3: text behind the value"},
        {"[\"ab\\q\"]", "JSON at byte 5: an escape that JSON does not have"},
        {"[\"ab\xff\"]", "JSON at byte 4: bytes that are not UTF-8"},
        {"{\"k\":1, \"j\":2, \"k\":3}", "JSON at byte 19: key 'k' is there twice"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = {0};
        assert_int_equal(verdict(rows[i].text, strlen(rows[i].text), &e), ERR_DATA);
        assert_string_equal(e.text, rows[i].message);
    }
}

static void a_text_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\\u00e9\": [1.5e-3, -12, true, false, null, \"\xe2\x82\xac\\ud83d"
        "\\ude39\\n\"], \"b\": {\"c\": {}, \"d\": []}}";
    assert_int_equal(verdict(text, sizeof text - 1, NULL), 0);
    for (size_t len = 0; len < sizeof text - 1; len++)
        assert_int_equal(verdict(text, len, NULL), ERR_DATA);
}

static void nesting_ends_at_the_limit_however_deep_the_bomb(void **state)
{
    (void)state;
    enum { BOMB = 100000 };
    char *bomb = malloc(BOMB);
    assert_non_null(bomb);
    char *mid = bomb + BOMB / 2;
    memset(bomb, '[', BOMB / 2);
    memset(mid, ']', BOMB / 2);
    assert_int_equal(verdict(bomb, BOMB, NULL), ERR_LIMIT);
    assert_int_equal(verdict(mid - 33, 66, NULL), ERR_LIMIT);
    assert_int_equal(verdict(mid - 32, 64, NULL), 0);
    for (size_t i = 0; i + 4 <= BOMB; i += 4)
        memcpy(bomb + i, "{\"\":", 4);
    assert_int_equal(verdict(bomb, BOMB, NULL), ERR_LIMIT);
    free(bomb);
}

static void too_many_values_and_too_large_numbers_are_over_the_limit(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_puts(&b, "[0");
    for (int i = 1; i < JSON_MAX_VALUES; i++)
        buf_append(&b, ",0", 2);
    buf_putc(&b, ']');
    assert_int_equal(verdict(b.data, b.len, NULL), ERR_LIMIT); // the array is a value too
    memcpy(b.data + b.len - 3, "]  ", 3);
    assert_int_equal(verdict(b.data, b.len, NULL), 0);
    buf_clear(&b);
    char digits[JSON_MAX_NUMBER + 1];
    memset(digits, '1', sizeof digits);
    assert_int_equal(verdict(digits, sizeof digits, NULL), ERR_LIMIT);
    digits[1] = '.';
    assert_int_equal(verdict(digits, sizeof digits - 1, NULL), 0);
    assert_int_equal(verdict("1e309", 5, NULL), ERR_LIMIT);
    assert_int_equal(verdict("-1e99999", 8, NULL), ERR_LIMIT);
}

static void many_keys_are_checked_for_duplicates_without_delay(void **state)
{
    (void)state;
    struct buf b = {0};
    struct err e = {0};
    buf_putc(&b, '{');
    for (int i = 0; i < 50000; i++)
        buf_printf(&b, "\"key%d\":0,", i);
    size_t at = b.len;
    buf_puts(&b, "\"key50000\":0}");
    assert_int_equal(verdict(b.data, b.len, &e), 0);
    b.len = at;
    buf_puts(&b, "\"key123\":0}");
    assert_int_equal(verdict(b.data, b.len, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "key 'key123' is there twice"));
    buf_clear(&b);
}

static void a_tree_holds_what_the_text_says(void **state)
{
    (void)state;
    static const char text[] =
        "{\"s\": \"a\\u00e9\\ud83d\\ude39\\/\\b\", \"n\": [0, -0, 9223372036854775807, "
        "-9223372036854775808, 9223372036854775808, 1.0, 1e2], \"t\": true, \"f\": false, \"z\": "
        "null}";
    struct arena a;
    struct json *v;
    arena_init(&a);
    assert_int_equal(parse(&a, text, sizeof text - 1, &v, NULL), 0);
    assert_int_equal(v->type, JSON_OBJECT);
    assert_int_equal(v->count, 5);
    assert_string_equal(v->first->key, "s");
    assert_string_equal(v->first->string, "a\xc3\xa9\xf0\x9f\x98\xb9/\b");
    assert_int_equal(v->first->offset, 6);
    const struct json *n = json_get(v, "n");
    static const struct {
        bool is_int;
        int64_t integer;
        double number;
    } rows[] = {{true, 0, 0},
                {true, 0, 0},
                {true, INT64_MAX, 9223372036854775808.0},
                {true, INT64_MIN, -9223372036854775808.0},
                {false, 0, 9223372036854775808.0},
                {false, 0, 1},
                {false, 0, 100}};
    const struct json *item = n->first;
    assert_int_equal(n->count, 7);
    for (int i = 0; i < 7; i++, item = item->next) {
        assert_int_equal(item->type, JSON_NUMBER);
        assert_int_equal(item->is_int, rows[i].is_int);
        assert_true(item->integer == rows[i].integer && item->number == rows[i].number);
        assert_null(item->key);
    }
    assert_null(item);
    assert_true(signbit(n->first->next->number));
    assert_true(json_get(v, "t")->type == JSON_BOOL && json_get(v, "t")->boolean);
    assert_true(json_get(v, "f")->type == JSON_BOOL && !json_get(v, "f")->boolean);
    assert_int_equal(json_get(v, "z")->type, JSON_NULL);
    assert_null(json_get(v, "missing"));
    assert_null(json_get(n, "s"));
    assert_null(json_get(NULL, "s"));
    arena_clear(&a);
}

static void typed_access_says_which_key_and_what_was_wanted(void **state)
{
    (void)state;
    static const char text[] = "{\"s\":\"x\",\"i\":-7,\"d\":1.5,\"a\":[1],\"o\":{\"k\":1}}";
    struct arena a;
    struct json *v;
    struct err e = {0};
    const char *s;
    int64_t i;
    const struct json *sub;
    arena_init(&a);
    assert_int_equal(parse(&a, text, sizeof text - 1, &v, NULL), 0);
    assert_int_equal(json_get_str(v, "s", &s, &e), 0);
    assert_string_equal(s, "x");
    assert_int_equal(json_get_int(v, "i", &i, &e), 0);
    assert_int_equal(i, -7);
    assert_int_equal(json_get_array(v, "a", &sub, &e), 0);
    assert_int_equal(sub->count, 1);
    assert_int_equal(json_get_object(v, "o", &sub, &e), 0);
    assert_string_equal(sub->first->key, "k");
    assert_int_equal(json_get_str(v, "q", &s, &e), ERR_DATA);
    assert_string_equal(e.text, "'q' is missing");
    assert_int_equal(json_get_int(v, "d", &i, &e), ERR_DATA);
    assert_string_equal(e.text, "'d' is not an integer");
    assert_int_equal(json_get_int(v, "s", &i, &e), ERR_DATA);
    assert_int_equal(json_get_str(v, "i", &s, &e), ERR_DATA);
    assert_string_equal(e.text, "'i' is not a string");
    assert_int_equal(json_get_array(v, "o", &sub, &e), ERR_DATA);
    assert_string_equal(e.text, "'o' is not an array");
    assert_int_equal(json_get_object(v, "a", &sub, &e), ERR_DATA);
    assert_string_equal(e.text, "'a' is not an object");
    arena_clear(&a);
}

// ---- numbers -----------------------------------------------------------------------------------
static void random_bit_patterns_survive_the_round_trip(void **state)
{
    (void)state;
    const struct rand_site site = {.seed = 1, .stream = 2};
    char text[32];
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)rand_word(&site, 2 * i) << 32 | rand_word(&site, 2 * i + 1);
        uint32_t low = (uint32_t)bits;
        double d;
        float f;
        memcpy(&d, &bits, sizeof d);
        memcpy(&f, &low, sizeof f);
        json_format_double(d, text);
        double d2 = strtod(text, NULL);
        assert_int_equal(verdict(text, strlen(text), NULL), 0);
        assert_true(isfinite(d) ? memcmp(&d, &d2, sizeof d) == 0 : !strcmp(text, "null"));
        json_format_float(f, text);
        float f2 = strtof(text, NULL);
        assert_int_equal(verdict(text, strlen(text), NULL), 0);
        assert_true(isfinite(f) ? memcmp(&f, &f2, sizeof f) == 0 : !strcmp(text, "null"));
    }
}

static int digits_of(const char *text)
{
    int n = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text < '0' || *text > '9' || (*text == '0' && !n))
            continue;
        zeros = *text == '0' ? zeros + 1 : 0;
        n++;
    }
    return n - zeros;
}

// Decimals of k digits are their own shortest text as long as k is within what the type always
// holds.
static void no_digit_is_printed_that_is_not_needed(void **state)
{
    (void)state;
    const struct rand_site site = {.seed = 3, .stream = 4};
    for (uint64_t i = 0; i < 5000; i++) {
        char in[40], out[32];
        uint64_t w = (uint64_t)rand_word(&site, 3 * i) << 32 | rand_word(&site, 3 * i + 1);
        int exponent = (int)(rand_word(&site, 3 * i + 2) % 60) - 30;
        snprintf(in, sizeof in, "%" PRIu64 "e%d", w % 1000000000000000 + 1, exponent);
        json_format_double(strtod(in, NULL), out);
        assert_true(digits_of(out) <= digits_of(in));
        snprintf(in, sizeof in, "%" PRIu64 "e%d", w % 1000000 + 1, exponent);
        json_format_float(strtof(in, NULL), out);
        assert_true(digits_of(out) <= digits_of(in));
    }
}

static void well_known_numbers_print_as_people_write_them(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0, "0"},
        {-0.0, "-0"},
        {1, "1"},
        {-1, "-1"},
        {10, "10"},
        {0.1, "0.1"},
        {0.3, "0.3"},
        {1.5, "1.5"},
        {123.456, "123.456"},
        {100000, "100000"},
        {1e16, "10000000000000000"},
        {1e17, "1e+17"},
        {1.25e22, "1.25e+22"},
        {0.001, "0.001"},
        {0.00001, "0.00001"},
        {0.000012, "0.000012"},
        {1e-6, "1e-6"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {9007199254740993.0, "9007199254740992"},
        {0x1p-44, "5.684341886080802e-14"},
        {0x1p89, "6.189700196426902e+26"}, // short only upwards
        {INFINITY, "null"},
        {-INFINITY, "null"},
        {NAN, "null"},
    };
    char text[32];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_format_double(rows[i].value, text);
        assert_string_equal(text, rows[i].text);
    }
    json_format_float(0.1f, text);
    assert_string_equal(text, "0.1");
    json_format_float(16777216.0f, text);
    assert_string_equal(text, "16777216");
    json_format_float(1e-45f, text);
    assert_string_equal(text, "1e-45");
}

// ---- writer ------------------------------------------------------------------------------------
static void the_writer_keeps_commas_and_nesting(void **state)
{
    (void)state;
    struct buf b = {0};
    struct json_out w;
    for (int pretty = 0; pretty < 2; pretty++) {
        buf_reset(&b);
        json_out_init(&w, &b);
        w.pretty = pretty;
        json_object(&w, NULL);
        json_str(&w, "s", "x");
        json_str(&w, "n", NULL);
        json_array(&w, "a");
        json_int(&w, NULL, INT64_MIN);
        json_uint(&w, NULL, UINT64_MAX);
        json_object(&w, NULL);
        json_end(&w);
        json_end(&w);
        json_array(&w, "e");
        json_end(&w);
        json_bool(&w, "t", true);
        json_double(&w, "f", 0.1);
        json_raw(&w, "r", "{\"k\":1}");
        json_end(&w);
        json_out_clear(&w);
        assert_string_equal(buf_str(&b), pretty ? "{\n  \"s\": \"x\",\n  \"n\": null,\n  \"a\": [\n"
                                                  "    -9223372036854775808,\n"
                                                  "    18446744073709551615,\n    {}\n  ],\n"
                                                  "  \"e\": [],\n  \"t\": true,\n  \"f\": 0.1,\n"
                                                  "  \"r\": {\"k\":1}\n}"
                                                : "{\"s\":\"x\",\"n\":null,\"a\":["
                                                  "-9223372036854775808,18446744073709551615,{}],"
                                                  "\"e\":[],\"t\":true,\"f\":0.1,\"r\":{\"k\":1}}");
        assert_int_equal(verdict(b.data, b.len, NULL), 0);
    }
    buf_clear(&b);
}

static void any_bytes_become_a_string_that_reads_back(void **state)
{
    (void)state;
    struct buf b = {0};
    struct json_out w;
    json_out_init(&w, &b);
    json_strn(&w, NULL, "\"\\\b\f\n\r\t\x01\x1f/\x7f\xe2\x82\xac", 14);
    assert_string_equal(buf_str(&b),
                        "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f/\\u007f\xe2\x82\xac\"");
    assert_int_equal(verdict(b.data, b.len, NULL), 0);
    buf_reset(&b);
    json_str(&w, NULL, "a\xff\xe2\x82z");
    assert_string_equal(buf_str(&b), "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
    for (int c = 1; c < 256; c++) {
        char s[] = {(char)c, 'x', (char)c, 0};
        buf_reset(&b);
        json_str(&w, NULL, s);
        assert_int_equal(verdict(b.data, b.len, NULL), 0);
    }
    json_out_clear(&w);
    buf_clear(&b);
}

static void numbers_that_are_not_finite_are_null_and_listed_by_path(void **state)
{
    (void)state;
    struct buf b = {0};
    struct json_out w;
    json_out_init(&w, &b);
    json_object(&w, NULL);
    json_double(&w, "loss", NAN);
    json_array(&w, "groups");
    json_double(&w, NULL, 1);
    json_object(&w, NULL);
    json_double(&w, "lr", -INFINITY);
    json_end(&w);
    json_double(&w, NULL, INFINITY);
    json_end(&w);
    json_double(&w, "fine", 2);
    json_nonfinite(&w);
    json_end(&w);
    assert_string_equal(buf_str(&b), "{\"loss\":null,\"groups\":[1,{\"lr\":null},null],\"fine\":2,"
                                     "\"nonfinite\":[\"loss\",\"groups[1].lr\",\"groups[2]\"]}");
    buf_reset(&b);
    json_object(&w, NULL); // the next line of a JSONL file
    json_nonfinite(&w);
    json_end(&w);
    assert_string_equal(buf_str(&b), "{\"nonfinite\":[]}");
    json_out_clear(&w);
    buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_texts_are_accepted),
        cmocka_unit_test(invalid_texts_are_refused_with_an_offset),
        cmocka_unit_test(zero_bytes_are_refused_wherever_they_stand),
        cmocka_unit_test(the_offset_is_that_of_the_first_bad_byte),
        cmocka_unit_test(a_text_cut_anywhere_is_refused),
        cmocka_unit_test(nesting_ends_at_the_limit_however_deep_the_bomb),
        cmocka_unit_test(too_many_values_and_too_large_numbers_are_over_the_limit),
        cmocka_unit_test(many_keys_are_checked_for_duplicates_without_delay),
        cmocka_unit_test(a_tree_holds_what_the_text_says),
        cmocka_unit_test(typed_access_says_which_key_and_what_was_wanted),
        cmocka_unit_test(random_bit_patterns_survive_the_round_trip),
        cmocka_unit_test(no_digit_is_printed_that_is_not_needed),
        cmocka_unit_test(well_known_numbers_print_as_people_write_them),
        cmocka_unit_test(the_writer_keeps_commas_and_nesting),
        cmocka_unit_test(any_bytes_become_a_string_that_reads_back),
        cmocka_unit_test(numbers_that_are_not_finite_are_null_and_listed_by_path),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
