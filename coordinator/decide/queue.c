// SPDX-License-Identifier: Apache-2.0
// Rounds of placement; see queue.h.
#include "coordinator/decide/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/job/threads.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/placement.h"

struct round { // over the jobs that want one kind of devices
    struct coord *c;
    int kind; // enum job_device_kind
    struct arena *arena;

    // The hosts that take work and have such devices: [n], the same host at the same index. What
    // counts as free differs.
    int n;
    struct host **machines;
    struct place_host *hosts;  // neither held nor reserved
    struct place_host *all;    // every device
    struct place_host *coming; // free now, or when the jobs that stop have stopped
    struct place_host *able;   // room for those of a job that avoids some
    bool *reserved;
    bool avoids;                // some of them are to be avoided
    struct place_share *shares; // room for placement's answer

    struct queue_tail *tail;
    struct queue_failed no_hosts, no_coming; // what `hosts` and `coming` could not give
    struct job_record *first;                // in line that waits; null: none
};

static bool is_stopping(const struct job_record *j)
{
    return j->state == JOB_DRAINING || (j->state == JOB_RECOVERING && j->goal != JOB_STARTING);
}

static void add_host(struct round *r, struct host *host)
{
    struct place_host h = {.rack = host->about->rack,
                           .name = host_name(host),
                           .share = host->about->share,
                           .address = host->about->address[0] != 0};
    int all = 0, coming = 0;
    for (int i = 0; i < host->ndevices; i++) {
        const struct host_device *d = &host->devices[i];
        if (d->kind != r->kind)
            continue;
        all++;
        coming += !d->holder || is_stopping(d->holder); // a rank of no attempt is being stopped
        h.free += !d->holder && !d->busy;
    }
    if (!all)
        return;
    r->avoids = r->avoids || host_is_avoided(r->c, host);
    host->in_round = r->n;
    r->machines[r->n] = host;
    r->hosts[r->n] = r->all[r->n] = r->coming[r->n] = h;
    r->all[r->n].free = all;
    r->coming[r->n++].free = coming;
}

static void round_init(struct round *r, struct coord *c, int kind, struct arena *a)
{
    int cap = list_length(&c->hosts);
    *r = (struct round){.c = c, .kind = kind, .arena = a};
    r->machines = arena_array(a, struct host *, cap + 1);
    r->hosts = arena_array(a, struct place_host, cap + 1);
    r->all = arena_array(a, struct place_host, cap + 1);
    r->coming = arena_array(a, struct place_host, cap + 1);
    r->able = arena_array(a, struct place_host, cap + 1);
    r->reserved = arena_array(a, bool, cap + 1);
    r->shares = arena_array(a, struct place_share, cap + 1);
    list_for_each (it, &c->hosts) {
        struct host *host = list_entry(it, struct host, link);
        host->in_round = -1;
        if (host_takes_work(host))
            add_host(r, host);
    }
}

// Returns what devices the job wants.
static const struct place_want *read_want(struct job_record *j)
{
    struct place_want *w = &j->want;
    if (w->ranks)
        return w;
    w->ranks = j->ranks;
    w->max_hosts = j->max_hosts;
    for (const char *at = j->mesh; (at = strchr(at, ':')) && w->naxes < MAX_AXES; at++)
        w->axes[w->naxes++] = (int)strtol(at + 1, NULL, 10);
    return w;
}

static bool has_failed(const struct queue_failed *f, const struct place_want *w)
{
    for (int i = 0; i < f->n; i++)
        if (!memcmp(&f->v[i], w, sizeof *w))
            return true;
    return false;
}

// Returns the same hosts, of which those where the job has failed for its data, and was to avoid after
// `since_ns`, have no free device.
static const struct place_host *leave_out_avoided(struct round *r, const struct job_record *j,
                                                  const struct place_host *hosts, int64_t since_ns)
{
    memcpy(r->able, hosts, sizeof *hosts * (size_t)r->n);
    for (int i = 0; i < r->n; i++) {
        const struct avoided *a = job_find_avoided(j, r->machines[i]->incarnation);
        if (a && a->until_ns > since_ns)
            r->able[i].free = 0;
    }
    return r->able;
}

// Finds devices for a job on `hosts`. `failed` has the wants for which nothing was found on these
// hosts before, which are not tried again; null for hosts that may gain devices within the round.
static bool find_devices(struct round *r, struct job_record *j, const struct place_host *hosts,
                         struct queue_failed *failed, int *n)
{
    const struct place_want *w = read_want(j);
    *n = 0;
    if (failed && has_failed(failed, w))
        return false;
    if (j->navoided) {
        hosts = leave_out_avoided(r, j, hosts, 0);
        failed = NULL; // what these do not give, others may
    }
    *n = placement_find(w, hosts, r->n, r->shares);
    if (*n == 0 && failed) {
        failed->v[failed->next] = *w;
        failed->next = (failed->next + 1) % FAILED_MAX;
        failed->n += failed->n < FAILED_MAX;
    }
    return *n > 0;
}

