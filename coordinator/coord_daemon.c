// SPDX-License-Identifier: Apache-2.0
// The loop; see coord_daemon.h.
#include "coordinator/coord_daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/entropy.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "coordinator/serve/http.h"
#include "coordinator/serve/prometheus.h"
#include "coordinator/serve/service.h"
#include "coordinator/serve/webhooks.h"

enum { TLS_PATH = 4200 };
enum { PAGES, PROBES, DOORS }; // of HTTP
enum { FD_RPC, FD_STOP, FD_PLANNER, FD_NOTICES, FD_HTTP, FDS = FD_HTTP + DOORS };
enum { EVENTS_A_PASS = 4096, IDLE_MS = 1000, ROOM_EVERY_MS = 1000 };
enum { POST_MS = 15000 }; // of one try to send a notice

struct coord_daemon {
    const struct coord_daemon_config *c; // borrowed
    struct db *db;
    struct coord *coord;
    struct rpc *rpc;
    struct rpc_server *server[LISTEN_MAX];
    char bound[LISTEN_MAX][RPC_NAME_MAX * 2];
    struct planner *planner;
    struct service *service;
    struct http *http[DOORS];
    struct webhooks *webhooks; // null: it has no receivers of notices
    int64_t stop_ns;           // it was asked to stop, and does so then at the latest; 0: not asked
    struct metrics_commits commits;
    int64_t marks; // of coord_marks, that the file beside the database has
    bool serving;
    int64_t grace_ns;               // until then hosts are still coming back
    int64_t room_ns;                // the disk is full: when it is looked at again; 0: it is not
    char read_only[160];            // what readers are shown meanwhile
    int64_t watchdog_ns, barked_ns; // of systemd; 0: none
    char ca[TLS_PATH], cert[TLS_PATH], key[TLS_PATH];
};

// ---- state -------------------------------------------------------------------------------------

static int load_row(void *ctx, const struct row *row, struct err *e)
{
    return coord_load(ctx, row, e);
}

// The id beside the database is older than any row: where they differ, one of them is not ours.
static int keep_cluster(struct coord_daemon *d, const char *beside, struct err *e)
{
    const char *id = coord_cluster(d->coord);
    if (!beside[0])
        return db_set_cluster(d->db, id, 0, e);
    return strcmp(beside, id) == 0 ? 0
                                   : err_set(e, ERR_EXISTS,
                                             "%s/weft.db is of cluster %s, the file cluster beside "
                                             "it says %s: put the right "
                                             "one of the two back, or where weft.db is damaged put "
                                             "a copy of it back, or " DB_REMEDY,
                                             d->c->state, id, beside);
}

static int commit_rows(struct coord_daemon *d, const struct coord_out *out, struct err *e)
{
    int64_t start = clock_mono_ns();
    int rc = out->nrows ? db_commit(d->db, out->rows, out->nrows, e) : 0;
    if (out->nrows && !rc)
        metrics_commit(&d->commits, clock_mono_ns() - start, out->nrows);
    // Never ahead of the rows. Where it is behind, only an old copy is found out later.
    if (!rc && coord_marks(d->coord) != d->marks &&
        !db_set_cluster(d->db, coord_cluster(d->coord), coord_marks(d->coord), NULL))
        d->marks = coord_marks(d->coord);
    return rc;
}

// A decider that knows what the rows say. The cluster's id lies in a file beside the database, so
// that it outlives a lost database.
static int load_rows(struct coord_daemon *d, char cluster[ID_LEN], struct err *e)
{
    struct coord_config cc = {.lease_ns = d->c->lease_ns, .heartbeat_ns = d->c->lease_ns / 5};
    if (d->webhooks) {
        cc.receivers = webhooks_names(d->webhooks);
        cc.nreceivers = d->c->nnotify;
    }
    char boot[CLOCK_BOOT];
    int rc = db_cluster(d->db, cluster, &cc.marks, e);
    rc = rc ? rc : entropy_bytes(cc.seed, sizeof cc.seed, e);
    if (rc)
        return rc;
    cc.cluster = cluster[0] ? cluster : NULL;
    clock_boot(boot);
    cc.boot = boot;
    cc.restored = d->c->restored && !d->marks; // once: when this process loads them first
    coord_free(d->coord);
    d->coord = coord_new(&cc);
    rc = db_load(d->db, load_row, d->coord, e);
    if (!rc && coord_marks(d->coord) && (cc.restored || cc.marks > coord_marks(d->coord)))
        log_warn("coordinator",
                 "%s/weft.db is an older copy: what the jobs' checkpoint folders hold is "
                 "believed, and hosts are asked for jobs that it does not know",
                 d->c->state);
    return rc;
}

