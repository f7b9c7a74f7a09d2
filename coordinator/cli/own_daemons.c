// SPDX-License-Identifier: Apache-2.0
// The daemons of `weft run`; see own_daemons.h.
#include "coordinator/cli/own_daemons.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "coordinator/cli/programs.h"

enum {
    EXIT_RESTART = 70,
    FIRST_PAUSE_MS = 100,
    LONGEST_PAUSE_MS = 5000,
    MOST_FAILURES = 8,   // of a daemon in a row, before it is given up
    GOOD_RUN_S = 10,     // a daemon that ran so long has its failures forgotten
    LISTEN_S = 5,        // to wait for the coordinator's socket
    RETRY_MS = 20,       // to look whether one is to be started again
    KILLED_S = 10,       // to wait until a killed process is gone
    LOG_BYTES = 4 << 20, // when a daemon starts, a larger log is renamed first
    GRPC_PATH_MAX = 100, // gRPC refuses Unix paths of more than 107 characters
};

// ---- sockets: they lie in a private folder with a short name ----

bool daemons_listen(const char *socket_path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(socket_path) >= sizeof to.sun_path)
        return false;
    memcpy(to.sun_path, socket_path, strlen(socket_path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there = fd >= 0 && !connect(fd, (const struct sockaddr *)(void *)&to, sizeof to);
    if (fd >= 0)
        close(fd);
    return there;
}

static const char SOCKETS_NAME[] = "weft-run-";

// A folder that somebody else gave us may name any place.
static bool is_sockets_folder(const char *path)
{
    const char *name = strrchr(path, '/');
    struct stat st;
    return name && strncmp(name + 1, SOCKETS_NAME, strlen(SOCKETS_NAME)) == 0 &&
           lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

static int make_sockets(struct own_daemons *m, struct err *e)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char mark[4300], old[sizeof m->sockets];
    snprintf(mark, sizeof mark, "%s/sockets", m->root);
    // Left by a run that was killed, since we hold the lock. In the copy of a folder it may be that of a
    // run which lives.
    ssize_t n = readlink(mark, old, sizeof old - 1);
    if (n > 0) {
        old[n] = 0;
        snprintf(m->address, sizeof m->address, "%s/c.sock", old);
        if (is_sockets_folder(old) && !daemons_listen(m->address)) {
            unlink(m->address);
            rmdir(old);
        }
        unlink(mark);
    }
    if (!run || *run != '/' || strlen(run) > GRPC_PATH_MAX - 30 || access(run, W_OK))
        run = "/tmp";
    snprintf(m->sockets, sizeof m->sockets, "%s/%sXXXXXX", run, SOCKETS_NAME);
    if (!mkdtemp(m->sockets)) {
        err_errno(e, ERR_IO, "%s", m->sockets);
        m->sockets[0] = 0;
        return ERR_IO;
    }
    snprintf(m->address, sizeof m->address, "unix:%s/c.sock", m->sockets);
    return symlink(m->sockets, mark) ? err_errno(e, ERR_IO, "%s", mark) : 0;
}

static void remove_sockets(struct own_daemons *m)
{
    char mark[4300];
    if (!m->sockets[0])
        return;
    unlink(m->address + strlen("unix:"));
    rmdir(m->sockets);
    snprintf(mark, sizeof mark, "%s/sockets", m->root);
    unlink(mark);
}

// ---- one daemon ----

static int open_log(const struct own_daemon *d, struct err *e)
{
    char old[4300];
    struct stat st;
    if (stat(d->log, &st) == 0 && st.st_size > LOG_BYTES) {
        snprintf(old, sizeof old, "%s.1", d->log);
        if (rename(d->log, old))
            return err_errno(e, ERR_IO, "%s", d->log), -1;
    }
    int fd = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        err_errno(e, ERR_IO, "%s", d->log);
    return fd;
}

static int start_daemon(struct own_daemons *m, struct own_daemon *d, struct err *e)
{
    int log = open_log(d, e);
    if (log < 0)
        return ERR_IO;
    int life = m->lifeline[0], ready = d == &m->daemon[OWN_WORKER] ? m->ready[1] : -1;
    const struct child_file files[] = {{log, 1}, {log, 2}, {life, life}, {ready, ready}, {-1, -1}};
    const struct child_start start = {.program = d->argv[0], .argv = d->argv, .files = files};
    int failed = child_start(&start, &d->pid);
    if (failed)
        err_errno(e, ERR_IO, "cannot start %s", d->argv[0]);
    close(log);
    if (failed)
        return ERR_IO;
    d->begun_ns = clock_mono_ns();
    d->next_ns = 0;
    return 0;
}

static void note_exit(struct own_daemon *d, int status)
{
    int64_t now = clock_mono_ns(), pause = FIRST_PAUSE_MS;
    bool again = WIFSIGNALED(status) || WEXITSTATUS(status) == EXIT_RESTART;
    d->pid = 0;
    d->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (!d->wanted)
        return;
    d->failures = now - d->begun_ns > GOOD_RUN_S * CLOCK_S ? 0 : d->failures + 1;
    if (!again || (!WIFSIGNALED(status) && d->failures >= MOST_FAILURES)) {
        d->given_up = true;
        return;
    }
    for (int i = 1; i < d->failures && pause < LONGEST_PAUSE_MS; i++)
        pause *= 2;
    d->next_ns = now + (pause < LONGEST_PAUSE_MS ? pause : LONGEST_PAUSE_MS) * CLOCK_MS;
}

// Reaps every child that has ended, orphaned ranks included.
static void reap_children(struct own_daemons *m)
{
    int status, pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int i = 0; i < OWN_DAEMONS; i++)
            if (m->daemon[i].pid == pid)
                note_exit(&m->daemon[i], status);
}

