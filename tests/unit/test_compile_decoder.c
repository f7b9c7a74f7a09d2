// SPDX-License-Identifier: Apache-2.0
// Decoders: their gradients are slopes of their loss, and no mesh or rule changes a step.
#include "common/compile/program/verify.h"
#include "common/compile/shard/partition.h"
#include "common/explain/cost.h"
#include "tests/unit/decoder_case.h"

// ---- a step ------------------------------------------------------------------------------------

static double forward(struct interp *x, bool backward)
{
    const double one = 1;
    interp_set(x, "one", &one);
    for (int m = 0; m < x->microbatches; m++) {
        feed_tokens(x, m);
        interp_phase(x, PHASE_FORWARD, m);
        if (backward)
            interp_phase(x, PHASE_BACKWARD, m);
    }
    double *loss = interp_get(x, "loss"), value = *loss;
    free(loss);
    return value;
}

static double loss_at(struct interp *x, const void *ctx)
{
    (void)ctx;
    return forward(x, false);
}

// ---- gradients ---------------------------------------------------------------------------------

static void gradients_are_the_slopes_of_the_loss(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture f;
        struct interp x;
        compile_text(&f, decoder_text(models[k], "dp: 1", 2, ""), 0);
        interp_init(&x, f.c.global[PROGRAM_TRAIN], NULL, 2);
        set_params(&x);
        forward(&x, true);
        for (int v = 0; v < x.g->nvalues; v++)
            if (x.g->values[v].kind == VALUE_PARAM && x.g->values[v].alias < 0)
                check_slopes(&x, x.g->values[v].name, 5, 1e-8, loss_at, NULL);
        interp_clear(&x);
        fixture_clear(&f);
    }
}

// The loss of weights that say nothing is that of a guess among the real ids, and the padding's
// rows get no gradient.
static void padding_of_the_vocabulary_takes_no_part(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture f;
        struct interp x;
        compile_text(&f, decoder_text(models[k], "dp: 1", 1, ""), 0);
        interp_init(&x, f.c.global[PROGRAM_TRAIN], NULL, 1);
        double loss = forward(&x, false);
        assert_true(fabs(loss - log(VOCAB)) < 1e-12);
        set_params(&x);
        forward(&x, true);
        double *grad = interp_get(&x, "grad/embed/tokens"), *w = interp_get(&x, "embed/tokens");
        for (int i = VOCAB * 24; i < 24 * 24; i++)
            assert_true(grad[i] == 0 && w[i] != 0);
        free(grad);
        free(w);
        interp_clear(&x);
        fixture_clear(&f);
    }
}

// ---- meshes ------------------------------------------------------------------------------------

static void whole_step(struct fixture *f, struct interp *x, const char *model, int microbatches)
{
    compile_text(f, decoder_text(model, "dp: 1", microbatches, ""), 0);
    interp_init(x, f->c.global[PROGRAM_TRAIN], NULL, microbatches);
    set_params(x);
    decoder_step(x);
    decoder_step(x);
}