// ERR_LIMIT: the disk is full.
static int start_decider(struct coord_daemon *d, struct err *e)
{
    char cluster[ID_LEN] = "";
    struct arena arena = {0};
    struct coord_out out = {.arena = &arena};
    int rc = load_rows(d, cluster, e);
    if (!rc) {
        coord_started(d->coord, clock_mono_ns(), clock_wall_ms(), &out);
        rc = keep_cluster(d, cluster, e);
        rc = rc ? rc : commit_rows(d, &out, e);
    }
    if (!rc && d->service) {
        service_restart(d->service, d->coord, NULL, NULL);
        service_act(d->service, &out);
    }
    arena_clear(&arena);
    return rc;
}

// ---- a full disk -------------------------------------------------------------------------------

// Memory is ahead of the rows: it is thrown away for what they say. `lost` is the pass that could
// not be written, null: there is none. From here on nothing is decided; ranks train without us.
static int become_read_only(struct coord_daemon *d, const struct coord_out *lost, struct err *e)
{
    char cluster[ID_LEN], *why = d->read_only;
    snprintf(why, sizeof d->read_only, "read only: disk full (%.120s)", d->c->state);
    log_error("coordinator", "%s: %s", why, e->text);
    int rc = load_rows(d, cluster, e);
    if (rc)
        return rc;
    coord_read_only(d->coord, clock_mono_ns(), clock_wall_ms(), why);
    if (d->service)
        service_restart(d->service, d->coord, why, lost);
    d->room_ns = clock_mono_ns() + ROOM_EVERY_MS * CLOCK_MS;
    return 0;
}

// The database is opened again, since it may be open for reading alone.
static int resume_with_room(struct coord_daemon *d, struct err *e)
{
    d->room_ns = clock_mono_ns() + ROOM_EVERY_MS * CLOCK_MS;
    if (!db_has_room(d->db))
        return 0;
    db_close(d->db);
    d->db = NULL;
    int rc = db_open(&d->db, d->c->state, d->c->locked ? DB_LOCKED : DB_OWN, e);
    if (rc)
        return rc;
    service_use_db(d->service, d->db);
    rc = start_decider(d, e);
    if (rc == ERR_LIMIT)
        return become_read_only(d, NULL, e);
    if (rc)
        return rc;
    log_info("coordinator", "the disk has room again");
    d->room_ns = 0;
    d->grace_ns = clock_mono_ns() + (d->c->lease_ns ? d->c->lease_ns : COORD_LEASE_S * CLOCK_S);
    return 0;
}

static int open_state(struct coord_daemon *d, struct err *e)
{
    int rc = db_open(&d->db, d->c->state, d->c->locked ? DB_LOCKED : DB_OWN, e);
    rc = rc ? rc : start_decider(d, e);
    return rc == ERR_LIMIT && d->db ? become_read_only(d, NULL, e) : rc;
}

// ---- listening ---------------------------------------------------------------------------------

static struct rpc_tls make_tls(struct coord_daemon *d)
{
    if (!d->c->tls_dir)
        return (struct rpc_tls){0};
    snprintf(d->ca, sizeof d->ca, "%s/ca.pem", d->c->tls_dir);
    snprintf(d->cert, sizeof d->cert, "%s/server.pem", d->c->tls_dir);
    snprintf(d->key, sizeof d->key, "%s/server.key", d->c->tls_dir);
    return (struct rpc_tls){d->ca, d->cert, d->key};
}

