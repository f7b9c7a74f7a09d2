// SPDX-License-Identifier: Apache-2.0
// common/rpc without TLS: each shape of call, back pressure, both ends' ways out, lost peers.
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "proto/health.pb-c.h"
#include "tests/unit/rpc_pair.h"

#define LOOPBACK "127.0.0.1:0"

// ---- shapes ----

static void unary_is_answered(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    call_act(&p, "job-1");
    serve_act(&p);
    expect_reply(&p, "job-1");
    pair_close(&p);
}

static void a_loopback_peer_is_local(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, "localhost:0");
    call_act(&p, "x");
    struct rpc_event ev = expect_event(p.server_rpc, RPC_CALL);
    assert_int_equal(ev.peer->role, RPC_LOCAL);
    assert_string_equal(ev.peer->name, "");
    assert_int_equal(strncmp(ev.peer->address, "ipv4:127.0.0.1:", 15), 0);
    rpc_event_clear(&ev);
    pair_close(&p);
}

static void ask_gives_the_reply(void **state)
{
    struct pair p = {0};
    struct err e = {0};
    enum rpc_code code;
    ProtobufCMessage *reply;
    Grpc__Health__V1__HealthCheckRequest m;
    grpc__health__v1__health_check_request__init(&m);
    static const struct rpc_method check = {
        .path = "/grpc.health.v1.Health/Check",
        .shape = RPC_UNARY,
        .request = &grpc__health__v1__health_check_request__descriptor,
        .reply = &grpc__health__v1__health_check_response__descriptor};
    (void)state;
    pair_open(&p, LOOPBACK);
    must(rpc_ask(p.client_rpc, p.channel, &check, &m.base, PATIENCE, &reply, &code, &e), &e);
    assert_int_equal(code, RPC_OK);
    assert_int_equal(((Grpc__Health__V1__HealthCheckResponse *)(void *)reply)->status,
                     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING);
    protobuf_c_message_free_unpacked(reply, NULL);
    rpc_serving(p.server, true);
    m.service = (char *)(uintptr_t) "weft.v1.Hosts";
    must(rpc_ask(p.client_rpc, p.channel, &check, &m.base, PATIENCE, &reply, &code, &e), &e);
    assert_int_equal(((Grpc__Health__V1__HealthCheckResponse *)(void *)reply)->status,
                     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
    protobuf_c_message_free_unpacked(reply, NULL);
    m.service = (char *)(uintptr_t) "weft.v1.Host";
    assert_int_equal(rpc_ask(p.client_rpc, p.channel, &check, &m.base, PATIENCE, &reply, &code, &e),
                     ERR_REFUSED);
    assert_int_equal(code, RPC_NOT_FOUND);
    assert_null(reply);
    pair_close(&p);
}

static void ask_of_nobody_is_a_lost_peer(void **state)
{
    struct pair p = {.serve.address = LOOPBACK};
    struct err e = {0};
    ProtobufCMessage *reply;
    Weft__V1__ActRequest m;
    weft__v1__act_request__init(&m);
    (void)state;
    pair_serve(&p);
    rpc_close(p.server_rpc);
    p.server_rpc = NULL;
    pair_dial(&p);
    assert_int_equal(
        rpc_ask(p.client_rpc, p.channel, &methods[ACT], &m.base, PATIENCE, &reply, NULL, &e),
        ERR_PEER);
    pair_close(&p);
}

static void ask_gives_up_when_it_is_told_to(void **state)
{
    struct pair p = {0};
    struct err e = {0};
    enum rpc_code code;
    ProtobufCMessage *reply;
    Weft__V1__ActRequest m;
    int stop[2];
    weft__v1__act_request__init(&m);
    (void)state;
    pair_open(&p, LOOPBACK);
    assert_int_equal(pipe(stop), 0);
    assert_int_equal(write(stop[1], "", 1), 1);
    rpc_cancel_on(p.client_rpc, stop[0]);
    assert_int_equal(rpc_ask(p.client_rpc, p.channel, &methods[ACT], &m.base, 0, &reply, &code, &e),
                     ERR_REFUSED); // nobody answers, and there is no deadline
    assert_int_equal(code, RPC_CANCELLED);
    assert_null(reply);
    pair_close(&p);
    close(stop[0]);
    close(stop[1]);
}

static void send_lines(struct pair *p, uint64_t call, int n)
{
    for (int i = 0; i < n; i++) {
        Weft__V1__LogLines lines;
        weft__v1__log_lines__init(&lines);
        lines.rank = i;
        assert_int_equal(rpc_send(p->server_rpc, call, &lines.base, NULL), 0);
    }
}

static void a_server_stream_brings_all_in_order_then_ends(void **state)
{
    struct pair p = {0};
    Weft__V1__LogsRequest m;
    weft__v1__logs_request__init(&m);
    (void)state;
    p.serve.keepalive_ns = p.dial.keepalive_ns = 2 * PATIENCE; // no ping may push it out
    pair_open(&p, LOOPBACK);
    m.job = (char *)(uintptr_t) "j";
    rpc_call(p.channel, &methods[LOGS], &m.base, 0, false, NULL);
    struct rpc_event ev = expect_event(p.server_rpc, RPC_CALL);
    assert_string_equal(((Weft__V1__LogsRequest *)(void *)ev.message)->job, "j");
    send_lines(&p, ev.call, 50);
    char words[RPC_TEXT_MAX + 100]; // longer than what is kept of them
    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = 0;
    rpc_finish(p.server_rpc, ev.call, RPC_FAILED_PRECONDITION, words);
    rpc_event_clear(&ev);
    for (int i = 0; i < 50; i++) {
        ev = expect_event(p.client_rpc, RPC_MESSAGE);
        assert_int_equal(((Weft__V1__LogLines *)(void *)ev.message)->rank, i);
        rpc_more(p.client_rpc, ev.call);
        rpc_event_clear(&ev);
    }
    pass_event(p.client_rpc, RPC_END);
    ev = expect_event(p.client_rpc, RPC_CLOSED);
    assert_int_equal(ev.code, RPC_FAILED_PRECONDITION);
    words[RPC_TEXT_MAX - 1] = 0;
    assert_string_equal(ev.text, words);
    rpc_event_clear(&ev);
    expect_closed(p.server_rpc, RPC_FAILED_PRECONDITION);
    pair_close(&p);
}

static void a_bidi_call_talks_both_ways_until_half_close(void **state)
{
    struct pair p = {0};
    int server_user;
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t up = call_attach(&p, false);
    uint64_t down = pass_event(p.server_rpc, RPC_CALL);
    rpc_set_user(p.server_rpc, down, &server_user);
    for (uint64_t i = 1; i <= 20; i++) {
        assert_int_equal(send_up(&p, up, i), 0);
        struct rpc_event ev = expect_event(p.server_rpc, RPC_MESSAGE);
        assert_int_equal(seq_up(&ev), i);
        assert_ptr_equal(ev.user, &server_user);
        rpc_event_clear(&ev);
        rpc_more(p.server_rpc, down);
        assert_int_equal(send_down(&p, down, i * i), 0);
        ev = expect_event(p.client_rpc, RPC_MESSAGE);
        assert_int_equal(seq_down(&ev), i * i);
        rpc_event_clear(&ev);
        rpc_more(p.client_rpc, up);
    }
    rpc_finish(p.client_rpc, up, RPC_OK, NULL);
    pass_event(p.server_rpc, RPC_END);
    rpc_finish(p.server_rpc, down, RPC_OK, "");
    expect_closed(p.server_rpc, RPC_OK);
    pass_event(p.client_rpc, RPC_END);
    expect_closed(p.client_rpc, RPC_OK);
    assert_int_equal(send_down(&p, down, 1), 0); // a late answer does nothing
    rpc_cancel(p.client_rpc, up);
    pair_close(&p);
}

// ---- back pressure ----

enum { CHUNK = 64 << 10 };

static int send_chunk(struct pair *p, uint64_t call, int32_t number)
{
    static uint8_t blob[CHUNK];
    Weft__V1__LogChunk chunk;
    weft__v1__log_chunk__init(&chunk);
    Weft__V1__Up up;
    weft__v1__up__init(&up);
    chunk.rank = number;
    chunk.text.data = blob;
    chunk.text.len = sizeof blob;
    up.body_case = WEFT__V1__UP__BODY_LOG;
    up.log = &chunk;
    return rpc_send(p->client_rpc, call, &up.base, NULL);
}

// The server does not read: the client's queue fills, says so, and later says that there is room.
static void a_slow_server_holds_its_client_back(void **state)
{
    struct pair p = {0};
    int32_t sent = 0;
    int rc;
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t up = call_attach(&p, false);
    uint64_t down = pass_event(p.server_rpc, RPC_CALL);
    assert_false(rpc_lags(p.client_rpc, up));
    while (!(rc = send_chunk(&p, up, sent)))
        sent++;
    assert_int_equal(rc, ERR_LIMIT);
    assert_true(rpc_lags(p.client_rpc, up));
    assert_true(sent >= RPC_QUEUE_MAX / (CHUNK + 100));
    assert_true(sent < 2 * RPC_QUEUE_MAX / CHUNK);
    pass_event(p.server_rpc, RPC_MESSAGE); // the first comes unasked, the second does not
    assert_false(rpc_wait(p.server_rpc, 50 * CLOCK_MS));
    bool room = false;
    for (int32_t i = 1; i < sent; i++) {
        rpc_more(p.server_rpc, down);
        struct rpc_event ev = expect_event(p.server_rpc, RPC_MESSAGE);
        assert_int_equal(((Weft__V1__Up *)(void *)ev.message)->log->rank, i);
        rpc_event_clear(&ev);
        if (!room && rpc_next(p.client_rpc, &ev)) {
            assert_int_equal(ev.kind, RPC_ROOM);
            room = true;
        }
    }
    if (!room)
        pass_event(p.client_rpc, RPC_ROOM);
    assert_false(rpc_lags(p.client_rpc, up));
    assert_int_equal(send_chunk(&p, up, 0), 0);
    pair_close(&p);
}

static void a_slow_client_holds_its_server_back(void **state)
{
    struct pair p = {0};
    int sent = 0, got = 0;
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t up = call_attach(&p, false);
    uint64_t down = pass_event(p.server_rpc, RPC_CALL);
    while (!send_down(&p, down, (uint64_t)sent))
        sent++; // small messages: their number is the limit
    assert_true(sent >= RPC_QUEUE_MESSAGES);
    assert_true(rpc_lags(p.server_rpc, down));
    bool room = false;
    while (got < sent) {
        struct rpc_event ev = expect_event(p.client_rpc, RPC_MESSAGE);
        assert_int_equal(seq_down(&ev), got++);
        rpc_event_clear(&ev);
        rpc_more(p.client_rpc, up);
        if (!room && rpc_next(p.server_rpc, &ev)) {
            assert_int_equal(ev.kind, RPC_ROOM);
            room = true;
        }
    }
    if (!room)
        pass_event(p.server_rpc, RPC_ROOM);
    pair_close(&p);
}

// ---- ends ----

static void a_client_that_cancels_is_seen_by_the_server(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t up = call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    rpc_cancel(p.client_rpc, up);
    pass_event(p.client_rpc, RPC_END);
    expect_closed(p.client_rpc, RPC_CANCELLED);
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    pair_close(&p);
}

static void a_server_that_cancels_is_seen_by_the_client(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    call_attach(&p, false);
    uint64_t down = pass_event(p.server_rpc, RPC_CALL);
    rpc_cancel(p.server_rpc, down);
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_CANCELLED);
    pair_close(&p);
}

