// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP, over libmicrohttpd with an epoll of its own. See http.h.
//
// A connection serves one request and lives CONNECTION_S seconds at most, whatever the client sends;
// when OPEN_MAX connections are open each new one closes the oldest. So neither idle nor slow clients
// can keep others out. The library has no call that ends a connection: its socket is shut down and
// the library sees the end by itself.
//
// A page in a browser on this machine can reach a loopback address under a name of its own, and would
// then be allowed to read the answer. So /metrics is for those who ask this machine by `localhost` or
// by its address.
//
// Deliberately absent: TLS, request bodies, keep-alive, compression, threads.
#include "coordinator/serve/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/system.h"
#include "common/rpc/address.h"

enum {
    CONNECTIONS_MAX = 64, // the library's, which sees late that one has ended
    OPEN_MAX = 48,        // from so many on each new one closes the oldest
    CONNECTION_S = 10,    // from its first to its last byte
    BACKLOG = 128,
    // Bytes of request line and headers; the library's memory a connection.
    REQUEST_HEAD_MAX = 8 << 10,
    ROUNDS = 8, // of the library in one http_serve
};

struct http {
    struct http_options o; // without its address
    struct MHD_Daemon *daemon;
    struct list open; // connections, the oldest first; without those that were shut
    int nopen;
};

struct http_connection {
    struct list link;
    struct http *http;
    int fd; // the library's, open until it says that the connection is closed
    bool shut;
    int64_t until_ns;
};

// ---- open connections ----

static void shut_connection(struct http_connection *c)
{
    shutdown(c->fd, SHUT_RDWR);
    c->shut = true;
    c->http->nopen--;
    list_remove(&c->link);
}

static struct http_connection *find_oldest(const struct http *h)
{
    return list_empty(&h->open) ? NULL : list_entry(h->open.next, struct http_connection, link);
}

static void on_connection(void *ctx, struct MHD_Connection *conn, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http *h = ctx;
    struct http_connection *c = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *i =
            MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = c = heap_alloc(sizeof *c);
        PRE(i != NULL);
        *c = (struct http_connection){
            .http = h, .fd = i->connect_fd, .until_ns = clock_mono_ns() + CONNECTION_S * CLOCK_S};
        if (h->nopen >= OPEN_MAX)
            shut_connection(find_oldest(h));
        list_append(&h->open, &c->link);
        h->nopen++;
    } else if (c) {
        if (!c->shut) {
            h->nopen--;
            list_remove(&c->link);
        }
        free(c);
        *context = NULL;
    }
}

// ---- pages ----

static unsigned page_healthz(struct http *h, struct buf *out)
{
    (void)h;
    buf_puts(out, "ok\n");
    return MHD_HTTP_OK;
}

static unsigned page_readyz(struct http *h, struct buf *out)
{
    bool ready = h->o.ready(h->o.ctx, out);
    if (ready) {
        buf_reset(out);
        buf_puts(out, "ready");
    }
    buf_putc(out, '\n');
    return ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static unsigned page_metrics(struct http *h, struct buf *out)
{
    h->o.metrics(h->o.ctx, out);
    return MHD_HTTP_OK;
}

#define PLAIN "text/plain; charset=utf-8"
static const struct page {
    const char *path, *type;
    unsigned (*fill)(struct http *h, struct buf *out); // the status
    bool probe;                                        // served at the probes' address too
} pages[] = {
    {"/healthz", PLAIN, page_healthz, true},
    {"/readyz", PLAIN, page_readyz, true},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics, false},
};

static const struct page *find_page(const struct http *h, const char *path)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if ((pages[i].probe || !h->o.probes) && !strcmp(path, pages[i].path))
            return &pages[i];
    return NULL;
}

// ---- answers ----

static bool has_body(struct MHD_Connection *conn)
{
    const char *length = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Content-Length");
    return MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Transfer-Encoding") ||
           (length && length[strspn(length, "0")]);
}

// No name that somebody may own ends in a number.
static bool is_this_machine(const char *host)
{
    size_t name = strcspn(host, ":");
    return host[0] == '[' || strspn(host, "0123456789.:") == strlen(host) ||
           (name == strlen("localhost") && !strncasecmp(host, "localhost", name));
}

// What is wrong with the request, or 0.
static unsigned check_request(const struct page *page, struct MHD_Connection *conn,
                              const char *method, struct buf *why)
{
    const char *host = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Host");
    if (page && !page->probe && host && !is_this_machine(host)) {
        buf_puts(why, "ask for localhost or an address: this is served to this machine only\n");
        return MHD_HTTP_FORBIDDEN;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        buf_puts(why, "only GET and HEAD\n");
        return MHD_HTTP_METHOD_NOT_ALLOWED;
    }
    if (has_body(conn)) {
        buf_puts(why, "no body is taken\n");
        return MHD_HTTP_CONTENT_TOO_LARGE;
    }
    return 0;
}

