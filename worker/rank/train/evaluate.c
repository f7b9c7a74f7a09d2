// SPDX-License-Identifier: Apache-2.0
// Evaluations. See evaluate.h.
#include "worker/rank/train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/page.h"
#include "common/base/heap.h"
#include "common/data/job_set.h"

static void pick_samples(const void *ctx, uint64_t step, uint64_t first, size_t count,
                         uint64_t *out)
{
    sampler_eval_ids(ctx, step, first, count, out);
}

static bool mixes_samples(const struct graph *g)
{
    bool any = g->mixed != NULL;
    for (int i = 0; i < g->nnodes && !any; i++)
        any = g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_SLOTS &&
              g->nodes[i].attr.slots.group > 1;
    return any;
}

int evaluation_open(struct evaluation *v, const struct exec_options *o, struct exec *x,
                    const struct job *job, const char *data_root, struct err *e)
{
    const struct program *p =
        compiled_program(o->compiled, PROGRAM_EVAL, compiled_stage(o->compiled, o->rank));
    *v = (struct evaluation){.exec = x, .page = o->page, .slots = 1, .accuracy = -1};
    for (int i = 0; i < p->graph->nparts; v->slots += p->graph->parts[i++].count)
        if (strcmp(p->graph->parts[i].name, "accuracy") == 0)
            v->accuracy = v->slots;
    v->slot = heap_alloc(sizeof *v->slot * (size_t)v->slots);
    v->mean = heap_alloc(sizeof *v->mean * (size_t)v->slots);
    int rc = job_set_open(job, data_root, &job->data.eval, &v->set, e);
    if (!rc)
        sampler_eval_init(&v->sampler, v->set.n, (uint64_t)job->data.batch,
                          (uint64_t)job->eval.batches);
    if (!rc && mixes_samples(o->compiled->global[PROGRAM_EVAL])) {
        v->left_out = v->sampler.rest;
        v->sampler.rest = 0;
        if (!v->sampler.batches)
            rc = err_set(
                e, ERR_INVALID,
                "the evaluation set holds %llu samples, not one batch of %lld, and the model "
                "takes the samples of a batch together: try a smaller data.batch",
                (unsigned long long)v->set.n, (long long)job->data.batch);
    }
    if (!rc)
        rc = inputs_open(&v->inputs, o, x, PROGRAM_EVAL, &v->set, e);
    if (!rc)
        exec_buffer(x, PROGRAM_EVAL, "metrics", &v->metrics);
    if (rc)
        err_wrap(e, "evaluation");
    return rc;
}

void evaluation_close(struct evaluation *v)
{
    inputs_close(&v->inputs);
    dataset_close(&v->set);
    free(v->slot);
    free(v->mean);
}

static int run_batch(struct evaluation *v, struct feed *feed, struct err *e)
{
    struct batch b;
    int rc = feed_next(feed, &b, e);
    if (!rc)
        rc = inputs_put(&v->inputs, &b, e);
    if (!rc)
        rc = exec_run(v->exec, PROGRAM_EVAL, e);
    return rc ? rc : exec_get(v->exec, v->slot, v->metrics, sizeof *v->slot * (size_t)v->slots, e);
}

int evaluation_run(struct evaluation *v, double *loss, double *accuracy, struct err *e)
{
    struct feed *feed;
    const struct sampler_eval *s = &v->sampler;
    const double share = (double)s->rest / (double)s->batch, batches = (double)s->batches + share;
    const uint64_t runs = s->batches + (s->rest ? 2 : 0);
    int rc = inputs_feed(&v->inputs, &v->set, pick_samples, s, 0, runs, &feed, e);
    if (rc)
        return rc;
    memset(v->mean, 0, (size_t)v->slots * sizeof *v->mean);
    for (uint64_t k = 0; k < runs && !rc; k++) {
        double weight = k <= s->batches ? 1 : share - 1;
        rc = run_batch(v, feed, e);
        for (int64_t i = 0; i < v->slots && !rc; i++)
            v->mean[i] += weight * (double)v->slot[i];
        if (v->page)
            page_beat(v->page);
    }
    feed_close(feed);
    for (int64_t i = 0; i < v->slots; i++)
        v->mean[i] /= batches;
    *loss = v->mean[0];
    *accuracy = v->accuracy < 0 ? (double)NAN : v->mean[v->accuracy];
    return rc;
}
