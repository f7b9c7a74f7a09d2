// SPDX-License-Identifier: Apache-2.0
// Connections without calls; see guard.h.
//
// The descriptors are the core's, which may close one at any moment and be given its number for
// something else. So a socket is looked at again through a duplicate, which holds the very socket,
// before it is shut down.
#include "common/rpc/guard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/map.h"

enum { LOOK_MS = 100, LOOK_CLOSELY_MS = 10, PEER_MAX = 80, LISTENERS_MAX = 16 };
// Memory goes back once it has been quiet for longer than a handshake may take; and so often again,
// each so much later, since grpc frees what a handshake had when it comes to it.
enum { QUIET_MS = HANDSHAKE_MS + 1000, TRIMS = 10 };

// Who may not connect now. Without flooders nobody may: then many hosts have a few connections each.
enum { FLOODERS_MAX = 16, FLOOD = GUARD_MOST / 8 }; // a host with more connections than that is one
struct gate {                                       // without holes: two are compared byte by byte
    int shut, nflooders;
    char flooder[FLOODERS_MAX][PEER_MAX];
};

struct guard {
    int port;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop;
    struct map calling; // addresses of peers with an open call → the guard
    struct gate gate;   // that is set on the listening sockets
    bool logged;        // that some are shut down
    int64_t busy_ns;    // when there were last many, or memory last went back since
    int trims;          // how often it still goes back
};

struct idle_conn { // a connection without an open call
    int fd;
    bool leaves; // was shut down, or its peer has gone; the core has not closed it yet
    unsigned silent_ms;
    char host[PEER_MAX];
    char peer[PEER_MAX];
    int of_host; // how many of its host there are
};
struct idle_conns {
    struct arena arena;
    struct idle_conn *v;
    int n, cap;
    int listeners[LISTENERS_MAX];
    int nlisteners;
};

// ---- one socket ----

// The peer as gRPC prints it, which puts brackets as in a URI, and its host alone.
static bool print_peer(const struct sockaddr_storage *a, struct idle_conn *out)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    bool mapped = a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
    bool is_four = a->ss_family == AF_INET || mapped;
    const void *bytes = a->ss_family == AF_INET ? (const void *)&four->sin_addr
                        : mapped                ? (const void *)&six->sin6_addr.s6_addr[12]
                                                : (const void *)&six->sin6_addr;
    if (!inet_ntop(is_four ? AF_INET : AF_INET6, bytes, out->host, sizeof out->host))
        return false;
    int port = ntohs(a->ss_family == AF_INET ? four->sin_port : six->sin6_port);
    snprintf(out->peer, sizeof out->peer, is_four ? "ipv4:%.50s:%d" : "ipv6:%%5B%.50s%%5D:%d",
             out->host, port);
    return true;
}

static bool is_of_server(const struct guard *g, int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &size))
        return false;
    if (a.ss_family == AF_INET)
        return ntohs(((struct sockaddr_in *)(void *)&a)->sin_port) == g->port;
    return a.ss_family == AF_INET6 &&
           ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port) == g->port;
}

// False when it is no connection of the server's, or its peer has an open call.
static bool find_idle_conn(struct guard *g, int fd, struct idle_conn *out)
{
    struct sockaddr_storage peer;
    struct tcp_info info;
    socklen_t size = sizeof peer, info_size = sizeof info;
    if (!is_of_server(g, fd) || getpeername(fd, (struct sockaddr *)&peer, &size) ||
        !print_peer(&peer, out) || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size))
        return false;
    out->fd = fd;
    out->leaves = info.tcpi_state != TCP_ESTABLISHED;
    out->silent_ms = info.tcpi_last_data_recv;
    pthread_mutex_lock(&g->lock);
    bool calls = map_get(&g->calling, out->peer) != NULL;
    pthread_mutex_unlock(&g->lock);
    return !calls;
}

