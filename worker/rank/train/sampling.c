// SPDX-License-Identifier: Apache-2.0
// Samples. See sampling.h.
#include "worker/rank/train/sampling.h"

#include <string.h>

#include "common/attempt/page.h"
#include "common/base/hash.h"
#include "common/base/plain.h"
#include "common/base/rand.h"
#include "common/job/prompt.h"
#include "common/language/model_facts.h"
#include "worker/rank/train/choice.h"

static int open_prompt(struct sampling *s, struct err *e)
{
    const struct job *job = s->job;
    int rc = tokenizer_open(&s->tokenizer, job_tokenizer_names[job->data.tokenizer], e);
    if (!rc)
        rc = prompt_encode(job->eval.sample.prompt, s->tokenizer, job->model.facts->vocab,
                           &s->prompt, e);
    if (rc)
        return rc;
    s->room = (int64_t)s->prompt.n + job->eval.sample.tokens;
    s->ids = arena_array(&s->arena, int32_t, job->eval.sample.count * s->room);
    s->scratch = arena_array(&s->arena, int32_t, job->model.facts->vocab);
    return 0;
}

int sampling_open(struct sampling *s, const struct exec_options *o, struct exec *x,
                  const struct job *job, struct err *e)
{
    const struct graph *g = o->compiled->global[PROGRAM_SAMPLE];
    const struct shape *logits = &g->values[g->loss].shape;
    void *device = NULL;
    *s = (struct sampling){.exec = x,
                           .job = job,
                           .page = o->page,
                           .shape = {.seq = job->model.facts->seq, .dtype = DT_I32},
                           .batch = logits->dim[0],
                           .padded = logits->dim[1]};
    int rc = open_prompt(s, e);
    rc = rc ? rc : inputs_open(&s->inputs, o, x, PROGRAM_SAMPLE, &s->shape, e);
    if (rc) {
        err_wrap(e, "samples");
        return rc;
    }
    exec_buffer(x, PROGRAM_SAMPLE, "metrics", &device);
    s->logits = device;
    s->host = arena_array(&s->arena, float, s->batch * s->padded);
    s->last = arena_array(&s->arena, int32_t, s->inputs.local);
    return 0;
}

void sampling_close(struct sampling *s)
{
    inputs_close(&s->inputs);
    token_ids_clear(&s->prompt);
    tokenizer_close(s->tokenizer);
    arena_clear(&s->arena);
}

// Queues the windows of this rank's rows. Rows beyond the samples repeat the first one. The zeros
// after a window's last token change nothing: the causal mask hides later positions.
static int put_windows(struct sampling *s, struct err *e)
{
    int64_t seq = s->job->model.facts->seq, have = (int64_t)s->prompt.n + s->done;
    int64_t from = have > seq ? have - seq : 0;
    int32_t *window = s->inputs.host[0];
    memset(window, 0, sizeof *window * (size_t)((seq + 1) * s->inputs.local));
    for (int64_t r = 0; r < s->inputs.local; r++) {
        int64_t row = s->inputs.start + r, k = row < s->job->eval.sample.count ? row : 0;
        memcpy(window + r * (seq + 1), s->ids + k * s->room + from,
               sizeof *window * (size_t)(have - from));
        s->last[r] = (int32_t)(have - from - 1);
    }
    return inputs_put(&s->inputs, &(struct batch){.images = window, .labels = s->last}, e);
}

// Adds a token to each sample; false if a logit is not finite.
static bool choose_tokens(struct sampling *s)
{
    const struct job *job = s->job;
    const struct rand_site site = {.seed = (uint64_t)job->eval.sample.seed,
                                   .stream = hash_fnv1a32("sample")};
    for (int64_t k = 0; k < job->eval.sample.count; k++) {
        uint64_t place = (uint64_t)(k * job->eval.sample.tokens + s->done);
        struct choice c = {.temperature = job->eval.sample.temperature,
                           .top_k = job->eval.sample.top_k,
                           .u = rand_uniform(&site, place)};
        int32_t id = choice_token(&c, s->host + k * s->padded, job->model.facts->vocab, s->scratch);
        if (id < 0)
            return false;
        s->ids[k * s->room + (int64_t)s->prompt.n + s->done] = id;
    }
    s->done++;
    return true;
}

static int run_window(struct sampling *s, struct err *e)
{
    size_t bytes = sizeof *s->host * (size_t)(s->batch * s->padded);
    int rc = put_windows(s, e);
    if (!rc)
        rc = exec_run(s->exec, PROGRAM_SAMPLE, e);
    return rc ? rc : exec_get(s->exec, s->host, s->logits, bytes, e);
}

int sampling_run(struct sampling *s, struct err *e)
{
    s->done = 0;
    for (int64_t k = 0; k < s->job->eval.sample.count; k++)
        memcpy(s->ids + k * s->room, s->prompt.data, sizeof *s->ids * s->prompt.n);
    while (s->done < s->job->eval.sample.tokens) {
        int rc = run_window(s, e);
        if (rc)
            return rc;
        if (s->page)
            page_beat(s->page);
        if (!choose_tokens(s))
            break;
    }
    return 0;
}

void sampling_text(const struct sampling *s, int64_t k, struct buf *text)
{
    struct buf raw = {0};
    tokenizer_decode(s->tokenizer, s->ids + k * s->room + (int64_t)s->prompt.n, (size_t)s->done,
                     false, &raw);
    plain_append(text, buf_str(&raw), raw.len);
    buf_clear(&raw);
}
