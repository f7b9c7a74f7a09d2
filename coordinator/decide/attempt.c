// SPDX-License-Identifier: Apache-2.0
// The phases of a placement; see attempt.h.
#include "coordinator/decide/attempt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/leader.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/base/protocol_rule.h"
#include "common/ckpt/source.h"
#include "coordinator/decide/checkpoint.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/outbox.h"

enum {
    STORAGE_S = 60, // a storage act of a host that lives
    FENCE_S = 3600, // it reads the newest checkpoint whole: 360 GB at 100 MB/s
    END_S = 60,     // after the last checkpoint, until the ranks have left
    STOP_AGAIN_S = 10,
    JOIN_S = 300, // until every rank has said where it is
};

static const int64_t limit_s[] = {
    [PHASE_WRITE] = STORAGE_S, [PHASE_RENAME] = STORAGE_S,  [PHASE_READ] = STORAGE_S,
    [PHASE_FENCE] = FENCE_S,   [PHASE_START] = 0,           [PHASE_RUN] = 0, // the leader's
    [PHASE_END] = END_S,       [PHASE_STOP] = STOP_AGAIN_S,
};

int64_t attempt_limit_s(enum attempt_phase phase)
{
    return limit_s[phase];
}

// ---- life ----

static int find_or_add_host(struct attempt *at, struct host *host, const char *incarnation)
{
    for (int i = 0; i < at->nhosts; i++)
        if (at->hosts[i].host == host && !strcmp(at->hosts[i].incarnation, incarnation))
            return i;
    struct attempt_host *h = &at->hosts[at->nhosts];
    h->host = host;
    host->nattempts++;
    snprintf(h->incarnation, sizeof h->incarnation, "%s", incarnation);
    return at->nhosts++;
}

static struct attempt *attempt_new(struct job_record *j)
{
    struct attempt *at = heap_alloc(sizeof *at);
    size_t n = (size_t)j->ranks;
    at->job = j;
    list_append(&j->coord->live, &at->link);
    list_init(&at->unsettled);
    at->nranks = j->ranks;
    at->hosts = heap_alloc(sizeof *at->hosts * n);
    at->ranks = heap_alloc(sizeof *at->ranks * n);
    return at;
}

void attempt_free(struct attempt *at)
{
    if (!at)
        return;
    list_remove(&at->link);
    list_remove(&at->unsettled);
    for (int i = 0; i < at->nhosts; i++)
        at->hosts[i].host->nattempts--;
    leader_free(at->leader);
    free(at->hosts);
    free(at->ranks);
    free(at);
}

void attempt_name_places(struct attempt *at)
{
    for (int r = 0; r < at->nranks; r++) {
        const struct placed_rank *k = &at->ranks[r];
        char place[400];
        snprintf(place, sizeof place, "host %s device %d", host_name(at->hosts[k->host].host),
                 k->device);
        leader_place(at->leader, r, place);
    }
}

static void make_leader(struct attempt *at, enum leader_state state)
{
    struct job_record *j = at->job;
    struct leader_config c = {.ranks = at->nranks,
                              .steps = j->steps,
                              .hang_after_ns = j->hang_after_ns,
                              .join_ns = JOIN_S * CLOCK_S,
                              .keep = (int)j->keep,
                              .keep_every = j->keep_every,
                              .keep_best = j->keep_best,
                              .patience_ns = j->patience_ns};
    struct leader_memory m = {.state = state};
    at->leader = leader_new(&c, j->coord->now_ns);
    checkpoint_remember(j, &m);
    leader_restore(at->leader, &m, j->coord->now_ns);
    attempt_name_places(at);
}

static void clear_placement(struct job_record *j)
{
    free(j->placement);
    j->placement = NULL;
    j->nplaced = 0;
}

static void set_placement(struct attempt *at)
{
    struct job_record *j = at->job;
    clear_placement(j);
    j->placement = heap_alloc(sizeof *j->placement * (size_t)at->nranks);
    for (int r = 0; r < at->nranks; r++) {
        const struct attempt_host *h = &at->hosts[at->ranks[r].host];
        struct placed *p = &j->placement[j->nplaced++];
        memcpy(p->host, h->host->id, ID_LEN);
        memcpy(p->incarnation, h->incarnation, ID_LEN);
        p->device = at->ranks[r].device;
    }
}

