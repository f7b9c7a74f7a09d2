// SPDX-License-Identifier: Apache-2.0
// The default of data.tokenizer, and what does not fit together in eval.sample.
#include "common/job/reading.h"
#include "common/job/tokenizer.h"
#include "common/language/model_facts.h"

enum { SAMPLED_MAX = 8192 }; // tokens of all continuations: one row of metrics holds them

static void check_prompt(struct reading *r)
{
    const struct job *job = r->job;
    struct reading_row *row = reading_row(r, "eval.sample.prompt");
    struct err e = {0};
    int32_t *ids;
    int64_t n;
    if (tokenizer_encode((enum job_tokenizer)job->data.tokenizer, job->eval.sample.prompt,
                         job->model.facts->vocab, r->arena, &ids, &n, &e))
        reading_error(r, row, "%s", e.text);
    else if (n > job->model.facts->seq)
        reading_error(r, row, "has %lld tokens, the model reads %lld (model.seq): try as many",
                      (long long)n, (long long)job->model.facts->seq);
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
        job->data.tokenizer =
            job->model.facts->vocab <= 256 ? JOB_TOKENIZER_BYTES : JOB_TOKENIZER_IDS;
    if (!job->eval.sample.prompt)
        return;
    if (!job->model.facts->samples) {
        reading_error(r, reading_row(r, "eval.sample.prompt"),
                      "acts only where the model names its logits of tokens: program %s does not",
                      job->model.program);
        return;
    }
    check_prompt(r);
    check_numbers(r);
}
