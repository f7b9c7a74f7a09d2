// SPDX-License-Identifier: Apache-2.0
// weft up: one job on bare machines. It starts a member on each host by ssh, which is a `weft run` of an
// allocation (run_agent.h, run_lead.h), and prints what they print. Here nothing of the job runs.
//
//   ssh to all ─► each says its version ─► all are there: orders (up_order.h) ─► the first host leads
//        └─ one is not reached, lacks weft or has another ─► named, all end, nothing has begun
//
//   main thread   what hosts print and how they end; it alone waits for a terminal that stands still
//   thread        control: signals, and what hosts are to know: still here, Ctrl-C, end
//
// A member ends when its ssh does, or says nothing for UP_SILENT_MS: its ranks save, and die with it.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/entropy.h"
#include "common/base/plain.h"
#include "common/base/system.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/own_worker.h"
#include "coordinator/cli/resolved_job.h"
#include "coordinator/cli/several.h"
#include "coordinator/cli/up_order.h"
#include "coordinator/cli/verbs.h"

enum {
    UP_HOSTS = 256,
    NAME_SIZE = 200,
    PIECE = 8192,
    CUT_AT = 1 << 20, // longer ones are cut into several; an event of JSON has 64 KiB, and escapes
    ANSWER_S = 120,   // for a host to say which weft it has
    SETTLE_S = 5,     // once one has ended, for the others to find out by themselves
    LEAVE_S = 30,     // beside the grace, for all to end
    SSH_FAILED = 255,
    BEAT_MS = 1000, // between two words to a host
};

struct host {
    const char *name;       // as given: user@host
    char target[NAME_SIZE]; // as ssh takes it, without brackets
    pid_t pid;
    int pidfd, in, out[2]; // of ssh: its input; its output and errors, −1 once they have ended
    struct buf part[2];    // of a line of them
    bool there, ended;
    char machine[100]; // ""; as it says once it is there
};

struct up {
    const struct verb *verb;
    const struct args *args;
    char names[8192], weft[PATH_MAX], folder[PATH_MAX];
    struct host host[UP_HOSTS];
    int n, ended;
    atomic_bool began;   // all have their orders
    int code;            // of all of it; −1: not known yet
    int signals, over;   // descriptors: a signalfd; a pipe's end that closes when all is over
    atomic_bool ending;  // it was asked to end: what a host ends with is expected
    atomic_int signal;   // that asked first
    atomic_llong end_ns; // when those that are left are to be asked to end; 0: not
    // Of the control thread alone:
    int stops;       // signals that asked to end
    int64_t kill_ns; // when those that are left are given up; 0: not
};

// ---- hosts ----

static int add_host(struct up *u, char *name, struct err *e)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "._@:%+-[]";
    struct host *h = &u->host[u->n];
    size_t n = 0, first = strspn(name, "[]"); // ssh gets it without, and takes a '-' for an option
    if (!name[first] || name[first] == '-' || strlen(name) >= NAME_SIZE ||
        name[strspn(name, plain)])
        return err_set(e, ERR_INVALID, "--hosts: '%.80s' is no host: give them as a,user@b,[::1]",
                       name);
    if (u->n == UP_HOSTS)
        return err_set(e, ERR_INVALID, "--hosts: it takes at most %d hosts", UP_HOSTS);
    for (int i = 0; i < u->n; i++)
        if (strcmp(u->host[i].name, name) == 0)
            return err_set(e, ERR_INVALID,
                           "--hosts: %s stands there twice: one weft uses all devices of its host",
                           name);
    *h = (struct host){.name = name, .pidfd = -1, .in = -1, .out = {-1, -1}};
    for (const char *c = name; *c; c++)
        if (*c != '[' && *c != ']')
            h->target[n++] = *c;
    u->n++;
    return 0;
}