static void keep_log_hosts(struct attempt *at)
{
    struct job_record *j = at->job;
    free(j->log_hosts);
    j->log_hosts = heap_alloc(sizeof *j->log_hosts * (size_t)at->nranks);
    for (int r = 0; r < at->nranks; r++)
        snprintf(j->log_hosts[r], ID_LEN, "%s", at->hosts[at->ranks[r].host].host->id);
}

void attempt_hold(struct attempt *at)
{
    for (int r = 0; r < at->nranks; r++) {
        const struct placed_rank *k = &at->ranks[r];
        if (!at->hosts[k->host].reaped)
            host_hold(at->hosts[k->host].host, k->device, at->job, r);
    }
}

static void new_identity(struct job_record *j)
{
    coord_new_id(j->coord, j->attempt_id);
    coord_random(j->coord, j->key);
}

static void move_to_starting(struct attempt *at)
{
    struct buf text = {0};
    struct job_note n = NOTE(PLACED);
    n.host = at->nhosts == 1 ? host_name(at->hosts[0].host) : NULL;
    for (int i = 0; i < at->nhosts; i++) {
        int ranks = 0;
        for (int r = 0; r < at->nranks; r++)
            ranks += at->ranks[r].host == i;
        if (text.len < 300)
            buf_printf(&text, "%s%d on %s", i ? ", " : "", ranks, host_name(at->hosts[i].host));
    }
    job_move(at->job, JOB_STARTING, JOB_NONE, &n, "attempt %llu: %d rank%s placed: %s",
             (unsigned long long)at->job->attempt, at->nranks, at->nranks == 1 ? "" : "s",
             buf_str(&text));
    buf_clear(&text);
}

void attempt_begin(struct job_record *j, const struct rank_place *places)
{
    struct attempt *at = attempt_new(j);
    j->live = at;
    for (int r = 0; r < at->nranks; r++) {
        at->ranks[r].host = find_or_add_host(at, places[r].host, places[r].host->incarnation);
        at->ranks[r].device = places[r].device;
    }
    for (int i = 0; i < at->nhosts; i++)
        at->hosts[i].back = true;
    make_leader(at, LEADER_JOINING);
    attempt_hold(at);
    set_placement(at);
    keep_log_hosts(at);
    new_identity(j);
    j->attempt++;
    j->fenced = false;
    heap_set(&j->restore, "");
    j->restore_step = 0;
    j->not_before_ms = 0;
    j->not_before_ns = 0;
    j->since_ckpt_ms = 0;
    move_to_starting(at);
    attempt_enter(at, PHASE_WRITE);
}

void attempt_restore(struct job_record *j)
{
    struct attempt *at = attempt_new(j);
    j->live = at;
    for (int i = 0; i < j->nplaced; i++) {
        const struct placed *p = &j->placement[i];
        // The row of its host may be lost; a host is added then by what the placement says of it.
        struct host *host = host_add(j->coord, p->host, p->incarnation);
        at->ranks[i].host = find_or_add_host(at, host, p->incarnation);
        at->ranks[i].device = p->device;
        at->hosts[at->ranks[i].host].reaped |= p->reaped;
    }
    keep_log_hosts(at);
    for (int i = 0; i < at->nhosts; i++)
        at->hosts[i].reaped |= !host_is(at->hosts[i].host, at->hosts[i].incarnation);
    if (j->state == JOB_STARTING && !j->fenced)
        new_identity(j); // answers to the old attempt's probe must not be taken for the new one's
    make_leader(at, j->state == JOB_RUNNING ? LEADER_RUNNING : LEADER_JOINING);
    job_touch(j);
}

// ---- sending ----

// The path of where the job begins: what it says, or the folder of the job whose id it holds since it
// was submitted. The id of a job that is deleted is sent as it is: the worker says so, unless the job has
// begun already.
static char *resolve_source(const struct job_record *j, struct arena *a, int64_t *step)
{
    const char *place;
    source_split(j->source, a, &place, step);
    const struct job_record *of =
        *place && !source_is_path(place) ? job_find(j->coord, place) : NULL;
    return of && *of->store ? of->store : arena_strdup(a, place);
}

