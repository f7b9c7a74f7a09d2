// SPDX-License-Identifier: Apache-2.0
// The guard of a server's connections, over plain sockets of this process: who is turned away when
// too many hold a connection without a call, and who stays.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "common/rpc/guard.h"
#include "tests/unit/rpc_pair.h"

enum { FLOOD = GUARD_MOST + 100, FEW = 20 };

struct link { // both ends of a connection
    int out, in;
    char peer[80]; // as gRPC would print it
};
struct port {
    int listener, number;
    struct link v[FLOOD + FEW + 8];
    int n;
};

static void listen_here(struct port *p)
{
    struct rlimit most;
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t size = sizeof a;
    *p = (struct port){0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &most), 0);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(p->listener, 1000), 0);
    assert_int_equal(getsockname(p->listener, (struct sockaddr *)&a, &size), 0);
    p->number = ntohs(a.sin_port);
}

// Begins to connect; `host` is 127.0.0.HOST.
static int begin_link(struct port *p, int host)
{
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)host)},
                       to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)p->number),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_true(!connect(fd, (struct sockaddr *)&to, sizeof to) || errno == EINPROGRESS);
    return fd;
}

static struct link *take_link(struct port *p, int out)
{
    struct link *l = &p->v[p->n++];
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    l->out = out;
    l->in = accept(p->listener, (struct sockaddr *)&a, &size);
    assert_true(l->in >= 0);
    snprintf(l->peer, sizeof l->peer, "ipv4:%s:%d", inet_ntoa(a.sin_addr), ntohs(a.sin_port));
    return l;
}

static struct link *connect_from(struct port *p, int host)
{
    return take_link(p, begin_link(p, host));
}