static void the_default_rules_on_usual_meshes_give_the_same_step(void **state)
{
    static const struct {
        const char *mesh, *sharding;
    } cases[] = {
        {"dp: 2", ""},
        {"dp: 4", ""},
        {"fsdp: 2", ""},
        {"fsdp: 4", ""},
        {"tp: 2", ""},
        {"tp: 4", ""},
        {"dp: 2, fsdp: 2", ""},
        {"dp: 2, tp: 2", ""},
        {"fsdp: 2, tp: 4", ""},
        {"dp: 2, fsdp: 2, tp: 2", ""},
        {"data: 2, model: 2", ""},
        {"tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"dp: 2, tp: 4", "activations: {act_seq: [batch, [seq, tp]]}"},
        {"fsdp: 2, tp: 2", "activations: {act_seq: [batch, [seq, tp]]}"},
        // The tied table's gradient: the head's part is of a sum over tp, the embedding's is not.
        {"tp: 2", "rules: {vocab: []}, activations: {act_logits: [batch, tp]}"},
        {"fsdp: 2, tp: 2", "rules: {vocab: []}, activations: {act_logits: [batch, tp]}"},
        {"x: 2, y: 2", "rules: {batch: [x], heads: y, mlp: y, vocab: y}"},
        {"x: 2, y: 2", "rules: {batch: x, embed: y, heads: y}, gather: [x, y]"},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture one;
        struct interp whole;
        whole_step(&one, &whole, models[k], 2);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct fixture f;
            struct interp parts;
            compile_text(&f, decoder_text(models[k], cases[c].mesh, 2, cases[c].sharding), 0);
            interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, 2);
            set_params(&parts);
            decoder_step(&parts);
            decoder_step(&parts);
            compare_params(&whole, &parts, cases[c].mesh);
            interp_clear(&parts);
            fixture_clear(&f);
        }
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

static const enum dim ruled[] = {DIM_BATCH, DIM_SEQ,   DIM_EMBED,   DIM_MLP,
                                 DIM_HEADS, DIM_VOCAB, DIM_POSITION};

static void random_rules(struct rules *r, const struct mesh *m, unsigned *seed)
{
    *r = (struct rules){.dims = r->dims};
    for (size_t d = 0; d < sizeof ruled / sizeof *ruled; d++) {
        struct rule *rule = &r->rule[r->n++];
        rule->dim = ruled[d];
        int first = rand_r(seed) % m->n;
        for (int i = 0; i < m->n; i++)
            if (rand_r(seed) % 2 &&
                dim_parts(m, &rule->axes) * m->axis[(first + i) % m->n].size <= 4)
                dim_append(&rule->axes, (first + i) % m->n);
    }
}

// Gradients and state cut further on any axes, in any order.
static void random_cuts_beyond(struct sharding *s, const struct mesh *m, unsigned *seed)
{
    struct refine *both[] = {&s->grads, &s->optimizer};
    for (int k = 0; k < 2; k++)
        for (int i = 0, first = rand_r(seed) % m->n; i < m->n; i++)
            if (rand_r(seed) % 2)
                dim_append(&both[k]->axes, (first + i) % m->n);
}

static void rules_of_every_kind_give_the_same_step(void **state)
{
    static const struct mesh meshes[] = {{1, {{"a", 2}}, 0},
                                         {2, {{"a", 2}, {"b", 2}}, 0},
                                         {2, {{"a", 4}, {"b", 2}}, 0},
                                         {3, {{"a", 2}, {"b", 2}, {"c", 2}}, 0}};
    const unsigned cases = getenv("WEFT_LONG") ? 200 : 20;
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture one;
        struct interp whole;
        whole_step(&one, &whole, models[k], 1);
        for (unsigned c = 0; c < cases; c++) {
            unsigned seed = c + 1;
            const struct mesh *m = &meshes[c % 4];
            struct arena a = {0};
            struct graph g;
            struct err e = {0};
            struct sharding sharding = {.rules = {.dims = one.c.dims}};
            struct interp parts;
            char what[40];
            snprintf(what, sizeof what, "model %d, case %u", k, c);
            graph_init(&g, &a, NULL, &e);
            random_rules(&sharding.rules, m, &seed);
            random_cuts_beyond(&sharding, m, &seed);
            int rc = partition(one.c.global[PROGRAM_TRAIN], m, &sharding, &g, &e);
            rc = rc ? rc : verify_partitioned(&g, m, &e);
            if (rc)
                fail_msg("%s: %s", what, e.text);
            interp_init(&parts, &g, m, 1);
            set_params(&parts);
            decoder_step(&parts);
            decoder_step(&parts);
            compare_params(&whole, &parts, what);
            interp_clear(&parts);
            arena_clear(&a);
        }
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

// Four key heads cut eight ways: they stay whole, each device reads the one its query head shares.
static void more_ways_than_key_heads_leave_them_whole(void **state)
{
    struct fixture one, f;
    struct interp whole, parts;
    const char *model = "program: llama, embed: 24, heads: 8, kv_heads: 2, head_dim: 4, mlp: 24";
    (void)state;
    whole_step(&one, &whole, model, 1);
    compile_text(&f, decoder_text(model, "tp: 8", 1, ""), 0);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, 1);
    set_params(&parts);
    decoder_step(&parts);
    decoder_step(&parts);
    compare_params(&whole, &parts, "tp: 8");
    interp_clear(&whole);
    interp_clear(&parts);
    fixture_clear(&one);
    fixture_clear(&f);
    model = "program: llama, embed: 24, heads: 12, kv_heads: 3, head_dim: 4, mlp: 24";
    compile_text(&f, decoder_text(model, "tp: 4", 1, ""), ERR_INVALID);
    assert_non_null(strstr(f.e.text, "3 key heads do not go with 12 query heads cut 4 ways"));
    fixture_clear(&f);
}

// llama's q and kv, and gate and up, flow back in parts of one sum: added as they are, and only
// where both are such parts.
static void parts_of_a_sum_are_added_to_their_like_alone(void **state)
{
    struct fixture f;
    struct err e = {0};
    (void)state;
    compile_text(&f, decoder_text(models[1], "tp: 2", 1, ""), 0);
    struct graph g = *f.c.program[PROGRAM_TRAIN]->graph;
    int found = 0;
    assert_int_equal(verify_partitioned(&g, &f.c.mesh, &e), 0);
    for (int i = 0; i < g.nnodes; i++) {
        const struct node *n = &g.nodes[i];
        if (n->kind != NODE_OP || n->op != OP_ADD || !g.values[n->out[0]].spec.partial_sum)
            continue;
        struct spec *one = &g.values[n->in[found % 2]].spec, keep = *one;
        one->partial_sum = 0;
        assert_int_equal(verify_partitioned(&g, &f.c.mesh, &e), ERR_INTERNAL);
        *one = keep;
        found++;
    }
    assert_int_equal(found, 4); // two in each of two layers
    fixture_clear(&f);
}

// ---- what a step communicates ------------------------------------------------------------------

static uint64_t count_of(const struct cost *c, enum reshard_kind op, enum phase phase,
                         const char *in)
{
    uint64_t n = 0;
    for (int i = 0; i < c->ncollectives; i++)
        if (c->collectives[i].op == op && c->collectives[i].phase == phase &&
            strstr(c->collectives[i].tensor, in))
            n += c->collectives[i].count;
    return n;
}

// L = 2 layers: the embedding and two blocks a layer, each way; row maximum, row sum and pick.
static void tensor_parallelism_reduces_twice_a_layer_and_once_for_the_embedding(void **state)
{
    struct fixture f;
    struct cost cost;
    (void)state;
    compile_text(&f, decoder_text(models[0], "tp: 2", 1, ""), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "act_seq"), 5);
    assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, "act_logits"), 3);
    assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_FORWARD, ""), 8);
    assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, ""), 5);
    assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD, ""), 0);
    assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_BACKWARD, ""), 0);
    fixture_clear(&f);
}

