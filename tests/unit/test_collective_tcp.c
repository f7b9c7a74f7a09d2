// SPDX-License-Identifier: Apache-2.0
// A connection between ranks of two hosts, a turn at a time.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "worker/collective/world.h"

enum { CHUNKS = 10000, CHUNK = 1000 };

static unsigned char data[CHUNK];
static int begun, gone;

static bool take_next_chunk(struct communicator *c, const struct peer *p, struct chunk *out)
{
    (void)p;
    *out = (struct chunk){.op = &c->ops[0], .stage = 1, .data = data, .len = CHUNK};
    return begun++ < CHUNKS;
}

static void count_chunk(struct world *w, const struct chunk *k)
{
    (void)w, (void)k;
    gone++;
}

// A socket that takes all it is given, as one does whose peer reads faster than we write: what finds
// no room at its end is lost.
static int open_bottomless(int *end)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof to;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *end = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*end, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(getsockname(*end, (struct sockaddr *)&to, &size), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, size), 0);
    return fd;
}

static void a_peer_that_takes_all_gets_a_turn_at_a_time(void **state)
{
    static const struct world_ops ops = {.next_chunk = take_next_chunk, .chunk_went = count_chunk};
    static struct communicator c = {.remote = true, .n = 2};
    int end;
    (void)state;
    struct world *w = world_new(0, 2, NULL);
    struct peer *p = &w->peers[1];
    w->ops = &ops;
    w->communicators[w->ncommunicators++] = &c;
    p->fd = open_bottomless(&end);
    p->link = tcp_link_new();
    assert_true(tcp_send(w, p));
    assert_in_range(gone, 1, CHUNKS / 2);
    assert_false(p->dead || tcp_is_blocked(p));
    while (tcp_send(w, p)) // nothing is forgotten
        ;
    assert_int_equal(gone, CHUNKS);
    w->ncommunicators = 0;
    tcp_link_free(p->link);
    close(p->fd);
    close(end);
    world_free(w);
}

static bool pump_something(struct world *w)
{
    (void)w;
    return true;
}

// Else a rank would sleep, with more to send and nobody to wake it.
static void what_went_out_alone_counts_as_a_step(void **state)
{
    static const struct world_kind kind = {.pump = pump_something};
    static const struct world_ops ops = {.step = communicators_step};
    (void)state;
    struct world *w = world_new(0, 2, &kind);
    w->ops = &ops;
    w->remotes = 1;
    assert_true(world_step(w));
    assert_true(w->moved);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_that_takes_all_gets_a_turn_at_a_time),
        cmocka_unit_test(what_went_out_alone_counts_as_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
