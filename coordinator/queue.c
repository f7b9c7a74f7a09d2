// SPDX-License-Identifier: Apache-2.0
// Rounds of placement; see queue.h.
#include "coordinator/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/attempt.h"
#include "coordinator/member.h"
#include "coordinator/placement.h"
#include "coordinator/recover.h"

enum { TURNS_MAX = 64 };

struct round {
    struct coord *c;
    const char *kind;
    struct arena *arena;
    int n;
    struct member **members;
    struct place_host *hosts;  // free: not held, not reserved
    struct place_host *all;    // free: every device
    struct place_host *coming; // free: now, or when those that stop have stopped
    bool *reserved;
    struct place_share *shares;
    struct job_rec *first; // that waits; null: none
};

static int devices_of(const struct member *m, const char *kind, bool only_free)
{
    int n = 0;
    for (int i = 0; i < m->ndevices; i++)
        n += !strcmp(m->devices[i].kind, kind) &&
             (!only_free || (!m->devices[i].holder && !m->devices[i].busy));
    return n;
}

static bool any_device(const struct device *d)
{
    (void)d;
    return true;
}

static bool is_stopping(const struct job_rec *j)
{
    return j->row->state == JOB(DRAINING) ||
           (j->row->state == JOB(RECOVERING) && j->row->goal != JOB(STARTING));
}

static bool becomes_free(const struct device *d)
{
    return d->holder ? is_stopping(d->holder) : true; // a rank that is no one's is told to stop
}

static struct place_host *hosts_with(struct round *r, bool (*counts)(const struct device *))
{
    struct place_host *h = arena_dup(r->arena, r->hosts, sizeof *h * (size_t)(r->n + 1));
    for (int i = 0; i < r->n; i++) {
        const struct member *m = r->members[i];
        h[i].free = 0;
        for (int d = 0; d < m->ndevices; d++)
            h[i].free += !strcmp(m->devices[d].kind, r->kind) && counts(&m->devices[d]);
    }
    return h;
}

static void round_init(struct round *r, struct coord *c, const char *kind, struct arena *a)
{
    int cap = 0;
    *r = (struct round){.c = c, .kind = kind, .arena = a};
    list_for_each (it, &c->members)
        cap++;
    r->members = arena_array(a, struct member *, cap + 1);
    r->hosts = arena_array(a, struct place_host, cap + 1);
    r->reserved = arena_array(a, bool, cap + 1);
    r->shares = arena_array(a, struct place_share, cap + 1);
    list_for_each (it, &c->members) {
        struct member *m = list_entry(it, struct member, link);
        if (!member_takes_work(m) || !devices_of(m, kind, false))
            continue;
        r->members[r->n] = m;
        r->hosts[r->n++] = (struct place_host){.rack = m->about->rack,
                                               .name = member_name(m),
                                               .share = m->about->share,
                                               .address = m->about->address[0] != 0,
                                               .free = devices_of(m, kind, true)};
    }
    r->all = hosts_with(r, any_device);
    r->coming = hosts_with(r, becomes_free);
}

static void want_of(const struct job_rec *j, struct place_want *w)
{
    *w = (struct place_want){.ranks = j->row->ranks, .max_hosts = j->row->max_hosts};
    for (int i = 0; i < j->spec.mesh.n && i < 8; i++)
        w->axes[w->naxes++] = (int)j->spec.mesh.axis[i].size;
}

static bool fits(struct round *r, const struct job_rec *j, const struct place_host *hosts, int *n)
{
    struct place_want w;
    want_of(j, &w);
    *n = placement_find(&w, hosts, r->n, r->shares);
    return *n > 0;
}

static void begin(struct round *r, struct job_rec *j, int nshares)
{
    struct place *p = arena_array(r->arena, struct place, j->row->ranks);
    int rank = 0;
    for (int i = 0; i < nshares; i++) {
        struct member *m = r->members[r->shares[i].host];
        int left = r->shares[i].ranks;
        for (int d = 0; d < m->ndevices && left > 0; d++) {
            if (strcmp(m->devices[d].kind, r->kind) || m->devices[d].holder || m->devices[d].busy)
                continue;
            p[rank++] = (struct place){m, d};
            left--;
        }
        r->hosts[r->shares[i].host].free -= r->shares[i].ranks;
    }
    PRE(rank == j->row->ranks);
    attempt_begin(j, p);
}

// ---- who waits ----

// Hosts that could take part: with a limit of one, those that are large enough alone.
static void reserve(struct round *r, const struct job_rec *j)
{
    for (int i = 0; i < r->n; i++) {
        bool useful =
            j->row->max_hosts != 1 || devices_of(r->members[i], r->kind, false) >= j->row->ranks;
        if (useful)
            r->hosts[i].free = 0;
        r->reserved[i] = r->reserved[i] || useful;
    }
}

// ---- preemption ----

static int loses_less(const void *a, const void *b)
{
    const struct job_rec *x = *(struct job_rec *const *)a, *y = *(struct job_rec *const *)b;
    if (x->row->priority != y->row->priority)
        return x->row->priority < y->row->priority ? -1 : 1;
    int64_t lx = job_lost_ms(x), ly = job_lost_ms(y);
    if (lx != ly)
        return lx < ly ? -1 : 1;
    return x->row->seq > y->row->seq ? -1 : 1; // the younger first
}

