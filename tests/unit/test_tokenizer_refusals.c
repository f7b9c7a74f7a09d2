// SPDX-License-Identifier: Apache-2.0
// What is wrong in a tokenizer's file, by its name and place; and GPT-2's two files beside the same
// tokenizer in one.
//
// A case is a small file that is read, of which one text is replaced. Tables hold ` for the
// quotation marks of JSON.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/unit/scratch.h"

static const char good[] =
    "{`version`:`1.0`,`truncation`:null,`padding`:null,`added_tokens`:["
    "{`id`:4,`content`:`<s>`,`single_word`:false,`lstrip`:false,`rstrip`:false,`normalized`:false,"
    "`special`:true}],`normalizer`:{`type`:`NFC`},`pre_tokenizer`:{`type`:`Digits`,"
    "`individual_digits`:true},`post_processor`:{`type`:`TemplateProcessing`,`single`:["
    "{`SpecialToken`:{`id`:`<s>`,`type_id`:0}},{`Sequence`:{`id`:`A`,`type_id`:0}}],`pair`:[],"
    "`special_tokens`:{`<s>`:{`id`:`<s>`,`ids`:[4],`tokens`:[`<s>`]}}},`decoder`:{`type`:`Fuse`},"
    "`model`:{`type`:`BPE`,`dropout`:null,`unk_token`:null,`continuing_subword_prefix`:null,"
    "`end_of_word_suffix`:null,`fuse_unk`:false,`byte_fallback`:false,`ignore_merges`:false,"
    "`vocab`:{`a`:0,`b`:1,`ab`:2,`?`:3},`merges`:[`a b`]}}";

#define NORMALIZER    "{`type`:`NFC`}"
#define PRE_TOKENIZER "{`type`:`Digits`,`individual_digits`:true}"
#define DECODER       "{`type`:`Fuse`}"
#define SPLIT(regex) \
    "{`type`:`Split`,`pattern`:{`Regex`:`" regex "`},`behavior`:`Isolated`,`invert`:false}"
#define PATTERN(regex, says)                                        \
    {                                                               \
        PRE_TOKENIZER, SPLIT(regex), ERR_UNSUPPORTED,               \
            "pre_tokenizer: Split: pattern: the expression's " says \
    }
#define NEST8 "[[[[[[[["