// A missing file means a wrong flag, which no restart mends, and not a failing disk.
static int find_tls(struct coord_daemon *d, struct err *e)
{
    struct rpc_tls tls = make_tls(d);
    const char *const files[] = {tls.ca, tls.cert, tls.key};
    for (int i = 0; i < 3; i++)
        if (files[i] && access(files[i], R_OK))
            return err_errno(e, ERR_INVALID, "--tls: %s", files[i]);
    return 0;
}

static void print_metrics(void *ctx, struct buf *out)
{
    const struct coord_daemon *d = ctx;
    metrics_print(d->coord, &d->commits, out);
}

static bool is_ready(void *ctx, struct buf *why)
{
    const struct coord_daemon *d = ctx;
    bool graced = clock_mono_ns() < d->grace_ns;
    if (!d->serving)
        buf_puts(why, "it is stopping\n");
    else if (d->room_ns)
        buf_puts(why, "read only: disk full\n");
    else if (graced)
        buf_puts(why, "hosts are still coming back: a lease after the start\n");
    return d->serving && !graced && !d->room_ns;
}

// gRPC would silently take over the socket of a running server, so look first whether one listens.
static int check_unused(const char *path, struct err *e)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred who = {0};
    socklen_t size = sizeof who;
    if (strlen(path) >= sizeof to.sun_path)
        return 0; // too long for a socket: rpc_serve() refuses it and says so
    memcpy(to.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;
    if (fd < 0)
        return err_errno(e, ERR_INTERNAL, "cannot make a socket");
    if (connect(fd, (const struct sockaddr *)(void *)&to, sizeof to) == 0) {
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
        rc = err_set(e, ERR_EXISTS, "%s is in use by pid %d", path, (int)who.pid);
    }
    close(fd);
    return rc;
}

static int listen_one(struct coord_daemon *d, int i, struct err *e)
{
    char *bound = d->bound[i];
    struct rpc_server_options o = {
        .address = d->c->listen[i], .methods = service_methods, .nmethods = service_nmethods};
    bool local = strncmp(o.address, "unix:", 5) == 0; // of mode 0600: it needs no TLS
    if (!local)
        o.tls = make_tls(d);
    int rc = local ? check_unused(o.address + 5, e) : 0;
    rc = rc ? rc : rpc_serve(d->rpc, &o, &d->server[i], bound, sizeof d->bound[i], e);
    if (rc)
        return rc;
    log_info("coordinator", "listens on %s", bound);
    if (!local && !d->c->tls_dir)
        log_warn("coordinator",
                 "%s asks for no certificate: every user of this machine may see, submit and "
                 "cancel jobs, "
                 "and attach workers; give --tls, or listen on a unix: address, which is this "
                 "user's alone",
                 bound);
    return 0;
}

static int open_http(struct coord_daemon *d, int door, const char *address, struct err *e)
{
    char bound[RPC_NAME_MAX * 2];
    const struct http_options o = {.address = address,
                                   .probes = door == PROBES,
                                   .ctx = d,
                                   .metrics = print_metrics,
                                   .ready = is_ready};
    int rc = strncmp(address, "unix:", 5) == 0 ? check_unused(address + 5, e) : 0;
    rc = rc ? rc : http_open(&o, &d->http[door], bound, sizeof bound, e);
    if (rc)
        return err_wrap(e, door == PROBES ? "--probes" : "--http");
    log_info("coordinator", "%s at %s", door == PROBES ? "probes" : "http", bound);
    return 0;
}

static int listen_all(struct coord_daemon *d, struct err *e)
{
    int rc = find_tls(d, e);
    rc = rc ? rc : rpc_open(&d->rpc, e);
    for (int i = 0; i < d->c->nlisten && !rc; i++)
        rc = listen_one(d, i, e);
    if (!rc && d->c->http)
        rc = open_http(d, PAGES, d->c->http, e);
    if (!rc && d->c->probes)
        rc = open_http(d, PROBES, d->c->probes, e);
    return rc;
}