static int victims_of(struct round *r, const struct job_rec *j, struct job_rec ***out)
{
    int n = 0, cap = 0;
    list_for_each (it, &r->c->jobs)
        cap++;
    *out = arena_array(r->arena, struct job_rec *, cap + 1);
    list_for_each (it, &r->c->jobs) {
        struct job_rec *v = list_entry(it, struct job_rec, link);
        bool runs = v->row->state == JOB(RUNNING) || v->row->state == JOB(STARTING);
        if (runs && v->row->priority < j->row->priority && !strcmp(v->row->kind, r->kind))
            (*out)[n++] = v;
    }
    qsort(*out, (size_t)n, sizeof **out, loses_less);
    return n;
}

static void give(struct round *r, struct place_host *hosts, const struct job_rec *v, int sign)
{
    for (int i = 0; i < r->n; i++)
        for (int d = 0; d < r->members[i]->ndevices; d++)
            hosts[i].free += r->members[i]->devices[d].holder == v ? sign : 0;
}

static void preempt(struct job_rec *v, const struct job_rec *by)
{
    struct job_note n = NOTE("preempted");
    char text[200];
    snprintf(text, sizeof text, "preempted by %s (priority %lld)", by->row->name,
             (long long)by->row->priority);
    text_set(&v->row->goal_why, text);
    attempt_drain(v->attempt, JOB(QUEUED), GRACE_MS, &n, text);
}

static bool make_room(struct round *r, struct job_rec *j)
{
    struct job_rec **v;
    struct place_host *hosts = hosts_with(r, becomes_free); // a copy to try with
    int n = victims_of(r, j, &v), used = 0, unused;
    while (used < n && !fits(r, j, hosts, &unused))
        give(r, hosts, v[used++], 1);
    if (!used || !fits(r, j, hosts, &unused))
        return false;
    for (int i = 0; i < used; i++) { // those that were not needed after all stay
        give(r, hosts, v[i], -1);
        if (fits(r, j, hosts, &unused))
            v[i] = NULL;
        else
            give(r, hosts, v[i], 1);
    }
    for (int i = 0; i < used; i++)
        if (v[i])
            preempt(v[i], j);
    return true;
}

// ---- the round ----

static void waits(struct round *r, struct job_rec *j)
{
    int unused;
    if (!fits(r, j, r->all, &unused)) {
        j->wait = WAIT_NEVER; // not in line: a host that comes may change it
        return;
    }
    bool coming = fits(r, j, r->coming, &unused);
    j->wait = coming ? WAIT_COMING : WAIT_DEVICES;
    if (r->first) {
        j->wait = WAIT_BEHIND;
        snprintf(j->behind, sizeof j->behind, "%s", r->first->row->id);
    } else if (!coming && r->c->now_ns >= r->c->grace_ns && make_room(r, j)) {
        j->wait = WAIT_COMING;
    }
    if (!r->first)
        r->first = j;
    reserve(r, j);
}

static bool all_reserved(const struct round *r)
{
    for (int i = 0; i < r->n; i++)
        if (!r->reserved[i])
            return false;
    return r->first != NULL;
}

static void round_kind(struct coord *c, const char *kind, struct arena *a)
{
    struct round r;
    bool full = false;
    round_init(&r, c, kind, a);
    list_for_each (it, &c->queue) {
        struct job_rec *j = list_entry(it, struct job_rec, queued);
        int n;
        if (strcmp(j->row->kind, kind))
            continue;
        if (j->not_before_ns > c->now_ns) {
            j->wait = WAIT_BACKOFF;
        } else if (full) {
            j->wait = WAIT_BEHIND;
            memcpy(j->behind, r.first->row->id, strlen(r.first->row->id) + 1);
        } else if (fits(&r, j, r.hosts, &n)) {
            begin(&r, j, n);
        } else {
            waits(&r, j);
            full = all_reserved(&r);
        }
    }
}

// Whoever is placed or preempted changes what the others find: rounds follow until nothing does.
void queue_round(struct coord *c)
{
    static const char *const kinds[] = {"cpu", "cuda"};
    for (int turn = 0; c->place && turn < TURNS_MAX; turn++) {
        struct arena a;
        c->place = false;
        arena_init(&a);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            round_kind(c, kinds[i], &a);
        arena_clear(&a);
    }
}

bool queue_place_now(struct job_rec *j)
{
    struct coord *c = j->coord;
    struct round r;
    struct arena a;
    int n;
    list_for_each (it, &c->queue) {
        const struct job_rec *o = list_entry(it, struct job_rec, queued);
        if (o->row->priority > j->row->priority && o->wait != WAIT_NEVER &&
            o->wait != WAIT_BACKOFF && !strcmp(o->row->kind, j->row->kind))
            return false;
    }
    arena_init(&a);
    round_init(&r, c, j->row->kind, &a);
    bool ok = fits(&r, j, r.hosts, &n);
    if (ok)
        begin(&r, j, n);
    arena_clear(&a);
    return ok;
}
