// SPDX-License-Identifier: Apache-2.0
// The default of data.tokenizer, and what does not fit together in eval.sample.
#include "common/job/prompt.h"
#include "common/job/reading.h"
#include "common/language/model_facts.h"

enum { SAMPLED_MAX = 8192 }; // tokens of all continuations: one row of metrics holds them

static void check_prompt(struct reading *r)
{
    const struct job *job = r->job;
    struct reading_row *row = reading_row(r, "eval.sample.prompt");
    struct err e = {0};
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    int rc = tokenizer_open(&t, job_tokenizer(job, r->arena), &e);
    if (rc == ERR_NOTFOUND) // it may be there for the workers: who opens the data says so
        return;
    if (rc) {
        reading_error(r, reading_row(r, "data.tokenizer"), "%s", e.text);
        return;
    }
    rc = prompt_encode(job->eval.sample.prompt, t, job->model.facts->vocab, &ids, &e);
    if (rc)
        reading_error(r, row, "%s", e.text);
    else if ((int64_t)ids.n > job->model.facts->seq)
        reading_error(r, row, "has %zu tokens, the model reads %lld (model.seq): try as many",
                      ids.n, (long long)job->model.facts->seq);
    token_ids_clear(&ids);
    tokenizer_close(t);
}

static void check_numbers(struct reading *r)
{
    const struct job *job = r->job;
    int64_t tokens = job->eval.sample.tokens, count = job->eval.sample.count;
    bool greedy = job->eval.sample.temperature <= 0;
    const struct {
        const char *path;
        bool drawn;
    } keys[] = {{"eval.sample.count", count > 1},
                {"eval.sample.top_k", job->eval.sample.top_k > 0},
                {"eval.sample.seed", job->eval.sample.seed > 0}};
    if (tokens * count > SAMPLED_MAX)
        reading_error(r, reading_row(r, "eval.sample.tokens"),
                      "%lld samples of %lld tokens are over %d: try %lld tokens", (long long)count,
                      (long long)tokens, SAMPLED_MAX, (long long)(SAMPLED_MAX / count));
    for (size_t i = 0; greedy && i < sizeof keys / sizeof *keys; i++)
        if (keys[i].drawn)
            reading_error(r, reading_row(r, keys[i].path),
                          "acts only when eval.sample.temperature is above 0: at 0 the most likely "
                          "token is taken");
    if (job->eval.sample.every > 1 && !job->eval.every)
        reading_error(
            r, reading_row(r, "eval.sample.every"),
            "acts only when eval.every is above 0: at 0 there is one evaluation, after the "
            "last step");
    if (job->eval.sample.top_k > job->model.facts->vocab)
        reading_error(r, reading_row(r, "eval.sample.top_k"),
                      "%lld is over model.vocab, %lld: 0 stands for all",
                      (long long)job->eval.sample.top_k, (long long)job->model.facts->vocab);
}

void check_sample(struct reading *r)
{
    struct job *job = r->job;
    if (!r->model_ok ||
        !READING_OK(r, "data.format", "data.tokenizer", "eval.sample.prompt", "eval.sample.tokens",
                    "eval.every", "eval.sample.every", "eval.sample.count",
                    "eval.sample.temperature", "eval.sample.top_k", "eval.sample.seed"))
        return;
    if (job->data.format == JOB_DATA_TOKENS && !reading_given(r, "data.tokenizer"))
        job->data.tokenizer = job->model.facts->vocab <= 256 ? "bytes" : "ids";
    if (!job->eval.sample.prompt)
        return;
    if (!job->model.facts->samples) {
        reading_error(r, reading_row(r, "eval.sample.prompt"),
                      "acts only where the model names its logits of tokens: program %s does not",
                      job->model.program);
        return;
    }
    // A resolved job opens no file: the ranks, which have it, encode the prompt.
    if (r->file || !tokenizer_is_file(job->data.tokenizer))
        check_prompt(r);
    check_numbers(r);
}
