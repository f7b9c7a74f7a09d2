// SPDX-License-Identifier: Apache-2.0
// A rank's side of checkpoints. See snapshot.h.
//
// One thread takes orders from one queue, in order: write the shard, commit, remove, delete. So
// commits are handled one at a time, and a removal comes after the write it undoes. The staging
// memory belongs to the training thread until begin returns and to the writer until the write order
// is done; `open` covers both the answer that is awaited and the memory that is still read.
#include "worker/rank/save/snapshot.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/system.h"

enum order_kind { ORDER_WRITE, ORDER_COMMIT, ORDER_REMOVE, ORDER_DELETE, ORDER_KINDS };
struct snapshot_order {
    struct list link;
    enum order_kind kind;
    struct store_entry id;
    struct save_point at;         // WRITE, COMMIT
    int tries;                    // WRITE
    struct shard_report *reports; // COMMIT: nranks, owned
};

struct snapshot {
    struct snapshot_config c;
    const struct deal_rank *deal; // this rank's
    void *staging;
    bool own_staging;
    pthread_t thread;

    pthread_mutex_t lock; // guards everything below
    pthread_cond_t wake, settled;
    struct list queue;
    bool quit;
    bool running;         // an order is being carried out
    bool staged;          // the staging memory holds what is still to be written
    int64_t open_step;    // −1: none
    int64_t begun_step;   // of the newest begin; −1: none
    int tries;            // how often that step was begun before
    bool again;           // its abort asked to try it again
    struct save_point at; // of the newest begin
    int64_t held_step;    // whose write waits for snapshot_staged; −1: none
    bool last_ok;         // whether the newest answer was Committed
    char last_why[200];   // of the newest abort

    atomic_bool cancel; // the open save is aborted, or all ends: the write may stop early

    // The writer thread's own. It repeats its first answer for a step.
    int64_t answered_step;
    int answered_code;
    char answered_text[200];
    bool removed; // the directory had been removed, and the leader does not know it yet
    bool bare;    // and nothing lies in it yet beside checkpoints
};

uint64_t snapshot_staging_bytes(const struct deal *d, int rank)
{
    return d->rank[rank].bytes;
}

// ---- orders ----
static void free_reports(struct shard_report *r, int n)
{
    for (int i = 0; r && i < n; i++)
        free(r[i].digests);
    free(r);
}

static void free_order(struct snapshot *s, struct snapshot_order *o)
{
    free_reports(o->reports, s->c.nranks);
    free(o);
}

static struct snapshot_order *new_order(enum order_kind kind, struct store_entry id)
{
    struct snapshot_order *o = heap_alloc(sizeof *o);
    o->kind = kind;
    o->id = id;
    return o;
}

static void push_locked(struct snapshot *s, struct snapshot_order *o)
{
    list_append(&s->queue, &o->link);
    pthread_cond_signal(&s->wake);
}

static struct store_entry make_entry(const struct snapshot *s, int64_t step)
{
    return (struct store_entry){.attempt = s->c.attempt, .step = step};
}

// ---- the writer: a shard ----
static int plan_shard(struct snapshot *s, struct arena *a, struct shard_plan *plan, struct err *e)
{
    struct shard_slice *slices = arena_array(a, struct shard_slice, s->deal->n + 1);
    char rank[16], of[16];
    snprintf(rank, sizeof rank, "%d", s->c.rank);
    snprintf(of, sizeof of, "%d", s->c.nranks);
    struct shard_meta meta[] = {{"format", "weft"}, {"rank", rank}, {"ranks", of}};
    for (int i = 0; i < s->deal->n; i++) {
        const struct deal_slice *d = &s->deal->slices[i];
        slices[i] = (struct shard_slice){.name = s->c.parts[d->part].name,
                                         .dtype = s->c.parts[d->part].dtype,
                                         .shape = d->box.shape};
    }
    return shard_plan_make(a, slices, s->deal->n, meta, 3, plan, e);
}