static void begin_serving(struct coord_daemon *d)
{
    for (int i = 0; i < d->c->nlisten; i++)
        rpc_serving(d->server[i], true);
    d->serving = true;
    d->grace_ns = clock_mono_ns() + (d->c->lease_ns ? d->c->lease_ns : COORD_LEASE_S * CLOCK_S);
    d->barked_ns = clock_mono_ns();
    d->watchdog_ns = notify_watchdog_ns();
    notify_service("READY=1");
}

// ---- the loop ----------------------------------------------------------------------------------

static int wait_ms(const struct coord_daemon *d)
{
    int64_t now = clock_mono_ns();
    int64_t due = d->room_ns ? d->room_ns : coord_due(d->coord);
    due = deadline_earlier(due, service_due(d->service));
    for (int i = 0; i < DOORS; i++)
        if (d->http[i])
            due = deadline_earlier(due, http_due_ns(d->http[i], now));
    due = deadline_earlier(due, d->stop_ns);
    if (d->watchdog_ns)
        due = deadline_earlier(due, d->barked_ns + d->watchdog_ns / 2);
    if (!due)
        return IDLE_MS * 60;
    int64_t ms = (due - now + CLOCK_MS - 1) / CLOCK_MS;
    return ms < 0 ? 0 : ms > IDLE_MS * 60 ? IDLE_MS * 60 : (int)ms;
}

static int finish_pass(struct coord_daemon *d, struct coord_out *out, struct err *e)
{
    int rc = commit_rows(d, out, e);
    if (rc == ERR_LIMIT)
        return become_read_only(d, out, e);
    if (rc)
        return rc;
    service_act(d->service, out);
    for (int i = 0; i < out->nactions; i++) {
        const struct coord_action *a = &out->actions[i];
        if (a->kind == COORD_POST)
            webhooks_post(d->webhooks, a->receiver, a->job, a->text);
    }
    return 0;
}

static void take_answers(struct coord_daemon *d, struct coord_out *out)
{
    struct webhook_answer answer;
    while (d->webhooks && !d->room_ns && webhooks_next(d->webhooks, &answer)) {
        const struct coord_event ev = {.kind = COORD_EV_POSTED,
                                       .now_ns = clock_mono_ns(),
                                       .wall_ms = clock_wall_ms(),
                                       .target = answer.receiver,
                                       .posted = answer.result,
                                       .id = answer.id,
                                       .result = answer.why};
        if (answer.result != POST_TAKEN)
            log_warn("coordinator", "notice %s was not taken by %s: %s", answer.id, answer.receiver,
                     answer.why);
        coord_step(d->coord, &ev, out);
    }
}

// Writes all that a pass decided in one transaction, and only then carries out its actions.
static int take_events(struct coord_daemon *d, struct err *e)
{
    struct arena arena = {0};
    struct rpc_event ev;
    int64_t due = d->room_ns ? 0 : coord_due(d->coord);
    struct coord_out out = {.arena = &arena};
    for (int i = 0; i < EVENTS_A_PASS && rpc_next(d->rpc, &ev); i++) {
        service_take(d->service, &ev, &out);
        rpc_event_clear(&ev);
    }
    service_planned(d->service, &out);
    take_answers(d, &out);
    if (due && clock_mono_ns() >= due)
        service_tick(d->service, &out);
    int rc = finish_pass(d, &out, e);
    arena_clear(&arena);
    if (!rc && d->room_ns && clock_mono_ns() >= d->room_ns)
        rc = resume_with_room(d, e);
    return rc;
}

// systemd wants to know that the loop goes round.
static void feed_watchdog(struct coord_daemon *d)
{
    int64_t now = clock_mono_ns();
    if (!d->watchdog_ns || now < d->barked_ns + d->watchdog_ns / 2)
        return;
    d->barked_ns = now;
    notify_service("WATCHDOG=1");
}

