// SPDX-License-Identifier: Apache-2.0
// Attention in the language: its options reach the op, what cannot be is refused, and attention that
// a program writes out by hand is the op's, on one device and on meshes.
#include <string.h>

#include "common/compile/layout/zigzag.h"
#include "common/explain/cost.h"
#include "common/language/model_facts.h"
#include "common/model/builder.h"
#include "tests/support/model_errors_text.h"
#include "tests/unit/decoder_case.h"

// ---- programs ----------------------------------------------------------------------------------

#define HEAD                                                                                     \
    "sizes\n  layers = 2\n  embed = 16\n  heads = 4\n  head = embed / heads\n"                   \
    "  turned = 4\n  mlp = 32\n  seq = 8\n  vocab = 21 padded 24\n  theta = 50.0 in 1 .. 1e12\n" \
    "model\n  x = embed(tokens, embed.tokens[vocab, embed])\n"                                   \
    "  x = x + embed(positions, embed.positions[position = seq, embed])\n  repeat layers\n"      \
    "    h = layernorm(x, norm1)\n"                                                              \
    "    q, k, v = linear(h, attn.qkv[3, embed, heads, head])\n"
#define TAIL                                                       \
    "    x = x + a @ attn.out[heads, head, embed]\n"               \
    "  logits = layernorm(x, norm) @ embed.tokens[vocab, embed]\n" \
    "  loss = cross_entropy(logits, targets)\n"

static const char *program; // what the next compile builds

static int build_program(struct graph *g, const struct job *job, enum program_kind kind,
                         int64_t batch, int64_t step_batch)
{
    const struct model_run run = {
        .kind = kind, .batch = batch, .step_batch = step_batch, .seed = job->train.seed};
    const struct model_program *read;
    struct model_errors errs = {.arena = g->arena};
    struct model_sizes sizes;
    if (model_program_read("t", program, strlen(program), &read, &errs) ||
        model_sizes_resolve(read, NULL, 0, &sizes, &errs))
        return first_model_error(&errs, g->err);
    return model_build(g, &sizes, &run);
}

static void compile_program(struct fixture *f, const char *text, const char *mesh,
                            const char *sharding, const char *train)
{
    program = text;
    own_model = build_program;
    compile_text(f, decoder_job(models[0], mesh, 2, sharding, train), 0);
}

static const struct op_attr *find_attr(const struct fixture *f, enum op op, int nth)
{
    const struct graph *g = f->c.global[PROGRAM_TRAIN];
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].op == op && nth-- == 0)
            return &g->nodes[i].attr;
    fail_msg("no %s", op_name(op));
    return NULL;
}

// ---- options -----------------------------------------------------------------------------------

static void options_of_attention_reach_the_op(void **state)
{
    struct fixture f;
    (void)state;
    compile_program(&f,
                    HEAD "    qr = rotary(h @ qr[embed, heads, turned], sweep = 1, pairs = 1)\n"
                         "    kr = rotary(h @ kr[embed, turned], pairs = 1, offset = 1)\n"
                         "    a = attention(q, k, v, qr = qr, kr = kr, window = 5, cap = 30,\n"
                         "                  causal = 0)\n" TAIL,
                    "dp: 1", "", "");
    const struct op_attr *a = find_attr(&f, OP_ATTENTION, 0), *r = find_attr(&f, OP_ROTARY, 0);
    assert_int_equal(a->window, 5);
    assert_true(a->cap == 30);
    assert_true(a->ahead);
    assert_true(fabsf(a->scale - 1 / sqrtf(4 + 4)) < 1e-7f); // both pairs' elements
    assert_true(r->rotary.sweep && r->rotary.pairs && r->rotary.offset == 0);
    r = find_attr(&f, OP_ROTARY, 1);
    assert_true(!r->rotary.sweep && r->rotary.pairs && r->rotary.offset == 1);
    fixture_clear(&f);
    compile_program(&f, HEAD "    a = attention(q, k, v, scale = 0.25)\n" TAIL, "dp: 1", "", "");
    a = find_attr(&f, OP_ATTENTION, 0);
    assert_true(a->scale == 0.25f && !a->ahead && a->window == 0 && a->cap == 0);
    fixture_clear(&f);
}

