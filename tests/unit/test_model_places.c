// SPDX-License-Identifier: Apache-2.0
// What the text of a model does not show: where it takes the order of a sequence for that of its
// positions, and where it reads of a microbatch what is the step's; and what it says of words that
// other languages have.
#include "common/compile/graph/carry.h"
#include "tests/unit/model_case.h"

#define SIZES                                                                               \
    "sizes\n  embed = 8\n  heads = 2\n  head = 4\n  seq = 6\n  vocab = 10\n  experts = 4\n" \
    "model\n  x = embed(tokens, tok[vocab, embed])\n"
// `lines` begin at line 10.
#define DECODER(lines) SIZES lines "  loss += mean(x * x)\n"

// Of a microbatch of 4 samples, the step's being `step`.
static int build(struct model_case *c, const char *text, int64_t step, enum program_kind kind)
{
    const struct model_run run = {.kind = kind, .batch = 4, .step_batch = step, .seed = 1};
    *c = (struct model_case){0};
    arena_init(&c->arena);
    c->errs.arena = &c->arena;
    if (model_program_read("t", text, strlen(text), &c->program, &c->errs) ||
        model_sizes_resolve(c->program, NULL, 0, &c->sizes, &c->errs))
        return first_model_error(&c->errs, &c->e);
    dims_init(&c->dims, &c->arena);
    graph_init(&c->g, &c->arena, &c->dims, &c->e);
    return model_build(&c->g, &c->sizes, &run);
}

// ---- the order of a sequence -------------------------------------------------------------------

