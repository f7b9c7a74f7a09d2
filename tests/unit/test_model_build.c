// SPDX-License-Identifier: Apache-2.0
// Programs as graphs: what each phrase of the language builds, and what is refused, with its place.
#include <stdio.h>

#include "common/base/hash.h"
#include "tests/unit/model_case.h"

static void build(struct model_case *c, const char *text, enum program_kind kind)
{
    if (model_case_build(c, text, strlen(text), kind))
        fail_msg("%s", c->e.text);
}

static const struct value *find_param(const struct model_case *c, const char *name)
{
    for (int i = 0; i < c->g.nvalues; i++)
        if (c->g.values[i].kind == VALUE_PARAM && strcmp(c->g.values[i].name, name) == 0)
            return &c->g.values[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static int count_ops(const struct model_case *c, enum op op)
{
    int n = 0;
    for (int i = 0; i < c->g.nnodes; i++)
        n += c->g.nodes[i].op == op;
    return n;
}

static const struct node *find_op(const struct model_case *c, enum op op)
{
    for (int i = 0; i < c->g.nnodes; i++)
        if (c->g.nodes[i].op == op)
            return &c->g.nodes[i];
    fail_msg("no %s", op_name(op));
    return NULL;
}

#define SIZES                                                                     \
    "sizes\n  layers = 2\n  embed = 8\n  heads = 2\n  head_dim = embed / heads\n" \
    "  mlp = 16\n  seq = 6\n  vocab = 10 padded 4\n  inputs = 5 like embed\n"     \
    "  classes = 3\n  dropout = 0.5 in 0 ..< 1\n"
#define CLASSIFIER(lines) SIZES "model\n" lines "  loss = cross_entropy(y, labels)\n"

static void one_path_is_one_parameter(void **state)
{
    static const char text[] = SIZES "model\n"
                                     "  x = embed(tokens, embed.tokens[vocab, embed])\n"
                                     "  logits = x @ embed.tokens[vocab, embed]\n"
                                     "  loss = cross_entropy(logits, targets)\n";
    struct model_case c;
    int params = 0;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    for (int i = 0; i < c.g.nvalues; i++)
        params += c.g.values[i].kind == VALUE_PARAM;
    assert_int_equal(params, 1);
    const struct value *table = find_param(&c, "embed/tokens");
    assert_int_equal(table->shape.dim[0], 12); // padded
    assert_int_equal(table->limit[0], 10);
    assert_int_equal(find_op(&c, OP_ROW_SUM_EXP)->attr.limit, 10);
    model_case_clear(&c);
}

static void a_number_as_dimension_is_one_product_and_several_values(void **state)
{
    static const char text[] = CLASSIFIER("  a, b = linear(images, ab[2, inputs, mlp])\n"
                                          "  y = linear(a * b, out[mlp, classes])\n");
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_int_equal(count_ops(&c, OP_SPLIT), 1);
    assert_int_equal(count_ops(&c, OP_MATMUL), 2);
    const struct value *bias = find_param(&c, "ab/bias");
    assert_int_equal(bias->shape.n, 2);
    assert_int_equal(bias->shape.dim[0], 2);
    assert_int_equal(bias->shape.dim[1], 16);
    model_case_clear(&c);
}

// Nothing is summed over then: each feature of an image times its row of the weight. The operand's
// dimensions stay where they were, the weight's follow.
static void a_starred_name_alone_is_a_product_for_each(void **state)
{
    static const char text[] =
        SIZES "model\n  x = embed(tokens, embed.tokens[vocab, embed])\n"
              "  x = x @ spread[embed*, stream = 3]\n"
              "  loss = cross_entropy(mean(x, stream) @ embed.tokens[vocab, embed], targets)\n";
    static const int64_t want[] = {6, 8, 3};
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    const struct value *w = find_param(&c, "spread/weight"), *out = NULL;
    for (int i = 0; i < c.g.nvalues; i++)
        if (c.g.values[i].shape.n == 4 && c.g.values[i].dims[1] == DIM_SEQ)
            out = &c.g.values[i];
    assert_int_equal(w->shape.n, 2);
    assert_non_null(out);
    for (int d = 0; d < 3; d++)
        assert_int_equal(out->shape.dim[d + 1], want[d]);
    model_case_clear(&c);
    static const char behind[] = SIZES "model\n  h = images @ a[mlp, inputs*]\n"
                                       "  loss = sum(h) / samples\n";
    assert_true(model_case_build(&c, behind, strlen(behind), PROGRAM_TRAIN) != 0);
    assert_non_null(strstr(c.e.text, "starred dimensions lead a weight: try a[inputs*, …]"));
    model_case_clear(&c);
}

// The cookbook's he_normal(1, 1): variance 2 / (elements / second dimension), for a stack's and a
// table's shapes too; positions are born zero.
static void the_cookbooks_parameters_are_born_as_it_says(void **state)
{
    static const struct {
        const char *name;
        int64_t elements, second;
    } born[] = {
        {"embed/tokens", 256 * 512, 512},
        {"layers/3/attn/qkv/weight", (int64_t)3 * 512 * 8 * 128, 512},
        {"layers/3/attn/out/weight", 8 * 128 * 512, 128},
        {"layers/3/mlp/in/weight", 512 * 2048, 2048},
        {"layers/3/mlp/out/weight", 2048 * 512, 512},
        {"head/weight", 512 * 256, 256},
    };
    const char *text = model_text_find("cookbook")->text;
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    for (size_t i = 0; i < sizeof born / sizeof *born; i++) {
        const struct value *v = find_param(&c, born[i].name);
        double fan_in = (double)born[i].elements / (double)born[i].second;
        assert_int_equal(shape_count(&v->shape), born[i].elements);
        assert_int_equal(v->init, INIT_TRUNCATED);
        assert_true(fabs((double)v->init_std - sqrt(2 / fan_in)) < 1e-7);
    }
    assert_int_equal(find_param(&c, "embed/positions")->init, INIT_ZERO);
    model_case_clear(&c);
}

// A kernel of [1, embed]: variance 2 / 1.
static void what_the_cookbook_never_reads_is_made_where_it_is_asked_for(void **state)
{
    static const char absent[] = "linear_in = absent | unread", unread[] = "linear_in = unread";
    const char *text = model_text_find("cookbook")->text, *at = strstr(text, absent);
    struct model_case c;
    char other[8000];
    (void)state;
    assert_non_null(at);
    snprintf(other, sizeof other, "%.*s%s | absent%s", (int)(at - text), text, unread,
             at + sizeof absent - 1);
    build(&c, other, PROGRAM_TRAIN);
    const struct value *kernel = find_param(&c, "linear_in/kernel");
    assert_int_equal(shape_count(&kernel->shape), 512);
    assert_int_equal(kernel->init, INIT_TRUNCATED);
    assert_true(fabs((double)kernel->init_std - sqrt(2)) < 1e-7);
    assert_int_equal(find_param(&c, "linear_in/bias")->init, INIT_ZERO);
    model_case_clear(&c);
    static const char spare[] = SIZES "model\n  h = images @ a[inputs, mlp]\n  b = spare[mlp]\n"
                                      "  loss = sum(h) / samples + unread(b)\n";
    assert_true(model_case_build(&c, spare, strlen(spare), PROGRAM_TRAIN) == 0);
    assert_int_equal(find_param(&c, "spare")->shape.dim[0], 16);
    model_case_clear(&c);
}

// Scores choose, places are dealt, tokens go there and back: each call is its op, at its point.
#define ROUTED(lines)                                                               \
    SIZES "  experts = 4\nmodel\n  x = embed(tokens, embed.tokens[vocab, embed])\n" \
          "  s = sigmoid(f32(x) @ router[embed, router = experts])\n" lines         \
          "  loss = cross_entropy(x @ embed.tokens[vocab, embed], targets)\n"

static void experts_are_calls_and_a_starred_name(void **state)
{
    static const char whole[] = ROUTED(
        "  w, id = top(s, 2, bias = balance)\n"
        "  slot, chosen = slots(id, w, experts, 2, 1, bias = balance, rate = 0.5)\n"
        "  e = swap(dispatch(x, slot))\n"
        "  e = gelu(e @ in[expert* = experts, embed, mlp]) @ out[expert* = experts, mlp, embed]\n"
        "  x = x + combine(swap(e), slot, w)\n");
    struct model_case c;
    (void)state;
    build(&c, whole, PROGRAM_TRAIN);
    const struct node *slots = find_op(&c, OP_SLOTS);
    assert_int_equal(slots->attr.slots.capacity, 3); // 6 tokens, twice as many places, 4 experts
    assert_int_equal(c.g.values[find_op(&c, OP_DISPATCH)->out[0]].point, POINT_SLOTS);
    assert_int_equal(c.g.values[find_op(&c, OP_GELU)->out[0]].point, POINT_EXPERT_HIDDEN);
    assert_int_equal(c.g.values[find_op(&c, OP_COMBINE)->out[0]].point, POINT_SEQ);
    assert_true(find_param(&c, "balance")->frozen);
    assert_int_equal(c.g.nbalances, 1);
    static const char *const reports[] = {"expert_tokens", "expert_dropped", "expert_balance",
                                          "router_entropy"};
    assert_int_equal(c.g.nparts, 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(c.g.parts[i].name, reports[i]);
    assert_int_equal(c.g.parts[0].count, 4);
    model_case_clear(&c);
    build(&c, whole, PROGRAM_EVAL); // nothing is dropped
    assert_int_equal(find_op(&c, OP_SLOTS)->attr.slots.capacity, 6);
    assert_int_equal(c.g.nbalances, 0);
    model_case_clear(&c);
}

static void what_no_router_gives_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {ROUTED("  w, id = top(x, 2)\n"), "scores have [batch, seq, embed]"},
        {ROUTED("  w, id = top(s, 5)\n"), "5 of 4 are asked for"},
        {ROUTED("  w, id = top(s, 2)\n  p, n = slots(w, w, experts, 2)\n"),
         "slots deals what top chose"},
        {ROUTED("  w, id = top(s, 2)\n  e = dispatch(x, id)\n"), "places are what slots gives"},
        {ROUTED("  w, id = top(s, 2)\n  p, n = slots(id, w, experts, 0.1)\n"),
         "an expert of 4 has no place for any of a group's 6 tokens"},
        {ROUTED("  w, id = top(s, 2)\n  p, n = slots(id, w, experts, 2, 7)\n"),
         "is no whole number of groups of 7"},
        {ROUTED("  w, id = top(s, 2)\n  p, n = slots(id, w, experts, 2)\n"
                "  x = x + combine(dispatch(x, p){group as batch}, p, w)\n"),
         "are combined: try [group, expert, capacity, embed]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_case c;
        const char *text = cases[i].text;
        if (!model_case_build(&c, text, strlen(text), PROGRAM_TRAIN))
            fail_msg("taken: %s", text);
        if (!strstr(c.e.text, cases[i].says))
            fail_msg("%s", c.e.text);
        model_case_clear(&c);
    }
}

static void paths_stand_under_repeats_and_scopes(void **state)
{
    static const char text[] =
        SIZES "let ffn(x)\n"
              "  return linear(relu(linear(x, in[embed, mlp])), out[mlp, embed])\n"
              "model\n"
              "  x = linear(images, first[inputs, embed])\n"
              "  repeat layers as n\n"
              "    x = x + moe.shared: ffn(rmsnorm(x, norm1))\n"
              "    repeat 2\n"
              "      x = x * scale[embed]\n"
              "  y = linear(x, last[embed, classes])\n"
              "  loss = cross_entropy(y, labels)\n";
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    find_param(&c, "layers/0/norm1/weight");
    find_param(&c, "layers/1/moe/shared/in/weight");
    find_param(&c, "layers/1/moe/shared/out/bias");
    find_param(&c, "layers/1/layers/1/scale");
    assert_string_equal(c.g.scopes[find_op(&c, OP_RELU)->scope], "layers/0");
    assert_int_equal(find_op(&c, OP_RELU)->layer, 0);
    assert_string_equal(c.g.scopes[c.g.nodes[c.g.nnodes - 1].scope], "head");
    model_case_clear(&c);
}

static void assert_same_graph(const struct graph *x, const struct graph *y)
{
    assert_int_equal(x->nnodes, y->nnodes);
    assert_int_equal(x->nvalues, y->nvalues);
    assert_int_equal(x->nlayers, y->nlayers);
    for (int i = 0; i < x->nnodes; i++) {
        const struct node *a = &x->nodes[i], *b = &y->nodes[i];
        assert_int_equal(a->op, b->op);
        assert_int_equal(a->layer, b->layer);
        assert_string_equal(x->scopes[a->scope], y->scopes[b->scope]);
        assert_int_equal(a->nin, b->nin);
        for (int k = 0; k < a->nin; k++)
            assert_int_equal(a->in[k], b->in[k]);
    }
    for (int v = 0; v < x->nvalues; v++)
        if (x->values[v].name)
            assert_string_equal(x->values[v].name, y->values[v].name);
}

#define TURN(indent)                                                           \
    indent "repeat layers\n" indent "  x = x + dropout(linear(gelu(linear(x, " \
           "in[embed, mlp])), out[mlp, embed]))\n"

static void a_repeat_in_a_function_is_one_in_the_model(void **state)
{
    static const char inside[] =
        SIZES "let body(x)\n" TURN("  ") "  return x\n"
                                         "model\n"
                                         "  x = linear(images, first[inputs, embed])\n"
                                         "  y = linear(body(x), last[embed, classes])\n"
                                         "  loss = cross_entropy(y, labels)\n";
    static const char inlined[] = SIZES "model\n"
                                        "  x = linear(images, first[inputs, embed])\n" TURN(
                                            "  ") "  y = linear(x, last[embed, classes])\n"
                                                  "  loss = cross_entropy(y, labels)\n";
    struct model_case c, d;
    (void)state;
    build(&c, inside, PROGRAM_TRAIN);
    build(&d, inlined, PROGRAM_TRAIN);
    assert_int_equal(c.g.nlayers, 2);
    assert_same_graph(&c.g, &d.g);
    model_case_clear(&c);
    model_case_clear(&d);
}

// Two towers have layers of two paths, and one body walked twice is as many layers of the same
// weights.
static void each_call_of_a_function_has_its_own_layers(void **state)
{
    static const struct {
        const char *value, *scope;
    } each[] = {
        {"(left: body(x)) + (right: body(x))", "right/layers/1"},
        {"body(body(x))", "layers/1 (layer 3)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        char text[2000];
        snprintf(text, sizeof text,
                 SIZES "let body(x)\n  repeat layers\n    x = x + tanh(x) * scale[embed]\n"
                       "  return x\n"
                       "model\n  x = linear(images, first[inputs, embed])\n  x = %s\n"
                       "  y = linear(x, last[embed, classes])\n"
                       "  loss = cross_entropy(y, labels)\n",
                 each[i].value);
        build(&c, text, PROGRAM_TRAIN);
        assert_int_equal(c.g.nlayers, 4);
        int last = 0, in_last = 0;
        for (int k = 0; k < c.g.nnodes; k++)
            if (c.g.nodes[k].op == OP_TANH) {
                assert_int_equal(c.g.nodes[k].layer, in_last++);
                last = c.g.nodes[k].scope;
            }
        assert_int_equal(in_last, 4);
        assert_string_equal(c.g.scopes[last], each[i].scope);
        model_case_clear(&c);
    }
}

// A layer block changes where a pipeline may cut, and no path.
static void a_layer_block_leaves_paths_as_they_are(void **state)
{
    static const char text[] = SIZES "model\n"
                                     "  layer\n"
                                     "    x = tanh(linear(images, first[inputs, embed]))\n"
                                     "  tail:\n"
                                     "    layer\n"
                                     "      x = relu(linear(x, in[embed, mlp]))\n"
                                     "    x = dropout(exp(x))\n"
                                     "    layer\n"
                                     "      x = gelu(x)\n"
                                     "      y = linear(x, [_, classes])\n"
                                     "  loss = cross_entropy(y, labels)\n";
    static const struct {
        enum op op;
        int layer;
        const char *scope;
    } each[] = {{OP_TANH, 0, "layer 0"},
                {OP_RELU, 1, "tail (layer 1)"},
                {OP_EXP, 1, "tail"},
                {OP_GELU, 2, "tail (layer 2)"}};
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_int_equal(c.g.nlayers, 3);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        assert_int_equal(find_op(&c, each[i].op)->layer, each[i].layer);
        assert_string_equal(c.g.scopes[find_op(&c, each[i].op)->scope], each[i].scope);
    }
    find_param(&c, "first/weight");
    find_param(&c, "tail/in/bias");
    find_param(&c, "tail/weight");
    assert_int_equal(find_op(&c, OP_DROPOUT)->attr.draw.stream, hash_fnv1a32("tail/dropout"));
    model_case_clear(&c);
}

static void weights_are_born_as_the_text_says(void **state)
{
    static const char text[] =
        CLASSIFIER("  x = linear(images, a[inputs, mlp] ~ fan_in(2))\n"
                   "  x = linear(x, b[mlp, embed] ~ normal(0.5 / sqrt(4)))\n"
                   "  y = linear(x, c[embed, classes] ~ zeros) + d[classes] ~ ones\n");
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_true(find_param(&c, "a/weight")->init_std == sqrtf(2.0f / 5));
    assert_true(find_param(&c, "b/weight")->init_std == 0.25f);
    assert_int_equal(find_param(&c, "c/weight")->init, INIT_ZERO);
    assert_int_equal(find_param(&c, "d")->init, INIT_ONE);
    model_case_clear(&c);
}

// A name that is no size reaches as far as the operand's dimension of that name.
static void an_operand_has_the_extent_of_its_own_dimensions(void **state)
{
    static const char text[] = CLASSIFIER("  x = images @ a[inputs, part = 7, embed]\n"
                                          "  x = linear(x, b[part*, embed, mlp])\n"
                                          "  y = linear(x, c[part, mlp, classes])\n");
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_int_equal(find_param(&c, "b/weight")->shape.dim[0], 7);
    assert_int_equal(find_param(&c, "b/bias")->shape.dim[0], 7);
    assert_int_equal(find_param(&c, "c/weight")->shape.dim[0], 7);
    assert_int_equal(find_param(&c, "c/bias")->shape.n, 1);
    model_case_clear(&c);
}

// Sizes may be like a known dimension: the point follows, and a bias along the residual is a norm.
static void names_decide_points_and_biases(void **state)
{
    static const char text[] = SIZES "  wide = 32 like mlp\n"
                                     "model\n"
                                     "  h = linear(images, a[inputs, wide])\n"
                                     "  x in act_logits = linear(h, b[wide, inputs])\n"
                                     "  y = linear(x, c[inputs, classes])\n"
                                     "  loss = cross_entropy(y, labels)\n";
    static const enum point points[] = {POINT_HIDDEN, POINT_LOGITS, POINT_LOGITS};
    struct model_case c;
    int k = 0;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    for (int i = 0; i < c.g.nnodes; i++)
        if (c.g.nodes[i].op == OP_MATMUL)
            assert_int_equal(c.g.values[c.g.nodes[i].out[0]].point, points[k++]);
    assert_int_equal(k, 3);
    assert_int_equal(find_param(&c, "b/bias")->dims[0], DIM_NORM);
    model_case_clear(&c);
}

static void training_alone_draws(void **state)
{
    static const char text[] =
        CLASSIFIER("  x = dropout(linear(images, a[inputs, embed]))\n"
                   "  x = x + normal(x, noise)\n"
                   "  y = linear(second: dropout(x, 0.25), b[embed, classes])\n");
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_int_equal(count_ops(&c, OP_DROPOUT), 2);
    assert_int_equal(count_ops(&c, OP_NORMAL), 1);
    assert_true(find_op(&c, OP_DROPOUT)->attr.draw.rate == 0.5f);
    model_case_clear(&c);
    build(&c, text, PROGRAM_EVAL);
    assert_int_equal(count_ops(&c, OP_DROPOUT) + count_ops(&c, OP_NORMAL), 0);
    model_case_clear(&c);
}

static void losses_are_terms_and_reports_are_parts(void **state)
{
    static const char text[] = CLASSIFIER("  y = linear(images, a[inputs, classes])\n"
                                          "  size = sum(y * y) / samples\n"
                                          "  loss += 0.5 * size\n"
                                          "  report size\n"
                                          "  if evaluating\n"
                                          "    report right = accuracy(y, labels)\n");
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_TRAIN);
    assert_int_equal(c.g.nparts, 1);
    assert_string_equal(c.g.parts[0].name, "size");
    assert_int_equal(c.g.sums[0].n, 2);
    const struct node *first = &c.g.nodes[c.g.values[c.g.sums[0].contrib[0]].producer];
    assert_int_equal(first->op, OP_SUM);
    assert_true(first->attr.scale == 0.5f / 8); // half, over the step's samples
    model_case_clear(&c);
    build(&c, text, PROGRAM_EVAL);
    assert_int_equal(c.g.nparts, 2);
    model_case_clear(&c);
}

// The same text samples: its last rows alone reach the head, and no targets are read.
static void sampling_reads_the_last_position(void **state)
{
    static const char text[] =
        SIZES "model\n"
              "  x = embed(tokens, embed.tokens[vocab, embed])\n"
              "  repeat layers\n"
              "    x = x + dropout(linear(x, a[embed, embed2 = embed]){embed2 as embed})\n"
              "  logits = 30 * tanh((x @ head[embed, vocab]) / 30)\n"
              "  loss = cross_entropy(logits, targets)\n";
    struct model_case c;
    (void)state;
    build(&c, text, PROGRAM_SAMPLE);
    for (int i = 0; i < c.g.nvalues; i++)
        assert_false(c.g.values[i].name && strstr(c.g.values[i].name, "targets"));
    const struct value *logits = &c.g.values[c.g.loss];
    assert_string_equal(logits->name, "logits");
    assert_int_equal(logits->shape.n, 2);
    assert_int_equal(logits->shape.dim[0], 4);
    assert_int_equal(logits->shape.dim[1], 12);
    model_case_clear(&c);
}

static void what_cannot_be_is_refused_with_its_place(void **state)
{
    static const struct {
        const char *text, *says;
    } each[] = {
        {CLASSIFIER("  y = linear(imges, a[inputs, classes])\n"),
         "t:13:14: nothing is called imges here: did you mean images?"},
        {CLASSIFIER("  y = linear(images, a[embed, classes])\n"),
         "t:13:7: [batch, inputs] and a[embed, classes] share no dimension: a product sums over "
         "shared ones"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes]) + b[embed]\n"),
         "t:13:42: [batch, classes] and [embed] do not broadcast: one side's dimensions must be "
         "among the other's"},
        {CLASSIFIER("  x = linear(images, a[inputs, embed])\n"
                    "  y = linear(x, a[embed, classes])\n"),
         "t:14:7: a/weight is a parameter of [inputs, embed] already: other dimensions need "
         "another path"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes])\n"
                    "  z = linear(images, b[inputs, embed])\n"),
         "t:14:7: b/bias is a parameter on which the loss does not depend"},
        {CLASSIFIER("  p, q, r = images @ a[2, inputs, classes]\n  y = p\n"),
         "t:13:20: [qkv, batch, classes] is no stack of 3 (at most 5) values: a parameter's "
         "dimension 3 makes one"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes])\n  loss = y\n"),
         "t:14:10: a loss is a single number, not one of [batch, classes]: try sum(x) / samples"
         ""},
        {SIZES "model\n  y = images\n",
         "t:1:1: the program has no loss: try loss = cross_entropy(logits, targets)"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes]) if layers > 1.5 else y\n"
                    "  y = f(y)\n") "let f(x)\n  return f(x)\n",
         "t:17:10: functions call each other more than 16 deep: none may call itself"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes]) + zzz\n  zzz = 1\n"),
         "t:13:44: nothing is called zzz here: it is bound further down, or a parameter without "
         "its dimensions, zzz[…]"},
        {CLASSIFIER("  y = dropout(dropout(linear(images, a[inputs, classes]), 0.1), 0.1)\n"
                    "  y = dropout(y, 0.1)\n"),
         "t:14:7: two draws are called embed/dropout: NAME: dropout(…) names one apart"},
        {CLASSIFIER("  y in act_sq = linear(images, a[inputs, classes])\n"),
         "t:13:3: act_sq is no activation point: try act_seq"},
        {CLASSIFIER("  y = linear(images, a[inputs, inputs])\n"),
         "t:13:7: a has dimension inputs twice: `NAME = SIZE` or `like` gives another name"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes] ~ gaussian(1))\n"),
         "t:13:43: initial values are zeros, ones, normal(DEVIATION), "
         "truncated(DEVIATION), uniform(DEVIATION), fan_in(GAIN), he_normal, he_uniform, "
         "xavier_normal or xavier_uniform"},
        {CLASSIFIER("  y = linear(images, a[inptus, classes])\n"),
         "t:13:22: no dimension is called inptus here: did you mean inputs?"},
        {CLASSIFIER("  y = linear(images, a[inputs, classes]) + zz[classes, elsewhere]\n"),
         "t:13:44: elsewhere is no size, so no dimension: try elsewhere = SIZE"},
        {CLASSIFIER("  y = linear(images, a[inputs, elsewhere])\n"),
         "t:13:22: elsewhere is no size, and the operand, [batch, inputs], has no such dimension: "
         "try elsewhere = SIZE"},
        {CLASSIFIER("  y = linear(images, a[batch, inputs, classes])\n"),
         "t:13:22: a parameter along batch, which differs from step to step: try a size"},
        {CLASSIFIER("  y = linear(images)\n"), "t:13:7: linear lacks its argument weight"},
        {CLASSIFIER("  y = relu(images, 1)\n"), "t:13:20: relu has fewer arguments than 2"},
        {CLASSIFIER("  q = images @ a[inputs, heads, head_dim]\n  y = attention(q, q, q)\n"),
         "t:14:7: q has [batch, heads, head_dim]: try [batch, seq, heads, head_dim]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct model_case c;
        assert_int_equal(model_case_build(&c, each[i].text, strlen(each[i].text), PROGRAM_TRAIN),
                         ERR_INVALID);
        assert_string_equal(c.e.text, each[i].says);
        model_case_clear(&c);
    }
}

