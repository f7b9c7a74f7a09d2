// SPDX-License-Identifier: Apache-2.0
// The worker of a `weft run`; see own_worker.h.
#include "coordinator/cli/own_worker.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/base/system.h"
#include "worker/worker_daemon.h"
#include "worker/worker_setup.h"

int own_worker_read_signals(struct own_worker *w, struct err *e)
{
    struct sigaction hangup = {0};
    (void)sigaction(SIGHUP, NULL, &hangup); // of nohup
    const int which[] = {SIGINT, SIGTERM, SIGTSTP, hangup.sa_handler == SIG_IGN ? 0 : SIGHUP, 0};
    return system_read_signals(which, &w->signals, e);
}

// What a terminal's Ctrl-Z would do to the whole process group if the ranks were in it.
static void stand_still(struct own_worker *w)
{
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    if (w->daemon)
        worker_daemon_signal_ranks(w->daemon, SIGSTOP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, &before); // here it stops, until SIGCONT
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (w->daemon)
        worker_daemon_signal_ranks(w->daemon, SIGCONT);
}

void own_worker_take_signals(struct own_worker *w)
{
    struct signalfd_siginfo s;
    while (read(w->signals, &s, sizeof s) == (ssize_t)sizeof s) {
        if (s.ssi_signo == SIGTSTP) {
            stand_still(w);
            continue;
        }
        w->signal = w->signal ? w->signal : (int)s.ssi_signo;
        if (w->daemon && atomic_exchange(&w->stops_itself, false))
            continue; // a scheduler's, at the end of its time
        if (w->stopped)
            w->stopped(w->ctx);
        if (w->daemon)
            worker_daemon_stop(w->daemon);
    }
}

bool own_worker_asked_to_stop(struct own_worker *w, int wait_ms)
{
    struct pollfd p = {.fd = w->signals, .events = POLLIN};
    if (poll(&p, 1, wait_ms) == 1)
        own_worker_take_signals(w);
    return w->signal != 0;
}

static void on_signal(void *ctx, uint32_t events)
{
    (void)events;
    own_worker_take_signals(ctx);
}

static void on_stop(void *ctx, uint32_t events)
{
    struct own_worker *w = ctx;
    eventfd_t times = 0;
    (void)events;
    (void)eventfd_read(w->stop, &times);
    for (; times; times--)
        worker_daemon_stop(w->daemon);
}

static void report_sinks(const char *names)
{
    plain_error("waits for sinks that do not end, and ends them soon: %s", names);
}

static int run_daemon(struct own_worker *w, const struct worker_daemon_config *c, struct err *e)
{
    struct poll_loop *loop = NULL;
    struct poll_loop_source *none;
    bool attached = false;
    int rc = poll_loop_open(&loop, e);
    rc = rc ? rc : worker_daemon_open(c, loop, &w->daemon, e);
    rc = rc ? rc : poll_loop_add(loop, w->signals, EPOLLIN, on_signal, w, &none, e);
    rc = rc ? rc : poll_loop_add(loop, w->stop, EPOLLIN, on_stop, w, &none, e);
    while (!rc && worker_daemon_turn(w->daemon)) {
        if (!attached && worker_daemon_attached(w->daemon))
            w->attached(w->ctx);
        attached = worker_daemon_attached(w->daemon);
        w->connected = worker_daemon_connected(w->daemon);
    }
    if (worker_daemon_close(w->daemon) && !rc)
        rc = err_set(e, ERR_INTERNAL, "its worker has failed");
    w->daemon = NULL;
    poll_loop_close(loop);
    return rc;
}

int64_t own_worker_grace(const struct args *a)
{
    return a->grace_ns ? a->grace_ns : WORKER_GRACE_S * CLOCK_S;
}

int own_worker_run(struct own_worker *w, struct err *e)
{
    static struct worker_setup setup;
    char state[WORKER_PATH];
    struct worker_options o = {.coordinator = w->coordinator,
                               .tls = w->tls,
                               .name = w->name,
                               .state = state,
                               .cpu_devices = w->cpu ? w->devices : 0,
                               .cuda_devices = w->cpu ? 0 : -1,
                               .grace_ns = own_worker_grace(w->args),
                               .own_rights = true};
    snprintf(state, sizeof state, "%s/worker", w->folder);
    for (; o.nsinks < w->args->sinks.n; o.nsinks++)
        o.sinks[o.nsinks] = w->args->sinks.v[o.nsinks];
    system_raise_limits();
    int rc = worker_setup_open(&o, &setup, e);
    if (!rc) {
        setup.c.sinks_wait = report_sinks;
        rc = run_daemon(w, &setup.c, e);
    }
    worker_setup_close(&setup);
    return rc;
}