static int read_hosts(struct up *u, struct err *e)
{
    int rc = 0;
    if (!u->args->hosts)
        return err_set(e, ERR_INVALID, "--hosts a,b,c says on which hosts");
    if ((size_t)snprintf(u->names, sizeof u->names, "%s", u->args->hosts) >= sizeof u->names)
        return err_set(e, ERR_INVALID, "--hosts is too long");
    for (char *at = u->names, *next = at; next && !rc; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = 0;
        rc = add_host(u, at, e);
    }
    return rc;
}

static int make_pipes(int all[3][2])
{
    for (int i = 0; i < 3; i++)
        if (pipe2(all[i], O_CLOEXEC))
            return -1;
    return fcntl(all[0][1], F_SETFL, O_NONBLOCK) || fcntl(all[1][0], F_SETFL, O_NONBLOCK) ||
           fcntl(all[2][0], F_SETFL, O_NONBLOCK);
}

// ssh's own options, where the command's come first and win: it asks nothing, and finds out in 20 s that
// a network is gone.
static int start_host(const struct up *u, struct host *h, struct err *e)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    struct buf script = {0}, remote = {0};
    char sh[] = "sh", c[] = "-c", ssh[] = "ssh";
    buf_printf(&script,
               "exec %s -T -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=5 "
               "-oServerAliveCountMax=4 \"$@\"",
               u->args->ssh ? u->args->ssh : ssh);
    buf_puts(&remote, "exec ");
    print_word(&remote, u->weft, false);
    buf_puts(&remote, " --member");
    char *const words[] = {sh, c, script.data, ssh, h->target, remote.data, NULL};
    bool made = !make_pipes(pipes);
    const struct child_file files[] = {
        {pipes[0][0], 0}, {pipes[1][1], 1}, {pipes[2][1], 2}, {-1, -1}};
    int rc = !made || child_start(&(struct child_start){"/bin/sh", words, files, NULL}, &h->pid)
                 ? err_errno(e, ERR_IO, "cannot start ssh to %s", h->name)
                 : 0;
    if (!rc && (h->pidfd = (int)syscall(SYS_pidfd_open, h->pid, 0)) < 0)
        rc = err_errno(e, ERR_IO, "cannot watch ssh to %s", h->name);
    h->in = pipes[0][1];
    h->out[0] = pipes[1][0];
    h->out[1] = pipes[2][0];
    for (int i = 0; i < 3; i++)
        system_close(&pipes[i][i != 0]);
    buf_clear(&script);
    buf_clear(&remote);
    return rc;
}

// ---- control ----

static void say(const struct up *u, char what)
{
    for (int i = 0; i < u->n; i++) // one that has ended does not take it
        (void)!write(u->host[i].in, &what, 1);
}

static void kill_all(const struct up *u, int signal)
{
    for (int i = 0; i < u->n; i++)
        if (u->host[i].pidfd >= 0)
            (void)syscall(SYS_pidfd_send_signal, u->host[i].pidfd, signal, NULL, 0);
}

static void give_up_later(struct up *u)
{
    if (!u->kill_ns)
        u->kill_ns = clock_mono_ns() + own_worker_grace(u->args) + LEAVE_S * CLOCK_S;
}

static void take_signal(struct up *u, int signal)
{
    if (signal == SIGTSTP) {
        plain_error("Ctrl-Z would not stop the hosts; Ctrl-C saves and stops");
        return;
    }
    u->ending = true;
    u->signal = u->signal ? u->signal : signal;
    give_up_later(u);
    if (++u->stops > 2) {
        kill_all(u, SIGKILL);
        _exit(several_exit(CLIENT_INTERRUPTED, u->signal));
    }
}