// Each of 4 linears a layer, two embeddings and the head gather for the forward and, the
// embeddings apart, once more for the backward; every reading op scatters its gradient.
static void sharded_parameters_are_gathered_for_each_pass_that_reads_them(void **state)
{
    struct fixture f;
    struct cost cost;
    (void)state;
    compile_text(&f, decoder_text(models[2], "fsdp: 2", 1, ""), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_FORWARD, ""), 2 * 4 + 3);
    assert_int_equal(count_of(&cost, RESHARD_ALL_GATHER, PHASE_BACKWARD, ""), 2 * 4 + 1);
    assert_int_equal(count_of(&cost, RESHARD_REDUCE_SCATTER, PHASE_BACKWARD, ""), 2 * 4 + 3);
    assert_int_equal(count_of(&cost, RESHARD_ALL_REDUCE, PHASE_BACKWARD, ""), 0);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(padding_of_the_vocabulary_takes_no_part),
        cmocka_unit_test(the_default_rules_on_usual_meshes_give_the_same_step),
        cmocka_unit_test(rules_of_every_kind_give_the_same_step),
        cmocka_unit_test(more_ways_than_key_heads_leave_them_whole),
        cmocka_unit_test(parts_of_a_sum_are_added_to_their_like_alone),
        cmocka_unit_test(tensor_parallelism_reduces_twice_a_layer_and_once_for_the_embedding),
        cmocka_unit_test(sharded_parameters_are_gathered_for_each_pass_that_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
