// SPDX-License-Identifier: Apache-2.0
// The leader's thread; see solo_leader.h. Everything is owned by it; solo_leader_stop() only sets a
// flag.
#include "worker/rank/lead/solo_leader.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/attempt/leader.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/rank/lead/solo_conns.h"
#include "worker/rank/link/rank_frames.h"

enum {
    TELL_MS = 500,    // rank 0's Progress, to all
    MISSING_MAX = 20, // that are named
    MEET_MS = 2000,   // after that the log says who has not joined
    SILENT_MS = 3000, // a remote rank that sends nothing for so long is suspect
};

struct solo_member {
    bool joined, local;
    int pid;
    const struct progress_page *page; // of a local rank; null: not there yet
    int64_t heard_ns;
};

struct solo_leader {
    struct solo_leader_config c;
    const struct assignment *at;
    pthread_t thread;
    int wake;
    atomic_bool stop;
    atomic_int here; // ranks that joined and have not ended, or −1 before all have joined
    struct leader *leader;
    struct solo_conns *conns;
    struct solo_member *members;
    struct rank_cores *cores; // of each rank that has joined
    int joined;
    int64_t started_ns, ticked_ns, progress_ns;
    bool failed, looked; // looked: the log has named the missing ranks, or none was missing
};

// ---- what the leader decides is carried out ----

static void tell_leader(struct solo_leader *l, struct leader_event *ev);

static void count_here(struct solo_leader *l)
{
    int joined = 0, here = 0;
    for (int r = 0; r < l->at->ranks; r++) {
        joined += l->members[r].joined;
        here += l->members[r].joined && !leader_rank(l->leader, r)->ended;
    }
    if (joined == l->at->ranks || l->failed) // whoever has not joined is not waited for then
        atomic_store(&l->here, here);
}

static void ask_to_stop(struct solo_leader *l, const char *why)
{
    FRAME_BODY(body, Stop, stop);
    body.reason = frame_text(why);
    FRAME(f, STOP, stop, &body);
    solo_conns_send(l->conns, -1, &f);
}

static void fail_attempt(struct solo_leader *l, const struct culprit *x)
{
    l->failed = true;
    log_info("lead", "%s", x->text); // the ranks log it as their error
    if (x->kind == CULPRIT_PLANS)
        return;                     // that was the answer to every rank, so each ends by itself
    if (x->kind == CULPRIT_STOPPED) // ranks that have not begun either are stopped, not failed
        ask_to_stop(l, x->text);
    FRAME_BODY(body, Lost, lost);
    body.rank = x->rank;
    body.why = frame_text(x->text);
    FRAME(f, LOST, lost, &body);
    solo_conns_send(l->conns, -1, &f);
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_OVER});
}

static void carry_out(struct solo_leader *l, const struct leader_action *a)
{
    struct step_row row;
    switch (a->kind) {
    case LEADER_SEND:
        solo_conns_send(l->conns, a->rank, a->frame);
        return;
    case LEADER_REPORT:
        rank_frame_to_row(a->report, &row);
        if (l->c.on_row)
            l->c.on_row(l->c.ctx, &row);
        return;
    case LEADER_COMMITTED:
        if (l->c.on_saved)
            l->c.on_saved(l->c.ctx, a->id.step);
        return;
    case LEADER_CULPRIT:
        fail_attempt(l, a->culprit);
        return;
    case LEADER_RECORDS: // the directory is the record
    case LEADER_LOST:    // the writer has logged it
        return;
    case LEADER_ABORTED: // the writer has logged it
        if (a->late)
            ask_to_stop(l, "its checkpoints cannot be saved, and its patience is over");
        return;
    case LEADER_READY:
        return;
    }
}

static void tell_leader(struct solo_leader *l, struct leader_event *ev)
{
    struct arena a;
    struct leader_out out = {.arena = &a};
    arena_init(&a);
    ev->now_ns = clock_mono_ns();
    leader_step(l->leader, ev, &out);
    for (int i = 0; i < out.n; i++)
        carry_out(l, &out.v[i]);
    arena_clear(&a);
}

// ---- what it sees ----

static bool is_process_stopped(int pid)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return state && (state[2] == 'T' || state[2] == 't' || state[2] == 'Z');
}

