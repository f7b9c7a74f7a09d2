// SPDX-License-Identifier: Apache-2.0
// The probe of an attempt's storage and its fence; see attempt_storage.h.
#include "coordinator/decide/attempt_storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/ckpt/lost_steps.h"
#include "common/ckpt/source.h"
#include "coordinator/decide/attempt_leader.h"

enum { UNUSED_MAX = 16 };   // reported one by one
enum { SCAN_MAX = 100000 }; // checkpoints of one job, the newest

// A disk without room is no fault of the job, which waits until there is some.
static void wait_for_room(struct attempt *at, const struct attempt_host *h, const char *why)
{
    struct fault f = {
        .kind = FAULT_OUTSIDE, .event = EVENT_FAILED, .rank = -1, .host = host_name(h->host)};
    snprintf(f.text, sizeof f.text, "storage of host %s: %s", host_name(h->host), why);
    job_unsaved(at->job, why);
    attempt_fault(at, &f);
}

static void fail_storage(struct attempt *at, const struct attempt_host *h, const char *why,
                         enum fault_kind kind)
{
    struct fault f = {.kind = kind,
                      .event = EVENT_FAILED,
                      .rank = -1,
                      .host = host_name(h->host),
                      .sign = SIGN_STORAGE};
    snprintf(f.text, sizeof f.text, "storage of host %s: %s", host_name(h->host), why);
    attempt_fault(at, &f);
}

// ---- the fence ----

static struct store_entry make_entry(const Weft__V1__Checkpoint *row)
{
    return (struct store_entry){(int64_t)row->attempt, row->step};
}

static int compare_entries(const void *a, const void *b)
{
    return store_entry_compare(*(const struct store_entry *)a, *(const struct store_entry *)b);
}

// A host that lists the folder may lie, or the folder may be another's. A commit is written down before
// its order goes out, so what no row knows was never decided here.
static bool is_decided(const struct attempt *at, struct store_entry id)
{
    const struct commit_record *r = commit_find(leader_commit(at->leader), id);
    return at->job->trusts_folder || (r && r->state != COMMIT_PREPARING);
}

// The checkpoints that a host lists, ascending and each once. Those that are impossible or were never
// decided are left out.
static int sort_scan(const struct attempt *at, const Weft__V1__StorageDone *d,
                     struct store_entry *scan)
{
    int n = 0, kept = 0;
    for (size_t i = 0; i < d->n_committed; i++)
        if (store_entry_ok(d->committed[i]->attempt, d->committed[i]->step) &&
            is_decided(at, make_entry(d->committed[i])))
            scan[n++] = make_entry(d->committed[i]);
    qsort(scan, (size_t)n, sizeof *scan, compare_entries);
    for (int i = 0; i < n; i++)
        if (!kept || compare_entries(&scan[kept - 1], &scan[i]))
            scan[kept++] = scan[i];
    if (kept > SCAN_MAX)
        memmove(scan, scan + kept - SCAN_MAX, SCAN_MAX * sizeof *scan);
    return kept > SCAN_MAX ? SCAN_MAX : kept;
}

// ---- what is there and not used ----

struct unused_saves {
    struct attempt *at;
    const char *host;
    int n;
};

static void report_unused_save(struct unused_saves *p, int64_t step, const char *name,
                               const char *why)
{
    struct job_note n = NOTE(UNUSED);
    char text[400];
    n.host = p->host;
    n.step = step;
    if (p->n++ >= UNUSED_MAX)
        return;
    snprintf(text, sizeof text, "%.120s is not used: %.240s", name, why);
    plain_mask(text);
    job_event(p->at->job, &n, "%s", text);
}

// Reports each checkpoint in the folder that is damaged or cannot be one of weft's, and so is not used.
static void report_unused_saves(struct attempt *at, const Weft__V1__StorageDone *d)
{
    struct unused_saves p = {.at = at, .host = host_name(at->hosts->host)};
    struct job_note n = NOTE(UNUSED);
    for (size_t i = 0; i < d->n_committed; i++) {
        const Weft__V1__Checkpoint *k = d->committed[i];
        bool possible = store_entry_ok(k->attempt, k->step);
        bool decided = possible && is_decided(at, make_entry(k));
        char name[64];
        if (decided && !k->bad)
            continue;
        snprintf(name, sizeof name, "the checkpoint of step %lld and attempt %llu",
                 (long long)k->step, (unsigned long long)k->attempt);
        if (possible)
            store_entry_name((int64_t)k->attempt, k->step, name);
        report_unused_save(&p, k->step, name,
                           !possible ? "weft gives no such step or attempt"
                           : k->bad  ? k->why
                                     : "this coordinator never decided it; if its database was put "
                                       "back from a copy, start it with --restored");
    }
    for (size_t i = 0; i < d->n_unused; i++)
        report_unused_save(&p, -1, d->unused[i], STORE_UNUSED_WHY);
    if (p.n > UNUSED_MAX)
        job_event(at->job, &n, "and %d more are not used", p.n - UNUSED_MAX);
}