// ---- layers ------------------------------------------------------------------------------------

#define LAYERED "sizes\n  inputs = 4\n  n = 3\n  hidden = [8, 8]\n  kind = a | b\n"
#define F       "let f(x)\n  repeat n\n    x = x\n  return x\n"

static struct job_layers count_layers(const char *text)
{
    struct job_layers layers = {0};
    struct model_case c;
    char whole[1000];
    snprintf(whole, sizeof whole, "%s%s", LAYERED, text);
    if (model_case_count(&c, whole, strlen(whole), PROGRAM_TRAIN, &layers))
        fail_msg("%s\n%s", whole, c.e.text);
    model_case_clear(&c);
    return layers;
}

// A repeat's turns count where they are not in another's: in the functions that the model calls too.
static void layers_are_the_outermost_turns_and_blocks(void **state)
{
    static const struct {
        const char *text;
        int layers;
    } each[] = {
        {"model\n  x = images\n  if n > 2\n    repeat n\n      repeat 7\n        x = x\n"
         "  repeat hidden as width\n    x = x\n  layers.(n):\n    loss = sum(x) / samples\n",
         3 + 2 + 1},
        {F "model\n  loss = sum(f(images)) / samples\n", 3},
        {F "model\n  loss = sum(right: f(left: f(images))) / samples\n", 6},
        {F "model\n  repeat 2\n    x = f(images)\n  loss = sum(x) / samples\n", 2},
        {"let f(x)\n  layers.(0):\n    x = x\n  return x\nlet g(x)\n  return f(f(x)) + x\n"
         "model\n  loss = sum(g(images)) / samples\n",
         2},
        {"let f(x, m, widths)\n  k = 2 * m\n  k += 1\n  repeat k\n    x = x\n"
         "  repeat rest(widths) as width\n    x = x\n  return x\n"
         "model\n  loss = sum(f(images, n + 1, hidden)) / samples\n",
         10},
        {"let f(x, m)\n  repeat m\n    x = x\n  return x if m == 1 else f(x, m - 1)\n"
         "model\n  loss = sum(f(images, n)) / samples\n",
         6},
        {"let deep()\n  return 2 * n\nlet f(x, k)\n  if k == b\n    repeat 100\n      x = x\n"
         "  else\n    repeat deep()\n      x = x\n  return x\n"
         "model\n  loss = sum(f(images, kind)) / samples\n",
         6},
        {"let f(x)\n  layer\n    x = x\n    repeat n\n      x = x\n  return x\n"
         "model\n  layer = f(images)\n  a:\n    layer\n      layer\n"
         "        loss = sum(f(layer)) / samples\n",
         2},
        {"let f(x)\n  repeat n as i\n    if i == 1\n      return x\n  return x\n"
         "model\n  loss = sum(f(images)) / samples\n",
         2},
        // Of the train program, with the job's batch.
        {"let f(x, m)\n  repeat m\n    x = x\n  return x\n"
         "model\n  loss = sum(f(images, samples)) / samples\n",
         8},
        {"let f(x)\n  if training\n    return x\n  repeat n\n    x = x\n  return x\n"
         "model\n  loss = sum(f(images)) / samples\n",
         0},
        {"model\n  n = 2 if training else 3\n  x = images\n  repeat n\n    x = x\n"
         "  loss = sum(x) / samples\n",
         2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        struct job_layers layers = count_layers(each[i].text);
        if (layers.n != each[i].layers)
            fail_msg("%s\n%d layers, not %d", each[i].text, layers.n, each[i].layers);
    }
}

static void named_blocks_outside_layers_are_noticed(void **state)
{
    (void)state;
    assert_true(count_layers("model\n  a:\n    loss = sum(images) / samples\n").blocks);
    assert_false(
        count_layers("model\n  layer\n    a:\n      loss = sum(images) / samples\n").blocks);
}

// What sampling leaves out, and layers that it needs behind that.
static void layers_that_sampling_leaves_out_are_reported(void **state)
{
    static const struct {
        const char *text;
        int line;
    } each[] = {
        {"  x = f(images)\n  logits = x\n  loss = sum(f(x)) / samples\n", 0},
        {"  loss = sum(f(images)) / samples\n  logits = images\n", 0},
        {"  loss = sum(f(images)) / samples\n  logits = f(images)\n", 11},
        {"  report a = sum(f(images)) / samples\n  x = f(images)\n  logits = x\n"
         "  loss = sum(x) / samples\n",
         11},
        {"  y = f(images)\n  loss = sum(y) / samples\n  logits = f(images)\n", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        char text[500];
        snprintf(text, sizeof text, F "model\n%s", each[i].text);
        assert_int_equal(count_layers(text).skipped, each[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_path_is_one_parameter),
        cmocka_unit_test(a_number_as_dimension_is_one_product_and_several_values),
        cmocka_unit_test(the_cookbooks_parameters_are_born_as_it_says),
        cmocka_unit_test(what_the_cookbook_never_reads_is_made_where_it_is_asked_for),
        cmocka_unit_test(experts_are_calls_and_a_starred_name),
        cmocka_unit_test(a_starred_name_alone_is_a_product_for_each),
        cmocka_unit_test(what_no_router_gives_is_refused),
        cmocka_unit_test(paths_stand_under_repeats_and_scopes),
        cmocka_unit_test(a_repeat_in_a_function_is_one_in_the_model),
        cmocka_unit_test(each_call_of_a_function_has_its_own_layers),
        cmocka_unit_test(a_layer_block_leaves_paths_as_they_are),
        cmocka_unit_test(weights_are_born_as_the_text_says),
        cmocka_unit_test(an_operand_has_the_extent_of_its_own_dimensions),
        cmocka_unit_test(names_decide_points_and_biases),
        cmocka_unit_test(training_alone_draws),
        cmocka_unit_test(losses_are_terms_and_reports_are_parts),
        cmocka_unit_test(sampling_reads_the_last_position),
        cmocka_unit_test(layers_are_the_outermost_turns_and_blocks),
        cmocka_unit_test(named_blocks_outside_layers_are_noticed),
        cmocka_unit_test(layers_that_sampling_leaves_out_are_reported),
        cmocka_unit_test(what_cannot_be_is_refused_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
