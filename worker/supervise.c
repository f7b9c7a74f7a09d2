// SPDX-License-Identifier: Apache-2.0
// Rank processes. See supervise.h.
#include "worker/supervise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/message.h"
#include "common/attempt/page.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "worker/rankslock.h"

#define PROVE_NS (10 * CLOCK_S) // for a killed rank to be gone
// Where a rank finds its socket and its share of the lock. Our own descriptors lie above these
// numbers, so that they do not collide.
enum { RANK_FD = 3, RANK_LOCK_FD = 4, OWN_FD_MIN = 16, PATH_LEN = 4300 };
// How often a dead rank is read, to take what it said last: more than its pipe and its socket hold,
// and a bound, since a process of its own that outlives it may still run.
enum { LAST_TURNS = 1000 };

struct proc {
    struct supervise *s;
    int slot;
    pid_t pid; // 0: the slot is free
    int pidfd, pipe;
    struct frame_conn conn; // fd −1: closed
    struct poll_loop_source *on_end, *on_frame, *on_text;
    struct log_file log;
    Weft__Rank__Frame *assign; // until Hello
    const struct progress_page *page;
    struct page_view view;
    bool seen;
    char *job;
    uint64_t attempt;
    int rank;
};
struct supervise {
    struct supervise_config c;
    char lock[PATH_LEN], own[PATH_LEN], jobs[PATH_LEN]; // own: what is ours in c.runs
    bool alone;                                         // no ranks lived but those of `procs`
    struct proc **procs;                                // by slot
    int nprocs;
};

// ---- paths ----

static void run_dir(const char *runs, const char *job, uint64_t attempt, char *out, size_t size)
{
    snprintf(out, size, "%s/%s.a%llu", runs, job, (unsigned long long)attempt);
}

// Calls with each name in a directory; nothing when it is not there.
static void for_each_name(const char *dir, void (*fn)(int dirfd, const char *name, void *ctx),
                          void *ctx)
{
    DIR *d = opendir(dir);
    struct dirent *it;
    while (d && (it = readdir(d)))
        if (strcmp(it->d_name, ".") && strcmp(it->d_name, ".."))
            fn(dirfd(d), it->d_name, ctx);
    if (d)
        closedir(d);
}

static void unlink_one(int dirfd, const char *name, void *ctx)
{
    (void)ctx;
    (void)unlinkat(dirfd, name, 0);
}

static void unlink_same(int dirfd, const char *name, void *ctx) // in the other folder
{
    char path[PATH_LEN + 300];
    (void)dirfd;
    snprintf(path, sizeof path, "%s/%s", (const char *)ctx, name);
    (void)unlink(path);
}

static void find_page(int dirfd, const char *name, void *ctx)
{
    (void)dirfd;
    *(bool *)ctx = *(bool *)ctx || page_is_name(name);
}

// Ranks make no directories there.
static void remove_flat(const char *dir)
{
    for_each_name(dir, unlink_one, NULL);
    (void)rmdir(dir);
}

// Removes the pages of this worker's ranks, and the folder once no worker has pages in it. `name`
// is <job>.a<attempt>.
static void remove_run(struct supervise *s, const char *name)
{
    char own[PATH_LEN + 300], shared[PATH_LEN + 300];
    bool others = false;
    snprintf(own, sizeof own, "%s/%s", s->own, name);
    snprintf(shared, sizeof shared, "%s/%s", s->c.runs, name);
    for_each_name(own, unlink_same, shared);
    for_each_name(shared, find_page, &others);
    if (!others)
        remove_flat(shared);
    remove_flat(own);
}

static void remove_leftover(int dirfd, const char *name, void *ctx)
{
    (void)dirfd;
    remove_run(ctx, name);
}

