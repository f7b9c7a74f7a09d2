// SPDX-License-Identifier: Apache-2.0
// Sweeps folders of jobs that have ended; see tidy.h.
#include "coordinator/decide/tidy.h"

#include <stdio.h>
#include <string.h>

#include "common/base/plain.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/outbox.h"

// A folder to delete is looked for on one host after another: one may lack the mount that others have.
static const struct host *choose_next(const struct job_record *j)
{
    int n = 0;
    list_for_each (it, &j->coord->hosts) {
        const struct host *host = list_entry(it, struct host, link);
        if (host->conn && n++ == j->nabsent)
            return host;
    }
    return NULL;
}

// Finds a host that ran the job, else any host: all of them see the same storage.
static const struct host *choose_host(const struct job_record *j)
{
    const struct coord *c = j->coord;
    for (int r = 0; j->log_hosts && r < j->ranks; r++) {
        const struct host *host = host_find(c, j->log_hosts[r]);
        if (host && host->conn)
            return host;
    }
    list_for_each (it, &c->hosts) {
        const struct host *host = list_entry(it, struct host, link);
        if (host->conn)
            return host;
    }
    return NULL;
}

static bool is_due(const struct job_record *j)
{
    return (j->untidy || j->deleting) && !j->live && !j->tidy_conn &&
           (j->state == JOB_HELD || job_state_ended(j->state));
}

static void send_tidy(struct job_record *j, const struct host *host)
{
    V1_NEW(Storage, storage, s);
    job_fill_storage(
        j, j->deleting ? WEFT__V1__STORAGE_OP__STORAGE_DELETE : WEFT__V1__STORAGE_OP__STORAGE_TIDY,
        &s);
    DOWN(d, STORAGE, storage, &s);
    j->tidy_conn = host->conn;
    out_down(j->coord, host->conn, &d);
}

void tidy_ask(struct job_record *j)
{
    const struct host *host = !is_due(j) ? NULL : j->deleting ? choose_next(j) : choose_host(j);
    if (!host)
        return;
    if (j->untidy == UNTIDY_AND_OPEN) { // ranks that live there find an attempt that is not theirs
        j->attempt++;
        j->untidy = UNTIDY;
        job_touch(j);
    }
    send_tidy(j, host);
}

void tidy_again(struct job_record *j)
{
    j->tidy_conn = 0;
    j->nabsent = 0;
    tidy_ask(j);
}

void tidies_ask(struct coord *c)
{
    list_for_each (it, &c->jobs)
        tidy_ask(list_entry(it, struct job_record, link));
}

// A folder that is not the job's own stays, and so does the job.
static void keep_job(struct job_record *j, const char *why)
{
    struct job_note n = NOTE(DELETED);
    char text[400];
    snprintf(text, sizeof text, "it is not deleted: %.360s", why);
    plain_mask(text);
    j->deleting = false;
    job_event(j, &n, "%s", text);
}

static void forget(struct job_record *j)
{
    out_erase(j->coord, ROW_JOB, j); // with its checkpoints and events
    job_forget(j);
}

void tidy_delete(struct job_record *j)
{
    if (j->deleting &&
        j->absent) { // somebody has read that it is nowhere, and wants it gone all the same
        forget(j);
        return;
    }
    j->deleting = true;
    job_touch(j);
    tidy_again(j);
}

// The host sees no folder of the job, which had one: the next is asked, and that it is nowhere is no
// success, since it may lie on storage that is not mounted now.
static void ask_next(struct job_record *j)
{
    struct job_note n = NOTE(DELETED);
    j->nabsent++;
    tidy_ask(j);
    if (j->tidy_conn)
        return;
    if (!j->absent)
        job_event(
            j, &n,
            "it is not deleted yet: no worker that is here sees %.300s; it is deleted when one "
            "does, or `weft delete` it again to forget it and leave what may be there",
            j->store);
    j->absent = true;
}

void tidy_take(struct coord *c, const struct host *host, const Weft__V1__StorageDone *d)
{
    struct job_record *j = job_find(c, d->job);
    bool asked = j && host->conn && j->tidy_conn == host->conn && d->attempt == j->attempt &&
                 strcmp(d->attempt_id, j->attempt_id) == 0;
    if (!asked || (!d->ok && !d->config)) // what failed is asked again, if that can help
        return;
    bool deleted = d->op == WEFT__V1__STORAGE_OP__STORAGE_DELETE;
    if (deleted != j->deleting) // it was asked to tidy before somebody wanted the job gone
        return;
    j->tidy_conn = 0;
    if (deleted && d->ok && d->absent && *j->store) {
        ask_next(j);
        return;
    }
    j->untidy = TIDY;
    if (deleted && d->ok) {
        forget(j);
        return;
    }
    if (deleted)
        keep_job(j, d->why);
    job_touch(j);
}
