// SPDX-License-Identifier: Apache-2.0
// A program's text: its sizes and what they come to, and what is reported where the text is wrong.
#include <string.h>

#include <stdio.h>

#include "common/language/model_facts.h"
#include "tests/support/model_errors_text.h"
#include "tests/unit/unit.h"

struct text_case {
    struct arena arena;
    struct model_errors errs;
    const struct model_program *program;
    struct model_sizes sizes;
    struct buf said;
};

static int case_read(struct text_case *c, const char *text)
{
    *c = (struct text_case){0};
    arena_init(&c->arena);
    c->errs.arena = &c->arena;
    return model_program_read("t", text, strlen(text), &c->program, &c->errs);
}

static void case_clear(struct text_case *c)
{
    buf_clear(&c->said);
    arena_clear(&c->arena);
}

static const char *case_said(struct text_case *c)
{
    buf_reset(&c->said);
    put_model_errors(&c->errs, &c->said);
    return buf_str(&c->said);
}

// A text with this in its sizes section, and sizes that a job gives.
static int case_resolve(struct text_case *c, const char *text, int n,
                        const struct model_given *given)
{
    if (case_read(c, text))
        fail_msg("%s", case_said(c));
    return model_sizes_resolve(c->program, given, n, &c->sizes, &c->errs);
}

#define MODEL "model\n  loss = 1\n"

static int64_t whole(const struct text_case *c, const char *name)
{
    return model_sizes_whole(&c->sizes, name, -1);
}

static void sizes_follow_from_those_above_them(void **state)
{
    static const char text[] = "sizes\n"
                               "  size = small | large\n"
                               "  embed = [64, 128] by size\n"
                               "  heads = 4 divides embed # of attention\n"
                               "  head = embed / heads\n"
                               "  kv_heads = 8 if heads % 8 == 0 else heads\n"
                               "  mlp = floor(2.7 * embed)\n"
                               "  vocab = 250 padded 128\n" MODEL;
    static const struct model_given given[] = {{.name = "size", .text = "large"},
                                               {.name = "heads", .text = "16"}};
    struct text_case c;
    (void)state;
    assert_int_equal(case_resolve(&c, text, 2, given), 0);
    assert_int_equal(whole(&c, "embed"), 128);
    assert_int_equal(whole(&c, "head"), 8);
    assert_int_equal(whole(&c, "kv_heads"), 8);
    assert_int_equal(whole(&c, "mlp"), 345);
    assert_int_equal(c.sizes.value[model_size_find(c.program, "vocab")].padded, 256);
    assert_string_equal(c.program->sizes[2].comment, "of attention");
    assert_string_equal(c.program->sizes[3].written, "embed / heads");
    case_clear(&c);
}

static void a_default_decides_the_kind_of_its_size(void **state)
{
    static const char text[] = "sizes\n"
                               "  a = 4\n"
                               "  b = 0.0 in 0 ..< 1\n"
                               "  c = [4, 8]\n"
                               "  d = relu | gelu\n"
                               "  e = b\n"
                               "  f = sqrt(a)\n" MODEL;
    static const enum model_size_kind kinds[] = {MODEL_WHOLE,  MODEL_NUMBER, MODEL_LIST,
                                                 MODEL_CHOICE, MODEL_NUMBER, MODEL_NUMBER};
    struct text_case c;
    (void)state;
    assert_int_equal(case_resolve(&c, text, 0, NULL), 0);
    for (int i = 0; i < c.program->nsizes; i++)
        assert_int_equal(c.program->sizes[i].kind, kinds[i]);
    case_clear(&c);
}

