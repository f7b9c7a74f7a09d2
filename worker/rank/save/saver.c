// SPDX-License-Identifier: Apache-2.0
// Checkpoints as the step loop sees them. See saver.h.
#include "worker/rank/save/saver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/leader.h"
#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/ckpt/source.h"
#include "common/job/job.h"

// The writer's answer has no deadline of its own (common/ckpt/README.md). This one ends a rank
// whose leader lives but has forgotten it.
#define ANSWER_NS (LEADER_STILL_S * CLOCK_S)
#define ABORT_NS  (30 * CLOCK_S) // until every rank has heard that the last save was aborted
enum { ABORT_PAUSE_MS = 300 };   // the same, where the barrier cannot be waited for
// Between two tries of the last save: the first pause, the longest, and how often to look meanwhile.
enum { AGAIN_FIRST_MS = 1000, AGAIN_MOST_MS = 30000, AGAIN_LOOK_MS = 50 };

struct saver {
    struct saver_options o;
    struct arena arena;
    struct store store;
    struct deal deal;
    struct manifest base;
    struct device_info device;
    struct snapshot *snapshot;
    const char *algorithms;    // for the manifest: whether ops are fused, and the agreed ones
    void *staging;             // the backend's; null: the snapshot's own
    bool copying;              // copies were queued and have not been seen to be complete
    _Atomic int64_t opened_at; // step of the newest save begun here, −1
};

// ---- snapshot → link ---------------------------------------------------------------------------

static int copy_part(void *arg, int part, uint64_t at, void *to, uint64_t bytes, struct err *e)
{
    struct saver *s = arg;
    return state_copy(s->o.state, part, at, to, bytes, e);
}

static void report_shard(void *arg, const struct shard_report *r)
{
    struct saver *s = arg;
    link_shard_done(s->o.link, r);
}

static void report_commit(void *arg, int64_t step, int code, const char *text)
{
    struct saver *s = arg;
    link_commit_done(s->o.link, step, code, text);
}

static void report_deletion(void *arg, struct store_entry id, int code)
{
    struct saver *s = arg;
    link_deleted(s->o.link, id, code);
}

// ---- link → snapshot ---------------------------------------------------------------------------

static void on_event(void *ctx, const struct link_event *ev)
{
    struct saver *s = ctx;
    switch (ev->kind) {
    case LINK_COMMIT:
        snapshot_order_commit(s->snapshot, ev->step, ev->reports);
        break;
    case LINK_COMMITTED:
        snapshot_committed(s->snapshot, ev->step);
        break;
    case LINK_ABORTED:
        snapshot_try_aborted(s->snapshot, ev->step, ev->tries, ev->again, ev->text);
        break;
    case LINK_DELETE:
        snapshot_order_delete(s->snapshot, ev->id);
        break;
    }
}

// ---- opening -----------------------------------------------------------------------------------

static void fill_mesh(struct saver *s)
{
    const struct mesh *m = s->o.mesh;
    s->base.naxes = m->n;
    s->base.mesh = arena_array(&s->arena, struct manifest_axis, m->n);
    for (int i = 0; i < m->n; i++)
        s->base.mesh[i] = (struct manifest_axis){m->axis[i].name, m->axis[i].size};
}

static void fill_manifest(struct saver *s)
{
    const struct assignment *a = s->o.assignment;
    const char *tokenizer = s->o.tokenizer ? tokenizer_identity(s->o.tokenizer) : "";
    struct store_entry parent = {-1, -1};
    if (a->restore)
        store_entry_parse(a->restore, &parent);
    s->base = (struct manifest){.cluster = a->cluster_id,
                                .job = a->job_id,
                                .name = a->job->name,
                                .job_hash = a->job_hash,
                                .run = a->run_id,
                                .attempt = (int64_t)a->attempt,
                                .seed = (uint64_t)a->job->train.seed,
                                .optimizer = job_optimizer_name(a->job->optimizer.kind),
                                .parent_attempt = parent.attempt,
                                .parent_step = parent.step,
                                .resolved = a->job_text,
                                .data = s->o.data,
                                .tokenizer = tokenizer,
                                .source = s->o.source,
                                .nchanges = s->o.nchanges,
                                .changes = s->o.changes,
                                .numerics = {.backend = s->o.backend->name,
                                             .device = s->device.model,
                                             .isa = s->device.isa,
                                             .libraries = s->device.libraries,
                                             .algorithms = s->algorithms,
                                             .collectives = s->o.collectives,
                                             .threads = s->device.threads,
                                             .deterministic = s->device.deterministic}};
    fill_mesh(s);
}

static void join_algorithms(struct saver *s)
{
    bool fused = s->o.assignment->job->train.fuse;
    s->algorithms = arena_printf(&s->arena, "%s%s%s", fused ? "fused" : "",
                                 fused && *s->o.algorithms ? "\n" : "", s->o.algorithms);
}

