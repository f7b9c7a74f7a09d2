// SPDX-License-Identifier: Apache-2.0
// The readers of coord.h: functions of the state that change nothing.
#include <stdio.h>
#include <string.h>

#include "common/attempt/message.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "coordinator/decide/attempt.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/job_status.h"

bool coord_has_answered(const struct coord *c, const char *request_id)
{
    return map_get(&c->requests, request_id) != NULL;
}

int64_t coord_marks(const struct coord *c)
{
    return c->marks;
}

const char *coord_cluster(const struct coord *c)
{
    return c->cluster;
}

char *coord_copy_text(const struct coord *c, const char *target, int *threads)
{
    const struct job_record *j = *target ? job_of(c, target, NULL) : NULL;
    if (!j)
        return NULL;
    *threads = j->threads;
    return heap_strdup(j->resolved);
}

Weft__V1__JobsReply *coord_jobs(const struct coord *c, bool all, uint64_t after, size_t max,
                                struct arena *a)
{
    Weft__V1__JobsReply *r = arena_new(a, Weft__V1__JobsReply);
    int cap = 0;
    uint64_t last = 0;
    weft__v1__jobs_reply__init(r);
    r->cluster = arena_strdup(a, c->cluster);
    r->notice = arena_strdup(a, c->read_only);
    list_for_each (it, &c->jobs) { // by seq
        const struct job_record *j = list_entry(it, struct job_record, link);
        if (j->seq <= after || (!all && job_state_ended(j->state)))
            continue;
        if (max && r->n_jobs == max) {
            r->next = last;
            break;
        }
        r->jobs = arena_grow(a, r->jobs, sizeof *r->jobs, (int)r->n_jobs, &cap);
        r->jobs[r->n_jobs++] = job_status(j, a);
        last = j->seq;
    }
    return r;
}

Weft__V1__JobStatus *coord_status(const struct coord *c, const char *target, struct arena *a,
                                  struct err *e)
{
    const struct job_record *j = job_of(c, target, e);
    return j ? job_status(j, a) : NULL;
}

// What is counted already, and the time since then, which the present state takes.
static void sum_spent(const struct job_record *j, int64_t now_ns, int64_t ms[TIME_KINDS])
{
    enum time_kind now = job_spends(j);
    memcpy(ms, j->spent_ms, sizeof *ms * TIME_KINDS);
    if (now < TIME_KINDS)
        ms[now] += job_uncounted_ms(j, now_ns);
}

static void fill_spent(const struct job_record *j, int64_t now_ns, struct arena *a,
                       Weft__V1__WhyReply *r)
{
    int64_t ms[TIME_KINDS];
    sum_spent(j, now_ns, ms);
    r->spent = arena_array(a, Weft__V1__Spent *, TIME_KINDS);
    for (enum time_kind k = 0; k < TIME_KINDS; k++) {
        if (!ms[k])
            continue;
        Weft__V1__Spent *s = r->spent[r->n_spent++] = arena_new(a, Weft__V1__Spent);
        weft__v1__spent__init(s);
        s->what = arena_strdup(a, time_word(k));
        s->ms = ms[k];
    }
}

Weft__V1__WhyReply *coord_why(const struct coord *c, const char *target, int64_t now_ns,
                              struct arena *a, struct err *e)
{
    const struct job_record *j = job_of(c, target, e);
    if (!j)
        return NULL;
    Weft__V1__WhyReply *r = arena_new(a, Weft__V1__WhyReply);
    weft__v1__why_reply__init(r);
    r->status = job_status(j, a);
    fill_spent(j, now_ns, a, r);
    r->next = job_next(j, a);
    r->trimmed = j->events > (uint64_t)c->config.keep_events;
    return r;
}