// ---- both daemons ----

static void set_argv(struct own_daemon *d, const char *const *words)
{
    int n = 0;
    for (; *words; words++)
        d->argv[n++] = strdup(*words);
    d->argv[n] = NULL;
}

static int prepare_daemons(struct own_daemons *m, bool cpu, int devices, struct err *e)
{
    static const char *const names[] = {"weft-coordinator", "weft-worker"};
    static const char *const rooms[] = {"coordinator", "worker"};
    char fd[16], ready[16];
    for (int i = 0; i < OWN_DAEMONS; i++) {
        struct own_daemon *d = &m->daemon[i];
        d->name = names[i];
        snprintf(m->state[i], sizeof m->state[i], "%s/%s", m->root, rooms[i]);
        snprintf(d->log, sizeof d->log, "%s/%s.log", m->root, rooms[i]);
        int rc = find_program(names[i], d->program, sizeof d->program, e);
        if (rc)
            return rc;
    }
    snprintf(fd, sizeof fd, "%d", m->lifeline[0]);
    snprintf(ready, sizeof ready, "%d", m->ready[1]);
    snprintf(m->devices, sizeof m->devices, "%d", cpu ? devices : 0);
    struct own_daemon *c = &m->daemon[OWN_COORDINATOR], *w = &m->daemon[OWN_WORKER];
    const char *coordinator[] = {c->program, "--state",     m->state[0], "--listen",
                                 m->address, "--parent-fd", fd,          NULL};
    const char *worker[] = {w->program, "--coordinator", m->address, "--state", m->state[1],
                            "--own-rights", "--cpu-devices", m->devices, "--grace", "90s",
                            "--parent-fd", fd, "--ready-fd", ready,
                            // A job for CPUs must not wait for a GPU's driver.
                            cpu ? "--cuda-devices" : NULL, "0", NULL};
    set_argv(c, coordinator);
    set_argv(w, worker);
    return 0;
}

// Waits until nobody holds the daemon's folder: those of a run that was killed take a moment to end.
static void await_folder(const struct own_daemons *m, int which)
{
    char path[4300];
    int64_t until = clock_mono_ns() + KILLED_S * CLOCK_S;
    snprintf(path, sizeof path, "%s/lock", m->state[which]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && clock_mono_ns() < until)
        clock_sleep_ms(5);
    if (fd >= 0)
        close(fd);
}

// Waits until the coordinator listens: a worker that finds nobody pauses before it tries again.
static void await_socket(struct own_daemons *m)
{
    const char *path = m->address + strlen("unix:");
    int64_t until = clock_mono_ns() + LISTEN_S * CLOCK_S;
    while (!daemons_listen(path) && clock_mono_ns() < until) { // a bound socket refuses at first
        reap_children(m);
        if (!m->daemon[OWN_COORDINATOR].pid)
            return;
        clock_sleep_ms(1);
    }
}

int daemons_start(struct own_daemons *m, const char *state, const char *kind, int devices,
                  struct err *e)
{
    *m = (struct own_daemons){.lifeline = {-1, -1}, .ready = {-1, -1}};
    snprintf(m->root, sizeof m->root, "%s", state);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (pipe2(m->lifeline, O_CLOEXEC) || pipe2(m->ready, O_CLOEXEC | O_NONBLOCK))
        return err_errno(e, ERR_IO, "pipe");
    int rc = make_sockets(m, e);
    if (!rc)
        rc = prepare_daemons(m, !strcmp(kind, "cpu"), devices, e);
    if (rc)
        return rc;
    await_folder(m, OWN_COORDINATOR);
    m->daemon[OWN_COORDINATOR].wanted = true;
    rc = start_daemon(m, &m->daemon[OWN_COORDINATOR], e);
    if (!rc)
        await_socket(m);
    return rc;
}