static int write_slices(struct snapshot *s, struct stream *to, const struct shard_plan *plan,
                        struct shard_report *r, struct err *e)
{
    const char *from = s->staging;
    int rc = shard_write_head(to, plan, &r->head_digest, e);
    for (int i = 0; i < plan->n && !rc; i++) {
        if (atomic_load(&s->cancel))
            return err_set(e, ERR_ABORTED, "the save was aborted before the shard was whole");
        rc = shard_write_slice(to, plan, i, from, &r->digests[i], e);
        from += plan->slices[i].bytes;
    }
    return rc;
}

static int write_file(struct snapshot *s, int dir, struct arena *a, struct shard_report *r,
                      struct err *e)
{
    char name[64];
    struct shard_plan plan;
    struct stream to = {0};
    manifest_file_name(s->c.rank, s->c.nranks, name);
    int rc = plan_shard(s, a, &plan, e);
    if (rc)
        return rc;
    rc = stream_create(&to, dir, name, e);
    if (!rc) {
        rc = write_slices(s, &to, &plan, r, e);
        if (!rc)
            rc = stream_sync(&to, e);
        int closed = stream_close(&to, rc ? NULL : e);
        if (!rc)
            rc = closed;
        if (rc)
            unlinkat(dir, name, 0); // gives the space back at once
    }
    r->bytes = plan.bytes;
    r->head_bytes = plan.head.len;
    shard_plan_clear(&plan);
    return rc;
}

// Makes the job's checkpoint directory again if somebody removed it.
static int restore_directory(struct snapshot *s, int64_t attempt, struct err *e)
{
    bool removed = false;
    if (!s->c.owner.job)
        return 0;
    int rc =
        store_make_again(s->c.store, s->c.root, &s->c.owner, attempt, s->c.attempt_id, &removed, e);
    if (!rc && removed) {
        s->removed = true;
        s->bare = s->c.rank == 0 && s->c.ops.furnish;
        if (s->c.rank == 0)
            log_warn("ckpt", "somebody removed %s and its checkpoints: it is made again",
                     s->c.store->path);
    }
    if (!rc && s->bare && !(rc = s->c.ops.furnish(s->c.ops.arg, e)))
        s->bare = false;
    return rc;
}

static int write_shard(struct snapshot *s, struct store_entry id, struct arena *a,
                       struct shard_report *r, struct err *e)
{
    int dir = -1;
    if (!snapshot_can_stage(s))
        return err_set(e, ERR_NOMEM, "no memory to stage %" PRIu64 " bytes", s->deal->bytes);
    int rc = restore_directory(s, id.attempt, e);
    if (!rc && s->c.rank == 0)
        store_sweep(s->c.store, id.attempt, id.step);
    if (!rc)
        rc = store_begin(s->c.store, id.attempt, id.step, &dir, e);
    if (!rc)
        rc = write_file(s, dir, a, r, e);
    if (!rc)
        rc = store_sync_shard(s->c.store, dir, e);
    system_close(&dir);
    return rc;
}

static void carry_out_write(struct snapshot *s, const struct snapshot_order *o)
{
    struct arena a = {0};
    struct err e = {0};
    struct shard_report r = {
        .rank = s->c.rank, .step = o->id.step, .tries = o->tries, .n = s->deal->n};
    if (s->answered_step == o->id.step) // that answer was about an older try
        s->answered_step = -1;
    r.digests = arena_array(&a, struct hash128, r.n + 1);
    r.code = write_shard(s, o->id, &a, &r, &e);
    if (r.code)
        snprintf(r.text, sizeof r.text, "%s", e.text);
    r.removed = s->removed;
    r.evaluated = o->at.evaluated;
    r.eval_loss = o->at.eval_loss;
    pthread_mutex_lock(&s->lock);
    s->staged = false;
    bool wanted = s->open_step == o->id.step && s->tries == o->tries; // not if aborted meanwhile
    pthread_mutex_unlock(&s->lock);
    if (wanted) {
        s->c.ops.report(s->c.ops.arg, &r);
        s->removed = false;
    }
    arena_clear(&a);
}

