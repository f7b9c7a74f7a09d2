// SPDX-License-Identifier: Apache-2.0
// What common/rpc refuses and where it listens: unknown, malformed, oversize, too many; addresses,
// sockets; and the health service.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/rpc/rate_limit.h"
#include "proto/health.pb-c.h"
#include "tests/unit/rpc_pair.h"

#define LOOPBACK "127.0.0.1:0"

// ---- limits and refusals ----

static void an_unknown_method_is_unimplemented(void **state)
{
    struct pair p = {0};
    struct rpc_method m = methods[ACT];
    Weft__V1__ActRequest request;
    weft__v1__act_request__init(&request);
    (void)state;
    pair_open(&p, LOOPBACK);
    m.path = "/weft.v1.Weft/Frobnicate";
    rpc_call(p.channel, &m, &request.base, PATIENCE, false, NULL);
    expect_closed(p.client_rpc, RPC_UNIMPLEMENTED);
    pair_close(&p);
}

// ActRequest's first field is a string; a Heartbeat brings a number there.
static void a_malformed_message_is_an_invalid_argument(void **state)
{
    struct pair p = {0};
    struct rpc_method m = methods[ACT];
    Weft__V1__Heartbeat beat;
    weft__v1__heartbeat__init(&beat);
    (void)state;
    pair_open(&p, LOOPBACK);
    m.request = &weft__v1__heartbeat__descriptor;
    beat.seq = 5;
    rpc_call(p.channel, &m, &beat.base, PATIENCE, false, NULL);
    expect_closed(p.client_rpc, RPC_INVALID_ARGUMENT);
    assert_false(rpc_wait(p.server_rpc, 20 * CLOCK_MS)); // its owner never hears of it
    pair_close(&p);
}

static void a_malformed_message_in_a_stream_ends_it(void **state)
{
    struct pair p = {0};
    Weft__V1__ActRequest wrong;
    weft__v1__act_request__init(&wrong);
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t up = call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    wrong.request_id = (char *)(uintptr_t) "\xff\xff\xff"; // no Hello
    assert_int_equal(rpc_send(p.client_rpc, up, &wrong.base, NULL), 0);
    expect_closed(p.server_rpc, RPC_INVALID_ARGUMENT);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_INVALID_ARGUMENT);
    pair_close(&p);
}

static void a_message_over_the_methods_limit_is_refused(void **state)
{
    struct pair p = {0};
    static struct rpc_method small[1];
    struct err e = {0};
    char *target = malloc(2000);
    (void)state;
    small[0] = methods[ACT];
    small[0].max_request = 1000;
    must(rpc_open(&p.server_rpc, &e), &e);
    p.serve = (struct rpc_server_options){.address = LOOPBACK, .methods = small, .nmethods = 1};
    must(rpc_serve(p.server_rpc, &p.serve, &p.server, p.bound, sizeof p.bound, &e), &e);
    pair_dial(&p);
    memset(target, 'x', 1999);
    target[1999] = 0;
    call_act(&p, target);
    expect_closed(p.client_rpc, RPC_RESOURCE_EXHAUSTED);
    target[900] = 0;
    call_act(&p, target);
    struct rpc_event ev = expect_event(p.server_rpc, RPC_CALL);
    rpc_event_clear(&ev);
    free(target);
    pair_close(&p);
}

static void a_message_over_all_limits_is_refused_where_it_is_sent(void **state)
{
    struct pair p = {0};
    size_t size = RPC_MESSAGE_MAX + 1;
    char *target = malloc(size + 1);
    Weft__V1__Hello hello;
    weft__v1__hello__init(&hello);
    Weft__V1__Up up;
    weft__v1__up__init(&up);
    (void)state;
    memset(target, 'x', size);
    target[size] = 0;
    pair_open(&p, LOOPBACK);
    call_act(&p, target);
    expect_closed(p.client_rpc, RPC_RESOURCE_EXHAUSTED);
    uint64_t call = call_attach(&p, false);
    hello.host = target;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    assert_int_equal(rpc_send(p.client_rpc, call, &up.base, NULL), ERR_INVALID);
    free(target);
    pair_close(&p);
}

static void calls_over_the_limit_are_refused_at_once(void **state)
{
    struct pair p = {.serve.max_calls = 2};
    (void)state;
    pair_open(&p, LOOPBACK);
    uint64_t first = call_attach(&p, false);
    call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    pass_event(p.server_rpc, RPC_CALL);
    call_attach(&p, false);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_RESOURCE_EXHAUSTED);
    rpc_cancel(p.client_rpc, first); // one goes, one may come
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_CANCELLED);
    assert_int_equal(skip_to_closed(p.server_rpc), RPC_CANCELLED);
    call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    pair_close(&p);
}

static void peers_over_the_limit_are_refused(void **state)
{
    struct pair p = {.serve.max_connections = 1};
    struct rpc_channel *first;
    struct err e = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    call_attach(&p, false);
    pass_event(p.server_rpc, RPC_CALL);
    first = p.channel;
    must(rpc_dial(p.client_rpc, &p.dial, &p.channel, &e), &e);
    call_attach(&p, false);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_RESOURCE_EXHAUSTED);
    p.channel = first;
    call_attach(&p, false); // the known peer may have more
    pass_event(p.server_rpc, RPC_CALL);
    pair_close(&p);
}

