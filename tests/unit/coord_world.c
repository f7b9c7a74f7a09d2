// SPDX-License-Identifier: Apache-2.0
// Agents, ranks, a disk and a database around the coordinator's decider; see coord_world.h.
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/support/text_facts.h"

// ---- the database ----

static void *copy(const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    protobuf_c_message_pack(m, bytes);
    void *to = protobuf_c_message_unpack(m->descriptor, NULL, n, bytes);
    free(bytes);
    assert_non_null(to);
    return to;
}

int world_row(const struct world *w, const char *key)
{
    char k[200];
    for (int i = 0; i < w->nrows; i++) {
        row_print_key(&w->rows[i]->row, k);
        if (!strcmp(k, key))
            return i;
    }
    return -1;
}

static void check_job_write(const struct stored_row *old, const struct stored_row *s)
{
    const struct job_record *j = s->job;
    assert_int_equal(s->row.replaces, old ? old->job->state : JOB_NONE);
    if (old)
        assert_true(j->attempt >= old->job->attempt);
    assert_int_equal(j->state == JOB_DRAINING || j->state == JOB_RECOVERING, j->goal != JOB_NONE);
}

void world_drop_row(struct world *w, int at)
{
    stored_row_free(w->rows[at]);
    w->rows[at] = w->rows[--w->nrows];
}

static void apply(struct world *w, const struct row *r)
{
    struct stored_row *s = stored_row_new(r);
    char key[200];
    row_print_key(r, key);
    int at = world_row(w, key);
    if (r->kind == ROW_JOB && !r->erase)
        check_job_write(at >= 0 ? w->rows[at] : NULL, s);
    if (at >= 0)
        world_drop_row(w, at);
    for (int i = w->nrows - 1; i >= 0 && r->kind == ROW_JOB && r->erase; i--)
        if (row_is_of_job(&w->rows[i]->row, s->job->id))
            world_drop_row(w, i);
    if (r->erase) {
        stored_row_free(s);
        return;
    }
    assert_true(w->nrows < ROWS);
    w->rows[w->nrows++] = s;
}

// ---- the decider ----

static void take_submitted(struct world *w, const Weft__V1__SubmitReply *r)
{
    snprintf(w->reply_job, sizeof w->reply_job, "%s", r->job);
    snprintf(w->notice, sizeof w->notice, "%s", r->notice);
}

static void take(struct world *w, const struct coord_action *a)
{
    switch (a->kind) {
    case COORD_SEND:
        assert_true(w->nqueue < QUEUE);
        w->queue[w->nqueue++] = (struct message){a->conn, copy(&a->down->base)};
        return;
    case COORD_DROP: // what was sent before still arrives
        snprintf(w->dropped, sizeof w->dropped, "%s", a->text);
        return;
    case COORD_REPLY:
        w->answers++;
        if (a->reply->descriptor == &weft__v1__submit_reply__descriptor)
            take_submitted(w, (const Weft__V1__SubmitReply *)(const void *)a->reply);
        return;
    case COORD_REFUSE:
        w->refused_code = a->code;
        snprintf(w->refused, sizeof w->refused, "%s", a->text);
        return;
    case COORD_POST:
        world_take_post(w, a);
        return;
    case COORD_PUBLISH:
        return;
    }
}

static void carry_out(struct world *w, struct coord_out *out)
{
    w->written += out->nrows;
    for (int i = 0; i < out->nrows; i++)
        apply(w, &out->rows[i]);
    for (int i = 0; i < out->nactions; i++)
        take(w, &out->actions[i]);
}

void world_event(struct world *w, struct coord_event *ev)
{
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    ev->now_ns = w->now;
    ev->wall_ms = w->wall;
    if (add_facts(&a, ev, w->before))
        coord_step(w->c, ev, &out);
    else
        snprintf(w->refused, sizeof w->refused, "%s", ev->facts[0]->refused);
    carry_out(w, &out);
    arena_clear(&a);
}

void world_up(struct world *w, int host, Weft__V1__Up *up)
{
    struct coord_event ev = {.kind = COORD_EV_UP,
                             .conn = w->hosts[host].conn,
                             .who = w->hosts[host].certificate,
                             .up = up};
    if (!w->hosts[host].conn || w->hosts[host].stopped)
        return;
    world_event(w, &ev);
    world_pump(w);
}

