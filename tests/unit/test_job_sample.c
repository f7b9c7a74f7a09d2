// SPDX-License-Identifier: Apache-2.0
// What a job says about samples, text as tokens and back, and tags.
#include "common/job/prompt.h"
#include "tests/unit/job_case.h"

#define HEAD(vocab)                                                                              \
    "name: t\nmodel: {program: gpt2, layers: 1, embed: 8, heads: 2, seq: 8, vocab: " vocab "}\n" \
    "data: {format: tokens, train: {tokens: t}, eval: {tokens: t}, batch: 2}\ntrain: {steps: 1}\n"
#define BYTES HEAD("256")
#define IDS   HEAD("5000")

static void a_prompt_is_enough_to_sample(void **state)
{
    struct job_case c;
    (void)state;
    case_valid(&c, BYTES "eval: {sample: {prompt: \"ROMEO:\"}}\n");
    assert_string_equal(c.job.eval.sample.prompt, "ROMEO:");
    assert_int_equal(c.job.eval.sample.every, 1);
    assert_int_equal(c.job.eval.sample.tokens, 100);
    assert_int_equal(c.job.eval.sample.count, 1);
    assert_true(c.job.eval.sample.temperature == 0);
    assert_string_equal(c.job.data.tokenizer, "bytes");
    case_clear(&c);
    case_valid(&c, BYTES);
    assert_null(c.job.eval.sample.prompt);
    case_clear(&c);
}

static void tokens_are_bytes_where_the_vocabulary_holds_no_more(void **state)
{
    struct job_case c;
    (void)state;
    case_valid(&c, HEAD("250"));
    assert_string_equal(c.job.data.tokenizer, "bytes");
    case_clear(&c);
    case_valid(&c, HEAD("257"));
    assert_string_equal(c.job.data.tokenizer, "ids");
    case_clear(&c);
}

static void what_prints_reads_back(void **state)
{
    static const char *const texts[] = {
        BYTES "eval: {sample: {prompt: 'a \"b\" \\n\\x00', tokens: 7}}\n",
        BYTES "eval: {sample: {prompt: ü, count: 3, temperature: 0.8, top_k: 40, seed: 2}}\n",
        IDS "eval: {every: 5, sample: {prompt: \"12 4999\", every: 3}}\n",
        IDS "eval: {sample: {prompt: \"7\"}}\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct job_case c, again;
        case_valid(&c, texts[i]);
        case_valid(&again, buf_str(&c.text));
        assert_string_equal(buf_str(&again.text), buf_str(&c.text));
        assert_string_equal(again.job.eval.sample.prompt, c.job.eval.sample.prompt);
        case_clear(&c);
        case_clear(&again);
    }
}

