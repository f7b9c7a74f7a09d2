// SPDX-License-Identifier: Apache-2.0
// What a `weft run` starts or continues; see run_begin.h.
#include "coordinator/cli/run_begin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/life.h"
#include "common/base/cores.h"
#include "common/base/folder.h"
#include "common/base/plain.h"
#include "common/data/job_set.h"
#include "common/job/threads.h"
#include "common/plan/plan.h"
#include "coordinator/cli/data_files.h"
#include "coordinator/cli/request.h"
#include "coordinator/cli/resolved_job.h"
#include "coordinator/cli/run_left.h"
#include "coordinator/cli/source_look.h"

// A key that was given by -s has no line in the file.
static int report_key(struct run *r, const char *key, const char *why)
{
    int line = job_line(&r->job, key, strlen(key));
    const char *at = line ? arena_printf(&r->arena, ":%d", line) : "";
    plain_error("%s%s: %s: %s", r->args->pos[0], at, key, why);
    return CLIENT_USAGE;
}

// A job that starts reads its data here: what is not there or cannot be used is reported before
// anything is made.
static int check_data(struct run *r)
{
    struct data_fault faults[DATA_FAULTS_MAX];
    int n = data_faults_find(&r->job, &r->arena, faults);
    for (int i = 0; i < n; i++)
        (void)report_key(r, faults[i].key, faults[i].why);
    if (n && r->lead.s.a.kind != ALLOCATION_NONE)
        return faults[0].absent ? RANK_EXIT_ABSENT : RANK_EXIT_DATA; // as its ranks would end
    return n ? CLIENT_USAGE : CLIENT_OK;
}

// A job that starts is held against the checkpoint that it begins with.
static int check_source(struct run *r)
{
    struct compiled compiled;
    struct buf say = {0};
    struct err e = {0};
    if (!r->job.checkpoint.from)
        return CLIENT_OK;
    int rc = plan_compile(&r->job, NULL, &r->arena, &compiled, NULL, &e);
    rc = rc ? rc : source_look(&r->job, &compiled, &r->arena, &say, &e);
    if (!rc)
        plain_error("checkpoint.from %s", buf_str(&say));
    buf_clear(&say);
    return rc ? report_key(r, "checkpoint.from", e.text) : CLIENT_OK;
}

// The coordinator in this process has the receivers of notices that the command line names.
static int check_receivers(struct run *r)
{
    struct err e = {0};
    if (coord_daemon_check_notify(r->args->notify.v, r->args->notify.n, &e))
        return usage(r->verb, e.text);
    for (int i = 0; i < r->job.notify.n; i++) {
        const char *name = ((const char *const *)r->job.notify.items)[i];
        if (args_pair(&r->args->notify, name))
            continue;
        return report_key(
            r, "notify",
            arena_printf(&r->arena, "nobody said what %s is: give --notify %s=URL", name, name));
    }
    return CLIENT_OK;
}

// An allocation repeats its command at every start, which therefore cannot have --new.
static void print_start_over(struct run *r)
{
    const struct several *s = &r->lead.s;
    if (s->a.kind == ALLOCATION_NONE)
        snprintf(r->start_over, sizeof r->start_over,
                 "start over with --new (the old state is kept aside)");
    else
        snprintf(r->start_over, sizeof r->start_over, "move %s/%s-xxxxxxxx away to start over",
                 s->root, s->name);
}

static int load_job(struct run *r)
{
    struct err e = {0};
    int rc = resolve_job(r->args, &r->arena, &r->job);
    if (rc)
        return rc;
    if (source_name(&r->job, &r->arena, &e))
        return report_key(r, "checkpoint.from", e.text);
    job_print(&r->job, &r->resolved); // with the source's folder in the place of a job's name
    r->threads_open = !r->job.resources.threads;
    if (!realpath(r->job.base_dir, r->base)) {
        complain(r->verb, "the job file's folder is gone", r->job.base_dir, "name another file");
        return CLIENT_USAGE;
    }
    if ((rc = check_receivers(r)))
        return rc;
    if ((rc = lead_find(&r->lead, &r->job, r->base)))
        return rc;
    r->place = r->lead.s.a.kind == ALLOCATION_NONE ? r->base : r->lead.s.place;
    print_start_over(r);
    bool starts = r->args->fresh || !record_is_there(r->place, r->job.name);
    if (r->args->from_step >= 0 && starts)
        return usage(r->verb, r->args->fresh ? "--new starts over and --from-step continues"
                                             : "--from-step continues, and nothing was started");
    rc = starts ? check_data(r) : CLIENT_OK;
    return rc || !starts ? rc : check_source(r);
}

int run_report_failure(const struct run *r, const struct err *e, const char *todo, int code)
{
    complain(r->verb, e->text, r->record.dir, todo);
    return code;
}

