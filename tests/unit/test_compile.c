// SPDX-License-Identifier: Apache-2.0
// The compiler: what gradients mean, what partitioning must not change, what a step communicates
// and how much memory it takes, each held against the f64 interpreter or numbers worked by hand.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/compile/program/dump.h"
#include "common/compile/program/plan_hash.h"
#include "common/compile/program/verify.h"
#include "common/compile/shard/partition.h"
#include "common/explain/cost.h"
#include "tests/unit/compile_case.h"
#include "tests/unit/unit.h"

static const char *job_text(struct fixture *f, const char *activation, int dp, int micro,
                            const char *optimizer)
{
    static char text[1000];
    (void)f;
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: mlp, inputs: 7, hidden: [6, 5], classes: 4, activation: %s}\n"
             "mesh: {dp: %d}\n"
             "data: {train: {images: i, labels: l}, eval: {images: i, labels: l}, batch: 24}\n"
             "optimizer: {%s}\n"
             "schedule: {kind: constant, value: 0.01}\n"
             "train: {steps: 3, microbatches: %d, seed: 5}\n",
             activation, dp, optimizer, micro);
    return text;
}

// ---- gradients ---------------------------------------------------------------------------------

static double loss_at(struct interp *x, const void *ctx)
{
    const struct fixture *f = ctx;
    for (int m = 0; m < x->microbatches; m++) {
        interp_feed(x, "images", f->images, m);
        interp_feed(x, "labels", f->labels, m);
        interp_phase(x, PHASE_FORWARD, m);
    }
    double *loss = interp_get(x, "loss"), value = *loss;
    free(loss);
    return value;
}

static void gradients_are_the_slopes_of_the_loss(void **state)
{
    (void)state;
    static const char *const activations[] = {"relu", "gelu", "tanh"};
    for (int k = 0; k < 3; k++) {
        struct fixture f;
        struct interp x;
        compile_text(&f, job_text(&f, activations[k], 1, 2, "kind: sgd"), 0);
        make_batch(&f);
        interp_init(&x, f.c.global[PROGRAM_TRAIN], NULL, 2);
        set_params(&x);
        const double one = 1;
        interp_set(&x, "one", &one);
        loss_at(&x, &f);
        for (int m = 0; m < 2; m++) {
            interp_feed(&x, "images", f.images, m);
            interp_feed(&x, "labels", f.labels, m);
            interp_phase(&x, PHASE_FORWARD, m);
            interp_phase(&x, PHASE_BACKWARD, m);
        }
        for (int v = 0; v < x.g->nvalues; v++)
            if (x.g->values[v].kind == VALUE_PARAM && x.g->values[v].alias < 0)
                check_slopes(&x, x.g->values[v].name, 100, 1e-7, loss_at, &f);
        interp_clear(&x);
        fixture_clear(&f);
    }
}

// ---- partitioning ------------------------------------------------------------------------------

static void partitioned_steps_equal_the_whole_one(void **state)
{
    (void)state;
    static const struct {
        int dp, micro;
        const char *optimizer;
    } cases[] = {
        {2, 1, "kind: adamw, weight_decay: 0.1, clip_norm: 0.01"},
        {3, 2, "kind: adam"},
        {4, 3, "kind: momentum, nesterov: true, clip_norm: 0.5"},
        {6, 4, "kind: sgd"},
        {12, 2, "kind: adamw, clip_norm: 1"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct fixture f;
        struct interp whole, parts;
        compile_text(&f, job_text(&f, "gelu", cases[k].dp, cases[k].micro, cases[k].optimizer), 0);
        make_batch(&f);
        interp_init(&whole, f.c.global[PROGRAM_TRAIN], NULL, cases[k].micro);
        interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, cases[k].micro);
        assert_int_equal(parts.ranks, cases[k].dp);
        set_params(&whole);
        set_params(&parts);
        for (int s = 0; s < 2; s++) {
            step(&f, &whole);
            step(&f, &parts);
        }
        compare(&whole, &parts, "layers/0/weight");
        compare(&whole, &parts, "layers/1/bias");
        compare(&whole, &parts, "layers/2/weight");
        compare(&whole, &parts, "layers/2/bias");
        interp_clear(&whole);
        interp_clear(&parts);
        fixture_clear(&f);
    }
}

// ---- any mesh, any rules -----------------------------------------------------------------------

static const enum dim ruled[] = {DIM_BATCH, DIM_EMBED, DIM_MLP, DIM_NORM};

