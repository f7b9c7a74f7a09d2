// SPDX-License-Identifier: Apache-2.0
// Sweeps folders of jobs that have ended; see tidy.h.
#include "coordinator/decide/tidy.h"

#include <string.h>

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
    return j->untidy && !j->attempt && !j->tidy_conn &&
           (j->state == JOB_HELD || job_state_ended(j->state));
}

static void send_tidy(struct job_record *j, const struct host *host)
{
    V1_NEW(Storage, storage, s);
    job_fill_storage(j, WEFT__V1__STORAGE_OP__STORAGE_TIDY, &s);
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

void tidy_take(struct coord *c, const struct host *host, const Weft__V1__StorageDone *d)
{
    struct job_record *j = job_find(c, d->job);
    bool asked = j && host->conn && j->tidy_conn == host->conn && d->epoch == j->epoch &&
                 strcmp(d->attempt, j->attempt_id) == 0;
    if (!asked || (!d->ok && !d->config)) // what failed is asked again, if that can help
        return;
    j->tidy_conn = 0;
    j->untidy = TIDY;
    job_touch(j);
}
