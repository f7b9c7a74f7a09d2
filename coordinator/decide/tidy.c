// SPDX-License-Identifier: Apache-2.0
// Sweeps folders of jobs that have ended; see tidy.h.
#include "coordinator/decide/tidy.h"

#include <stdio.h>
#include <string.h>

#include "common/base/plain.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/outbox.h"

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
    return (j->untidy || j->deleting) && !j->attempt && !j->tidy_conn &&
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
    const struct host *host = is_due(j) ? choose_host(j) : NULL;
    if (!host)
        return;
    if (j->untidy == UNTIDY_AND_OPEN) { // ranks that live there find an epoch that is not theirs
        j->epoch++;
        j->untidy = UNTIDY;
        job_touch(j);
    }
    send_tidy(j, host);
}

void tidy_again(struct job_record *j)
{
    j->tidy_conn = 0;
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

void tidy_delete(struct job_record *j)
{
    j->deleting = true;
    j->tidy_conn = 0;
    job_touch(j);
    tidy_ask(j);
}

void tidy_take(struct coord *c, const struct host *host, const Weft__V1__StorageDone *d)
{
    struct job_record *j = job_find(c, d->job);
    bool asked = j && host->conn && j->tidy_conn == host->conn && d->epoch == j->epoch &&
                 strcmp(d->attempt, j->attempt_id) == 0;
    if (!asked || (!d->ok && !d->config)) // what failed is asked again, if that can help
        return;
    bool deleted = d->op == WEFT__V1__STORAGE_OP__STORAGE_DELETE;
    if (deleted != j->deleting) // it was asked to tidy before somebody wanted the job gone
        return;
    j->tidy_conn = 0;
    j->untidy = TIDY;
    if (deleted && d->ok) {
        out_erase(c, ROW_JOB, j); // with its checkpoints and events
        job_forget(j);
        return;
    }
    if (deleted)
        keep_job(j, d->why);
    job_touch(j);
}
