// SPDX-License-Identifier: Apache-2.0
// The service over real streams, in one process: what it refuses before the decider, what it says
// of it in the audit, whom it takes for a host, how it relays logs, and that nobody who reads
// slowly is waited for.
#include <poll.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "coordinator/serve/service.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"

#define PATIENCE (60 * CLOCK_S) // a watchdog: nothing here takes long

enum { SUBMIT, ACT, JOBS, STATUS, WHY, WORKERS, CHECKPOINTS, WATCH, LOGS, ROWS, ATTACH, JOIN };

static const char job_text[] = "name: it\n"
                               "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n"
                               "mesh: {dp: 2}\n"
                               "data: {train: {images: x, labels: y}, batch: %d}\n"
                               "train: {steps: 10}\n";

struct fixture {
    char dir[TEMP_FOLDER_MAX], address[100], job[33];
    struct db *db;
    struct coord *coord;
    struct planner *planner;
    struct rpc *server, *client;
    struct rpc_server *listener;
    struct rpc_channel *channel;
    struct service *service;
};

static void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->text);
}

// ---- the owner's turn ----

static void settle(struct fixture *p, struct coord_out *out)
{
    struct err e = {0};
    must(db_commit(p->db, out->rows, out->nrows, &e), &e);
    if (p->service)
        service_act(p->service, out);
    arena_clear(out->arena);
}

static void turn(struct fixture *p)
{
    struct arena a;
    struct rpc_event ev;
    struct coord_out out = {.arena = &a};
    arena_init(&a);
    while (rpc_next(p->server, &ev)) {
        service_take(p->service, &ev, &out);
        rpc_event_clear(&ev);
    }
    service_planned(p->service, &out);
    service_tick(p->service, &out);
    settle(p, &out);
}

// The client's next event; both ends go on meanwhile.
static struct rpc_event any(struct fixture *p)
{
    struct rpc_event ev;
    int64_t end = clock_mono_ns() + PATIENCE;
    while (!rpc_next(p->client, &ev)) {
        struct pollfd fds[] = {{rpc_fd(p->client), POLLIN, 0},
                               {rpc_fd(p->server), POLLIN, 0},
                               {planner_fd(p->planner), POLLIN, 0}};
        if (clock_mono_ns() > end)
            fail_msg("no event came");
        poll(fds, 3, 100);
        turn(p);
    }
    return ev;
}

// The same, but for ends of reading: what closes the call follows.
static struct rpc_event next(struct fixture *p)
{
    struct rpc_event ev = any(p);
    while (ev.kind == RPC_END) {
        rpc_event_clear(&ev);
        ev = any(p);
    }
    return ev;
}

static struct rpc_event expect(struct fixture *p, uint64_t call, enum rpc_event_kind kind)
{
    struct rpc_event ev = next(p);
    if (ev.kind != kind || ev.call != call)
        fail_msg("event %d (code %d, '%s') in place of %d", ev.kind, ev.code, ev.text, kind);
    return ev;
}

static void expect_closed(struct fixture *p, uint64_t call, enum rpc_code code, const char *says)
{
    struct rpc_event ev = expect(p, call, RPC_CLOSED);
    if (ev.code != code || !strstr(ev.text, says))
        fail_msg("closed with %d ('%s') in place of %d ('%s')", ev.code, ev.text, code, says);
    rpc_event_clear(&ev);
}

static uint64_t call(struct fixture *p, int method, const ProtobufCMessage *m)
{
    int n = service_nmethods;
    assert_int_equal(n, JOIN + 1);
    return rpc_call(p->channel, &service_methods[method], m, 0, true, NULL);
}

// ---- calls ----

static uint64_t submit(struct fixture *p, const char *request, int batch, const char *base)
{
    char text[400];
    Weft__V1__SubmitRequest q;
    weft__v1__submit_request__init(&q);
    snprintf(text, sizeof text, job_text, batch);
    q.request_id = frame_text(request);
    q.resolved = text;
    q.base_dir = frame_text(base);
    return call(p, SUBMIT, &q.base);
}

