// SPDX-License-Identifier: Apache-2.0
// The examples by which the language was specified, as they were written:
// tests/unit/programs/example_*. What were whole programs there are whole files; of the others the
// lines stand in a frame.
#include <stdio.h>

#include "common/base/hash.h"
#include "tests/unit/model_case.h"

// Reads and builds with every dropout at 0.1; 0, or what the reader or the builder returned.
static int build_text(struct model_case *c, const char *text, size_t len, enum program_kind kind)
{
    static const struct model_given given[] = {{.name = "dropout", .text = "0.1"}};
    const struct model_run run = {.kind = kind, .batch = 4, .step_batch = 8, .seed = 1};
    *c = (struct model_case){0};
    arena_init(&c->arena);
    c->errs.arena = &c->arena;
    if (model_program_read("t", text, len, &c->program, &c->errs))
        return first_model_error(&c->errs, &c->e);
    int n = model_size_find(c->program, "dropout") >= 0;
    if (model_sizes_resolve(c->program, given, n, &c->sizes, &c->errs))
        return first_model_error(&c->errs, &c->e);
    dims_init(&c->dims, &c->arena);
    graph_init(&c->g, &c->arena, &c->dims, &c->e);
    return model_build(&c->g, &c->sizes, &run);
}

static void build(struct model_case *c, const char *name, enum program_kind kind)
{
    static char text[MODEL_MAX_BYTES];
    char path[100];
    snprintf(path, sizeof path, "tests/unit/programs/example_%s.model", name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("no file %s", path);
    size_t len = fread(text, 1, sizeof text, f);
    fclose(f);
    if (build_text(c, text, len, kind))
        fail_msg("%s: %s", name, c->e.text);
}

static void each_is_a_model_of_its_layers(void **state)
{
    static const struct {
        const char *name;
        int layers;
        bool samples;
    } each[] = {{"gpt2", 12, true},
                {"llama", 4, true},
                {"palm", 4, true},
                {"vae", 0, false},
                {"jaxformer", 4, true}};
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        for (int kind = 0; kind <= PROGRAM_SCORE; kind++) {
            struct model_case c;
            struct model_facts facts;
            if ((kind == PROGRAM_SAMPLE || kind == PROGRAM_SCORE) && !each[i].samples)
                continue;
            build(&c, each[i].name, (enum program_kind)kind);
            model_facts_find(&c.sizes, &facts);
            assert_int_equal(facts.samples, each[i].samples);
            assert_int_equal(c.g.nlayers, each[i].layers);
            model_case_clear(&c);
        }
}

static uint32_t stream_of(const struct node *n)
{
    return n->op == OP_DROPOUT || n->op == OP_ATTENTION ? n->attr.draw.stream : 0;
}

static void gpt2_is_node_for_node_the_one_that_comes_with_weft(void **state)
{
    struct model_case c, d;
    const char *text = model_text_find("gpt2")->text;
    int64_t params = 0;
    (void)state;
    build(&c, "gpt2", PROGRAM_TRAIN);
    if (build_text(&d, text, strlen(text), PROGRAM_TRAIN))
        fail_msg("%s", d.e.text);
    // Attention's weights are dropped in the latter alone, which is no node of its own.
    assert_int_equal(c.g.nnodes, d.g.nnodes);
    for (int i = 0; i < c.g.nnodes; i++) {
        const struct node *x = &c.g.nodes[i], *y = &d.g.nodes[i];
        assert_int_equal(x->op, y->op);
        assert_int_equal(x->layer, y->layer);
        if (x->op != OP_ATTENTION)
            assert_int_equal(stream_of(x), stream_of(y));
    }
    for (int v = 0, w = 0; v < c.g.nvalues; v++) {
        if (c.g.values[v].kind != VALUE_PARAM)
            continue;
        while (d.g.values[w].kind != VALUE_PARAM)
            w++;
        assert_string_equal(c.g.values[v].name, d.g.values[w].name);
        params += shape_count(&c.g.values[v].shape);
        w++;
    }
    assert_int_equal(params, 124439808 + (50304 - 50257) * 768); // published, and the padding
    model_case_clear(&c);
    model_case_clear(&d);
}

// Two scoped calls are dropped in a layer: the second is named by its scope, since the layer's own
// name is taken; what is read by experts is named by its weight.
static void jaxformers_draws_have_a_path_each(void **state)
{
    static const char *const paths[] = {
        "layers/0/dropout", "layers/0/mlp/dropout", "layers/1/dropout", "layers/1/moe/out/dropout",
        "layers/2/dropout", "layers/2/mlp/dropout", "layers/3/dropout", "layers/3/moe/out/dropout"};
    struct model_case c;
    int n = 0;
    (void)state;
    build(&c, "jaxformer", PROGRAM_TRAIN);
    for (int i = 0; i < c.g.nnodes; i++)
        if (c.g.nodes[i].op == OP_DROPOUT) {
            assert_true(n < (int)(sizeof paths / sizeof *paths));
            assert_int_equal(stream_of(&c.g.nodes[i]), hash_fnv1a32(paths[n++]));
        }
    assert_int_equal(n, sizeof paths / sizeof *paths);
    model_case_clear(&c);
}

static void jaxformers_experts_are_as_many_as_the_operand_has(void **state)
{
    struct model_case c;
    int seen = 0;
    (void)state;
    build(&c, "jaxformer", PROGRAM_TRAIN);
    for (int v = 0; v < c.g.nvalues; v++) {
        const struct value *p = &c.g.values[v];
        if (p->kind != VALUE_PARAM || !strstr(p->name, "/moe/in/weight"))
            continue;
        assert_int_equal(p->shape.n, 3);
        assert_int_equal(p->dims[0], DIM_EXPERT);
        assert_int_equal(p->shape.dim[0], 4);
        assert_int_equal(p->shape.dim[1], 24);
        assert_int_equal(p->shape.dim[2], 24);
        seen++;
    }
    assert_int_equal(seen, 2);
    model_case_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_a_model_of_its_layers),
        cmocka_unit_test(gpt2_is_node_for_node_the_one_that_comes_with_weft),
        cmocka_unit_test(jaxformers_draws_have_a_path_each),
        cmocka_unit_test(jaxformers_experts_are_as_many_as_the_operand_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
