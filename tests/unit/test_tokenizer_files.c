// SPDX-License-Identifier: Apache-2.0
// Every published family of tokenizers, in small: what PyPI's `tokenizers` 0.23.3 made of texts and ids.
//
// tests/unit/tokenizers/NAME.cases, a line each, of which a case has the first or begins with i:
//   p IDS    what the post-processor puts in front of every text (before the first case)
//   t TEXT   is encoded; \xNN is a byte
//   i IDS    are the text's, and are decoded; 5*300 is 300 times 5
//   d TEXT   is what comes of them, if it is not the text with U+FFFD for what is no UTF-8
//   s TEXT   without special tokens, if that differs
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/utf8.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/unit/unit.h"

struct golden {
    const char *name;
    struct tokenizer *t;
    struct tokenizer_work *w;
    struct token_ids before, want, got;
    struct buf text, decoded, skipped, out;
    bool has_text, has_skipped, is_open;
    int line, cases;
};

static void read_text(const char *s, struct buf *out)
{
    buf_reset(out);
    buf_reserve(out, 0);
    for (; *s; s++)
        if (*s == '\\') {
            buf_putc(out, (char)(hex_digit(s[2]) * 16 + hex_digit(s[3])));
            s += 3;
        } else {
            buf_putc(out, *s);
        }
}

static void read_ids(const char *s, struct token_ids *out)
{
    out->n = 0;
    for (char *end; *s; s = *end ? end + 1 : end) {
        long id = strtol(s, &end, 10), times = *end == '*' ? strtol(end + 1, &end, 10) : 1;
        while (times--)
            token_ids_put(out, (int32_t)id);
    }
}

// Python's errors="replace".
static void replace_broken(const struct buf *text, struct buf *out)
{
    size_t whole;
    buf_reset(out);
    for (size_t i = 0, n; i < text->len; i += n) {
        n = utf8_part(text->data + i, text->len - i, &whole);
        if (n == whole)
            buf_append(out, text->data + i, n);
        else
            buf_puts(out, "\ufffd");
    }
}

static void assert_ids(const struct golden *g, const struct token_ids *before)
{
    bool same = g->got.n == before->n + g->want.n &&
                (!before->n || memcmp(g->got.data, before->data, 4 * before->n) == 0) &&
                (!g->want.n || memcmp(g->got.data + before->n, g->want.data, 4 * g->want.n) == 0);
    if (!same)
        fail_msg("%s.cases, the case before line %d: other ids, %zu of them and not %zu", g->name,
                 g->line, g->got.n, before->n + g->want.n);
}

static void assert_text(struct golden *g, bool skip, const struct buf *want)
{
    buf_reset(&g->out);
    tokenizer_decode(g->t, g->want.data, g->want.n, skip, &g->out);
    if (g->out.len != want->len || (want->len && memcmp(g->out.data, want->data, want->len) != 0))
        fail_msg("%s.cases, the case before line %d: decodes to '%s'", g->name, g->line,
                 buf_str(&g->out));
}

static void check_case(struct golden *g)
{
    static const struct token_ids none;
    if (!g->is_open)
        return;
    for (int special = 0; g->has_text && special < 2; special++) {
        g->got.n = 0;
        assert_int_equal(tokenizer_encode(g->t, g->w, buf_str(&g->text), g->text.len, special == 1,
                                          &g->got, NULL),
                         0);
        assert_ids(g, special ? &g->before : &none);
    }
    assert_text(g, false, &g->decoded);
    assert_text(g, true, g->has_skipped ? &g->skipped : &g->decoded);
    g->is_open = g->has_text = g->has_skipped = false;
    g->cases++;
}

static void take_line(struct golden *g, const char *s)
{
    assert_false(*s == 't' && g->has_text && !g->is_open); // a text without ids
    if (*s == 't' || (*s == 'i' && !g->has_text) || (*s == 'i' && g->is_open))
        check_case(g);
    if (*s == 'p') {
        read_ids(s + 2, &g->before);
    } else if (*s == 't') {
        read_text(s + 2, &g->text);
        replace_broken(&g->text, &g->decoded);
        g->has_text = true;
    } else if (*s == 'i') {
        read_ids(s + 2, &g->want);
        g->is_open = true;
    } else if (*s == 'd') {
        read_text(s + 2, &g->decoded);
    } else {
        assert_int_equal(*s, 's');
        read_text(s + 2, &g->skipped);
        g->has_skipped = true;
    }
}

static void check_shape(const char *name)
{
    struct golden g = {.name = name};
    struct err e = {0};
    char path[200], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "tests/unit/tokenizers/%s.json", name);
    if (tokenizer_open(&g.t, path, &e))
        fail_msg("%s", e.text);
    g.w = tokenizer_work_new(g.t);
    snprintf(path, sizeof path, "tests/unit/tokenizers/%s.cases", name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (ssize_t n; (n = getline(&line, &room, f)) > 0;) {
        line[n - 1] = 0;
        g.line++;
        take_line(&g, line);
    }
    assert_true(g.is_open); // the last one has ids
    check_case(&g);
    assert_true(g.cases > 200);
    fclose(f);
    free(line);
    tokenizer_work_free(g.w);
    tokenizer_close(g.t);
    token_ids_clear(&g.before);
    token_ids_clear(&g.want);
    token_ids_clear(&g.got);
    buf_clear(&g.text);
    buf_clear(&g.decoded);
    buf_clear(&g.skipped);
    buf_clear(&g.out);
}