static int new_record(struct run *r, struct err *e)
{
    request_random(r->record.request);
    job_hash(&r->job, r->record.hash);
    snprintf(r->record.base, sizeof r->record.base, "%s", r->base);
    int rc = folder_write(r->record.dir, "resolved", buf_str(&r->resolved), FOLDER_DURABLE, e);
    return rc ? rc : record_write(&r->record, e);
}

// The record is of the same training with another text: it continues with this one, unless it would
// end before the step that it has come to. A finished job continues only to more steps.
static int take_change(struct run *r, const struct job *before, struct err *e)
{
    struct buf changes = {0};
    bool done = strcmp(r->record.state, "SUCCEEDED") == 0 && r->args->from_step < 0;
    int64_t steps = r->job.train.steps;
    if (done && steps < before->train.steps)
        return err_set(e, ERR_INVALID, "train.steps: is %lld, and it has come to step %lld already",
                       (long long)steps, (long long)before->train.steps);
    job_changes(before, &r->job, &changes);
    // A finished evaluation of another set, say, is another result.
    r->changed = changes.len && (!done || steps > before->train.steps || !steps);
    if (r->changed) {
        r->record.state[0] = 0;
        r->changes = arena_strdup(&r->arena, buf_str(&changes));
    }
    buf_clear(&changes);
    return 0;
}

// A job file that names no threads continues with those it was started with here. The first start deals
// this host's cores to the devices.
static void settle_threads(struct run *r)
{
    struct arena a = {0};
    struct job before;
    int64_t *threads = &r->job.resources.threads;
    if (!r->threads_open)
        return;
    *threads = 0;
    if (r->record.there && !r->args->fresh && left_job(&r->record, r->base, &a, &before))
        threads_keep(&r->job, &before);
    arena_clear(&a);
    const char *why = "it was started with as many";
    if (!*threads) {
        int cores = cores_usable();
        int64_t devices = r->lead.s.devices ? r->lead.s.devices : r->job.resources.devices;
        *threads = threads_share(cores, devices);
        why = threads_print_why(&r->arena, "this machine", cores, devices);
    }
    snprintf(r->threads_why, sizeof r->threads_why, "%s", why);
    buf_clear(&r->resolved);
    job_print(&r->job, &r->resolved);
}

// Another training, and none of the one that was started here is lost by it.
static int start_again(struct run *r, const char *keys)
{
    struct err e = {0};
    int rc = check_data(r);
    if (rc)
        return rc;
    rc = record_aside(&r->record, &e);
    settle_threads(r);
    if (rc || new_record(r, &e))
        return run_report_failure(r, &e, "make room, or move it aside yourself", CLIENT_FAILED);
    plain_error("it has saved nothing yet: it starts again with another %s", keys);
    return CLIENT_OK;
}

// Another checkpoint.dir: the job continues there once its folder was moved there.
static int take_folder(struct run *r, const struct job *before, struct err *e)
{
    const char *dir = r->job.checkpoint.dir, *last = strrchr(r->record.store, '/');
    if (!last || strcmp(dir, before->checkpoint.dir) == 0)
        return 0;
    const char *to = arena_printf(&r->arena, "%s%s%s%s", dir[0] == '/' ? "" : r->base,
                                  dir[0] == '/' ? "" : "/", dir, last);
    if (access(to, F_OK) && !access(r->record.store, F_OK))
        return err_set(e, ERR_INVALID, "checkpoint.dir: its checkpoints are in %s: move it to %s",
                       r->record.store, to);
    snprintf(r->record.store, sizeof r->record.store, "%s", to);
    return 0;
}

static int refuse_change(const struct run *r, const struct err *e)
{
    char todo[RUN_START_OVER + 40];
    snprintf(todo, sizeof todo, "undo the change, or %s", r->start_over);
    return run_report_failure(r, e, todo, CLIENT_USAGE);
}

static int compare_record(struct run *r)
{
    struct arena a = {0};
    struct job before;
    struct buf keys = {0};
    struct err e = {0};
    int rc;
    bool known = left_job(&r->record, r->base, &a, &before);
    if (known)
        job_identity_differences(&before, &r->job, &keys);
    if (keys.len && left_untrained(&r->record, &before)) {
        rc = start_again(r, buf_str(&keys));
    } else {
        if (!known)
            err_set(&e, ERR_INVALID, "the job has changed since it was started here");
        else if (keys.len)
            err_set(&e, ERR_INVALID,
                    "this is another training than was started here, which differs in %s",
                    buf_str(&keys));
        else
            (void)(take_folder(r, &before, &e) || take_change(r, &before, &e));
        rc = e.code ? refuse_change(r, &e) : CLIENT_OK;
    }
    buf_clear(&keys);
    arena_clear(&a);
    return rc;
}

