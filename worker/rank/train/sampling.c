// SPDX-License-Identifier: Apache-2.0
// Texts that a decoder continues. See sampling.h.
#include "worker/rank/train/sampling.h"

#include <stdlib.h>
#include <string.h>

#include "common/attempt/page.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/base/rand.h"
#include "common/job/prompt.h"
#include "common/language/model_facts.h"

int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, const struct tokenizer *t, struct err *e)
{
    const struct graph *g = o->compiled->global[PROGRAM_SAMPLE];
    const struct shape *logits = &g->values[g->loss].shape;
    void *device = NULL;
    int rc = 0;
    *s = (struct sampling){.exec = x,
                           .job = job,
                           .page = o->page,
                           .shape = {.seq = job->model.facts->seq, .dtype = DT_I32},
                           .rows = logits->dim[0],
                           .context = job->model.facts->seq,
                           .padded = logits->dim[1]};
    s->text = arena_array(&s->arena, struct text_row, s->rows);
    s->tokenizer = t;
    if (t)
        rc = prompt_encode(job->eval.sample.prompt, t, job->model.facts->vocab, &s->prompt, e);
    if (!rc)
        rc = inputs_open(&s->inputs, o, x, PROGRAM_SAMPLE, &s->shape, e);
    if (rc) {
        err_wrap(e, "samples");
        return rc;
    }
    exec_buffer(x, PROGRAM_SAMPLE, "metrics", &device);
    s->logits = device;
    s->host = arena_array(&s->arena, float, s->rows * s->padded);
    s->scratch = arena_array(&s->arena, int32_t, job->model.facts->vocab);
    s->last = arena_array(&s->arena, int32_t, s->inputs.local);
    return 0;
}

void sampling_close(struct sampling *s)
{
    inputs_close(&s->inputs);
    token_ids_clear(&s->prompt);
    for (int64_t k = 0; s->text && k < s->rows; k++)
        free(s->text[k].ids);
    arena_clear(&s->arena);
}

// ---- rows ----

void sampling_begin(struct sampling *s, int64_t row)
{
    PRE(row >= 0 && row < s->rows);
    s->text[row].n = s->text[row].from = 0;
}

void sampling_append(struct sampling *s, int64_t row, const int32_t *ids, int64_t n)
{
    PRE(row >= 0 && row < s->rows);
    struct text_row *t = &s->text[row];
    if (t->n + n > t->cap) {
        t->cap = 2 * (t->n + n);
        int32_t *grown = heap_alloc(sizeof *ids * (size_t)t->cap);
        if (t->n)
            memcpy(grown, t->ids, sizeof *ids * (size_t)t->n);
        free(t->ids);
        t->ids = grown;
    }
    memcpy(t->ids + t->n, ids, sizeof *ids * (size_t)n);
    t->n += n;
    if (t->n - t->from > s->context)
        t->from = t->n - (s->context > 3 ? s->context * 3 / 4 : 1);
}

// Queues the windows of this rank's rows. The zeros after a window's last token change nothing: the
// causal mask hides later positions.
static int put_windows(struct sampling *s, struct err *e)
{
    int64_t seq = s->job->model.facts->seq;
    int32_t *window = s->inputs.host[0];
    memset(window, 0, sizeof *window * (size_t)((seq + 1) * s->inputs.local));
    for (int64_t r = 0; r < s->inputs.local; r++) {
        const struct text_row *t = &s->text[s->inputs.start + r];
        int64_t have = t->n - t->from;
        if (have)
            memcpy(window + r * (seq + 1), t->ids + t->from, sizeof *window * (size_t)have);
        s->last[r] = (int32_t)(have ? have - 1 : 0);
    }
    return inputs_put(&s->inputs, &(struct batch){.images = window, .labels = s->last}, e);
}

int sampling_run(struct sampling *s, struct err *e)
{
    size_t bytes = sizeof *s->host * (size_t)(s->rows * s->padded);
    int rc = put_windows(s, e);
    rc = rc ? rc : exec_run(s->exec, PROGRAM_SAMPLE, e);
    rc = rc ? rc : exec_get(s->exec, s->host, s->logits, bytes, e);
    if (s->page)
        page_beat(s->page);
    return rc;
}

int32_t sampling_choose(struct sampling *s, int64_t row, const struct sampling_how *how,
                        double *log_share)
{
    PRE(row >= 0 && row < s->rows && s->text[row].n);
    const struct text_row *t = &s->text[row];
    const struct rand_site site = {
        .seed = how->seed, .stream = hash_fnv1a32("generate"), .step = how->request};
    float *logits = s->host + row * s->padded;
    int64_t vocab = s->job->model.facts->vocab;
    struct choice c = {.temperature = how->temperature,
                       .top_k = how->top_k,
                       .top_p = how->top_p,
                       .min_p = how->min_p,
                       .penalty = how->penalty,
                       .text = t->ids,
                       .ntext = t->n,
                       .u = rand_uniform(&site, (uint64_t)t->n)};
    float *as_they_were = NULL;
    if (log_share && how->penalty > 0 && how->penalty != 1) {
        as_they_were = heap_alloc(sizeof *logits * (size_t)vocab);
        memcpy(as_they_were, logits, sizeof *logits * (size_t)vocab);
    }
    int32_t id = choice_token(&c, logits, vocab, s->scratch);
    if (log_share && id >= 0)
        *log_share = choice_log_share(as_they_were ? as_they_were : logits, vocab, id);
    free(as_they_were);
    return id;
}

// ---- the job's samples ----

// Adds a token to each sample; false if a logit is not finite.
static bool add_tokens(struct sampling *s)
{
    const struct job_sample *sample = &s->job->eval.sample;
    for (int64_t k = 0; k < sample->count; k++) {
        const struct sampling_how how = {.temperature = sample->temperature,
                                         .top_k = sample->top_k,
                                         .seed = (uint64_t)sample->seed,
                                         .request = (uint32_t)k};
        int32_t id = sampling_choose(s, k, &how, NULL);
        if (id < 0)
            return false;
        sampling_append(s, k, &id, 1);
    }
    s->done++;
    return true;
}

int sampling_take(struct sampling *s, struct err *e)
{
    s->done = 0;
    for (int64_t k = 0; k < s->job->eval.sample.count; k++) {
        sampling_begin(s, k);
        sampling_append(s, k, s->prompt.data, (int64_t)s->prompt.n);
    }
    while (s->done < s->job->eval.sample.tokens) {
        int rc = sampling_run(s, e);
        if (rc)
            return rc;
        if (!add_tokens(s))
            break;
    }
    return 0;
}

void sampling_text(const struct sampling *s, int64_t k, struct buf *text)
{
    struct buf raw = {0};
    tokenizer_decode(s->tokenizer, s->text[k].ids + s->prompt.n, (size_t)s->done, false, &raw);
    plain_append(text, buf_str(&raw), raw.len);
    buf_clear(&raw);
}