static void begin(struct world *w)
{
    struct coord_config config = {.lease_ns = 10 * CLOCK_S,
                                  .keep_ended = 6,
                                  .keep_events = 500,
                                  .keep_requests = 300,
                                  .keep_notices = 20,
                                  .receivers = w->receivers,
                                  .nreceivers = w->nreceivers,
                                  .restored = w->restored,
                                  .boot = w->boot};
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    config.seed[0] = (unsigned char)++w->seeds;
    w->c = coord_new(&config);
    for (int kind = 0; kind < ROW_KINDS; kind++)
        for (int i = 0; i < w->nrows; i++)
            if ((int)w->rows[i]->row.kind == kind) {
                struct row r = row_make(w->rows[i]->row.kind, w->rows[i]->record, &a);
                assert_int_equal(coord_load(w->c, &r, NULL), 0);
            }
    coord_started(w->c, w->now, w->wall, &out);
    carry_out(w, &out);
    arena_clear(&a);
}

void world_init(struct world *w)
{
    memset(w, 0, sizeof *w);
    w->now = 1000 * CLOCK_S;
    w->wall = 1700000000000;
    w->boot = "first";
    begin(w);
}

void world_clear(struct world *w)
{
    if (w->barrier)
        weft__rank__barrier_done__free_unpacked(w->barrier, NULL);
    coord_free(w->c);
    for (int i = 0; i < w->nrows; i++)
        stored_row_free(w->rows[i]);
    for (int i = w->head; i < w->nqueue; i++)
        weft__v1__down__free_unpacked(w->queue[i].down, NULL);
}

// ---- attempts of a host ----

static struct world_attempt *attempt_of(struct world_host *h, const char *job, uint64_t attempt)
{
    for (int i = 0; i < 8; i++)
        if (h->attempts[i].used && h->attempts[i].number == attempt &&
            !strcmp(h->attempts[i].job, job))
            return &h->attempts[i];
    return NULL;
}

static struct world_attempt *new_attempt(struct world_host *h, const char *job, uint64_t attempt)
{
    for (int i = 0; i < 8; i++) {
        if (h->attempts[i].used)
            continue;
        h->attempts[i] = (struct world_attempt){.used = true, .number = attempt};
        snprintf(h->attempts[i].job, sizeof h->attempts[i].job, "%s", job);
        return &h->attempts[i];
    }
    fail_msg("too many attempts on one host");
    return NULL;
}

static void send_reaped(struct world *w, int host, struct world_attempt *at)
{
    NEW(Reaped, reaped, r);
    r.job = at->job;
    r.attempt = at->number;
    r.incarnation = w->hosts[host].incarnation;
    at->reaped = true;
    UP(up, REAPED, reaped, &r);
    world_up(w, host, &up);
}

static void fill_end(const struct world_attempt *at, int rank, Weft__V1__RankEnd *e)
{
    weft__v1__rank_end__init(e);
    e->job = frame_text(at->job);
    e->attempt = at->number;
    e->rank = rank;
    e->code = at->ranks[rank].code;
    e->signal = at->ranks[rank].signal;
    e->unreached = at->ranks[rank].unreached;
    e->step = at->ranks[rank].step;
}

void world_end(struct world *w, int host, struct world_attempt *at, int rank, int code, int signal,
               const char *why)
{
    Weft__V1__RankEnd e;
    struct world_rank *k = &at->ranks[rank];
    if (!k->alive)
        return;
    k->alive = false;
    k->ended = true;
    k->code = signal ? 128 + signal : code;
    k->signal = signal;
    fill_end(at, rank, &e);
    e.why = frame_text(why);
    UP(up, RANK_END, rank_end, &e);
    world_up(w, host, &up);
}

void world_rank_frame(struct world *w, int host, const struct world_attempt *at, int rank,
                      Weft__Rank__Frame *f)
{
    NEW(RankFrame, rank_frame, body);
    body.job = frame_text(at->job);
    body.attempt = at->number;
    body.rank = rank;
    body.frame = f;
    UP(up, FRAME, frame, &body);
    world_up(w, host, &up);
}

