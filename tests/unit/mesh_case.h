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
#include "tests/support/how_many.h"
#include "tests/support/late_transport.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/mesh_reference.h"

// ---- a mesh ------------------------------------------------------------------------------------

// Differences are given in units of the tensor's largest element, or of a thousandth of all: some
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

static double mesh_rtol = 1e-5; // of f32
static bool by_rounding; // bf16 is held to what it does on one device, not to a share of numbers
static bool only_late;   // all, not every fourth

// The late device's collectives by turns: staged by the hosts, beside the computation, within it.
static const struct transport *choose_transport(int turn)
{
    static const struct transport *const all[] = {&host_transport, &event_transport,
                                                  &inline_transport};
    return all[turn % 3];
}

enum verdict { HOLDS, REFUSED, FAILS };

// Refused: the job asks for what cannot be, and the message says so.
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
        ranks.transport = choose_transport(tried);
    if (rc)
        e = f.e;
    else {
        rc = rank_threads_run(&ranks, &e);
        if (!rc && in_bf16(s) && by_rounding)
            rc = compare_roundings(&ranks, r, reference_of(both, m, false), &e);
        else
            rc = rc ? rc : compare_ranks(&ranks, r, in_bf16(s) ? 0.06 : mesh_rtol, &e);
        rank_threads_clear(&ranks);
    }
    enum verdict verdict = rc == 0 ? HOLDS : f.e.code == ERR_INVALID ? REFUSED : FAILS;
    if (verdict == FAILS || (rc && s->models))
        printf("%s on {%s}%s, microbatches: %d%s, {%s} %s: %s\n", m->name, s->mesh,
               late ? " late" : "", s->microbatches, s->train, s->sharding, s->more, e.text);
    fixture_clear(&f);
    return verdict;
}
