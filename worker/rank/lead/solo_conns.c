// SPDX-License-Identifier: Apache-2.0
// Accepting, proving, reading, sending; see solo_conns.h.
#include "worker/rank/lead/solo_conns.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/log.h"
#include "worker/rank/lead/rank_join.h"
#include "worker/rank/link/rank_frames.h"

enum {
    PROVE_MS = 10000,   // a connection that has not proved the key by then is dropped
    STRANGERS_MAX = 64, // connections that have not proved it yet
    CALLERS_A_TURN = 16,
};

enum conn_state { CONN_NEW, CONN_CHALLENGED, CONN_MEMBER, CONN_GONE };

struct solo_conn {
    struct list link;
    struct frame_conn frames;
    enum conn_state state;
    bool choked; // its queue was full
    int rank, pid;
    struct rank_cores cores; // with its host
    int64_t since_ns;
    unsigned char a[JOIN_NONCE], b[JOIN_NONCE]; // the rank's nonce, the leader's nonce
};

struct seat {               // of a rank
    struct solo_conn *conn; // null: not here
    bool taken;             // it was here once
    int pid;
    char host[RANK_HOST_MAX];
};

struct solo_conns {
    const struct assignment *at;
    struct solo_conns_ops ops;
    int unix_fd, tcp_fd;
    struct list all;
    int n, strangers;
    bool assigns;
    struct seat *seats;
    struct pollfd *polled;
};

// ---- sending and dropping ----

static void queue_frame(struct solo_conn *k, const Weft__Rank__Frame *f)
{
    struct err e = {0};
    if (k->state == CONN_GONE || k->choked)
        return;
    if (frame_queue(&k->frames, f, &e)) {
        log_warn("lead", "rank %d: %s", k->rank, e.text);
        k->choked = true;
    }
}

void solo_conns_send(struct solo_conns *c, int rank, const Weft__Rank__Frame *f)
{
    for (int r = 0; r < c->at->ranks; r++)
        if ((rank < 0 || r == rank) && c->seats[r].conn)
            queue_frame(c->seats[r].conn, f);
}

static void drop_conn(struct solo_conns *c, struct solo_conn *k)
{
    enum conn_state was = k->state;
    if (was == CONN_GONE)
        return;
    k->state = CONN_GONE;
    if (was != CONN_MEMBER) {
        c->strangers--;
        return;
    }
    c->seats[k->rank].conn = NULL;
    c->ops.gone(c->ops.ctx, k->rank, k->choked ? "reads nothing any more" : "died");
}

// ---- joining ----

static struct solo_conn *add_conn(struct solo_conns *c, int fd)
{
    struct solo_conn *k = calloc(1, sizeof *k);
    PRE(k != NULL);
    frame_conn_init(&k->frames, fd);
    k->frames.max_in = FRAME_MAX_JOIN;
    k->since_ns = clock_mono_ns();
    k->rank = -1;
    list_append(&c->all, &k->link);
    c->n++;
    c->strangers++;
    return k;
}

static void refuse_conn(struct solo_conns *c, struct solo_conn *k, bool retry, const char *why)
{
    FRAME_BODY(body, Refuse, refuse);
    body.why = frame_text(why);
    body.retry = retry;
    FRAME(f, REFUSE, refuse, &body);
    queue_frame(k, &f);
    (void)frame_flush(&k->frames, NULL);
    drop_conn(c, k);
}

// Why a rank that greets so cannot be let in; "" when it may prove itself.
static void find_refusal(const struct solo_conns *c, const Weft__Rank__Hello *h, char *why,
                         size_t size)
{
    const struct assignment *at = c->at;
    *why = 0;
    if (h->version != JOIN_VERSION || h->nonce.len != JOIN_NONCE)
        snprintf(why, size, "it speaks version %d", JOIN_VERSION);
    else if (h->epoch != at->epoch)
        snprintf(why, size, "it leads epoch %llu", (unsigned long long)at->epoch);
    else if (h->ranks != at->ranks || h->rank < 1 || h->rank >= at->ranks)
        snprintf(why, size, "the attempt has %d ranks, numbered from 0", at->ranks);
    else if (c->seats[h->rank].taken)
        snprintf(why, size, "rank %d is here already, pid %d on host %s", h->rank,
                 c->seats[h->rank].pid, c->seats[h->rank].host);
}