// Finds free devices, if possible without hosts that are to be avoided; at last where the job has
// failed for its data, once its wait there is over.
static bool find_free(struct round *r, struct job_record *j, int *n)
{
    if (r->avoids && !has_failed(&r->no_hosts, read_want(j))) {
        struct place_host *calm = arena_dup(r->arena, r->hosts, sizeof *calm * (size_t)(r->n + 1));
        for (int i = 0; i < r->n; i++)
            if (host_is_avoided(r->c, r->machines[i]))
                calm[i].free = 0;
        if (find_devices(r, j, calm, NULL, n))
            return true;
    }
    if (find_devices(r, j, r->hosts, &r->no_hosts, n) || !j->navoided)
        return *n > 0;
    const struct place_host *again = leave_out_avoided(r, j, r->hosts, r->c->now_ns);
    *n = placement_find(read_want(j), again, r->n, r->shares);
    return *n > 0;
}

// Counts the devices of this round's kind on a host's machine, which several workers may share.
static int64_t count_devices(const struct round *r, int host)
{
    int64_t n = 0;
    for (int i = 0; i < r->n; i++)
        if (i == host || (r->all[host].share[0] && !strcmp(r->all[i].share, r->all[host].share)))
            n += r->all[i].free;
    return n;
}

// Decides, when a job that names no threads is first placed, how many it has from then on: as many as
// the poorest of its hosts has for a device.
static void decide_threads(const struct round *r, struct job_record *j, int nshares)
{
    PRE(nshares > 0);
    int64_t threads = INT64_MAX;
    const char *why = "";
    if (j->threads)
        return;
    for (int i = 0; i < nshares; i++) {
        const struct host *host = r->machines[r->shares[i].host];
        int64_t devices = count_devices(r, r->shares[i].host);
        int64_t here = threads_share(host->about->cores, devices);
        if (here < threads) {
            threads = here;
            why = threads_print_why(r->arena, host_name(host), host->about->cores, devices);
        }
    }
    j->threads = (int)threads;
    heap_set(&j->threads_why, why);
}

static void begin_job(struct round *r, struct job_record *j, int nshares)
{
    decide_threads(r, j, nshares);
    struct rank_place *p = arena_array(r->arena, struct rank_place, j->ranks);
    int rank = 0;
    for (int i = 0; i < nshares; i++) {
        struct host *host = r->machines[r->shares[i].host];
        int left = r->shares[i].ranks;
        for (int d = 0; d < host->ndevices && left > 0; d++) {
            if (host->devices[d].kind != r->kind || host->devices[d].holder ||
                host->devices[d].busy)
                continue;
            p[rank++] = (struct rank_place){host, d};
            left--;
        }
        r->hosts[r->shares[i].host].free -= r->shares[i].ranks;
        r->coming[r->shares[i].host].free -= r->shares[i].ranks;
    }
    PRE(rank == j->ranks);
    attempt_begin(j, p);
}

// ---- who waits ----

// Reserves the hosts that could take part: for a job of one host those that are large enough.
static void reserve_hosts(struct round *r, const struct job_record *j)
{
    for (int i = 0; i < r->n; i++) {
        bool useful = (j->max_hosts != 1 || r->all[i].free >= j->ranks) &&
                      !job_find_avoided(j, r->machines[i]->incarnation);
        if (useful)
            r->hosts[i].free = 0;
        r->reserved[i] = r->reserved[i] || useful;
    }
}

// ---- preemption ----

static int compare_loss(const void *a, const void *b)
{
    const struct job_record *x = *(struct job_record *const *)a,
                            *y = *(struct job_record *const *)b;
    if (x->priority != y->priority)
        return x->priority < y->priority ? -1 : 1;
    int64_t lx = job_lost_ms(x), ly = job_lost_ms(y);
    if (lx != ly)
        return lx < ly ? -1 : 1;
    return x->seq > y->seq ? -1 : 1; // the younger first
}

static int find_victims(struct round *r, const struct job_record *j, struct job_record ***out)
{
    int n = 0;
    *out = arena_array(r->arena, struct job_record *, list_length(&r->c->live) + 1);
    list_for_each (it, &r->c->live) {
        struct job_record *v = list_entry(it, struct attempt, link)->job;
        bool runs = v->state == JOB_RUNNING || v->state == JOB_STARTING;
        if (runs && v->priority < j->priority && v->kind == r->kind)
            (*out)[n++] = v;
    }
    qsort(*out, (size_t)n, sizeof **out, compare_loss);
    return n;
}

// Gives the devices that v holds, on hosts that take part in the round, to these hosts (sign 1), or
// takes them back (−1).
static void give_devices(struct place_host *hosts, const struct job_record *v, int sign)
{
    const struct attempt *at = v->live;
    for (int k = 0; k < at->nranks; k++) {
        const struct host *host = at->hosts[at->ranks[k].host].host;
        int device = at->ranks[k].device;
        if (host->in_round >= 0 && device >= 0 && device < host->ndevices &&
            host->devices[device].holder == v)
            hosts[host->in_round].free += sign;
    }
}