void world_show(struct world *w, int host, const struct world_attempt *at, int rank, int state,
                uint64_t collective)
{
    NEW(Progresses, progresses, body);
    Weft__Rank__Progress p, *one = &p;
    weft__rank__progress__init(&p);
    p.rank = rank;
    p.step = at->ranks[rank].step;
    p.state = state;
    p.collective_entered = collective;
    body.job = frame_text(at->job);
    body.attempt = at->number;
    body.ranks = &one;
    body.n_ranks = 1;
    UP(up, PROGRESS, progress, &body);
    world_up(w, host, &up);
}

// ---- an agent's answers ----

static void do_storage(struct world *w, int host, const Weft__V1__Storage *s)
{
    NEW(StorageDone, storage_done, d);
    Weft__V1__Checkpoint found[SAVES], *list[SAVES];
    bool fence = s->op == WEFT__V1__STORAGE_OP__STORAGE_FENCE;
    if (fence)
        w->asked_back = s->goes_back ? s->from_step : -1;
    if (w->no_storage || (fence && w->no_fence))
        return;
    if (s->op == WEFT__V1__STORAGE_OP__STORAGE_TIDY && !w->storage_fails) {
        w->tidied++;
        w->tidied_attempt = s->attempt;
    }
    d.op = s->op;
    d.job = s->job;
    d.attempt = s->attempt;
    d.attempt_id = s->attempt_id;
    d.ok = !w->storage_fails && !(fence && w->fences[0] > s->attempt);
    d.greatest = fence && w->fences[0] > s->attempt ? w->fences[0] : 0;
    d.why = frame_text(w->storage_fails);
    d.config = w->storage_config;
    d.full = w->storage_full;
    d.store = frame_text("/ckpt/it");
    if (s->op == WEFT__V1__STORAGE_OP__STORAGE_DELETE) {
        w->deletions++;
        d.absent = w->hosts[host].unmounted;
    }
    if (fence) {
        snprintf(w->asked_source, sizeof w->asked_source, "%s %lld", s->source,
                 (long long)s->source_step);
        d.source = frame_text(w->source ? w->source : "");
        d.source_step = w->source_step;
    }
    d.committed = list;
    if (fence && d.ok) {
        w->fences[0] = s->attempt;
        for (int i = w->nsaves - 1; i >= 0; i--) {
            if (strcmp(w->saves[i].job, s->job) || w->saves[i].gone)
                continue;
            Weft__V1__Checkpoint *k = &found[d.n_committed];
            weft__v1__checkpoint__init(k);
            k->attempt = w->saves[i].attempt;
            k->step = w->saves[i].step;
            k->bad = w->saves[i].bad;
            list[d.n_committed++] = k;
        }
    }
    UP(up, STORAGE, storage, &d);
    world_up(w, host, &up);
}

static void be_ready(struct world *w, int host, struct world_attempt *at)
{
    for (int r = 0; r < RANKS; r++) {
        if (!at->ranks[r].alive)
            continue;
        world_show(w, host, at, r, RANK_STARTING, 0);
        FRAME_BODY(ready, Ready, ready);
        ready.plan_hash = frame_text("plan");
        FRAME(f, READY, ready, &ready);
        if (!w->no_ready)
            world_rank_frame(w, host, at, r, &f);
    }
}

static void do_start(struct world *w, int host, const Weft__V1__Start *s)
{
    struct world_host *h = &w->hosts[host];
    w->starts++;
    w->threads = s->assign->threads;
    assert_string_equal(s->incarnation, h->incarnation);
    if (w->no_start || attempt_of(h, s->job, s->attempt))
        return;
    struct world_attempt *at = new_attempt(h, s->job, s->attempt);
    at->nranks = s->assign->ranks;
    for (size_t i = 0; i < s->n_ranks; i++) {
        for (int a = 0; a < 8; a++) // one living rank a device
            for (int r = 0; r < RANKS && h->attempts[a].used; r++)
                assert_false(h->attempts[a].ranks[r].alive &&
                             h->attempts[a].ranks[r].device == s->ranks[i]->device);
        at->ranks[s->ranks[i]->rank] = (struct world_rank){
            .alive = true, .device = s->ranks[i]->device, .step = s->assign->restore_step};
    }
    be_ready(w, host, at);
}