static bool is_shut(const struct link *l)
{
    char byte;
    return recv(l->in, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static int count_shut(const struct port *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        n += is_shut(&p->v[i]);
    return n;
}

static void wait_for_shut(const struct port *p, int want)
{
    int64_t end = clock_mono_ns() + PATIENCE;
    while (count_shut(p) < want && clock_mono_ns() < end)
        clock_sleep_ms(5);
    assert_int_equal(count_shut(p), want);
}

static void close_all(struct port *p)
{
    for (int i = 0; i < p->n; i++) {
        close(p->v[i].in);
        close(p->v[i].out);
    }
    p->n = 0;
}

static void of_too_many_the_ones_of_the_crowded_host_go(void **state)
{
    static struct port p;
    (void)state;
    listen_here(&p);
    const struct link *caller = connect_from(&p, 1); // the longest silent of all
    for (int i = 0; i < FEW; i++)
        connect_from(&p, 2);
    for (int i = 0; i < FLOOD; i++)
        connect_from(&p, 1);
    struct guard *g = guard_new(p.number);
    guard_calls(g, caller->peer, true);
    wait_for_shut(&p, FLOOD + FEW - GUARD_MOST);
    assert_false(is_shut(caller));
    for (int i = 1; i <= FEW; i++)
        assert_false(is_shut(&p.v[i]));
    guard_free(g);
    close_all(&p);
    close(p.listener);
}

// The core has not closed yet who was shut down when the other host is the crowded one.
static void who_was_shut_down_is_turned_away_once(void **state)
{
    enum { MORE = GUARD_MOST / 2 + 60, LESS = GUARD_MOST / 2 + 40, SHUT = 100, CALLERS = 40 };
    static struct port p;
    (void)state;
    listen_here(&p);
    for (int i = 0; i < MORE; i++)
        connect_from(&p, 1);
    for (int i = 0; i < LESS; i++)
        connect_from(&p, 2);
    struct guard *g = guard_new(p.number);
    wait_for_shut(&p, SHUT);
    for (int i = 0, callers = 0; i < MORE && callers < CALLERS; i++) {
        if (is_shut(&p.v[i]))
            continue;
        guard_calls(g, p.v[i].peer, true);
        callers++;
    }
    clock_sleep_ms(300); // it looks every 10 ms
    assert_int_equal(count_shut(&p), SHUT);
    guard_free(g);
    close_all(&p);
    close(p.listener);
}

static bool is_connected(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && !(p.revents & (POLLERR | POLLHUP));
}

static void wait_for_connected(int fd)
{
    for (int64_t end = clock_mono_ns() + PATIENCE; !is_connected(fd);) {
        assert_true(clock_mono_ns() < end);
        clock_sleep_ms(5); // the system tries again after a second
    }
}

// As many links as the guard takes for a flood.
static struct guard *begin_flood(struct port *p)
{
    listen_here(p);
    for (int i = 0; i < FLOOD; i++)
        connect_from(p, 1);
    struct guard *g = guard_new(p->number);
    wait_for_shut(p, FLOOD - GUARD_MOST);
    return g;
}

static void nobody_new_comes_in_before_the_crowd_is_gone(void **state)
{
    static struct port p;
    (void)state;
    struct guard *g = begin_flood(&p);
    int late = begin_link(&p, 1); // those who were shut down are still held by the server
    assert_false(is_connected(late));
    close_all(&p);
    wait_for_connected(late);
    take_link(&p, late);
    assert_false(is_shut(&p.v[0]));
    guard_free(g);
    close_all(&p);
    close(p.listener);
}

// Who does not flood comes in all the same, from an address of its own.
static void a_flood_keeps_out_its_own_host_alone(void **state)
{
    static struct port p;
    (void)state;
    struct guard *g = begin_flood(&p);
    int same = begin_link(&p, 1), other = begin_link(&p, 2);
    wait_for_connected(other);
    assert_false(is_shut(take_link(&p, other)));
    assert_false(is_connected(same));
    guard_free(g);
    close_all(&p);
    close(same);
    close(p.listener);
}

static void a_caller_that_has_left_counts_again(void **state)
{
    static struct port p;
    (void)state;
    listen_here(&p);
    struct guard *g = guard_new(p.number);
    for (int i = 0; i < FLOOD; i++)
        guard_calls(g, connect_from(&p, 1)->peer, true);
    wait_for_shut(&p, 0);
    for (int i = 0; i < FLOOD; i++)
        guard_calls(g, p.v[i].peer, false);
    wait_for_shut(&p, FLOOD - GUARD_MOST);
    guard_free(g);
    close_all(&p);
    close(p.listener);
}

// The guard spells a peer's address itself, to compare it with those of callers.
static void a_callers_address_is_spelled_as_the_guard_spells_it(void **state)
{
    static const char *const listen[] = {"127.0.0.1:0", "[::1]:0"};
    static const char *const heads[] = {"ipv4:127.0.0.1:", "ipv6:%5B::1%5D:"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pair p = {0};
        struct err e = {0};
        must(rpc_open(&p.server_rpc, &e), &e);
        p.serve = (struct rpc_server_options){
            .address = listen[i], .methods = methods, .nmethods = NMETHODS};
        if (rpc_serve(p.server_rpc, &p.serve, &p.server, p.bound, sizeof p.bound, &e)) {
            rpc_close(p.server_rpc); // a machine without IPv6
            continue;
        }
        pair_dial(&p);
        call_act(&p, "x");
        struct rpc_event ev = expect_event(p.server_rpc, RPC_CALL);
        assert_memory_equal(ev.peer->address, heads[i], strlen(heads[i]));
        rpc_event_clear(&ev);
        pair_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_too_many_the_ones_of_the_crowded_host_go),
        cmocka_unit_test(who_was_shut_down_is_turned_away_once),
        cmocka_unit_test(nobody_new_comes_in_before_the_crowd_is_gone),
        cmocka_unit_test(a_flood_keeps_out_its_own_host_alone),
        cmocka_unit_test(a_caller_that_has_left_counts_again),
        cmocka_unit_test(a_callers_address_is_spelled_as_the_guard_spells_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
