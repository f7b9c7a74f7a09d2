// SPDX-License-Identifier: Apache-2.0
// Joining a solo attempt; see rank_join.h.
#include "worker/rank/lead/rank_join.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/entropy.h"
#include "common/base/hash.h"
#include "common/base/host_address.h"

void join_mac(const struct join_who *w, const char *from, const unsigned char *first,
              const unsigned char *second, unsigned char out[JOIN_MAC])
{
    struct buf text = {0};
    buf_printf(&text, "weft %s %d of %d epoch %llu ", from, w->rank, w->ranks,
               (unsigned long long)w->epoch);
    buf_append(&text, first, JOIN_NONCE);
    buf_append(&text, second, JOIN_NONCE);
    hmac_sha256(w->key, 32, text.data, text.len, out);
    buf_clear(&text);
}

bool join_mac_equal(const unsigned char *a, const unsigned char *b)
{
    unsigned char differ = 0;
    for (int i = 0; i < JOIN_MAC; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

// ---- listening ----

// A path too long for a socket address is reached through its open folder; *dir is the caller's to
// close (−1: none).
static int unix_address(const char *path, struct sockaddr_un *a, int *dir, struct err *e)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    *dir = -1;
    if (strlen(path) < sizeof a->sun_path) {
        strcpy(a->sun_path, path);
        return 0;
    }
    if (!slash || (size_t)(slash - path) >= sizeof folder || strlen(slash) > 60)
        return err_set(e, ERR_INVALID, "the socket's path is too long: %s", path);
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if ((*dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return err_errno(e, ERR_PEER, "cannot open %s", folder);
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d%s", *dir, slash);
    return 0;
}

int join_listen_unix(const char *path, int *fd, struct err *e)
{
    struct sockaddr_un a;
    int dir, rc = unix_address(path, &a, &dir, e);
    if (rc)
        return rc;
    (void)unlink(path);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 128)) {
        rc = err_errno(e, ERR_IO, "cannot listen on %s", path);
        if (s >= 0)
            close(s);
    } else {
        *fd = s;
    }
    if (dir >= 0)
        close(dir);
    return rc;
}

// Splits "HOST:PORT" and resolves it.
static int resolve_address(const char *addr, struct addrinfo **out, struct err *e)
{
    char host[256];
    const char *colon = strrchr(addr, ':');
    if (!colon || (size_t)(colon - addr) >= sizeof host)
        return err_set(e, ERR_INVALID, "'%s' is not HOST:PORT", addr);
    snprintf(host, sizeof host, "%.*s", (int)(colon - addr), addr);
    char *name = host;
    size_t n = strlen(host);
    if (n > 1 && host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = 0;
        name = host + 1;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(name, colon + 1, &hints, out);
    return rc ? err_set(e, ERR_INVALID, "cannot resolve '%s': %s", addr, gai_strerror(rc)) : 0;
}

int join_listen_tcp(const char *addr, int *fd, char *bound, size_t size, struct err *e)
{
    char called[HOST_PORT_MAX];
    int rc = host_address_listen(addr, 128, fd, called, e);
    if (!rc)
        snprintf(bound, size, "tcp:%s", called);
    return rc ? ERR_INVALID : 0;
}

// ---- connecting ----

// Connects, and waits for that until the deadline.
static int connect_wait(int fd, const struct sockaddr *a, socklen_t len, int64_t deadline_ns)
{
    if (!connect(fd, a, len))
        return 0;
    if (errno != EINPROGRESS && errno != EAGAIN)
        return -1;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, deadline_wait_ms(deadline_ns, clock_mono_ns())) != 1) {
        errno = ETIMEDOUT;
        return -1;
    }
    int soerr = 0;
    socklen_t n = sizeof soerr;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &soerr, &n);
    errno = soerr;
    return soerr ? -1 : 0;
}

static int connect_unix(const char *path, int64_t deadline_ns, int *fd, struct err *e)
{
    struct sockaddr_un a;
    int dir, rc = unix_address(path, &a, &dir, e);
    if (rc)
        return rc;
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || connect_wait(*fd, (struct sockaddr *)&a, sizeof a, deadline_ns))
        rc = err_errno(e, ERR_PEER, "cannot connect to %s", path);
    if (dir >= 0)
        close(dir);
    return rc;
}

static int connect_tcp(const char *addr, int64_t deadline_ns, int *fd, struct err *e)
{
    struct addrinfo *ai;
    int rc = resolve_address(addr, &ai, e);
    if (rc)
        return rc;
    *fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || connect_wait(*fd, ai->ai_addr, ai->ai_addrlen, deadline_ns))
        rc = err_errno(e, ERR_PEER, "cannot connect to %s", addr);
    int one = 1;
    if (!rc)
        (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(ai);
    return rc;
}

