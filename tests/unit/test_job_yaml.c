// SPDX-License-Identifier: Apache-2.0
// The text of a job file: what is not YAML, not text, or more of it than a job may have.
#include "tests/unit/job_case.h"

#include <stdlib.h>

static void test_an_empty_file_lacks_the_required_keys(void **state)
{
    (void)state;
    struct job_case c;
    assert_int_equal(case_read(&c, "", 0, NULL, 0), ERR_INVALID);
    assert_non_null(strstr(buf_str(&c.text), "job.yaml:1:1: name: is missing"));
    assert_non_null(strstr(buf_str(&c.text), "job.yaml:1:1: train.steps: is missing"));
    case_clear(&c);
}

static void test_comments_alone_are_an_empty_file(void **state)
{
    (void)state;
    struct job_case c;
    const char *text = "# nothing\n\n";
    case_read(&c, text, strlen(text), NULL, 0);
    assert_string_equal(c.errors.items[0].path, "name");
    case_clear(&c);
}

static void test_broken_yaml_names_the_place(void **state)
{
    (void)state;
    struct job_case c;
    const char *text = VALID "mesh: {dp: 2\noptimizer: }\n";
    case_read(&c, text, strlen(text), NULL, 0);
    assert_int_equal(c.errors.n, 1);
    assert_non_null(strstr(buf_str(&c.text), ": not YAML: "));
    assert_int_equal(c.errors.items[0].line, 6);
    assert_non_null(
        strstr(buf_str(&c.text), "while parsing a flow mapping that begins in line 5\n"));
    case_clear(&c);
}

static void test_a_pattern_without_quotes_is_refused_with_them(void **state)
{
    (void)state;
    expect_errors(VALID "mesh: {dp: *.bin}\n",
                  "job.yaml:5:13: not YAML: did not find expected alphabetic or numeric character "
                  "while scanning an alias: a text that begins with * or & stands in quotes\n");
}

static void test_a_tab_as_indentation_is_named(void **state)
{
    (void)state;
    expect_errors(VALID "mesh:\n\tdp: 2\n",
                  "job.yaml:6:1: a tab in the indentation: YAML wants spaces\n");
}

static void test_a_tab_between_values_is_harmless(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "mesh:\t{dp:\t2}\t# two\n");
    case_clear(&c);
}

static void test_a_byte_order_mark_means_nothing(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, "\xef\xbb\xbf" VALID);
    case_clear(&c);
    expect_errors("\xef\xbb\xbfnane: tiny\n" MODEL_LINE DATA_LINE TRAIN_LINE,
                  "job.yaml:1:1: nane: unknown key: did you mean name?\n"
                  "job.yaml:1:1: name: is missing: a name has 1 to 63 of a-z 0-9 . _ - and starts "
                  "with a letter or digit\n");
}

static void test_a_byte_order_mark_elsewhere_is_a_control_character(void **state)
{
    (void)state;
    expect_errors(NAME_LINE "# \xef\xbb\xbf\n", "job.yaml:2:3: control character U+FEFF\n");
}

static void test_utf16_is_named_and_noise_is_not(void **state)
{
    (void)state;
    struct job_case c;
    case_read(&c, "\xff\xfen\0a\0", 6, NULL, 0);
    assert_string_equal(buf_str(&c.text), "job.yaml:1:1: the file is UTF-16: save it as UTF-8\n");
    case_clear(&c);
}

static void test_a_zero_byte_is_named(void **state)
{
    (void)state;
    struct job_case c;
    case_read(&c, "name: t\0y\n", 10, NULL, 0);
    assert_string_equal(buf_str(&c.text), "job.yaml:1:8: a zero byte: this is not a text file\n");
    case_clear(&c);
}

static void test_bytes_that_are_not_utf8_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"a: \xe4\n", "job.yaml:1:4: byte 0xe4 is not UTF-8: save the file as UTF-8\n"},
        {"\n\xc0\xaf",
         "job.yaml:2:1: byte 0xc0 is not UTF-8: save the file as UTF-8\n"}, // overlong
        {"\xed\xa0\x80",
         "job.yaml:1:1: byte 0xed is not UTF-8: save the file as UTF-8\n"}, // surrogate
        {"\xe0\x80\x80", "job.yaml:1:1: byte 0xe0 is not UTF-8: save the file as UTF-8\n"},
        {"\xf4\x90\x80\x80", "job.yaml:1:1: byte 0xf4 is not UTF-8: save the file as UTF-8\n"},
        {"\xc3\xa4\xf0\x9f",
         "job.yaml:1:2: byte 0xf0 is not UTF-8: save the file as UTF-8\n"}, // cut
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_errors(cases[i].text, cases[i].error);
}