static const struct refusal {
    const char *from, *to;
    int code;
    const char *says;
} refusals[] = {
    // the text
    {"{`version`", "{`version`:`1.0`,`version`", ERR_DATA, "key 'version' is there twice"},
    {"`b`:1", "`a`:1", ERR_DATA, "key 'a' is there twice"},
    {"[`a b`]", NEST8 NEST8 NEST8 NEST8, ERR_LIMIT, "nested deeper than 32"},
    {"[`a b`]}}", "[`a b`]}", ERR_DATA, "JSON at byte"},
    {"`a b`", "`a \\u0000b`", ERR_DATA, "JSON at byte"},
    // the top
    {"`1.0`", "`2.0`", ERR_UNSUPPORTED, "version: 2.0 is not read, only 1.0"},
    {"`version`:`1.0`,", "", ERR_DATA, "'version' is missing"},
    {"`padding`", "`stuffing`:1,`padding`", ERR_UNSUPPORTED, "key 'stuffing' is not known"},
    {"`truncation`:null", "`truncation`:{`max_length`:8}", ERR_UNSUPPORTED,
     "truncation: texts are never cut"},
    {"`padding`:null", "`padding`:{}", ERR_UNSUPPORTED, "padding: texts are never filled up"},
    {"`decoder`:" DECODER, "`decoder`:null", ERR_UNSUPPORTED, "decoder: there is none"},
    // normalizers
    {NORMALIZER, "{`type`:`Lowercase`}", ERR_UNSUPPORTED,
     "normalizer: type Lowercase is not read: NFC, Replace, Prepend, Sequence are"},
    {NORMALIZER, "{`type`:`Sequence`,`normalizers`:[{`type`:`NFC`},{`type`:`NFKC`}]}",
     ERR_UNSUPPORTED, "normalizer: Sequence: normalizers[1]: type NFKC is not read"},
    {NORMALIZER, "{`type`:`NFC`,`strip`:true}", ERR_UNSUPPORTED,
     "normalizer: NFC: key 'strip' is not known"},
    {NORMALIZER, "{}", ERR_DATA, "normalizer: 'type' is missing"},
    {NORMALIZER, "7", ERR_DATA, "normalizer: is not an object"},
    {NORMALIZER, "{`type`:`Replace`,`pattern`:{`Regex`:`a+`},`content`:`b`}", ERR_UNSUPPORTED,
     "normalizer: Replace: pattern: Replace by Regex is not read, only by String"},
    {NORMALIZER, "{`type`:`Replace`,`pattern`:{`String`:``},`content`:`b`}", ERR_UNSUPPORTED,
     "normalizer: Replace: pattern: the empty text, which is everywhere"},
    {NORMALIZER, "{`type`:`Replace`,`pattern`:{`String`:`a`}}", ERR_DATA,
     "normalizer: Replace: 'content' is missing"},
    // pre-tokenizers
    {PRE_TOKENIZER, "{`type`:`BertPreTokenizer`}", ERR_UNSUPPORTED,
     "pre_tokenizer: type BertPreTokenizer is not read: Split, ByteLevel, Digits, Metaspace, "
     "Sequence are"},
    {PRE_TOKENIZER, "{`type`:`Digits`}", ERR_DATA,
     "pre_tokenizer: Digits: 'individual_digits' is missing"},
    {PRE_TOKENIZER, "{`type`:`Digits`,`individual_digits`:1}", ERR_DATA,
     "pre_tokenizer: Digits: 'individual_digits' is not true or false"},
    {PRE_TOKENIZER,
     "{`type`:`Split`,`pattern`:{`String`:`a`},`behavior`:`Swallowed`,`invert`:false}",
     ERR_UNSUPPORTED, "pre_tokenizer: Split: 'behavior' is 'Swallowed', which is not read"},
    {PRE_TOKENIZER, "{`type`:`Metaspace`,`replacement`:`_`,`prepend_scheme`:`always`,`split`:true}",
     ERR_UNSUPPORTED, "pre_tokenizer: Metaspace: 'replacement' is '_', and only ▁ is read"},
    {PRE_TOKENIZER, "{`type`:`Metaspace`,`replacement`:`▁`,`prepend_scheme`:`first`,`split`:true}",
     ERR_UNSUPPORTED,
     "pre_tokenizer: Metaspace: prepend_scheme 'first' is not read behind a normalizer"},
    {PRE_TOKENIZER,
     "{`type`:`Sequence`,`pretokenizers`:[{`type`:`ByteLevel`,`add_prefix_space`:false,"
     "`trim_offsets`:true},{`type`:`Digits`,`individual_digits`:true}]}",
     ERR_UNSUPPORTED,
     "pre_tokenizer: Sequence: pretokenizers[1]: Digits: stands behind ByteLevel, which is read "
     "as"},
    PATTERN("\\\\p{N}{1,3}+", "'{1,3}+' at byte 5: Oniguruma reads it in a way of its own"),
    PATTERN("[\\\\p{L}&&[^a]]+", "'&&' at byte 6: a class in a class is not read"),
    PATTERN("\\\\p{Han}+", "'\\p{Han}' at byte 0: of properties"),
    PATTERN("(?i:'s)", "'(?i:' at byte 0: of groups"),
    PATTERN("(?<=a)b", "'(?<=' at byte 0: of groups"),
    {PRE_TOKENIZER, SPLIT("a*"), ERR_UNSUPPORTED,
     "pre_tokenizer: Split: pattern: the expression matches the empty text"},
    {PRE_TOKENIZER, SPLIT("(a"), ERR_DATA, "pre_tokenizer: Split: pattern: no regular expression:"},
    // decoders
    {DECODER, "{`type`:`WordPiece`,`prefix`:`##`,`cleanup`:true}", ERR_UNSUPPORTED,
     "decoder: type WordPiece is not read: ByteLevel, Replace, ByteFallback, Fuse, Strip, "
     "Sequence are"},
    {DECODER, "{`type`:`Strip`,`content`:` `,`start`:1,`stop`:1}", ERR_UNSUPPORTED,
     "decoder: Strip: only start is read, and stop: 0"},
    {DECODER, "{`type`:`Strip`,`content`:`ab`,`start`:1,`stop`:0}", ERR_DATA,
     "decoder: Strip: 'content' is not one character"},
    // the post-processor
    {"`TemplateProcessing`", "`RobertaProcessing`", ERR_UNSUPPORTED,
     "post_processor: type RobertaProcessing is not read: ByteLevel, TemplateProcessing, Sequence"},
    {"`ids`:[4]", "`ids`:[5]", ERR_DATA,
     "post_processor: TemplateProcessing: single[0]: special_tokens: '<s>' has an id that no "
     "token"},
    {"`SpecialToken`:{`id`:`<s>`", "`SpecialToken`:{`id`:`</s>`", ERR_DATA,
     "post_processor: TemplateProcessing: single[0]: '</s>' is missing"},
    {"`Sequence`:{`id`:`A`", "`Sequence`:{`id`:`B`", ERR_UNSUPPORTED,
     "post_processor: TemplateProcessing: single[1]: a second text: one Sequence, A, is read"},
    {",{`Sequence`:{`id`:`A`,`type_id`:0}}", "", ERR_UNSUPPORTED,
     "post_processor: TemplateProcessing: single: it holds no Sequence, the text itself"},
    // the model
    {"`type`:`BPE`", "`type`:`WordPiece`", ERR_UNSUPPORTED,
     "model: type WordPiece is not read: BPE is"},
    {"`type`:`BPE`", "`type`:`BPE`,`max_input_chars_per_word`:100", ERR_UNSUPPORTED,
     "model: key 'max_input_chars_per_word' is not known"},
    {"`dropout`:null", "`dropout`:0.1", ERR_UNSUPPORTED, "model: dropout: ids would be drawn"},
    {"`continuing_subword_prefix`:null", "`continuing_subword_prefix`:`##`", ERR_UNSUPPORTED,
     "model: continuing_subword_prefix is not read, only \"\" or null"},
    {"`end_of_word_suffix`:null", "`end_of_word_suffix`:`</w>`", ERR_UNSUPPORTED,
     "model: end_of_word_suffix is not read, only \"\" or null"},
    {"`fuse_unk`:false", "`fuse_unk`:0", ERR_DATA, "model: 'fuse_unk' is not true or false"},
    {"`unk_token`:null", "`unk_token`:`<unk>`", ERR_DATA, "model: unk_token: is no token of vocab"},
    {"`merges`:[`a b`]", "`merges`:{}", ERR_DATA, "model: 'merges' is not an array"},
    {"{`a`:0,`b`:1,`ab`:2,`?`:3}", "{}", ERR_DATA, "model: vocab: holds no token"},
    {"`b`:1", "`b`:0", ERR_DATA, "model: vocab: 'b' has id 0, which is that of 'a'"},
    {"`b`:1", "`b`:-1", ERR_DATA, "model: vocab: 'b' has no id"},
    {"`b`:1", "`b`:1.5", ERR_DATA, "model: vocab: 'b' has no id"},
    {"`b`:1", "`b`:4194304", ERR_LIMIT, "model: vocab: 'b' has id 4194304, and ids end at 4194303"},
    {"`b`:1", "`b`:9223372036854775807", ERR_LIMIT, "and ids end at 4194303"},
    {"`a b`", "`a b`,`ab`", ERR_DATA,
     "model: merges[1]: 'ab' is not two tokens with a space between"},
    {"`a b`", "`a  b`", ERR_DATA, "model: merges[0]: 'a  b' is not two tokens"},
    {"`a b`", "`x b`", ERR_DATA, "model: merges[0]: 'x' and 'b': the first is no token"},
    {"`a b`", "`a x`", ERR_DATA, "model: merges[0]: 'a' and 'x': the second is no token"},
    {"`a b`", "`a b`,`b a`", ERR_DATA, "model: merges[1]: 'b' and 'a': joined they are no token"},
    {"`a b`", "[`a`,`b`,`b`]", ERR_DATA, "model: merges[0]: is not two tokens"},
    {"`a b`", "`a b`,[`a`,`b`]", ERR_DATA, "model: merges[1]: all are texts, or all are pairs"},
    // added tokens
    {"`id`:4,", "`id`:4,`score`:1,", ERR_UNSUPPORTED, "added_tokens[0]: key 'score' is not known"},
    {"`lstrip`:false,", "", ERR_DATA, "added_tokens[0]: 'lstrip' is missing"},
    {"`lstrip`:false,", "`lstrip`:`no`,", ERR_DATA,
     "added_tokens[0]: 'lstrip' is not true or false"},
    {"`added_tokens`:[", "`added_tokens`:[7,", ERR_DATA, "added_tokens[0]: is not an object"},
    {"`special`:true}]",
     "`special`:true},{`id`:5,`content`:`<s>`,`single_word`:false,`lstrip`:false,"
     "`rstrip`:false,`normalized`:false,`special`:true}]",
     ERR_UNSUPPORTED, "added_tokens: '<s>' is there twice"},
};