static Weft__V1__WorkerStatus *new_worker_status(const struct host *host, int64_t now_ns,
                                                 struct arena *a)
{
    Weft__V1__WorkerStatus *s = arena_new(a, Weft__V1__WorkerStatus);
    weft__v1__worker_status__init(s);
    s->host = arena_strdup(a, host->id);
    s->name = arena_strdup(a, host_name(host));
    s->state = arena_strdup(a, host_state_word(host_state(host)));
    s->incarnation = arena_strdup(a, host->incarnation);
    s->seen_ms_ago = (now_ns - host->heard_ns) / CLOCK_MS;
    const Weft__V1__Register *about = message_dup(a, &host->about->base);
    s->version = about->version;
    s->rack = about->rack;
    s->memory = about->memory;
    s->data_root = about->data_root;
    s->checkpoint_root = about->checkpoint_root;
    s->address = about->address;
    s->address_doubt = about->address_doubt;
    s->share = about->share;
    s->lacks = about->lacks;
    s->n_lacks = about->n_lacks;
    s->devices = arena_array(a, Weft__V1__DeviceStatus *, host->ndevices + 1);
    for (int i = 0; i < host->ndevices; i++) {
        const struct job_record *holder = host->devices[i].holder;
        Weft__V1__DeviceStatus *d = s->devices[s->n_devices++] =
            arena_new(a, Weft__V1__DeviceStatus);
        weft__v1__device_status__init(d);
        d->device = about->devices[i];
        d->job = arena_strdup(a, holder ? holder->id : "");
        d->rank = holder ? host->devices[i].rank : -1;
    }
    return s;
}

Weft__V1__WorkersReply *coord_workers(const struct coord *c, int64_t now_ns, struct arena *a)
{
    Weft__V1__WorkersReply *r = arena_new(a, Weft__V1__WorkersReply);
    weft__v1__workers_reply__init(r);
    r->notice = arena_strdup(a, c->read_only);
    r->workers = arena_array(a, Weft__V1__WorkerStatus *, list_length(&c->hosts) + 1);
    list_for_each (it, &c->hosts)
        r->workers[r->n_workers++] =
            new_worker_status(list_entry(it, struct host, link), now_ns, a);
    return r;
}

Weft__V1__CheckpointsReply *coord_checkpoints(const struct coord *c, const char *target,
                                              struct arena *a, struct err *e)
{
    const struct job_record *j = job_of(c, target, e);
    if (!j)
        return NULL;
    Weft__V1__CheckpointsReply *r = arena_new(a, Weft__V1__CheckpointsReply);
    weft__v1__checkpoints_reply__init(r);
    r->store = arena_strdup(a, j->store);
    plain_mask(r->store);
    r->checkpoints = arena_array(a, Weft__V1__Checkpoint *, j->ncheckpoints + 1);
    struct commit_best best = {0};
    for (int i = 0; i < j->ncheckpoints; i++) {
        const struct checkpoint_record *k = &j->checkpoints[i];
        commit_best_offer(&best, k, k->state == COMMIT_COMMITTED && !k->bad, k->scored, k->loss);
    }
    for (int i = j->ncheckpoints - 1; i >= 0; i--) {
        const struct checkpoint_record *k = &j->checkpoints[i];
        if (k->state == COMMIT_GONE)
            continue;
        Weft__V1__Checkpoint *row = arena_new(a, Weft__V1__Checkpoint);
        weft__v1__checkpoint__init(row);
        row->job = arena_strdup(a, j->id);
        row->attempt = (uint64_t)k->id.attempt;
        row->step = k->id.step;
        row->state = (int)k->state;
        row->bad = k->bad;
        row->evaluated = k->scored;
        row->eval_loss = k->loss;
        row->best = k == best.which;
        row->t_ms = k->t_ms;
        row->why = arena_strdup(a, k->why);
        plain_mask(row->why);
        r->checkpoints[r->n_checkpoints++] = row;
    }
    return r;
}

static int add_conn(const struct coord *c, const char *id, uint64_t *conns, int n, int max)
{
    const struct host *host = host_find(c, id);
    for (int i = 0; host && i < n; i++)
        if (conns[i] == host->conn)
            return n;
    if (host && host->conn && n < max)
        conns[n++] = host->conn;
    return n;
}

int coord_log_hosts(const struct coord *c, const char *target, int rank, uint64_t attempt,
                    uint64_t *conns, int max, char job[ID_LEN], struct err *e)
{
    const struct job_record *j = job_of(c, target, e);
    int n = 0;
    if (!j)
        return -1;
    snprintf(job, ID_LEN, "%s", j->id);
    if (rank >= j->ranks) {
        err_set(e, ERR_INVALID, "the job has %d ranks, numbered from 0", j->ranks);
        return -1;
    }
    if (attempt > j->attempt) {
        err_set(e, ERR_INVALID, "there is no attempt %llu of the job yet: its newest is %llu",
                (unsigned long long)attempt, (unsigned long long)j->attempt);
        return -1;
    }
    list_for_each (it, &c->hosts) // any may have those of an earlier attempt
        n = add_conn(c, list_entry(it, struct host, link)->id, conns, n, max);
    return n;
}