static void a_caller_that_calls_too_often_is_told_and_may_again_when_time_has_passed(void **state)
{
    struct pair p = {.serve.calls_per_s = 1}; // four at once, then one a second
    (void)state;
    pair_open(&p, LOOPBACK);
    for (int i = 0; i < 4; i++) {
        call_attach(&p, false);
        pass_event(p.server_rpc, RPC_CALL);
    }
    int64_t end = clock_mono_ns() + PATIENCE;
    call_attach(&p, false);
    assert_int_equal(skip_to_closed(p.client_rpc), RPC_RESOURCE_EXHAUSTED);
    for (enum rpc_code code = RPC_RESOURCE_EXHAUSTED; code == RPC_RESOURCE_EXHAUSTED;) {
        assert_true(clock_mono_ns() < end);
        uint64_t call = call_attach(&p, false);
        rpc_wait(p.server_rpc, CLOCK_S / 20);
        struct rpc_event ev;
        if (rpc_next(p.server_rpc, &ev)) { // it was let in
            assert_int_equal(ev.kind, RPC_CALL);
            rpc_event_clear(&ev);
            rpc_cancel(p.client_rpc, call);
        }
        code = skip_to_closed(p.client_rpc);
    }
    pair_close(&p);
}

// Buckets fill with time, one caller's is not another's, and a crowd of names shares one.
static void turns_come_back_with_time_and_a_crowd_of_names_costs_bounded_memory(void **state)
{
    struct rate r;
    char name[32];
    int64_t now = 77 * CLOCK_S;
    (void)state;
    rate_init(&r, 2);
    for (int i = 0; i < 8; i++)
        assert_true(rate_take(&r, "a", now));
    assert_false(rate_take(&r, "a", now));
    assert_true(rate_take(&r, "b", now));
    assert_false(rate_take(&r, "a", now + CLOCK_S / 2 - 1000000));
    assert_true(rate_take(&r, "a", now + CLOCK_S / 2 + 1000000));
    assert_false(rate_take(&r, "a", now + CLOCK_S / 2 + 1000000));
    for (int i = 0; i < 3 * RATE_CALLERS; i++) {
        snprintf(name, sizeof name, "n%d", i);
        (void)rate_take(&r, name, now + CLOCK_S);
    }
    assert_true(r.callers.n <= RATE_CALLERS + 1);
    assert_false(rate_take(&r, "one more", now + CLOCK_S)); // the shared bucket is empty
    assert_true(rate_take(&r, "one more", now + 60 * CLOCK_S));
    rate_clear(&r);
}

static void sixty_four_calls_at_once_each_get_their_own_answer(void **state)
{
    enum { N = 64 };
    struct pair p = {0};
    bool seen[N] = {0};
    char name[N][8];
    uint64_t calls[N];
    (void)state;
    pair_open(&p, LOOPBACK);
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "%d", i);
        calls[i] = call_act(&p, name[i]);
    }
    for (int answered = 0, closed = 0; answered < N || closed < N;) {
        struct rpc_event ev;
        for (; rpc_next(p.server_rpc, &ev); rpc_event_clear(&ev)) {
            if (ev.kind != RPC_CALL)
                continue;
            Weft__V1__ActReply reply;
            weft__v1__act_reply__init(&reply);
            reply.target = ((Weft__V1__ActRequest *)(void *)ev.message)->target;
            rpc_reply(p.server_rpc, ev.call, &reply.base);
        }
        for (; rpc_next(p.client_rpc, &ev); rpc_event_clear(&ev)) {
            closed += ev.kind == RPC_CLOSED;
            if (ev.kind != RPC_MESSAGE)
                continue;
            int i = atoi(((Weft__V1__ActReply *)(void *)ev.message)->target);
            assert_false(seen[i]);
            assert_true(ev.call == calls[i]);
            seen[i] = true;
            answered++;
        }
        rpc_wait(p.client_rpc, CLOCK_MS);
    }
    pair_close(&p);
}

// ---- addresses ----

static int serve_code(const char *address)
{
    struct rpc *r;
    struct rpc_server *s;
    struct err e = {0};
    struct rpc_server_options o = {.address = address, .methods = methods, .nmethods = NMETHODS};
    must(rpc_open(&r, &e), &e);
    int rc = rpc_serve(r, &o, &s, NULL, 0, &e);
    rpc_close(r);
    return rc;
}

static int dial_code(const char *address)
{
    struct rpc *r;
    struct rpc_channel *c;
    struct err e = {0};
    struct rpc_channel_options o = {.address = address};
    must(rpc_open(&r, &e), &e);
    int rc = rpc_dial(r, &o, &c, &e);
    rpc_close(r);
    return rc;
}