static void take_scan(struct attempt *at, const Weft__V1__StorageDone *d)
{
    struct job_record *j = at->job;
    struct store_entry *scan =
        arena_array(j->coord->out->arena, struct store_entry, d->n_committed + 1);
    attempt_lead(at, (struct leader_event){.kind = LEADER_EV_FENCED,
                                           .attempt = (int64_t)d->attempt,
                                           .scan = scan,
                                           .nscan = sort_scan(at, d, scan)});
    for (size_t i = 0; i < d->n_committed; i++)
        if (d->committed[i]->bad)
            attempt_lead(at, (struct leader_event){.kind = LEADER_EV_BAD,
                                                   .id = make_entry(d->committed[i])});
    for (size_t i = 0; i < d->n_committed; i++)
        if (d->committed[i]->evaluated)
            attempt_lead(at, (struct leader_event){.kind = LEADER_EV_SCORE,
                                                   .id = make_entry(d->committed[i]),
                                                   .loss = d->committed[i]->eval_loss});
    const struct commit_record *newest = commit_newest(leader_commit(at->leader));
    j->committed_step = newest ? newest->id.step : -1;
    j->committed_attempt = newest ? (uint64_t)newest->id.attempt : 0;
    job_touch(j);
}

// Why a job of which the folder holds no good checkpoint may not start again at step 0; null: it may.
static const char *refuse_beginning(const struct attempt *at)
{
    const struct commit *m = leader_commit(at->leader);
    for (int i = 0; i < m->n; i++)
        if (m->records[i].state == COMMIT_COMMITTED)
            return "every checkpoint there is damaged: put one back from a copy and `weft resume` "
                   "(`weft run`: the same command), or begin anew (`weft run`: --new)";
    return at->job->must_resume
               ? "the folder holds no checkpoint, and the changed job was to continue from one: "
                 "put it back and `weft resume`, or submit the job again (`weft run`: --new)"
               : NULL;
}

// Why what a host says of where the job begins is not believed; null: it is possible. It names a
// checkpoint of the step that it says, and of the one that was asked for.
static const char *refuse_source(const struct job_record *j, const Weft__V1__StorageDone *d)
{
    const char *place, *slash = strrchr(d->source, '/');
    struct store_entry id;
    int64_t step;
    source_split(j->source, j->coord->out->arena, &place, &step);
    bool names = slash && store_entry_parse(slash + 1, &id) && id.step == d->source_step;
    return !names ? "checkpoint.from: the host names no checkpoint that the job begins with"
           : step >= 0 && step != d->source_step
               ? "checkpoint.from: the host names a checkpoint of another step"
               : NULL;
}

// Whether a checkpoint of this step is there and cannot be used.
static bool is_damaged(const struct attempt *at, int64_t step)
{
    const struct commit *m = leader_commit(at->leader);
    bool damaged = false;
    for (int i = 0; i < m->n; i++)
        damaged = damaged || (m->records[i].id.step == step && m->records[i].bad);
    return damaged;
}

// Reports what the attempt begins with. had_step: of the newest checkpoint that the job had; −1: none.
static void report_begin(struct attempt *at, const struct job_note *n, int64_t had_step,
                         const char *source)
{
    struct job_record *j = at->job;
    bool restored = n->kind == EVENT_RESTORED;
    struct lost_steps lost = {restored ? j->restore : NULL, j->restore_step, had_step,
                              is_damaged(at, had_step)};
    char text[LOST_STEPS_MAX];
    if (had_step > j->restore_step) {
        lost_steps_print(&lost, text);
        job_event(j, n, "%s", text);
    } else if (restored) {
        job_event(j, n, "continues from %s", j->restore);
    } else {
        job_event(j, n, "%sat step %lld%s%.400s", j->attempt > 1 ? "again, " : "",
                  (long long)j->restore_step, *source ? ", with parameters of " : "", source);
    }
}

static void fence_again(struct attempt *at, const struct attempt_host *h, uint64_t greatest)
{
    struct job_record *j = at->job;
    uint64_t base = greatest > j->attempt ? greatest : j->attempt;
    struct job_note n = NOTE(FENCE);
    if (greatest >= ATTEMPT_MAX) {
        char why[100];
        snprintf(why, sizeof why,
                 "the folder knows attempt %llu, and %d is the last that weft gives",
                 (unsigned long long)greatest, ATTEMPT_MAX);
        fail_storage(at, h, why, FAULT_CONFIG);
        return;
    }
    j->attempt = base + 1;
    job_event(j, &n, "the folder knows attempt %llu: this one is attempt %llu",
              (unsigned long long)greatest, (unsigned long long)j->attempt);
    attempt_enter(at, PHASE_FENCE);
}