static void send_storage(struct attempt *at, struct attempt_host *h, Weft__V1__StorageOp op)
{
    const struct job_record *j = at->job;
    struct arena *a = at->job->coord->out->arena;
    V1_NEW(Storage, storage, s);
    job_fill_storage(j, op, &s);
    s.nonce = h->nonce;
    if (op == WEFT__V1__STORAGE_OP__STORAGE_FENCE) {
        s.from_step = j->from_step;
        s.goes_back = j->goes_back || j->from_step > 0; // a row of before has no more than the step
        s.losses = j->keep_best;
        s.source = resolve_source(j, a, &s.source_step);
    }
    if (op == WEFT__V1__STORAGE_OP__STORAGE_READ) {
        s.nonces = arena_array(a, char *, at->nhosts);
        for (int i = 0; i < at->nhosts; i++)
            s.nonces[s.n_nonces++] =
                arena_printf(a, "%s=%s", at->hosts[i].host->id, at->hosts[i].nonce);
    }
    DOWN(d, STORAGE, storage, &s);
    out_down(at->job->coord, h->host->conn, &d);
}

static void fill_assign(const struct attempt *at, const struct attempt_host *h,
                        Weft__Rank__Assign *a)
{
    const struct job_record *j = at->job;
    const struct host *host = h->host;
    struct coord *c = at->job->coord;
    a->ranks = at->nranks;
    a->attempt = j->attempt;
    a->job_text = j->resolved;
    a->job_hash = frame_text(j->job_hash);
    a->job_id = frame_text(j->id);
    a->cluster_id = c->cluster;
    a->attempt_id = frame_text(j->attempt_id);
    a->run_id = frame_text(j->run_id);
    a->key.data = frame_borrow(j->key);
    a->key.len = sizeof j->key;
    a->store = j->store;
    a->restore = j->restore;
    a->restore_step = j->restore_step;
    a->hang_after_ns = j->hang_after_ns;
    a->threads = j->threads;
    a->base_dir = j->base_dir;
    if (at->nhosts > 1 && host->about->address[0])
        a->listen = arena_printf(c->out->arena, "%s:0", host->about->address);
}

static void send_start(struct attempt *at, struct attempt_host *h)
{
    const struct job_record *j = at->job;
    struct arena *a = j->coord->out->arena;
    FRAME_BODY(assign, Assign, assign);
    V1_NEW(Start, start, s);
    fill_assign(at, h, &assign);
    s.job = frame_text(j->id);
    s.attempt = j->attempt;
    s.incarnation = h->incarnation;
    s.assign = &assign;
    s.name = j->name;
    s.dir = j->checkpoint_dir;
    s.kind = frame_text(job_device_kind(j->kind));
    s.ranks = arena_array(a, Weft__V1__RankPlace *, at->nranks);
    for (int r = 0; r < at->nranks; r++) {
        if (&at->hosts[at->ranks[r].host] != h)
            continue;
        Weft__V1__RankPlace *p = arena_new(a, Weft__V1__RankPlace);
        weft__v1__rank_place__init(p);
        p->rank = r;
        p->device = at->ranks[r].device;
        s.ranks[s.n_ranks++] = p;
    }
    DOWN(d, START, start, &s);
    out_down(j->coord, h->host->conn, &d);
}

static void send_stop(struct attempt *at, struct attempt_host *h)
{
    V1_NEW(Stop, stop, s);
    s.job = at->job->id;
    s.attempt = at->job->attempt;
    s.reason = at->reason;
    s.grace_ms = at->grace_ms;
    DOWN(d, STOP, stop, &s);
    out_down(at->job->coord, h->host->conn, &d);
}

static void send_phase(struct attempt *at, struct attempt_host *h)
{
    static const Weft__V1__StorageOp ops[] = {
        [PHASE_WRITE] = WEFT__V1__STORAGE_OP__STORAGE_WRITE,
        [PHASE_RENAME] = WEFT__V1__STORAGE_OP__STORAGE_RENAME,
        [PHASE_READ] = WEFT__V1__STORAGE_OP__STORAGE_READ,
        [PHASE_FENCE] = WEFT__V1__STORAGE_OP__STORAGE_FENCE,
    };
    if (at->phase <= PHASE_FENCE)
        send_storage(at, h, ops[at->phase]);
    else if (at->phase == PHASE_START)
        send_start(at, h);
    else
        send_stop(at, h);
}