// Memory that the device copies to at full speed. Without it a save delays the computation, and is
// otherwise the same.
static void take_staging(struct saver *s)
{
    uint64_t bytes = snapshot_staging_bytes(&s->deal, s->o.assignment->rank);
    struct err e = {0};
    if (!s->device.shares_host && bytes &&
        s->o.backend->memory.host_alloc(s->o.device, bytes, &s->staging, &e)) {
        s->staging = NULL;
        log_warn("ckpt",
                 "checkpoints are copied through memory that is not pinned, which is slower: %s",
                 e.text);
    }
}

// The tokenizer's files lie beside the checkpoints, written once, by rank 0: who generates or exports
// finds them there. Another that is there already belongs to what was trained so far. Nothing is written
// through a link, which would lead out of the job's folder.
static int keep_tokenizer(struct saver *s, struct err *e)
{
    const struct tokenizer *t = s->o.tokenizer;
    const char *name = s->o.assignment->job->data.tokenizer;
    char kept[TOKENIZER_IDENTITY_LEN];
    struct buf path = {0};
    if (strcmp(tokenizer_identity(t), "ids") == 0) // of a vocabulary that nobody named
        return 0;
    buf_printf(&path, "%s/" STORE_TOKENIZER, s->store.path);
    int rc = tokenizer_identify(NULL, path.data, kept, e);
    if (!rc && strcmp(kept, tokenizer_identity(t)) != 0)
        rc = err_set(e, ERR_INVALID,
                     "%s: the tokenizer of the checkpoints is %s, and data.tokenizer, %s, is %s",
                     path.data, kept, name, tokenizer_identity(t));
    if (rc == ERR_NOTFOUND && !tokenizer_is_file(name)) {
        rc = 0; // bytes
    } else if (rc == ERR_NOTFOUND) {
        int dir = -1;
        rc = folder_make(path.data, e);
        rc = rc ? rc : folder_open(s->store.path, STORE_TOKENIZER, false, &dir, e);
        if (!rc && (rc = tokenizer_save(t, dir, ".", e)))
            err_wrap(e, "%s", path.data);
        if (!rc)
            rc = folder_sync(s->store.path, e);
        system_close(&dir);
    }
    buf_clear(&path);
    return rc;
}

// What lay beside the checkpoints in a directory that somebody removed.
static int furnish_store(void *arg, struct err *e)
{
    struct saver *s = arg;
    struct manifest_source source = s->o.source;
    struct arena a = {0};
    int rc = s->o.tokenizer ? keep_tokenizer(s, e) : 0;
    if (!rc && source.folder)
        rc = source_pin(&s->store, &a, &source, e);
    arena_clear(&a);
    return rc;
}

static int open_snapshot(struct saver *s, struct err *e)
{
    const struct assignment *a = s->o.assignment;
    const struct state *state = s->o.state;
    struct snapshot_config c = {
        .store = &s->store,
        .owner = {a->cluster_id, a->job_id, a->job->name, a->job_text, a->threads},
        .root = a->checkpoint_root,
        .attempt_id = a->attempt_id,
        .rank = a->rank,
        .nranks = a->ranks,
        .attempt = (int64_t)a->attempt,
        .parts = state->parts,
        .nparts = state->nparts,
        .specs = state->specs,
        .deal = &s->deal,
        .base = &s->base,
        .staging = s->staging,
        .later = !s->device.shares_host,
        .ops = {.arg = s,
                .copy = copy_part,
                .report = report_shard,
                .commit_done = report_commit,
                .deleted = report_deletion,
                .furnish = furnish_store}};
    return snapshot_new(&s->snapshot, &c, e);
}

static int open_parts(struct saver *s, struct err *e)
{
    const struct assignment *a = s->o.assignment;
    const struct state *state = s->o.state;
    int rc = deal_make(&s->arena, state->parts, state->nparts, a->ranks, &s->deal, e);
    if (!rc)
        rc = store_open(&s->store, a->checkpoint_root, a->store, e);
    if (!rc && s->o.tokenizer && a->rank == 0)
        rc = keep_tokenizer(s, e);
    if (rc)
        return rc;
    take_staging(s);
    return open_snapshot(s, e);
}

int saver_open(const struct saver_options *o, struct saver **out, struct err *e)
{
    struct saver *s = heap_alloc(sizeof *s);
    s->o = *o;
    o->backend->device.info(o->device, &s->device);
    s->opened_at = -1;
    join_algorithms(s);
    fill_manifest(s);
    int rc = open_parts(s, e);
    if (rc) {
        saver_close(s);
        return rc;
    }
    link_on_event(o->link, on_event, s);
    *out = s;
    return 0;
}

void saver_close(struct saver *s)
{
    if (!s)
        return;
    link_on_event(s->o.link, NULL, NULL);
    if (s->copying) // into memory that is freed below; whoever ends the rank reports an error of it
        (void)lane_sync(exec_saves(s->o.state->exec), NULL);
    snapshot_free(s->snapshot);
    if (s->staging)
        s->o.backend->memory.host_free(s->o.device, s->staging);
    store_close(&s->store);
    arena_clear(&s->arena);
    free(s);
}

// ---- saving ------------------------------------------------------------------------------------

