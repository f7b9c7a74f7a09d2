// SPDX-License-Identifier: Apache-2.0
// A job's data set; see job_set.h.
#include "common/data/job_set.h"

#include <string.h>

#include "common/data/sampler.h"
#include "common/job/prompt.h"
#include "common/language/model_facts.h"

static int check_format(const struct array *a, int format, struct err *e)
{
    static const char *const names[] = {[JOB_DATA_IDX] = "idx", [JOB_DATA_NPY] = "npy"};
    if (strcmp(a->format, names[format]) == 0)
        return 0;
    return err_set(e, ERR_DATA, "%s: byte 0: this is an %s file, but the job says data.format: %s",
                   a->path, a->format, names[format]);
}

static int check_images(const struct job *job, const struct dataset *set, struct err *e)
{
    enum dtype said = job->data.dtype == JOB_DATA_F32 ? DT_F32 : DT_U8;
    if (set->dtype != said)
        return err_set(e, ERR_DATA, "%s: the images are %s, but the job says data.dtype: %s",
                       set->images.path, dtype_name(set->dtype), dtype_name(said));
    if ((int64_t)set->features != job->model.facts->features)
        return err_set(e, ERR_DATA,
                       "%s: an image has %llu values, but the job says model.inputs: %lld",
                       set->images.path, (unsigned long long)set->features,
                       (long long)job->model.facts->features);
    return 0;
}

// A file that is not there, leaves the root or is another user's may be there on another machine. What
// a look at the data of a submitted job calls missing is the same (worker/storage.c).
static bool is_absent(int rc, const struct err *e)
{
    return rc == ERR_NOTFOUND || rc == ERR_INVALID || (rc == ERR_IO && e->forbidden);
}

// Whose tokenizer is known both ways must have one.
static int check_tokenizer(const struct job *job, const char *root, const struct dataset *set,
                           struct err *e)
{
    struct arena a = {0};
    char identity[TOKENIZER_IDENTITY_LEN] = "";
    int rc = tokenizer_identify(root, job_tokenizer(job, &a), identity, e);
    arena_clear(&a);
    if (rc) {
        rc = e->code = is_absent(rc, e) ? ERR_ABSENT : rc;
        err_wrap(e, "data.tokenizer");
    } else if (*set->tokenizer && strcmp(identity, "ids") != 0 &&
               strcmp(identity, set->tokenizer) != 0) {
        rc = err_set(e, ERR_DATA,
                     "%s: its tokens were made by tokenizer %s (index.json beside it), and "
                     "data.tokenizer, %s, is %s",
                     set->files[0].tokens.path, set->tokenizer, job->data.tokenizer, identity);
    }
    return rc;
}

static int open_tokens(const struct job *job, const char *root, const struct job_data_files *files,
                       struct dataset *set, struct err *e)
{
    struct arena paths = {0};
    static const enum array_type types[] = {
        [JOB_DATA_AUTO] = ARRAY_TYPE_COUNT, [JOB_DATA_U16] = ARRAY_U16, [JOB_DATA_U32] = ARRAY_U32};
    enum array_type type = types[job->data.ids];
    int rc = dataset_open_tokens(set, root, job_path(job, &paths, files->tokens), type,
                                 job->model.facts->seq, job->model.facts->vocab, e);
    if (is_absent(rc, e))
        rc = e->code = ERR_ABSENT;
    if (rc == ERR_UNSUPPORTED)
        rc = e->code = ERR_DATA; // a file that holds no tokens is bad data (exit 65)
    if (!rc && (rc = check_tokenizer(job, root, set, e)))
        dataset_close(set);
    arena_clear(&paths);
    return rc;
}

static int open_images(const struct job *job, const char *root, const struct job_data_files *files,
                       struct dataset *set, struct err *e)
{
    struct arena paths = {0};
    const char *labels = files->labels ? job_path(job, &paths, files->labels) : NULL;
    int rc = dataset_open(set, root, job_path(job, &paths, files->images), labels,
                          job->model.facts->classes, e);
    if (is_absent(rc, e))
        rc = e->code = ERR_ABSENT;
    if (!rc) {
        rc = check_format(&set->images, job->data.format, e);
        if (!rc && set->labelled)
            rc = check_format(&set->labels, job->data.format, e);
        if (!rc)
            rc = check_images(job, set, e);
        if (rc)
            dataset_close(set);
    }
    arena_clear(&paths);
    return rc;
}

// A step of more samples than there are would take some of them twice.
static int check_batch(const struct job *job, const struct dataset *set, struct err *e)
{
    const struct array *first = set->seq ? &set->files[0].tokens : &set->images;
    if (set->n >= (uint64_t)job->data.batch)
        return 0;
    return err_set(
        e, ERR_DATA,
        "%s: the training set has %llu samples%s, and data.batch is %lld: make it smaller%s",
        first->path, (unsigned long long)set->n, set->seq ? " of model.seq tokens" : "",
        (long long)job->data.batch, set->seq ? ", or model.seq" : "");
}

int job_set_open(const struct job *job, const char *root, const struct job_data_files *files,
                 struct dataset *set, struct err *e)
{
    int rc =
        (job->data.format == JOB_DATA_TOKENS ? open_tokens : open_images)(job, root, files, set, e);
    if (!rc && files == &job->data.train && (rc = check_batch(job, set, e)))
        dataset_close(set);
    return rc;
}

// Gives the samples of the first batch, `count` of them, as training or an evaluation takes them.
static void pick_samples(const struct job *job, const struct dataset *set, bool evaluates,
                         size_t count, uint64_t *ids)
{
    uint64_t batch = (uint64_t)job->data.batch;
    struct sampler train = {.n = set->n, .batch = batch, .seed = (uint64_t)job->train.seed};
    struct sampler_eval eval;
    if (!evaluates) {
        sampler_ids(&train, 0, 0, count, ids);
        return;
    }
    sampler_eval_init(&eval, set->n, batch, (uint64_t)job->eval.batches);
    sampler_eval_ids(&eval, 0, 0, count, ids);
}

int job_set_try(const struct job *job, const struct job_data_files *files, struct err *e)
{
    uint64_t ids[JOB_SET_TRIED];
    size_t count = job->data.batch < JOB_SET_TRIED ? (size_t)job->data.batch : JOB_SET_TRIED;
    struct dataset set;
    struct arena a = {0};
    int32_t label;
    int rc = job_set_open(job, NULL, files, &set, e);
    if (rc)
        return rc;
    char *sample = arena_array(&a, char, dataset_sample_bytes(&set));
    pick_samples(job, &set, files == &job->data.eval, count, ids);
    for (size_t i = 0; !rc && i < count; i++)
        rc = dataset_read(&set, &ids[i], 1, sample, &label, e);
    arena_clear(&a);
    dataset_close(&set);
    return rc;
}