static char *json_of(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    struct buf out = {0};
    assert_non_null(at);
    assert_null(strstr(at + 1, from)); // one place alone
    buf_append(&out, text, (size_t)(at - text));
    buf_puts(&out, to);
    buf_puts(&out, at + strlen(from));
    for (char *c = out.data; *c; c++)
        *c = *c == '`' ? '"' : *c;
    return out.data;
}

static void assert_refused(char *json, int code, const char *says)
{
    struct tokenizer *t;
    struct err e = {0};
    int rc = tokenizer_parse(&t, json, strlen(json), NULL, 0, &e);
    free(json);
    assert_null(t);
    if (rc != code || !strstr(e.text, says))
        fail_msg("not '%s' (%d) but '%s' (%d)", says, code, rc ? e.text : "read", rc);
}

static void the_file_of_these_cases_is_read(void **state)
{
    struct tokenizer *t;
    struct err e = {0};
    char *json = json_of(good, "`1.0`", "`1.0`");
    (void)state;
    if (tokenizer_parse(&t, json, strlen(json), NULL, 0, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tokenizer_vocab(t), 5);
    tokenizer_close(t);
    free(json);
}

static void each_is_refused_by_its_name_and_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        assert_refused(json_of(good, refusals[i].from, refusals[i].to), refusals[i].code,
                       refusals[i].says);
}

