// SPDX-License-Identifier: Apache-2.0
// The job's model as the compiler's builder. See plan.h.
#include "common/plan/plan.h"

#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/ckpt/slice.h"
#include "common/explain/fit.h"
#include "common/language/model_facts.h"
#include "common/model/builder.h"

static struct model_run make_run(const struct job *job, enum program_kind kind, int64_t batch,
                                 int64_t step_batch)
{
    return (struct model_run){.kind = kind,
                              .batch = batch,
                              .step_batch = step_batch,
                              .seed = job->train.seed,
                              .bytes = job->data.dtype != JOB_DATA_F32};
}

int plan_build_job(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                   int64_t step_batch)
{
    const struct model_run run = make_run(job, kind, batch, step_batch);
    return model_build(g, job->model.sizes, &run);
}

// Names every parameter as a checkpoint holds it: a frozen one has no state of an optimiser.
static void digest_params(const struct job *job, const struct graph *g, char out[65])
{
    struct buf text = {0};
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VALUE_PARAM)
            continue;
        const struct job_param_group *group = job_group_of(&job->optimizer, v->name);
        bool frozen = v->frozen || (group && group->freeze);
        buf_printf(&text, "%s%s", v->name, frozen ? " frozen" : "");
        for (int d = 0; d < v->shape.n; d++)
            buf_printf(&text, " %lld of %lld", (long long)v->limit[d], (long long)v->shape.dim[d]);
        buf_putc(&text, '\n');
    }
    sha256_hex(buf_str(&text), text.len, out);
    buf_clear(&text);
}

int plan_look_at_model(const struct job *job, struct job_graph *out)
{
    int64_t batch = job->data.batch / job->train.microbatches;
    struct model_run run = make_run(job, PROGRAM_TRAIN, batch ? batch : 1, job->data.batch);
    struct arena scratch = {0};
    struct graph g;
    struct err e = {0};
    run.layers = &out->layers;
    graph_init(&g, &scratch, NULL, &e);
    int rc = model_build(&g, job->model.sizes, &run);
    if (!rc && out->compared)
        digest_params(job, &g, out->params);
    arena_clear(&scratch);
    return rc;
}

// What a shard's head says of each tensor must fit: a job that cannot save may not begin. At most, a
// rank saves every parameter and what the optimiser keeps of it.
static int check_heads(const struct compiled *c, struct err *e)
{
    enum { TENSORS = 4, ENTRY = 256 }; // of a parameter; bytes of an entry beside the name
    const struct graph *g = c->global[PROGRAM_TRAIN];
    int64_t bytes = 0;
    for (int v = 0; g && v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM)
            bytes += TENSORS * (ENTRY + (int64_t)strlen(g->values[v].name));
    return bytes <= SHARD_MAX_HEAD
               ? 0
               : err_set(
                     e, ERR_LIMIT,
                     "the names and shapes of its parameters take up to %lld MiB in a checkpoint's "
                     "file, over %d: use fewer parameters, or shorter paths",
                     (long long)(bytes >> 20), SHARD_MAX_HEAD >> 20);
}

int plan_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                 struct compiled *out, struct findings *found, struct buf *dump, struct err *e)
{
    int rc = explain_job(job, plan_build_job, o, a, out, found, dump, e);
    return rc ? rc : check_heads(out, e);
}

int plan_compile(const struct job *job, const struct compile_options *o, struct arena *a,
                 struct compiled *out, struct buf *dump, struct err *e)
{
    struct findings found;
    struct compile_options hasty = o ? *o : (struct compile_options){0};
    hasty.hasty = true;
    return plan_explain(job, &hasty, a, out, &found, dump, e);
}

int plan_params(const struct compiled *c, struct arena *a, struct match_param **out)
{
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    int n = 0;
    *out = arena_array(a, struct match_param, g->nvalues + 1);
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        if (v->kind != VALUE_PARAM)
            continue;
        struct match_param *p = &(*out)[n++];
        *p = (struct match_param){.name = v->name, .shape = v->shape};
        for (int d = 0; d < v->shape.n; d++) {
            p->unpadded[d] = v->limit[d] ? v->limit[d] : v->shape.dim[d];
            p->grows |= v->dims[d] == DIM_VOCAB ? 1u << d : 0;
        }
    }
    return n;
}

void plan_fit(const struct job *job, const struct device_model *d, const struct compiled *c,
              struct findings *found, struct arena *a)
{
    fit_check(job, plan_build_job, d, c, found, a, FIT_WORK);
}

// The bytes that a device takes with so many rows, as far over any device's as can be where that is
// none.
static double count_device_bytes(const struct job *job, const struct compile_options *o,
                                 int64_t rows, const struct device_model *d)
{
    struct arena scratch = {0};
    struct job other = *job;
    struct compile_options unhashed = *o;
    struct compiled c;
    struct err e = {0};
    other.data.batch = rows;
    unhashed.unhashed = true;
    int rc = plan_compile(&other, &unhashed, &scratch, &c, NULL, &e);
    double bytes = rc ? HUGE_VAL : (double)fit_need(fit_fullest(&c, d), d);
    arena_clear(&scratch);
    return bytes;
}

// What rows take is all but linear in their number: the next guess is where the line through the last
// two would end, and every second time the middle, in case it is not.
int64_t plan_rows_that_fit(const struct job *job, const struct compile_options *o,
                           const struct device_model *d)
{
    enum { ROWS_MOST = 1000000 };
    int64_t fits = 0, fails = ROWS_MOST + 1, guess = job->data.batch;
    double at_fits = 0, at_fails = HUGE_VAL;
    for (int turn = 0; fails - fits > 1; turn++) {
        guess = guess > fits && guess < fails ? guess : fits + (fails - fits) / 2;
        const double bytes = count_device_bytes(job, o, guess, d);
        const bool fit = bytes <= (double)d->memory;
        *(fit ? &fits : &fails) = guess;
        *(fit ? &at_fits : &at_fails) = bytes;
        guess = fits + (fails - fits) / 2;
        if (turn % 2 == 0 && fits && at_fails < HUGE_VAL)
            guess = fits + (int64_t)((double)(fails - fits) * ((double)d->memory - at_fits) /
                                     (at_fails - at_fits));
        else if (fits && fails > ROWS_MOST)
            guess = 2 * fits;
    }
    return fits;
}

int64_t plan_context_that_fits(const struct job *job, const struct compile_options *o,
                               const struct device_model *d)
{
    const int64_t seq = job->model.facts->seq;
    struct compile_options other = *o;
    int64_t fits = 0, fails = (o->context && o->context < seq ? o->context : seq) + 1;
    while (fails - fits > 1) {
        other.context = fits + (fails - fits) / 2;
        const bool fit = count_device_bytes(job, &other, 1, d) <= (double)d->memory;
        *(fit ? &fits : &fails) = other.context;
    }
    return fits;
}