// ---- the writer: rank 0's orders ----
static int commit_checkpoint(struct snapshot *s, const struct snapshot_order *o, struct err *e)
{
    struct arena a = {0};
    struct manifest m = *s->c.base;
    m.attempt = o->id.attempt;
    m.step = o->id.step;
    m.samples = o->at.samples;
    m.updates = o->at.updates;
    m.evaluated = o->at.evaluated && isfinite(o->at.eval_loss);
    m.eval_loss = m.evaluated ? o->at.eval_loss : 0;
    int rc = manifest_fill(&m, &a, s->c.parts, s->c.specs, s->c.nparts, s->c.deal, o->reports, e);
    if (!rc)
        rc = store_commit(s->c.store, &m, e);
    arena_clear(&a);
    return rc;
}

static void carry_out_commit(struct snapshot *s, const struct snapshot_order *o)
{
    struct err e = {0};
    if (s->answered_step != o->id.step) {
        s->answered_code = commit_checkpoint(s, o, &e);
        s->answered_step = o->id.step;
        snprintf(s->answered_text, sizeof s->answered_text, "%s", e.text);
    }
    s->c.ops.commit_done(s->c.ops.arg, o->id.step, s->answered_code, s->answered_text);
}

static void carry_out_remove(struct snapshot *s, const struct snapshot_order *o)
{
    // A later sweep takes what cannot be removed now.
    (void)store_abort(s->c.store, o->id.attempt, o->id.step, NULL);
}

static void carry_out_delete(struct snapshot *s, const struct snapshot_order *o)
{
    struct err e = {0};
    int rc = store_delete(s->c.store, o->id.attempt, o->id.step, &e);
    if (rc)
        log_warn("ckpt", "cannot delete the old checkpoint of step %" PRId64 ": %s", o->id.step,
                 e.text);
    s->c.ops.deleted(s->c.ops.arg, o->id, rc);
}

