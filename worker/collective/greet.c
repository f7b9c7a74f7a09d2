// SPDX-License-Identifier: Apache-2.0
// The connections of world_open. Every rank publishes where it listens, then calls every lower
// rank and answers every higher one: a unix socket within the host, TCP between hosts. The chain
// of waits ends at rank 0, which calls nobody, so it cannot close into a ring.
//
//   caller → hello     {magic, version, attempt, from, to, nonce}
//   answer ← challenge {nonce, HMAC(key, "answer" hello nonce)}
//   caller → proof     {HMAC(key, "caller" hello nonce)}
//   answer ← welcome   {0x21}
//
// Both ends so prove the attempt's key before either believes a byte. Messages have fixed sizes,
// half-done greetings are bounded in number and time, and a caller who fails is closed and
// counted: strangers cost nothing. What follows between hosts is sealed (seal.c) with two keys that
// only the two can derive, of both nonces: HMAC(key, "c-to-a" hello nonce) for what the caller sends,
// "a-to-c" for the other direction. A job that trusts its network says so in its hello, and both
// must say the same.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/host_address.h"
#include "common/base/system.h"
#include "worker/collective/world.h"

enum { GUESTS = 64, GUESTS_A_TURN = 16, HOST_TEXT = 32, ADDR_TEXT = HOST_PORT_MAX, WELCOME = 0x21 };
static const int64_t guest_ns = 5 * CLOCK_S;
static const int64_t no_limit_ns = 3600 * CLOCK_S; // where none is given

struct hello {
    uint32_t magic, version;
    uint64_t attempt;
    int32_t from, to;
    uint32_t plain, pad;
    unsigned char nonce[32];
};
struct challenge {
    unsigned char nonce[32], mac[32];
};

struct guest { // a greeting being answered
    int fd;    // −1: free
    bool local;
    int64_t until;
    bool challenged;
    struct hello hello;
    struct challenge challenge;
    unsigned char proof[32];
    size_t got; // of the message awaited
};

struct greet {
    struct world *w;
    const struct world_options *o;
    int64_t limit_ns, until; // for all of it
    int dir_fd, unix_fd, tcp_fd;
    char host[HOST_TEXT + 1], (*hosts)[HOST_TEXT + 1], (*addrs)[ADDR_TEXT];
    int refused;
    struct guest guests[GUESTS];
};

// What only the two can compute of this greeting: a proof, or a key; `what` has six letters.
static void compute_proof(const struct greet *g, const char *what, const struct hello *h,
                          const unsigned char nonce[32], unsigned char mac[32])
{
    unsigned char text[6 + sizeof *h + 32];
    memcpy(text, what, 6);
    memcpy(text + 6, h, sizeof *h);
    memcpy(text + 6 + sizeof *h, nonce, 32);
    hmac_sha256(g->o->key, sizeof g->o->key, text, sizeof text, mac);
}

static void derive_keys(const struct greet *g, struct peer *p, const struct hello *h,
                        const unsigned char nonce[32])
{
    unsigned char up[32], down[32]; // from the caller, and to it
    compute_proof(g, "c-to-a", h, nonce, up);
    compute_proof(g, "a-to-c", h, nonce, down);
    bool calls = h->from == g->w->rank;
    memcpy(p->keys.sends, calls ? up : down, SEAL_KEY);
    memcpy(p->keys.receives, calls ? down : up, SEAL_KEY);
    explicit_bzero(up, sizeof up);
    explicit_bzero(down, sizeof down);
}

static bool is_same_mac(const unsigned char *a, const unsigned char *b)
{
    unsigned char diff = 0;
    for (int i = 0; i < 32; i++)
        diff |= a[i] ^ b[i];
    return !diff;
}

// ---- addresses ----
// Paths of unix sockets go through the folder's descriptor: they have 108 bytes, the folder any
// length.
static socklen_t make_unix_address(const struct greet *g, int rank, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/c%d.%" PRIu64, g->dir_fd, rank,
             g->w->attempt);
    return sizeof *a;
}

static struct addrinfo *parse_tcp_address(const char *text)
{
    char host[ADDR_TEXT];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof host)
        return NULL;
    size_t skip = *text == '[', len = (size_t)(colon - text) - skip;
    if (skip && len)
        len--; // the closing bracket
    snprintf(host, sizeof host, "%.*s", (int)len, text + skip);
    struct addrinfo want = {.ai_socktype = SOCK_STREAM,
                            .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    return getaddrinfo(host, colon + 1, &want, &found) ? NULL : found;
}

