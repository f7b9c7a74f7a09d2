// SPDX-License-Identifier: Apache-2.0
// A connection between ranks of two hosts, a turn at a time.
#include <arpa/inet.h>
#include <string.h>
#include <sys/mman.h>
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
    p->link = tcp_link_new(NULL);
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

// ---- seals ----
enum { PART = 1000 };

// A part in a buffer of the test's, sealed, and the tag behind it.
struct sealed {
    unsigned char bytes[PART + SEAL_TAG];
};

static const unsigned char keys[2][SEAL_KEY] = {"from one to two", "from two to one"};

static void seal_text(struct seal *s, struct sealed *to, char what)
{
    unsigned char text[PART];
    memset(text, what, sizeof text);
    assert_true(seal_part(s, to->bytes, text, PART));
    assert_int_equal(to->bytes[0] == what && to->bytes[1] == what && to->bytes[2] == what, 0);
}

// As it comes from a socket: in two pieces.
static bool opens(struct seal *s, struct sealed part, char what)
{
    enum { FIRST = 333 };
    bool fine = seal_open(s, part.bytes, FIRST, true) &&
                seal_open(s, part.bytes + FIRST, PART - FIRST, false) &&
                seal_check(s, part.bytes + PART);
    return fine && part.bytes[0] == what && !memcmp(part.bytes, part.bytes + 1, PART - 1);
}

static void parts_open_once_in_order_and_unchanged(void **state)
{
    struct sealed part[3];
    (void)state;
    for (int deed = 0; deed < 6; deed++) {
        struct seal *out = seal_new(keys[0], true), *in = seal_new(keys[deed == 5], false);
        for (int i = 0; i < 3; i++)
            seal_text(out, &part[i], (char)('a' + i));
        assert_int_equal(opens(in, part[0], 'a'), deed != 5); // 5: the other direction's
        if (deed == 0)
            assert_true(opens(in, part[1], 'b') && opens(in, part[2], 'c'));
        if (deed == 1)
            assert_false(opens(in, part[0], 'a')); // again
        if (deed == 2)
            assert_false(opens(in, part[2], 'c')); // one is left out
        if (deed == 3) {
            part[1].bytes[PART / 2] ^= 1;
            assert_false(opens(in, part[1], 'b'));
        }
        if (deed == 4) {
            part[1].bytes[PART + SEAL_TAG - 1] ^= 0x80; // its tag
            assert_false(opens(in, part[1], 'b'));
        }
        seal_free(out);
        seal_free(in);
    }
}

// Two worlds' ends of one connection, as world_open has them.
struct ends {
    struct world *w[2];
    struct peer *p[2];
};

static void open_ends(struct ends *e, bool plain)
{
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    for (int i = 0; i < 2; i++) {
        struct seal_keys k;
        memcpy(k.sends, keys[i], SEAL_KEY);
        memcpy(k.receives, keys[1 - i], SEAL_KEY);
        e->w[i] = world_new(i, 2, NULL);
        e->p[i] = &e->w[i]->peers[1 - i];
        e->p[i]->fd = fd[i];
        e->p[i]->link = tcp_link_new(plain ? NULL : &k);
        e->p[i]->page = shm_private(sizeof *e->p[i]->page);
    }
}

static void close_ends(struct ends *e)
{
    for (int i = 0; i < 2; i++) {
        tcp_link_free(e->p[i]->link);
        close(e->p[i]->fd);
        munmap(e->p[i]->page, sizeof *e->p[i]->page);
        world_free(e->w[i]);
    }
}

// A frame comes however its bytes are cut up, and a reader of the wire finds no key in it.
static void frames_come_byte_by_byte(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct ends e;
        unsigned char wire[200];
        const uint64_t key = 0x1122334455667788;
        int between[2];
        open_ends(&e, plain);
        tcp_send_key(e.p[0], 3, key);
        tcp_send_key(e.p[0], 4, key + 1);
        tcp_send(e.w[0], e.p[0]);
        ssize_t n = recv(e.p[1]->fd, wire, sizeof wire, MSG_DONTWAIT);
        assert_int_equal(n, plain ? 2 * 24 : 2 * (24 + SEAL_TAG));
        assert_int_equal(memmem(wire, (size_t)n, &key, sizeof key) != NULL, plain);
        close(e.p[1]->fd);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, between), 0);
        e.p[1]->fd = between[1];
        for (ssize_t i = 0; i < n; i++) {
            assert_int_equal(send(between[0], wire + i, 1, 0), 1);
            assert_true(tcp_receive(e.w[1], e.p[1]));
        }
        assert_false(e.p[1]->dead);
        assert_true(atomic_load(&e.p[1]->page->communicators[3].key) == key);
        assert_true(atomic_load(&e.p[1]->page->communicators[4].key) == key + 1);
        close(between[0]);
        close_ends(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_that_takes_all_gets_a_turn_at_a_time),
        cmocka_unit_test(what_went_out_alone_counts_as_a_step),
        cmocka_unit_test(parts_open_once_in_order_and_unchanged),
        cmocka_unit_test(frames_come_byte_by_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