static void preempt_job(struct job_record *v, const struct job_record *by)
{
    struct job_note n = NOTE(PREEMPTED);
    char text[200];
    snprintf(text, sizeof text, "preempted by %s (priority %lld)", by->name,
             (long long)by->priority);
    heap_set(&v->goal_why, text);
    attempt_drain(v->live, JOB_QUEUED, &n, text);
}

static bool make_room(struct round *r, struct job_record *j)
{
    struct job_record **v;
    struct place_host *hosts = // to try with
        arena_dup(r->arena, r->coming, sizeof *hosts * (size_t)(r->n + 1));
    int n = find_victims(r, j, &v), used = 0, unused;
    while (used < n && !find_devices(r, j, hosts, NULL, &unused))
        give_devices(hosts, v[used++], 1);
    if (!used || !find_devices(r, j, hosts, NULL, &unused))
        return false;
    for (int i = 0; i < used; i++) { // those that were not needed after all stay
        give_devices(hosts, v[i], -1);
        if (find_devices(r, j, hosts, NULL, &unused))
            v[i] = NULL;
        else
            give_devices(hosts, v[i], 1);
    }
    for (int i = 0; i < used; i++)
        if (v[i])
            preempt_job(v[i], j);
    return true;
}

// ---- the round ----

static void wait_behind(struct job_record *j, const struct job_record *first)
{
    j->wait = WAIT_BEHIND;
    memcpy(j->behind, first->id, ID_LEN);
}

static void set_wait_reason(struct round *r, struct job_record *j)
{
    int unused;
    if (!find_devices(r, j, r->all, &r->tail->never, &unused)) {
        j->wait = WAIT_NEVER; // not in line: a host that comes may change it
        return;
    }
    bool coming = find_devices(r, j, r->coming, &r->no_coming, &unused);
    j->wait = coming ? WAIT_COMING : WAIT_DEVICES;
    if (r->first) {
        wait_behind(j, r->first);
    } else if (!coming && r->c->now_ns >= r->c->grace_ns && make_room(r, j)) {
        j->wait = WAIT_COMING;
    }
    if (!r->first)
        r->first = j;
    reserve_hosts(r, j);
}

// The next round comes then at the latest.
static void wake_round_at(struct coord *c, int64_t ns)
{
    if (!c->wake_ns || ns < c->wake_ns)
        c->wake_ns = ns;
}

static bool are_all_reserved(const struct round *r)
{
    for (int i = 0; i < r->n; i++)
        if (!r->reserved[i])
            return false;
    return r->first != NULL;
}

// Returns how many jobs the round looked at.
static int round_kind(struct coord *c, int kind, struct arena *a)
{
    struct round r;
    int seen = 0;
    round_init(&r, c, kind, a);
    struct queue_tail *tail = r.tail = &c->tails[kind];
    list_for_each (it, &c->queue) {
        struct job_record *j = list_entry(it, struct job_record, queued);
        int n;
        if (j->kind != r.kind)
            continue;
        seen++;
        if (j->not_before_ns > c->now_ns) {
            j->wait = WAIT_BACKOFF;
            wake_round_at(c, j->not_before_ns);
        } else if (tail->at) {
            wait_behind(j, tail->first);
        } else if (find_free(&r, j, &n)) {
            begin_job(&r, j, n);
        } else {
            for (int i = 0; i < j->navoided; i++)
                if (j->avoided[i].until_ns > c->now_ns)
                    wake_round_at(c, j->avoided[i].until_ns);
            set_wait_reason(&r, j);
            if (are_all_reserved(&r)) {
                tail->at = j;
                tail->first = r.first;
            }
        }
    }
    return seen;
}

void queue_round(struct coord *c)
{
    struct arena a = {0};
    int left = c->nqueued; // mostly they are of one kind
    c->round_due = false;
    c->wake_ns = 0;
    memset(c->tails, 0, sizeof c->tails);
    for (int i = 0; i < JOB_DEVICE_KINDS && left > 0; i++)
        left -= round_kind(c, i, &a);
    arena_clear(&a);
}

bool queue_knows(struct job_record *j)
{
    const struct queue_tail *tail = &j->coord->tails[j->kind];
    if (tail->at && job_goes_before(tail->at, j)) {
        wait_behind(j, tail->first);
        return true;
    }
    if (!has_failed(&tail->never, read_want(j)))
        return false;
    j->wait = WAIT_NEVER;
    return true;
}

bool queue_place_now(struct job_record *j)
{
    struct coord *c = j->coord;
    struct round r;
    struct arena a = {0};
    int n;
    list_for_each (it, &c->queue) {
        const struct job_record *o = list_entry(it, struct job_record, queued);
        if (o->priority > j->priority && o->wait != WAIT_NEVER && o->wait != WAIT_BACKOFF &&
            o->kind == j->kind)
            return false;
    }
    round_init(&r, c, j->kind, &a);
    bool ok = find_free(&r, j, &n);
    if (ok)
        begin_job(&r, j, n);
    arena_clear(&a);
    return ok;
}