static void send_challenge(struct solo_conns *c, struct solo_conn *k)
{
    unsigned char mac[JOIN_MAC];
    struct join_who who = {k->rank, c->at->ranks, c->at->epoch, k->cores.host, c->at->key, NULL};
    join_mac(&who, "leader", k->a, k->b, mac);
    FRAME_BODY(body, Challenge, challenge);
    body.nonce.data = k->b;
    body.nonce.len = JOIN_NONCE;
    body.mac.data = mac;
    body.mac.len = JOIN_MAC;
    FRAME(f, CHALLENGE, challenge, &body);
    queue_frame(k, &f);
    k->state = CONN_CHALLENGED;
}

static void on_hello(struct solo_conns *c, struct solo_conn *k, const Weft__Rank__Hello *h)
{
    char why[220];
    bool known = h->rank >= 0 && h->rank < c->at->ranks;
    find_refusal(c, h, why, sizeof why);
    if (why[0]) {
        bool retry = h->epoch != c->at->epoch || c->ops.may_retry(c->ops.ctx, known ? h->rank : -1);
        refuse_conn(c, k, retry, why);
        return;
    }
    k->rank = h->rank;
    k->pid = h->pid;
    snprintf(k->cores.host, sizeof k->cores.host, "%s", h->host);
    k->cores.cores = h->cores;
    if (h->cpus.len && h->cpus.len <= RANK_CPUS_BYTES)
        memcpy(k->cores.cpus, h->cpus.data, h->cpus.len);
    memcpy(k->a, h->nonce.data, JOIN_NONCE);
    if (entropy_bytes(k->b, JOIN_NONCE, NULL))
        drop_conn(c, k);
    else
        send_challenge(c, k);
}

static void assign_conn(struct solo_conns *c, struct solo_conn *k)
{
    Weft__Rank__Assign body;
    rank_frame_from_assignment(c->at, k->rank, &body);
    FRAME(f, ASSIGN, assign, &body);
    queue_frame(k, &f);
}

void solo_conns_assign(struct solo_conns *c)
{
    c->assigns = true;
    for (int r = 0; r < c->at->ranks; r++)
        if (c->seats[r].conn)
            assign_conn(c, c->seats[r].conn);
}

static void admit_conn(struct solo_conns *c, struct solo_conn *k, int rank)
{
    struct seat *s = &c->seats[rank];
    c->strangers--;
    k->state = CONN_MEMBER;
    k->rank = rank;
    k->frames.max_in = FRAME_MAX;
    s->conn = k;
    s->taken = true;
    s->pid = k->pid;
    snprintf(s->host, sizeof s->host, "%s", k->cores.host);
    if (c->assigns)
        assign_conn(c, k);
    c->ops.joined(c->ops.ctx, rank, k->pid, &k->cores);
}

static void on_proof(struct solo_conns *c, struct solo_conn *k, const Weft__Rank__Proof *proof)
{
    unsigned char mac[JOIN_MAC];
    struct join_who who = {k->rank, c->at->ranks, c->at->epoch, k->cores.host, c->at->key, NULL};
    join_mac(&who, "rank", k->b, k->a, mac);
    if (proof->mac.len != JOIN_MAC || !join_mac_equal(mac, proof->mac.data)) {
        log_warn("lead", "a process that says it is rank %d does not know the key of this run",
                 k->rank);
        refuse_conn(c, k, false, "the key is wrong");
    } else if (c->seats[k->rank].taken) {
        refuse_conn(c, k, false, "the rank is here already");
    } else {
        admit_conn(c, k, k->rank);
    }
}

void solo_conns_add_own(struct solo_conns *c, int fd)
{
    struct solo_conn *own = add_conn(c, fd);
    own->pid = (int)getpid();
    rank_cores_read(c->at->host, &own->cores);
    admit_conn(c, own, 0);
}

// ---- reading ----

static void on_frame(struct solo_conns *c, struct solo_conn *k, const Weft__Rank__Frame *f)
{
    if (k->state == CONN_NEW && f->body_case == WEFT__RANK__FRAME__BODY_HELLO) {
        on_hello(c, k, f->hello);
    } else if (k->state == CONN_CHALLENGED && f->body_case == WEFT__RANK__FRAME__BODY_PROOF) {
        on_proof(c, k, f->proof);
    } else if (k->state != CONN_MEMBER) {
        drop_conn(c, k);
    } else if (!c->ops.frame(c->ops.ctx, k->rank, f)) {
        log_warn("lead", "rank %d sent a frame of kind %d, which is not for a leader", k->rank,
                 (int)f->body_case);
        drop_conn(c, k);
    }
}