// The job's folder lies elsewhere now, and with it what the job made: unless it is finished, the
// coordinator gets to know.
static int take_move(struct run *r, const char *from)
{
    struct err e = {0};
    if (!r->changed && strcmp(r->record.state, "SUCCEEDED") == 0)
        return CLIENT_OK;
    if (record_is_copy(&r->record, r->job.name)) {
        err_set(&e, ERR_EXISTS, "%s is a copy: its job continues in %s alone", r->base, from);
        return run_report_failure(
            r, &e, arena_printf(&r->arena, "continue there, or %s", r->start_over), CLIENT_REFUSED);
    }
    r->changes = r->changed ? arena_printf(&r->arena, "%s; its folder was %s", r->changes, from)
                            : arena_printf(&r->arena, "its folder was %s", from);
    r->changed = true;
    return CLIENT_OK;
}

// Goes back to the checkpoint of a step that is there and before the job's last.
static int go_back(struct run *r)
{
    struct err e = {0};
    int64_t step = r->args->from_step;
    if (step >= r->job.train.steps)
        err_set(&e, ERR_INVALID, "train.steps: is %lld, and it is to continue from step %lld",
                (long long)r->job.train.steps, (long long)step);
    if (e.code || left_find_step(&r->record, step, &e))
        return run_report_failure(r, &e, "name the step of a checkpoint: `weft ckpt ls` lists them",
                                  CLIENT_USAGE);
    r->changed = true;
    r->record.state[0] = 0;
    return CLIENT_OK;
}

static int open_record(struct run *r)
{
    struct err e = {0};
    char hash[65];
    int rc = record_open(&r->record, r->place, r->job.name, &e);
    bool several = r->lead.s.a.kind != ALLOCATION_NONE;
    if (rc == ERR_EXISTS)
        r->lead.leads = false;
    if (rc)
        return run_report_failure(r, &e,
                                  rc == ERR_EXISTS ? "wait for it, or stop it"
                                  : rc == ERR_INVALID
                                      ? "run a copy of the job file in a folder of your own"
                                      : "make room, or make the job file's folder one that "
                                        "you may write to",
                                  rc != ERR_EXISTS ? CLIENT_FAILED
                                  : several        ? SEVERAL_AGAIN
                                                   : CLIENT_REFUSED);
    if (r->record.damaged && !r->args->fresh) {
        err_set(&e, ERR_DATA,
                "what is known of the job that was started here is damaged: %s/job or resolved",
                r->record.dir);
        return run_report_failure(
            r, &e, arena_printf(&r->arena, "put the file back, or %s", r->start_over),
            CLIENT_REFUSED);
    }
    settle_threads(r);
    job_hash(&r->job, hash);
    if (r->record.there && r->args->fresh && record_aside(&r->record, &e))
        return run_report_failure(r, &e, "move it aside yourself", CLIENT_FAILED);
    if (!r->record.there && new_record(r, &e))
        return run_report_failure(r, &e, "make room, or make the folder writable", CLIENT_FAILED);
    const char *from = arena_strdup(&r->arena, r->record.base);
    bool moved = record_follow(&r->record, r->base);
    rc = strcmp(hash, r->record.hash) == 0 ? CLIENT_OK : compare_record(r);
    if (!rc && r->args->from_step >= 0)
        rc = go_back(r);
    return !rc && moved ? take_move(r, from) : rc;
}

// A job that continues does so with the data that it was trained with, wherever that lies now, or with
// other data that the job file names otherwise. What cannot be looked at here the ranks will.
static int compare_data(struct run *r)
{
    struct err e = {0}, ignored = {0};
    struct dataset set;
    struct data_identity data;
    struct left_data had;
    if (!left_data(&r->record, &r->job, &had) ||
        job_set_open(&r->job, NULL, &r->job.data.train, &set, &ignored))
        return CLIENT_OK;
    int rc = dataset_identify(&set, &data, &e);
    dataset_close(&set);
    if (!rc)
        rc = data_identity_check(&had.data, had.step, &data, &e);
    if (rc == ERR_INVALID && had.named_otherwise) {
        plain_error(
            "data.train names other data than that of step %lld: its samples are drawn from "
            "the first one on",
            (long long)had.step);
        return CLIENT_OK;
    }
    return rc ? run_report_failure(r, &e,
                                   arena_printf(&r->arena,
                                                "put the data back, name other data by another "
                                                "path, or %s",
                                                r->start_over),
                                   CLIENT_USAGE)
              : CLIENT_OK;
}

int run_begin(struct run *r)
{
    int rc = load_job(r);
    rc = rc ? rc : open_record(r);
    return rc || strcmp(r->record.state, "SUCCEEDED") == 0 ? rc : compare_data(r);
}