int coord_daemon_check_notify(const char *const *notify, int n, struct err *e)
{
    return webhooks_check(notify, n, e);
}

int coord_daemon_open(const struct coord_daemon_config *c, struct coord_daemon **out, struct err *e)
{
    struct coord_daemon *d = heap_alloc(sizeof *d);
    d->c = c;
    int rc = c->nnotify ? webhooks_open(c->notify, c->nnotify, POST_MS, &d->webhooks, e) : 0;
    rc = rc ? rc
            : planner_open(&(struct planner_options){.program = "/proc/self/exe"}, &d->planner, e);
    rc = rc ? rc : open_state(d, e);
    rc = rc ? rc : listen_all(d, e);
    if (rc) {
        coord_daemon_close(d);
        return rc;
    }
    struct service_options o = {.rpc = d->rpc,
                                .coord = d->coord,
                                .db = d->db,
                                .planner = d->planner,
                                .tls_dir = c->tls_dir};
    d->service = service_new(&o);
    if (d->room_ns) // the disk was full at the start
        service_restart(d->service, d->coord, d->read_only, NULL);
    begin_serving(d);
    *out = d;
    return 0;
}

// Asked again it waits for nothing.
static void take_stop(struct coord_daemon *d)
{
    eventfd_t times = 1;
    (void)eventfd_read(d->c->stop, &times); // leaves a signalfd as it is
    d->stop_ns = clock_mono_ns() + (d->stop_ns || times > 1 ? 0 : d->c->last_notices_ns);
    coord_stops(d->coord);
}

int coord_daemon_run(struct coord_daemon *d, struct err *e)
{
    for (;;) {
        struct pollfd p[FDS] = {[FD_RPC] = {rpc_fd(d->rpc), POLLIN, 0},
                                [FD_STOP] = {d->c->stop, POLLIN, 0},
                                [FD_PLANNER] = {planner_fd(d->planner), POLLIN, 0},
                                [FD_NOTICES] = {-1, POLLIN, 0}};
        if (d->webhooks && !d->room_ns)
            p[FD_NOTICES].fd = webhooks_fd(d->webhooks);
        for (int i = 0; i < DOORS; i++)
            p[FD_HTTP + i] = (struct pollfd){d->http[i] ? http_fd(d->http[i]) : -1, POLLIN, 0};
        if (poll(p, FDS, wait_ms(d)) < 0 && errno != EINTR)
            return err_errno(e, ERR_INTERNAL, "cannot wait for events");
        if (p[FD_STOP].revents)
            take_stop(d);
        if (d->stop_ns &&
            (clock_mono_ns() >= d->stop_ns || d->room_ns || !coord_has_unsent(d->coord)))
            return 0;
        for (int i = 0; i < DOORS; i++)
            if (d->http[i] && (p[FD_HTTP + i].revents || http_due_ns(d->http[i], clock_mono_ns())))
                http_serve(d->http[i]);
        int rc = take_events(d, e);
        if (rc)
            return rc;
        feed_watchdog(d);
    }
}

void coord_daemon_unsent(const struct coord_daemon *d, struct buf *to)
{
    struct coord_receiver *all;
    struct arena a = {0};
    for (int i = 0, n = coord_receivers(d->coord, &a, &all); i < n; i++)
        if (all[i].waiting)
            buf_printf(to, "%s%lld to %s", to->len ? ", " : "", (long long)all[i].waiting,
                       all[i].name);
    arena_clear(&a);
}

const char *coord_daemon_bound(const struct coord_daemon *d, int i)
{
    return d->bound[i];
}

void coord_daemon_close(struct coord_daemon *d)
{
    if (!d)
        return;
    if (d->serving)
        notify_service("STOPPING=1");
    d->serving = false;
    for (int i = 0; i < DOORS; i++)
        http_close(d->http[i]);
    rpc_close(d->rpc); // what was answered leaves; open streams get a second
    service_free(d->service);
    planner_close(d->planner);
    webhooks_close(d->webhooks);
    coord_free(d->coord);
    db_close(d->db);
    free(d);
}
