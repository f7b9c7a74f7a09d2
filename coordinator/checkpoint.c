// SPDX-License-Identifier: Apache-2.0
// Records of checkpoints, and what a checkpoint means to its job; see checkpoint.h.
#include "coordinator/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/attempt_leader.h"
#include "coordinator/row_codec.h"

// ---- rows ----

static bool are_same(const struct checkpoint_record *a, const struct checkpoint_record *b)
{
    return a->state == b->state && a->bad == b->bad && a->pinned == b->pinned;
}

// Both lists ascend by (epoch, step).
void checkpoint_write(struct job_record *j, const struct commit *m)
{
    struct checkpoint_record *now = calloc((size_t)m->n + 1, sizeof *now);
    int k = 0;
    PRE(now != NULL);
    for (int i = 0; i < m->n; i++) {
        const struct commit_record *r = &m->records[i];
        now[i] =
            (struct checkpoint_record){r->id, r->state, r->bad, r->pinned, j->coord->wall_ms, ""};
        snprintf(now[i].why, sizeof now[i].why, "%s", r->why);
        while (k < j->ncheckpoints && store_entry_compare(j->checkpoints[k].id, r->id) < 0)
            row_erase_checkpoint(j, &j->checkpoints[k++]);
        bool there = k < j->ncheckpoints && !store_entry_compare(j->checkpoints[k].id, r->id);
        if (there && are_same(&j->checkpoints[k], &now[i]))
            now[i] = j->checkpoints[k];
        else
            row_write_checkpoint(j, &now[i]);
        k += there;
    }
    while (k < j->ncheckpoints)
        row_erase_checkpoint(j, &j->checkpoints[k++]);
    free(j->checkpoints);
    j->checkpoints = now;
    j->ncheckpoints = m->n;
}

void checkpoint_forget(struct job_record *j)
{
    for (int i = 0; i < j->ncheckpoints; i++)
        row_erase_checkpoint(j, &j->checkpoints[i]);
}

void checkpoint_remember(const struct job_record *j, struct leader_memory *out)
{
    bool fence_is_due = j->nplaced && !j->fenced;
    struct commit_record *r =
        arena_array(j->coord->out->arena, struct commit_record, j->ncheckpoints + 1);
    for (int i = 0; i < j->ncheckpoints; i++) {
        const struct checkpoint_record *k = &j->checkpoints[i];
        r[i] = (struct commit_record){
            .id = k->id, .state = k->state, .bad = k->bad, .pinned = k->pinned};
        memcpy(r[i].why, k->why, sizeof r[i].why);
    }
    out->epoch = (int64_t)j->epoch - fence_is_due;
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

// ---- what a commit means to the job ----

void checkpoint_committed(struct attempt *at, struct store_entry id)
{
    struct job_note n = NOTE(COMMITTED);
    struct job_record *j = at->job;
    n.step = id.step;
    job_account(j);
    j->since_ckpt_ms = 0;
    j->committed_step = id.step;
    j->committed_epoch = (uint64_t)id.epoch;
    j->committed_since = true;
    if (id.step > j->last_step)
        j->last_step = id.step;
    j->coord->committed++;
    job_event(j, &n, "checkpoint of step %lld", (long long)id.step);
    job_publish(j);
    if (id.step < j->steps)
        return;
    struct job_note done = NOTE(FINISHED);
    done.step = id.step;
    if (j->state == JOB_RUNNING) {
        job_move(j, JOB_DRAINING, JOB_SUCCEEDED, &done, "the last step is done and saved");
        attempt_enter(at, PHASE_END);
        attempt_settle(at);
    } else if (j->state == JOB_DRAINING && j->goal != JOB_SUCCEEDED) {
        job_goal(j, JOB_SUCCEEDED, &done, "the last step is done and saved");
    }
}

void checkpoint_aborted(struct attempt *at, struct store_entry id, const char *why)
{
    struct job_note n = NOTE(ABORTED);
    struct job_record *j = at->job;
    n.step = id.step;
    job_event(j, &n, "checkpoint of step %lld: %s", (long long)id.step, why);
    if (id.step >= j->steps && j->state == JOB_RUNNING)
        at->final_aborted = true;
}

// ---- a fence ----

static struct store_entry entry_of(const Weft__Rows__Checkpoint *row)
{
    return (struct store_entry){(int64_t)row->epoch, row->step};
}

static int ascending(const void *a, const void *b)
{
    return store_entry_compare(*(const struct store_entry *)a, *(const struct store_entry *)b);
}

// What a host says lies there, ascending, each once; what can be no checkpoint is passed over.
static int sort_out(const Weft__V1__StorageDone *d, struct store_entry *scan)
{
    int n = 0, kept = 0;
    for (size_t i = 0; i < d->n_committed; i++)
        if (d->committed[i]->epoch <= EPOCH_MOST && d->committed[i]->step >= 0)
            scan[n++] = entry_of(d->committed[i]);
    qsort(scan, (size_t)n, sizeof *scan, ascending);
    for (int i = 0; i < n; i++)
        if (!kept || ascending(&scan[kept - 1], &scan[i]))
            scan[kept++] = scan[i];
    return kept;
}

void checkpoint_fenced(struct attempt *at, const Weft__V1__StorageDone *d)
{
    struct job_record *j = at->job;
    struct store_entry *scan =
        arena_array(j->coord->out->arena, struct store_entry, d->n_committed + 1);
    attempt_lead(at, (struct leader_event){.kind = LEADER_EV_FENCED,
                                           .epoch = (int64_t)d->epoch,
                                           .scan = scan,
                                           .nscan = sort_out(d, scan)});
    for (size_t i = 0; i < d->n_committed; i++)
        if (d->committed[i]->bad)
            attempt_lead(
                at, (struct leader_event){.kind = LEADER_EV_BAD, .id = entry_of(d->committed[i])});
    const struct commit_record *newest = commit_newest(leader_commit(at->leader));
    j->committed_step = newest ? newest->id.step : -1;
    j->committed_epoch = newest ? (uint64_t)newest->id.epoch : 0;
    job_touch(j);
}

bool checkpoint_all_bad(const struct attempt *at)
{
    const struct commit *m = leader_commit(at->leader);
    bool any = false;
    for (int i = 0; i < m->n; i++)
        any = any || m->records[i].state == COMMIT_COMMITTED;
    return any && !commit_newest(m);
}