static void test_control_characters_are_refused_raw_and_escaped(void **state)
{
    (void)state;
    expect_errors("a: \x1b\n", "job.yaml:1:4: control character U+001B\n");
    expect_errors(VALID "checkpoint: {dir: \"a\\0b\"}\n",
                  "job.yaml:5:19: checkpoint.dir: a line break or control character (U+0000) in a "
                  "value\n");
    expect_errors(VALID "checkpoint: {dir: \"a\\nb\"}\n",
                  "job.yaml:5:19: checkpoint.dir: a line break or control character (U+000A) in a "
                  "value\n");
}

static void test_a_key_given_twice_names_both_lines(void **state)
{
    (void)state;
    expect_errors(VALID "metrics: {jsonl: true}\n" NAME_LINE "metrics:\n  jsonl: false\n",
                  "job.yaml:6:1: name: the key is given twice, before in line 1\n"
                  "job.yaml:7:1: metrics: the key is given twice, before in line 5\n");
    expect_errors(VALID "checkpoint:\n  keep: 2\n  keep: 3\n",
                  "job.yaml:7:3: checkpoint.keep: the key is given twice, before in line 6\n");
}

static void test_keys_that_are_not_words_are_refused(void **state)
{
    (void)state;
    expect_errors(VALID "? [a, b]\n: 1\n? {c: d}\n: {e: f}\n",
                  "job.yaml:5:3: a key must be a word, not a list\n"
                  "job.yaml:7:3: a key must be a word, not a map\n");
}

static void test_anchors_aliases_and_tags_are_refused_where_they_stand(void **state)
{
    (void)state;
    expect_errors(VALID "checkpoint: {every: &e 5, keep: *e}\nmetrics: {jsonl: !!bool true}\n",
                  "job.yaml:5:21: checkpoint.every: anchors (&) are not part of job files: write "
                  "the value out\n"
                  "job.yaml:5:33: checkpoint.keep: aliases (*e) are not part of job files: write "
                  "the value out\n"
                  "job.yaml:6:18: metrics.jsonl: tags (!) are not part of job files\n");
}