static void take_fence(struct attempt *at, const Weft__V1__StorageDone *d)
{
    struct job_record *j = at->job;
    struct job_note n = NOTE(BEGUN);
    int64_t had = j->committed_step;
    bool went_back = j->goes_back || j->from_step > 0;
    report_unused_saves(at, d);
    take_scan(at, d);
    heap_set(&j->store, d->store);
    const struct commit_record *from = commit_newest(leader_commit(at->leader));
    const char *refusal = from ? NULL : refuse_beginning(at);
    if (went_back && (!from || from->id.step != j->from_step))
        refusal = "the checkpoint to continue from is none that this coordinator decided: start it "
                  "with --restored";
    if (!from && !refusal && *j->source)
        refusal = refuse_source(j, d);
    if (!from && !refusal && j->source_steps && d->source_step >= j->steps)
        refusal = "checkpoint.load.step: train.steps is no more than the step of checkpoint.from";
    if (refusal) {
        fail_storage(at, at->hosts, refusal, FAULT_CONFIG);
        return;
    }
    j->must_resume = j->trusts_folder = j->goes_back = false;
    j->from_step = 0;
    j->restore_step = !from && j->source_steps ? d->source_step : 0;
    if (from) {
        char name[64];
        store_entry_name(from->id.attempt, from->id.step, name);
        heap_set(&j->restore, name);
        j->restore_step = n.step = from->id.step;
        n.kind = EVENT_RESTORED;
    }
    j->last_step = j->restore_step;
    if (from && j->steps && from->id.step >= j->steps) { // one without steps evaluates
        at->grace_ms = 0;
        job_move(j, JOB_DRAINING, JOB_SUCCEEDED, &n,
                 "the checkpoint of the last step is there: nothing is left to do");
        attempt_leave(at, PHASE_END);
        return;
    }
    j->fenced = true;
    j->untidy = TIDY;
    job_saved(j);
    if (went_back)
        job_event(
            j, &n,
            "continues from %s, as was asked: what was saved after it is set aside, as aside-…",
            j->restore);
    else
        report_begin(at, &n, had, from || !*j->source ? "" : d->source);
    attempt_enter(at, PHASE_START);
}

// ---- answers ----

void attempt_storage(struct attempt *at, struct attempt_host *h, const Weft__V1__StorageDone *d)
{
    static const Weft__V1__StorageOp ops[] = {
        WEFT__V1__STORAGE_OP__STORAGE_WRITE, WEFT__V1__STORAGE_OP__STORAGE_RENAME,
        WEFT__V1__STORAGE_OP__STORAGE_READ, WEFT__V1__STORAGE_OP__STORAGE_FENCE};
    const struct job_record *j = at->job;
    if (at->phase > PHASE_FENCE || d->op != ops[at->phase] || d->attempt != j->attempt ||
        strcmp(d->attempt_id, j->attempt_id) || !attempt_asks(at, h))
        return;
    if (!d->ok && at->phase == PHASE_FENCE && d->greatest) {
        fence_again(at, h, d->greatest);
        return;
    }
    if (!d->ok && d->full) {
        wait_for_room(at, h, d->why);
        return;
    }
    if (!d->ok) {
        fail_storage(at, h, d->why,
                     d->config || at->phase < PHASE_FENCE ? FAULT_CONFIG : FAULT_RANK);
        return;
    }
    h->done = true;
    if (at->phase == PHASE_FENCE) {
        take_fence(at, d);
        return;
    }
    for (int i = 0; i < at->nhosts; i++)
        if (attempt_asks(at, &at->hosts[i]))
            return;
    attempt_enter(at, at->phase + 1);
}

// A host does one act of a job at a time: the first act of an attempt may wait for the fence of the
// attempt before it, which reads for long. Until there is an answer the job tries again.
void attempt_storage_overdue(struct attempt *at)
{
    char why[60];
    snprintf(why, sizeof why, "no answer within %d s", (int)attempt_limit_s(at->phase));
    for (int i = 0; i < at->nhosts; i++)
        if (attempt_asks(at, &at->hosts[i])) {
            fail_storage(at, &at->hosts[i], why,
                         at->phase < PHASE_FENCE ? FAULT_OUTSIDE : FAULT_RANK);
            return;
        }
}
