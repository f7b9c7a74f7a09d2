// SPDX-License-Identifier: Apache-2.0
// The changes of a job between its checkpoints; see job_history.h.
#include "worker/rank/train/job_history.h"

#include <string.h>

#include "common/language/model_facts.h"
#include "common/plan/schema_list.h"

// How the job that made the checkpoint differs from this one; "" where that is not known. *batch: that
// job's.
static void compare_jobs(struct job_history *h, const struct manifest *restored,
                         const struct job *now, struct buf *changes, int64_t *batch)
{
    struct arena a = {0};
    struct job before;
    struct job_errors errs = {0};
    const char *text = restored->resolved;
    if (!job_parse(&a, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &before, &errs)) {
        if (!before.resources.threads) // decided when it was placed
            before.resources.threads = restored->numerics.threads;
        job_changes(&before, now, changes);
        h->names_other_data = job_names_other_data(&before, now);
        h->other_length = before.model.facts->seq != now->model.facts->seq;
        *batch = before.data.batch;
    }
    arena_clear(&a);
}

// Samples that were drawn since the data or their length was another are counted from 0.
static bool starts_count(const char *change)
{
    return strstr(change, "data.train.") || strstr(change, "model.seq from ");
}

// Where nothing of that was ever changed the samples follow from the batch; where the batch alone was,
// each step drew at least one. Those that are still to come can be counted.
static int check_samples(const struct manifest *restored, const struct job *now, int64_t batch,
                         struct err *e)
{
    int64_t left = now->train.steps > restored->step ? now->train.steps - restored->step : 0;
    int64_t drawn, rest;
    bool changed = false, others = restored->source.folder != NULL;
    bool fits = !__builtin_mul_overflow(restored->step, batch, &drawn) &&
                !__builtin_mul_overflow(left, now->data.batch, &rest) &&
                restored->samples <= INT64_MAX - rest;
    for (int i = 0; i < restored->nchanges; i++) {
        changed = changed || strstr(restored->changes[i].what, "data.batch from ");
        others = others || starts_count(restored->changes[i].what);
    }
    if (fits &&
        (others || (changed ? restored->samples >= restored->step : restored->samples == drawn)))
        return 0;
    return err_set(e, ERR_DATA, "MANIFEST.json has %lld samples after step %lld of %lld a batch",
                   (long long)restored->samples, (long long)restored->step, (long long)batch);
}

int job_history_read(struct job_history *h, struct arena *a, const struct manifest *restored,
                     const struct job *now, const char *hash, struct err *e)
{
    struct buf changes = {0};
    int64_t batch = now->data.batch;
    h->changes = arena_array(a, struct manifest_change, restored->nchanges + 1);
    for (h->n = 0; h->n < restored->nchanges; h->n++)
        h->changes[h->n] = (struct manifest_change){restored->changes[h->n].step,
                                                    arena_strdup(a, restored->changes[h->n].what)};
    if (strcmp(restored->job_hash, hash) != 0)
        compare_jobs(h, restored, now, &changes, &batch);
    if (changes.len)
        h->changes[h->n++] =
            (struct manifest_change){restored->step, arena_strdup(a, buf_str(&changes))};
    buf_clear(&changes);
    return check_samples(restored, now, batch, e);
}