static void *control(void *arg)
{
    struct up *u = arg;
    struct pollfd fds[] = {{.fd = u->signals, .events = POLLIN}, {.fd = u->over}};
    int said = 0;
    while (poll(fds, 2, BEAT_MS) >= 0 && !fds[1].revents) {
        struct signalfd_siginfo s;
        int64_t now = clock_mono_ns();
        while (read(u->signals, &s, sizeof s) == (ssize_t)sizeof s)
            take_signal(u, (int)s.ssi_signo);
        if (u->began)
            say(u, '.');
        for (; u->began && said < u->stops; said++)
            say(u, u->signal == SIGINT ? 's' : 'e');
        if (u->end_ns && now > u->end_ns) {
            u->ending = true;
            u->end_ns = 0;
            give_up_later(u);
            say(u, 'e');
        }
        if (u->kill_ns && now > u->kill_ns)
            kill_all(u, SIGKILL);
    }
    return NULL;
}

// ---- what hosts say ----

// Before anything has begun. A member that has no order ends with its input.
static void end_early(struct up *u)
{
    for (int i = 0; i < u->n; i++)
        system_close(&u->host[i].in);
    kill_all(u, SIGTERM);
    u->end_ns = clock_mono_ns(); // one that does not end by that is given up later
}

// What is wrong with one host ends all of it; what is found once that was begun follows from it.
static void refuse_host(struct up *u, const struct host *h, const char *what, const char *todo)
{
    if (u->ending)
        return;
    complain(u->verb, what, h->name, todo);
    u->code = SEVERAL_PERSON;
    u->ending = true;
    end_early(u);
}

// What a host says first: which weft it has, and which machine it is.
static void take_hello(struct up *u, struct host *h, const char *text)
{
    static const char ours[] = WEFT_VERSION " on ";
    char what[2 * NAME_SIZE + 100];
    h->there = true;
    if (strncmp(text, ours, strlen(ours)) != 0) {
        snprintf(what, sizeof what, "%s has weft %.60s, and this is weft " WEFT_VERSION, h->name,
                 text);
        refuse_host(u, h, what,
                    "install one version on all hosts, or name where it is: --weft PATH");
        return;
    }
    snprintf(h->machine, sizeof h->machine, "%s", text + strlen(ours));
    for (int i = 0; i < u->n; i++) {
        if (&u->host[i] == h || strcmp(u->host[i].machine, h->machine) != 0)
            continue;
        snprintf(what, sizeof what, "%s and %s are one machine: one weft uses all of its devices",
                 u->host[i].name, h->name);
        refuse_host(u, h, what, "name it once; two on one machine need a TMPDIR of their own each");
        return;
    }
}

static void take_line(struct up *u, struct host *h, int which, const char *line)
{
    if (which || h->there || strncmp(line, UP_HELLO, strlen(UP_HELLO)) != 0) {
        if (which)
            plain_error("%s: %s", h->name, line);
        else if (u->args->json && u->began) // of the leader alone
            plain_printf(stdout, "%s\n", line);
        else
            plain_printf(u->args->json ? stderr : stdout, "%s: %s\n", h->name, line);
        return;
    }
    take_hello(u, h, line + strlen(UP_HELLO));
}

// False: it has ended, or has no more for now.
static bool hear(struct up *u, struct host *h, int which)
{
    struct buf *part = &h->part[which];
    buf_reserve(part, PIECE);
    ssize_t n = h->out[which] < 0 ? 0 : read(h->out[which], part->data + part->len, PIECE);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    part->len += n > 0 ? (size_t)n : 0;
    if (n <= 0 && part->len)
        buf_putc(part, '\n');
    size_t at = 0;
    for (char *end; (end = memchr(part->data + at, '\n', part->len - at));) {
        *end = 0;
        take_line(u, h, which, part->data + at);
        at = (size_t)(end + 1 - part->data);
    }
    if (part->len - at > CUT_AT) {
        buf_putc(part, 0);
        take_line(u, h, which, part->data + at);
        at = part->len;
    }
    memmove(part->data, part->data + at, part->len - at);
    part->len -= at;
    if (n > 0)
        return true;
    system_close(&h->out[which]);
    return false;
}