static void a_given_size_is_refused_by_its_name(void **state)
{
    static const char text[] = "sizes\n"
                               "  embed = 768\n"
                               "  heads = 12 in 1 .. 64\n"
                               "  head = embed / heads\n"
                               "  kv = heads divides heads\n"
                               "  rate = 0.0 in 0 ..< 1\n"
                               "  hidden = [8] in 1 .. 16\n"
                               "  act = relu | gelu\n"
                               "  NH = 4\n" MODEL;
    static const char *const list[] = {"8", "17"};
    static const struct {
        struct model_given given;
        const char *says;
    } each[] = {
        {{.name = "heads", .text = "7"},
         "t:4:3: heads: head = embed / heads is 768 / 7, no whole number: try heads of 6 or 8, or "
         "a "
         "head "
         "of its own\n"},
        {{.name = "heads", .text = "65"}, "t: heads: 65 is too large: it must be at most 64\n"},
        {{.name = "heads", .text = "0"}, "t: heads: 0 is too small: it must be at least 1\n"},
        {{.name = "heads", .text = "many"}, "t: heads: must be a whole number, not 'many'\n"},
        {{.name = "kv", .text = "5"}, "t: kv: 5 does not divide heads, which is 12: try 4 or 6\n"},
        {{.name = "rate", .text = "1"}, "t: rate: 1 is too large: it must be less than 1\n"},
        {{.name = "hidden", .item = list, .n = 2},
         "t: hidden: 17 is too large: it must be at most 16\n"},
        {{.name = "hidden", .text = "8"}, "t: hidden: must be a list such as [256, 128]\n"},
        {{.name = "act", .text = "gelo"},
         "t: act: 'gelo' is not one of relu, gelu: did you mean gelu?\n"},
        {{.name = "haeds", .text = "8"}, "t: haeds: t has no such size: did you mean heads?\n"},
        {{.name = "HEADS", .text = "8"}, "t: HEADS: t has no such size: did you mean heads?\n"},
        {{.name = "NHS", .text = "8"}, "t: NHS: t has no such size: did you mean NH?\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct text_case c;
        assert_int_equal(case_resolve(&c, text, 1, &each[i].given), ERR_INVALID);
        assert_string_equal(case_said(&c), each[i].says);
        case_clear(&c);
    }
}

static void what_follows_from_a_wrong_size_is_not_reported_too(void **state)
{
    static const char text[] = "sizes\n"
                               "  heads = 12 in 1 .. 64\n"
                               "  multiple = 8 in 1 .. 64\n"
                               "  vocab = 100 padded multiple\n"
                               "  rate = 0.0 in 0 ..< 1\n" MODEL;
    static const struct model_given given[] = {{.name = "heads", .text = "65"},
                                               {.name = "vocab", .text = "50"},
                                               {.name = "rate", .text = "1"}};
    struct text_case c;
    (void)state;
    assert_int_equal(case_resolve(&c, text, 3, given), ERR_INVALID);
    assert_string_equal(case_said(&c), "t: heads: 65 is too large: it must be at most 64\n"
                                       "t: rate: 1 is too large: it must be less than 1\n");
    case_clear(&c);
}

static void a_wrong_text_is_reported_line_by_line(void **state)
{
    static const struct {
        const char *text, *says;
    } each[] = {
        {"sizes\n  a = 1 +\n  b = $\n  c 3\n" MODEL,
         "t:3:7: '$' means nothing here\nt:2:10: a value is missing\n"
         "t:3:8: a value is missing\nt:4:5: '=' is missing before '3'\n"},
        {"sizes\n  a = 5 // 2\n" MODEL, "t:2:9: '//' means nothing here: floor(a / b) is the whole "
                                        "number of two sizes\n"},
        {"model\n  x = y ** 2 + z^2\n",
         "t:2:9: '**' means nothing here: x * x is a square, there are no other powers\n"
         "t:2:17: '^' means nothing here: x * x is a square, there are no other powers\n"},
        {"sizes\n  a = b\n  b = 1\n" MODEL, "t:2:7: b is no size that is said above\n"},
        {"sizes\n  a = 1\n  a = 2\n" MODEL, "t:3:3: a is a size that has been said above\n"},
        {"sizes\n  a = 1 / 0\n" MODEL, "t:2:9: a division by zero\n"},
        {"sizes\n  a = 0\n" MODEL, "t:2:3: a: 0 is too small: it must be at least 1\n"},
        {"sizes\n  c = x | y\n  a = [1] by c\n" MODEL,
         "t:3:7: a list of 1 items by a choice of 2 words\n"},
        {"sizes\n  a = 1\n", "t:1:1: the program has no section `model`\n"},
        {"model\n  x = f(1 2)\n", "t:2:11: ',' is missing before '2'\n"},
        {"model\n  x = f(g(1)\n  y = 2\n",
         "t:2:8: this '(' is not closed: ')' is missing behind line 2\n"},
        {"model\n  loss = f(1,\n    2\n",
         "t:2:11: this '(' is not closed: ')' is missing behind line 3\n"},
        {"model\n  w = a[b, c\n", "t:2:8: this '[' is not closed: ']' is missing behind line 2\n"},
        {"model\n  x = y{b as c\n",
         "t:2:8: this '{' is not closed: '}' is missing behind line 2\n"},
        {"model\n  x = 2 * (1 + 3\n  y = 2\n",
         "t:2:11: this '(' is not closed: ')' is missing behind line 2\n"},
        {"model\n  for i in 4\n    x = 1\n",
         "t:2:3: `for` is no word of the language: try repeat COUNT as n, or repeat LIST as width, "
         "and deeper lines\n"},
        {"def f(x):\n  return x\nmodel\n  x = 1\n",
         "t:1:1: `def` is no word of the language: try let NAME(x) and deeper lines, above the "
         "section `model`\n"},
        {"model\n  repeat layers:\n    x = 1\n",
         "t:2:16: no ':' ends a line here: deeper lines follow as they are\n"},
        {"let f(x):\n  return x\nmodel\n  x = 1\n",
         "t:1:9: no ':' ends a line here: deeper lines follow as they are\n"},
        {"model\n  repeat 2\n  x = 1\n", "t:3:3: a block of deeper lines is missing\n"},
        {"model\n  layer\n  x = 1\n", "t:3:3: a block of deeper lines is missing\n"},
        {"model\n  layer 2\n    x = 1\n", "t:2:9: '=' is missing before '2'\n"},
        {"model\n  x = 1\n    y = 2\n", "t:3:5: this line is deeper than the one above it\n"},
        {"model\n    x = 1\n  y = 2\n", "t:3:3: this line is indented like no line above it\n"},
        {"model\n\tx = 1\n", "t:2:1: a tab: indent with spaces\n"},
        {"model\n  a, b, c = 1, 2\n", "t:2:3: 2 values for 3 names\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct text_case c;
        assert_int_equal(case_read(&c, each[i].text), ERR_INVALID);
        assert_null(c.program);
        if (strstr(case_said(&c), each[i].says) != case_said(&c))
            assert_string_equal(case_said(&c), each[i].says);
        case_clear(&c);
    }
}

static void every_program_of_weft_can_be_read(void **state)
{
    (void)state;
    for (const struct model_text *t = model_texts; t->name; t++) {
        struct text_case c;
        if (case_resolve(&c, t->text, 0, NULL))
            fail_msg("%s: %s", t->name, case_said(&c));
        assert_true(c.program->heading[0]);
        for (int i = 0; i < c.program->nsizes; i++)
            if (!c.program->sizes[i].comment[0])
                fail_msg("%s: %s has no comment", t->name, c.program->sizes[i].name);
        case_clear(&c);
    }
}

static void what_a_model_reads_stands_in_its_text(void **state)
{
    static const char text[] = "sizes\n  inputs = 4\nmodel\n  loss = sum(images) / samples\n";
    struct model_facts facts;
    struct text_case c;
    (void)state;
    assert_int_equal(case_resolve(&c, text, 0, NULL), 0);
    model_facts_find(&c.sizes, &facts);
    assert_true(facts.images && !facts.tokens && !facts.labels && !facts.samples);
    assert_int_equal(facts.features, 4);
    case_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_follow_from_those_above_them),
        cmocka_unit_test(a_default_decides_the_kind_of_its_size),
        cmocka_unit_test(a_given_size_is_refused_by_its_name),
        cmocka_unit_test(what_follows_from_a_wrong_size_is_not_reported_too),
        cmocka_unit_test(a_wrong_text_is_reported_line_by_line),
        cmocka_unit_test(what_a_model_reads_stands_in_its_text),
        cmocka_unit_test(every_program_of_weft_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