static void without_tls_nothing_leaves_the_machine(void **state)
{
    static const char *const beyond[] = {
        "0.0.0.0:0",         "[::]:0",          "10.1.2.3:80",        "example.com:80",
        "127.0.0.1.evil:80", "128.0.0.1:80",    "ipv4:127.0.0.1:80",  "dns:///localhost:80",
        "127.1:80",          "unix-abstract:x", "[::ffff:1.2.3.4]:80"};
    (void)state;
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_int_equal(serve_code(beyond[i]), ERR_INVALID);
        assert_int_equal(dial_code(beyond[i]), ERR_INVALID);
    }
    assert_int_equal(serve_code("127.5.6.7:0"), 0);
    assert_int_equal(dial_code("127.5.6.7:80"), 0);
    assert_int_equal(dial_code("[::1]:80"), 0);
}

static void broken_addresses_are_refused(void **state)
{
    static const char *const broken[] = {
        "",      "127.0.0.1", "127.0.0.1:",   ":80",    "127.0.0.1:70000",
        "unix:", "unix:a",    "127.0.0.1:8x", "::1:80", "/tmp/sock"};
    char path[200] = "unix:/tmp/";
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_int_equal(serve_code(broken[i]), ERR_INVALID);
    memset(path + strlen(path), 'a', 150);
    assert_int_equal(serve_code(path), ERR_INVALID);
    assert_int_equal(dial_code("127.0.0.1:0"), ERR_INVALID);
}

static void two_servers_on_one_port_are_refused(void **state)
{
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    assert_int_equal(serve_code(p.bound), ERR_IO);
    call_act(&p, "x"); // the first one is unharmed
    serve_act(&p);
    expect_reply(&p, "x");
    pair_close(&p);
}

static void a_unix_socket_is_its_owners_alone(void **state)
{
    struct pair p = {0};
    char dir[] = "/tmp/weft-rpc-XXXXXX", address[100];
    struct stat st;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof address, "unix:%s/s", dir);
    umask(0);
    pair_open(&p, address);
    assert_string_equal(p.bound, address);
    assert_int_equal(stat(address + 5, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(umask(022), 0);
    call_act(&p, "x");
    serve_act(&p);
    expect_reply(&p, "x");
    pair_close(&p);
    unlink(address + 5);
    assert_int_equal(rmdir(dir), 0);
}

static void a_dead_servers_socket_file_is_replaced(void **state)
{
    struct pair p = {0};
    char dir[] = "/tmp/weft-rpc-XXXXXX", address[100];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof address, "unix:%s/s", dir);
    snprintf(a.sun_path, sizeof a.sun_path, "%s/s", dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd); // as after kill -9
    pair_open(&p, address);
    call_act(&p, "x");
    serve_act(&p);
    expect_reply(&p, "x");
    pair_close(&p);
    unlink(a.sun_path);
    assert_int_equal(rmdir(dir), 0);
}

// ---- health ----

static void a_health_watcher_hears_every_change(void **state)
{
    static const struct rpc_method watch = {
        .path = "/grpc.health.v1.Health/Watch",
        .shape = RPC_SERVER_STREAM,
        .request = &grpc__health__v1__health_check_request__descriptor,
        .reply = &grpc__health__v1__health_check_response__descriptor};
    static const Grpc__Health__V1__HealthCheckResponse__ServingStatus story[] = {
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING,
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING,
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING,
    };
    Grpc__Health__V1__HealthCheckRequest m;
    grpc__health__v1__health_check_request__init(&m);
    struct pair p = {0};
    (void)state;
    pair_open(&p, LOOPBACK);
    rpc_call(p.channel, &watch, &m.base, 0, false, NULL);
    for (size_t i = 0; i < 3; i++) {
        struct rpc_event ev = expect_event(p.client_rpc, RPC_MESSAGE);
        assert_int_equal(((Grpc__Health__V1__HealthCheckResponse *)(void *)ev.message)->status,
                         story[i]);
        rpc_more(p.client_rpc, ev.call);
        rpc_event_clear(&ev);
        rpc_serving(p.server, i == 0);
    }
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_method_is_unimplemented),
        cmocka_unit_test(a_malformed_message_is_an_invalid_argument),
        cmocka_unit_test(a_malformed_message_in_a_stream_ends_it),
        cmocka_unit_test(a_message_over_the_methods_limit_is_refused),
        cmocka_unit_test(a_message_over_all_limits_is_refused_where_it_is_sent),
        cmocka_unit_test(calls_over_the_limit_are_refused_at_once),
        cmocka_unit_test(peers_over_the_limit_are_refused),
        cmocka_unit_test(a_caller_that_calls_too_often_is_told_and_may_again_when_time_has_passed),
        cmocka_unit_test(turns_come_back_with_time_and_a_crowd_of_names_costs_bounded_memory),
        cmocka_unit_test(sixty_four_calls_at_once_each_get_their_own_answer),
        cmocka_unit_test(without_tls_nothing_leaves_the_machine),
        cmocka_unit_test(broken_addresses_are_refused),
        cmocka_unit_test(two_servers_on_one_port_are_refused),
        cmocka_unit_test(a_unix_socket_is_its_owners_alone),
        cmocka_unit_test(a_dead_servers_socket_file_is_replaced),
        cmocka_unit_test(a_health_watcher_hears_every_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
