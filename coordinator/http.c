// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP, over libmicrohttpd with an epoll of its own. See http.h.
//
// A connection serves one request and lives VISIT_S seconds at most, whatever the client sends;
// when CROWD connections are open each newcomer closes the oldest. So neither idle nor slow clients
// can keep others out. The library has no call that ends a connection: its socket is shut down and
// the library sees the end by itself.
//
// http_fd() is a second epoll around the library's, so that it stays the same when certificates
// change. The files are looked at when somebody connects, at most once a second. When they have
// changed a new daemon starts on the same listening socket and the old one is stopped, after its
// open requests or after a while. Files that do not fit together change nothing.
//
// Deliberately absent: request bodies, keep-alive, compression, threads.
#include "coordinator/http.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/rpc/address.h"

enum {
    VISITS = 64,  // connections
    CROWD = 48,   // from so many on each newcomer closes the oldest
    VISIT_S = 10, // a connection, from its first to its last byte
    BACKLOG = 128,
    // Bytes of request line and headers; the library's memory a connection.
    REQUEST_HEAD_MAX = 8 << 10,
    PEM_MAX = 256 << 10,
    ROUNDS = 8, // of the library in one http_serve
};

enum { CA, CERT, KEY, FILES };

struct stamp { // tells that a file was replaced
    ino_t ino;
    off_t size;
    struct timespec changed;
};

struct http {
    struct http_options o; // texts are ours
    char *files[FILES];
    bool tls;
    struct stamp tried[FILES]; // of the newest files that were read, good or not
    int64_t looked_ns;
    int listener, epoll;
    struct MHD_Daemon *daemon;
    struct list visits; // the oldest first; without those that were shut
    int nvisits;
};

struct http_visit { // a connection
    struct list link;
    struct http *http;
    int fd; // the library's, open until it says that the connection is closed
    bool shut;
    int64_t until_ns;
};

// ---- open connections ----

static void visit_shut(struct http_visit *v)
{
    shutdown(v->fd, SHUT_RDWR);
    v->shut = true;
    v->http->nvisits--;
    list_remove(&v->link);
}

static struct http_visit *find_oldest(const struct http *h)
{
    return list_empty(&h->visits) ? NULL : list_entry(h->visits.next, struct http_visit, link);
}

static void visit_begin(struct http *h, struct MHD_Connection *conn, void **context)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_visit *v = calloc(1, sizeof *v);
    PRE(v != NULL && i != NULL);
    *v = (struct http_visit){
        .http = h, .fd = i->connect_fd, .until_ns = clock_mono_ns() + VISIT_S * CLOCK_S};
    if (h->nvisits >= CROWD)
        visit_shut(find_oldest(h));
    list_append(&h->visits, &v->link);
    h->nvisits++;
    *context = v;
}

static void on_connection(void *ctx, struct MHD_Connection *conn, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_visit *v = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        visit_begin(ctx, conn, context);
        return;
    }
    if (!v)
        return;
    if (!v->shut) {
        v->http->nvisits--;
        list_remove(&v->link);
    }
    free(v);
    *context = NULL;
}

// ---- who may ask ----

// A worker's certificate is for its stream only, as with the methods of gRPC that read.
static bool is_role(const char *uri)
{
    static const char *const roles[] = {"weft:role:client", "weft:role:admin"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(uri, roles[i]))
            return true;
    return false;
}

static bool has_role(gnutls_session_t session)
{
    unsigned n = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &n);
    gnutls_x509_crt_t cert;
    bool found = false;
    if (!chain || !n || gnutls_x509_crt_init(&cert))
        return false;
    if (!gnutls_x509_crt_import(cert, chain, GNUTLS_X509_FMT_DER)) {
        for (unsigned i = 0; !found; i++) {
            char name[256];
            size_t size = sizeof name;
            int type = gnutls_x509_crt_get_subject_alt_name(cert, i, name, &size, NULL);
            if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
                break;
            found = type == GNUTLS_SAN_URI && size < sizeof name && is_role(name);
        }
    }
    gnutls_x509_crt_deinit(cert);
    return found;
}

// The handshake asks for a certificate and goes on without one; a request without one is refused.
static bool may_ask(struct MHD_Connection *conn)
{
    static unsigned char client[] = GNUTLS_KP_TLS_WWW_CLIENT;
    gnutls_typed_vdata_st purpose = {GNUTLS_DT_KEY_PURPOSE_OID, client, 0};
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned status = 0;
    if (!i || !i->tls_session)
        return false;
    gnutls_session_t session = i->tls_session;
    return !gnutls_certificate_verify_peers(session, &purpose, 1, &status) && !status &&
           has_role(session);
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
} pages[] = {
    {"/healthz", PLAIN, page_healthz},
    {"/readyz", PLAIN, page_readyz},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics},
};

