// SPDX-License-Identifier: Apache-2.0
// Rows and frames around common/ckpt's commit; see checkpoint.h.
//
// Shards' digests are not read here: the frames of the open checkpoint are kept as they came and go
// to the writer, who needs them. After a restart they come again, and the order goes out when the
// last one is in.
#include "coordinator/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/frames.h"
#include "coordinator/outbox.h"
#include "coordinator/row_codec.h"

enum { SAVE_S = 600 }; // from the first report of a checkpoint to the last

// ---- rows ----

static bool are_same(const struct checkpoint_record *a, const struct checkpoint_record *b)
{
    return a->state == b->state && a->bad == b->bad && a->pinned == b->pinned;
}

// Writes what differs from what the store holds: both lists ascend by (epoch, step).
static void sync_rows(struct job_record *j)
{
    const struct commit *m = &j->commit;
    struct checkpoint_record *now = calloc((size_t)m->n + 1, sizeof *now);
    int k = 0;
    PRE(now != NULL);
    for (int i = 0; i < m->n; i++) {
        const struct commit_record *r = &m->records[i];
        now[i] = (struct checkpoint_record){r->id, r->state, r->bad, r->pinned, j->coord->wall_ms};
        while (k < j->ncheckpoints && store_entry_compare(j->checkpoints[k].id, r->id) < 0)
            row_erase_checkpoint(j, &j->checkpoints[k++]);
        bool there = k < j->ncheckpoints && !store_entry_compare(j->checkpoints[k].id, r->id);
        if (there && are_same(&j->checkpoints[k], &now[i])) {
            now[i].t_ms = j->checkpoints[k].t_ms;
        } else {
            row_write_checkpoint(j, &now[i], r->why);
        }
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

static void restore(struct job_record *j)
{
    struct commit_record *r = calloc((size_t)j->ncheckpoints + 1, sizeof *r);
    bool fence_is_due = j->nplaced && !j->fenced;
    PRE(r != NULL);
    for (int i = 0; i < j->ncheckpoints; i++)
        r[i] = (struct commit_record){.id = j->checkpoints[i].id,
                                      .state = j->checkpoints[i].state,
                                      .bad = j->checkpoints[i].bad,
                                      .pinned = j->checkpoints[i].pinned};
    commit_restore(&j->commit, (int64_t)j->epoch - fence_is_due, r, j->ncheckpoints,
                   j->coord->now_ns);
    free(r);
}

void checkpoint_open(struct job_record *j)
{
    struct commit_config config = {.nranks = j->ranks,
                                   .deadline_ns = SAVE_S * CLOCK_S,
                                   .keep = (int)j->spec.checkpoint.keep,
                                   .keep_every = j->spec.checkpoint.keep_every};
    if (j->deciding)
        return;
    commit_init(&j->commit, &config);
    restore(j);
    j->deciding = true;
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

// ---- actions ----

static void forget_shards(struct attempt *at)
{
    for (int r = 0; r < at->nranks; r++) {
        if (at->shards[r])
            weft__rank__shard_done__free_unpacked(at->shards[r], NULL);
        at->shards[r] = NULL;
    }
}

static void send_commit(struct attempt *at, int64_t step)
{
    FRAME_BODY(body, Commit, commit);
    body.step = step;
    body.shards = arena_array(at->job->coord->out->arena, Weft__Rank__ShardDone *, at->nranks);
    for (int r = 0; r < at->nranks; r++)
        if (at->shards[r]) // all are in: commit sees to that
            body.shards[body.n_shards++] = at->shards[r];
    FRAME(f, COMMIT, commit, &body);
    frames_send(at, 0, &f);
}

static void send_answer(struct attempt *at, const struct commit_action *x)
{
    FRAME_BODY(committed, Committed, committed);
    FRAME_BODY(aborted, Aborted, aborted);
    union {
        const char *from;
        char *to;
    } why = {.from = x->text};
    committed.step = aborted.step = x->id.step;
    aborted.why = why.to;
    FRAME(fc, COMMITTED, committed, &committed);
    FRAME(fa, ABORTED, aborted, &aborted);
    frames_send(at, x->rank, x->kind == COMMIT_DO_COMMITTED ? &fc : &fa);
}

static void send_delete(struct attempt *at, struct store_entry id)
{
    FRAME_BODY(body, Delete, delete);
    body.epoch = id.epoch;
    body.step = id.step;
    FRAME(f, DELETE, delete_, &body);
    frames_send(at, 0, &f);
}

// ---- what a commit means to the job ----

static void committed(struct job_record *j, struct store_entry id)
{
    struct job_note n = NOTE(COMMITTED);
    struct attempt *at = j->attempt;
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
    if (!at || id.step < j->steps)
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

static void aborted(struct job_record *j, const struct commit_action *x)
{
    struct job_note n = NOTE(ABORTED);
    n.step = x->id.step;
    job_event(j, &n, "checkpoint of step %lld: %s", (long long)x->id.step, x->text);
    if (j->attempt && x->id.step >= j->steps && j->state == JOB_RUNNING)
        j->attempt->final_aborted = true;
}

static void carry_out(struct job_record *j, const struct commit_action *x)
{
    struct attempt *at = j->attempt;
    switch (x->kind) {
    case COMMIT_DO_ORDER:
        send_commit(at, x->id.step);
        return;
    case COMMIT_DO_COMMITTED:
    case COMMIT_DO_ABORTED:
        send_answer(at, x);
        if (x->rank < 0 && x->kind == COMMIT_DO_ABORTED)
            aborted(j, x);
        else if (x->rank < 0)
            committed(j, x->id); // may be the attempt's end
        return;
    case COMMIT_DO_DELETE:
        send_delete(at, x->id);
        return;
    }
}

// Deletions first: rank 0 takes them before the answer to its last save lets it end.
static void decide(struct job_record *j, struct commit_event *ev)
{
    struct commit_actions actions = {0};
    ev->now_ns = j->coord->now_ns;
    commit_step(&j->commit, ev, j->coord->out->arena, &actions);
    sync_rows(j);
    for (int i = 0; i < actions.n; i++)
        if (actions.v[i].kind == COMMIT_DO_DELETE)
            carry_out(j, &actions.v[i]);
    for (int i = 0; i < actions.n && j->attempt; i++)
        if (actions.v[i].kind != COMMIT_DO_DELETE)
            carry_out(j, &actions.v[i]);
}

// ---- events ----

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

void checkpoint_fenced(struct job_record *j, const Weft__V1__StorageDone *d)
{
    struct arena *a = j->coord->out->arena;
    struct store_entry *scan = arena_array(a, struct store_entry, d->n_committed + 1);
    int n = sort_out(d, scan);
    commit_fence(&j->commit, (int64_t)d->epoch, scan, n);
    struct commit_actions none = {0};
    for (size_t i = 0; i < d->n_committed; i++) {
        struct commit_event ev = {.kind = COMMIT_EV_BAD, .id = entry_of(d->committed[i])};
        if (d->committed[i]->bad)
            commit_step(&j->commit, &ev, a, &none);
    }
    sync_rows(j);
    const struct commit_record *newest = commit_newest(&j->commit);
    j->committed_step = newest ? newest->id.step : -1;
    j->committed_epoch = newest ? (uint64_t)newest->id.epoch : 0;
    job_touch(j);
}

const struct commit_record *checkpoint_choose(const struct job_record *j)
{
    return commit_newest(&j->commit);
}

bool checkpoint_all_bad(const struct job_record *j)
{
    bool any = false;
    for (int i = 0; i < j->commit.n; i++)
        any = any || j->commit.records[i].state == COMMIT_COMMITTED;
    return any && !commit_newest(&j->commit);
}

void checkpoint_bad(struct job_record *j, struct store_entry id)
{
    struct commit_event ev = {.kind = COMMIT_EV_BAD, .id = id};
    decide(j, &ev);
}

void checkpoint_shard(struct attempt *at, int rank, const Weft__Rank__ShardDone *f)
{
    struct job_record *j = at->job;
    struct commit *m = &j->commit;
    if (j->state == JOB_RECOVERING)
        return; // the epoch has ended
    struct shard_report r = {.rank = rank, .step = f->step, .code = f->code};
    snprintf(r.text, sizeof r.text, "%s", f->text);
    struct store_entry id = {(int64_t)j->epoch, f->step};
    const struct commit_record *known = commit_find(m, id);
    if (!known || (known->state <= COMMIT_ORDERED && at->shards_step != f->step)) {
        forget_shards(at);
        at->shards_step = f->step;
    }
    if (at->shards_step == f->step && !at->shards[rank]) {
        at->shards[rank] = msg_heap(&f->base);
        at->shards[rank]->rank = rank; // who speaks is known
    }
    struct commit_event ev = {.kind = COMMIT_EV_SHARD, .id = id, .report = &r};
    decide(j, &ev);
}

void checkpoint_writer(struct attempt *at, const Weft__Rank__Frame *f)
{
    struct job_record *j = at->job;
    struct commit_event ev = {0};
    if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT_DONE) {
        ev.kind = COMMIT_EV_DONE;
        ev.id = (struct store_entry){(int64_t)j->epoch, f->commit_done->step};
        ev.ok = f->commit_done->code == 0;
        ev.text = f->commit_done->text;
    } else {
        ev.kind = COMMIT_EV_DELETED;
        ev.id = (struct store_entry){f->deleted->epoch, f->deleted->step};
        ev.ok = f->deleted->code == 0;
    }
    decide(j, &ev);
}

void checkpoint_tick(struct attempt *at)
{
    int64_t due = commit_deadline(&at->job->commit);
    struct commit_event ev = {.kind = COMMIT_EV_TICK};
    if (due && at->job->coord->now_ns >= due && attempt_all_back(at))
        decide(at->job, &ev);
}

void checkpoint_over(struct job_record *j)
{
    struct commit_event ev = {.kind = COMMIT_EV_EPOCH_END};
    decide(j, &ev);
}
