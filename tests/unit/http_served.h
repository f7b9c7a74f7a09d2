// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP server on a thread of its own, and blocking clients with a watchdog.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "coordinator/serve/http.h"
#include "tests/unit/coord_world.h"

enum { WATCHDOG_S = 60, BIG = 32 << 20 };

// ---- the server ----

struct served {
    struct http *http;
    pthread_t thread;
    int wake[2];
    char bound[128];
    atomic_bool ready, big;
};

static inline bool is_ready(void *ctx, struct buf *why)
{
    struct served *s = ctx;
    if (!s->ready)
        buf_puts(why, "the store is being read");
    return s->ready;
}

static inline void print_text(void *ctx, struct buf *out)
{
    struct served *s = ctx;
    buf_puts(out, "weft_a 1\n");
    if (s->big) {
        buf_reserve(out, BIG);
        memset(out->data + out->len, '#', BIG);
        out->len += BIG;
    }
}

static inline void *serve(void *ctx)
{
    struct served *s = ctx;
    for (;;) {
        struct pollfd p[2] = {{.fd = http_fd(s->http), .events = POLLIN},
                              {.fd = s->wake[0], .events = POLLIN}};
        int64_t now = clock_mono_ns(), due = http_due_ns(s->http, now);
        int wait = !due ? -1 : due <= now ? 0 : (int)((due - now) / CLOCK_MS) + 1;
        poll(p, 2, wait);
        if (p[1].revents)
            return NULL;
        http_serve(s->http);
    }
}

static inline void begin(struct served *s, const char *address, bool probes)
{
    struct err e = {0};
    struct http_options o = {
        .address = address, .probes = probes, .ctx = s, .metrics = print_text, .ready = is_ready};
    *s = (struct served){.ready = true};
    if (http_open(&o, &s->http, s->bound, sizeof s->bound, &e))
        fail_msg("%s", e.text);
    assert_int_equal(pipe(s->wake), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static inline void end(struct served *s)
{
    assert_int_equal(write(s->wake[1], "x", 1), 1);
    pthread_join(s->thread, NULL);
    http_close(s->http);
    close(s->wake[0]);
    close(s->wake[1]);
}

// ---- clients ----

static inline int dial(const struct served *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)atoi(strrchr(s->bound, ':') + 1))};
    struct timeval watchdog = {.tv_sec = WATCHDOG_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &watchdog, sizeof watchdog);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &watchdog, sizeof watchdog);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static inline void say(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0) // the server may have had enough
            return;
        p += n;
        len -= (size_t)n;
    }
}

// Everything until the server ends the connection; a client that has to wait too long fails.
static inline void hear(int fd, struct buf *out)
{
    for (;;) {
        buf_reserve(out, 65536);
        ssize_t n = recv(fd, out->data + out->len, 65536, 0);
        if (n < 0)
            assert_int_equal(errno, ECONNRESET);
        if (n <= 0)
            break;
        out->len += (size_t)n;
    }
    buf_append(out, "", 0);
}

static int status_of(const struct buf *reply) // 0: none
{
    return strncmp(buf_str(reply), "HTTP/1.", 7) != 0 ? 0 : atoi(reply->data + 9);
}

static inline const char *body_of(const struct buf *reply)
{
    const char *p = strstr(buf_str(reply), "\r\n\r\n");
    return p ? p + 4 : "";
}

// `out` may be null. The status.
static inline int ask_bytes(const struct served *s, const void *data, size_t len, struct buf *out)
{
    struct buf reply = {0};
    int fd = dial(s);
    say(fd, data, len);
    shutdown(fd, SHUT_WR);
    hear(fd, &reply);
    close(fd);
    int status = status_of(&reply);
    if (out)
        *out = reply;
    else
        buf_clear(&reply);
    return status;
}

static inline int ask(const struct served *s, const char *method, const char *path, struct buf *out)
{
    char text[300];
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path);
    return ask_bytes(s, text, strlen(text), out);
}

static inline void assert_serves(const struct served *s)
{
    struct buf out = {0};
    assert_int_equal(ask(s, "GET", "/healthz", &out), 200);
    assert_string_equal(body_of(&out), "ok\n");
    buf_clear(&out);
}

static inline int plain(void **state)
{
    static struct served s;
    begin(&s, "127.0.0.1:0", false);
    *state = &s;
    return 0;
}

static inline int over(void **state)
{
    assert_serves(*state); // whatever the test did
    end(*state);
    return 0;
}

#define ON_PLAIN(f) cmocka_unit_test_setup_teardown(f, plain, over)