static void scalings_of_rotary_are_as_published_where_nothing_is_said(void **state)
{
    struct fixture f;
    (void)state;
    compile_program(&f,
                    HEAD "    k = rotary(k, llama3 = 8, length = 8192)\n"
                         "    q = rotary(q, yarn = 40, length = 4096)\n"
                         "    v = rotary(v, 100, yarn = 4, length = 64, gain = 1, slow = 2,\n"
                         "               fast = 16)\n"
                         "    a = attention(q, k, v)\n" TAIL,
                    "dp: 1", "", "");
    const struct op_rotary *r = &find_attr(&f, OP_ROTARY, 0)->rotary;
    assert_true(r->scaling == ROTARY_LLAMA3 && r->factor == 8 && r->length == 8192);
    assert_true(r->theta == 50 && r->slow == 1 && r->fast == 4 && r->gain == 0);
    r = &find_attr(&f, OP_ROTARY, 1)->rotary;
    assert_true(r->scaling == ROTARY_YARN && r->factor == 40 && r->slow == 1 && r->fast == 32);
    assert_true(fabsf(r->gain - 1.3688879f) < 1e-6f); // ln(40) / 10 + 1
    r = &find_attr(&f, OP_ROTARY, 2)->rotary;
    assert_true(r->theta == 100 && r->gain == 1 && r->slow == 2 && r->fast == 16);
    fixture_clear(&f);
}

static void what_attention_cannot_do_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } each[] = {
        {HEAD "    a = attention(q, k, v, qr = q)\n" TAIL, "has both qr and kr"},
        {HEAD "    a = attention(q, k, v, qr = q, kr = h)\n" TAIL,
         "try [batch, seq, heads, rotary] and [batch, seq, rotary]"},
        {HEAD "    a = attention(q, k, v, window = -3)\n" TAIL, "try 1 or more, 0 for all"},
        {HEAD "    a = attention(q, k, v, cap = -1)\n" TAIL, "try more than 0, 0 for none"},
        {HEAD "    a = attention(rotary(q, yarn = 4), k, v)\n" TAIL,
         "llama3 and yarn need the length"},
        {HEAD "    a = attention(rotary(q, yarn = 4, linear = 4), k, v)\n" TAIL, "takes one of"},
        {HEAD "    a = attention(q, k, v) * sum(rotary(h, sweep = 1))\n" TAIL,
         "a sweep goes over heads"},
        {HEAD "    a = v * sum(causal(q @ k{heads*}))\n" TAIL, "k{seq as key}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct fixture f;
        program = each[i].text;
        own_model = build_program;
        compile_text(&f, decoder_text(models[0], "dp: 1", 1, ""), ERR_INVALID);
        if (!strstr(f.e.text, each[i].says))
            fail_msg("%s", f.e.text);
        fixture_clear(&f);
    }
}

// ---- by hand -----------------------------------------------------------------------------------

#define SCORES "    s = q @ k{seq as key, heads*} / sqrt(head)\n"
#define MIXED  " @ v{seq as key, heads*}\n"

static const struct {
    const char *op, *by_hand;
} pairs[] = {
    {HEAD "    a = attention(q, k, v)\n" TAIL,
     HEAD SCORES "    a = softmax(causal(s), key)" MIXED TAIL},
    {HEAD "    a = attention(q, k, v, window = 3)\n" TAIL,
     HEAD SCORES "    a = softmax(causal(s, 3), key)" MIXED TAIL},
    {HEAD "    a = attention(q, k, v, cap = 2)\n" TAIL,
     HEAD SCORES "    s = 2 * tanh(s / 2)\n    a = softmax(causal(s), key)" MIXED TAIL},
    {HEAD "    a = attention(q, k, v, causal = 0)\n" TAIL,
     HEAD SCORES "    a = softmax(s, key)" MIXED TAIL},
    // A softmax over a dimension that is not the last.
    {HEAD "    e = exp(k)\n    a = v * (e / sum(e, seq))\n" TAIL,
     HEAD "    a = v * softmax(k, seq)\n" TAIL},
};

// Two steps of training from the same parameters.
static void train(struct interp *x, const struct fixture *f, const struct graph *g,
                  const struct mesh *m)
{
    interp_init(x, g, m, 2);
    set_params(x);
    for (int s = 0; s < 2; s++)
        decoder_step_in(x, &f->c.program[PROGRAM_TRAIN]->zigzag);
}

static void attention_by_hand_is_the_ops_on_every_mesh(void **state)
{
    static const struct {
        const char *mesh, *sharding, *train;
    } meshes[] = {
        {"dp: 1", "", ""},
        {"dp: 2", "", ""},
        {"fsdp: 2", "", ", remat: block"},
        {"tp: 2", "", ""},
        {"tp: 4", "activations: {act_seq: [batch, [seq, tp]]}", ""},
        {"cp: 2", "", ""},
        {"cp: 4", "", ", remat: full"},
        {"cp: 2, tp: 2", "", ""},
        {"pp: 2, dp: 2", "", ""},
        {"dp: 2, cp: 2, tp: 2", "", ", remat: block"},
        {"tp: 2", "activations: {act_att: [batch, ~, ~, tp]}", ""}, // scores are cut on the keys
    };
    (void)state;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        struct fixture one;
        struct interp whole;
        compile_program(&one, pairs[p].op, "dp: 1", "", "");
        train(&whole, &one, one.c.global[PROGRAM_TRAIN], NULL);
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            struct fixture many;
            struct interp cut;
            compile_program(&many, pairs[p].by_hand, meshes[m].mesh, meshes[m].sharding,
                            meshes[m].train);
            train(&cut, &many, many.c.program[PROGRAM_TRAIN]->graph, &many.c.mesh);
            compare_params(&whole, &cut, meshes[m].mesh);
            interp_clear(&cut);
            fixture_clear(&many);
        }
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