static int listen_unix(struct greet *g, struct err *e)
{
    struct sockaddr_un a;
    if (!g->o->socket_dir)
        return err_set(e, ERR_INVALID, "no folder for sockets");
    g->dir_fd = open(g->o->socket_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (g->dir_fd < 0)
        return err_errno(e, ERR_IO, "%s", g->o->socket_dir);
    socklen_t len = make_unix_address(g, g->w->rank, &a);
    unlink(a.sun_path);
    g->unix_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (g->unix_fd < 0 || bind(g->unix_fd, (struct sockaddr *)&a, len) ||
        listen(g->unix_fd, g->w->ranks + GUESTS))
        return err_errno(e, ERR_IO, "cannot listen in %s", g->o->socket_dir);
    return 0;
}

// That a rank cannot listen where its host lets others call is the host's trouble, not the job's.
static int listen_tcp(struct greet *g, char out[ADDR_TEXT], struct err *e)
{
    struct err why = {0};
    snprintf(out, ADDR_TEXT, "-");
    if (!g->o->listen ||
        !host_address_listen(g->o->listen, g->w->ranks + GUESTS, &g->tcp_fd, out, &why))
        return 0;
    int rc = err_set(e, ERR_IO, "peers of other hosts could not call this rank: %s", why.text);
    if (e)
        e->of_host = true;
    return rc;
}

// ---- who is where ----
static int publish_address(struct greet *g, const char *addr, struct err *e)
{
    char key[32], value[200], hex[65];
    const char *host = g->o->host ? g->o->host : "";
    sha256_hex(host, strlen(host), hex);
    snprintf(g->host, sizeof g->host, "%.*s", HOST_TEXT, hex);
    snprintf(key, sizeof key, "coll.%d", g->w->rank);
    snprintf(value, sizeof value, "1 %s %s", g->host, addr);
    return g->o->put(g->o->ctx, key, value, e);
}

static int find_peers(struct greet *g, struct err *e)
{
    struct world *w = g->w;
    for (int i = 0; i < w->ranks; i++) {
        char key[32], value[256], tail;
        if (i == w->rank)
            continue;
        snprintf(key, sizeof key, "coll.%d", i);
        int rc = g->o->get(g->o->ctx, key, value, sizeof value, g->until, e);
        if (rc) {
            if (e)
                err_wrap(e, "rank %d has not come", i);
            return rc;
        }
        if (sscanf(value, "1 %32s %79s%c", g->hosts[i], g->addrs[i], &tail) != 2)
            return err_set(e, ERR_PEER, "rank %d published '%s', which is not an address", i,
                           value);
        w->peers[i].local = !strcmp(g->hosts[i], g->host);
        if (!w->peers[i].local && i > w->rank && g->tcp_fd < 0)
            return err_set(e, ERR_INVALID, "rank %d is on another host and no address is given", i);
    }
    return 0;
}

// ---- calling ----
// The caller's leader may know before us that the others will not come.
enum { LOOK_MS = 50 };
static bool is_over(const struct greet *g)
{
    return g->o->lost && g->o->lost(g->o->ctx);
}

static int wait_for(const struct greet *g, int fd, short events, int64_t until)
{
    struct pollfd p = {fd, events, 0};
    while (clock_mono_ns() < until && !is_over(g)) {
        int n = poll(&p, 1, LOOK_MS);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            break;
    }
    return ERR_TIMEOUT;
}

// A machine that is reached takes a call at once, whatever its rank does at the time. Where nothing
// comes back the network drops what is sent, and a part of the time is enough to know.
enum { CALL_PART = 6 };
static int64_t call_until(const struct greet *g)
{
    int64_t now = clock_mono_ns(), until = now + g->limit_ns / CALL_PART;
    return until < g->until ? until : g->until;
}

// An error that a host is not reached also says who gave its address.
#define WHOSE "; weft-worker --address says where its host is reached"

static bool is_of_address(int error)
{
    return error == EHOSTUNREACH || error == ENETUNREACH || error == ETIMEDOUT;
}

static int refuse_dial(const struct greet *g, int rank, int error, struct err *e)
{
    bool helps = !g->w->peers[rank].local && is_of_address(error);
    return err_set(e, ERR_PEER, "cannot reach rank %d at %s: %s%s", rank, g->addrs[rank],
                   strerror(error), helps ? WHOSE : "");
}

static int dial_rank(const struct greet *g, int rank, int *fd, struct err *e)
{
    struct sockaddr_un u;
    struct addrinfo *a = NULL;
    const struct sockaddr *to = (struct sockaddr *)&u;
    socklen_t len = make_unix_address(g, rank, &u);
    bool local = g->w->peers[rank].local;
    const char *whose = local ? "" : WHOSE;
    if (!local) {
        a = parse_tcp_address(g->addrs[rank]);
        if (!a)
            return err_set(e, ERR_PEER, "rank %d cannot be reached at '%s'%s", rank, g->addrs[rank],
                           whose);
        to = a->ai_addr;
        len = a->ai_addrlen;
    }
    int type = local ? SOCK_SEQPACKET : SOCK_STREAM, error = 0, rc = 0;
    socklen_t size = sizeof error;
    *fd = socket(to->sa_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || (connect(*fd, to, len) && errno != EINPROGRESS))
        rc = refuse_dial(g, rank, errno, e);
    else if (wait_for(g, *fd, POLLOUT, local ? g->until : call_until(g)))
        rc =
            err_set(e, ERR_TIMEOUT, "rank %d does not answer at %s%s", rank, g->addrs[rank], whose);
    else if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &size) || error)
        rc = refuse_dial(g, rank, error, e);
    if (a)
        freeaddrinfo(a);
    return rc;
}