static void who_takes_an_order_for_positions_is_noted_with_the_line(void **state)
{
    static const struct {
        const char *text, *ordered; // null: nothing does
    } each[] = {
        {DECODER("  x = x + embed(positions, pos[position = seq, embed])\n"), NULL},
        {DECODER("  q, k, v = x @ qkv[3, embed, heads, head]\n"
                 "  x = attention(rotary(q, 50), rotary(k, 50), v) @ out[heads, head, embed]\n"),
         NULL},
        {DECODER("  s = softmax(causal(x @ x{seq as key}), key)\n  x = s @ x{seq as key}\n"), NULL},
        {DECODER("  x = x * softmax(x, seq) + rmsnorm(mean(x, embed))\n"), NULL},
        {DECODER("  x = dropout(x{seq as from}, 0.5){from as seq} + normal(swap(x), noise)\n"),
         NULL},
        {DECODER("  x = x + pos[seq, embed]\n"), "t:10: add over seq"},
        {DECODER("  y = 2\n  x = (x{seq as from} @ mix[from = seq, to = seq]){to as seq}\n"),
         "t:11: matmul over from"},
        {DECODER("  x = x{seq as from} * pos[from = seq, embed]\n"), "t:10: mul over from"},
        {DECODER("  w = (pos[position = seq, embed] * 2){position as seq}\n  x = x + w\n"),
         "t:11: add over seq"},
        {DECODER("  x = x + layernorm(mean(x, embed), norm)\n"), "t:10: norm over seq"},
        {DECODER("  s = dropout(softmax(x @ x{seq as key}, key), 0.5)\n  x = s @ x{seq as key}\n"),
         "t:10: dropout over seq"},
        {DECODER("  x = x + dropout(mean(x, embed), 0.5)\n"), "t:10: dropout over seq"},
        {DECODER("  x = x + normal(mean(x, embed), noise)\n"), "t:10: normal over seq"},
        {DECODER("  report r = mean(x, batch, embed)\n"), "t:10: a report along the sequence"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        int rc = build(&c, each[i].text, 4, PROGRAM_TRAIN);
        if (rc)
            fail_msg("%s: %s", each[i].text, c.e.text);
        if (!each[i].ordered != !c.g.ordered)
            fail_msg("%s: %s", each[i].text, c.g.ordered ? c.g.ordered : "nothing");
        if (each[i].ordered)
            assert_string_equal(c.g.ordered, each[i].ordered);
        model_case_clear(&c);
    }
}

// A new op says nothing of orders: then it may take any of them.
static void an_op_that_says_nothing_wants_an_order(void **state)
{
    struct model_case c;
    (void)state;
    assert_int_equal(build(&c, DECODER(""), 4, PROGRAM_TRAIN), 0);
    assert_null(c.g.ordered);
    struct node n = c.g.nodes[0];
    assert_int_equal(n.op, OP_EMBED);
    n.op = OP_NORM_GRAD; // of the backward: no model calls it
    assert_int_equal(op_order(n.op), ORDER_ALL);
    assert_int_equal(carry_dims(&c.g, &n), 0);
    assert_string_equal(c.g.ordered, "norm_grad over seq");
    model_case_clear(&c);
}

// ---- microbatches ------------------------------------------------------------------------------

static void what_a_microbatch_cannot_know_is_refused(void **state)
{
    static const struct {
        const char *text, *says; // null: taken
    } each[] = {
        {DECODER("  x = x - mean(x, batch)\n"), "t:10:9: sub reads a sum over the samples"},
        {DECODER("  loss += sum(exp(mean(x, batch, seq)))\n"), "exp reads a sum over the samples"},
        {DECODER("  m = mean(x, batch)\n  loss += sum(m * m)\n"),
         "mul reads a sum over the samples"},
        {DECODER("  x = x + softmax(x, batch)\n"),
         "softmax reads the samples of a microbatch together, along batch"},
        {DECODER("  y = x{batch as sample}\n  loss += sum(y @ w[sample = 4, out = 3]) / 24\n"),
         "matmul reads the samples of a microbatch together, along sample"},
        {DECODER("  y = mean(x, seq)\n  loss += sum(y @ y{batch as other}) / samples\n"),
         "holds the samples of a microbatch against each other"},
        {DECODER("  loss += 0.5 * sum(mean(x, batch, seq) @ w[embed, out = 3]) + 1\n"), NULL},
        {DECODER("  loss += mean(x) + sum(w[embed]) - 2\n"), NULL},
        {DECODER("  report m, n = mean(x, batch, seq), 2 * mean(x) - mean(x{seq as q}, q, batch, "
                 "embed)\n"),
         NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        if (build(&c, each[i].text, 4, PROGRAM_TRAIN)) // with one microbatch it is the step's
            fail_msg("%s: %s", each[i].text, c.e.text);
        model_case_clear(&c);
        int rc = build(&c, each[i].text, 8, PROGRAM_TRAIN);
        if (!rc != !each[i].says || (rc && !strstr(c.e.text, each[i].says)))
            fail_msg("%s: %s", each[i].text, c.e.text);
        model_case_clear(&c);
    }
}

// ---- experts -----------------------------------------------------------------------------------

#define ROUTED(lines)                                          \
    DECODER("  s = f32(x) @ router[embed, router = experts]\n" \
            "  w, id = top(s, 2)\n"                            \
            "  slot, chosen = slots(id, w, experts, 2)\n" lines)

static void what_is_no_weight_of_a_choice_is_refused(void **state)
{
    static const struct {
        const char *text, *says; // null: taken
    } each[] = {
        {ROUTED("  x = combine(dispatch(x, slot), slot, w)\n"), NULL},
        {ROUTED("  x = combine(dispatch(x, slot), slot, w / sum(w, choice))\n"), NULL},
        {ROUTED("  x = combine(dispatch(x, slot), slot, chosen)\n"),
         "t:13:7: a token's rows are weighted by [batch, router]: try what top gave"},
        {ROUTED("  x = combine(dispatch(x, slot), slot, s)\n"),
         "t:13:7: a token's rows are weighted by [batch, seq, router]: try what top gave"},
        {ROUTED("  x = combine(dispatch(x, slot), slot, sum(w, choice))\n"),
         "t:13:7: a token's rows are weighted by [batch, seq]: try what top gave"},
        {ROUTED("  a, b = slots(id, s, experts, 2)\n"),
         "t:13:10: tokens come to their experts by [batch, seq, router]"},
        {ROUTED("  a, b = slots(id, w, 8, 2)\n"),
         "t:13:10: top chose among 4 experts, the router of [batch, seq, router], and slots has 8"},
        {ROUTED("  x = combine(dispatch(swap(x), slot), slot, w)\n"),
         "t:13:15: [seq, batch, embed] are dispatched: try [batch, seq, embed]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        int rc = build(&c, each[i].text, 8, PROGRAM_TRAIN);
        if (!rc != !each[i].says || (rc && strstr(c.e.text, each[i].says) != c.e.text))
            fail_msg("%s: %s", each[i].text, c.e.text);
        model_case_clear(&c);
    }
}

// ---- words -------------------------------------------------------------------------------------

static void a_function_that_is_not_there_leads_to_one_that_is(void **state)
{
    static const struct {
        const char *text, *says, *too;
    } each[] = {
        {DECODER("  x = gleu(x)\n"), "t:10:7: no function is called gleu: did you mean gelu?",
         "silu, sigmoid"},
        {DECODER("  x = frobnicate(x)\n"),
         "t:10:7: no function is called frobnicate: there are gelu", "cross_entropy"},
        {DECODER("  x = conv1d(x, 3)\n"),
         "t:10:7: no function is called conv1d: there is no convolution yet", ""},
        {DECODER("  x = reshape(x, 3)\n"), "t:10:7: no function is called reshape: dimensions", ""},
        {DECODER("  x = concat(x, x)\n"), "t:10:7: no function is called concat: values", ""},
        {DECODER("  x = scan(x)\n"), "t:10:7: no function is called scan: there is no scan", ""},
        {DECODER("  x = f32(positions{seq as key})\n"),
         "t:10:20: ids keep the names of their dimensions: try f32(x){seq as NAME}", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        assert_int_equal(build(&c, each[i].text, 8, PROGRAM_TRAIN), ERR_INVALID);
        if (strstr(c.e.text, each[i].says) != c.e.text || !strstr(c.e.text, each[i].too))
            fail_msg("%s", c.e.text);
        model_case_clear(&c);
    }
}

static void what_padding_would_change_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } each[] = {
        {"sizes\n  inputs = 6 padded 4\nmodel\n  loss = sum(images) / samples\n",
         "t:4:14: images have 6 features, and no padding: leave `padded` out of inputs"},
        {"sizes\n  seq = 4\n  vocab = 8\n  head = 6 padded 4\nmodel\n"
         "  x = embed(tokens, t[vocab, head])\n  loss = mean(rotary(x, 50))\n",
         "t:7:15: rotary over a size that is `padded`"},
        {"sizes\n  seq = 4\n  vocab = 8\n  embed = 4\n  heads = 6 padded 8\n  kv_heads = 3\n"
         "  head = 2\nmodel\n  x = embed(tokens, t[vocab, embed])\n"
         "  k = x @ k[embed, kv_heads = 4, head]\n"
         "  loss = mean(attention(x @ q[embed, heads, head], k, k))\n",
         "t:11:15: 6 query heads and 4 key heads are padded to 8 and 4"},
        {"sizes\n  vocab = 6 padded 4\n  seq = 4\nmodel\n  x = embed(tokens, t[vocab, embed = 3])\n"
         "  loss = mean((x @ u[embed, vocab]) * w[vocab = 8])\n",
         "t:6:37: dimension vocab is padded in one operand of mul and not in another"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        assert_int_equal(build(&c, each[i].text, 8, PROGRAM_TRAIN), ERR_INVALID);
        if (strstr(c.e.text, each[i].says) != c.e.text)
            fail_msg("%s", c.e.text);
        model_case_clear(&c);
    }
}

static void sizes_that_nothing_reads_are_found(void **state)
{
    static const char text[] =
        "sizes\n  seq = 4\n  vocab = 8\n  embed = 4\n  spare = 3\n  kind = a | b\n  deep = [1, 2] "
        "by kind\n"
        "  theta = 5\n  dropout = 0.1\nmodel\n  x = embed(tokens, t[vocab, embed])\n"
        "  repeat deep\n    x = dropout(x)\n  loss = mean(x)\n";
    static const struct {
        const char *size;
        bool read;
    } each[] = {{"seq", true},  {"vocab", true}, {"embed", true},  {"spare", false},
                {"kind", true}, {"deep", true},  {"theta", false}, {"dropout", true}};
    struct model_case c;
    (void)state;
    assert_int_equal(build(&c, text, 8, PROGRAM_TRAIN), 0);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        if (model_size_is_read(c.program, each[i].size) != each[i].read)
            fail_msg("%s", each[i].size);
    model_case_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_takes_an_order_for_positions_is_noted_with_the_line),
        cmocka_unit_test(an_op_that_says_nothing_wants_an_order),
        cmocka_unit_test(what_a_microbatch_cannot_know_is_refused),
        cmocka_unit_test(what_is_no_weight_of_a_choice_is_refused),
        cmocka_unit_test(a_function_that_is_not_there_leads_to_one_that_is),
        cmocka_unit_test(what_padding_would_change_is_refused),
        cmocka_unit_test(sizes_that_nothing_reads_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