static void do_stop(struct world *w, int host, const Weft__V1__Stop *s)
{
    struct world_host *h = &w->hosts[host];
    struct world_attempt *at = attempt_of(h, s->job, s->attempt);
    w->stops++;
    if (w->no_stop && s->grace_ms)
        return;
    if (!at) {
        at = new_attempt(h, s->job, s->attempt);
    }
    for (int r = 0; r < RANKS; r++)
        world_end(w, host, at, r, s->grace_ms ? RANK_EXIT_DRAINED : 0, s->grace_ms ? 0 : 9, "");
    if (at->used && !at->reaped)
        send_reaped(w, host, at);
}

static void write_commit(struct world *w, int host, struct world_attempt *at, int64_t step)
{
    FRAME_BODY(done, CommitDone, commit_done);
    w->saves[w->nsaves] = (struct world_save){.attempt = at->number, .step = step};
    snprintf(w->saves[w->nsaves++].job, 33, "%s", at->job);
    done.step = step;
    FRAME(f, COMMIT_DONE, commit_done, &done);
    world_rank_frame(w, host, at, 0, &f);
}

static void do_delete(struct world *w, int host, struct world_attempt *at,
                      const Weft__Rank__Delete *d)
{
    FRAME_BODY(done, Deleted, deleted);
    for (int i = 0; i < w->nsaves; i++)
        if (!strcmp(w->saves[i].job, at->job) && w->saves[i].step == d->step &&
            w->saves[i].attempt == (uint64_t)d->attempt)
            w->saves[i].gone = true;
    done.attempt = d->attempt;
    done.step = d->step;
    FRAME(f, DELETED, deleted, &done);
    world_rank_frame(w, host, at, 0, &f);
}

static void do_frame(struct world *w, int host, const Weft__V1__RankFrame *rf)
{
    struct world_attempt *at = attempt_of(&w->hosts[host], rf->job, rf->attempt);
    const Weft__Rank__Frame *f = rf->frame;
    if (!at)
        return;
    if (f->body_case == WEFT__RANK__FRAME__BODY_READY_DONE && !f->ready_done->failed[0] &&
        !f->ready_done->called_off) {
        at->agreed = true;
        world_show(w, host, at, rf->rank, RANK_RUNNING, 1);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT) {
        assert_int_equal(f->commit->n_shards, (size_t)at->nranks); // all shards are in
        at->commit_open = w->no_commit;
        at->commit_step = f->commit->step;
        if (!w->no_commit)
            write_commit(w, host, at, f->commit->step);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_BARRIER_DONE) {
        *(f->barrier_done->failed[0] ? &w->barriers_failed : &w->barriers_done) += 1;
        snprintf(w->barrier_text, sizeof w->barrier_text, "%s", f->barrier_done->failed);
        if (w->barrier)
            weft__rank__barrier_done__free_unpacked(w->barrier, NULL);
        w->barrier = copy(&f->barrier_done->base);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_DELETE) {
        do_delete(w, host, at, f->delete_);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_COMMITTED) {
        for (int r = 0; r < RANKS; r++)
            if (at->ranks[r].alive && f->committed->step >= 10 && !w->no_leave)
                world_end(w, host, at, r, 0, 0, "");
    }
}

static void do_fenced(struct world *w, int host, const Weft__V1__FencedOut *f)
{
    struct world_host *h = &w->hosts[host];
    w->fenced_out++;
    w->twin = f->twin;
    h->conn = 0;
    if (f->twin)
        h->exited = true;
    else
        world_reborn(w, host);
}

static void deliver(struct world *w, int host, const Weft__V1__Down *d)
{
    switch (d->body_case) {
    case WEFT__V1__DOWN__BODY_STORAGE:
        do_storage(w, host, d->storage);
        return;
    case WEFT__V1__DOWN__BODY_START:
        do_start(w, host, d->start);
        return;
    case WEFT__V1__DOWN__BODY_STOP:
        do_stop(w, host, d->stop);
        return;
    case WEFT__V1__DOWN__BODY_FRAME:
        do_frame(w, host, d->frame);
        return;
    case WEFT__V1__DOWN__BODY_FENCED:
        do_fenced(w, host, d->fenced);
        return;
    case WEFT__V1__DOWN__BODY_SYNC: {
        struct world_attempt *at = attempt_of(&w->hosts[host], d->sync->job, d->sync->attempt);
        if (at)
            at->used = false;
        return;
    }
    default:
        return;
    }
}

