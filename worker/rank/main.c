// SPDX-License-Identifier: Apache-2.0
// weft-rank: one rank of a training job, started and led by an agent over the socket of --fd. With
// --probe it prints what devices there are.
//
// Errors travel up as values and are logged here, once; the exit code comes from rank_exit_code().
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/flag.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/plain.h"
#include "worker/rank/probe.h"
#include "worker/rank/process.h"
#include "worker/rank/warm.h"

static const char usage[] =
    "usage: weft-rank --probe --kind KIND [--devices N]\n"
    "       weft-rank --fd N --dir DIR --host NAME [--rank R] [--kind KIND] [--parent PID]\n"
    "\n"
    "One rank of a job, started by weft-worker; `weft run` and `weft submit` train jobs.\n"
    "\n"
    "--probe opens the devices of a kind (cpu, cuda) and prints what they are, as one line of "
    "JSON.\n"
    "--fd is for agents: the rank takes its orders from the socket N.\n"
    "WEFT_RANK_WRAPPER is a command to put before a rank's: a debugger or a profiler.\n";

struct rank_flags {
    int fd, rank, parent;          // −1, −1, 0: not given
    const char *dir, *host, *kind; // of pages and sockets; ranks with the same host share memory
    bool probe;
    int devices;
};

#define AT(member) offsetof(struct rank_flags, member)
static const struct flag_row rows[] = {
    {"fd", FLAG_NUMBER, AT(fd), 0, INT32_MAX, 0},
    {"dir", FLAG_TEXT, AT(dir), 0, 0, 0},
    {"host", FLAG_TEXT, AT(host), 0, 0, 0},
    {"rank", FLAG_NUMBER, AT(rank), 0, RANK_MAX - 1, 0},
    {"kind", FLAG_TEXT, AT(kind), 0, 0, 0},
    {"parent", FLAG_NUMBER, AT(parent), 1, INT32_MAX, 0},
    {"probe", FLAG_SWITCH, AT(probe), 0, 0, 0},
    {"devices", FLAG_NUMBER, AT(devices), 1, HOST_DEVICES_MAX, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int parse_flags(int argc, char **argv, struct rank_flags *f, struct err *e)
{
    int rc = flags_read_all(rows, ROWS, argc, argv, f, e);
    if (rc)
        return rc;
    if (f->probe == (f->fd >= 0))
        return err_set(e, ERR_INVALID, "--fd or --probe is needed, not both");
    if (f->probe)
        return f->kind ? 0 : err_set(e, ERR_INVALID, "--probe needs --kind");
    if (!f->dir || !f->host)
        return err_set(e, ERR_INVALID, "--fd needs --dir and --host");
    if (!*f->host || strlen(f->host) >= RANK_HOST_MAX)
        return err_set(e, ERR_INVALID, "--host is a name of 1 to %d characters", RANK_HOST_MAX - 1);
    return 0;
}

// Dies with its parent, and at once if that is gone already. 0: the parent is a wrapper, not known.
static void tie_to_parent(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (parent && getppid() != parent)
        _exit(RANK_EXIT_LOST);
}

// Becomes WEFT_RANK_WRAPPER with this command line behind it: a debugger, a profiler, a script that
// preloads something into one rank (it sees --rank). The wrapper dies with our parent, as exec keeps
// that, and what it starts dies with it; descriptors stay open. --parent is left out, since what the
// wrapper starts may be its child.
static int become_wrapper(const char *wrapper, int argc, char **argv)
{
    char *words = heap_strdup(wrapper), *save = NULL;
    char **line = heap_alloc(sizeof *line * (strlen(wrapper) + (size_t)argc + 1));
    int n = 0;
    for (char *w = strtok_r(words, " \t", &save); w; w = strtok_r(NULL, " \t", &save))
        line[n++] = w;
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--parent"))
            i++;
        else
            line[n++] = argv[i];
    }
    PRE(line[0] != NULL);
    unsetenv("WEFT_RANK_WRAPPER");
    execvp(line[0], line);
    log_error("rank", "cannot start WEFT_RANK_WRAPPER '%s': %s", wrapper, strerror(errno));
    free(line);
    free(words);
    return RANK_EXIT_CONFIG;
}

static void block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static int run_rank(const struct rank_flags *f)
{
    struct process *p = heap_alloc(sizeof *p);
    struct err e = {0};
    int type, code;
    socklen_t size = sizeof type;
    log_context(NULL, f->rank);
    if (getsockopt(f->fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_STREAM) {
        log_error("rank", "--fd: descriptor %d is not a stream socket", f->fd);
        free(p);
        return RANK_EXIT_CONFIG;
    }
    (void)fcntl(f->fd, F_SETFD, FD_CLOEXEC);
    // What the backend's libraries prepare at their first use is prepared while the ranks join.
    struct warm *warm = warm_start(f->kind && *f->kind ? f->kind : "cpu");
    process_init(p);
    code = process_train(p, &(struct process_options){f->fd, f->host, f->dir}, &e);
    // At exit() libraries of a device may wait for what waits for a peer; a driver may still be warming up.
    if (code != RANK_EXIT_DONE) {
        warm_leave(warm);
        _exit(code);
    }
    warm_join(warm);
    process_clear(p);
    free(p);
    return code;
}

static int run_probe(const struct rank_flags *f)
{
    struct buf line = {0};
    struct err e = {0};
    int rc = probe_devices(f->kind, f->devices, &line, &e);
    if (rc)
        plain_error("weft-rank: %s", e.text);
    else
        plain_puts(stdout, buf_str(&line));
    // Who reads it waits for no driver that lets go of its devices while this process ends.
    fclose(stdout);
    fclose(stderr);
    buf_clear(&line);
    return rc ? RANK_EXIT_DEVICE : 0;
}

int main(int argc, char **argv)
{
    static struct rank_flags f = {.fd = -1, .rank = -1};
    struct err e = {0};
    const char *wrapper = getenv("WEFT_RANK_WRAPPER");
    (void)signal(SIGPIPE, SIG_IGN); // a reader of this output may leave; training continues
    if (flag_asks_help(argc, argv)) {
        plain_puts(stdout, usage);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        plain_puts(stdout, "weft-rank " WEFT_VERSION "\n");
        return 0;
    }
    if (parse_flags(argc, argv, &f, &e)) {
        plain_error("weft-rank: %s", e.text);
        plain_error("  to do: see weft-rank --help");
        return RANK_EXIT_CONFIG;
    }
    if (f.probe)
        return run_probe(&f);
    tie_to_parent(f.parent);
    if (wrapper && strspn(wrapper, " \t") < strlen(wrapper))
        return become_wrapper(wrapper, argc, argv);
    block_signals();
    return run_rank(&f);
}
