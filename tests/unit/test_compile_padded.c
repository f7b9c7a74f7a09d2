// SPDX-License-Identifier: Apache-2.0
// A size that is `padded` changes no number of a model: with padding in the vocabulary, the hidden
// layer and the heads it trains to what it trains to without, in f64, and what lies in the padding of
// its parameters is zero before and after.
#include "tests/unit/compile_case.h"

enum { BATCH = 4, SEQ = 8, VOCAB = 21, STEPS = 2 };

static void compile_padded(struct fixture *f, int multiple, const char *mesh, int microbatches,
                           const char *more)
{
    char text[800];
    snprintf(
        text, sizeof text,
        "name: t\nmodel: {program: ./tests/unit/programs/padded.model, multiple: %d, dropout: "
        "0}\nmesh: {%s}\n"
        "data: {format: tokens, train: {tokens: t}, batch: %d}\n"
        "optimizer: {kind: adamw, weight_decay: 0.1}\nschedule: {kind: constant, value: 0.01}\n"
        "train: {steps: 3, microbatches: %d}\n%s",
        multiple, mesh, BATCH, microbatches, more);
    compile_text(f, text, 0);
}

static void run_forward(struct interp *x, int microbatch)
{
    double tokens[BATCH * SEQ], targets[BATCH * SEQ], positions[BATCH * SEQ];
    const struct rand_site site = {.seed = 5, .stream = 1};
    for (int i = 0; i < BATCH * SEQ; i++) {
        tokens[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)i));
        targets[i] = floor(VOCAB * (double)rand_uniform(&site, (uint64_t)(1000 + i)));
        positions[i] = i % SEQ;
    }
    interp_feed(x, "tokens", tokens, microbatch);
    interp_feed(x, "targets", targets, microbatch);
    interp_feed(x, "positions", positions, microbatch);
    interp_phase(x, PHASE_FORWARD, microbatch);
}

static void set_scalars(struct interp *x)
{
    const double one = 1, hyper[HYPER_SLOTS] = {0.01, 1 / (1 - 0.9), 1 / (1 - 0.999)};
    const double control[CONTROL_SLOTS] = {0, 0};
    interp_set(x, "one", &one);
    interp_set(x, "hyper", hyper);
    interp_set(x, "control", control);
}

static void train(struct interp *x)
{
    set_scalars(x);
    for (int s = 0; s < STEPS; s++) {
        for (int m = 0; m < x->microbatches; m++) {
            run_forward(x, m);
            interp_phase(x, PHASE_BACKWARD, m);
        }
        interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
    }
}

// Where element i of a plain tensor lies in a padded one.
static int64_t find_place(const struct shape *plain, const struct shape *padded, int64_t i)
{
    int64_t at = 0, stride = 1;
    for (int d = plain->n - 1; d >= 0; d--) {
        at += i % plain->dim[d] * stride;
        i /= plain->dim[d];
        stride *= padded->dim[d];
    }
    return at;
}

static void set_alike(const struct interp *plain, struct interp *padded)
{
    for (int v = 0; v < plain->g->nvalues; v++) {
        const struct value *val = &plain->g->values[v];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        const struct shape *to = &padded->g->values[interp_find(padded, val->name)].shape;
        double *w = interp_get(plain, val->name);
        double *wide = calloc((size_t)shape_count(to), sizeof *wide);
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            wide[find_place(&val->shape, to, i)] = w[i];
        interp_set(padded, val->name, wide);
        free(w);
        free(wide);
    }
}

static void compare_alike(const struct interp *plain, const struct interp *padded, const char *on)
{
    int wider = 0;
    for (int v = 0; v < plain->g->nvalues; v++) {
        const struct value *val = &plain->g->values[v];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        const struct shape *of = &padded->g->values[interp_find(padded, val->name)].shape;
        double *w = interp_get(plain, val->name), *wide = interp_get(padded, val->name);
        for (int64_t i = 0; i < shape_count(&val->shape); i++) {
            double *x = &wide[find_place(&val->shape, of, i)];
            if (!(fabs(w[i] - *x) < 1e-7)) // 1 over a size is single
                fail_msg("%s: %s[%lld] is %.15g, %.15g with padding", on, val->name, (long long)i,
                         w[i], *x);
            *x = 0;
        }
        for (int64_t i = 0; i < shape_count(of); i++)
            if (wide[i] != 0)
                fail_msg("%s: %s[%lld], which is padding, is %g", on, val->name, (long long)i,
                         wide[i]);
        wider += !shape_equal(&val->shape, of);
        free(w);
        free(wide);
    }
    assert_true(wider >= 7);
    double *x = interp_get(plain, "metrics"), *y = interp_get(padded, "metrics");
    assert_true(fabs(x[METRIC_LOSS] - y[METRIC_LOSS]) < 1e-6);
    free(x);
    free(y);
}

static void padding_changes_no_number(void **state)
{
    static const struct {
        int multiple, microbatches;
        const char *mesh;
    } cases[] = {{8, 1, "dp: 1"},  {4, 2, "dp: 1"}, {8, 1, "dp: 2, tp: 2"},
                 {16, 2, "tp: 4"}, {8, 1, "cp: 2"}, {4, 2, "fsdp: 2"}};
    struct fixture f;
    struct interp plain, start;
    (void)state;
    compile_padded(&f, 1, "dp: 1", 1, "");
    interp_init(&plain, f.c.global[PROGRAM_TRAIN], NULL, 1);
    interp_init(&start, f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&plain);
    set_params(&start);
    train(&plain);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture g;
        struct interp padded;
        compile_padded(&g, cases[c].multiple, cases[c].mesh, cases[c].microbatches, "");
        interp_init(&padded, g.c.program[PROGRAM_TRAIN]->graph, &g.c.mesh, cases[c].microbatches);
        set_alike(&start, &padded);
        train(&padded);
        compare_alike(&plain, &padded, cases[c].mesh);
        interp_clear(&padded);
        fixture_clear(&g);
    }
    interp_clear(&plain);
    interp_clear(&start);
    fixture_clear(&f);
}

// What pads a divisor or what has a logarithm is an op, and reads a parameter in the dtype of the rest.
static void padding_is_of_the_dtype_that_is_computed_in(void **state)
{
    struct fixture f;
    (void)state;
    compile_padded(&f, 8, "dp: 1", 2, "precision: {compute: bf16}\n");
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_changes_no_number),
        cmocka_unit_test(padding_is_of_the_dtype_that_is_computed_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