// Rules that put the mesh's axes on dimensions at random; sizes divide by construction.
static void random_rules(struct rules *r, const struct mesh *m, unsigned *seed)
{
    *r = (struct rules){.dims = r->dims};
    for (size_t d = 0; d < sizeof ruled / sizeof *ruled; d++) {
        struct rule *rule = &r->rule[r->n++];
        rule->dim = ruled[d];
        int first = rand_r(seed) % m->n;
        for (int i = 0; i < m->n; i++)
            if (rand_r(seed) % 2)
                dim_append(&rule->axes, (first + i) % m->n);
    }
}

static void meshes_and_rules_of_every_kind_give_the_same_step(void **state)
{
    (void)state;
    static const struct mesh meshes[] = {{1, {{"a", 2}}, 0},
                                         {2, {{"a", 2}, {"b", 3}}, 0},
                                         {3, {{"a", 2}, {"b", 3}, {"c", 2}}, 0},
                                         {2, {{"a", 4}, {"b", 2}}, 0}};
    const char *text = "name: t\n"
                       "model: {program: mlp, inputs: 24, hidden: [48, 24, 48], classes: 5}\n"
                       "mesh: {dp: 1}\n"
                       "data: {train: {images: i, labels: l}, batch: 48}\n"
                       "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.01}\n"
                       "schedule: {kind: constant, value: 0.01}\n"
                       "train: {steps: 3, microbatches: 2, seed: 5}\n";
    struct fixture f;
    struct interp whole;
    compile_text(&f, text, 0);
    make_batch(&f);
    interp_init(&whole, f.c.global[PROGRAM_TRAIN], NULL, 2);
    set_params(&whole);
    step(&f, &whole);
    step(&f, &whole);
    for (unsigned k = 0; k < 120; k++) {
        unsigned seed = k + 1;
        const struct mesh *m = &meshes[k % 4];
        struct arena a = {0};
        struct graph g;
        struct err e = {0};
        struct sharding sharding = {.rules = {.dims = f.c.dims}};
        struct interp parts;
        graph_init(&g, &a, NULL, &e);
        random_rules(&sharding.rules, m, &seed);
        int rc = partition(f.c.global[PROGRAM_TRAIN], m, &sharding, &g, &e);
        if (!rc)
            rc = verify_partitioned(&g, m, &e);
        if (rc)
            fail_msg("case %u: %s", k, e.text);
        interp_init(&parts, &g, m, 2);
        set_params(&parts);
        step(&f, &parts);
        step(&f, &parts);
        for (int layer = 0; layer < 4; layer++) {
            char name[40];
            snprintf(name, sizeof name, "layers/%d/weight", layer);
            compare(&whole, &parts, name);
            snprintf(name, sizeof name, "layers/%d/bias", layer);
            compare(&whole, &parts, name);
        }
        interp_clear(&parts);
        arena_clear(&a);
    }
    interp_clear(&whole);
    fixture_clear(&f);
}

static void metrics_count_every_sample_and_parameter_once(void **state)
{
    (void)state;
    struct fixture f;
    struct interp whole, parts;
    compile_text(&f, job_text(&f, "relu", 4, 2, "kind: sgd"), 0);
    make_batch(&f);
    interp_init(&whole, f.c.global[PROGRAM_TRAIN], NULL, 2);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, 2);
    set_params(&whole);
    set_params(&parts);
    step(&f, &whole);
    step(&f, &parts);
    double *one = interp_get(&whole, "metrics");
    // The all-reduced vector is the alias of the first of that name: the same storage.
    double *all = interp_get(&parts, "metrics");
    assert_true(fabs(one[METRIC_LOSS] - all[METRIC_LOSS]) < 1e-12);
    assert_true(fabs(one[METRIC_SQNORM] - all[METRIC_SQNORM]) < 1e-12 * (1 + one[METRIC_SQNORM]));
    assert_true(one[METRIC_SQNORM] > 0);
    free(one);
    free(all);
    interp_clear(&whole);
    interp_clear(&parts);
    fixture_clear(&f);
}

// ---- what a step communicates and takes --------------------------------------------------------

static const struct collective_row *row_of(const struct cost *c, const char *tensor)
{
    for (int i = 0; i < c->ncollectives; i++)
        if (strcmp(c->collectives[i].tensor, tensor) == 0)
            return &c->collectives[i];
    fail_msg("no collective on %s", tensor);
    return NULL;
}