#define SHAPE(name)                \
    static void name(void **state) \
    {                              \
        (void)state;               \
        check_shape(#name);        \
    }
SHAPE(gpt2)
SHAPE(phi2)
SHAPE(gptneox)
SHAPE(starcoder2)
SHAPE(llama3)
SHAPE(qwen2)
SHAPE(qwen3_5)
SHAPE(mistral_nemo)
SHAPE(o200k)
SHAPE(phi4)
SHAPE(nanochat)
SHAPE(deepseek_v3)
SHAPE(deepseek_v2_lite)
SHAPE(llama2)
SHAPE(mistral_v01)
SHAPE(gemma2)
SHAPE(synth_options)

// ---- limits ------------------------------------------------------------------------------------
static int open_text(struct tokenizer **t, const char *normalizer, const char *post, struct err *e)
{
    struct buf json = {0};
    buf_printf(&json,
               "{\"version\": \"1.0\", \"normalizer\": %s, \"post_processor\": %s, \"decoder\": "
               "{\"type\": \"Fuse\"}, \"added_tokens\": [], \"model\": {\"type\": \"BPE\", "
               "\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}",
               normalizer, post);
    int rc = tokenizer_parse(t, buf_str(&json), json.len, NULL, 0, e);
    buf_clear(&json);
    return rc;
}

static void put_replace(struct buf *out, size_t n)
{
    buf_puts(out, "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"");
    for (size_t i = 0; i < n; i++)
        buf_putc(out, 'a');
    buf_puts(out, "\"}");
}

static void what_normalizers_make_of_a_text_has_a_limit(void **state)
{
    struct tokenizer *t;
    struct err e = {0};
    struct buf list = {0};
    (void)state;
    put_replace(&list, TOKENIZER_MAX_LITERAL + 1);
    assert_int_equal(open_text(&t, buf_str(&list), "null", &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "normalizer: Replace: content: a text of more than 1024 bytes"));
    buf_reset(&list);
    buf_puts(&list, "{\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 3; i++) {
        buf_puts(&list, i ? ", " : "");
        put_replace(&list, TOKENIZER_MAX_LITERAL);
    }
    buf_puts(&list, "]}");
    assert_int_equal(open_text(&t, buf_str(&list), "null", &e), 0);
    struct tokenizer_work *w = tokenizer_work_new(t);
    struct token_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, w, "ba", 2, false, &ids, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "the normalizers make it longer than 536870912 bytes"));
    token_ids_clear(&ids);
    tokenizer_work_free(w);
    tokenizer_close(t);
    buf_clear(&list);
}

static void a_template_puts_so_many_ids_around_a_text(void **state)
{
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        struct buf post = {0};
        buf_puts(&post,
                 "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                 "\"a\"}}, {\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": "
                 "\"a\"}}], \"pair\": [], \"special_tokens\": {\"a\": {\"id\": \"a\", \"ids\": [");
        for (int i = 0; i < TOKENIZER_MAX_AROUND / 2 + more; i++)
            buf_puts(&post, i ? ", 0" : "0");
        buf_puts(&post, "], \"tokens\": [\"a\"]}}}");
        assert_int_equal(open_text(&t, "null", buf_str(&post), &e), more ? ERR_LIMIT : 0);
        assert_true(!more || strstr(e.text, "single[2]: more than 1024 ids around a text"));
        tokenizer_close(t);
        buf_clear(&post);
    }
}

static void a_zero_in_merges_is_refused_with_its_line(void **state)
{
    static const char vocab[] = "{\"a\": 0, \"b\": 1, \"ab\": 2}", merges[] = "a b\n\0a\n";
    struct tokenizer *t = NULL;
    struct err e = {0};
    (void)state;
    assert_int_equal(tokenizer_parse(&t, vocab, sizeof vocab - 1, merges, sizeof merges - 1, &e),
                     ERR_DATA);
    assert_non_null(strstr(e.text, "merges.txt: line 2: a zero byte"));
}

static void an_added_token_has_no_id_past_the_greatest(void **state)
{
    static const char json[] =
        "{\"version\": \"1.0\", \"decoder\": {\"type\": \"Fuse\"}, \"added_tokens\": ["
        "{\"id\": 0, \"content\": \"b\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
        "false, "
        "\"normalized\": false, \"special\": true}, "
        "{\"id\": 1, \"content\": \"c\", \"single_word\": false, \"lstrip\": false, \"rstrip\": "
        "false, "
        "\"normalized\": false, \"special\": true}], \"model\": {\"type\": \"BPE\", "
        "\"vocab\": {\"a\": 0, \"b\": 4194303}, \"merges\": []}}";
    struct tokenizer *t = NULL;
    struct err e = {0};
    (void)state;
    assert_int_equal(tokenizer_parse(&t, json, sizeof json - 1, NULL, 0, &e), ERR_LIMIT);
    if (!strstr(e.text, "added_tokens[1]: its id is 4194304, and the greatest is 4194303"))
        fail_msg("%s", e.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2),
        cmocka_unit_test(phi2),
        cmocka_unit_test(gptneox),
        cmocka_unit_test(starcoder2),
        cmocka_unit_test(llama3),
        cmocka_unit_test(qwen2),
        cmocka_unit_test(qwen3_5),
        cmocka_unit_test(mistral_nemo),
        cmocka_unit_test(o200k),
        cmocka_unit_test(phi4),
        cmocka_unit_test(nanochat),
        cmocka_unit_test(deepseek_v3),
        cmocka_unit_test(llama2),
        cmocka_unit_test(deepseek_v2_lite),
        cmocka_unit_test(mistral_v01),
        cmocka_unit_test(gemma2),
        cmocka_unit_test(synth_options),
        cmocka_unit_test(what_normalizers_make_of_a_text_has_a_limit),
        cmocka_unit_test(a_template_puts_so_many_ids_around_a_text),
        cmocka_unit_test(an_added_token_has_no_id_past_the_greatest),
        cmocka_unit_test(a_zero_in_merges_is_refused_with_its_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