static int hand_over_copies(struct saver *s, bool wait, struct err *e)
{
    struct lane *lane = exec_saves(s->o.state->exec);
    bool complete = false;
    if (!s->copying)
        return 0;
    int rc = wait ? lane_sync(lane, e) : 0;
    rc = rc ? rc : lane_done(lane, &complete, e);
    rc = rc ? rc : exec_check(s->o.state->exec, e);
    if (rc || !complete)
        return rc;
    s->copying = false;
    snapshot_staged(s->snapshot);
    return 0;
}

int saver_poll(struct saver *s, struct err *e)
{
    return hand_over_copies(s, false, e);
}

bool saver_busy(const struct saver *s)
{
    return snapshot_open(s->snapshot) || !snapshot_can_stage(s->snapshot);
}

int64_t saver_opened_at(const struct saver *s)
{
    return s->opened_at;
}

void saver_lost(struct saver *s, const char *why)
{
    int64_t step = atomic_load(&s->opened_at);
    if (step >= 0) // else there is nothing to abort
        snapshot_aborted(s->snapshot, step, why);
}

// If a save was aborted because the leader is lost, that loss is the error.
static int prefer_loss(struct saver *s, int rc, bool *ok, struct err *e)
{
    const char *lost = link_lost(s->o.link);
    return !rc && !*ok && lost ? err_set(e, ERR_PEER, "%s", lost) : rc;
}

// Waits for the answer only: the other ranks continue when they have it, so rank 0 does not wait for its
// deletions.
static int wait_answer(struct saver *s, bool *ok, struct err *e)
{
    int rc = hand_over_copies(s, true, e);
    return rc ? rc : prefer_loss(s, snapshot_wait(s->snapshot, ANSWER_NS, ok, e), ok, e);
}

static int wait_all(struct saver *s, bool *ok, struct err *e)
{
    int rc = hand_over_copies(s, true, e);
    return rc ? rc : prefer_loss(s, snapshot_drain(s->snapshot, ANSWER_NS, ok, e), ok, e);
}

// If the leader was lost before the save was open, saver_lost() found none to abort, so this looks
// again.
static int begin_save(struct saver *s, const struct save_point *at, struct err *e)
{
    struct exec *x = s->o.state->exec;
    s->opened_at = at->step;
    int rc = exec_saves_begin(x, e);
    if (!rc)
        rc = snapshot_begin(s->snapshot, at, e);
    if (!rc)
        rc = exec_saves_end(x, e);
    s->copying = !s->device.shares_host;
    const char *lost = link_lost(s->o.link);
    if (!rc && lost)
        saver_lost(s, lost);
    return rc;
}

int saver_begin(struct saver *s, const struct save_point *at, struct err *e)
{
    int rc = begin_save(s, at, e);
    bool ok;
    if (!rc && !s->o.assignment->job->checkpoint.async)
        rc = wait_answer(s, &ok, e);
    return rc;
}

// Waits before a save is tried again. All ranks wait equally long, so that none begins long before the
// others, and the page shows that this one lives. False: do not try again.
static bool wait_to_try_again(struct saver *s, int64_t ms)
{
    struct progress_page *page = s->o.assignment->page;
    for (int64_t waited = 0; waited < ms; waited += AGAIN_LOOK_MS) {
        if (link_lost(s->o.link) || link_stop_requested(s->o.link))
            return false;
        clock_sleep_ms(AGAIN_LOOK_MS);
    }
    if (page)
        page_alive(page);
    return true;
}

// Begins the same save again as long as the leader's patience lasts: until then the ranks hold the
// state.
static int save_patiently(struct saver *s, const struct save_point *at, bool *ok, struct err *e)
{
    int64_t wait_ms = AGAIN_FIRST_MS;
    for (;;) {
        int rc = begin_save(s, at, e);
        if (!rc)
            rc = wait_all(s, ok, e);
        if (rc || *ok || !snapshot_again(s->snapshot) || !wait_to_try_again(s, wait_ms))
            return rc;
        wait_ms = 2 * wait_ms < AGAIN_MOST_MS ? 2 * wait_ms : AGAIN_MOST_MS;
    }
}

int saver_finish(struct saver *s, const struct save_point *at, struct err *e)
{
    struct err why = {0};
    bool ok = true;
    int rc = wait_answer(s, &ok, &why);
    rc = rc ? rc : save_patiently(s, at, &ok, &why);
    if (!rc && !ok) {
        // Every rank should hear the answer before the first one ends, or that end would look like
        // the cause of the others' ends. A rank that was asked to stop cannot wait at the barrier; it
        // pauses, so that the others have time to hear.
        if (link_barrier(s->o.link, "the last save was aborted", at->step,
                         clock_mono_ns() + ABORT_NS, NULL))
            clock_sleep_ms(ABORT_PAUSE_MS);
        err_set(e, ERR_IO, "the last checkpoint, of step %lld, was aborted: %.400s",
                (long long)at->step, why.text);
        e->of_host = true; // whose storage has failed for as long as the job has patience
        return ERR_IO;
    }
    if (rc)
        *e = why;
    return rc;
}