static void *run_writer(void *arg)
{
    static void (*const carry_out[ORDER_KINDS])(struct snapshot *,
                                                const struct snapshot_order *) = {
        [ORDER_WRITE] = carry_out_write,
        [ORDER_COMMIT] = carry_out_commit,
        [ORDER_REMOVE] = carry_out_remove,
        [ORDER_DELETE] = carry_out_delete,
    };
    struct snapshot *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (list_empty(&s->queue) && !s->quit)
            pthread_cond_wait(&s->wake, &s->lock);
        if (s->quit)
            break;
        struct snapshot_order *o = list_entry(s->queue.next, struct snapshot_order, link);
        list_remove(&o->link);
        s->running = true;
        pthread_mutex_unlock(&s->lock);
        carry_out[o->kind](s, o);
        free_order(s, o);
        pthread_mutex_lock(&s->lock);
        s->running = false;
        pthread_cond_broadcast(&s->settled);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// ---- life ----
static void take_staging(struct snapshot *s)
{
    uint64_t bytes = s->deal->bytes;
    s->staging = s->c.staging;
    if (s->staging || !bytes)
        return;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return;
    madvise(p, bytes, MADV_HUGEPAGE);
    s->staging = p;
    s->own_staging = true;
}

// The writer takes no signals: those belong to other threads.
static int start_writer(struct snapshot *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, run_writer, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static void free_snapshot(struct snapshot *s)
{
    list_for_each (it, &s->queue) {
        list_remove(it);
        free_order(s, list_entry(it, struct snapshot_order, link));
    }
    if (s->own_staging)
        munmap(s->staging, s->deal->bytes);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->settled);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int snapshot_new(struct snapshot **out, const struct snapshot_config *c, struct err *e)
{
    PRE(c->rank >= 0 && c->rank < c->nranks && c->nranks == c->deal->nranks);
    PRE(c->rank != 0 || (c->base && c->specs));
    struct snapshot *s = heap_alloc(sizeof *s);
    s->c = *c;
    s->deal = &c->deal->rank[c->rank];
    s->open_step = s->begun_step = s->answered_step = s->held_step = -1;
    list_init(&s->queue);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    clock_cond_init(&s->settled);
    take_staging(s);
    if (start_writer(s)) {
        free_snapshot(s);
        *out = NULL;
        return err_set(e, ERR_INTERNAL, "cannot start the checkpoint writer");
    }
    *out = s;
    return 0;
}

void snapshot_free(struct snapshot *s)
{
    if (!s)
        return;
    atomic_store(&s->cancel, true);
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free_snapshot(s);
}

// ---- the training thread ----
bool snapshot_can_stage(const struct snapshot *s)
{
    return s->staging || !s->deal->bytes;
}

static bool open_locked(const struct snapshot *s)
{
    return s->open_step >= 0 || s->staged;
}

// Locks a snapshot that is only read: the lock is all that changes, so casting the const away is fine.
static struct snapshot *lock_snapshot(const struct snapshot *s)
{
    struct snapshot *m = (struct snapshot *)(uintptr_t)s;
    pthread_mutex_lock(&m->lock);
    return m;
}

bool snapshot_open(const struct snapshot *s)
{
    struct snapshot *m = lock_snapshot(s);
    bool open = open_locked(m);
    pthread_mutex_unlock(&m->lock);
    return open;
}

static int copy_to_staging(struct snapshot *s, struct err *e)
{
    char *to = s->staging;
    for (int i = 0; i < s->deal->n; i++) {
        const struct deal_slice *d = &s->deal->slices[i];
        int rc = s->c.ops.copy(s->c.ops.arg, d->part, d->at, to, d->bytes, e);
        if (rc) {
            err_wrap(e, "cannot stage tensor '%s'", s->c.parts[d->part].name);
            return rc;
        }
        to += d->bytes;
    }
    return 0;
}

static void push_write(struct snapshot *s, int64_t step)
{
    struct snapshot_order *o = new_order(ORDER_WRITE, make_entry(s, step));
    o->tries = s->tries;
    o->at = s->at;
    push_locked(s, o);
}

int snapshot_begin(struct snapshot *s, const struct save_point *at, struct err *e)
{
    int64_t step = at->step;
    PRE(step >= 0 && !snapshot_open(s));
    // Without memory nothing is copied, and the write order reports a failed shard.
    int rc = snapshot_can_stage(s) ? copy_to_staging(s, e) : 0;
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->cancel, false);
    s->tries = step == s->begun_step ? s->tries + 1 : 0;
    s->again = false;
    s->open_step = s->begun_step = step;
    s->at = *at;
    s->staged = true;
    if (s->c.later)
        s->held_step = step;
    else
        push_write(s, step);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

// Hands the staged save to the writer, unless it was aborted meanwhile: its directory may have been
// removed.
void snapshot_staged(struct snapshot *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->held_step >= 0 && s->held_step == s->open_step) {
        push_write(s, s->held_step);
    } else if (s->held_step >= 0) {
        s->staged = false;
        pthread_cond_broadcast(&s->settled);
    }
    s->held_step = -1;
    pthread_mutex_unlock(&s->lock);
}

static struct shard_report *copy_reports(const struct shard_report *from, int n)
{
    struct shard_report *r = heap_alloc(sizeof *r * (size_t)n);
    for (int i = 0; i < n; i++) {
        r[i] = from[i];
        r[i].digests = heap_alloc(sizeof *r[i].digests * (size_t)(from[i].n + 1));
        if (from[i].n)
            memcpy(r[i].digests, from[i].digests, sizeof *r[i].digests * (size_t)from[i].n);
    }
    return r;
}

void snapshot_order_commit(struct snapshot *s, int64_t step, const struct shard_report *reports)
{
    PRE(s->c.rank == 0);
    struct snapshot_order *o = new_order(ORDER_COMMIT, make_entry(s, step));
    o->reports = copy_reports(reports, s->c.nranks);
    pthread_mutex_lock(&s->lock);
    o->at = s->at;
    push_locked(s, o);
    pthread_mutex_unlock(&s->lock);
}

void snapshot_order_delete(struct snapshot *s, struct store_entry id)
{
    PRE(s->c.rank == 0);
    pthread_mutex_lock(&s->lock);
    push_locked(s, new_order(ORDER_DELETE, id));
    pthread_mutex_unlock(&s->lock);
}

static bool close_save(struct snapshot *s, int64_t step, bool ok)
{
    bool mine = step >= 0 && s->open_step == step;
    if (mine) {
        s->open_step = -1;
        s->last_ok = ok;
        pthread_cond_broadcast(&s->settled);
    }
    return mine;
}

void snapshot_committed(struct snapshot *s, int64_t step)
{
    pthread_mutex_lock(&s->lock);
    bool mine = close_save(s, step, true);
    pthread_mutex_unlock(&s->lock);
    if (mine && s->c.rank == 0)
        log_info("ckpt", "checkpoint of step %" PRId64 " committed", step);
}

static void abort_save(struct snapshot *s, int64_t step, int tries, bool again, const char *why)
{
    pthread_mutex_lock(&s->lock);
    bool mine = (tries < 0 || tries == s->tries) && close_save(s, step, false);
    if (mine) {
        s->again = again;
        snprintf(s->last_why, sizeof s->last_why, "%s", why);
        atomic_store(&s->cancel, true);
        if (s->c.rank == 0)
            push_locked(s, new_order(ORDER_REMOVE, make_entry(s, step)));
    }
    pthread_mutex_unlock(&s->lock);
    if (mine && s->c.rank == 0) // one line for a checkpoint, not one for each rank
        log_warn("ckpt", "checkpoint of step %" PRId64 " aborted%s: %s (in %s)", step,
                 again ? ", to be tried again" : "", why, s->c.store->path);
}

void snapshot_aborted(struct snapshot *s, int64_t step, const char *why)
{
    abort_save(s, step, -1, false, why);
}

void snapshot_try_aborted(struct snapshot *s, int64_t step, int tries, bool again, const char *why)
{
    abort_save(s, step, tries, again, why);
}

bool snapshot_again(const struct snapshot *s)
{
    struct snapshot *m = lock_snapshot(s);
    bool again = m->again;
    pthread_mutex_unlock(&m->lock);
    return again;
}

static bool idle_locked(const struct snapshot *s)
{
    return !open_locked(s) && !s->running && list_empty(&s->queue);
}

static bool closed_locked(const struct snapshot *s)
{
    return !open_locked(s);
}

static int wait_until(struct snapshot *s, bool (*done)(const struct snapshot *), int64_t timeout_ns,
                      bool *last_ok, struct err *e)
{
    int64_t until = clock_mono_ns() + timeout_ns;
    int rc = 0;
    bool over = false;
    pthread_mutex_lock(&s->lock);
    while (!done(s) && !over)
        over = timeout_ns ? !clock_cond_wait(&s->settled, &s->lock, until)
                          : pthread_cond_wait(&s->settled, &s->lock) != 0;
    if (!done(s))
        rc = err_set(e, ERR_TIMEOUT,
                     "the checkpoint of step %" PRId64 " was neither committed nor aborted in time",
                     s->open_step);
    if (last_ok)
        *last_ok = s->last_ok;
    if (!rc && last_ok && !s->last_ok)
        err_set(e, ERR_ABORTED, "%s (in %s)", s->last_why, s->c.store->path);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int snapshot_wait(struct snapshot *s, int64_t timeout_ns, bool *last_ok, struct err *e)
{
    return wait_until(s, closed_locked, timeout_ns, last_ok, e);
}

int snapshot_drain(struct snapshot *s, int64_t timeout_ns, bool *last_ok, struct err *e)
{
    return wait_until(s, idle_locked, timeout_ns, last_ok, e);
}