static void read_conn(struct solo_conns *c, struct solo_conn *k)
{
    struct err e = {0}, bad = {0};
    int end = frame_fill(&k->frames, &e);
    Weft__Rank__Frame *f;
    while (k->state != CONN_GONE && !frame_next(&k->frames, &f, &bad) && f) {
        on_frame(c, k, f);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    if (bad.code)
        log_warn("lead", "%s %d: %s", k->state == CONN_MEMBER ? "rank" : "a stranger as rank",
                 k->rank, bad.text);
    if (bad.code || end)
        drop_conn(c, k);
}

// Accepts only some of the callers: there may be more than can ever be let in, and meanwhile the
// ranks wait.
static void accept_conns(struct solo_conns *c, int listener)
{
    for (int i = 0; i < CALLERS_A_TURN; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        int one =
            1; // answers are small and waited for; unix sockets refuse this and do not need it
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (c->strangers >= STRANGERS_MAX)
            close(fd);
        else
            add_conn(c, fd);
    }
}

// ---- a turn ----

static void free_conn(struct solo_conns *c, struct solo_conn *k)
{
    list_remove(&k->link);
    frame_conn_clear(&k->frames);
    free(k);
    c->n--;
}

static bool is_too_late(const struct solo_conn *k)
{
    return k->state < CONN_MEMBER && clock_mono_ns() - k->since_ns > PROVE_MS * CLOCK_MS;
}

// Writes what waits, then forgets who is gone.
static void sweep_conns(struct solo_conns *c)
{
    list_for_each (it, &c->all) {
        struct solo_conn *k = list_entry(it, struct solo_conn, link);
        if (k->state != CONN_GONE && (k->choked || is_too_late(k) || frame_flush(&k->frames, NULL)))
            drop_conn(c, k);
        if (k->state == CONN_GONE)
            free_conn(c, k);
    }
}

void solo_conns_poll(struct solo_conns *c, int wake_fd, int timeout_ms)
{
    struct pollfd *p = c->polled;
    sweep_conns(c);
    if (timeout_ms < 0)
        return;
    p[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = c->unix_fd, .events = POLLIN};
    p[2] = (struct pollfd){.fd = c->tcp_fd, .events = POLLIN};
    int n = 3;
    list_for_each (it, &c->all) {
        struct solo_conn *k = list_entry(it, struct solo_conn, link);
        short out = frame_conn_pending(&k->frames) ? POLLOUT : 0;
        p[n++] = (struct pollfd){.fd = k->frames.fd, .events = (short)(POLLIN | out)};
    }
    PRE(n == 3 + c->n);
    if (poll(p, (nfds_t)n, timeout_ms) <= 0)
        return;
    n = 3;
    list_for_each (it, &c->all) // before new ones are added
    {
        struct solo_conn *k = list_entry(it, struct solo_conn, link);
        if (p[n++].revents & (POLLIN | POLLHUP | POLLERR))
            read_conn(c, k);
    }
    for (int i = 1; i < 3; i++)
        if (p[i].revents & POLLIN)
            accept_conns(c, p[i].fd);
}

// ---- life ----

struct solo_conns *solo_conns_new(const struct assignment *at, int unix_fd, int tcp_fd,
                                  const struct solo_conns_ops *ops)
{
    struct solo_conns *c = calloc(1, sizeof *c);
    PRE(c != NULL);
    c->at = at;
    c->ops = *ops;
    c->unix_fd = unix_fd;
    c->tcp_fd = tcp_fd;
    list_init(&c->all);
    c->seats = calloc((size_t)at->ranks, sizeof *c->seats);
    // Three descriptors of our own; for each rank a live connection and one that it has dropped,
    // which stays until the next sweep; and strangers.
    c->polled = malloc(sizeof *c->polled * (size_t)(3 + 2 * at->ranks + STRANGERS_MAX));
    PRE(c->seats != NULL && c->polled != NULL);
    return c;
}

void solo_conns_free(struct solo_conns *c)
{
    list_for_each (it, &c->all)
        free_conn(c, list_entry(it, struct solo_conn, link));
    if (c->unix_fd >= 0)
        close(c->unix_fd);
    if (c->tcp_fd >= 0)
        close(c->tcp_fd);
    free(c->seats);
    free(c->polled);
    free(c);
}
