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

static int open_way(struct sampling *s, const struct exec_options *o, enum program_kind kind,
                    struct err *e)
{
    struct sampling_way *w = &s->way[s->nways++];
    void *device = NULL;
    const int64_t seq = kind == PROGRAM_SAMPLE ? s->job->model.facts->seq
                        : kind == PROGRAM_FILL ? o->compiled->rows
                                               : 1;
    *w = (struct sampling_way){.kind = kind, .shape = {.seq = (uint64_t)seq, .dtype = DT_I32}};
    int rc = inputs_open(&w->inputs, o, s->exec, kind, &w->shape, e);
    exec_buffer(s->exec, kind, "metrics", &device);
    w->logits = device;
    return rc;
}

// Which rows' logits this rank has, and whether it answers for them.
static void find_rows(struct sampling *s, const struct exec_options *o, enum program_kind kind)
{
    const struct program *p =
        compiled_program(o->compiled, kind, compiled_stage(o->compiled, o->rank));
    const struct value *v = &p->graph->values[p->graph->metrics];
    int64_t start[MAX_DIMS];
    spec_start(&v->spec, &p->mesh, &v->shape, o->rank, start);
    s->first = start[0] / s->padded;
    s->mine = p->buffers[p->metrics].shape.dim[0] / s->padded;
    s->answers = true;
    for (int a = 0; a < p->mesh.n; a++)
        if (!(spec_axes(&v->spec) >> a & 1) && mesh_coord(&p->mesh, o->rank, a))
            s->answers = false;
}

int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, const struct tokenizer *t, struct err *e)
{
    const bool cached = compiled_has(o->compiled, PROGRAM_FILL);
    const struct graph *g = o->compiled->global[cached ? PROGRAM_FILL : PROGRAM_SAMPLE];
    const struct shape *logits = &g->values[g->loss].shape;
    int rc = 0;
    *s = (struct sampling){.exec = x,
                           .job = job,
                           .page = o->page,
                           .rows = logits->dim[0],
                           .context = o->compiled->context,
                           .padded = logits->dim[1]};
    s->backend = o->backend;
    if (cached)
        s->program =
            compiled_program(o->compiled, PROGRAM_FILL, compiled_stage(o->compiled, o->rank));
    s->text = arena_array(&s->arena, struct text_row, s->rows);
    s->tokenizer = t;
    if (t)
        rc = prompt_encode(job->eval.sample.prompt, t, job->model.facts->vocab, &s->prompt, e);
    if (!rc)
        rc = open_way(s, o, cached ? PROGRAM_FILL : PROGRAM_SAMPLE, e);
    if (!rc && cached)
        rc = open_way(s, o, PROGRAM_STEP, e);
    if (rc) {
        err_wrap(e, "samples");
        return rc;
    }
    const struct sampling_way *w = &s->way[0];
    find_rows(s, o, w->kind);
    s->host = arena_array(&s->arena, float, s->mine * s->padded);
    s->got = arena_array(&s->arena, float, cached ? s->mine * s->padded : 1);
    s->penalised = arena_array(&s->arena, float, s->padded);
    s->scratch = arena_array(&s->arena, int32_t, job->model.facts->vocab);
    s->last = arena_array(&s->arena, int32_t, w->inputs.local);
    s->positions = arena_array(&s->arena, int32_t, w->inputs.local * (int64_t)w->shape.seq);
    return 0;
}

void sampling_close(struct sampling *s)
{
    for (int i = 0; i < s->nways; i++)
        inputs_close(&s->way[i].inputs);
    token_ids_clear(&s->prompt);
    for (int64_t k = 0; s->text && k < s->rows; k++)
        free(s->text[k].ids);
    arena_clear(&s->arena);
}

// ---- rows ----

