// SPDX-License-Identifier: Apache-2.0
// Jobs found again; see found_jobs.h.
#include "coordinator/decide/found_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/life.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/job/threads.h"
#include "coordinator/decide/checkpoint.h"
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/outbox.h"

enum { ASK_DAYS = 30 }; // a host that was away when the database was lost is asked when it is back
enum { CHECKPOINTS_MAX = 10000 };        // of one job that was found
enum { UNADOPTED_MAX = 10 * FOUND_MAX }; // of all hosts: who lies can fill no more

void found_ask(struct coord *c, struct host *host)
{
    if (host->answered || !c->lost_ms || c->wall_ms - c->lost_ms > ASK_DAYS * 24LL * 3600 * 1000)
        return;
    if (!host->about->checkpoint_root[0])
        return;
    V1_NEW(Storage, storage, s);
    s.op = WEFT__V1__STORAGE_OP__STORAGE_FIND;
    DOWN(d, STORAGE, storage, &s);
    out_down(c, host->conn, &d);
    host->find = host->conn;
}

static int64_t find_newest_step(const Weft__V1__FoundJob *f, uint64_t *attempt)
{
    int64_t step = -1;
    for (size_t i = 0; i < f->n_committed; i++)
        if (f->committed[i]->attempt > *attempt ||
            (f->committed[i]->attempt == *attempt && f->committed[i]->step > step)) {
            *attempt = f->committed[i]->attempt;
            step = f->committed[i]->step;
        }
    return step;
}

static int compare_checkpoints(const void *a, const void *b)
{
    const Weft__V1__Checkpoint *x = *(Weft__V1__Checkpoint *const *)a,
                               *y = *(Weft__V1__Checkpoint *const *)b;
    return store_entry_compare((struct store_entry){(int64_t)x->attempt, x->step},
                               (struct store_entry){(int64_t)y->attempt, y->step});
}

// Adds each checkpoint that the host lists once, the oldest first.
static void take_checkpoints(struct job_record *j, const Weft__V1__FoundJob *f)
{
    size_t n = f->n_committed;
    Weft__V1__Checkpoint **sorted =
        arena_array(j->coord->out->arena, Weft__V1__Checkpoint *, n + 1);
    for (size_t i = 0; i < n; i++)
        sorted[i] = f->committed[i];
    qsort(sorted, n, sizeof *sorted, compare_checkpoints);
    for (size_t i = 0; i < n; i++) {
        struct checkpoint_record k = {.id = {(int64_t)sorted[i]->attempt, sorted[i]->step},
                                      .state = COMMIT_COMMITTED,
                                      .bad = sorted[i]->bad,
                                      .t_ms = j->coord->wall_ms};
        if (i && !compare_checkpoints(&sorted[i - 1], &sorted[i]))
            continue;
        snprintf(k.job, sizeof k.job, "%s", j->id);
        checkpoint_load(j, &k);
        out_row(j->coord, ROW_CHECKPOINT, &k);
    }
}

// How the text that lies in the folder differs from the one of its newest checkpoint. Some keys may have
// been changed since; others never change in a training, and then the text is damaged, or forged.
static void note_difference(struct job_record *j, const Weft__V1__FoundJob *f,
                            const Weft__Plan__JobFacts *facts)
{
    struct job_note n = NOTE(FOUND);
    n.host = j->found;
    heap_set(&j->unlike, facts->identity);
    if (*facts->identity)
        job_event(
            j, &n,
            "OWNER in %s is of another training than the newest checkpoint there, which differs in "
            "%s: %s. It cannot be adopted so: put OWNER right (MANIFEST.json holds the text), and "
            "start the coordinator again",
            f->store, facts->identity, facts->changes);
    else if (*facts->changes)
        job_event(j, &n,
                  "OWNER in %s differs from the newest checkpoint there: %s. Adopted, it "
                  "continues so",
                  f->store, facts->changes);
}