static void submitted(struct fixture *p, uint64_t c, char job[33])
{
    struct rpc_event ev = expect(p, c, RPC_MESSAGE);
    snprintf(job, 33, "%s", ((const Weft__V1__SubmitReply *)(const void *)ev.message)->job);
    rpc_event_clear(&ev);
    expect_closed(p, c, RPC_OK, "");
}

static uint64_t act(struct fixture *p, int n, Weft__V1__Verb verb, const char *target)
{
    char id[32];
    Weft__V1__ActRequest q;
    weft__v1__act_request__init(&q);
    snprintf(id, sizeof id, "act-%d", n);
    q.request_id = id;
    q.verb = verb;
    q.target = frame_text(target);
    return call(p, ACT, &q.base);
}

static uint64_t ask(struct fixture *p, int method, const char *job)
{
    Weft__V1__JobRequest q;
    weft__v1__job_request__init(&q);
    q.job = frame_text(job);
    return call(p, method, &q.base);
}

static uint64_t logs(struct fixture *p, const char *job, bool follow)
{
    Weft__V1__LogsRequest q;
    weft__v1__logs_request__init(&q);
    q.job = frame_text(job);
    q.rank = -1;
    q.follow = follow;
    return call(p, LOGS, &q.base);
}

static size_t count_jobs(struct fixture *p)
{
    struct arena a;
    arena_init(&a);
    size_t n = coord_jobs(p->coord, true, 0, 0, &a)->n_jobs;
    arena_clear(&a);
    return n;
}

// ---- a worker ----

#define UP(Case, member, ptr)                 \
    Weft__V1__Up up;                          \
    weft__v1__up__init(&up);                  \
    up.body_case = WEFT__V1__UP__BODY_##Case; \
    up.member = (ptr);                        \
    assert_int_equal(rpc_send(p->client, c, &up.base, NULL), 0)

static char host_id[] = "aaaabbbbccccddddaaaabbbbccccdddd",
            other_id[] = "0000bbbbccccddddaaaabbbbccccdddd",
            third_id[] = "1111bbbbccccddddaaaabbbbccccdddd",
            incarnation[] = "11112222333344441111222233334444", cluster[33];

static void say_hello(struct fixture *p, uint64_t c, char *host)
{
    Weft__V1__Hello hello;
    weft__v1__hello__init(&hello);
    hello.host = host;
    hello.incarnation = incarnation;
    UP(HELLO, hello, &hello);
}

static void say_register(struct fixture *p, uint64_t c, char *host, char *nonce, bool device)
{
    Weft__V1__Register r;
    Weft__V1__Device d, *devices[] = {&d};
    weft__v1__device__init(&d);
    d.kind = frame_text("cpu");
    weft__v1__register__init(&r);
    r.nonce = nonce;
    r.cluster = cluster;
    r.host = host;
    r.incarnation = incarnation;
    r.name = frame_text(host == host_id ? "w0" : host == other_id ? "w1" : "w2");
    r.share = host; // they do not reach each other, so that no job is placed
    r.devices = devices;
    r.n_devices = device;
    UP(REGISTER, register_, &r);
}

static void say_lines(struct fixture *p, uint64_t c, uint64_t ask_id, const char *text, bool end)
{
    Weft__V1__LogChunk k;
    weft__v1__log_chunk__init(&k);
    k.ask = ask_id;
    k.text.data = (uint8_t *)frame_text(text);
    k.text.len = strlen(text);
    k.end = end;
    UP(LOG, log, &k);
}

// The stream's next message with this body; others (acknowledgements) are passed over.
static struct rpc_event heard(struct fixture *p, uint64_t c, Weft__V1__Down__BodyCase body)
{
    for (;;) {
        struct rpc_event ev = expect(p, c, RPC_MESSAGE);
        rpc_more(p->client, c);
        if (((const Weft__V1__Down *)(const void *)ev.message)->body_case == body)
            return ev;
        rpc_event_clear(&ev);
    }
}