static void explain_start(struct up *u, const struct host *h, int code)
{
    char what[NAME_SIZE + PATH_MAX + 60];
    if (code == SSH_FAILED) {
        snprintf(what, sizeof what, "%s is not reached by ssh", h->name);
        refuse_host(u, h, what,
                    "`ssh HOST true` must work without a question: a key, a known host key, the "
                    "port in ssh's own configuration; or give another --ssh COMMAND");
        return;
    }
    bool lacks = code == 126 || code == 127; // of the shell there, or of the one here
    snprintf(what, sizeof what, "%s has no %s%s%s", h->name,
             lacks ? "" : "weft of this version at ", u->weft,
             lacks && u->args->ssh ? ", or --ssh names nothing that can be called" : "");
    refuse_host(u, h, what,
                "install weft " WEFT_VERSION
                " there, or name where all hosts have it: --weft PATH");
}

static void reap(struct up *u, struct host *h)
{
    int status = 0;
    for (int which = 0; which < 2; which++)
        while (hear(u, h, which))
            ;
    (void)waitpid(h->pid, &status, 0);
    h->ended = true;
    u->ended++;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : SSH_FAILED;
    if (!u->began) {
        explain_start(u, h, code);
        return;
    }
    if (code == SSH_FAILED) {
        plain_error("%s: the connection is lost, or weft was killed there; what still runs there "
                    "saves and ends by itself",
                    h->name);
        code = SEVERAL_AGAIN;
    }
    bool leads = h == u->host;
    if (u->code < 0 && (leads || (code && !u->ending)))
        u->code = code;
    if ((leads || code) && !u->end_ns && !u->ending)
        u->end_ns = clock_mono_ns() + SETTLE_S * CLOCK_S;
}

// ---- all of it ----

static void add_words(struct up_order *o, const char *flag, const char *value)
{
    o->words[o->nwords++] = flag;
    o->words[o->nwords++] = value;
}

// Everything is given but --hosts, --ssh and --weft.
static void make_words(const struct args *a, struct buf *grace, struct up_order *o)
{
    for (int i = 0; i < a->nset; i++)
        add_words(o, "-s", a->set[i]);
    for (int i = 0; i < a->sinks.n; i++)
        add_words(o, "--sink", a->sinks.v[i]);
    for (int i = 0; i < a->notify.n; i++)
        add_words(o, "--notify", a->notify.v[i]);
    if (a->grace_ns) {
        duration_print(a->grace_ns, grace);
        add_words(o, "--grace", buf_str(grace));
    }
    if (a->json)
        o->words[o->nwords++] = "--json";
    add_words(o, "--", a->pos[0]);
}

// Gives all hosts their orders; the first leads.
static int give_orders(struct up *u, struct err *e)
{
    char id[ID_LEN], secret[ID_LEN];
    const char *at = strrchr(u->host[0].target, '@');
    struct buf grace = {0}, text = {0};
    struct up_order o = {.size = u->n, .id = id, .secret = secret, .folder = u->folder};
    o.host = at ? at + 1 : u->host[0].target;
    make_words(u->args, &grace, &o);
    int rc = entropy_id(id, e);
    rc = rc ? rc : entropy_id(secret, e);
    for (; o.index < u->n && !rc; o.index++) {
        buf_reset(&text);
        rc = up_order_print(&o, &text, e);
        if (!rc && write(u->host[o.index].in, text.data, text.len) != (ssize_t)text.len)
            rc = err_errno(e, ERR_IO, "%s did not take its order", u->host[o.index].name);
    }
    buf_clear(&grace);
    buf_clear(&text);
    return rc;
}

static bool all_there(const struct up *u)
{
    for (int i = 0; i < u->n; i++)
        if (!u->host[i].there)
            return false;
    return !u->ending;
}

static void turn(struct up *u)
{
    struct pollfd fds[3 * UP_HOSTS];
    for (int i = 0; i < u->n; i++) {
        const struct host *h = &u->host[i];
        const int of[] = {h->out[0], h->out[1], h->ended ? -1 : h->pidfd};
        for (int k = 0; k < 3; k++)
            fds[3 * i + k] = (struct pollfd){.fd = of[k], .events = POLLIN};
    }
    if (poll(fds, (nfds_t)(3 * u->n), BEAT_MS) < 0)
        return;
    for (int i = 0; i < u->n; i++) {
        for (int which = 0; which < 2; which++)
            if (fds[3 * i + which].revents)
                (void)hear(u, &u->host[i], which);
        if (fds[3 * i + 2].revents)
            reap(u, &u->host[i]);
    }
    fflush(stdout);
}