static void what_cannot_be_sampled_is_refused_with_its_line(void **state)
{
    (void)state;
    expect_errors(BYTES "eval: {sample: {prompt: \"\"}}\n",
                  "job.yaml:5:25: eval.sample.prompt: is empty\n");
    expect_errors(IDS "eval: {sample: {prompt: \" \"}}\n",
                  "job.yaml:5:25: eval.sample.prompt: it holds no token: one is needed to begin "
                  "with\n");
    expect_errors(BYTES "eval: {sample: {prompt: 123456789}}\n",
                  "job.yaml:5:25: eval.sample.prompt: has 9 tokens, the model reads 8 (model.seq): "
                  "try as many\n");
    expect_errors(BYTES "eval: {sample: {prompt: \"a\\n\"}}\n",
                  "job.yaml:5:25: eval.sample.prompt: a line break or control character (U+000A) "
                  "in a value: write an escape, such as \\n, in single quotes\n");
    expect_errors(BYTES "eval: {sample: {prompt: 'a\\q'}}\n",
                  "job.yaml:5:25: eval.sample.prompt: '\\q' is no escape: \\n, \\t, \\\\ and \\xNN "
                  "are (a backslash is \\\\)\n");
    expect_errors(HEAD("100") "eval: {sample: {prompt: dog}}\n",
                  "job.yaml:5:25: eval.sample.prompt: token 100 is not in 0 … 99 (model.vocab: "
                  "100)\n");
    expect_errors(IDS "eval: {sample: {prompt: ROMEO}}\n",
                  "job.yaml:5:25: eval.sample.prompt: 'ROMEO' is no token id: without a vocabulary "
                  "(ids) a text is numbers with spaces between them\n");
    expect_errors(IDS "eval: {sample: {prompt: \"1 99999999999\"}}\n",
                  "job.yaml:5:25: eval.sample.prompt: token 2147483647 is not in 0 … 4999 "
                  "(model.vocab: 5000)\n");
    expect_errors(BYTES "eval: {sample: {prompt: a, top_k: 3}}\n",
                  "job.yaml:5:35: eval.sample.top_k: acts only when eval.sample.temperature is "
                  "above 0: at 0 the most likely token is taken\n");
    expect_errors(BYTES "eval: {sample: {prompt: a, count: 2}}\n",
                  "job.yaml:5:35: eval.sample.count: acts only when eval.sample.temperature is "
                  "above 0: at 0 the most likely token is taken\n");
    expect_errors(BYTES "eval: {sample: {prompt: a, temperature: 1, top_k: 300}}\n",
                  "job.yaml:5:51: eval.sample.top_k: 300 is over model.vocab, 256: 0 stands for "
                  "all\n");
    expect_errors(
        BYTES "eval: {sample: {prompt: a, temperature: 1, count: 64, tokens: 1000}}\n",
        "job.yaml:5:63: eval.sample.tokens: 64 samples of 1000 tokens are over 8192: try 128 tokens"
        "\n");
    expect_errors(BYTES "eval: {every: 5, sample: {prompt: a, every: 0}}\n",
                  "job.yaml:5:45: eval.sample.every: 0 is too small: it must be at least 1\n");
    expect_errors(BYTES "eval: {sample: {prompt: a, every: 2}}\n",
                  "job.yaml:5:35: eval.sample.every: acts only when eval.every is above 0: at 0 "
                  "there is one evaluation, after the last step\n");
    expect_errors(
        BYTES "eval: {sample: {tokens: 5}}\n",
        "job.yaml:5:17: eval.sample.tokens: acts only when eval.sample.prompt is given\n");
}

static void escapes_are_bytes(void **state)
{
    static const int32_t want[] = {'a', '\n', '\t', '\\', 0, 255, 'n', 0xc3, 0xbc};
    struct token_ids ids = {0};
    struct tokenizer *t;
    (void)state;
    assert_int_equal(tokenizer_open(&t, "bytes", NULL), 0);
    assert_int_equal(prompt_encode("a\\n\\t\\\\\\x00\\xFfnü", t, 256, &ids, NULL), 0);
    assert_int_equal(ids.n, 9);
    assert_memory_equal(ids.data, want, sizeof want);
    token_ids_clear(&ids);
    tokenizer_close(t);
}

static void tags_are_words_that_a_list_may_have(void **state)
{
    (void)state;
    struct job_case tagged;
    case_valid(&tagged, BYTES "tags: [sweep, lr.3]\n");
    assert_int_equal(tagged.job.tags.n, 2);
    assert_string_equal(((const char *const *)tagged.job.tags.items)[1], "lr.3");
    case_clear(&tagged);
    case_valid(&tagged, BYTES "tags: sweep\n");
    assert_int_equal(tagged.job.tags.n, 1);
    case_clear(&tagged);
    expect_errors(
        BYTES "tags: [ok, a b]\n",
        "job.yaml:5:12: tags[1]: 'a b' will not do: words by which `weft jobs --tag` finds "
        "it, each of 1 to 63 of a-z 0-9 . _ - and with a letter or digit first\n");
    expect_errors(BYTES "notify: [ops, chat, ops]\n",
                  "job.yaml:5:21: notify[2]: 'ops' is there twice\n");
    expect_errors(BYTES "tags: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q]\n",
                  "job.yaml:5:7: tags: must have 0 to 16 names\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_enough_to_sample),
        cmocka_unit_test(tokens_are_bytes_where_the_vocabulary_holds_no_more),
        cmocka_unit_test(what_prints_reads_back),
        cmocka_unit_test(what_cannot_be_sampled_is_refused_with_its_line),
        cmocka_unit_test(escapes_are_bytes),
        cmocka_unit_test(tags_are_words_that_a_list_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