static Weft__V1__Challenge *register_with(struct world *w, int host, const char *nonce);

void world_pump(struct world *w)
{
    while (w->head < w->nqueue) {
        struct message m = w->queue[w->head++];
        for (int h = 0; h < HOSTS; h++) {
            if (!w->hosts[h].conn || w->hosts[h].conn != m.conn || w->hosts[h].stopped)
                continue;
            if (m.down->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
                register_with(w, h, m.down->challenge->nonce);
            else
                deliver(w, h, m.down);
            break;
        }
        weft__v1__down__free_unpacked(m.down, NULL);
    }
    w->head = w->nqueue = 0;
}

// ---- registration ----

static void fill_ranks(const struct world_attempt *at, struct arena *a, Weft__V1__AttemptHere *h)
{
    h->ranks = arena_array(a, Weft__V1__RankHere *, RANKS);
    h->asked = arena_array(a, Weft__V1__RankFrame *, RANKS);
    h->answered = arena_array(a, Weft__V1__RankFrame *, RANKS + 1);
    for (int r = 0; r < RANKS; r++) {
        const struct world_rank *k = &at->ranks[r];
        if (!k->alive && !k->ended)
            continue;
        Weft__V1__RankHere *here = arena_new(a, Weft__V1__RankHere);
        weft__v1__rank_here__init(here);
        here->rank = r;
        here->device = k->device;
        here->ended = k->ended;
        here->end = arena_new(a, Weft__V1__RankEnd);
        fill_end(at, r, here->end);
        here->progress = arena_new(a, Weft__Rank__Progress);
        weft__rank__progress__init(here->progress);
        here->progress->rank = r;
        here->progress->step = k->step;
        here->progress->state = at->agreed ? RANK_RUNNING : RANK_STARTING;
        h->ranks[h->n_ranks++] = here;
        Weft__V1__RankFrame *rf = arena_new(a, Weft__V1__RankFrame);
        weft__v1__rank_frame__init(rf);
        rf->job = frame_text(at->job);
        rf->attempt = at->number;
        rf->rank = r;
        rf->frame = arena_new(a, Weft__Rank__Frame);
        weft__rank__frame__init(rf->frame);
        if (at->agreed) {
            rf->frame->body_case = WEFT__RANK__FRAME__BODY_READY_DONE;
            rf->frame->ready_done = arena_new(a, Weft__Rank__ReadyDone);
            weft__rank__ready_done__init(rf->frame->ready_done);
            h->answered[h->n_answered++] = rf;
        } else {
            rf->frame->body_case = WEFT__RANK__FRAME__BODY_READY;
            rf->frame->ready = arena_new(a, Weft__Rank__Ready);
            weft__rank__ready__init(rf->frame->ready);
            rf->frame->ready->plan_hash = frame_text("plan");
            h->asked[h->n_asked++] = rf;
        }
    }
}

static void bring_barrier(const struct world *w, const struct world_attempt *at, struct arena *a,
                          Weft__V1__AttemptHere *h)
{
    Weft__V1__RankFrame *rf = arena_new(a, Weft__V1__RankFrame);
    weft__v1__rank_frame__init(rf);
    rf->job = frame_text(at->job);
    rf->attempt = at->number;
    rf->frame = arena_new(a, Weft__Rank__Frame);
    weft__rank__frame__init(rf->frame);
    rf->frame->body_case = WEFT__RANK__FRAME__BODY_BARRIER_DONE;
    rf->frame->barrier_done = w->barrier;
    h->answered[h->n_answered++] = rf;
}

static void fill_attempts(const struct world *w, const struct world_host *h, struct arena *a,
                          Weft__V1__Register *r)
{
    r->attempts = arena_array(a, Weft__V1__AttemptHere *, 8);
    for (int i = 0; i < 8; i++) {
        const struct world_attempt *at = &h->attempts[i];
        if (!at->used)
            continue;
        Weft__V1__AttemptHere *here = arena_new(a, Weft__V1__AttemptHere);
        weft__v1__attempt_here__init(here);
        here->job = frame_text(at->job);
        here->attempt = at->number;
        here->reaped = at->reaped;
        fill_ranks(at, a, here);
        if (w->barrier)
            bring_barrier(w, at, a, here);
        r->attempts[r->n_attempts++] = here;
    }
}

static Weft__V1__Challenge *register_with(struct world *w, int host, const char *nonce)
{
    struct world_host *h = &w->hosts[host];
    struct arena a;
    arena_init(&a);
    NEW(Register, register, r);
    Weft__V1__Device device[DEVICES], *list[DEVICES];
    r.nonce = frame_text(nonce);
    r.cluster = frame_text(coord_cluster(w->c));
    r.host = h->id;
    r.incarnation = h->incarnation;
    r.name = h->name;
    r.rack = h->rack;
    r.share = h->share;
    r.cores = h->cores;
    r.address = h->address;
    r.data_root = frame_text(h->data_root ? h->data_root : "");
    r.checkpoint_root = frame_text(h->checkpoint_root ? h->checkpoint_root : "");
    for (int i = 0; i < h->devices; i++) {
        weft__v1__device__init(&device[i]);
        device[i].index = i;
        device[i].kind = frame_text("cpu");
        list[i] = &device[i];
    }
    r.devices = list;
    r.n_devices = (size_t)h->devices;
    NEW(Lack, lack, lack);
    Weft__V1__Lack *lacks[] = {&lack};
    lack.kind = frame_text("cuda");
    lack.why = frame_text(h->no_gpu ? h->no_gpu : "");
    r.lacks = lacks;
    r.n_lacks = h->no_gpu != NULL;
    fill_attempts(w, h, &a, &r);
    UP(up, REGISTER, register_, &r);
    world_up(w, host, &up);
    arena_clear(&a);
    return NULL;
}

static void incarnate(struct world *w, struct world_host *h)
{
    snprintf(h->incarnation, sizeof h->incarnation, "%032llx", (unsigned long long)++w->calls);
}

void world_attach(struct world *w, int host)
{
    struct world_host *h = &w->hosts[host];
    NEW(Hello, hello, hello);
    h->conn = ++w->conns;
    hello.host = h->id;
    hello.incarnation = h->incarnation;
    UP(up, HELLO, hello, &hello);
    world_up(w, host, &up);
}

static void make_host(struct world *w, int host, const char *address, int devices)
{
    struct world_host *h = &w->hosts[host];
    snprintf(h->id, sizeof h->id, "%032x", 0xa0 + host);
    snprintf(h->name, sizeof h->name, "host%d", host);
    snprintf(h->address, sizeof h->address, "%s", address);
    incarnate(w, h);
    h->devices = devices;
    world_attach(w, host);
}

void world_host(struct world *w, int host, int devices)
{
    char address[40];
    snprintf(address, sizeof address, "10.0.0.%d", host);
    make_host(w, host, address, devices);
}

void world_host_without_address(struct world *w, int host, int devices)
{
    make_host(w, host, "", devices);
}

void world_detach(struct world *w, int host)
{
    struct coord_event ev = {.kind = COORD_EV_GONE, .conn = w->hosts[host].conn};
    w->hosts[host].conn = 0;
    world_event(w, &ev);
    world_pump(w);
}

void world_reborn(struct world *w, int host)
{
    struct world_host *h = &w->hosts[host];
    memset(h->attempts, 0, sizeof h->attempts);
    incarnate(w, h);
    world_attach(w, host);
}

void world_crash(struct world *w)
{
    for (int i = w->head; i < w->nqueue; i++)
        weft__v1__down__free_unpacked(w->queue[i].down, NULL);
    w->head = w->nqueue = 0;
    for (int h = 0; h < HOSTS; h++)
        w->hosts[h].conn = 0;
    coord_free(w->c);
    w->now += CLOCK_S;
    w->wall += 1000;
    begin(w);
}

void world_restart(struct world *w)
{
    world_crash(w);
    for (int h = 0; h < HOSTS; h++)
        if (w->hosts[h].id[0] && !w->hosts[h].exited && !w->hosts[h].stopped)
            world_attach(w, h);
}