// Reads the page of a rank of this host; others tell theirs.
static void look_at_page(struct solo_leader *l, int rank)
{
    struct solo_member *m = &l->members[rank];
    struct page_view v;
    if (!m->joined || !m->local || leader_rank(l->leader, rank)->ended)
        return;
    if (!m->page) {
        char path[4096];
        page_path(l->c.page_dir, rank, path, sizeof path);
        m->page = page_open(path);
        if (!m->page)
            return; // not there yet: its Progress frames tell
    }
    page_read(m->page, &v);
    v.stopped = is_process_stopped(m->pid);
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_PAGE, .rank = rank, .page = &v});
}

// A silent rank of another host is taken for a stopped one.
static void look_at_silence(struct solo_leader *l, int rank, int64_t now)
{
    struct solo_member *m = &l->members[rank];
    struct page_view v = leader_rank(l->leader, rank)->view;
    if (!m->joined || m->local || leader_rank(l->leader, rank)->ended || v.stopped ||
        now - m->heard_ns <= SILENT_MS * CLOCK_MS)
        return;
    v.stopped = true;
    Weft__Rank__Progress p;
    frame_from_view(&v, "", &p);
    FRAME(f, PROGRESS, progress, &p);
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = &f});
}

// ---- what connections say ----

static void assign_ranks(struct solo_leader *l)
{
    struct err e = {0};
    struct culprit x = {.kind = CULPRIT_EXITED, .rank = 0, .unreached = -1};
    if (!l->c.on_met(l->c.met_ctx, l->cores, &e)) {
        solo_conns_assign(l->conns);
        return;
    }
    snprintf(x.text, sizeof x.text, "rank 0 cannot begin: %s", e.text);
    fail_attempt(l, &x);
}

static void on_joined(void *ctx, int rank, int pid, const struct rank_cores *cores)
{
    struct solo_leader *l = ctx;
    struct solo_member *m = &l->members[rank];
    char place[RANK_HOST_MAX + 8];
    l->cores[rank] = *cores;
    l->joined++;
    m->joined = true;
    m->local = !strcmp(cores->host, l->at->host);
    m->pid = pid;
    m->heard_ns = clock_mono_ns();
    snprintf(place, sizeof place, "host %s", cores->host);
    leader_place(l->leader, rank, place);
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_JOINED, .rank = rank});
    if (l->c.on_met && l->joined == l->at->ranks && !l->failed)
        assign_ranks(l);
    count_here(l);
}

static void on_exit_frame(struct solo_leader *l, int rank, const Weft__Rank__Exit *x)
{
    look_at_page(l, rank);
    tell_leader(l, &(struct leader_event){
                       .kind = LEADER_EV_ENDED, .rank = rank, .code = x->code, .text = x->why});
    count_here(l);
}

static bool on_frame(void *ctx, int rank, const Weft__Rank__Frame *f)
{
    struct solo_leader *l = ctx;
    l->members[rank].heard_ns = clock_mono_ns();
    if (f->body_case == WEFT__RANK__FRAME__BODY_EXIT)
        on_exit_frame(l, rank, f->exit);
    else if (leader_hears(f))
        tell_leader(l, &(struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = f});
    else
        return false;
    return true;
}

// A connection that ends after Exit means nothing any more.
static void on_gone(void *ctx, int rank, const char *how)
{
    struct solo_leader *l = ctx;
    look_at_page(l, rank);
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_DIED, .rank = rank, .text = how});
    count_here(l);
}

static bool may_retry(void *ctx, int rank)
{
    const struct solo_leader *l = ctx;
    return l->failed || (rank >= 0 && leader_rank(l->leader, rank)->ended);
}

// ---- the loop ----

// Ranks that are started with another DIR never come, and nobody would know why.
static void say_who_is_missing(struct solo_leader *l, int64_t now)
{
    struct buf missing = {0};
    int n = 0;
    if (l->looked || l->failed || now - l->started_ns < MEET_MS * CLOCK_MS)
        return;
    l->looked = true;
    for (int r = 0; r < l->at->ranks; r++)
        if (!l->members[r].joined && ++n <= MISSING_MAX)
            buf_printf(&missing, " %d", r);
    if (n)
        log_warn("lead",
                 "waiting in %s: %d of %d ranks have joined, missing:%s%s; are they started with "
                 "the same --solo DIR?",
                 l->c.dir, l->at->ranks - n, l->at->ranks, buf_str(&missing),
                 n > MISSING_MAX ? " …" : "");
    buf_clear(&missing);
}