int coord_row_question(const struct coord *c, const char *target, Weft__V1__Storage *to,
                       uint64_t *conns, int max, struct err *e)
{
    const struct job_record *j = job_of(c, target, e);
    int n = 0;
    if (!j)
        return -1;
    job_fill_storage(j, WEFT__V1__STORAGE_OP__STORAGE_ROWS, to);
    to->rows_of = to->job;
    list_for_each (it, &c->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        if (h->conn && n < max)
            conns[n++] = h->conn;
    }
    return n;
}

int coord_streams(const struct coord *c, int kind, struct arena *a, struct coord_stream **out)
{
    int n = 0;
    *out = arena_array(a, struct coord_stream, list_length(&c->hosts) + 1);
    list_for_each (it, &c->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        if (h->conn && host_count_devices(h, kind))
            (*out)[n++] = (struct coord_stream){h->conn, arena_strdup(a, host_name(h))};
    }
    return n;
}

void coord_count(const struct coord *c, struct coord_counts *out)
{
    *out = (struct coord_counts){.writable = !c->read_only[0],
                                 .committed = c->committed,
                                 .failures = c->failures,
                                 .steps = c->steps};
    memcpy(out->restarts, c->restarts, sizeof out->restarts);
    list_for_each (it, &c->jobs)
        out->jobs[list_entry(it, struct job_record, link)->state]++;
    list_for_each (it, &c->hosts) {
        const struct host *host = list_entry(it, struct host, link);
        out->hosts[host_state(host)]++;
        for (int i = 0; i < host->ndevices; i++) {
            out->devices++;
            out->devices_busy += host->devices[i].holder || host->devices[i].busy;
        }
    }
}

int coord_rooms(const struct coord *c, struct arena *a, struct coord_room **out)
{
    static const char *const folders[HOST_ROOMS] = {"state", "checkpoints"};
    int n = 0, cap = 0;
    list_for_each (it, &c->hosts)
        cap += HOST_ROOMS;
    *out = arena_array(a, struct coord_room, cap + 1);
    list_for_each (it, &c->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        for (int i = 0; i < HOST_ROOMS && h->conn; i++)
            if (h->room[i].size)
                (*out)[n++] = (struct coord_room){arena_strdup(a, host_name(h)), folders[i],
                                                  h->room[i].free, h->room[i].size};
    }
    return n;
}

static int64_t find_saved_ms(const struct job_record *j)
{
    int64_t ms = 0;
    for (int i = 0; i < j->ncheckpoints; i++)
        if (j->checkpoints[i].state == COMMIT_COMMITTED && j->checkpoints[i].t_ms > ms)
            ms = j->checkpoints[i].t_ms;
    return ms;
}

int coord_live_jobs(const struct coord *c, struct arena *a, struct coord_job **out)
{
    int n = 0;
    *out = arena_array(a, struct coord_job, list_length(&c->jobs) + 1);
    list_for_each (it, &c->jobs) {
        const struct job_record *j = list_entry(it, struct job_record, link);
        if (job_state_ended(j->state))
            continue;
        struct coord_job *to = &(*out)[n++];
        *to = (struct coord_job){.id = j->id,
                                 .name = j->name,
                                 .step = j->last_step > 0 || j->report.known ? j->last_step : -1,
                                 .restarts = j->restarts,
                                 .reported = j->report.known,
                                 .loss = j->report.loss,
                                 .tokens_per_s = j->report.tokens_per_s,
                                 .samples_per_s = j->report.samples_per_s,
                                 .evaluated = j->report.evaluated,
                                 .eval_loss = j->report.eval_loss,
                                 .rates = j->rates,
                                 .saved_ms = find_saved_ms(j)};
        sum_spent(j, c->now_ns, to->spent_ms);
    }
    return n;
}
