// SPDX-License-Identifier: Apache-2.0
// Where collectives stand in a program, found by the names of what they move: counted from the
// model's layers, on two devices that share out the parameters.
#include "tests/unit/decoder_case.h"

struct order_case {
    struct fixture f;
    const struct program *p;
};

static void compile_order(struct order_case *c, int microbatches, bool as_read)
{
    struct job_errors errs = {0};
    const char *text = decoder_text(models[0], "fsdp: 2", microbatches, "");
    *c = (struct order_case){0};
    assert_int_equal(job_parse(&c->f.a, &weft_schema, "test.yaml", NULL, text, strlen(text), NULL,
                               0, &c->f.job, &errs),
                     0);
    const struct compile_options o = {.as_read = as_read};
    if (plan_explain(&c->f.job, &o, &c->f.a, &c->f.c, &c->f.found, NULL, &c->f.e))
        fail_msg("%s", c->f.e.text);
    c->p = compiled_program(&c->f.c, PROGRAM_TRAIN, 0);
}

static bool moves(const struct order_case *c, const struct instr *i, enum reshard_kind kind,
                  const char *what)
{
    return i->kind == INSTR_START && i->collective == kind &&
           strcmp(c->p->graph->nodes[i->node].what, what) == 0;
}

// The first start of that move in a phase, −1.
static int start_of(const struct order_case *c, enum phase phase, enum reshard_kind kind,
                    const char *what)
{
    for (int i = 0; i < c->p->ninstrs; i++)
        if (c->p->instrs[i].phase == phase && moves(c, &c->p->instrs[i], kind, what))
            return i;
    return -1;
}

static int wait_of(const struct order_case *c, int start)
{
    for (int i = start; i < c->p->ninstrs; i++)
        if (c->p->instrs[i].kind == INSTR_WAIT && c->p->instrs[i].start == start)
            return i;
    fail_msg("nobody waits for %d", start);
    return -1;
}

// The products between two instructions that belong to a scope.
static int products(const struct order_case *c, int from, int to, const char *scope)
{
    const struct graph *g = c->p->graph;
    int n = 0;
    for (int i = from; i < to; i++) {
        const struct instr *in = &c->p->instrs[i];
        n += in->kind == INSTR_OP && (in->op == OP_MATMUL || in->op == OP_LINEAR) && !in->attr &&
             strcmp(g->scopes[g->nodes[in->node].scope], scope) == 0;
    }
    return n;
}

static void a_layers_gathers_run_while_the_layer_before_it_computes(void **state)
{
    (void)state;
    struct order_case c;
    compile_order(&c, 1, false);
    // Forward: the second layer's are there before the first of the first layer's four products
    // and are waited for after the last.
    int start = start_of(&c, PHASE_FORWARD, RESHARD_ALL_GATHER, "layers/1/attn/qkv/weight");
    assert_true(start >= 0);
    assert_int_equal(products(&c, 0, start, "layers/0"), 0);
    assert_int_equal(products(&c, start, wait_of(&c, start), "layers/0"), 4);
    // Backward: the first layer's before the eight of the second.
    start = start_of(&c, PHASE_BACKWARD, RESHARD_ALL_GATHER, "layers/0/mlp/out/weight");
    assert_true(start >= 0);
    assert_int_equal(products(&c, start, wait_of(&c, start), "layers/1"), 8);
    fixture_clear(&c.f);
}

static void a_gradients_reduction_runs_behind_the_next_layers_backward(void **state)
{
    (void)state;
    for (int microbatches = 1; microbatches <= 2; microbatches++) {
        struct order_case c;
        compile_order(&c, microbatches, false);
        int start =
            start_of(&c, PHASE_BACKWARD, RESHARD_REDUCE_SCATTER, "grad/layers/1/attn/qkv/weight");
        assert_true(start >= 0);
        // It is the last of its layer's: the first layer's gathers are waited for after it alone.
        int wait = wait_of(&c, start);
        assert_true(products(&c, start, wait, "layers/0") + products(&c, start, wait, "layers/1") >
                    0);
        fixture_clear(&c.f);
    }
}

static void without_an_order_each_is_waited_for_where_it_stands(void **state)
{
    (void)state;
    struct order_case c;
    compile_order(&c, 1, true);
    int start = start_of(&c, PHASE_FORWARD, RESHARD_ALL_GATHER, "layers/1/attn/qkv/weight");
    assert_int_equal(products(&c, 0, start, "layers/0"), 4);
    assert_int_equal(wait_of(&c, start), start + 1);
    fixture_clear(&c.f);
}

// The same contributions in the same order: what is counted and summed does not change.
static void the_order_of_contributions_stays(void **state)
{
    (void)state;
    struct order_case on, off;
    compile_order(&on, 2, false);
    compile_order(&off, 2, true);
    const struct graph *a = on.p->graph, *b = off.p->graph;
    assert_int_equal(a->nnodes, b->nnodes);
    assert_int_equal(a->nsums, b->nsums);
    for (int s = 0; s < a->nsums; s++)
        for (int c = 1; c < a->sums[s].n; c++)
            assert_true(a->values[a->sums[s].contrib[c - 1]].producer <
                        a->values[a->sums[s].contrib[c]].producer);
    assert_true(on.f.c.memory.transient > off.f.c.memory.transient);
    assert_int_equal(on.f.c.memory.params, off.f.c.memory.params);
    assert_int_equal(on.f.c.memory.stash, off.f.c.memory.stash);
    fixture_clear(&on.f);
    fixture_clear(&off.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layers_gathers_run_while_the_layer_before_it_computes),
        cmocka_unit_test(a_gradients_reduction_runs_behind_the_next_layers_backward),
        cmocka_unit_test(without_an_order_each_is_waited_for_where_it_stands),
        cmocka_unit_test(the_order_of_contributions_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