static const struct page *page_find(const char *path)
{
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (!strcmp(path, pages[i].path))
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

// What is wrong with the request, or 0.
static unsigned check_request(const struct http *h, struct MHD_Connection *conn, const char *method,
                              struct buf *why)
{
    if (h->tls && !may_ask(conn)) {
        buf_puts(why, "a client certificate of the cluster is needed\n");
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
    const struct page *page = page_find(url);
    unsigned status = check_request(h, conn, method, &out);
    if (!status && !page) {
        buf_puts(&out, "here are /healthz, /readyz and /metrics\n");
        status = MHD_HTTP_NOT_FOUND;
    }
    if (status)
        return send_answer(conn, status, PLAIN, &out);
    status = page->fill(h, &out);
    return send_answer(conn, status, page->type, &out);
}

// ---- the daemon ----

static void stamp_files(const struct http *h, struct stamp out[FILES])
{
    for (int i = 0; i < FILES; i++) {
        struct stat st = {0};
        if (stat(h->files[i], &st))
            st = (struct stat){0};
        out[i] = (struct stamp){st.st_ino, st.st_size, st.st_mtim};
    }
}

static bool stamps_equal(const struct stamp *a, const struct stamp *b)
{
    for (int i = 0; i < FILES; i++)
        if (a[i].ino != b[i].ino || a[i].size != b[i].size ||
            a[i].changed.tv_sec != b[i].changed.tv_sec ||
            a[i].changed.tv_nsec != b[i].changed.tv_nsec)
            return false;
    return true;
}

static int read_pem(const char *path, struct buf *out, struct err *e)
{
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, ERR_IO, "%s", path);
    for (;;) {
        buf_reserve(out, 4096);
        ssize_t n = read(fd, out->data + out->len, 4096);
        if (n < 0)
            rc = err_errno(e, ERR_IO, "%s", path);
        else if (out->len + (size_t)n > PEM_MAX)
            rc = err_set(e, ERR_INVALID, "%s: over %d bytes", path, PEM_MAX);
        if (rc || n <= 0)
            break;
        out->len += (size_t)n;
    }
    buf_reserve(out, 0);
    out->data[out->len] = 0;
    close(fd);
    return rc;
}

static gnutls_datum_t make_datum(const struct buf *b)
{
    return (gnutls_datum_t){(unsigned char *)b->data, (unsigned)b->len};
}

// The library would not say what is wrong with a file.
static int check_pems(const struct http *h, const struct buf pem[FILES], struct err *e)
{
    gnutls_certificate_credentials_t cred;
    gnutls_datum_t ca = make_datum(&pem[CA]), cert = make_datum(&pem[CERT]),
                   key = make_datum(&pem[KEY]);
    int rc = gnutls_certificate_allocate_credentials(&cred);
    if (rc)
        return err_set(e, ERR_INTERNAL, "%s", gnutls_strerror(rc));
    int n = gnutls_certificate_set_x509_trust_mem(cred, &ca, GNUTLS_X509_FMT_PEM);
    if (n <= 0)
        rc = err_set(e, ERR_INVALID, "%s: %s", h->files[CA],
                     n ? gnutls_strerror(n) : "no certificate in it");
    else if ((n = gnutls_certificate_set_x509_key_mem(cred, &cert, &key, GNUTLS_X509_FMT_PEM)) < 0)
        rc = err_set(e, ERR_INVALID, "%s with %s: %s", h->files[CERT], h->files[KEY],
                     gnutls_strerror(n));
    gnutls_certificate_free_credentials(cred);
    return rc;
}

// The daemon gets a descriptor of its own for the listening socket, because it closes it.
static struct MHD_Daemon *daemon_make(struct http *h, const struct buf pem[FILES])
{
    static char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_TRUST, 0, pem[CA].data},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pem[CERT].data},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pem[KEY].data},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, versions},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags = MHD_USE_EPOLL | (h->tls ? (unsigned)MHD_USE_TLS : 0);
    int fd = fcntl(h->listener, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)VISITS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)REQUEST_HEAD_MAX, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_ARRAY, h->tls ? tls : &tls[4], MHD_OPTION_END);
}

static int watch_daemon(struct http *h, struct MHD_Daemon *d, struct err *e)
{
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD);
    struct epoll_event ev = {.events = EPOLLIN};
    if (!i || epoll_ctl(h->epoll, EPOLL_CTL_ADD, i->epoll_fd, &ev))
        return err_errno(e, ERR_IO, "cannot watch HTTP");
    return 0;
}

// Starts a daemon with the files as they are now. The old daemon is stopped only when that works.
static int daemon_start(struct http *h, struct err *e)
{
    struct buf pem[FILES] = {0};
    struct MHD_Daemon *d = NULL;
    int rc = 0;
    if (h->tls) {
        stamp_files(h, h->tried);
        for (int i = 0; !rc && i < FILES; i++)
            rc = read_pem(h->files[i], &pem[i], e);
        if (!rc)
            rc = check_pems(h, pem, e);
    }
    if (!rc && !(d = daemon_make(h, pem)))
        rc = err_errno(e, ERR_IO, "cannot start HTTP");
    if (!rc && (rc = watch_daemon(h, d, e)))
        MHD_stop_daemon(d);
    if (!rc) {
        if (h->daemon)
            MHD_stop_daemon(h->daemon);
        h->daemon = d;
    }
    for (int i = 0; i < FILES; i++) {
        if (pem[i].data)
            explicit_bzero(pem[i].data, pem[i].len);
        buf_clear(&pem[i]);
    }
    return rc;
}

