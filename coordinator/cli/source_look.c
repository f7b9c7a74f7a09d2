// SPDX-License-Identifier: Apache-2.0
// Looking at where a job begins; see source_look.h.
#include "coordinator/cli/source_look.h"

#include <string.h>

#include "common/ckpt/source.h"
#include "common/data/job_set.h"
#include "common/job/prompt.h"
#include "common/plan/plan.h"
#include "coordinator/cli/run_record.h"

int source_name(struct job *job, struct arena *a, struct err *e)
{
    const char *place;
    char store[4096];
    int64_t step;
    if (!job->checkpoint.from)
        return 0;
    source_split(job->checkpoint.from, a, &place, &step);
    if (source_is_path(place))
        return 0;
    if (!record_find_store(job->base_dir, place, store))
        return err_set(e, ERR_NOTFOUND, "no job '%s' was run here; a path begins with ./ or /",
                       place);
    job->checkpoint.from =
        step < 0 ? arena_strdup(a, store) : arena_printf(a, "%s@%lld", store, (long long)step);
    return 0;
}

// Where the tokenizer or the data is not here, the ranks compare.
static int check_tokenizer(const struct job *job, const struct load *l,
                           const struct manifest_source *pin, const char *vocab, struct arena *a,
                           struct buf *say, struct err *e)
{
    struct source_tokenizer own = {.identity = ""};
    struct tokenizer *t = NULL;
    struct dataset set = {0};
    struct err ignored = {0};
    if (job->data.format != JOB_DATA_TOKENS || tokenizer_open(&t, job_tokenizer(job, a), NULL))
        return 0;
    own = (struct source_tokenizer){tokenizer_identity(t), t};
    bool open = strcmp(own.identity, "ids") == 0 &&
                !job_set_open(job, NULL, &job->data.train, &set, &ignored);
    if (open)
        own.identity = set.tokenizer;
    int rc = source_check_tokenizer(l, NULL, pin, vocab, &own, say, e);
    if (open)
        dataset_close(&set);
    tokenizer_close(t);
    return rc;
}

int source_look(const struct job *job, const struct compiled *c, struct arena *a, struct buf *say,
                struct err *e)
{
    struct load l = {.dirfd = -1};
    struct manifest_source pin;
    struct match_param *params;
    struct match match;
    const struct job_load *load = &job->checkpoint.load;
    const char *place;
    int64_t step;
    char name[64];
    source_split(job->checkpoint.from, a, &place, &step);
    int n = plan_params(c, a, &params);
    int rc = source_open(&l, NULL, job_path(job, a, source_path(place)), step, a, &pin, e);
    if (!rc && load->optimizer &&
        strcmp(l.manifest.optimizer, job_optimizer_name(job->optimizer.kind)) != 0)
        rc = err_set(e, ERR_INVALID,
                     "checkpoint.load.optimizer: the checkpoint has the state of %s, and "
                     "optimizer.kind is %s",
                     l.manifest.optimizer, job_optimizer_name(job->optimizer.kind));
    if (!rc && load->step && pin.step >= job->train.steps)
        rc = err_set(e, ERR_INVALID,
                     "checkpoint.load.step: train.steps is %lld, and its step is %lld",
                     (long long)job->train.steps, (long long)pin.step);
    if (!rc)
        rc = match_params(a, &l.manifest, load, params, n, &match, e);
    if (!rc) {
        store_entry_name(pin.attempt, pin.step, name);
        buf_printf(say, "%s/%s: ", pin.folder, name);
        match_print(&match, n, say);
        rc = check_tokenizer(job, &l, &pin, match_vocab(&match, params, n), a, say, e);
    }
    load_close(&l);
    return rc;
}
