// SPDX-License-Identifier: Apache-2.0
// An agent of an allocation; see run_agent.h.
#include "coordinator/cli/run_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "coordinator/cli/own_worker.h"
#include "coordinator/cli/resolved_job.h"
#include "coordinator/cli/run_record.h"
#include "worker/join_cluster.h"

#define LOST_NS (10 * CLOCK_S)      // as long as a coordinator waits for a worker
enum { LOOK_MS = 250, SILENT = 4 }; // so often it is asked in vain

struct agent {
    const struct verb *verb;
    struct arena arena;
    struct job job;
    struct several s;
    struct record record; // only its folder is used
    struct leader_file leader;
    const char *address; // of it, that answered
    char tls[4200], name[128];
    struct own_worker worker;
    int log, over;    // descriptors: the worker's log; an eventfd: it has ended
    int code;         // the leader's, −1: it did not say
    bool there, lost; // a leader's file, whoever's; the leader
};

// ---- joining ----

static void choose_name(struct agent *g)
{
    char host[64] = "host", random[ID_LEN];
    const char *node = getenv("SLURMD_NODENAME");
    (void)gethostname(host, sizeof host - 1);
    // A certificate's name is its first key's for good, and a pod that comes again has another.
    (void)entropy_id(random, NULL);
    snprintf(g->name, sizeof g->name, "%.40s-%d-%.6s", node && *node ? node : host, g->s.a.index,
             random);
}

// 0; or why this file's leader cannot be joined now.
static int try_leader(struct agent *g, struct err *e)
{
    int rc = leader_file_read(g->s.root, g->s.name, &g->s.secret, &g->leader, e);
    if (rc)
        return rc;
    g->there = true;
    if (*g->s.a.id && strcmp(g->leader.allocation, g->s.a.id) != 0)
        return err_set(e, ERR_NOTFOUND,
                       "%s/.weft/%s.leader is of another start (%s), and this is %s", g->s.root,
                       g->s.name, g->leader.allocation, g->s.a.id);
    if (g->leader.ended >= 0 && *g->s.a.id)
        return 0;
    if (g->leader.ended >= 0)
        return err_set(e, ERR_NOTFOUND, "the leader of %s/.weft/%s.leader has ended", g->s.root,
                       g->s.name);
    rc = err_set(e, ERR_DATA, "it names no address");
    for (int i = 0; i < g->leader.naddresses && rc; i++) {
        if (own_worker_asked_to_stop(&g->worker, 0))
            return err_set(e, ERR_ABORTED, "it was asked to stop");
        g->address = g->leader.address[i];
        rc = join_cluster(g->leader.token, g->address, g->tls, SEVERAL_LOOK_S, NULL, g->name, e);
    }
    return rc;
}

// Returns −1 once it has joined, else an exit code.
static int join_leader(struct agent *g)
{
    int64_t until = clock_mono_ns() + g->s.wait_ns;
    char last[sizeof((struct err *)0)->text] = "";
    for (;;) {
        struct err e = {0};
        int rc = try_leader(g, &e);
        if (!rc)
            return g->code = g->leader.ended;
        if (rc == ERR_INVALID) { // of the wrong owner or mode: nothing that time mends
            complain(g->verb, e.text, g->s.root,
                     "all of them must run as one user, or share a secret: WEFT_SECRET_FILE");
            return SEVERAL_PERSON;
        }
        if (strcmp(last, e.text) != 0)
            plain_error("index %d waits for its leader: %s", g->s.a.index, e.text);
        snprintf(last, sizeof last, "%s", e.text);
        if (own_worker_asked_to_stop(&g->worker, LOOK_MS))
            return several_exit(CLIENT_INTERRUPTED, g->worker.signal);
        if (clock_mono_ns() < until)
            continue;
        complain(g->verb, e.text, g->s.root,
                 rc == ERR_REFUSED
                     ? "start all of them again: a token is good for one start of the leader"
                     : "is checkpoint.dir one storage that all hosts see, does index 0 run, and do "
                       "hosts reach each other? WEFT_WAIT=10m waits longer");
        // A file that is there shows that they see one storage, and pods need not start at once.
        return allocation_replaces(&g->s.a) || g->there ? SEVERAL_AGAIN : SEVERAL_PERSON;
    }
}

// ---- while it works ----