// ---- what a plan counts ------------------------------------------------------------------------

static double count_flops(const char *text)
{
    struct fixture f;
    struct cost cost;
    compile_program(&f, text, "dp: 2", "", "");
    cost_count(&f.c, &f.a, &cost);
    fixture_clear(&f);
    return cost.flops_per_step;
}

// 8 samples of 8 tokens with 4 heads of 4 in 2 layers. For each key that a query sees there are
// 2·(4 + 4) FLOPs forward, for scores and values, and twice that backward. Of 8 keys a query sees 4
// on average, all 8 with those ahead, and in a window of 2 its own and, but for the first, one more:
// the mean is 2 − 2²/16. The second pair has 4 elements beside the 4.
static void flops_follow_what_queries_see(void **state)
{
    const double queries = 3.0 * 2 * 8 * 8 * 4, key = 2 * (4 + 4);
    const double plain = count_flops(HEAD "    a = attention(q, k, v)\n" TAIL);
    (void)state;
    assert_true(count_flops(HEAD "    a = attention(q, k, v, cap = 3)\n" TAIL) == plain);
    assert_true(count_flops(HEAD "    a = attention(q, k, v, causal = 0)\n" TAIL) - plain ==
                queries * key * (8 - 4));
    assert_true(plain - count_flops(HEAD "    a = attention(q, k, v, window = 2)\n" TAIL) ==
                queries * key * (4 - 1.75));
    assert_true(count_flops(HEAD "    a = attention(q, k, v, qr = q, kr = sum(k, heads))\n" TAIL) -
                    plain ==
                queries * 4 * 2 * 4);
}

// Steps that the compiler fused are in chains; what stands alone is an op of its own.
static int count_alone(const struct fixture *f, enum op op)
{
    const struct graph *g = f->c.program[PROGRAM_TRAIN]->graph;
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].kind == NODE_OP && g->nodes[i].op == op;
    return n;
}

static void caps_masks_and_squares_fuse(void **state)
{
    static const enum op steps[] = {OP_TANH, OP_TANH_GRAD, OP_RELU, OP_RELU_GRAD, OP_SUB};
    struct fixture f;
    (void)state;
    compile_program(&f,
                    HEAD SCORES "    s = 2 * tanh(s / 2)\n"
                                "    a = softmax(causal(s), key)" MIXED
                                "    h = relu(x @ mlp.in[embed, mlp])\n"
                                "    x = x + (h * h) @ mlp.out[mlp, embed]\n" TAIL,
                    "dp: 1", "", "");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        assert_int_equal(count_alone(&f, steps[i]), 0);
    assert_true(count_alone(&f, OP_CHAIN) + count_alone(&f, OP_LINEAR) > 0);
    fixture_clear(&f);
}

// A layer hands on what attention makes, and so that stays where the backward makes layers again: with
// it stay the numbers of its rows.
static void attention_that_leaves_its_layer_is_not_made_again(void **state)
{
    struct fixture f;
    (void)state;
    compile_program(&f,
                    "sizes\n  layers = 2\n  embed = 16\n  heads = 4\n  head = 4\n  seq = 8\n"
                    "  vocab = 21 padded 24\n"
                    "model\n  x = embed(tokens, embed.tokens[vocab, embed])\n"
                    "  x = x @ split[embed, heads, head]\n"
                    "  repeat layers\n    h = layernorm(x, norm)\n    x = attention(h, h, h)\n"
                    "  logits = x @ out[heads, head, vocab]\n"
                    "  loss = cross_entropy(logits, targets)\n",
                    "dp: 1", "", ", remat: block");
    assert_int_equal(count_alone(&f, OP_ATTENTION), 2);
    assert_true(count_alone(&f, OP_NORM) > 2);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_attention_reach_the_op),
        cmocka_unit_test(scalings_of_rotary_are_as_published_where_nothing_is_said),
        cmocka_unit_test(what_attention_cannot_do_is_refused),
        cmocka_unit_test(attention_by_hand_is_the_ops_on_every_mesh),
        cmocka_unit_test(flops_follow_what_queries_see),
        cmocka_unit_test(caps_masks_and_squares_fuse),
        cmocka_unit_test(attention_that_leaves_its_layer_is_not_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