static void shut_down(struct guard *g, const struct idle_conn *s)
{
    struct idle_conn now;
    int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (find_idle_conn(g, fd, &now) && !strcmp(now.peer, s->peer))
        (void)shutdown(fd, SHUT_RDWR);
    close(fd);
}

static bool is_listening(const struct guard *g, int fd)
{
    int is = 0;
    socklen_t size = sizeof is;
    return is_of_server(g, fd) && !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is, &size) && is;
}

static void add(struct sock_fprog *p, struct sock_filter one)
{
    p->filter[p->len++] = one;
}

// Drops what comes from this address: `parts` words, the first at `at` of the packet's head.
static void drop_address(struct sock_fprog *p, unsigned at, const void *address, int parts)
{
    const unsigned char *b = address;
    for (int i = 0; i < parts; i++, b += 4) {
        unsigned word = (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
        add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                            (unsigned)SKF_NET_OFF + at + 4 * (unsigned)i));
        // Another one: past the words that are left, and the drop.
        add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word, 0,
                                            (unsigned char)(2 * (parts - 1 - i) + 1)));
    }
    add(p, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0));
}

// Drops the flooders' packets, which are told apart by the version in the packet's head.
static void make_filter(const struct gate *gate, struct sock_fprog *p)
{
    enum { SOURCE4 = 12, SOURCE6 = 8, EVERY_BYTE = -1 };
    for (int six = 0; six < 2 && gate->nflooders; six++) {
        add(p, (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (unsigned)SKF_NET_OFF));
        add(p, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4));
        add(p, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, six ? 6 : 4, 1, 0));
        int other = p->len;
        add(p, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 0));
        for (int i = 0; i < gate->nflooders; i++) {
            unsigned char address[16];
            if (inet_pton(six ? AF_INET6 : AF_INET, gate->flooder[i], address) == 1)
                drop_address(p, six ? SOURCE6 : SOURCE4, address, six ? 4 : 1);
        }
        p->filter[other].k = (unsigned)(p->len - other - 1);
    }
    add(p,
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, gate->nflooders ? (unsigned)EVERY_BYTE : 0));
}

// A filter on a listening socket sees who wants to connect: whom it lets not pass tries again later.
// Connections that there are have no part in it.
static void set_filter(struct guard *g, int listener, const struct gate *gate)
{
    struct sock_filter code[FLOODERS_MAX * 9 + 16];
    struct sock_fprog program = {.filter = code};
    int fd = fcntl(listener, F_DUPFD_CLOEXEC, 0), unused = 0;
    if (fd < 0)
        return;
    make_filter(gate, &program);
    if (is_listening(g, fd) && gate->shut)
        (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    else if (is_listening(g, fd))
        (void)setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
    close(fd);
}

// ---- a look at all of them ----

static void list_idle_conns(struct guard *g, struct idle_conns *all)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *item;
    while (d && (item = readdir(d))) {
        struct idle_conn s = {0};
        int fd = atoi(item->d_name);
        if (item->d_name[0] == '.' || !is_of_server(g, fd))
            continue;
        if (all->nlisteners < LISTENERS_MAX && is_listening(g, fd))
            all->listeners[all->nlisteners++] = fd;
        if (!find_idle_conn(g, fd, &s))
            continue;
        all->v = arena_grow(&all->arena, all->v, sizeof *all->v, all->n, &all->cap);
        all->v[all->n++] = s;
    }
    if (d)
        closedir(d);
}

static int compare_hosts(const void *a, const void *b)
{
    return strcmp(((const struct idle_conn *)a)->host, ((const struct idle_conn *)b)->host);
}

static int compare_worst_first(const void *a, const void *b)
{
    const struct idle_conn *x = a, *y = b;
    // Those that are shut down already come first among those to leave: nobody else is shut down in
    // their stead.
    if (x->leaves != y->leaves)
        return x->leaves ? -1 : 1;
    if (x->of_host != y->of_host)
        return x->of_host > y->of_host ? -1 : 1;
    return (x->silent_ms < y->silent_ms) - (x->silent_ms > y->silent_ms);
}