static void a_deadline_ends_both_ends(void **state)
{
    struct pair p = {0};
    Weft__V1__ActRequest m;
    weft__v1__act_request__init(&m);
    (void)state;
    struct rpc_event ev;
    pair_open(&p, LOOPBACK);
    int64_t ms = 150;
    do { // until the call comes to the server in time
        rpc_call(p.channel, &methods[ACT], &m.base, (ms *= 2) * CLOCK_MS, false, NULL);
        expect_closed(p.client_rpc, RPC_DEADLINE_EXCEEDED);
    } while (!rpc_next(p.server_rpc, &ev));
    assert_int_equal(ev.kind, RPC_CALL);
    rpc_event_clear(&ev);
    expect_closed(p.server_rpc, RPC_CANCELLED);
    pair_close(&p);
}

static void a_client_gone_ends_its_calls(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    call_attach(&p, false);
    call_act(&p, "x");
    pass_event(p.server_rpc, RPC_CALL);
    pass_event(p.server_rpc, RPC_CALL);
    rpc_close(p.client_rpc);
    p.client_rpc = NULL;
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    pair_close(&p);
}

static void hanging_up_cancels_the_channels_calls_alone(void **state)
{
    struct pair p = {0};
    struct rpc_channel *other;
    struct err e = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    must(rpc_dial(p.client_rpc, &p.dial, &other, &e), &e);
    call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    rpc_hang_up(p.channel);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_CANCELLED);
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    p.channel = other;
    call_act(&p, "still");
    serve_act(&p);
    expect_reply(&p, "still");
    pair_close(&p);
}