// Puts the keys of `n` rows from one on, of those that this rank has of a cache, to 0.
static int clear_keys(struct sampling *s, int64_t first, int64_t n, struct err *e)
{
    const struct inputs *in = &s->way[0].inputs;
    int rc = 0;
    for (int b = 0; s->program && b < s->program->nbuffers && !rc; b++) {
        const struct buffer *buf = &s->program->buffers[b];
        void *device = NULL;
        if (buf->kind != BUFFER_CACHE)
            continue;
        const int64_t rows = buf->shape.dim[0], start = rows == s->rows ? 0 : in->start;
        const int64_t from = first > start ? first - start : 0;
        const int64_t end = first + n - start < rows ? first + n - start : rows;
        const size_t bytes = (size_t)(buf->bytes / (uint64_t)rows);
        if (from >= end)
            continue;
        PRE(exec_buffer(s->exec, PROGRAM_FILL, buf->name, &device));
        rc = s->backend->stream.fill_zero(exec_stream(s->exec),
                                          (char *)device + (size_t)from * bytes,
                                          (size_t)(end - from) * bytes, e);
    }
    return rc;
}

int sampling_begin(struct sampling *s, int64_t row, struct err *e)
{
    PRE(row >= 0 && row < s->rows);
    struct text_row *t = &s->text[row];
    const bool spoilt = t->spoilt || !sampling_has(s, row);
    t->n = t->from = t->cached = 0;
    t->spoilt = false;
    return spoilt ? clear_keys(s, row, 1, e) : 0;
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
    if (n) // a question may have no new token of a text that continues
        memcpy(t->ids + t->n, ids, sizeof *ids * (size_t)n);
    t->n += n;
    if (t->n - t->from > s->context) {
        t->from = t->n - (s->context > 3 ? s->context * 3 / 4 : 1);
        t->cached = 0;
    }
}

// ---- logits ----

// Queues the windows of this rank's rows. The zeros after a window's last token change nothing: the
// causal mask hides later positions.
static int put_windows(struct sampling *s, struct err *e)
{
    struct inputs *in = &s->way[0].inputs;
    int64_t seq = s->job->model.facts->seq;
    int32_t *window = in->host[0];
    memset(window, 0, sizeof *window * (size_t)((seq + 1) * in->local));
    for (int64_t r = 0; r < in->local; r++) {
        const struct text_row *t = &s->text[in->start + r];
        int64_t have = t->n - t->from;
        if (have)
            memcpy(window + r * (seq + 1), t->ids + t->from, sizeof *window * (size_t)have);
        s->last[r] = (int32_t)(have ? have - 1 : 0);
    }
    return inputs_put(in, &(struct batch){.images = window, .labels = s->last}, e);
}

static int64_t count_new(const struct text_row *t)
{
    return t->n - t->from - t->cached;
}

// How many tokens of a text a call of a program computes. What a text is computed by hangs on it alone,
// not on what it is beside, so that its bits do not either: one new token is STEP's, more are FILL's.
static int64_t count_taken(const struct sampling_way *w, const struct text_row *t)
{
    const int64_t n = count_new(t), most = (int64_t)w->shape.seq;
    if ((w->kind == PROGRAM_STEP) != (n == 1))
        return 0;
    return n < most ? n : most;
}

// Queues what a call computes of this rank's rows.
static int put_tokens(struct sampling *s, struct sampling_way *w, struct err *e)
{
    struct inputs *in = &w->inputs;
    const int64_t rows = (int64_t)w->shape.seq;
    int32_t *tokens = in->host[0];
    memset(tokens, 0, sizeof *tokens * (size_t)((rows + 1) * in->local));
    for (int64_t r = 0; r < in->local; r++) {
        const struct text_row *t = &s->text[in->start + r];
        const int64_t n = count_taken(w, t);
        if (n)
            memcpy(tokens + r * (rows + 1), t->ids + t->from + t->cached,
                   sizeof *tokens * (size_t)n);
        for (int64_t i = 0; i < rows; i++)
            s->positions[r * rows + i] = (int32_t)(t->cached + i);
        s->last[r] = (int32_t)(t->cached + n - 1);
    }
    return inputs_put(
        in, &(struct batch){.images = tokens, .labels = s->last, .positions = s->positions}, e);
}

