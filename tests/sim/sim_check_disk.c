// SPDX-License-Identifier: Apache-2.0
// The invariants of the storage: one commit a (job, step, attempt), no stale one, nothing half there,
// nothing acknowledged lost, nothing deleted that retention must keep. See sim_check.h.
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/sim/sim_check_in.h"
#include "tests/support/digest.h"

// ---- whole ----
static int ranks_of(const struct disk_node *dir)
{
    int n = 0;
    for (int i = 0; i < dir->now.n; i++) {
        int rank, of;
        if (sscanf(dir->now.v[i].name, "shard-%d-of-%d.", &rank, &of) == 2)
            n = of;
    }
    return n;
}

static bool sealed(const struct disk_node *dir)
{
    int64_t text_len, commit_len;
    const char *text = disk_text(dir, "MANIFEST.json", &text_len);
    const char *commit = disk_text(dir, "COMMIT", &commit_len);
    return text && commit &&
           !manifest_check_seal(text, (size_t)text_len, commit, (size_t)commit_len, NULL);
}

static bool whole(const struct disk_node *dir, const char *job, int64_t step)
{
    int n = dir ? ranks_of(dir) : 0;
    if (!n || !sealed(dir))
        return false;
    for (int r = 0; r < n; r++) {
        char name[64], want[200];
        int64_t len, expect = shard_text(job, step, r, want);
        manifest_file_name(r, n, name);
        const char *is = disk_text(dir, name, &len);
        if (!is || len != expect || memcmp(is, want, (size_t)len) != 0)
            return false;
    }
    return true;
}

static uint64_t digest(const struct disk_node *dir)
{
    uint64_t sum = 0; // the order of entries means nothing
    for (int i = 0; i < dir->now.n; i++) {
        const struct disk_node *f = dir->now.v[i].node;
        struct hash128 h = digest_bytes(f->data ? f->data : "", (size_t)f->len);
        sum += h.lo ^ hash_fnv1a32(dir->now.v[i].name);
    }
    return sum;
}

bool check_whole(const char *path, const char *job, struct store_entry id)
{
    char name[64];
    store_entry_name(id.attempt, id.step, name);
    return whole(disk_entry(disk_find(disk_mounted, path), name), job, id.step);
}

// ---- the fence ----
void check_fenced(struct world *w, const char *job, uint64_t attempt, const char *attempt_id,
                  const char *path)
{
    struct seen_job *j = seen_job(w, job);
    snprintf(j->path, sizeof j->path, "%s", path);
    for (const struct seen_fence *f = j->fences; f; f = f->next)
        if (f->attempt == attempt && strcmp(f->attempt_id, attempt_id) != 0)
            sim_fail(&w->sim, "attempt %d of job %.8s has two ids", (int)attempt, job);
    struct seen_fence *f = arena_new(&w->sim.arena, struct seen_fence);
    f->attempt = attempt;
    snprintf(f->attempt_id, sizeof f->attempt_id, "%s", attempt_id);
    f->next = j->fences;
    j->fences = f;
    j->fenced = attempt > j->fenced ? attempt : j->fenced;
    world_moment(w, MOMENT_FENCED, NULL);
}

// ---- names ----
static struct seen_job *seen_job_of(struct world *w, const struct disk_node *dir)
{
    struct seen_job *j = w->check->jobs;
    while (j && (!*j->path || disk_find(&w->disk, j->path) != dir))
        j = j->next;
    return j;
}

static void named(struct world *w, struct seen_job *j, const struct disk_node *dir,
                  const char *from, struct store_entry id)
{
    struct seen_ckpt *k = seen_ckpt(w, j->id, id.attempt, id.step);
    struct disk_node *what = disk_entry(dir, from);
    if (k->named)
        sim_fail(&w->sim, "step %d.a%d of job %.8s is committed twice", (int)id.step,
                 (int)id.attempt, j->id);
    if ((int64_t)j->fenced > id.attempt)
        sim_fail(&w->sim, "step %d.a%d of job %.8s commits after attempt %d was fenced",
                 (int)id.step, (int)id.attempt, j->id, (int)j->fenced);
    if (!whole(what, j->id, id.step))
        sim_fail(&w->sim, "step %d.a%d of job %.8s gets its name and is not whole", (int)id.step,
                 (int)id.attempt, j->id);
    k->named = true;
    k->digest = digest(what);
}