static void take_up(struct coord *c, const struct host *host, const Weft__V1__FoundJob *f,
                    const Weft__Plan__JobFacts *facts)
{
    struct job_record *j = job_create(c, facts, f->job, "found again", "");
    static const char unknown[] = "nobody has said yet that it is still wanted: `weft adopt` takes "
                                  "it, `weft cancel` lets it rest";
    uint64_t attempt = 0;
    int64_t step = find_newest_step(f, &attempt);
    j->attempt = f->attempt;
    j->trusts_folder = true;
    heap_set(&j->found, host_name(host));
    if (!j->threads)
        j->threads = f->threads;
    heap_set(&j->threads_why, j->threads ? "it was started with as many" : "");
    j->committed_step = j->last_step = step;
    j->committed_attempt = attempt;
    heap_set(&j->store, f->store);
    struct job_note n = NOTE(FOUND);
    n.host = j->found;
    n.step = step;
    job_move(j, JOB_QUEUED, JOB_NONE, &n,
             "the database was lost, or is an older copy that does not know it; its folder %s was "
             "found with %zu checkpoint%s",
             f->store, f->n_committed, f->n_committed == 1 ? "" : "s");
    struct job_note held = NOTE(HELD);
    heap_set(&j->goal_why, unknown);
    job_move(j, JOB_HELD, JOB_NONE, &held, "%s", unknown);
    take_checkpoints(j, f);
    note_difference(j, f, facts);
}

// Whether attempts, steps, threads and the id are such as a job may have: a host may say anything.
static bool is_plausible(const Weft__V1__FoundJob *f)
{
    for (size_t i = 0; i < f->n_committed; i++)
        if (f->committed[i]->attempt > f->attempt ||
            !store_entry_ok(f->committed[i]->attempt, f->committed[i]->step))
            return false;
    return hex_is(f->job, ID_LEN - 1) && f->attempt <= ATTEMPT_MAX && f->threads >= 0 &&
           f->threads <= JOB_MAX_THREADS && f->n_committed <= CHECKPOINTS_MAX;
}

// Several hosts may see one folder, and then they report the same. A person who adopts the job must
// know when they do not.
static void compare_with_found(struct job_record *j, const struct host *host,
                               const Weft__V1__FoundJob *f, const char *hash)
{
    struct job_note n = NOTE(FOUND);
    n.host = host_name(host);
    if (j->found[0] && (strcmp(hash, j->job_hash) || f->attempt > j->attempt))
        job_event(
            j, &n,
            "host %s reports attempt %llu and %s job text: one of the two is not what lies in "
            "the folder, compare OWNER there before you adopt it",
            n.host, (unsigned long long)f->attempt,
            strcmp(hash, j->job_hash) ? "another" : "the same");
}

static int count_unadopted(const struct coord *c)
{
    int n = 0;
    list_for_each (it, &c->jobs)
        n += list_entry(it, struct job_record, link)->found[0] != 0;
    return n;
}

static void take_job(struct coord *c, const struct host *host, const Weft__V1__FoundJob *f,
                     const Weft__Plan__JobFacts *facts)
{
    struct job_record *known = job_find(c, f->job);
    if (is_plausible(f) && *facts->refused)
        log_warn("found",
                 "host %s: the job in %.300s is not taken up, its OWNER cannot be read: %.300s",
                 host_name(host), f->store, facts->refused);
    if (!is_plausible(f) || *facts->refused || strcmp(facts->name, f->name) != 0)
        return;
    if (known && known->found[0] && known->unlike[0] && !known->live && !known->in_queue) {
        job_change(known, facts); // perhaps it was put right
        note_difference(known, f, facts);
        job_touch(known);
    } else if (known)
        compare_with_found(known, host, f, facts->hash);
    else
        take_up(c, host, f, facts);
}

// Each question gets one answer, and after a good one none is asked: other answers are ignored.
void found_take(struct coord *c, struct host *host, const Weft__V1__StorageDone *d,
                Weft__Plan__JobFacts *const *facts, int from, int to)
{
    int n = (int)d->n_found < FOUND_MAX ? (int)d->n_found : FOUND_MAX;
    if (!host->find || host->find != host->conn)
        return;
    int room = UNADOPTED_MAX - count_unadopted(c);
    for (int i = from; i < to && i < n; i++, room--)
        if (room > 0)
            take_job(c, host, d->found[i], facts[i]);
    if (room < 0)
        log_warn("found", "host %s reports %zu jobs, and %d that were found wait to be adopted",
                 host_name(host), d->n_found, UNADOPTED_MAX);
    if (to < (int)d->n_found)
        return;
    host->find = 0;
    host->answered = d->ok;
}