static uint64_t greet(struct fixture *p, char *host, char nonce[64])
{
    uint64_t c = call(p, ATTACH, NULL);
    say_hello(p, c, host);
    struct rpc_event ev = heard(p, c, WEFT__V1__DOWN__BODY_CHALLENGE);
    const Weft__V1__Challenge *k = ((const Weft__V1__Down *)(const void *)ev.message)->challenge;
    snprintf(nonce, 64, "%s", k->nonce);
    snprintf(cluster, sizeof cluster, "%s", k->cluster);
    rpc_event_clear(&ev);
    return c;
}

static uint64_t attach_host(struct fixture *p, char *host, bool device)
{
    char nonce[64];
    uint64_t c = greet(p, host, nonce);
    say_register(p, c, host, nonce, device);
    struct rpc_event ev = heard(p, c, WEFT__V1__DOWN__BODY_REGISTERED);
    rpc_event_clear(&ev);
    return c;
}

static uint64_t heard_ask(struct fixture *p, uint64_t c, bool stop)
{
    struct rpc_event ev = heard(p, c, WEFT__V1__DOWN__BODY_LOG);
    const Weft__V1__LogAsk *q = ((const Weft__V1__Down *)(const void *)ev.message)->log;
    uint64_t id = q->ask;
    assert_string_equal(q->job, p->job);
    assert_int_equal(q->stop, stop);
    rpc_event_clear(&ev);
    return id;
}

// ---- the place ----

static int setup(void **state)
{
    struct fixture *p = calloc(1, sizeof *p);
    struct err e = {0};
    struct arena a;
    struct coord_out out = {.arena = &a};
    // No host here says that it lives: none is given up within the time that a case may take.
    const struct coord_config config = {.seed = {7}, .lease_ns = 20 * PATIENCE};
    arena_init(&a);
    assert_int_equal(temp_folder_make(p->dir, "service"), 0);
    must(db_open(&p->db, p->dir, DB_OWN, &e), &e);
    p->coord = coord_new(&config);
    coord_started(p->coord, clock_mono_ns(), clock_wall_ms(), &out);
    settle(p, &out);
    char program[PATH_MAX];
    built_program("weft-coordinator", program);
    const struct planner_options planner = {.program = program};
    must(planner_open(&planner, &p->planner, &e), &e);
    must(rpc_open(&p->server, &e), &e);
    must(rpc_open(&p->client, &e), &e);
    const struct service_options o = {p->server, p->coord, p->db, p->planner, NULL};
    p->service = service_new(&o);
    snprintf(p->address, sizeof p->address, "unix:%s/s", p->dir);
    const struct rpc_server_options s = {
        .address = p->address, .methods = service_methods, .nmethods = service_nmethods};
    must(rpc_serve(p->server, &s, &p->listener, NULL, 0, &e), &e);
    const struct rpc_channel_options d = {.address = p->address};
    must(rpc_dial(p->client, &d, &p->channel, &e), &e);
    submitted(p, submit(p, "first", 12, ""), p->job);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *p = *state;
    rpc_close(p->client);
    rpc_close(p->server);
    service_free(p->service);
    planner_close(p->planner);
    coord_free(p->coord);
    db_close(p->db);
    assert_int_equal(temp_folder_remove(p->dir), 0);
    free(p);
    return 0;
}

