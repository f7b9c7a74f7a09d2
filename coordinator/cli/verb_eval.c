// SPDX-License-Identifier: Apache-2.0
// weft eval: what a checkpoint's model makes of a data set, on ranks of this process (local_ranks.h).
//
// The score program says of each token, or each image, how unlikely it was and whether it was the most
// likely; what is printed are sums of that, in double. So rows that fill up the last batch count for
// nothing, and the numbers do not depend on the batch.
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "common/data/job_set.h"
#include "common/language/model_facts.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/local_ranks.h"

enum { QUESTION_BYTES = 8 << 20 };

struct eval {
    const struct args *args;
    struct arena arena;
    struct local_ranks ranks;
    struct dataset set;
    uint64_t rows;      // samples of a question
    uint64_t samples;   // that were scored
    double scored;      // tokens, or images
    double loss, right; // sums
};

// A path as it is from here; the job's own folder is nowhere.
static const char *find_path(struct eval *v, const char *path)
{
    char here[4096];
    if (!path || path[0] == '/' || !getcwd(here, sizeof here))
        return path;
    return arena_printf(&v->arena, "%s/%s", here, path);
}

static int open_set(struct eval *v, struct err *e)
{
    const struct job *job = &v->ranks.job;
    struct job_data_files files = {0};
    const char *data = find_path(v, v->args->data);
    bool tokens = job->data.format == JOB_DATA_TOKENS;
    if (!tokens && !v->args->labels)
        return err_set(e, ERR_INVALID, "--labels: the model tells classes of images apart");
    if (tokens && v->args->labels)
        return err_set(e, ERR_INVALID, "--labels are of images, and the model takes tokens");
    if (tokens)
        files.tokens = data;
    else
        files = (struct job_data_files){.images = data, .labels = find_path(v, v->args->labels)};
    int rc = job_set_open(job, NULL, &files, &v->set, e);
    if (rc)
        return rc;
    uint64_t most = QUESTION_BYTES / dataset_sample_bytes(&v->set);
    v->rows = (uint64_t)job->data.batch < most ? (uint64_t)job->data.batch : most ? most : 1;
    return 0;
}

static int score(struct eval *v, struct err *e)
{
    const size_t each = dataset_sample_bytes(&v->set);
    uint64_t *ids = arena_array(&v->arena, uint64_t, v->rows);
    char *samples = arena_array(&v->arena, char, each * v->rows);
    int32_t *labels = arena_array(&v->arena, int32_t, v->rows);
    struct bar bar;
    int rc = 0;
    bar_begin(&bar, "eval", v->args->json);
    while (v->samples < v->set.n && !rc) {
        const Weft__Rank__Answer *answer;
        uint64_t left = v->set.n - v->samples, n = left < v->rows ? left : v->rows;
        Weft__Rank__Ask ask = WEFT__RANK__ASK__INIT;
        for (uint64_t i = 0; i < n; i++)
            ids[i] = v->samples + i;
        rc = dataset_read(&v->set, ids, n, samples, labels, e);
        ask.samples.data = (uint8_t *)samples;
        ask.samples.len = each * n;
        ask.labels = labels;
        ask.n_labels = v->set.labelled ? n : 0;
        if (!rc)
            rc = local_ranks_ask(&v->ranks, &ask, &answer, e);
        if (rc)
            break;
        for (size_t i = 0; i < answer->n_scores; i++)
            v->loss += (double)answer->scores[i];
        for (size_t i = 0; i < answer->n_right; i++)
            v->right += (double)answer->right[i];
        v->scored += (double)answer->n_scores;
        v->samples += n;
        bar_show(&bar, v->samples, v->set.n, "loss %.4f", v->loss / v->scored);
    }
    bar_end(&bar);
    return rc;
}

// How many bytes of text a token stands for; 0: not known.
static double find_token_bytes(const struct eval *v)
{
    if (v->set.text_bytes > 0)
        return v->set.text_bytes;
    return v->set.seq && strcmp(v->ranks.job.data.tokenizer, "bytes") == 0 ? 1 : 0;
}

static void print_numbers(const struct eval *v)
{
    struct buf out = {0};
    struct json_out w;
    double loss = v->loss / v->scored, accuracy = v->right / v->scored;
    double bytes = find_token_bytes(v), bits = bytes > 0 ? loss / log(2) / bytes : (double)NAN;
    if (v->args->json) {
        json_print_start(&w, &out, true);
        json_str(&w, "checkpoint", v->ranks.load.name);
        json_int(&w, "step", v->ranks.load.manifest.step);
        json_uint(&w, "samples", v->samples);
        json_count(&w, "tokens", v->set.seq ? (int64_t)v->scored : -1);
        json_double(&w, "loss", loss);
        json_double(&w, "accuracy", accuracy);
        json_double(&w, "perplexity", exp(loss));
        json_known_double(&w, "bits_per_byte", bytes > 0, bits);
        json_print_end(&w);
        put_out(&out);
        return;
    }
    buf_printf(&out, "step           %lld\n", (long long)v->ranks.load.manifest.step);
    buf_printf(&out, "samples        %llu\n", (unsigned long long)v->samples);
    if (v->set.seq)
        buf_printf(&out, "tokens         %llu\n", (unsigned long long)v->scored);
    buf_printf(&out, "loss           %.6g\naccuracy       %.2f %%\nperplexity     %.6g\n", loss,
               100 * accuracy, exp(loss));
    if (bytes > 0)
        buf_printf(&out, "bits per byte  %.4f\n", bits);
    put_out(&out);
}

static int run(struct eval *v, struct err *e)
{
    const struct args *a = v->args;
    const struct local_options o = {.checkpoint = a->pos[0],
                                    .mesh = a->mesh,
                                    .rows = a->batch,
                                    .set = a->set,
                                    .nset = a->nset,
                                    .only = PROGRAM_SCORE};
    if (!a->data) {
        err_set(e, ERR_INVALID, "--data: which one?");
        return CLIENT_USAGE;
    }
    int rc = local_ranks_open(&v->ranks, &o, e);
    rc = rc ? rc : open_set(v, e);
    if (rc)
        return CLIENT_USAGE;
    rc = local_ranks_start(&v->ranks, e);
    rc = rc ? rc : score(v, e);
    if (!rc)
        print_numbers(v);
    return rc == ERR_ABORTED ? CLIENT_INTERRUPTED : rc ? CLIENT_FAILED : CLIENT_OK;
}

int verb_eval(const struct verb *verb, const struct args *a)
{
    struct eval v = {.args = a};
    struct err e = {0};
    int rc = run(&v, &e);
    if (rc && rc != CLIENT_INTERRUPTED)
        plain_error("weft %s: %s", verb->name, e.text);
    local_ranks_close(&v.ranks);
    dataset_close(&v.set);
    arena_clear(&v.arena);
    return rc;
}