static void a_stream_opened_while_the_server_is_away_waits_for_its_return(void **state)
{
    struct pair p = {0};
    (void)state;
    p.dial.max_backoff_ns = 200 * CLOCK_MS;
    pair_open(&p, LOOPBACK);
    call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    rpc_close(p.server_rpc);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_UNAVAILABLE);
    call_act(&p, "not now"); // does not wait
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_UNAVAILABLE);
    uint64_t up = call_attach(&p, true);
    assert_false(rpc_wait(p.client_rpc, 300 * CLOCK_MS));
    pair_serve(&p); // on the same port
    send_up(&p, up, 7);
    pass_event(p.server_rpc, RPC_CALL);
    struct rpc_event ev = expect_event(p.server_rpc, RPC_MESSAGE);
    assert_int_equal(seq_up(&ev), 7);
    rpc_event_clear(&ev);
    pair_close(&p);
}

static void closing_the_server_ends_open_calls_with_a_reason(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    call_attach(&p, false);
    uint64_t down = pass_event(p.server_rpc, RPC_CALL);
    for (uint64_t i = 0; i < 3; i++)
        send_down(&p, down, i); // what was said before still arrives
    rpc_close(p.server_rpc);
    p.server_rpc = NULL;
    for (uint64_t i = 0; i < 3; i++) {
        struct rpc_event ev = expect_event(p.client_rpc, RPC_MESSAGE);
        assert_int_equal(seq_down(&ev), i);
        rpc_more(p.client_rpc, ev.call);
        rpc_event_clear(&ev);
    }
    pass_event(p.client_rpc, RPC_END);
    struct rpc_event ev = expect_event(p.client_rpc, RPC_CLOSED);
    assert_int_equal(ev.code, RPC_UNAVAILABLE);
    assert_string_equal(ev.text, "the server is closing");
    rpc_event_clear(&ev);
    pair_close(&p);
}

