// SPDX-License-Identifier: Apache-2.0
// What `weft run` left of its job; see run_left.h.
#include "coordinator/cli/run_left.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/folder.h"
#include "common/ckpt/load.h"
#include "common/ckpt/store.h"
#include "common/plan/schema_list.h"

bool left_job(const struct record *r, const char *base_dir, struct arena *a, struct job *out)
{
    struct job_errors errs = {0};
    char *text = arena_array(a, char, JOB_MAX_BYTES);
    return !folder_read(r->dir, "resolved", text, JOB_MAX_BYTES, NULL) &&
           !job_parse(a, &weft_schema, NULL, base_dir, text, strlen(text), NULL, 0, out, &errs);
}

// ---- checkpoints ----

struct damaged {  // the newest checkpoint that was looked at and is not whole
    int64_t step; // 0: none
    char why[1000];
};

static void note_damaged(void *arg, struct store_entry which, const struct err *e)
{
    struct damaged *d = arg;
    if (d->step)
        return;
    d->step = which.step;
    snprintf(d->why, sizeof d->why, "%s", e->text);
}

int left_step(const struct record *r, int64_t known, int64_t *step, struct err *e)
{
    struct store s = {.fd = -1};
    struct load l = {0};
    int rc = *r->store ? store_open(&s, NULL, r->store, e) : ERR_IO;
    *step = rc == ERR_NOTFOUND ? -1 : known;
    if (rc)
        return 0;
    rc = load_open_newest_good(&l, &s, NULL, NULL, e);
    *step = rc ? -1 : l.manifest.step;
    load_close(&l);
    store_close(&s);
    return rc == ERR_NOTFOUND ? 0 : rc;
}

// Whether the job that made the checkpoint named its data otherwise.
static bool names_other_data(const struct manifest *m, const struct job *now, struct arena *a)
{
    struct job before;
    struct job_errors errs = {0};
    return !job_parse(a, &weft_schema, NULL, NULL, m->resolved, strlen(m->resolved), NULL, 0,
                      &before, &errs) &&
           job_names_other_data(&before, now);
}

bool left_data(const struct record *r, const struct job *now, struct left_data *out)
{
    struct store s = {.fd = -1};
    struct arena a = {0};
    struct load l = {0};
    struct store_entry *all;
    int n = 0;
    bool known = *r->store && !store_open(&s, NULL, r->store, NULL) &&
                 !store_scan(&s, &a, &all, &n, NULL) && n &&
                 !load_open(&l, &s, all->attempt, all->step, NULL);
    if (known) {
        out->data = l.manifest.data;
        out->step = l.manifest.step;
        out->named_otherwise = names_other_data(&l.manifest, now, &a);
    }
    load_close(&l);
    store_close(&s);
    arena_clear(&a);
    return known;
}

int left_find_step(const struct record *r, int64_t step, struct err *e)
{
    struct store s = {.fd = -1};
    struct store_entry id;
    if (!*r->store)
        return err_set(e, ERR_NOTFOUND, "there is no checkpoint of step %lld", (long long)step);
    int rc = store_open(&s, NULL, r->store, e);
    rc = rc ? rc : store_find_step(&s, step, &id, e);
    store_close(&s);
    return rc;
}

int left_check_result(const struct record *r, const struct job *job, int64_t *step, struct err *e)
{
    struct store s = {.fd = -1};
    struct load l = {0};
    struct damaged newest = {0};
    int64_t steps = job->train.steps;
    *step = steps;
    if (!*r->store)
        return 0;
    int rc = store_open(&s, NULL, r->store, e);
    rc = rc ? rc : load_open_newest_good(&l, &s, note_damaged, &newest, e);
    bool opened = s.fd >= 0;
    *step = rc ? 0 : l.manifest.step;
    load_close(&l);
    store_close(&s);
    if (*step >= steps)
        return 0;
    if (newest.step >= steps)
        return err_set(e, ERR_DATA, "%s was finished, and its result is damaged: %s", job->name,
                       newest.why);
    if (opened && rc != ERR_IO)
        err_set(e, ERR_NOTFOUND, "it holds no checkpoint of step %lld", (long long)steps);
    return err_wrap(e, "%s was finished, and its result is gone", job->name);
}

// ---- nothing ----

// A folder where no checkpoint and no row of metrics was ever written, as far as it shows.
static bool is_bare_folder(const char *path, struct arena *a)
{
    struct store s = {.fd = -1};
    struct store_entry *all;
    struct err e = {0};
    struct stat st = {0};
    const char **unused;
    int n = 0, nunused = 0;
    bool bare = !store_open(&s, NULL, path, &e) && !store_scan(&s, a, &all, &n, &e) && n == 0 &&
                !store_list_unused(&s, a, &unused, &nunused, &e) && nunused == 0;
    store_close(&s);
    return bare && (stat(arena_printf(a, "%s/metrics.jsonl", path), &st) || st.st_size == 0);
}

bool left_untrained(const struct record *r, const struct job *job)
{
    struct arena a = {0};
    if (*r->step)
        return false;
    if (!*r->job)
        return true;
    if (!*r->store)
        return *r->state; // without one the last run was killed: nobody knows how far it came
    bool bare = job->metrics.jsonl && is_bare_folder(r->store, &a);
    arena_clear(&a);
    return bare;
}
