// SPDX-License-Identifier: Apache-2.0
// The checkpoint that a solo run goes on from; see solo_restore.h.
#include "worker/rank/lead/solo_restore.h"

#include <stdio.h>

#include "common/base/log.h"
#include "common/ckpt/load.h"
#include "common/ckpt/lost_steps.h"
#include "worker/rank/lead/saved_step.h"

struct refusals {
    struct store_entry bad[DAMAGED_MAX];
    int n;
    struct err newest; // why the newest of them is refused
};

struct store_owner solo_owner(const struct solo *s, const struct assignment *a)
{
    return (struct store_owner){a->cluster_id, a->job_id, s->job.name, a->job_text};
}

// ---- a job that is not begun anew ----

static bool is_finished(const struct solo *s)
{
    return s->had_step >= s->job.train.steps;
}

// `what` has become of the result. left_step: of the newest good checkpoint that is left; 0: none is.
static int refuse_finished(const struct solo *s, const char *what, int64_t left_step, struct err *e)
{
    char left[120] = "";
    if (left_step)
        snprintf(left, sizeof left,
                 " give more train.steps to go on from step %lld, which is left,",
                 (long long)left_step);
    return err_set(e, ERR_NOTFOUND,
                   "%s was finished, and its result is %s; put it back,%s or use --new to start "
                   "over",
                   s->job.name, what, left);
}

static int refuse_changed(const struct solo *s, const struct assignment *a, const char *dir,
                          struct err *e)
{
    return err_set(e, ERR_NOTFOUND,
                   "%s has changed and was to go on from step %lld, and its checkpoints are gone: "
                   "%.900s/%s-%.8s holds none; put the folder back, or use --new to start over",
                   s->job.name, (long long)s->had_step, dir, s->job.name, a->job_id);
}

int solo_restore_check(const struct solo *s, struct assignment *a, struct err *e)
{
    struct store_owner owner = solo_owner(s, a);
    const char *dir = job_path(&s->job, &a->arena, s->job.checkpoint.dir);
    struct store store = {.fd = -1};
    struct store_entry *all;
    char what[1200];
    int n = 0;
    bool changed = s->changes && s->had_step > 0;
    if (!is_finished(s) && !changed)
        return 0;
    int rc = store_find_beneath(&store, NULL, dir, &owner, e);
    rc = rc ? rc : store_scan(&store, &a->arena, &all, &n, e);
    store_close(&store);
    if (rc && rc != ERR_NOTFOUND)
        return rc;
    int64_t left_step = n ? all[0].step : 0;
    if (left_step >= s->job.train.steps)
        return 0;
    if (!is_finished(s))
        return left_step ? 0 : refuse_changed(s, a, dir, e);
    snprintf(what, sizeof what, "gone: %.900s/%s-%.8s holds no checkpoint of step %lld", dir,
             s->job.name, a->job_id, (long long)s->had_step);
    return refuse_finished(s, what, left_step, e);
}

// ---- the choice ----

static void note_refused(void *arg, struct store_entry which, const struct err *e)
{
    struct refusals *r = arg;
    char name[64];
    store_entry_name(which.epoch, which.step, name);
    log_warn("solo", "checkpoint %s is passed over: %s", name, e->text);
    if (!r->n)
        r->newest = *e;
    if (r->n < DAMAGED_MAX)
        r->bad[r->n++] = which;
}

static bool is_bad(const struct refusals *r, struct store_entry id)
{
    for (int i = 0; i < r->n; i++)
        if (!store_entry_compare(r->bad[i], id))
            return true;
    return false;
}

static int tell_unused(struct solo *s, struct assignment *a, struct err *e)
{
    const char **names;
    int n, rc = store_list_unused(&s->store, &a->arena, &names, &n, e);
    for (int i = 0; i < n; i++)
        log_warn("solo", "%s/%s is not used: " STORE_UNUSED_WHY, s->store.path, names[i]);
    return rc;
}

// Damaged ones stay on disk and are not counted among those to be kept.
static void take_scan(struct solo *s, struct assignment *a, const struct store_entry *all, int n,
                      const struct refusals *bad)
{
    s->scan = arena_array(&a->arena, struct store_entry, n + 1);
    for (int i = 0; i < n; i++) {
        if (!is_bad(bad, all[i]))
            s->scan[s->nscan++] = all[i];
        else
            s->had_is_damaged = s->had_is_damaged || all[i].step == s->had_step;
    }
}

int solo_restore_choose(struct solo *s, struct assignment *a, struct err *e)
{
    struct load l = {0};
    struct refusals bad = {0};
    struct store_entry *all;
    char what[1100];
    int n, rc = store_scan(&s->store, &a->arena, &all, &n, e);
    rc = rc ? rc : tell_unused(s, a, e);
    if (rc)
        return rc;
    rc = load_open_newest_good(&l, &s->store, note_refused, &bad, e);
    if (!rc) {
        a->restore = arena_strdup(&a->arena, l.name);
        a->restore_step = l.manifest.step;
        load_close(&l);
    } else if (rc != ERR_NOTFOUND) {
        return rc;
    }
    take_scan(s, a, all, n, &bad);
    if (!is_finished(s) || a->restore_step >= s->job.train.steps)
        return 0;
    snprintf(what, sizeof what, "damaged: %s", bad.newest.text);
    return refuse_finished(s, what, a->restore_step, e);
}

void solo_restore_tell(const struct solo *s, const struct assignment *a)
{
    struct lost_steps lost = {a->restore, a->restore_step, s->had_step, s->had_is_damaged};
    char text[LOST_STEPS_MAX];
    int64_t trained;
    if (a->restore_step < s->had_step) {
        lost_steps_print(&lost, text);
        log_warn("solo", "%s", text);
    } else if (!a->restore && (trained = saved_step_trained(s->dir)) > 0) {
        log_warn("solo",
                 "begins anew: the folder holds no checkpoint, and metrics.jsonl has come to step "
                 "%lld",
                 (long long)trained);
    }
}