static int explain_refusal(const Weft__Rank__Refuse *r, struct err *e)
{
    return err_set(e, r->retry ? ERR_PEER : ERR_INVALID, "rank 0 refuses: %s", r->why);
}

// The length of a mask of CPUs as it is sent: a rank 0 of the version before takes 128 bytes only.
static size_t mask_length(const unsigned char *cpus)
{
    size_t n = RANK_CPUS_BYTES;
    while (n > 128 && !cpus[n - 1])
        n--;
    return n;
}

// Sends Hello and checks by the Challenge that the other side is the leader.
static int say_hello(struct frame_conn *c, const struct join_who *w, unsigned char *a,
                     unsigned char *b, int64_t deadline_ns, struct err *e)
{
    FRAME_BODY(hello, Hello, hello);
    hello.version = JOIN_VERSION;
    hello.rank = w->rank;
    hello.ranks = w->ranks;
    hello.epoch = w->epoch;
    hello.host = frame_text(w->host);
    hello.pid = (int32_t)getpid();
    hello.nonce.data = a;
    hello.nonce.len = JOIN_NONCE;
    if (w->cores) {
        hello.cores = w->cores->cores;
        hello.cpus.data = frame_borrow(w->cores->cpus);
        hello.cpus.len = mask_length(w->cores->cpus);
    }
    FRAME(f, HELLO, hello, &hello);
    Weft__Rank__Frame *in = NULL;
    int rc = frame_send_wait(c, &f, deadline_ns, e);
    if (rc || (rc = frame_recv_wait(c, &in, deadline_ns, e)))
        return rc;
    unsigned char mac[JOIN_MAC];
    if (in->body_case == WEFT__RANK__FRAME__BODY_REFUSE) {
        rc = explain_refusal(in->refuse, e);
    } else if (in->body_case != WEFT__RANK__FRAME__BODY_CHALLENGE ||
               in->challenge->nonce.len != JOIN_NONCE || in->challenge->mac.len != JOIN_MAC) {
        rc = err_set(e, ERR_PEER, "the process that answers is not rank 0 of a run");
    } else {
        memcpy(b, in->challenge->nonce.data, JOIN_NONCE);
        join_mac(w, "leader", a, b, mac);
        if (!join_mac_equal(mac, in->challenge->mac.data))
            rc =
                err_set(e, ERR_PEER, "the process that answers does not know the key of epoch %llu",
                        (unsigned long long)w->epoch);
    }
    weft__rank__frame__free_unpacked(in, NULL);
    return rc;
}

static int prove_key(struct frame_conn *c, const struct join_who *w, const unsigned char *a,
                     const unsigned char *b, int64_t deadline_ns, struct err *e)
{
    unsigned char mac[JOIN_MAC];
    join_mac(w, "rank", b, a, mac);
    FRAME_BODY(proof, Proof, proof);
    proof.mac.data = mac;
    proof.mac.len = sizeof mac;
    FRAME(f, PROOF, proof, &proof);
    return frame_send_wait(c, &f, deadline_ns, e);
}

int join_connect(const char *addr, const struct join_who *w, int64_t deadline_ns, int *fd,
                 struct err *e)
{
    unsigned char a[JOIN_NONCE], b[JOIN_NONCE];
    int s = -1, rc = entropy_bytes(a, sizeof a, e);
    struct frame_conn c = {0};
    if (rc)
        return rc;
    if (!strncmp(addr, "unix:", 5))
        rc = connect_unix(addr + 5, deadline_ns, &s, e);
    else if (!strncmp(addr, "tcp:", 4))
        rc = connect_tcp(addr + 4, deadline_ns, &s, e);
    else
        rc = err_set(e, ERR_PEER, "'%s' is not an address: unix:PATH or tcp:HOST:PORT", addr);
    if (rc) {
        if (s >= 0)
            close(s);
        return rc;
    }
    frame_conn_init(&c, s);
    c.max_in = FRAME_MAX_JOIN;
    rc = say_hello(&c, w, a, b, deadline_ns, e);
    if (!rc)
        rc = prove_key(&c, w, a, b, deadline_ns, e);
    if (!rc && (*fd = fcntl(s, F_DUPFD_CLOEXEC, 0)) < 0)
        rc = err_errno(e, ERR_INTERNAL, "cannot keep the connection");
    frame_conn_clear(&c);
    return rc;
}