static void run_hosts(struct up *u)
{
    struct err e = {0};
    int64_t until = clock_mono_ns() + ANSWER_S * CLOCK_S;
    bool left = false;
    for (int i = 0; i < u->n; i++) {
        struct host *h = &u->host[i];
        if (u->ending || start_host(u, h, &e)) {
            refuse_host(u, h, e.text, "close other programs, or raise the limits of processes");
            h->ended = true;
            u->ended++;
        }
    }
    while (u->ended < u->n) {
        turn(u);
        if (!u->began && all_there(u)) {
            if (give_orders(u, &e))
                refuse_host(u, u->host, e.text, "make the command shorter");
            else
                u->began = true;
        }
        for (int i = 0; i < u->n && !u->began && clock_mono_ns() > until; i++)
            if (!u->host[i].there)
                refuse_host(u, &u->host[i], "it does not answer",
                            "does `ssh HOST true` end there?");
        if (!u->began && u->ending && !left)
            end_early(u);
        left |= u->ending;
    }
}

static int run_all(struct up *u, struct err *e)
{
    const int which[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, 0};
    pthread_t thread;
    int over[2];
    system_raise_limits(); // four descriptors a host
    if (system_read_signals(which, &u->signals, e))
        return CLIENT_FAILED;
    if (pipe2(over, O_CLOEXEC)) {
        err_errno(e, ERR_IO, "cannot make a pipe");
        return CLIENT_FAILED;
    }
    u->over = over[0];
    if ((errno = pthread_create(&thread, NULL, control, u))) {
        err_errno(e, ERR_IO, "cannot start a thread");
        return CLIENT_FAILED;
    }
    run_hosts(u);
    close(over[1]);
    pthread_join(thread, NULL);
    close(over[0]);
    if (u->signal == SIGINT && u->began && u->code != CLIENT_OK)
        plain_error("the same command continues it");
    return u->code >= 0 ? u->code : several_exit(CLIENT_INTERRUPTED, u->signal);
}

// The same paths there as here.
static int find_paths(struct up *u, struct err *e)
{
    char path[PATH_MAX];
    if (!getcwd(u->folder, sizeof u->folder))
        return err_errno(e, ERR_IO, "this folder is gone");
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    snprintf(u->weft, sizeof u->weft, "%s", u->args->weft ? u->args->weft : path);
    if (u->args->ssh || !system_find_program("ssh", path, sizeof path, e))
        return 0;
    return err_set(e, ERR_NOTFOUND,
                   "there is no ssh in PATH: install it (openssh-client), or "
                   "name what is as it with --ssh COMMAND");
}

int verb_up(const struct verb *v, const struct args *a)
{
    static struct up u;
    struct arena arena = {0};
    struct job job;
    struct err e = {0};
    u = (struct up){.verb = v, .args = a, .code = -1, .over = -1};
    if (read_hosts(&u, &e) || find_paths(&u, &e))
        return usage(v, e.text);
    int rc = resolve_job(a, &arena, &job);
    arena_clear(&arena);
    if (rc)
        return rc;
    rc = run_all(&u, &e);
    if (e.code)
        complain(v, e.text, "this machine", "raise its limits of processes and open files");
    for (int i = 0; i < u.n; i++) {
        struct host *h = &u.host[i];
        int *fds[] = {&h->in, &h->pidfd, &h->out[0], &h->out[1]};
        for (int k = 0; k < 4; k++)
            system_close(fds[k]);
        buf_clear(&h->part[0]);
        buf_clear(&h->part[1]);
    }
    return rc;
}