// Runs a program once for the rows that it has something to compute of, and waits for it: the memory from
// which its inputs are copied is that of the next call too. Rows that are done then get their logits.
static int run_way(struct sampling *s, struct sampling_way *w, struct err *e)
{
    const size_t row = sizeof *s->host * (size_t)s->padded;
    int rc = put_tokens(s, w, e);
    rc = rc ? rc : exec_run(s->exec, w->kind, e);
    rc = rc ? rc : exec_get(s->exec, s->got, w->logits, row * (size_t)s->mine, e);
    for (int64_t k = 0; k < s->rows && !rc; k++) {
        const int64_t n = count_taken(w, &s->text[k]), at = (k - s->first) * s->padded;
        s->text[k].cached += n;
        if (n && !count_new(&s->text[k]) && sampling_has(s, k))
            memcpy(s->host + at, s->got + at, row);
    }
    return rc;
}

static int run_cached(struct sampling *s, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < s->nways && !rc;) {
        bool any = false;
        for (int64_t k = 0; k < s->rows; k++)
            any |= count_taken(&s->way[i], &s->text[k]) > 0;
        if (any)
            rc = run_way(s, &s->way[i], e);
        else
            i++;
    }
    return rc;
}

static int run_windows(struct sampling *s, struct err *e)
{
    const struct sampling_way *w = &s->way[0];
    size_t bytes = sizeof *s->host * (size_t)(s->mine * s->padded);
    int rc = put_windows(s, e);
    rc = rc ? rc : exec_run(s->exec, w->kind, e);
    return rc ? rc : exec_get(s->exec, s->host, w->logits, bytes, e);
}

int sampling_run(struct sampling *s, struct err *e)
{
    int rc = s->nways > 1 ? run_cached(s, e) : run_windows(s, e);
    if (s->page)
        page_beat(s->page);
    return rc;
}

bool sampling_has(const struct sampling *s, int64_t row)
{
    return row >= s->first && row < s->first + s->mine;
}

int32_t sampling_choose(struct sampling *s, int64_t row, const struct sampling_how *how,
                        double *log_share)
{
    PRE(sampling_has(s, row) && s->text[row].n);
    struct text_row *t = &s->text[row];
    const struct rand_site site = {
        .seed = how->seed, .stream = hash_fnv1a32("generate"), .step = how->request};
    const float *logits = s->host + (row - s->first) * s->padded;
    int64_t vocab = s->job->model.facts->vocab;
    struct choice c = {.temperature = how->temperature,
                       .top_k = how->top_k,
                       .top_p = how->top_p,
                       .min_p = how->min_p,
                       .penalty = how->penalty,
                       .text = t->ids,
                       .ntext = t->n,
                       .u = rand_uniform(&site, (uint64_t)t->n)};
    memcpy(s->penalised, logits, sizeof *logits * (size_t)vocab);
    int32_t id = choice_token(&c, s->penalised, vocab, s->scratch);
    t->spoilt |= id < 0;
    if (log_share && id >= 0)
        *log_share = choice_log_share(logits, vocab, id);
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
    // The caches lie where training had its temporaries.
    int rc = clear_keys(s, 0, s->rows, e);
    for (int64_t k = 0; k < s->job->eval.sample.count && !rc; k++) {
        rc = sampling_begin(s, k, e);
        sampling_append(s, k, s->prompt.data, (int64_t)s->prompt.n);
    }
    while (!rc && s->done < s->job->eval.sample.tokens) {
        rc = sampling_run(s, e);
        if (!rc && !add_tokens(s))
            break;
    }
    return rc;
}

void sampling_text(const struct sampling *s, int64_t k, struct buf *text)
{
    struct buf raw = {0};
    tokenizer_decode(s->tokenizer, s->text[k].ids + s->prompt.n, (size_t)s->done, false, &raw);
    plain_append(text, buf_str(&raw), raw.len);
    buf_clear(&raw);
}
