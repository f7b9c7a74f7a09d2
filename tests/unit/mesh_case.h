// SPDX-License-Identifier: Apache-2.0
// A model on a mesh held against the model of one device: real programs with the CPU backend, a
// thread a rank, on the communicator that checks order and deadlock. Two steps of training are
// those of one device in double precision with one microbatch and nothing remade: loss and norm,
// momenta (which are the gradients of both steps), parameters; and so is an evaluation.
//
// Every fourth setting runs on the device that keeps its memory and its time to itself
// (tests/support/late.c), where steps are replayed and collectives staged, or the device's own.
#pragma once
#include "tests/ops/rig.h"
#include "tests/support/device_transport.h"
#include "tests/support/rank_threads.h"
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

static bool in_bf16(const struct setting *s)
{
    return strstr(s->more, "bf16") != NULL;
}

static struct reference *reference_of(struct reference both[2], const struct model *m, bool half)
{
    const struct setting alone = {ALL, "dp: 1", 1,
                                  "",  "",      half ? "precision: {compute: bf16}\n" : ""};
    struct reference *r = &both[half];
    if (r->made)
        return r;
    if (compile_setting(&r->f, m, &alone))
        fail_msg("%s: %s", m->name, r->f.e.text);
    interp_init(&r->start, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&r->start);
    interp_init(&r->trained, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&r->trained);
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

static void forget_references(struct reference *all, int n)
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

// ---- a mesh ------------------------------------------------------------------------------------

// Differences are told in units of the tensor's largest element, or of a thousandth of all: some
// gradients (of a biased qkv's keys) are zero but for rounding.
static int compare_ranks(const struct rank_threads *ranks, const struct reference *r, double rtol,
                         struct err *e)
{
    const struct interp *want = &r->trained;
    int rc = rank_threads_compare(ranks, PROGRAM_TRAIN, "metrics",
                                  want->value[interp_find(want, "metrics")], rtol, rtol, e);
    for (int v = 0; v < want->g->nvalues && !rc; v++) {
        const struct value *val = &want->g->values[v];
        double most = 1e-3 * r->largest;
        if (val->alias >= 0 || (val->kind != VALUE_PARAM && val->kind != VALUE_STATE))
            continue;
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            most = fmax(most, fabs(want->value[v][i]));
        rc = rank_threads_compare(ranks, PROGRAM_TRAIN, val->name, want->value[v], 0, rtol * most,
                                  e);
    }
    want = &r->evaluated;
    return rc ? rc
              : rank_threads_compare(ranks, PROGRAM_EVAL, "metrics",
                                     want->value[interp_find(want, "metrics")], rtol, rtol, e);
}

static double largest_of(const double *x, const double *less, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i] - (less ? less[i] : 0)));
    return most;
}

struct rounding {
    double error, most; // of a tensor: bf16's worst error on one device, and the largest element
};

static struct rounding rounding_of(const struct interp *half, const struct interp *single, int v)
{
    int64_t n = shape_count(&half->g->values[v].shape);
    const double *want = single->value[interp_find(single, half->g->values[v].name)];
    return (struct rounding){largest_of(half->value[v], want, n), largest_of(want, NULL, n)};
}

static bool is_compared(const struct value *v)
{
    return v->alias < 0 && (v->kind == VALUE_PARAM || v->kind == VALUE_STATE);
}

// In bf16 meshes round at other places, and how far that leads depends on the model. So a mesh is
// held against one device in f32, within 4 times what bf16 does there on one device: to the tensor,
// or for its size to all tensors, since a few elements may happen to be all but exact.
static int compare_roundings(const struct rank_threads *ranks, const struct reference *half,
                             const struct reference *single, struct err *e)
{
    const struct interp *x = &half->trained, *y = &single->trained;
    double errors = 0, sizes = 0;
    int rc = 0;
    for (int v = 0; v < x->g->nvalues; v++)
        if (is_compared(&x->g->values[v]) && x->g->values[v].kind == VALUE_STATE) {
            struct rounding r = rounding_of(x, y, v);
            errors += r.error;
            sizes += r.most;
        }
    for (int v = 0; v < x->g->nvalues && !rc; v++) {
        const struct value *val = &x->g->values[v];
        if (!is_compared(val))
            continue;
        struct rounding r = rounding_of(x, y, v);
        double share = val->kind == VALUE_STATE ? errors / sizes : 0;
        double slack = 4 * fmax(r.error, share * r.most) + 1e-4 * single->largest;
        rc = rank_threads_compare(ranks, PROGRAM_TRAIN, val->name,
                                  y->value[interp_find(y, val->name)], 0, slack, e);
    }
    return rc;
}

static bool by_rounding; // bf16 is held to what it does on one device, not to a share of numbers
static bool only_late;   // all, not every fourth

// The late device's collectives by turns: staged by the hosts, beside the computation, within it.
static const struct transport *choose_transport(const struct compiled *c, int turn)
{
    if (turn % 3 == 0)
        return &host_transport;
    return turn % 3 == 1 || c->nstages > 1 ? &event_transport : &inline_transport;
}

enum verdict { HOLDS, REFUSED, FAILS };

// Refused: the job asks for what cannot be, and is told so.
static enum verdict try_setting(const struct model *m, struct reference both[2],
                                const struct setting *s)
{
    struct reference *r = reference_of(both, m, in_bf16(s));
    struct fixture f;
    struct err e = {0};
    static int tried;
    bool late = ++tried % 4 == 0 || only_late;
    struct rank_threads ranks = {
        .compiled = &f.c, .start = &r->start, .data = data, .steps = STEPS, .late = late};
    int rc = compile_setting(&f, m, s);
    if (late)
        ranks.transport = choose_transport(&f.c, tried);
    if (rc)
        e = f.e;
    else {
        rc = rank_threads_run(&ranks, &e);
        if (!rc && in_bf16(s) && by_rounding)
            rc = compare_roundings(&ranks, r, reference_of(both, m, false), &e);
        else
            rc = rc ? rc : compare_ranks(&ranks, r, in_bf16(s) ? 0.06 : 1e-5, &e);
        rank_threads_clear(&ranks);
    }
    enum verdict verdict = rc == 0 ? HOLDS : f.e.code == ERR_INVALID ? REFUSED : FAILS;
    if (verdict == FAILS || (rc && s->models))
        printf("%s on {%s}%s, microbatches: %d%s, {%s} %s: %s\n", m->name, s->mesh,
               late ? " late" : "", s->microbatches, s->train, s->sharding, s->more, e.text);
    fixture_clear(&f);
    return verdict;
}