// `one` n times, with commas.
static char *repeat(const char *one, int n)
{
    struct buf out = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&out, "%s%s", i ? "," : "", one);
    return out.data;
}

static void what_is_too_much_is_refused(void **state)
{
    char content[TOKENIZER_MAX_ADDED_BYTES + 40] = "`content`:`";
    struct buf list = {0};
    (void)state;
    memset(content + strlen(content), 'x', TOKENIZER_MAX_ADDED_BYTES + 1);
    assert_refused(json_of(good, "`content`:`<s>", content), ERR_LIMIT,
                   "added_tokens[0]: a content of more than 1024 bytes");
    char *many = repeat("7", TOKENIZER_MAX_ADDED);
    buf_printf(&list, "`added_tokens`:[%s,", many);
    assert_refused(json_of(good, "`added_tokens`:[", list.data), ERR_LIMIT,
                   "added_tokens: more than 65536");
    free(many);
    buf_reset(&list);
    many = repeat(NORMALIZER, 17);
    buf_printf(&list, "{`type`:`Sequence`,`normalizers`:[%s]}", many);
    assert_refused(json_of(good, NORMALIZER, list.data), ERR_LIMIT,
                   "normalizer: Sequence: normalizers[16]: NFC: more than 16 of them in a row");
    free(many);
    buf_clear(&list);
}

// ---- vocab.json and merges.txt -----------------------------------------------------------------
struct pair {
    struct buf json, vocab, merges; // one tokenizer in both forms
};

static void read_text_of(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        buf_putc(out, (char)c);
    fclose(f);
}

static void make_pair(struct pair *p)
{
    struct arena tree;
    struct json *top;
    struct json_out w;
    const struct json *model, *vocab, *merges;
    *p = (struct pair){0};
    read_text_of("tests/unit/tokenizers/gpt2.json", &p->json);
    arena_init(&tree);
    assert_int_equal(json_parse(&tree, p->json.data, p->json.len, &top, NULL), 0);
    assert_int_equal(json_get_object(top, "model", &model, NULL), 0);
    assert_int_equal(json_get_object(model, "vocab", &vocab, NULL), 0);
    assert_int_equal(json_get_array(model, "merges", &merges, NULL), 0);
    json_out_init(&w, &p->vocab);
    json_object(&w, NULL);
    for (const struct json *v = vocab->first; v; v = v->next)
        json_int(&w, v->key, v->integer);
    json_end(&w);
    json_out_clear(&w);
    buf_puts(&p->merges, "#version: 0.2\n");
    for (const struct json *m = merges->first; m; m = m->next)
        buf_printf(&p->merges, "%s\n", m->string);
    arena_clear(&tree);
}

static void clear_pair(struct pair *p)
{
    buf_clear(&p->json);
    buf_clear(&p->vocab);
    buf_clear(&p->merges);
}