// I5: so many newer good ones stay as the job keeps, and, where it keeps the best, one that is as good.
static void trashed(struct world *w, struct seen_job *j, const struct disk_node *dir,
                    struct store_entry id)
{
    struct seen_ckpt *k = seen_ckpt(w, j->id, id.attempt, id.step);
    int newer = 0;
    bool beaten = !j->kind->best;
    for (int i = 0; i < dir->now.n; i++) {
        struct store_entry o;
        if (!store_entry_parse(dir->now.v[i].name, &o) || !store_entry_compare(o, id) ||
            !whole(dir->now.v[i].node, j->id, o.step))
            continue;
        newer += store_entry_compare(o, id) > 0;
        beaten = beaten || sim_eval_loss(o.step) <= sim_eval_loss(id.step);
    }
    if (newer < j->kind->keep)
        sim_fail(&w->sim, "step %d.a%d of job %.8s is deleted, one of the newest %d", (int)id.step,
                 (int)id.attempt, j->id, j->kind->keep);
    if (!beaten)
        sim_fail(&w->sim, "step %d.a%d of job %.8s is deleted, which has the least loss",
                 (int)id.step, (int)id.attempt, j->id);
    if (!k->deleting)
        sim_fail(&w->sim, "step %d.a%d of job %.8s is deleted and that was not durably decided",
                 (int)id.step, (int)id.attempt, j->id);
    k->named = false;
}

void check_renamed(void *world, struct disk_node *dir, const char *from, const char *to)
{
    struct world *w = world;
    struct store_entry id;
    struct seen_job *j = seen_job_of(w, dir);
    if (!j)
        return;
    if (store_entry_parse(to, &id))
        named(w, j, dir, from, id);
    else if (store_entry_parse(from, &id) && !strncmp(to, ".trash-", 7))
        trashed(w, j, dir, id);
    else if (store_entry_parse(from, &id)) // taken back after a failed fsync
        seen_ckpt(w, j->id, id.attempt, id.step)->named = false;
}

// ---- power loss ----
static void check_names(struct world *w, struct seen_job *j, const struct disk_node *dir)
{
    for (struct seen_ckpt *k = j->ckpts; k; k = k->next)
        k->named = false;
    for (int i = 0; dir && i < dir->now.n; i++) {
        struct store_entry id;
        if (!store_entry_parse(dir->now.v[i].name, &id))
            continue;
        struct seen_ckpt *k = seen_ckpt(w, j->id, id.attempt, id.step);
        if (!whole(dir->now.v[i].node, j->id, id.step))
            sim_fail(&w->sim, "step %d.a%d of job %.8s has its name and is not whole", (int)id.step,
                     (int)id.attempt, j->id);
        else if (digest(dir->now.v[i].node) != k->digest)
            sim_fail(&w->sim, "committed files of step %d.a%d of job %.8s have changed",
                     (int)id.step, (int)id.attempt, j->id);
        k->named = true;
    }
}

void check_after_power_loss(struct world *w)
{
    for (struct seen_job *j = w->check->jobs; j; j = j->next) {
        check_names(w, j, *j->path ? disk_find(&w->disk, j->path) : NULL);
        for (const struct seen_ckpt *k = j->ckpts; k; k = k->next)
            if (k->acknowledged && !k->deleting && !k->named)
                sim_fail(&w->sim, "step %d.a%d of job %.8s was acknowledged and is lost",
                         (int)k->id.step, (int)k->id.attempt, j->id);
    }
}
