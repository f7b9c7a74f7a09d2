// SPDX-License-Identifier: Apache-2.0
// The changes of a job between its checkpoints; see job_history.h.
#include "worker/rank/train/job_history.h"

#include <string.h>

#include "common/plan/schema_list.h"

// How the job that made the checkpoint differs from this one; "" where that is not known.
static void compare_jobs(const struct manifest *restored, const struct job *now,
                         struct buf *changes)
{
    struct arena a;
    struct job before;
    struct job_errors errs = {0};
    const char *text = restored->resolved;
    arena_init(&a);
    if (!job_parse(&a, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &before, &errs)) {
        if (!before.resources.threads) // decided when it was placed
            before.resources.threads = restored->numerics.threads;
        job_changes(&before, now, changes);
    }
    arena_clear(&a);
}

void job_history_read(struct job_history *h, struct arena *a, const struct manifest *restored,
                      const struct job *now, const char *hash)
{
    struct buf changes = {0};
    h->changes = arena_array(a, struct manifest_change, restored->nchanges + 1);
    for (h->n = 0; h->n < restored->nchanges; h->n++)
        h->changes[h->n] = (struct manifest_change){restored->changes[h->n].step,
                                                    arena_strdup(a, restored->changes[h->n].what)};
    if (strcmp(restored->job_hash, hash) != 0)
        compare_jobs(restored, now, &changes);
    if (changes.len)
        h->changes[h->n++] =
            (struct manifest_change){restored->step, arena_strdup(a, buf_str(&changes))};
    buf_clear(&changes);
}