static void each_gradient_is_reduced_once_a_step(void **state)
{
    (void)state;
    struct fixture f;
    struct cost cost;
    compile_text(&f, job_text(&f, "relu", 4, 3, "kind: adamw"), 0);
    cost_count(&f.c, &f.a, &cost);
    // Six parameters and the metrics vector; 24 / 3 / 4 = 2 samples a microbatch and device.
    static const struct {
        const char *tensor;
        uint64_t elements;
    } want[] = {
        {"grad/layers/0/weight", 42},
        {"grad/layers/0/bias", 6},
        {"grad/layers/1/weight", 30},
        {"grad/layers/1/bias", 5},
        {"grad/layers/2/weight", 20},
        {"grad/layers/2/bias", 4},
        {"metrics", 5}, // loss, norm, two bits of control, accuracy
    };
    assert_int_equal(cost.ncollectives, 7);
    for (int i = 0; i < 7; i++) {
        const struct collective_row *r = row_of(&cost, want[i].tensor);
        assert_int_equal(r->count, 1);
        assert_int_equal(r->group, 4);
        assert_int_equal(r->tensor_bytes, 4 * want[i].elements);
        assert_int_equal(r->bytes, 6 * want[i].elements); // 2·3/4 of 4 bytes
        assert_int_equal(r->phase, i == 6 ? PHASE_UPDATE : PHASE_BACKWARD);
    }
    // 24 samples, widths 7·6 + 6·5 + 5·4 = 92 products, 2 FLOPs, three passes.
    assert_true(cost.flops_per_step == 24.0 * 92 * 2 * 3);
    assert_true(cost.utilisation == 1);
    fixture_clear(&f);
}

static void one_device_communicates_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct cost cost;
    compile_text(&f, job_text(&f, "relu", 1, 2, "kind: adamw"), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(cost.ncollectives, 0);
    assert_int_equal(f.c.memory.region[REGION_SHARED], 0);
    fixture_clear(&f);
}

static void memory_is_the_sum_of_its_parts(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, job_text(&f, "relu", 2, 1, "kind: adamw"), 0);
    const struct memory *m = &f.c.memory;
    // 42 + 6 + 30 + 5 + 20 + 4 = 107 parameters of four bytes; two moments.
    assert_int_equal(m->params, 428);
    assert_int_equal(m->grads, 428);
    assert_int_equal(m->optimizer, 856);
    // Kept for the backward: 12 samples of the cast image (7), two activations (6, 5), the logits'
    // gradient (4), which the loss makes, each f32.
    assert_int_equal(m->stash, 12 * (7 + 6 + 5 + 4) * 4);
    assert_int_equal(m->arena,
                     m->params + m->grads + m->optimizer + m->stash + m->transient + m->workspace);
    assert_int_equal(m->arena, m->region[REGION_PRIVATE] + m->region[REGION_SHARED]);
    fixture_clear(&f);
}

static void more_microbatches_take_less_memory(void **state)
{
    (void)state;
    struct fixture one, four;
    compile_text(&one, job_text(&one, "relu", 2, 1, "kind: sgd"), 0);
    compile_text(&four, job_text(&four, "relu", 2, 4, "kind: sgd"), 0);
    assert_int_equal(four.c.memory.stash * 4, one.c.memory.stash);
    assert_int_equal(one.c.memory.optimizer, 0);
    fixture_clear(&one);
    fixture_clear(&four);
}

static void hash_one(const struct program *p, char out[33])
{
    struct plan_hash hash;
    plan_hash_init(&hash);
    plan_hash_add(&hash, p);
    plan_hash_end(&hash, out);
}

// Changes one number at a time; the hash must be another one then, and the old one afterwards.
static void the_plan_hash_covers_what_a_rank_does(void **state)
{
    struct fixture f;
    char before[33], now[33];
    (void)state;
    compile_text(&f, job_text(&f, "relu", 2, 1, "kind: momentum"), 0);
    struct program *p = f.c.program[PROGRAM_TRAIN];
    int op = 0;
    while (p->instrs[op].kind != INSTR_OP || p->instrs[op].phase != PHASE_UPDATE)
        op++;
    struct instr *i = &p->instrs[op];
    struct view *out = (struct view *)(uintptr_t)i->out;
    struct op_attr *attr = (struct op_attr *)(uintptr_t)program_attr(p, i);
    int *const numbers[] = {&i->microbatch, &i->workspace, &i->with, &i->nin, &out->buffer};
    uint64_t *const sizes[] = {&p->buffers[0].offset, &p->buffers[0].bytes, &out->offset};
    hash_one(p, before);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        (*numbers[k])--;
        hash_one(p, now);
        assert_string_not_equal(now, before);
        (*numbers[k])++;
    }
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        *sizes[k] += PLAN_ALIGN;
        hash_one(p, now);
        assert_string_not_equal(now, before);
        *sizes[k] -= PLAN_ALIGN;
    }
    attr->scale += 1;
    hash_one(p, now);
    assert_string_not_equal(now, before);
    attr->scale -= 1;
    attr->center = !attr->center;
    hash_one(p, now);
    assert_string_not_equal(now, before);
    attr->center = !attr->center;
    int64_t *const attributes[] = {&attr->limit, &attr->slots.experts};
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++) {
        (*attributes[k])++;
        hash_one(p, now);
        assert_string_not_equal(now, before);
        (*attributes[k])--;
    }
    hash_one(p, now);
    assert_string_equal(now, before);
    fixture_clear(&f);
}