// Of every line of gpt2.cases, and of all of them as one text.
static void assert_same_ids(const struct tokenizer *a, const struct tokenizer *b)
{
    struct tokenizer_work *wa = tokenizer_work_new(a), *wb = tokenizer_work_new(b);
    struct token_ids ia = {0}, ib = {0};
    struct buf texts = {0};
    size_t n = 0;
    read_text_of("tests/unit/tokenizers/gpt2.cases", &texts);
    for (const char *text = texts.data, *end; *text; text = end + 1, n++) {
        end = strchr(text, '\n');
        size_t bytes = n ? (size_t)(end - text) : texts.len; // the first: all lines at once
        assert_int_equal(tokenizer_encode(a, wa, text, bytes, true, &ia, NULL), 0);
        assert_int_equal(tokenizer_encode(b, wb, text, bytes, true, &ib, NULL), 0);
    }
    assert_true(n > 400 && ia.n > 10000);
    assert_int_equal(ia.n, ib.n);
    assert_memory_equal(ia.data, ib.data, ia.n * sizeof *ia.data);
    buf_clear(&texts);
    token_ids_clear(&ia);
    token_ids_clear(&ib);
    tokenizer_work_free(wa);
    tokenizer_work_free(wb);
}

static void both_forms_of_gpt2_give_the_same_ids(void **state)
{
    struct pair p;
    struct scratch s;
    struct tokenizer *one, *two, *kept;
    struct err e = {0};
    (void)state;
    make_pair(&p);
    assert_int_equal(tokenizer_parse(&one, p.json.data, p.json.len, NULL, 0, &e), 0);
    if (tokenizer_parse(&two, p.vocab.data, p.vocab.len, p.merges.data, p.merges.len, &e))
        fail_msg("%s", e.text);
    assert_int_equal(tokenizer_vocab(two), tokenizer_vocab(one));
    assert_int_equal(tokenizer_id(two, "<|endoftext|>"), tokenizer_id(one, "<|endoftext|>"));
    assert_same_ids(one, two);
    scratch_make(&s);
    assert_int_equal(tokenizer_save(two, AT_FDCWD, s.dir, &e), 0);
    if (tokenizer_open(&kept, s.dir, &e))
        fail_msg("%s", e.text);
    assert_string_equal(tokenizer_identity(kept), tokenizer_identity(two));
    assert_string_not_equal(tokenizer_identity(two), tokenizer_identity(one));
    int32_t differs;
    assert_true(tokenizer_extends(one, two, &differs) && tokenizer_extends(two, one, &differs));
    assert_same_ids(one, kept);
    scratch_remove(&s);
    tokenizer_close(one);
    tokenizer_close(two);
    tokenizer_close(kept);
    clear_pair(&p);
}

static void what_is_wrong_in_either_file_is_said_with_its_name(void **state)
{
    static const char vocab[] = "{\"a\":0,\"b\":1,\"ab\":2}";
    static const struct {
        const char *vocab, *merges, *says;
    } wrong[] = {
        {"[]", "a b\n", "vocab.json: is not an object"},
        {"{\"a\":0", "a b\n", "vocab.json: JSON at byte"},
        {"{\"a\":0,\"b\":0}", "", "vocab.json: vocab: 'b' has id 0, which is that of 'a'"},
        {vocab, "#version: 0.2\na b\nb a\n", "merges.txt: merges[1]: 'b' and 'a': joined they"},
        {vocab, "ab\n", "merges.txt: merges[0]: 'ab' is not two tokens with a space between"},
        {vocab, "a c\r\n", "merges.txt: merges[0]: 'a' and 'c': the second is no token"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct tokenizer *t;
        struct err e = {0};
        assert_int_not_equal(tokenizer_parse(&t, wrong[i].vocab, strlen(wrong[i].vocab),
                                             wrong[i].merges, strlen(wrong[i].merges), &e),
                             0);
        assert_null(t);
        if (!strstr(e.text, wrong[i].says))
            fail_msg("not '%s' but '%s'", wrong[i].says, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_of_these_cases_is_read),
        cmocka_unit_test(each_is_refused_by_its_name_and_place),
        cmocka_unit_test(what_is_too_much_is_refused),
        cmocka_unit_test(both_forms_of_gpt2_give_the_same_ids),
        cmocka_unit_test(what_is_wrong_in_either_file_is_said_with_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
