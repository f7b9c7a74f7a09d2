// SPDX-License-Identifier: Apache-2.0
// The parent of a solo run's ranks. See spawn.h.
//
// One thread runs one poll loop over a signalfd and a pipe for each rank. A rank's end of the pipe does
// not block, so that a stopped parent never holds the rank up; what does not fit is lost. Each round
// reads one piece of each rank, so that one that prints without a pause does not drown the others.
// Each rank has its own process group: a terminal's Ctrl-C comes only to the parent, which passes it
// on once.
#include "worker/rank/lead/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/life.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/rank/lead/rank_output.h"
#include "worker/rank/link/assignment.h"

// The leader names a failure within seconds. When rank 0 is gone there is nothing to wait for.
enum { GRACE_S = 8, GRACE_LEADERLESS_S = 4, LOOK_EVERY_MS = 500 };
// The most pieces that are read of a rank that has ended: more than a pipe holds. There is a limit
// because a process that it started may live on and print.
enum { LAST_PIECES = 1000 };
// Only the parent knows of a rank that died before it joined: after this time it asks the others to
// stop.
#define ASK_NS CLOCK_S

struct child {
    pid_t pid; // 0: reaped
    struct rank_output output;
};

struct spawn {
    const char *dir;
    int ranks, alive, signals;
    struct child *children;
    int asked;       // signals passed on
    int64_t kill_ns; // when the rest are killed; 0: not yet
    int64_t ask_ns;  // when the rest are asked to stop; 0: not yet
    bool killed;
    // code: the exit code of the rank that is the cause. lesser: the code to end with when no cause is
    // known: 69 rather than 75.
    int code, lesser;
    int cause; // the rank; −1: none
};

static void kill_all(struct spawn *s, int sig)
{
    for (int r = 0; r < s->ranks; r++)
        if (s->children[r].pid > 0)
            (void)kill(s->children[r].pid, sig);
}

// ---- starting ----