static int read_all(const struct greet *g, int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(fd, (char *)to + got, len - got, 0);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return ERR_PEER;
        else if (wait_for(g, fd, POLLIN, g->until))
            return ERR_TIMEOUT;
    }
    return 0;
}

// A greeting's messages are far below any socket's buffer: they go out whole or not at all.
static bool send_whole(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

static int greet_rank(struct greet *g, int rank, struct err *e)
{
    struct peer *p = &g->w->peers[rank];
    struct challenge c;
    unsigned char mac[32], welcome = 0;
    struct hello h = {.magic = PROGRESS_MAGIC,
                      .version = 2,
                      .attempt = g->w->attempt,
                      .from = g->w->rank,
                      .to = rank,
                      .plain = g->o->plain};
    int rc = entropy_bytes(h.nonce, sizeof h.nonce, e);
    rc = rc ? rc : dial_rank(g, rank, &p->fd, e);
    if (rc)
        return rc;
    rc = send_whole(p->fd, &h, sizeof h) ? read_all(g, p->fd, &c, sizeof c) : ERR_PEER;
    if (rc)
        return err_set(e, rc, "rank %d %s", rank,
                       rc == ERR_PEER ? "refused us: another key or attempt" : "does not answer");
    compute_proof(g, "answer", &h, c.nonce, mac);
    if (!is_same_mac(mac, c.mac))
        return err_set(e, ERR_PEER,
                       "the process that answers for rank %d does not have the attempt's key",
                       rank);
    compute_proof(g, "caller", &h, c.nonce, mac);
    rc = send_whole(p->fd, mac, sizeof mac) ? read_all(g, p->fd, &welcome, 1) : ERR_PEER;
    if (rc || welcome != WELCOME)
        return err_set(e, rc ? rc : ERR_PEER, "rank %d did not answer the greeting", rank);
    derive_keys(g, p, &h, c.nonce);
    return 0;
}

static int call_rank(struct greet *g, int rank, struct err *e)
{
    int rc = greet_rank(g, rank, e);
    bool elsewhere = !g->w->peers[rank].local && (rc == ERR_PEER || rc == ERR_TIMEOUT);
    if (elsewhere && g->o->unreached && !is_over(g))
        g->o->unreached(g->o->ctx, rank);
    return rc;
}

// ---- answering ----
static void dismiss_guest(struct greet *g, struct guest *t)
{
    close(t->fd);
    t->fd = -1;
    g->refused++;
}

// Accepts so many at a time: more may call than there are slots, and others wait meanwhile.
static void admit_guests(struct greet *g, int listener, bool local)
{
    for (int n = 0; n < GUESTS_A_TURN; n++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct guest *t = NULL;
        for (int i = 0; i < GUESTS && !t; i++)
            if (g->guests[i].fd < 0)
                t = &g->guests[i];
        if (!t) { // the oldest has had its time
            t = &g->guests[0];
            for (int i = 1; i < GUESTS; i++)
                if (g->guests[i].until < t->until)
                    t = &g->guests[i];
            dismiss_guest(g, t);
        }
        *t = (struct guest){.fd = fd, .local = local, .until = clock_mono_ns() + guest_ns};
    }
}

static bool is_hello_fitting(const struct greet *g, const struct guest *t)
{
    const struct hello *h = &t->hello;
    const struct world *w = g->w;
    return h->magic == PROGRESS_MAGIC && h->version == 2 && h->attempt == w->attempt &&
           h->plain == g->o->plain && h->to == w->rank && h->from > w->rank && h->from < w->ranks &&
           w->peers[h->from].fd < 0 && w->peers[h->from].local == t->local;
}

static bool answer_hello(struct greet *g, struct guest *t)
{
    if (!is_hello_fitting(g, t) || entropy_bytes(t->challenge.nonce, 32, NULL))
        return false;
    compute_proof(g, "answer", &t->hello, t->challenge.nonce, t->challenge.mac);
    t->challenged = true;
    t->got = 0;
    return send_whole(t->fd, &t->challenge, sizeof t->challenge);
}

static bool answer_proof(struct greet *g, struct guest *t)
{
    unsigned char mac[32], welcome = WELCOME;
    compute_proof(g, "caller", &t->hello, t->challenge.nonce, mac);
    if (!is_same_mac(mac, t->proof) || !is_hello_fitting(g, t) || !send_whole(t->fd, &welcome, 1))
        return false;
    struct peer *p = &g->w->peers[t->hello.from];
    derive_keys(g, p, &t->hello, t->challenge.nonce);
    p->fd = t->fd;
    t->fd = -1;
    return true;
}

static void serve_guest(struct greet *g, struct guest *t)
{
    while (t->fd >= 0) {
        size_t want = t->challenged ? sizeof t->proof : sizeof t->hello;
        unsigned char *to = t->challenged ? t->proof : (unsigned char *)&t->hello;
        ssize_t n = recv(t->fd, to + t->got, want - t->got, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            dismiss_guest(g, t);
            return;
        }
        t->got += (size_t)n;
        if (t->got == want && !(t->challenged ? answer_proof(g, t) : answer_hello(g, t)))
            dismiss_guest(g, t);
    }
}

static int find_missing(const struct greet *g)
{
    for (int i = g->w->rank + 1; i < g->w->ranks; i++)
        if (g->w->peers[i].fd < 0)
            return i;
    return -1;
}

static int await_guests(struct greet *g, struct err *e)
{
    struct pollfd polls[GUESTS + 2];
    int64_t now = clock_mono_ns();
    if (is_over(g))
        return err_set(e, ERR_PEER, "the attempt is over");
    if (now >= g->until)
        return err_set(e, ERR_TIMEOUT, "rank %d has not come (%d callers were refused)",
                       find_missing(g), g->refused);
    int64_t wake = g->until;
    polls[0] = (struct pollfd){g->unix_fd, POLLIN, 0};
    polls[1] = (struct pollfd){g->tcp_fd, POLLIN, 0};
    for (int i = 0; i < GUESTS; i++) {
        struct guest *t = &g->guests[i];
        if (t->fd >= 0 && t->until <= now)
            dismiss_guest(g, t);
        if (t->fd >= 0 && t->until < wake)
            wake = t->until;
        polls[i + 2] = (struct pollfd){t->fd, POLLIN, 0};
    }
    int64_t ms = (wake - now) / CLOCK_MS + 1;
    (void)poll(polls, GUESTS + 2, (int)(ms < LOOK_MS ? ms : LOOK_MS));
    return 0;
}

static int answer_all(struct greet *g, struct err *e)
{
    int rc = 0;
    while (!rc && find_missing(g) >= 0) {
        rc = await_guests(g, e);
        admit_guests(g, g->unix_fd, true);
        if (g->tcp_fd >= 0)
            admit_guests(g, g->tcp_fd, false);
        for (int i = 0; i < GUESTS; i++)
            if (g->guests[i].fd >= 0)
                serve_guest(g, &g->guests[i]);
    }
    return find_missing(g) < 0 ? 0 : rc;
}

// ---- all ----
static void clear_greeting(struct greet *g)
{
    if (g->unix_fd >= 0) {
        struct sockaddr_un a;
        make_unix_address(g, g->w->rank, &a);
        unlink(a.sun_path);
    }
    int fds[] = {g->unix_fd, g->tcp_fd, g->dir_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        system_close(&fds[i]);
    for (int i = 0; i < GUESTS; i++)
        system_close(&g->guests[i].fd);
    free(g->hosts);
    free(g->addrs);
    free(g);
}

static void disable_delays(const struct world *w)
{
    int one = 1;
    for (int i = 0; i < w->ranks; i++)
        if (!w->peers[i].local)
            (void)setsockopt(w->peers[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int greet_all(struct world *w, const struct world_options *o, struct err *e)
{
    char addr[ADDR_TEXT];
    if (w->ranks == 1)
        return 0;
    struct greet *g = heap_alloc(sizeof *g);
    *g = (struct greet){.w = w, .o = o, .dir_fd = -1, .unix_fd = -1, .tcp_fd = -1};
    g->limit_ns = o->connect_ns ? o->connect_ns : no_limit_ns;
    g->until = clock_mono_ns() + g->limit_ns;
    for (int i = 0; i < GUESTS; i++)
        g->guests[i].fd = -1;
    g->hosts = heap_alloc(sizeof *g->hosts * (size_t)w->ranks);
    g->addrs = heap_alloc(sizeof *g->addrs * (size_t)w->ranks);
    int rc = listen_unix(g, e);
    if (!rc)
        rc = listen_tcp(g, addr, e);
    if (!rc)
        rc = publish_address(g, addr, e);
    if (!rc)
        rc = find_peers(g, e);
    for (int i = 0; i < w->rank && !rc; i++)
        rc = call_rank(g, i, e);
    if (!rc)
        rc = answer_all(g, e);
    if (!rc)
        disable_delays(w);
    clear_greeting(g);
    return rc;
}