static void look_for_new_files(struct http *h, int64_t now_ns)
{
    struct stamp now[FILES];
    struct err e = {0};
    // A new certificate takes a restart, which cuts off open calls. So files are looked at each
    // second while there are none; while there always are some, every VISIT_S seconds.
    int64_t wait = list_empty(&h->visits) ? 1 : VISIT_S;
    if (!h->tls || now_ns - h->looked_ns < wait * CLOCK_S)
        return;
    h->looked_ns = now_ns;
    stamp_files(h, now);
    if (stamps_equal(now, h->tried))
        return;
    if (daemon_start(h, &e))
        log_warn("http", "the new certificate is not used: %s", e.text);
    else
        log_info("http", "a new certificate is used");
}

// ---- the address ----

static int bind_any(const struct addrinfo *all, int *out)
{
    for (const struct addrinfo *a = all; a; a = a->ai_next) {
        int on = 1;
        int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG)) {
            *out = fd;
            return 0;
        }
        int was = errno;
        close(fd);
        errno = was;
    }
    return -1;
}

static int listen_at(struct http *h, const char *text, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *all = NULL;
    struct address a;
    char port[8];
    int rc = address_parse(&a, text, h->tls, e);
    if (rc)
        return rc;
    if (a.unix_socket)
        return err_set(e, ERR_INVALID, "address '%s': HTTP needs HOST:PORT", text);
    snprintf(port, sizeof port, "%d", a.port);
    int code = getaddrinfo(a.host, port, &hints, &all);
    if (code)
        return err_set(e, ERR_INVALID, "address '%s': %s", text, gai_strerror(code));
    if (bind_any(all, &h->listener))
        rc = err_errno(e, ERR_IO, "cannot listen at %s", text);
    freeaddrinfo(all);
    return rc;
}

static int tell_bound(const struct http *h, char *bound, size_t size, struct err *e)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[64], port[8];
    if (getsockname(h->listener, (struct sockaddr *)&at, &len))
        return err_errno(e, ERR_IO, "getsockname");
    int code = getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port,
                           NI_NUMERICHOST | NI_NUMERICSERV);
    if (code)
        return err_set(e, ERR_IO, "getnameinfo: %s", gai_strerror(code));
    snprintf(bound, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

// ---- life ----

static int take_files(struct http *h, const struct http_options *o, struct err *e)
{
    const char *const files[FILES] = {o->ca, o->cert, o->key};
    h->tls = o->ca || o->cert || o->key;
    for (int i = 0; h->tls && i < FILES; i++) {
        if (!files[i])
            return err_set(e, ERR_INVALID, "TLS needs an authority, a certificate and a key");
        h->files[i] = strdup(files[i]);
        PRE(h->files[i] != NULL);
    }
    return 0;
}

int http_open(const struct http_options *o, struct http **out, char *bound, size_t size,
              struct err *e)
{
    PRE(o->metrics && o->ready);
    struct http *h = calloc(1, sizeof *h);
    PRE(h != NULL);
    h->o = (struct http_options){.ctx = o->ctx, .metrics = o->metrics, .ready = o->ready};
    h->listener = h->epoll = -1;
    h->looked_ns = clock_mono_ns();
    list_init(&h->visits);
    int rc = take_files(h, o, e);
    if (!rc)
        rc = listen_at(h, o->address, e);
    if (!rc && (h->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        rc = err_errno(e, ERR_IO, "epoll_create1");
    if (!rc)
        rc = daemon_start(h, e);
    if (!rc && bound)
        rc = tell_bound(h, bound, size, e);
    if (rc) {
        http_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

int http_fd(const struct http *h)
{
    return h->epoll;
}

int64_t http_due_ns(const struct http *h, int64_t now_ns)
{
    const struct http_visit *v = find_oldest(h);
    MHD_UNSIGNED_LONG_LONG ms = 0;
    int64_t due = v ? v->until_ns : 0;
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES &&
        (!due || now_ns + (int64_t)ms * CLOCK_MS < due))
        due = now_ns + (int64_t)ms * CLOCK_MS;
    return due;
}

void http_serve(struct http *h)
{
    int64_t now = clock_mono_ns();
    MHD_UNSIGNED_LONG_LONG ms = 0;
    look_for_new_files(h, now);
    for (struct http_visit *v; (v = find_oldest(h)) && v->until_ns <= now;)
        visit_shut(v);
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
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    if (h->epoll >= 0)
        close(h->epoll);
    if (h->listener >= 0)
        close(h->listener);
    for (int i = 0; i < FILES; i++)
        free(h->files[i]);
    free(h);
}