int daemons_start_worker(struct own_daemons *m, struct err *e)
{
    await_folder(m, OWN_WORKER);
    m->daemon[OWN_WORKER].wanted = true;
    return start_daemon(m, &m->daemon[OWN_WORKER], e);
}

static int tell_end(const struct own_daemon *d, struct err *e)
{
    char log[8192] = "", why[400];
    int fd = open(d->log, O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    if (fd >= 0 && !fstat(fd, &st)) {
        off_t from = st.st_size > (off_t)sizeof log - 1 ? st.st_size - (off_t)sizeof log + 1 : 0;
        ssize_t n = pread(fd, log, sizeof log - 1, from);
        log[n > 0 ? n : 0] = 0;
    }
    if (fd >= 0)
        close(fd);
    log_last_error(log, why, sizeof why);
    return err_set(e, ERR_INTERNAL, "%s ended with %d%s%s; its log is %s", d->name, d->code,
                   *why ? ": " : "", why, d->log);
}

int daemons_restart(struct own_daemons *m, struct err *e)
{
    int64_t now = clock_mono_ns();
    reap_children(m);
    for (int i = 0; i < OWN_DAEMONS; i++) {
        struct own_daemon *d = &m->daemon[i];
        if (d->given_up)
            return tell_end(d, e);
        if (d->pid || !d->wanted || now < d->next_ns)
            continue;
        int rc = start_daemon(m, d, e);
        if (rc)
            return rc;
    }
    return 0;
}

int daemons_await_coordinator(struct own_daemons *m, struct err *e)
{
    int rc = 0;
    while (!rc && !m->daemon[OWN_COORDINATOR].pid) { // it failed, and may be started again
        clock_sleep_ms(RETRY_MS);
        rc = daemons_restart(m, e);
        await_socket(m);
    }
    return rc;
}

int64_t daemons_due(const struct own_daemons *m)
{
    int64_t due = 0;
    for (int i = 0; i < OWN_DAEMONS; i++) {
        const struct own_daemon *d = &m->daemon[i];
        if (!d->pid && d->wanted && !d->given_up && (!due || d->next_ns < due))
            due = d->next_ns;
    }
    return due;
}

bool daemons_ready(const struct own_daemons *m)
{
    struct pollfd ready = {.fd = m->ready[0], .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

void daemons_drain(struct own_daemons *m)
{
    struct own_daemon *w = &m->daemon[OWN_WORKER];
    w->wanted = false;
    if (w->pid)
        kill(w->pid, SIGTERM);
}

bool daemons_drained(const struct own_daemons *m)
{
    return m->daemon[OWN_WORKER].pid == 0;
}

static bool wait_until_gone(struct own_daemons *m, int first, int64_t until_ns)
{
    for (;;) {
        bool living = false;
        reap_children(m);
        for (int i = first; i < OWN_DAEMONS; i++)
            living |= m->daemon[i].pid != 0;
        if (!living)
            return true;
        if (clock_mono_ns() >= until_ns)
            return false;
        clock_sleep_ms(5);
    }
}

// Waits for ranks whose worker is gone: they have become our children and end by themselves.
static void reap_orphans(void)
{
    int64_t until = clock_mono_ns() + KILLED_S * CLOCK_S;
    int pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 && clock_mono_ns() < until)
        if (pid == 0)
            clock_sleep_ms(5);
}

void daemons_stop(struct own_daemons *m, int64_t grace_ms)
{
    for (int i = OWN_DAEMONS - 1; i >= 0;
         i--) { // the worker first, since it tells the coordinator how its ranks ended
        struct own_daemon *d = &m->daemon[i];
        d->wanted = false;
        if (d->pid && grace_ms > 0) {
            kill(d->pid, SIGTERM);
            wait_until_gone(m, i, clock_mono_ns() + grace_ms * CLOCK_MS);
        }
        if (d->pid)
            kill(d->pid, SIGKILL);
    }
    if (m->lifeline[1] >= 0)
        close(m->lifeline[1]);
    wait_until_gone(m, 0, clock_mono_ns() + KILLED_S * CLOCK_S);
    if (m->lifeline[0] >= 0)
        close(m->lifeline[0]);
    for (int i = 0; i < 2; i++)
        if (m->ready[i] >= 0)
            close(m->ready[i]);
    reap_orphans();
    remove_sockets(m);
    for (int i = 0; i < OWN_DAEMONS; i++)
        for (char **word = m->daemon[i].argv; *word; word++)
            free(*word);
}