// Looks what becomes of the leader, until the worker is over.
static void *watch_leader(void *arg)
{
    struct agent *g = arg;
    int64_t heard = clock_mono_ns();
    int silent = 0;
    struct pollfd p = {.fd = g->over, .events = POLLIN};
    while (poll(&p, 1, LOOK_MS) == 0) {
        struct leader_file now;
        if (g->worker.connected) {
            heard = clock_mono_ns();
            silent = 0;
            continue;
        }
        bool there = !leader_file_read(g->s.root, g->s.name, &g->s.secret, &now, NULL);
        bool same = there && strcmp(now.id, g->leader.id) == 0;
        if (same && now.ended >= 0)
            g->code = now.ended;
        if (g->code < 0 && !several_leader_answers(&g->s, &g->leader, g->over))
            silent++;
        g->lost = g->code < 0 &&
                  (silent >= SILENT || clock_mono_ns() - heard > LOST_NS || (there && !same));
        if (g->code < 0 && !g->lost)
            continue;
        (void)eventfd_write(g->worker.stop, 2);
        break;
    }
    return NULL;
}

static void on_attached(void *ctx)
{
    const struct agent *g = ctx;
    plain_error("index %d of %d, %s: joined its leader at %s; state in %s", g->s.a.index,
                g->s.a.size, g->name, g->address, g->record.dir);
}

static int work(struct agent *g, const struct args *args, struct err *e)
{
    pthread_t thread;
    g->worker.folder = g->record.dir;
    g->worker.coordinator = g->address;
    g->worker.tls = g->tls;
    g->worker.name = g->name;
    g->worker.cpu = g->job.resources.kind == JOB_CPU;
    g->worker.devices = g->s.devices;
    g->worker.args = args;
    if (pthread_create(&thread, NULL, watch_leader, g))
        return err_set(e, ERR_IO, "cannot start a thread");
    int rc = own_worker_run(&g->worker, e);
    // Its coordinator may be gone before it has said its last: that is looked for once more.
    (void)eventfd_write(g->over, 1);
    pthread_join(thread, NULL);
    return rc;
}

static int run_worker(struct agent *g, const struct args *args)
{
    struct err e = {0};
    int rc = work(g, args, &e);
    if (g->code >= 0)
        return g->code;
    if (g->worker.signal)
        return several_exit(CLIENT_INTERRUPTED, g->worker.signal);
    if (g->lost) {
        plain_error("index %d: the leader at %s is lost; whoever starts next continues from the "
                    "last checkpoint",
                    g->s.a.index, g->address);
        return SEVERAL_AGAIN;
    }
    complain(g->verb, rc ? e.text : "its worker has ended", g->record.dir,
             "see the leader's output and `weft doctor` here");
    return CLIENT_FAILED;
}

static int open_agent(struct agent *g, struct err *e)
{
    char base[4096], log[4200];
    int rc = realpath(g->job.base_dir, base) ? 0 : err_errno(e, ERR_INVALID, "%s", g->job.base_dir);
    rc = rc ? rc : several_open(&g->s, &g->job, base, e);
    rc = rc ? rc : record_open(&g->record, g->s.place, g->s.name, e);
    if (rc)
        return rc;
    snprintf(log, sizeof log, "%s/log", g->record.dir);
    g->log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (g->log < 0)
        return err_errno(e, ERR_IO, "%s", log);
    log_to(g->log);
    snprintf(g->tls, sizeof g->tls, "%s/tls", g->record.dir);
    choose_name(g);
    g->worker.attached = on_attached;
    g->worker.ctx = g;
    g->worker.stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->over = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return g->worker.stop < 0 || g->over < 0 ? err_errno(e, ERR_IO, "cannot make an eventfd") : 0;
}

int run_agent(const struct verb *v, const struct args *args, const struct several *s)
{
    static struct agent g;
    struct err e = {0};
    g = (struct agent){.verb = v, .s = *s, .code = -1, .record.lock = -1};
    if (own_worker_read_signals(&g.worker, &e)) {
        complain(v, e.text, "signals", "raise the limit of open files");
        return CLIENT_FAILED;
    }
    int rc = resolve_job(args, &g.arena, &g.job);
    if (rc)
        return several_exit(rc, 0);
    if ((rc = open_agent(&g, &e))) {
        complain(v, e.text, *g.s.place ? g.s.place : g.s.root,
                 rc == ERR_EXISTS ? "wait for it, or stop it" : "mend it, or name another TMPDIR");
        rc = rc == ERR_EXISTS ? SEVERAL_AGAIN : SEVERAL_PERSON;
    } else {
        rc = join_leader(&g);
        rc = rc < 0 ? run_worker(&g, args) : rc;
        folder_remove(g.tls);
    }
    if (g.code >= 0)
        plain_error("index %d: the leader ended with %d", g.s.a.index, g.code);
    record_close(&g.record);
    arena_clear(&g.arena);
    return rc;
}