static enum MHD_Result send_answer(struct MHD_Connection *conn, unsigned status, const char *type,
                                   struct buf *text) // takes it
{
    buf_reserve(text, 0);
    struct MHD_Response *r =
        MHD_create_response_from_buffer(text->len, text->data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        buf_clear(text);
        return MHD_NO;
    }
    *text = (struct buf){0};
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result rc = MHD_queue_response(conn, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *conn, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context)
{
    struct http *h = ctx;
    struct buf out = {0};
    (void)version;
    (void)data;
    (void)size;
    (void)context;
    const struct page *page = find_page(h, url);
    unsigned status = check_request(page, conn, method, &out);
    if (!status && !page) {
        buf_puts(&out, h->o.probes ? "here are /healthz and /readyz\n"
                                   : "here are /healthz, /readyz and /metrics\n");
        status = MHD_HTTP_NOT_FOUND;
    }
    if (status)
        return send_answer(conn, status, PLAIN, &out);
    status = page->fill(h, &out);
    return send_answer(conn, status, page->type, &out);
}

// ---- the address ----

static int bind_any(const struct addrinfo *all)
{
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        int on = 1;
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG))
            return fd;
        int was = errno;
        close(fd);
        errno = was;
    }
    return -1;
}

// A socket that an earlier process left there is replaced. The socket must be born with mode 0600.
static int bind_path(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const struct addrinfo one = {.ai_family = AF_UNIX,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_addr = (struct sockaddr *)(void *)&a,
                                 .ai_addrlen = sizeof a};
    struct stat st;
    memcpy(a.sun_path, path, strlen(path)); // address_parse() saw to its length
    if (!lstat(path, &st) && S_ISSOCK(st.st_mode))
        (void)unlink(path);
    mode_t was = umask(0177);
    int fd = bind_any(&one);
    umask(was);
    return fd;
}

static int listen_at(const struct http_options *o, int *fd, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    struct address a;
    char port[8];
    int rc = address_parse(&a, o->address, true, e);
    if (rc)
        return rc;
    if (!o->probes && !a.local)
        return err_set(e, ERR_INVALID,
                       "address '%s': metrics are served at loopback addresses and Unix sockets "
                       "only",
                       o->address);
    snprintf(port, sizeof port, "%d", a.port);
    if (a.unix_socket)
        *fd = bind_path(a.host);
    else if ((rc = getaddrinfo(a.host, port, &hints, &all)))
        return err_set(e, ERR_INVALID, "address '%s': %s", o->address, gai_strerror(rc));
    else
        *fd = bind_any(all);
    if (*fd < 0)
        rc = err_errno(e, ERR_IO, "cannot listen at %s", o->address);
    if (all)
        freeaddrinfo(all);
    return rc;
}

static int print_bound(const struct http_options *o, int fd, char *bound, size_t size,
                       struct err *e)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    char host[64], port[8];
    if (getsockname(fd, (struct sockaddr *)&at, &len))
        return err_errno(e, ERR_IO, "getsockname");
    if (at.ss_family == AF_UNIX) {
        snprintf(bound, size, "%s", o->address);
        return 0;
    }
    int code = getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port,
                           NI_NUMERICHOST | NI_NUMERICSERV);
    if (code)
        return err_set(e, ERR_IO, "getnameinfo: %s", gai_strerror(code));
    snprintf(bound, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

// ---- life ----

int http_open(const struct http_options *o, struct http **out, char *bound, size_t size,
              struct err *e)
{
    int fd = -1;
    PRE(o->ready && (o->probes || o->metrics));
    int rc = listen_at(o, &fd, e);
    if (!rc && bound)
        rc = print_bound(o, fd, bound, size, e);
    if (rc) {
        system_close(&fd);
        return rc;
    }
    struct http *h = heap_alloc(sizeof *h);
    h->o = *o;
    h->o.address = NULL;
    list_init(&h->open);
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, h,
                                 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)REQUEST_HEAD_MAX, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
    if (!h->daemon) {
        rc = err_errno(e, ERR_IO, "cannot start HTTP");
        close(fd);
        free(h);
        return rc;
    }
    *out = h;
    return 0;
}

int http_fd(const struct http *h)
{
    return MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

int64_t http_due_ns(const struct http *h, int64_t now_ns)
{
    const struct http_connection *c = find_oldest(h);
    MHD_UNSIGNED_LONG_LONG ms = 0;
    int64_t due = c ? c->until_ns : 0;
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES &&
        (!due || now_ns + (int64_t)ms * CLOCK_MS < due))
        due = now_ns + (int64_t)ms * CLOCK_MS;
    return due;
}

void http_serve(struct http *h)
{
    int64_t now = clock_mono_ns();
    MHD_UNSIGNED_LONG_LONG ms = 0;
    for (struct http_connection *c; (c = find_oldest(h)) && c->until_ns <= now;)
        shut_connection(c);
    for (int i = 0; i < ROUNDS; i++) {
        MHD_run(h->daemon);
        if (MHD_get_timeout(h->daemon, &ms) != MHD_YES || ms > 0)
            break;
    }
}

void http_close(struct http *h)
{
    if (!h)
        return;
    MHD_stop_daemon(h->daemon);
    free(h);
}
