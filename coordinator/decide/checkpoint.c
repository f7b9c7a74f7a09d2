// SPDX-License-Identifier: Apache-2.0
// Records of checkpoints and their rows; see checkpoint.h.
#include "coordinator/decide/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "coordinator/decide/outbox.h"

// ---- rows ----

// Both lists ascend by (attempt, step).
void checkpoint_write(struct job_record *j, const struct commit *m)
{
    struct checkpoint_record *now = heap_alloc(sizeof *now * (size_t)(m->n + 1));
    int k = 0;
    for (int i = 0; i < m->n; i++) {
        const struct commit_record *r = &m->records[i];
        now[i] = (struct checkpoint_record){.id = r->id,
                                            .state = r->state,
                                            .bad = r->bad,
                                            .scored = r->scored,
                                            .loss = r->loss,
                                            .t_ms = j->coord->wall_ms};
        snprintf(now[i].job, sizeof now[i].job, "%s", j->id);
        snprintf(now[i].why, sizeof now[i].why, "%s", r->why);
        while (k < j->ncheckpoints && store_entry_compare(j->checkpoints[k].id, r->id) < 0)
            out_erase(j->coord, ROW_CHECKPOINT, &j->checkpoints[k++]);
        bool there = k < j->ncheckpoints && !store_entry_compare(j->checkpoints[k].id, r->id);
        if (there && j->checkpoints[k].state == r->state && j->checkpoints[k].bad == r->bad &&
            j->checkpoints[k].scored == r->scored)
            now[i] = j->checkpoints[k];
        else
            out_row(j->coord, ROW_CHECKPOINT, &now[i]);
        k += there;
    }
    while (k < j->ncheckpoints)
        out_erase(j->coord, ROW_CHECKPOINT, &j->checkpoints[k++]);
    free(j->checkpoints);
    j->checkpoints = now;
    j->ncheckpoints = m->n;
}

void checkpoint_forgive(struct job_record *j)
{
    for (int i = 0; i < j->ncheckpoints; i++) {
        if (!j->checkpoints[i].bad)
            continue;
        j->checkpoints[i].bad = false;
        out_row(j->coord, ROW_CHECKPOINT, &j->checkpoints[i]);
    }
}

void checkpoint_remember(const struct job_record *j, struct leader_memory *out)
{
    bool fence_is_due = j->nplaced && !j->fenced;
    struct commit_record *r =
        arena_array(j->coord->out->arena, struct commit_record, j->ncheckpoints + 1);
    for (int i = 0; i < j->ncheckpoints; i++) {
        const struct checkpoint_record *k = &j->checkpoints[i];
        r[i] = (struct commit_record){
            .id = k->id, .state = k->state, .bad = k->bad, .scored = k->scored, .loss = k->loss};
        memcpy(r[i].why, k->why, sizeof r[i].why);
    }
    out->attempt = (int64_t)j->attempt - fence_is_due;
    out->records = r;
    out->nrecords = j->ncheckpoints;
}

void checkpoint_load(struct job_record *j, const struct checkpoint_record *k)
{
    j->checkpoints = realloc(j->checkpoints, sizeof *k * (size_t)(j->ncheckpoints + 1));
    PRE(j->checkpoints != NULL);
    int at = j->ncheckpoints++;
    while (at > 0 && store_entry_compare(j->checkpoints[at - 1].id, k->id) > 0) {
        j->checkpoints[at] = j->checkpoints[at - 1];
        at--;
    }
    j->checkpoints[at] = *k;
}