static int make_run(struct supervise *s, const struct agent_spawn *what, const char *dir,
                    struct err *e)
{
    char own[PATH_LEN], mark[PATH_LEN + 40], page[32];
    page_name(what->rank, page);
    run_dir(s->own, what->job, what->attempt, own, sizeof own);
    snprintf(mark, sizeof mark, "%s/%s", own, page);
    int rc = folder_make(own, e), fd = -1;
    if (!rc && (fd = open(mark, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0)
        rc = err_errno(e, ERR_IO, "cannot make %s", mark);
    system_close(&fd);
    return rc ? rc : folder_make(dir, e);
}

void supervise_forget(struct supervise *s, const char *job, uint64_t attempt)
{
    char name[300];
    snprintf(name, sizeof name, "%s.a%llu", job, (unsigned long long)attempt);
    remove_run(s, name);
    log_trim(s->jobs);
}

// ---- life ----

int supervise_prove(struct supervise *s, struct err *e)
{
    int rc = rankslock_prove(s->lock, PROVE_NS, e);
    s->alone = !rc;
    if (s->alone)
        for_each_name(s->own, remove_leftover, s);
    return rc;
}

int supervise_open(const struct supervise_config *c, struct supervise **out, struct err *e)
{
    struct supervise *s = heap_alloc(sizeof *s);
    s->c = *c;
    *out = NULL;
    if ((size_t)snprintf(s->lock, sizeof s->lock, "%s/ranks.lock", c->state) > PATH_LEN - 200) {
        free(s);
        return err_set(e, ERR_INVALID, "the path %s is too long", c->state);
    }
    snprintf(s->own, sizeof s->own, "%s/runs", c->state);
    snprintf(s->jobs, sizeof s->jobs, "%s/jobs", c->state);
    int rc = folder_make(s->own, e);
    rc = rc ? rc : folder_make(s->jobs, e);
    rc = rc ? rc : supervise_prove(s, e);
    if (rc) {
        supervise_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void proc_clear(struct proc *p)
{
    poll_loop_drop(p->on_end);
    poll_loop_drop(p->on_frame);
    poll_loop_drop(p->on_text);
    frame_conn_clear(&p->conn);
    system_close(&p->pidfd);
    system_close(&p->pipe);
    log_file_close(&p->log);
    page_close(p->page);
    weft__rank__frame__free_unpacked(p->assign, NULL);
    free(p->job);
    free(p);
}

void supervise_close(struct supervise *s)
{
    int status;
    if (!s)
        return;
    for (int i = 0; i < s->nprocs; i++)
        if (s->procs[i]) // ours and not reaped: nobody else has its pid
            (void)kill(s->procs[i]->pid, SIGKILL);
    for (int i = 0; i < s->nprocs; i++) {
        if (!s->procs[i])
            continue;
        (void)child_end(s->procs[i]->pid, 0, &status);
        proc_clear(s->procs[i]);
    }
    if (s->alone) // this folder's next worker may be long in coming
        for_each_name(s->own, remove_leftover, s);
    free(s->procs);
    free(s);
}

static struct proc *find_proc(struct supervise *s, int slot)
{
    return slot >= 0 && slot < s->nprocs ? s->procs[slot] : NULL;
}

// ---- frames ----

void supervise_kill(struct supervise *s, int slot, int sig)
{
    struct proc *p = find_proc(s, slot);
    if (p)
        (void)syscall(SYS_pidfd_send_signal, p->pidfd, sig, NULL, 0);
}

void supervise_signal_all(struct supervise *s, int sig)
{
    for (int i = 0; i < s->nprocs; i++)
        supervise_kill(s, i, sig);
}

static void stop_frames(struct proc *p)
{
    poll_loop_drop(p->on_frame);
    p->on_frame = NULL;
    frame_conn_clear(&p->conn);
}

// A rank that does not speak or read as it should is of no use any more.
static void kill_broken(struct proc *p, const struct err *e)
{
    log_error("supervise", "job=%s rank=%d pid %d is killed: %s", p->job, p->rank, (int)p->pid,
              e->text);
    supervise_kill(p->s, p->slot, SIGKILL);
    stop_frames(p);
}

static void flush_frames(struct proc *p)
{
    struct err e = {0};
    if (p->conn.fd < 0)
        return;
    if (frame_flush(&p->conn, &e))
        stop_frames(p); // it has closed its end: it is ending
    else
        poll_loop_want(p->on_frame, frame_conn_pending(&p->conn) ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void queue_frame(struct proc *p, const Weft__Rank__Frame *f)
{
    struct err e = {0};
    if (p->conn.fd < 0)
        return;
    if (frame_queue(&p->conn, f, &e))
        kill_broken(p, &e);
    else
        flush_frames(p);
}

void supervise_frame(struct supervise *s, int slot, const Weft__Rank__Frame *f)
{
    struct proc *p = find_proc(s, slot);
    if (p)
        queue_frame(p, f);
}

static void take_hello(struct proc *p, const Weft__Rank__Hello *h)
{
    struct err e = {0};
    if (!p->assign)
        return;
    if (h->version != FRAME_VERSION) {
        err_set(
            &e, ERR_UNSUPPORTED,
            "weft-rank speaks version %u of the protocol between rank and worker, this worker %d",
            h->version, FRAME_VERSION);
        kill_broken(p, &e);
        return;
    }
    queue_frame(p, p->assign);
    weft__rank__frame__free_unpacked(p->assign, NULL);
    p->assign = NULL;
}

static bool take_frames(struct proc *p) // false: none now
{
    struct err end = {0}, bad = {0};
    Weft__Rank__Frame *f;
    bool any = false;
    if (p->conn.fd < 0)
        return false;
    int rc = frame_fill(&p->conn, &end);
    while (p->conn.fd >= 0 && !frame_next(&p->conn, &f, &bad) && f) {
        any = true;
        if (f->body_case == WEFT__RANK__FRAME__BODY_HELLO)
            take_hello(p, f->hello);
        else
            p->s->c.ops.frame(p->s->c.ops.ctx, p->slot, f);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    if (bad.code)
        kill_broken(p, &bad);
    else if (rc)
        stop_frames(p);
    return any;
}

static void on_frame(void *ctx, uint32_t events)
{
    struct proc *p = ctx;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        (void)take_frames(p);
    flush_frames(p);
}

// ---- text, pages ----

static bool take_text(struct proc *p) // false: nothing now
{
    char text[16384];
    ssize_t n = p->pipe >= 0 ? read(p->pipe, text, sizeof text) : -1;
    if (n > 0) {
        size_t kept = log_file_append(&p->log, text, (size_t)n);
        logs_appended(p->s->c.logs, p->job, p->rank, &p->log, text, kept);
        return true;
    }
    if (n == 0) { // nobody can write there any more
        poll_loop_drop(p->on_text);
        p->on_text = NULL;
    }
    return false;
}

static void on_text(void *ctx, uint32_t events)
{
    (void)events;
    (void)take_text(ctx); // one piece a call, so that endless output holds nobody up
}

static void look_at_page(struct proc *p)
{
    char dir[PATH_LEN], path[PATH_LEN + 40], page[32];
    struct page_view v;
    if (!p->page) {
        run_dir(p->s->c.runs, p->job, p->attempt, dir, sizeof dir);
        page_name(p->rank, page);
        snprintf(path, sizeof path, "%s/%s", dir, page);
        p->page = page_open(path);
        if (!p->page)
            return; // not made yet
    }
    page_read(p->page, &v);
    v.stopped = child_is_stopped(p->pid);
    if (p->seen && page_view_same(&v, &p->view))
        return;
    p->seen = true;
    p->view = v;
    p->s->c.ops.page(p->s->c.ops.ctx, p->slot, &v);
}

void supervise_look(struct supervise *s)
{
    for (int i = 0; i < s->nprocs; i++)
        if (s->procs[i])
            look_at_page(s->procs[i]);
}

// ---- the end ----

static void on_end(void *ctx, uint32_t events)
{
    struct proc *p = ctx;
    struct supervise *s = p->s;
    struct buf last = {0};
    int status = 0, slot = p->slot;
    (void)events;
    if (waitpid(p->pid, &status, WNOHANG) != p->pid)
        return;
    for (int i = 0; i < LAST_TURNS && take_text(p); i++)
        ;
    for (int i = 0; i < LAST_TURNS && take_frames(p); i++)
        ;
    look_at_page(p);
    logs_flush(s->c.logs, p->job, p->rank, &p->log);
    log_tail(p->log.path, LOG_LAST_LINES, LOG_LAST_MAX, &last);
    s->procs[slot] = NULL;
    s->c.ops.ended(s->c.ops.ctx, slot, WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                   WIFSIGNALED(status) ? WTERMSIG(status) : 0, buf_str(&last));
    buf_clear(&last);
    proc_clear(p);
}

// ---- spawning ----

static int move_fd_up(int fd) // moves a descriptor out of the way of the rank's numbers
{
    int moved = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, OWN_FD_MIN) : -1;
    system_close(&fd);
    return moved;
}

struct ends { // of what a rank is given
    int socket, text, lock;
};

static int open_ends(struct proc *p, struct ends *theirs, struct err *e)
{
    int sock[2], text[2];
    *theirs = (struct ends){-1, -1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
        return err_errno(e, ERR_INTERNAL, "cannot make a socket pair");
    frame_conn_init(&p->conn, sock[0]);
    theirs->socket = move_fd_up(sock[1]);
    if (pipe2(text, O_CLOEXEC | O_NONBLOCK)) // full or not, its writer never waits
        return err_errno(e, ERR_INTERNAL, "cannot make a pipe");
    p->pipe = text[0];
    theirs->text = move_fd_up(text[1]);
    theirs->lock = move_fd_up(rankslock_share(p->s->lock, e));
    if (theirs->socket < 0 || theirs->text < 0)
        return err_errno(e, ERR_INTERNAL, "cannot move a descriptor");
    return theirs->lock < 0 ? ERR_IO : 0;
}

static int start_process(struct proc *p, char *const *argv, const struct ends *theirs,
                         struct err *e)
{
    const struct child_file files[] = {{theirs->text, 1},
                                       {theirs->text, 2},
                                       {theirs->socket, RANK_FD},
                                       {theirs->lock, RANK_LOCK_FD},
                                       {-1, -1}};
    const struct child_start start = {.program = p->s->c.rank, .argv = argv, .files = files};
    if (child_start(&start, &p->pid))
        return err_errno(e, ERR_INTERNAL, "cannot start %s", p->s->c.rank);
    return 0;
}

static int watch_process(struct proc *p, struct err *e)
{
    struct poll_loop *l = p->s->c.loop;
    p->pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (p->pidfd < 0)
        return err_errno(e, ERR_INTERNAL, "cannot watch pid %d", (int)p->pid);
    int rc = poll_loop_add(l, p->pidfd, EPOLLIN, on_end, p, &p->on_end, e);
    rc = rc ? rc : poll_loop_add(l, p->conn.fd, EPOLLIN, on_frame, p, &p->on_frame, e);
    return rc ? rc : poll_loop_add(l, p->pipe, EPOLLIN, on_text, p, &p->on_text, e);
}

static struct proc *proc_new(struct supervise *s, int slot, const struct agent_spawn *what)
{
    struct proc *p = heap_alloc(sizeof *p);
    p->s = s;
    p->slot = slot;
    p->pidfd = p->pipe = p->log.fd = -1;
    p->conn.fd = -1;
    p->job = heap_strdup(what->job);
    p->attempt = what->attempt;
    p->rank = what->rank;
    return p;
}

static bool is_alone(const struct supervise *s)
{
    for (int i = 0; i < s->nprocs; i++)
        if (s->procs[i])
            return false;
    return true;
}

static int launch_process(struct proc *p, char **argv, struct ends *theirs, struct err *e)
{
    int rc = open_ends(p, theirs, e);
    rc = rc ? rc : start_process(p, argv, theirs, e);
    rc = rc ? rc : rankslock_record(p->s->lock, p->pid, is_alone(p->s), e);
    rc = rc ? rc : watch_process(p, e);
    system_close(&theirs->socket);
    system_close(&theirs->text);
    system_close(&theirs->lock);
    if (rc && p->pid > 0) {
        (void)kill(p->pid, SIGKILL);
        (void)waitpid(p->pid, NULL, 0);
    }
    return rc;
}

static void put_in_slot(struct supervise *s, int slot, struct proc *p)
{
    if (slot >= s->nprocs) {
        s->procs = realloc(s->procs, sizeof *s->procs * (size_t)(slot + 1));
        PRE(s->procs != NULL);
        for (int i = s->nprocs; i <= slot; i++)
            s->procs[i] = NULL;
        s->nprocs = slot + 1;
    }
    s->procs[slot] = p;
}

int supervise_spawn(struct supervise *s, int slot, const struct agent_spawn *what, int *pid,
                    struct err *e)
{
    char dir[PATH_LEN], fd[16], parent[16], number[16], *share = frame_text(s->c.share);
    char *argv[] = {frame_text(s->c.rank),
                    frame_text("--fd"),
                    fd,
                    frame_text("--dir"),
                    dir,
                    frame_text("--parent"),
                    parent,
                    frame_text("--host"),
                    share,
                    frame_text("--kind"),
                    frame_text(what->kind),
                    frame_text("--rank"), // for people who look at processes, and for wrappers
                    number,
                    NULL};
    struct ends theirs = {-1, -1, -1};
    PRE(!find_proc(s, slot));
    if (!*what->job || what->job[0] == '.' || strchr(what->job, '/'))
        return err_set(e, ERR_INVALID, "'%s' is no job's id", what->job);
    struct proc *p = proc_new(s, slot, what);
    run_dir(s->c.runs, what->job, what->attempt, dir, sizeof dir);
    snprintf(fd, sizeof fd, "%d", RANK_FD);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    snprintf(number, sizeof number, "%d", what->rank);
    Weft__Rank__Assign assign = *what->assign;
    FRAME(f, ASSIGN, assign, &assign);
    p->assign = message_copy(&f.base);
    int rc = make_run(s, what, dir, e);
    rc = rc ? rc : log_file_open(&p->log, s->jobs, what->job, what->attempt, what->rank, e);
    rc = rc ? rc : launch_process(p, argv, &theirs, e);
    if (rc) {
        proc_clear(p);
        return rc;
    }
    put_in_slot(s, slot, p);
    *pid = (int)p->pid;
    log_info("supervise", "job=%s rank=%d attempt %llu is pid %d", p->job, p->rank,
             (unsigned long long)p->attempt, (int)p->pid);
    return 0;
}