bool attempt_asks(const struct attempt *at, const struct attempt_host *h)
{
    switch (at->phase) {
    case PHASE_WRITE:
    case PHASE_READ:
        return !h->done;
    case PHASE_RENAME:
    case PHASE_FENCE:
        return !h->done && h == at->hosts;
    case PHASE_START:
        return !h->started && !h->reaped;
    case PHASE_STOP:
        return !h->reaped;
    default:
        return false;
    }
}

void attempt_drive(struct attempt *at)
{
    for (int i = 0; i < at->nhosts; i++) {
        struct attempt_host *h = &at->hosts[i];
        uint64_t conn = h->host->conn;
        if (!conn || conn == h->sent || !host_is(h->host, h->incarnation) || !attempt_asks(at, h))
            continue;
        h->sent = conn;
        send_phase(at, h);
    }
}

void attempt_enter(struct attempt *at, enum attempt_phase phase)
{
    struct coord *c = at->job->coord;
    at->phase = phase;
    at->deadline_ns = limit_s[phase] ? c->now_ns + limit_s[phase] * CLOCK_S : 0;
    if (phase == PHASE_STOP)
        at->deadline_ns += ms_ns(at->grace_ms);
    for (int i = 0; i < at->nhosts; i++) {
        at->hosts[i].done = false;
        at->hosts[i].sent = 0;
        if (phase == PHASE_WRITE)
            coord_new_id(c, at->hosts[i].nonce);
    }
    attempt_drive(at);
}

// ---- its hosts ----

struct attempt_host *attempt_find_host(const struct attempt *at, const struct host *host)
{
    for (int i = 0; i < at->nhosts; i++)
        if (at->hosts[i].host == host && host_is(host, at->hosts[i].incarnation))
            return &at->hosts[i];
    return NULL;
}

bool attempt_all_back(const struct attempt *at)
{
    for (int i = 0; i < at->nhosts; i++)
        if (!at->hosts[i].back && !at->hosts[i].reaped)
            return false;
    return true;
}

// ---- the end ----

void attempt_reaped(struct attempt *at, struct attempt_host *h)
{
    struct job_record *j = at->job;
    int index = (int)(h - at->hosts);
    if (h->reaped)
        return;
    h->reaped = true;
    for (int r = 0; r < at->nranks; r++) {
        const struct placed_rank *k = &at->ranks[r];
        if (k->host != index)
            continue;
        host_hold(h->host, k->device, NULL, -1);
        if (host_is(h->host, h->incarnation))
            host_idle(j->coord, h->host, k->device);
        if (r < j->nplaced)
            j->placement[r].reaped = true;
    }
    j->coord->round_due = true;
    job_touch(j);
}

// Before the fence has answered no Start has gone out, so there is nothing to reap.
static bool has_no_ranks(const struct attempt *at)
{
    if (!WEFT_RULE(reaped_frees))
        return true;
    if (!at->job->fenced)
        return true;
    for (int i = 0; i < at->nhosts; i++)
        if (!at->hosts[i].reaped)
            return false;
    return true;
}

void attempt_settle(struct attempt *at)
{
    if (list_empty(&at->unsettled))
        list_append(&at->job->coord->unsettled, &at->unsettled);
}

void attempt_fault(struct attempt *at, const struct fault *f)
{
    struct arena *a = at->job->coord->out->arena;
    if (at->fault)
        return;
    struct fault *copy = arena_dup(a, f, sizeof *f);
    copy->host = f->host ? arena_strdup(a, f->host) : NULL;
    copy->log = f->log ? arena_strdup(a, f->log) : "";
    plain_mask(copy->text);
    at->fault = copy;
    attempt_settle(at);
}

bool attempt_is_over(const struct attempt *at)
{
    return at->phase >= PHASE_END && has_no_ranks(at);
}

void attempt_end(struct attempt *at)
{
    struct job_record *j = at->job;
    for (int i = 0; i < at->nhosts; i++)
        attempt_reaped(at, &at->hosts[i]);
    job_lost(j);
    if (j->goal != JOB_SUCCEEDED && j->untidy == TIDY)
        j->untidy = UNTIDY;
    clear_placement(j);
    j->live = NULL;
    job_touch(j);
    attempt_free(at);
}
