// SPDX-License-Identifier: Apache-2.0
// What a mesh is held against (mesh_case.h): two steps of training and an evaluation of a model on one
// device, in double precision with one microbatch and nothing remade, on data made from a seed.
#pragma once
#include "tests/ops/rig.h"
#include "tests/unit/mesh_settings.h"

enum { STEPS = 2 };

// ---- data --------------------------------------------------------------------------------------

static struct {
    double images[BATCH * PIXELS], labels[BATCH];
    double tokens[BATCH * SEQ], targets[BATCH * SEQ], positions[BATCH * SEQ];
} batch;
static const double one = 1, hyper[HYPER_SLOTS] = {0.01, 10, 1000}, control[CONTROL_SLOTS];
static const struct whole_tensor data[] = {
    {"images", batch.images},   {"labels", batch.labels},       {"tokens", batch.tokens},
    {"targets", batch.targets}, {"positions", batch.positions}, {"one", &one},
    {"hyper", hyper},           {"control", control},           {NULL, NULL},
};

static void fill(double *to, int n, int below, uint32_t stream)
{
    struct rand_site site = {.seed = 11, .stream = stream};
    for (int i = 0; i < n; i++)
        to[i] = floor(below * (double)rand_uniform(&site, (uint64_t)i));
}

static int make_data(void **state)
{
    (void)state;
    rig_find_backend();
    fill(batch.images, BATCH * PIXELS, 256, 1);
    fill(batch.labels, BATCH, 6, 2);
    fill(batch.tokens, BATCH * SEQ, VOCAB, 3);
    fill(batch.targets, BATCH * SEQ, VOCAB, 4);
    for (int i = 0; i < BATCH * SEQ; i++)
        batch.positions[i] = i % SEQ;
    return 0;
}

// ---- one device --------------------------------------------------------------------------------

// Twice for each model: in f32 and in bf16.
struct reference {
    bool made;
    struct fixture f;
    struct interp start, trained, evaluated;
    double largest; // momentum of all
};

static void feed(struct interp *x, int step)
{
    const double count = step;
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_INPUT && val->kind != VALUE_SCALAR)
            continue;
        const struct whole_tensor *d = data;
        while (d->name && strcmp(d->name, val->name) != 0)
            d++;
        assert_true(d->name || !strcmp(val->name, "step"));
        interp_set(x, val->name, d->name ? d->whole : &count);
    }
}

static void evaluate(struct reference *r)
{
    struct interp *x = &r->evaluated;
    interp_init(x, r->f.c.global[PROGRAM_EVAL], NULL, 1);
    for (int v = 0; v < x->g->nvalues; v++)
        if (x->g->values[v].kind == VALUE_PARAM) {
            const char *name = x->g->values[v].name;
            interp_set(x, name, r->trained.value[interp_find(&r->trained, name)]);
        }
    feed(x, 0);
    interp_phase(x, PHASE_FORWARD, 0);
    interp_phase(x, PHASE_UPDATE, 0);
}

static inline bool in_bf16(const struct setting *s)
{
    return strstr(s->more, "bf16") != NULL;
}

static void (*set_start)(struct interp *x) = set_params;

static inline struct reference *reference_of(struct reference both[2], const struct model *m,
                                             bool half)
{
    const struct setting alone = {ALL, "dp: 1", 1,
                                  "",  "",      half ? "precision: {compute: bf16}\n" : ""};
    struct reference *r = &both[half];
    if (r->made)
        return r;
    if (compile_setting(&r->f, m, &alone))
        fail_msg("%s: %s", m->name, r->f.e.text);
    interp_init(&r->start, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_start(&r->start);
    interp_init(&r->trained, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_start(&r->trained);
    for (int s = 0; s < STEPS; s++) {
        feed(&r->trained, s);
        for (enum phase p = 0; p < PHASE_COUNT; p++)
            interp_phase(&r->trained, p, 0);
    }
    evaluate(r);
    const struct graph *g = r->trained.g;
    for (int v = 0; v < g->nvalues; v++)
        for (int64_t i = 0;
             g->values[v].kind == VALUE_STATE && i < shape_count(&g->values[v].shape); i++)
            r->largest = fmax(r->largest, fabs(r->trained.value[v][i]));
    r->made = true;
    return r;
}

static inline void forget_references(struct reference *all, int n)
{
    for (int k = 0; k < n; k++) {
        struct reference *r = &all[k];
        if (!r->made)
            continue;
        interp_clear(&r->start);
        interp_clear(&r->trained);
        interp_clear(&r->evaluated);
        fixture_clear(&r->f);
    }
}