static int start_child(struct spawn *s, int rank, char *const *argv, struct err *e)
{
    struct child *c = &s->children[rank];
    sigset_t blocked;
    int p[2], rc = 0;
    if (pipe2(p, O_CLOEXEC))
        return err_errno(e, ERR_INTERNAL, "cannot make a pipe");
    (void)fcntl(p[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(p[1], F_SETFL, O_NONBLOCK);
    rank_output_open(&c->output, s->dir, rank, p[0]);
    // A signal passed on to a rank that has not got to its own mask yet must wait, not kill it.
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    const struct child_file files[] = {{p[1], 2}, {rank > 0 ? p[1] : -1, 1}, {-1, -1}};
    const struct child_start start = {
        .program = "/proc/self/exe", .argv = argv, .files = files, .blocked = &blocked};
    if (child_start(&start, &c->pid))
        rc = err_errno(e, ERR_INTERNAL, "cannot start rank %d", rank);
    else
        s->alive++;
    close(p[1]);
    return rc;
}

static int start_all(struct spawn *s, char *const *argv, int argc, struct err *e)
{
    char rank[16], parent[16];
    static char rank_flag[] = "--rank", parent_flag[] = "--parent";
    char *child[SPAWN_FLAGS_MAX + 5];
    int rc = 0;
    if (argc > SPAWN_FLAGS_MAX)
        return err_set(e, ERR_LIMIT, "too many flags");
    memcpy(child, argv, sizeof *child * (size_t)argc);
    child[argc] = rank_flag;
    child[argc + 1] = rank;
    child[argc + 2] = parent_flag;
    child[argc + 3] = parent;
    child[argc + 4] = NULL;
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    for (int r = 0; r < s->ranks && !rc; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        rc = start_child(s, r, child, e);
    }
    return rc;
}

// ---- the loop ----

static void note_end(struct spawn *s, int rank, int status)
{
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (WIFSIGNALED(status))
        log_line(s->killed ? LOG_INFO : LOG_ERROR, "solo", "rank %d was ended by signal %d (%s)",
                 rank, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (code == 0 || s->killed)
        return;
    if (!rank_exit_is_cause(code)) {
        s->lesser = s->lesser == RANK_EXIT_LOST ? s->lesser : code;
    } else if (s->cause < 0) {
        s->cause = rank;
        s->code = code;
    }
    int64_t kill_ns = clock_mono_ns() + (rank == 0 ? GRACE_LEADERLESS_S : GRACE_S) * CLOCK_S;
    if (code == RANK_EXIT_DRAINED)
        return;
    if (!s->kill_ns || kill_ns < s->kill_ns)
        s->kill_ns = kill_ns;
    if (!s->ask_ns)
        s->ask_ns = clock_mono_ns() + (rank == 0 ? 0 : ASK_NS);
}

static void reap_children(struct spawn *s)
{
    for (int r = 0; r < s->ranks; r++) {
        struct child *c = &s->children[r];
        int status;
        if (c->pid <= 0 || waitpid(c->pid, &status, WNOHANG) != c->pid)
            continue;
        c->pid = 0;
        s->alive--;
        for (int i = 0; i < LAST_PIECES && rank_output_take(&c->output); i++)
            ;
        note_end(s, r, status);
    }
}

static void pass_on_signal(struct spawn *s, int sig)
{
    if (s->asked++ == 0) {
        kill_all(s, SIGTERM);
        return;
    }
    log_warn("solo", "a second signal: the ranks are killed");
    s->killed = true;
    s->code = 128 + sig;
    kill_all(s, SIGKILL);
}

static void read_signals(struct spawn *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            pass_on_signal(s, (int)info.ssi_signo);
    reap_children(s);
}

static void run_loop(struct spawn *s)
{
    struct pollfd *p = malloc(sizeof *p * (size_t)(s->ranks + 1));
    PRE(p != NULL);
    while (s->alive > 0) {
        p[0] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        for (int r = 0; r < s->ranks; r++)
            p[1 + r] = (struct pollfd){.fd = s->children[r].output.pipe, .events = POLLIN};
        (void)poll(p, (nfds_t)(s->ranks + 1), LOOK_EVERY_MS);
        for (int r = 0; r < s->ranks; r++)
            if (p[1 + r].revents)
                (void)rank_output_take(&s->children[r].output);
        read_signals(s);
        if (s->ask_ns && clock_mono_ns() >= s->ask_ns && s->asked++ == 0)
            kill_all(s, SIGTERM); // ranks that still try to join stop trying
        if (s->kill_ns && !s->killed && clock_mono_ns() > s->kill_ns) {
            log_warn("solo", "%d ranks did not end by themselves and are killed", s->alive);
            s->killed = true;
            kill_all(s, SIGKILL);
        }
    }
    free(p);
}

int spawn_run(char *const *argv, int argc, const char *dir, int ranks, int *code, struct err *e)
{
    struct spawn s = {.dir = dir, .ranks = ranks, .cause = -1, .signals = -1};
    char path[5000];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s.children = calloc((size_t)ranks, sizeof *s.children);
    PRE(s.children != NULL);
    for (int r = 0; r < ranks; r++)
        s.children[r].output.pipe = s.children[r].output.log = -1;
    snprintf(path, sizeof path, "%s/logs", dir);
    int rc = 0;
    if ((mkdir(dir, 0700) && errno != EEXIST) || (mkdir(path, 0700) && errno != EEXIST))
        rc = err_errno(e, ERR_IO, "cannot make %s", path);
    else if ((s.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        rc = err_errno(e, ERR_INTERNAL, "cannot read signals");
    if (!rc && (rc = start_all(&s, argv, argc, e))) {
        s.killed = true;
        kill_all(&s, SIGKILL);
    }
    run_loop(&s);
    for (int r = 0; r < ranks; r++)
        rank_output_close(&s.children[r].output);
    free(s.children);
    if (s.signals >= 0)
        close(s.signals);
    *code = s.code ? s.code : s.lesser;
    return rc;
}