static void closing_with_open_calls_of_every_shape_leaves_nothing(void **state)
{
    struct pair p = {0};
    Weft__V1__LogsRequest m;
    weft__v1__logs_request__init(&m);
    (void)state;
    for (int round = 0; round < 3; round++) { // open and close may be repeated
        p = (struct pair){0};
        pair_open(&p, LOOPBACK);
        for (int i = 0; i < 5; i++) {
            call_attach(&p, false);
            call_act(&p, "x");
            rpc_call(p.channel, &methods[LOGS], &m.base, 0, false, NULL);
        }
        for (int i = 0; i < 15; i++)
            pass_event(p.server_rpc, RPC_CALL);
        pair_close(&p);
    }
}

// ---- peers that stop, garbage ----

// A child serves until it is stopped by SIGSTOP: its kernel still answers, it does not.
static pid_t child_server(int to_parent)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    struct pair p = {.serve.address = LOOPBACK};
    pair_serve(&p);
    if (write(to_parent, p.bound, sizeof p.bound) != sizeof p.bound)
        _exit(1);
    for (;;)
        pause();
}

static void a_stopped_server_is_noticed(void **state)
{
    struct pair p = {.dial.keepalive_ns = 300 * CLOCK_MS};
    int pipes[2];
    (void)state;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = child_server(pipes[1]); // before this process has a core of its own
    assert_int_equal(read(pipes[0], p.bound, sizeof p.bound), (ssize_t)sizeof p.bound);
    pair_dial(&p);
    uint64_t up = call_attach(&p, false);
    assert_int_equal(send_up(&p, up, 1), 0);
    assert_false(rpc_wait(p.client_rpc, 2 * CLOCK_S)); // a quiet stream lives
    kill(pid, SIGSTOP);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_UNAVAILABLE);
    rpc_close(p.client_rpc);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
}

