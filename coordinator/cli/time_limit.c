// SPDX-License-Identifier: Apache-2.0
// When a run is to be over; see time_limit.h.
#include "coordinator/cli/time_limit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/ckpt/store.h"
#include "common/job/until.h"
#include "coordinator/cli/slurm_call.h"

#define ASK_NS (10 * CLOCK_S) // for squeue's answer
enum { SAVES = 2, STEPS = 3, ENDS_MS = 5000 };

static int64_t ask_squeue(const char *job)
{
    char squeue[] = "squeue", header[] = "-h", select[] = "-j", format[] = "-o", left[] = "%L",
         id[32];
    char *argv[] = {squeue, header, select, id, format, left, NULL};
    struct buf answer = {0};
    int64_t seconds = -1;
    snprintf(id, sizeof id, "%s", job);
    if (strlen(id) == strspn(id, "0123456789") &&
        !slurm_call(&(struct slurm_call){.argv = argv, .quiet = true, .wait_ns = ASK_NS}, &answer,
                    NULL))
        seconds = until_read_time_left(buf_str(&answer));
    buf_clear(&answer);
    return seconds;
}

static void take_end(struct time_limit *t, int64_t end_ms, const char *from)
{
    if (end_ms <= 0 || (t->end_ms && t->end_ms <= end_ms))
        return;
    t->end_ms = end_ms;
    t->from = from;
}

void time_limit_find(struct time_limit *t, const struct job *job, const struct allocation *a,
                     int64_t grace_ns)
{
    const char *slurm = getenv("SLURM_JOB_ID");
    int64_t now = clock_wall_ms();
    *t = (struct time_limit){.start_ms = now, .grace_ns = grace_ns, .save_ms = -1};
    if (job->train.until)
        take_end(t, until_end_ms(job->train.until, now), "train.until");
    bool past = a->end_s && a->end_s <= now / 1000;
    if (past)
        plain_error("SLURM_JOB_END_TIME is %lld, which was %lld s ago: it is left out",
                    (long long)a->end_s, (long long)(now / 1000 - a->end_s));
    if (a->end_s && !past)
        take_end(t, a->end_s * 1000, "SLURM_JOB_END_TIME");
    else if (slurm && *slurm) {
        int64_t left = ask_squeue(slurm);
        if (left >= 0)
            take_end(t, now + left * 1000, "squeue");
    }
}

// From the making of its folder to its seal; −1 where the file system keeps no time of birth.
static int64_t time_save(const char *path)
{
    struct statx born, sealed;
    char commit[800];
    snprintf(commit, sizeof commit, "%s/COMMIT", path);
    if (statx(AT_FDCWD, path, 0, STATX_BTIME, &born) || !(born.stx_mask & STATX_BTIME) ||
        statx(AT_FDCWD, commit, 0, STATX_MTIME, &sealed))
        return -1;
    int64_t ms = (sealed.stx_mtime.tv_sec - born.stx_btime.tv_sec) * 1000 +
                 ((int64_t)sealed.stx_mtime.tv_nsec - born.stx_btime.tv_nsec) / CLOCK_MS;
    return ms < 0 ? -1 : ms;
}

// One save may be under way when the stop comes, and the last one follows it. The slowest counts. Up to
// three steps are trained before all ranks have seen the stop. At least half of the time is trained, or
// a short limit would end each start before its first step.
static int64_t margin_ms(const struct time_limit *t, double step_ms)
{
    int64_t ms = (t->save_ms < 0 ? t->grace_ns / CLOCK_MS : SAVES * t->save_ms + ENDS_MS) +
                 (int64_t)(STEPS * step_ms);
    int64_t half = (t->end_ms - t->start_ms) / 2;
    return ms < half ? ms : half;
}

bool time_limit_due(struct time_limit *t, const char *store, int64_t attempt, int64_t step,
                    double step_ms)
{
    char name[64], path[sizeof t->checkpoint];
    if (!t->end_ms)
        return false;
    if (*store && step >= 0) {
        store_entry_name(attempt, step, name);
        snprintf(path, sizeof path, "%.600s/%s", store, name);
        if (strcmp(path, t->checkpoint) != 0) {
            int64_t ms = time_save(path);
            snprintf(t->checkpoint, sizeof t->checkpoint, "%s", path);
            t->save_ms = ms > t->save_ms ? ms : t->save_ms;
        }
    }
    int64_t margin = margin_ms(t, step_ms);
    if (clock_wall_ms() < t->end_ms - margin)
        return false;
    plain_error("%s: %lld s are left, of which a stop is reckoned to take %lld (%s): it saves and "
                "stops",
                t->from, (long long)((t->end_ms - clock_wall_ms()) / 1000),
                (long long)((margin + 999) / 1000),
                t->save_ms < 0 ? "three steps, and no save was measured yet"
                               : "three steps, twice the slowest save, and 5 s");
    return true;
}