static void count_hosts(struct idle_conns *all)
{
    qsort(all->v, (size_t)all->n, sizeof *all->v, compare_hosts);
    for (int i = 0, end; i < all->n; i = end) {
        for (end = i; end < all->n && !compare_hosts(&all->v[i], &all->v[end]);)
            end++;
        for (int k = i; k < end; k++)
            all->v[k].of_host = end - i;
    }
}

// None of the flooders comes in again before the core is rid of those who were shut down: it accepts
// faster than it closes. `all` are sorted by host where it is shut.
static void throttle_accepts(struct guard *g, const struct idle_conns *all, bool shut)
{
    struct gate now;
    memset(&now, 0, sizeof now); // it is compared whole
    now.shut = shut;
    for (int i = 0; i < all->n && shut; i += all->v[i].of_host)
        if (all->v[i].of_host > FLOOD && now.nflooders < FLOODERS_MAX)
            memcpy(now.flooder[now.nflooders++], all->v[i].host, PEER_MAX);
    if (!memcmp(&now, &g->gate, sizeof now))
        return;
    for (int i = 0; i < all->nlisteners; i++)
        set_filter(g, all->listeners[i], &now);
    g->gate = now;
}

static void turn_away(struct guard *g, struct idle_conns *all)
{
    qsort(all->v, (size_t)all->n, sizeof *all->v, compare_worst_first);
    if (!g->logged)
        log_warn("rpc", "%d connections without a call, most from %s: %d stay", all->n,
                 all->v[0].host, GUARD_MOST);
    for (int i = 0; i < all->n - GUARD_MOST; i++)
        shut_down(g, &all->v[i]);
    g->logged = true;
}

// Returns how many milliseconds later to look again.
static int look_at_idle_conns(struct guard *g)
{
    struct idle_conns all = {0};
    arena_init(&all.arena);
    list_idle_conns(g, &all);
    if (all.n > GUARD_MOST)
        count_hosts(&all);
    throttle_accepts(g, &all, all.n > GUARD_MOST);
    if (all.n > GUARD_MOST)
        turn_away(g, &all);
    bool calm = all.n <= GUARD_MOST / 4;
    if (!calm) {
        g->busy_ns = clock_mono_ns();
        g->trims = TRIMS;
    }
    if (g->trims && clock_mono_ns() - g->busy_ns > QUIET_MS * CLOCK_MS) {
        g->busy_ns = clock_mono_ns();
        g->trims--;
        g->logged = false;
        (void)malloc_trim(0);
    }
    arena_clear(&all.arena);
    return calm ? LOOK_MS : LOOK_CLOSELY_MS;
}

// ---- life ----

static void *run_guard(void *arg)
{
    struct guard *g = arg;
    int ms = LOOK_MS;
    pthread_mutex_lock(&g->lock);
    while (!g->stop) {
        (void)clock_cond_wait(&g->stopped, &g->lock, clock_mono_ns() + ms * CLOCK_MS);
        pthread_mutex_unlock(&g->lock);
        ms = look_at_idle_conns(g);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

struct guard *guard_new(int port)
{
    struct guard *g = heap_alloc(sizeof *g);
    g->port = port;
    pthread_mutex_init(&g->lock, NULL);
    clock_cond_init(&g->stopped);
    PRE(pthread_create(&g->thread, NULL, run_guard, g) == 0);
    return g;
}

void guard_free(struct guard *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_signal(&g->stopped);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    map_clear(&g->calling);
    pthread_cond_destroy(&g->stopped);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

void guard_calls(struct guard *g, const char *address, bool open)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    if (open)
        map_put(&g->calling, address, g);
    else
        map_remove(&g->calling, address);
    pthread_mutex_unlock(&g->lock);
}