static int raw_connect(const char *bound)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strrchr(bound, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void garbage_on_the_port_harms_nobody(void **state)
{
    struct pair p = {0};
    char junk[512];
    (void)state;
    pair_open(&p, LOOPBACK);
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (char)(i * 37);
    int fd = raw_connect(p.bound);
    assert_int_equal(send(fd, junk, sizeof junk, MSG_NOSIGNAL), (ssize_t)sizeof junk);
    while (recv(fd, junk, sizeof junk, 0) > 0)
        ; // the server hangs up
    close(fd);
    call_act(&p, "x");
    serve_act(&p);
    expect_reply(&p, "x");
    pair_close(&p);
}

// Whether a thread blocks every signal that can be blocked.
static bool blocks_all(const char *tid)
{
    char path[300], line[256];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    if (f)
        fclose(f);
    unsigned long long needed = 0;
    for (int s = 1; s <= 31; s++)
        if (s != SIGKILL && s != SIGSTOP)
            needed |= 1ULL << (s - 1);
    return (mask & needed) == needed;
}

static void signals_come_to_the_owner_alone(void **state)
{
    struct pair p = {0};
    char main_tid[20];
    int threads = 0;
    (void)state;
    pair_open(&p, LOOPBACK);
    call_act(&p, "x");
    serve_act(&p);
    expect_reply(&p, "x");
    snprintf(main_tid, sizeof main_tid, "%d", getpid());
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *t; (t = readdir(d));) {
        if (t->d_name[0] == '.' || !strcmp(t->d_name, main_tid))
            continue;
        assert_true(blocks_all(t->d_name));
        threads++;
    }
    closedir(d);
    assert_true(threads >= 2);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_server_is_noticed), // first: it forks
        cmocka_unit_test(unary_is_answered),
        cmocka_unit_test(a_loopback_peer_is_local),
        cmocka_unit_test(ask_gives_the_reply),
        cmocka_unit_test(ask_of_nobody_is_a_lost_peer),
        cmocka_unit_test(ask_gives_up_when_it_is_told_to),
        cmocka_unit_test(a_server_stream_brings_all_in_order_then_ends),
        cmocka_unit_test(a_bidi_call_talks_both_ways_until_half_close),
        cmocka_unit_test(a_slow_server_holds_its_client_back),
        cmocka_unit_test(a_slow_client_holds_its_server_back),
        cmocka_unit_test(a_client_that_cancels_is_seen_by_the_server),
        cmocka_unit_test(a_server_that_cancels_is_seen_by_the_client),
        cmocka_unit_test(a_deadline_ends_both_ends),
        cmocka_unit_test(a_client_gone_ends_its_calls),
        cmocka_unit_test(hanging_up_cancels_the_channels_calls_alone),
        cmocka_unit_test(a_stream_opened_while_the_server_is_away_waits_for_its_return),
        cmocka_unit_test(closing_the_server_ends_open_calls_with_a_reason),
        cmocka_unit_test(closing_with_open_calls_of_every_shape_leaves_nothing),
        cmocka_unit_test(garbage_on_the_port_harms_nobody),
        cmocka_unit_test(signals_come_to_the_owner_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
