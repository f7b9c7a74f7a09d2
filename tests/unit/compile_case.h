// SPDX-License-Identifier: Apache-2.0
// For tests of the compiler: a job compiled from text, a batch and parameters made by formulas, and
// a step of the f64 interpreter.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "common/compile/compile.h"
#include "common/language/model_facts.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "tests/support/interp.h"
#include "tests/support/normal.h"
#include "tests/unit/unit.h"

struct fixture {
    struct arena a;
    struct job job;
    struct compiled c;
    struct findings found;
    int64_t batch, features;
    double *images, *labels;
    struct err e; // of the compiler
};

// A model that is built op by op, for what no model of weft has: the job then says of it the number
// of layers alone. Null: the job's own.
static build_fn own_model;

// The fixture's job, as it is by now.
static inline int compile_again(struct fixture *f)
{
    if (own_model)
        return explain_job(&f->job, own_model, &(struct compile_options){0}, &f->a, &f->c,
                           &f->found, NULL, &f->e);
    return plan_explain(&f->job, &(struct compile_options){0}, &f->a, &f->c, &f->found, NULL,
                        &f->e);
}

// The text must parse with these settings.
static inline void parse_with(struct fixture *f, const char *text, const char *const *set, int n)
{
    struct job_errors errs = {0};
    struct buf said = {0};
    *f = (struct fixture){0};
    if (job_parse(&f->a, &weft_schema, "job.yaml", NULL, text, strlen(text), set, n, &f->job,
                  &errs)) {
        job_errors_print(&errs, &said);
        fail_msg("%s", buf_str(&said));
    }
}

static inline int compile_with(struct fixture *f, const char *text, const char *const *set, int n)
{
    parse_with(f, text, set, n);
    return compile_again(f);
}

// The first finding of a code, of this tensor unless that is null; null: there is none.
static inline const struct finding *find_finding(const struct fixture *f, enum finding_code code,
                                                 const char *tensor)
{
    for (int i = 0; i < f->found.n; i++) {
        const struct finding *one = &f->found.items[i];
        if (one->code == code && (!tensor || (one->tensor && !strcmp(one->tensor, tensor))))
            return one;
    }
    return NULL;
}

// What the parser, then what the compiler says is returned.
static inline int compile_or_not(struct fixture *f, const char *text, bool *parsed)
{
    struct job_errors errs = {0};
    struct buf said = {0};
    *f = (struct fixture){0};
    int rc = job_parse(&f->a, &weft_schema, "test.yaml", NULL, text, strlen(text), NULL, 0, &f->job,
                       &errs);
    *parsed = rc == 0;
    if (rc) {
        job_errors_print(&errs, &said);
        err_set(&f->e, rc, "%s", buf_str(&said));
    } else {
        rc = compile_again(f);
    }
    buf_clear(&said);
    return rc;
}

// The job must parse; what the compiler says is returned.
static inline int compile_any(struct fixture *f, const char *text)
{
    bool parsed;
    int rc = compile_or_not(f, text, &parsed);
    if (!parsed)
        fail_msg("%s", f->e.text);
    return rc;
}

static inline void compile_text(struct fixture *f, const char *text, int want)
{
    int rc = compile_any(f, text);
    if (rc != want)
        fail_msg("compile: %d %s", rc, f->e.text);
}

// A device model as --device takes it; `file`: models of the user's own, or null.
static inline struct device_model read_model(struct arena *a, const char *text, const char *file)
{
    struct device_model d;
    struct err e = {0};
    if (device_model_read(a, text, file, "devices", &d, &e))
        fail_msg("%s: %s", text, e.text);
    return d;
}

static inline void fixture_clear(struct fixture *f)
{
    free(f->images);
    free(f->labels);
    arena_clear(&f->a);
}

static inline void make_batch(struct fixture *f)
{
    struct rand_site site = {.seed = 11, .stream = 1};
    f->batch = f->job.data.batch;
    f->features = f->job.model.facts->features;
    f->images = malloc(sizeof(double) * (size_t)(f->batch * f->features));
    f->labels = malloc(sizeof(double) * (size_t)f->batch);
    for (int64_t i = 0; i < f->batch * f->features; i++)
        f->images[i] = floor(256 * (double)rand_uniform(&site, (uint64_t)i));
    site.stream = 2;
    for (int64_t i = 0; i < f->batch; i++)
        f->labels[i] =
            floor((double)f->job.model.facts->classes * (double)rand_uniform(&site, (uint64_t)i));
}

static inline void set_params(struct interp *x)
{
    for (int v = 0; v < x->g->nvalues; v++) {
        const struct value *val = &x->g->values[v];
        if (val->kind != VALUE_PARAM || val->alias >= 0)
            continue;
        int64_t n = shape_count(&val->shape);
        double *w = malloc(sizeof *w * (size_t)n);
        struct rand_site site = {.seed = 3,
                                 .stream = (uint32_t)strlen(val->name) * 7 + (uint32_t)n};
        for (int64_t i = 0; i < n; i++)
            w[i] = (double)(0.4f * draw_normal(&site, (uint64_t)i)); // exact in f32
        interp_set(x, val->name, w);
        free(w);
    }
}

static inline void step(struct fixture *f, struct interp *x)
{
    const double one = 1, hyper[HYPER_SLOTS] = {0.01, 1 / (1 - 0.9), 1 / (1 - 0.999)};
    const double control[CONTROL_SLOTS] = {0, 0};
    interp_set(x, "one", &one);
    interp_set(x, "hyper", hyper);
    interp_set(x, "control", control);
    for (int m = 0; m < x->microbatches; m++) {
        interp_feed(x, "images", f->images, m);
        interp_feed(x, "labels", f->labels, m);
        interp_phase(x, PHASE_FORWARD, m);
        interp_phase(x, PHASE_BACKWARD, m);
    }
    interp_phase(x, PHASE_UPDATE, x->microbatches - 1);
}

static inline void compare(const struct interp *a, const struct interp *b, const char *name)
{
    double *x = interp_get(a, name), *y = interp_get(b, name);
    int64_t n = shape_count(&a->g->values[interp_find(a, name)].shape);
    for (int64_t i = 0; i < n; i++)
        if (fabs(x[i] - y[i]) > 1e-11 * (1 + fabs(x[i])))
            fail_msg("%s[%lld]: %.15g on one device, %.15g partitioned", name, (long long)i, x[i],
                     y[i]);
    free(x);
    free(y);
}

// A parameter's gradient is the slope of the loss: at up to `places` of its elements, the loss with
// the element a little more and a little less is asked of `loss`.
static inline void check_slopes(struct interp *x, const char *param, int places, double tolerance,
                                double (*loss)(struct interp *x, const void *ctx), const void *ctx)
{
    char name[64];
    snprintf(name, sizeof name, "grad/%s", param);
    int64_t n = shape_count(&x->g->values[interp_find(x, param)].shape);
    double *grad = interp_get(x, name), *w = interp_get(x, param);
    for (int64_t i = 0; i < n; i += n / places + 1) {
        const double h = 1e-5, keep = w[i];
        w[i] = keep + h;
        interp_set(x, param, w);
        double up = loss(x, ctx);
        w[i] = keep - h;
        interp_set(x, param, w);
        double slope = (up - loss(x, ctx)) / (2 * h);
        w[i] = keep;
        interp_set(x, param, w);
        if (fabs(slope - grad[i]) > tolerance + 1e-5 * fabs(slope))
            fail_msg("%s[%lld]: vjp %.12g, differences %.12g", param, (long long)i, grad[i], slope);
    }
    free(grad);
    free(w);
}
