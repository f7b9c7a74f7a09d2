// SPDX-License-Identifier: Apache-2.0
// Texts that ask for too much end at a stated limit, in bounded time and memory.
#include "tests/unit/model_case.h"

static void refuse(const char *text, size_t len, const char *says)
{
    struct model_case c;
    assert_int_equal(model_case_build(&c, text, len, PROGRAM_TRAIN), ERR_INVALID);
    if (!strstr(c.e.text, says))
        assert_string_equal(c.e.text, says);
    assert_true(c.arena.bytes < 384 << 20);
    model_case_clear(&c);
}

static void refuse_buf(struct buf *text, const char *says)
{
    refuse(buf_str(text), text->len, says);
    buf_clear(text);
}

#define BEGIN "sizes\n  inputs = 4\nmodel\n  y = images\n"
#define LOSS  "  loss = sum(y) / samples\n"

static void a_text_is_read_up_to_its_most_bytes(void **state)
{
    struct buf text = {0};
    (void)state;
    while (text.len <= MODEL_MAX_BYTES)
        buf_puts(&text, "# nothing but words\n");
    refuse_buf(&text, "try at most 65536");
}

static void brackets_and_signs_nest_so_deep(void **state)
{
    static const char *const open[] = {"(", "-", "not ", "relu(", "a: ", "1 if 1 else ", "1 + "};
    (void)state;
    for (size_t k = 0; k < sizeof open / sizeof *open; k++) {
        struct buf text = {0};
        buf_puts(&text, BEGIN "  x = ");
        for (int i = 0; i < 5000; i++)
            buf_puts(&text, open[k]);
        refuse_buf(&text, k < 6 ? "this is nested more than 48 deep" : "too many operators");
    }
}

// Nothing of it is nested in what is written, and the tree is as deep as the chain is long.
static void chains_are_so_long(void **state)
{
    static const char *const heads[] = {"  repeat layers", "  x = y", "  x = a.b", "  x = relu(y)"};
    (void)state;
    for (size_t k = 0; k < sizeof heads / sizeof *heads; k++) {
        struct buf text = {0};
        buf_puts(&text, "sizes\n  inputs = 4\n  layers = 2\nmodel\n  y = images\n");
        buf_puts(&text, heads[k]);
        for (int i = 0; i < 13400; i++)
            buf_puts(&text, "{}");
        buf_puts(&text, k ? "\n" : "\n    y = relu(y)\n");
        refuse_buf(&text, "this is nested more than 192 deep");
    }
}

// Chains within brackets within chains: each is short, all together are not.
static void a_tree_is_so_deep_whatever_makes_it(void **state)
{
    struct buf text = {0};
    (void)state;
    buf_puts(&text, BEGIN "  x = ");
    for (int i = 0; i < 20; i++)
        buf_puts(&text, "(");
    buf_puts(&text, "y");
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 20; k++)
            buf_puts(&text, " + 1");
        buf_puts(&text, "){}{}");
    }
    refuse_buf(&text, "this is nested more than 192 deep");
}

static void a_parameters_path_is_so_long(void **state)
{
    struct buf text = {0};
    (void)state;
    for (int over = 0; over < 2; over++) {
        buf_puts(&text, BEGIN);
        buf_puts(&text, "  y = images @ ");
        for (int i = 0; i < 200 - (int)strlen("/weight") + over; i++)
            buf_puts(&text, "a");
        buf_puts(&text, "[inputs, b = 4]\n" LOSS);
        struct model_case c;
        if (!over) {
            assert_int_equal(model_case_build(&c, buf_str(&text), text.len, PROGRAM_TRAIN), 0);
            model_case_clear(&c);
            buf_clear(&text);
        } else
            refuse_buf(&text, "the path of this parameter has 201 bytes, over 200: aaaa");
    }
    buf_puts(&text, BEGIN); // blocks around it count, too
    for (int i = 0; i < 3; i++) {
        buf_printf(&text, "%*s", 2 * i + 2, "");
        for (int k = 0; k < 60; k++)
            buf_puts(&text, "b");
        buf_puts(&text, ":\n");
    }
    buf_puts(&text, "        y = images @ attention_of_all_heads[inputs, c = 4]\n" LOSS);
    refuse_buf(&text, "over 200: bbbb");
}

static void blocks_nest_so_deep(void **state)
{
    struct buf text = {0};
    (void)state;
    buf_puts(&text, BEGIN);
    for (int i = 0; i < 60; i++)
        buf_printf(&text, "%*srepeat 1\n", i + 2, "");
    refuse_buf(&text, "blocks are nested more than 32 deep");
}

