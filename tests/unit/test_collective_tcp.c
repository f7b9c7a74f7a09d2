// SPDX-License-Identifier: Apache-2.0
// A connection between ranks of two hosts, a turn at a time.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/unit.h"
#include "worker/collective/world.h"

enum { CHUNK = 1000 };

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

// As many gathers as may be open at once, each with one chunk that is ready to go to the peer.
static void open_gathers(struct communicator *c, unsigned char *data, uint64_t (*sent)[2])
{
    c->started = COLLECTIVES_OPEN;
    for (uint64_t seq = 1; seq <= c->started; seq++)
        c->ops[seq % COLLECTIVES_OPEN] = (struct operation){.args = {.op = COLLECTIVE_ALL_GATHER,
                                                                     .dtype = DT_F32,
                                                                     .buf = data,
                                                                     .count = 2 * CHUNK / 4},
                                                            .seq = seq,
                                                            .bytes = 2 * CHUNK,
                                                            .esize = 4,
                                                            .per = CHUNK / 4,
                                                            .agreed = true,
                                                            .ready = CHUNK,
                                                            .sent = {NULL, sent[seq - 1]}};
}

static void a_peer_that_takes_all_gets_a_turn_at_a_time(void **state)
{
    static unsigned char data[2 * CHUNK];
    static uint64_t sent[COLLECTIVES_OPEN][2];
    int end, gone = 0;
    (void)state;
    struct world *w = world_new(0, 2, NULL);
    struct peer *p = &w->peers[1], *members[2] = {&w->peers[0], p};
    struct communicator c = {.w = w, .remote = true, .n = 2, .members = members};
    open_gathers(&c, data, sent);
    w->communicators[w->ncommunicators++] = &c;
    p->fd = open_bottomless(&end);
    p->link = tcp_link_new();
    assert_true(tcp_send(w, p));
    for (int i = 0; i < COLLECTIVES_OPEN; i++)
        gone += sent[i][1] == CHUNK;
    assert_in_range(gone, 1, COLLECTIVES_OPEN - 1);
    assert_false(p->dead || tcp_is_blocked(p));
    while (tcp_send(w, p)) // nothing is forgotten
        ;
    for (int i = 0; i < COLLECTIVES_OPEN; i++)
        assert_int_equal(sent[i][1], CHUNK);
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
    (void)state;
    struct world *w = world_new(0, 2, &kind);
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