static void send_progress(struct solo_leader *l, int64_t now)
{
    if (now - l->progress_ns < TELL_MS * CLOCK_MS)
        return;
    l->progress_ns = now;
    Weft__Rank__Progress body;
    frame_from_view(&leader_rank(l->leader, 0)->view, l->at->host, &body);
    FRAME(f, PROGRESS, progress, &body);
    solo_conns_send(l->conns, -1, &f);
}

static void run_timers(struct solo_leader *l)
{
    int64_t now = clock_mono_ns();
    if (now - l->ticked_ns < LEADER_TICK_MS * CLOCK_MS)
        return;
    l->ticked_ns = now;
    say_who_is_missing(l, now);
    for (int r = 0; r < l->at->ranks; r++) {
        look_at_page(l, r);
        look_at_silence(l, r, now);
    }
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_TICK});
    if (l->failed)
        count_here(l);
    send_progress(l, now);
}

static void *run_leader(void *arg)
{
    struct solo_leader *l = arg;
    while (!atomic_load(&l->stop)) {
        solo_conns_poll(l->conns, l->wake, LEADER_TICK_MS / 2);
        run_timers(l);
    }
    solo_conns_poll(l->conns, l->wake, -1);
    return NULL;
}

// ---- life ----

static void free_leader(struct solo_leader *l)
{
    for (int r = 0; r < l->at->ranks; r++)
        page_close(l->members[r].page);
    free(l->members);
    free(l->cores);
    solo_conns_free(l->conns);
    leader_free(l->leader);
    if (l->wake >= 0)
        close(l->wake);
    free(l);
}

static void make_leader(struct solo_leader *l)
{
    struct leader_config c = {.ranks = l->at->ranks,
                              .steps = l->c.steps,
                              .hang_after_ns = l->at->hang_after_ns,
                              .join_ns = l->c.join_ns,
                              .stops_by_signal = true,
                              .keep = l->c.keep,
                              .keep_every = l->c.keep_every,
                              .patience_ns = l->c.patience_ns};
    l->leader = leader_new(&c, clock_mono_ns());
    tell_leader(l, &(struct leader_event){.kind = LEADER_EV_FENCED,
                                          .epoch = (int64_t)l->at->epoch,
                                          .scan = l->c.scan,
                                          .nscan = l->c.nscan});
}

int solo_leader_start(const struct solo_leader_config *c, struct solo_leader **out, int *link_fd,
                      struct err *e)
{
    int sv[2] = {-1, -1}, rc = 0;
    struct solo_leader *l = calloc(1, sizeof *l);
    PRE(l != NULL);
    l->c = *c;
    l->at = c->assignment;
    l->started_ns = clock_mono_ns();
    l->members = calloc((size_t)l->at->ranks, sizeof *l->members);
    l->cores = calloc((size_t)l->at->ranks, sizeof *l->cores);
    PRE(l->members != NULL && l->cores != NULL);
    atomic_store(&l->here, -1);
    struct solo_conns_ops ops = {l, on_joined, on_frame, on_gone, may_retry};
    l->conns = solo_conns_new(l->at, c->unix_fd, c->tcp_fd, &ops);
    if (!c->on_met)
        solo_conns_assign(l->conns);
    make_leader(l);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv)) {
        rc = err_errno(e, ERR_INTERNAL, "cannot make the leader's descriptors");
        free_leader(l);
        return rc;
    }
    solo_conns_add_own(l->conns, sv[0]);
    if ((errno = pthread_create(&l->thread, NULL, run_leader, l))) {
        rc = err_errno(e, ERR_INTERNAL, "cannot start the leader's thread");
        free_leader(l);
        close(sv[1]);
        return rc;
    }
    *link_fd = sv[1];
    *out = l;
    return 0;
}

void solo_leader_stop(struct solo_leader *l, int64_t wait_ns)
{
    if (!l)
        return;
    int64_t end = clock_mono_ns() + wait_ns;
    while (atomic_load(&l->here) != 0 && clock_mono_ns() < end)
        clock_sleep_ms(5);
    atomic_store(&l->stop, true);
    uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof one);
    (void)n;
    pthread_join(l->thread, NULL);
    free_leader(l);
}