static void else_if_may_be_so_long(void **state)
{
    struct buf text = {0};
    (void)state;
    buf_puts(&text, BEGIN "  if 0\n    x = 1\n");
    for (int i = 0; i < 1000; i++)
        buf_puts(&text, "  else if 0\n    x = 1\n");
    refuse_buf(&text, "this is nested more than 48 deep");
}

static void so_many_sizes_names_and_items(void **state)
{
    struct buf text = {0};
    (void)state;
    buf_puts(&text, "sizes\n");
    for (int i = 0; i < 1000; i++)
        buf_printf(&text, "  a%d = 1\n", i);
    refuse_buf(&text, "more than 64 sizes");
    buf_puts(&text, BEGIN);
    for (int i = 0; i < 1000; i++)
        buf_printf(&text, "  a%d = 1\n", i);
    refuse_buf(&text, "more than 256 names in one body");
    buf_puts(&text, "sizes\n  a = [1");
    for (int i = 0; i < 1000; i++)
        buf_puts(&text, ", 1");
    buf_puts(&text, "]\n"
                    "model\n  loss = 1\n");
    refuse_buf(&text, "a list of 1001 items: try 64");
}

static void so_many_layers(void **state)
{
    (void)state;
    static const char each[][200] = {BEGIN "  repeat 1000000000\n    y = relu(y)\n" LOSS,
                                     BEGIN "  repeat 600\n    y = relu(y)\n"
                                           "  repeat 600\n    y = relu(y)\n" LOSS};
    refuse(each[0], strlen(each[0]), "repeated 1e+09 times: try 0 to 1024 times");
    refuse(each[1], strlen(each[1]), "more than 1024 layers");
}

// Each line doubles what the one before it stands for.
static void functions_do_not_grow_without_bound(void **state)
{
    struct buf text = {0};
    (void)state;
    buf_puts(&text, "sizes\n  inputs = 4\nlet f0(x)\n  return relu(x)\n");
    for (int i = 1; i < 15; i++)
        buf_printf(&text, "let f%d(x)\n  return f%d(f%d(f%d(f%d(x))))\n", i, i - 1, i - 1, i - 1,
                   i - 1);
    buf_puts(&text, "model\n  y = f14(images)\n" LOSS);
    refuse_buf(&text, "the graph has more than 65536 operations");
    buf_puts(&text, "sizes\n  inputs = 4\nlet f0(x)\n  return x + 1\n");
    for (int i = 1; i < 15; i++)
        buf_printf(&text, "let f%d(x)\n  return f%d(f%d(f%d(f%d(x))))\n", i, i - 1, i - 1, i - 1,
                   i - 1);
    buf_puts(&text, "model\n  n = f14(1)\n  y = images\n" LOSS);
    refuse_buf(&text, "building the model takes more than 1048576 steps");
}

static void so_many_functions(void **state)
{
    struct buf text = {0};
    (void)state;
    for (int i = 0; i < 300; i++)
        buf_printf(&text, "let f%d(x)\n  return x\n", i);
    buf_puts(&text, BEGIN LOSS);
    refuse_buf(&text, "more than 256 functions");
}

static void so_large_a_parameter(void **state)
{
    static const char text[] = "sizes\n  inputs = 16777216\nmodel\n"
                               "  y = images @ a[inputs, b = 16777216]\n" LOSS;
    (void)state;
    refuse(text, strlen(text), "a/weight would have 2^44 elements or more");
}

static void so_many_errors_are_reported(void **state)
{
    struct model_case c;
    struct buf text = {0};
    (void)state;
    buf_puts(&text, "model\n");
    for (int i = 0; i < 1000; i++)
        buf_puts(&text, "  x = $\n");
    assert_int_equal(model_case_build(&c, buf_str(&text), text.len, PROGRAM_TRAIN), ERR_INVALID);
    assert_int_equal(c.errs.n, MODEL_MAX_ERRORS);
    assert_int_equal(c.errs.n + c.errs.more, 2000);
    model_case_clear(&c);
    buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_read_up_to_its_most_bytes),
        cmocka_unit_test(brackets_and_signs_nest_so_deep),
        cmocka_unit_test(chains_are_so_long),
        cmocka_unit_test(a_tree_is_so_deep_whatever_makes_it),
        cmocka_unit_test(a_parameters_path_is_so_long),
        cmocka_unit_test(blocks_nest_so_deep),
        cmocka_unit_test(else_if_may_be_so_long),
        cmocka_unit_test(so_many_sizes_names_and_items),
        cmocka_unit_test(so_many_layers),
        cmocka_unit_test(functions_do_not_grow_without_bound),
        cmocka_unit_test(so_many_functions),
        cmocka_unit_test(so_large_a_parameter),
        cmocka_unit_test(so_many_errors_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