// The newest audit row's "role verb target result".
static void expect_audit(struct fixture *p, const char *want)
{
    char path[100];
    sqlite3 *sql;
    sqlite3_stmt *q;
    snprintf(path, sizeof path, "%s/weft.db", p->dir);
    assert_int_equal(sqlite3_open(path, &sql), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(sql,
                                        "SELECT role || ' ' || verb || ' ' || target || ' ' || "
                                        "result FROM audit ORDER BY seq DESC LIMIT 1",
                                        -1, &q, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    const char *got = (const char *)sqlite3_column_text(q, 0);
    if (!strstr(got, want))
        fail_msg("the audit says '%s', not '%s'", got, want);
    sqlite3_finalize(q);
    sqlite3_close(sql);
}

// ---- cases ----

static void a_job_that_does_not_plan_is_refused_with_its_reason(void **state)
{
    struct fixture *p = *state;
    uint64_t c = submit(p, "odd", 13, ""); // over two devices
    expect_closed(p, c, RPC_INVALID_ARGUMENT, "data.batch");
    expect_audit(p, "local submit  ");
    expect_audit(p, "data.batch");
    assert_int_equal(count_jobs(p), 1);
}

static void a_repeated_request_is_answered_as_before(void **state)
{
    struct fixture *p = *state;
    char job[33];
    submitted(p, submit(p, "first", 12, ""), job);
    assert_string_equal(job, p->job);
    assert_int_equal(count_jobs(p), 1);
}

static void readers_learn_what_is_wrong(void **state)
{
    struct fixture *p = *state;
    expect_closed(p, ask(p, STATUS, "nosuchjob"), RPC_NOT_FOUND, "nosuchjob");
    expect_closed(p, ask(p, WHY, "nosuchjob"), RPC_NOT_FOUND, "nosuchjob");
    expect_closed(p, ask(p, CHECKPOINTS, "nosuchjob"), RPC_NOT_FOUND, "nosuchjob");
    expect_closed(p, ask(p, WATCH, "nosuchjob"), RPC_NOT_FOUND, "nosuchjob");
    expect_closed(p, logs(p, "nosuchjob", false), RPC_NOT_FOUND, "nosuchjob");
    expect_closed(p, logs(p, p->job, false), RPC_FAILED_PRECONDITION, "host");
}

static void without_an_authority_nobody_joins(void **state)
{
    struct fixture *p = *state;
    Weft__V1__JoinRequest q;
    weft__v1__join_request__init(&q);
    expect_closed(p, call(p, JOIN, &q.base), RPC_FAILED_PRECONDITION, "TLS");
    for (int i = 0; i < 50; i++) // of a crowd some come too soon, also where two may come far apart
        call(p, JOIN, &q.base);
    for (bool again = false; !again;) {
        struct rpc_event ev = next(p);
        again = ev.code == RPC_RESOURCE_EXHAUSTED && strstr(ev.text, "again");
        rpc_event_clear(&ev);
    }
}

static void a_watcher_hears_each_state_until_the_job_rests(void **state)
{
    struct fixture *p = *state;
    uint64_t c = ask(p, WATCH, p->job), a;
    struct rpc_event ev = expect(p, c, RPC_MESSAGE);
    const Weft__V1__WatchUpdate *u = (const void *)ev.message;
    assert_int_equal(u->status->state, WEFT__V1__JOB_STATE__QUEUED);
    rpc_event_clear(&ev);
    a = act(p, 1, WEFT__V1__VERB__CANCEL, p->job);
    ev = expect(p, a, RPC_MESSAGE);
    rpc_event_clear(&ev);
    expect_closed(p, a, RPC_OK, "");
    rpc_more(p->client, c);
    ev = expect(p, c, RPC_MESSAGE);
    u = (const void *)ev.message;
    assert_string_equal(u->event->kind, "cancelled");
    rpc_event_clear(&ev);
    rpc_more(p->client, c);
    ev = expect(p, c, RPC_MESSAGE);
    u = (const void *)ev.message;
    assert_int_equal(u->status->state, WEFT__V1__JOB_STATE__CANCELLED);
    rpc_event_clear(&ev);
    rpc_more(p->client, c);
    expect_closed(p, c, RPC_OK, "");
}

static void whoever_reads_too_slowly_loses_the_stream_and_nobody_else_does(void **state)
{
    struct fixture *p = *state;
    enum { LINES = 400, SIZE = 128 << 10 }; // 50 MB: over what waits and what the wire holds
    static char text[SIZE + 1];
    uint64_t worker = attach_host(p, host_id, false), slow = logs(p, p->job, true),
             slow_ask = heard_ask(p, worker, false);
    uint64_t quick = logs(p, p->job, true), quick_ask = heard_ask(p, worker, false);
    size_t got = 0;
    memset(text, 'x', SIZE);
    text[SIZE - 1] = '\n';
    assert_int_not_equal(slow_ask, quick_ask);
    for (int i = 0; i < LINES; i++) {
        say_lines(p, worker, slow_ask, text, false);
        say_lines(p, worker, quick_ask, text, false);
        for (size_t want = (size_t)(i + 1) * SIZE; got < want;) {
            struct rpc_event ev = next(p);
            if (ev.call == quick) {
                assert_int_equal(ev.kind, RPC_MESSAGE);
                got += ((const Weft__V1__LogLines *)(const void *)ev.message)->text.len;
                rpc_more(p->client, quick);
            } else if (ev.call == worker) {
                rpc_more(p->client, worker);
            } // the slow one takes its first message and asks for no more
            rpc_event_clear(&ev);
        }
    }
    for (;;) { // now it reads on: what waited for it, then why there is no more
        rpc_more(p->client, slow);
        struct rpc_event ev = next(p);
        bool closed = ev.call == slow && ev.kind == RPC_CLOSED;
        if (closed)
            assert_int_equal(ev.code, RPC_RESOURCE_EXHAUSTED);
        assert_true(ev.call == slow || ev.call == worker);
        rpc_event_clear(&ev);
        if (closed)
            return;
    }
}

static void logs_come_from_the_host_that_was_asked_and_end_with_it(void **state)
{
    struct fixture *p = *state;
    uint64_t worker = attach_host(p, host_id, false), c = logs(p, p->job, false),
             id = heard_ask(p, worker, false);
    say_lines(p, worker, id + 1000, "nobody asked\n", true);
    say_lines(p, worker, id, "one\n", false);
    say_lines(p, worker, id, "two\n", true);
    static const char *const want[] = {"one\n", "two\n"};
    for (int i = 0; i < 2; i++) {
        struct rpc_event ev = expect(p, c, RPC_MESSAGE);
        const Weft__V1__LogLines *l = (const void *)ev.message;
        assert_int_equal(l->text.len, 4);
        assert_memory_equal(l->text.data, want[i], 4);
        assert_string_equal(l->host, "w0");
        rpc_event_clear(&ev);
        rpc_more(p->client, c);
    }
    expect_closed(p, c, RPC_OK, "");
}

static void a_reader_that_goes_away_stops_what_the_host_sends(void **state)
{
    struct fixture *p = *state;
    uint64_t worker = attach_host(p, host_id, false), c = logs(p, p->job, true),
             id = heard_ask(p, worker, false);
    rpc_cancel(p->client, c);
    struct rpc_event ev = expect(p, c, RPC_CLOSED);
    rpc_event_clear(&ev);
    assert_int_equal(heard_ask(p, worker, true), id);
}

static void who_follows_logs_hears_of_a_host_that_left_and_finds_it_again(void **state)
{
    struct fixture *p = *state;
    uint64_t worker = attach_host(p, host_id, false), c = logs(p, p->job, true);
    (void)heard_ask(p, worker, false);
    rpc_cancel(p->client, worker);
    struct rpc_event ev;
    for (int closed = 0; closed < 2; closed++) { // in any order
        ev = next(p);
        assert_int_equal(ev.kind, RPC_CLOSED);
        assert_true(ev.call == worker || (ev.call == c && ev.code == RPC_OK));
        rpc_event_clear(&ev);
    }                          // the reader is to ask again, since only it knows what it has
    c = logs(p, p->job, true); // nobody is there yet
    worker = attach_host(p, host_id, false);
    uint64_t id = heard_ask(p, worker, false);
    say_lines(p, worker, id, "one\n", false);
    ev = expect(p, c, RPC_MESSAGE);
    rpc_event_clear(&ev);
}

static struct rpc_event server_event(struct fixture *p)
{
    struct rpc_event ev;
    assert_true(rpc_wait(p->server, PATIENCE));
    assert_true(rpc_next(p->server, &ev));
    return ev;
}

static void a_reader_that_goes_in_the_turn_it_came_leaves_nothing_behind(void **state)
{
    struct fixture *p = *state;
    struct arena a;
    struct coord_out out = {.arena = &a};
    uint64_t worker = attach_host(p, host_id, false), gone = logs(p, p->job, true);
    struct rpc_event ev = server_event(p);
    arena_init(&a);
    while (ev.kind != RPC_CALL) { // of the worker
        service_take(p->service, &ev, &out);
        rpc_event_clear(&ev);
        ev = server_event(p);
    }
    service_take(p->service, &ev, &out);
    rpc_event_clear(&ev);
    rpc_cancel(p->client, gone);
    for (bool closed = false; !closed;) {
        ev = server_event(p);
        closed = ev.kind == RPC_CLOSED;
        service_take(p->service, &ev, &out);
        rpc_event_clear(&ev);
    }
    settle(p, &out);
    ev = expect(p, gone, RPC_CLOSED);
    rpc_event_clear(&ev);
    uint64_t c = logs(p, p->job, false), id = heard_ask(p, worker, false);
    say_lines(p, worker, id, "one\n", true); // the only one that asks
    ev = expect(p, c, RPC_MESSAGE);
    rpc_event_clear(&ev);
    rpc_more(p->client, c);
    expect_closed(p, c, RPC_OK, "");
}

static void a_stream_speaks_for_one_host(void **state)
{
    struct fixture *p = *state;
    char nonce[64];
    uint64_t c = greet(p, host_id, nonce);
    say_register(p, c, other_id, nonce, false);
    expect_closed(p, c, RPC_PERMISSION_DENIED, "one host");
}

// ---- data of a submitted job ----

// What `n` workers are asked about the data of one job: the question's number.
static uint64_t heard_looks(struct fixture *p, const uint64_t *workers, int n)
{
    uint64_t id = 0;
    for (int heard_by = 0; heard_by < n;) {
        struct rpc_event ev = next(p);
        const Weft__V1__Down *d = (const Weft__V1__Down *)(const void *)ev.message;
        assert_int_equal(ev.kind, RPC_MESSAGE);
        assert_true(ev.call == workers[0] || ev.call == workers[n / 2] ||
                    ev.call == workers[n - 1]);
        rpc_more(p->client, ev.call);
        if (d->body_case == WEFT__V1__DOWN__BODY_STORAGE &&
            d->storage->op == WEFT__V1__STORAGE_OP__STORAGE_LOOK) {
            assert_int_equal(d->storage->n_paths, 2);
            assert_string_equal(d->storage->paths[1], "y");
            assert_true(d->storage->literal); // images and labels
            id = d->storage->attempt;
            heard_by++;
        }
        rpc_event_clear(&ev);
    }
    return id;
}

// The paths as bits; bits from 16 on are numbers that were not asked about.
static void say_missing(struct fixture *p, uint64_t c, uint64_t id, unsigned paths)
{
    int32_t missing[32];
    Weft__V1__StorageDone d;
    weft__v1__storage_done__init(&d);
    d.op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    d.attempt = id;
    d.ok = true;
    d.missing = missing;
    for (int i = 0; i < 32; i++)
        if (paths >> i & 1)
            missing[d.n_missing++] = i < 16 ? i : i % 2 ? i : -i;
    UP(STORAGE, storage, &d);
}

static void accepted(struct fixture *p, uint64_t c, const char *notice)
{
    struct rpc_event ev;
    for (; (ev = next(p)).call != c; rpc_event_clear(&ev)) // workers are told other things too
        rpc_more(p->client, ev.call);
    assert_int_equal(ev.kind, RPC_MESSAGE);
    const char *said = ((const Weft__V1__SubmitReply *)(const void *)ev.message)->notice;
    assert_memory_equal(said, notice, strlen(notice)); // jobs of its name are said behind it
    rpc_event_clear(&ev);
    expect_closed(p, c, RPC_OK, "");
}

// A job is submitted beside one to three workers with a device; the number of what they are asked.
static uint64_t submit_beside(struct fixture *p, uint64_t *w, int n, uint64_t *c)
{
    char *const ids[] = {host_id, other_id, third_id};
    for (int i = 0; i < n; i++)
        w[i] = attach_host(p, ids[i], true);
    *c = submit(p, "second", 12, "");
    return heard_looks(p, w, n);
}

static void a_job_is_refused_where_no_worker_has_its_data(void **state)
{
    struct fixture *p = *state;
    uint64_t w[3], c, id = submit_beside(p, w, 3, &c);
    say_missing(p, w[0], id, 0x3);
    say_missing(p, w[1], id, 0x1);
    say_missing(p, w[2], id, 0x1);
    expect_closed(p, c, RPC_INVALID_ARGUMENT,
                  "--data-root): data.train.images: x cannot be opened (w");
    assert_int_equal(count_jobs(p), 1);
    c = submit(p, "third", 12, "");
    id = heard_looks(p, w, 3);
    say_missing(p, w[0], id, 0x2);
    say_missing(p, w[1], id, 0);
    say_missing(p, w[2], id, 0);
    accepted(p, c, "");
    c = submit(p, "fourth", 12, "");
    say_missing(p, w[1], heard_looks(p, w, 3), 0x1); // who does not answer may have it
    accepted(p, c, "");
}

static void only_an_answer_to_the_question_that_was_asked_counts(void **state)
{
    struct fixture *p = *state;
    uint64_t unasked = attach_host(p, other_id, false), w, c, id = submit_beside(p, &w, 1, &c);
    say_missing(p, unasked, id, 0);
    say_missing(p, w, id + 1, 0);
    say_missing(p, w, id, 0x1);
    say_missing(p, w, id, 0); // once a question
    expect_closed(p, c, RPC_INVALID_ARGUMENT, "data.train.images: x cannot be opened (w0)");
    c = submit(p, "third", 12, "");
    id = heard_looks(p, &w, 1);
    say_missing(p, unasked, id, 0x3);
    say_missing(p, w, id - 1, 0x3);
    say_missing(p, w, id, 0xffff0000);
    accepted(p, c, "");
}

static void a_client_that_leaves_takes_its_question_along(void **state)
{
    struct fixture *p = *state;
    uint64_t w, c;
    (void)submit_beside(p, &w, 1, &c);
    rpc_cancel(p->client, c);
    expect_closed(p, c, RPC_CANCELLED, "");
    while (service_due(p->service)) // else the job would be taken when its time is over
        turn(p);
    assert_int_equal(count_jobs(p), 1); // the first
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_job_that_does_not_plan_is_refused_with_its_reason),
        CASE(a_repeated_request_is_answered_as_before),
        CASE(readers_learn_what_is_wrong),
        CASE(without_an_authority_nobody_joins),
        CASE(a_watcher_hears_each_state_until_the_job_rests),
        CASE(whoever_reads_too_slowly_loses_the_stream_and_nobody_else_does),
        CASE(logs_come_from_the_host_that_was_asked_and_end_with_it),
        CASE(a_reader_that_goes_away_stops_what_the_host_sends),
        CASE(who_follows_logs_hears_of_a_host_that_left_and_finds_it_again),
        CASE(a_reader_that_goes_in_the_turn_it_came_leaves_nothing_behind),
        CASE(a_stream_speaks_for_one_host),
        CASE(a_job_is_refused_where_no_worker_has_its_data),
        CASE(only_an_answer_to_the_question_that_was_asked_counts),
        CASE(a_client_that_leaves_takes_its_question_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