static void the_plan_hash_is_of_the_job_alone(void **state)
{
    (void)state;
    struct fixture a, b, c;
    compile_text(&a, job_text(&a, "relu", 2, 1, "kind: sgd"), 0);
    compile_text(&b, job_text(&b, "relu", 2, 1, "kind: sgd"), 0);
    compile_text(&c, job_text(&c, "relu", 2, 1, "kind: momentum"), 0);
    assert_string_equal(a.c.hash, b.c.hash);
    assert_string_not_equal(a.c.hash, c.c.hash);
    fixture_clear(&a);
    fixture_clear(&b);
    fixture_clear(&c);
}

// ---- the verifier has teeth --------------------------------------------------------------------

static void expect_broken(struct fixture *f, const char *what)
{
    struct err e = {0};
    int rc = verify_program(f->c.program[PROGRAM_TRAIN], &f->c.memory, &e);
    if (rc != ERR_INTERNAL || !strstr(e.text, what))
        fail_msg("wanted '%s', got %d '%s'", what, rc, e.text);
}

static void a_damaged_program_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    compile_text(&f, job_text(&f, "relu", 2, 1, "kind: adamw"), 0);
    struct program *p = f.c.program[PROGRAM_TRAIN];
    struct buffer *w = &p->buffers[program_find(p, "layers/0/weight")];
    struct buffer *m = &p->buffers[program_find(p, "m/layers/0/weight")];
    uint64_t keep = m->offset;

    m->offset = w->offset;
    expect_broken(&f, "overlap");
    m->offset = f.c.memory.region[REGION_PRIVATE];
    expect_broken(&f, "outside");
    m->offset = keep;

    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_WAIT) {
            p->instrs[i].kind = INSTR_MARK; // a forgotten wait
            expect_broken(&f, "a buffer of the collective");
            p->instrs[i].kind = INSTR_WAIT;
            break;
        }
    struct instr first = p->instrs[1];
    p->instrs[1].kind = INSTR_MARK; // nothing makes what the next one reads
    p->instrs[1].nin = p->instrs[1].nout = 0;
    expect_broken(&f, "nobody wrote");
    p->instrs[1] = first;
    struct err e = {0};
    assert_int_equal(verify_program(p, &f.c.memory, &e), 0);
    fixture_clear(&f);
}

static void a_damaged_graph_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = {0};
    compile_text(&f, job_text(&f, "relu", 2, 1, "kind: adamw"), 0);
    struct graph g = *f.c.program[PROGRAM_TRAIN]->graph;
    for (int i = 0; i < g.nnodes; i++)
        if (g.nodes[i].kind == NODE_RESHARD) {
            struct reshard_step keep = g.nodes[i].step;
            g.nodes[i].step.cut.n = 0;
            assert_int_equal(verify_partitioned(&g, &f.c.mesh, &e), ERR_INTERNAL);
            g.nodes[i].step = keep;
            break;
        }
    struct node keep = g.nodes[0];
    g.nodes[0].in[0] = g.nodes[5].out[0];
    assert_int_equal(verify_graph(&g, &e), ERR_INTERNAL);
    g.nodes[0] = keep;
    assert_int_equal(verify_partitioned(&g, &f.c.mesh, &e), 0);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(partitioned_steps_equal_the_whole_one),
        cmocka_unit_test(meshes_and_rules_of_every_kind_give_the_same_step),
        cmocka_unit_test(metrics_count_every_sample_and_parameter_once),
        cmocka_unit_test(each_gradient_is_reduced_once_a_step),
        cmocka_unit_test(one_device_communicates_nothing),
        cmocka_unit_test(memory_is_the_sum_of_its_parts),
        cmocka_unit_test(more_microbatches_take_less_memory),
        cmocka_unit_test(the_plan_hash_covers_what_a_rank_does),
        cmocka_unit_test(the_plan_hash_is_of_the_job_alone),
        cmocka_unit_test(a_damaged_program_is_refused),
        cmocka_unit_test(a_damaged_graph_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