static void test_a_section_that_cannot_be_read_is_reported_once(void **state)
{
    static const char *const says[][2] = {
        {"*a",
         "job.yaml:2:8: model: aliases (*a) are not part of job files: write the value out\n"},
        {"[1]", "job.yaml:2:8: model: must be a map of keys, not a list\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        char text[400];
        snprintf(text, sizeof text, NAME_LINE "model: %s\n" DATA_LINE TRAIN_LINE, says[i][0]);
        expect_errors(text, says[i][1]);
    }
}

static void test_an_alias_bomb_costs_no_more_than_its_text(void **state)
{
    (void)state;
    struct buf text = {0};
    buf_puts(&text, "a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 30; i++) {
        buf_printf(&text, "a%d: &a%d [", i, i);
        for (int k = 0; k < 9; k++)
            buf_printf(&text, "%s*a%d", k ? ", " : "", i - 1);
        buf_puts(&text, "]\n");
    }
    struct job_case c;
    case_read(&c, text.data, text.len, NULL, 0);
    assert_int_equal(c.errors.n, JOB_MAX_ERRORS);
    assert_true(c.errors.more > 0);
    assert_true(c.arena.bytes < (1 << 21));
    case_clear(&c);
    buf_clear(&text);
}

static void test_nesting_is_bounded(void **state)
{
    (void)state;
    char text[40] = "";
    memset(text, '[', JOB_MAX_DEPTH + 1);
    expect_errors(text, "job.yaml:1:17: nested deeper than 16\n");
    memset(text, ']', 2 * JOB_MAX_DEPTH);
    memset(text, '[', JOB_MAX_DEPTH);
    text[2 * JOB_MAX_DEPTH] = 0;
    expect_errors(text, "job.yaml:1:1: a job is a map of keys, not a list\n");
}

static void test_a_hundred_thousand_brackets_are_refused_like_seventeen(void **state)
{
    (void)state;
    char *text = malloc(100000);
    assert_non_null(text);
    memset(text, '[', 100000);
    struct job_case c;
    case_read(&c, text, 100000, NULL, 0);
    assert_string_equal(buf_str(&c.text), "job.yaml:1:17: nested deeper than 16\n");
    case_clear(&c);
    free(text);
}

static void test_the_number_of_values_is_bounded(void **state)
{
    (void)state;
    struct buf text = {0};
    buf_puts(&text, "a: [");
    for (int i = 0; i < JOB_MAX_NODES; i++)
        buf_puts(&text, "1,");
    struct job_case c;
    case_read(&c, text.data, text.len, NULL, 0);
    assert_int_equal(c.errors.n, 1);
    assert_string_equal(c.errors.items[0].message, "more than 10000 keys and values");
    case_clear(&c);
    buf_clear(&text);
}

static void test_more_than_a_mebibyte_is_refused_unread(void **state)
{
    (void)state;
    size_t len = 10 << 20;
    char *text = calloc(1, len); // zero bytes: looking into it would give another error
    assert_non_null(text);
    struct job_case c;
    case_read(&c, text, len, NULL, 0);
    assert_string_equal(buf_str(&c.text),
                        "job.yaml: 10485760 bytes, more than the 1048576 a job file may have\n");
    case_clear(&c);
    free(text);
}

static void test_a_second_document_is_refused(void **state)
{
    (void)state;
    expect_errors(VALID "---\nname: other\n",
                  "job.yaml:5:1: a second document (---): a job file has one\n");
}

static void test_directives_are_refused(void **state)
{
    (void)state;
    expect_errors("# one\n%TAG !a! b\n---\n" VALID,
                  "job.yaml:2:1: directives (%) are not part of job files\n");
    expect_errors("# old Macintosh\r# lines\r%TAG !a! b\r---\r",
                  "job.yaml:3:1: directives (%) are not part of job files\n");
    expect_errors("# DOS\r\n%TAG !a! b\r\n",
                  "job.yaml:2:1: directives (%) are not part of job files\n");
}

static void test_a_job_is_a_map(void **state)
{
    (void)state;
    expect_errors("- a\n", "job.yaml:1:1: a job is a map of keys, not a list\n");
    expect_errors("hello\n", "job.yaml:1:1: a job is a map of keys, not a single value\n");
    expect_errors("*a\n", "job.yaml:1:1: aliases (*a) are not part of job files: write the value "
                          "out\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_file_lacks_the_required_keys),
        cmocka_unit_test(test_comments_alone_are_an_empty_file),
        cmocka_unit_test(test_broken_yaml_names_the_place),
        cmocka_unit_test(test_a_pattern_without_quotes_is_refused_with_them),
        cmocka_unit_test(test_a_tab_as_indentation_is_named),
        cmocka_unit_test(test_a_tab_between_values_is_harmless),
        cmocka_unit_test(test_a_byte_order_mark_means_nothing),
        cmocka_unit_test(test_a_byte_order_mark_elsewhere_is_a_control_character),
        cmocka_unit_test(test_utf16_is_named_and_noise_is_not),
        cmocka_unit_test(test_a_zero_byte_is_named),
        cmocka_unit_test(test_bytes_that_are_not_utf8_are_named),
        cmocka_unit_test(test_control_characters_are_refused_raw_and_escaped),
        cmocka_unit_test(test_a_key_given_twice_names_both_lines),
        cmocka_unit_test(test_keys_that_are_not_words_are_refused),
        cmocka_unit_test(test_anchors_aliases_and_tags_are_refused_where_they_stand),
        cmocka_unit_test(test_a_section_that_cannot_be_read_is_reported_once),
        cmocka_unit_test(test_an_alias_bomb_costs_no_more_than_its_text),
        cmocka_unit_test(test_nesting_is_bounded),
        cmocka_unit_test(test_a_hundred_thousand_brackets_are_refused_like_seventeen),
        cmocka_unit_test(test_the_number_of_values_is_bounded),
        cmocka_unit_test(test_more_than_a_mebibyte_is_refused_unread),
        cmocka_unit_test(test_a_second_document_is_refused),
        cmocka_unit_test(test_directives_are_refused),
        cmocka_unit_test(test_a_job_is_a_map),
    };
    return cmocka_run_group_tests_name("job_yaml", tests, NULL, NULL);
}
