// SPDX-License-Identifier: Apache-2.0
// See local_leader.h.
#include "worker/local_leader.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { LOOK_MS = LEADER_TICK_MS / 2 };

void local_leader_send(struct local_leader *l, int rank, const Weft__Rank__Frame *f)
{
    for (int r = 0; r < l->n; r++) {
        struct local_rank *k = &l->ranks[r];
        if (!k->open || (rank >= 0 && rank != r))
            continue;
        if (frame_queue(&k->conn, f, NULL) && k->pid)
            (void)kill(k->pid, SIGKILL); // it reads nothing any more
        (void)frame_flush(&k->conn, NULL);
    }
}

// ---- what the leader decides is carried out ----

static void lead(struct local_leader *l, struct leader_event ev);

static void name_culprit(struct local_leader *l, const struct culprit *x)
{
    l->failed = true;
    l->culprit = *x;
    log_info("lead", "%s", x->text);
    if (x->kind == CULPRIT_PLANS)
        return; // that was the answer to every rank, so each ends by itself
    FRAME_BODY(body, Lost, lost);
    body.rank = x->rank;
    body.why = frame_text(x->text);
    FRAME(f, LOST, lost, &body);
    local_leader_send(l, -1, &f);
    lead(l, (struct leader_event){.kind = LEADER_EV_OVER});
}

static void carry_out(struct local_leader *l, const struct leader_action *a)
{
    switch (a->kind) {
    case LEADER_SEND:
        local_leader_send(l, a->rank, a->frame);
        return;
    case LEADER_REPORT:
        l->stepped = a->report->step;
        if (!a->report->step) // it only evaluates: what follows are good ends
            lead(l, (struct leader_event){.kind = LEADER_EV_STOPPING});
        return;
    case LEADER_COMMITTED:
        l->committed = a->id.step;
        if (l->steps && a->id.step >= l->steps) // what follows are good ends
            lead(l, (struct leader_event){.kind = LEADER_EV_STOPPING});
        return;
    case LEADER_ABORTED: // the writer has logged it
        if (a->late)
            local_leader_stop(l, "its checkpoints cannot be saved, and its patience is over");
        return;
    case LEADER_CULPRIT:
        name_culprit(l, a->culprit);
        return;
    case LEADER_RECORDS: // the folder is the record
    case LEADER_LOST:    // the writer has logged it
    case LEADER_NOTE:    // rank 0 has logged it
        return;
    case LEADER_READY:
        l->ready = true;
        return;
    }
}

static void lead(struct local_leader *l, struct leader_event ev)
{
    struct arena a = {0};
    struct leader_out out = {.arena = &a};
    ev.now_ns = clock_mono_ns();
    leader_step(l->leader, &ev, &out);
    for (int i = 0; i < out.n; i++)
        carry_out(l, &out.v[i]);
    arena_clear(&a);
}

// ---- what ranks say and show ----

static void look_at_page(struct local_leader *l, int rank)
{
    struct local_rank *k = &l->ranks[rank];
    char path[4200];
    struct page_view v;
    page_path(l->page_dir, rank, path, sizeof path);
    if (leader_rank(l->leader, rank)->ended || (!k->page && !(k->page = page_open(path))))
        return;
    page_read(k->page, &v);
    v.stopped = k->pid && child_is_stopped(k->pid);
    lead(l, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = rank, .page = &v});
}

void local_leader_hang_up(struct local_leader *l, int rank)
{
    if (l->ranks[rank].open)
        frame_conn_clear(&l->ranks[rank].conn);
    l->ranks[rank].open = false;
}

static void hear(struct local_leader *l, int rank, Weft__Rank__Frame *f)
{
    struct local_rank *k = &l->ranks[rank];
    if (f->body_case == WEFT__RANK__FRAME__BODY_HELLO) {
        FRAME(assign, ASSIGN, assign, &k->assign);
        local_leader_send(l, rank, &assign);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_EXIT) {
        k->exit_code = f->exit->code;
        k->unreached = f->exit->unreached;
        snprintf(k->why, sizeof k->why, "%s", f->exit->why);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_ANSWER && l->answered) {
        l->answered(l->ctx, f->answer);
    } else if (leader_hears(f)) {
        lead(l, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = f});
    }
}

// False: nothing is there now.
static bool read_rank(struct local_leader *l, int rank)
{
    struct local_rank *k = &l->ranks[rank];
    struct err bad = {0};
    Weft__Rank__Frame *f;
    bool any = false;
    if (!k->open)
        return false;
    bool ends = frame_fill(&k->conn, NULL) != 0;
    while (k->open && !frame_next(&k->conn, &f, &bad) && f) {
        any = true;
        hear(l, rank, f);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    if (bad.code && k->pid)
        (void)kill(k->pid, SIGKILL);
    if (ends || bad.code) {
        local_leader_hang_up(l, rank);
        if (!k->pid) // a link that was closed, or never said why
            local_leader_ended(l, rank, k->exit_code < 0 ? 0 : k->exit_code,
                               k->exit_code < 0 ? SIGKILL : 0);
    }
    return any;
}

void local_leader_ended(struct local_leader *l, int rank, int code, int signal)
{
    struct local_rank *k = &l->ranks[rank];
    while (read_rank(l, rank))
        ;
    look_at_page(l, rank);
    k->pid = 0;
    if (!leader_rank(l->leader, rank)->ended)
        lead(l, (struct leader_event){.kind = LEADER_EV_ENDED,
                                      .rank = rank,
                                      .code = code,
                                      .signal = signal,
                                      .unreached = k->unreached,
                                      .text = k->why});
    local_leader_hang_up(l, rank);
}

void local_leader_turn(struct local_leader *l, int timeout_ms)
{
    struct pollfd p[LOCAL_RANKS_MAX];
    for (int r = 0; r < l->n; r++) {
        const struct local_rank *k = &l->ranks[r];
        short out = k->open && frame_conn_pending(&k->conn) ? POLLOUT : 0;
        p[r] = (struct pollfd){.fd = k->open ? k->conn.fd : -1, .events = (short)(POLLIN | out)};
    }
    (void)poll(p, (nfds_t)l->n, timeout_ms);
    for (int r = 0; r < l->n; r++) {
        if (p[r].revents & POLLOUT && l->ranks[r].open)
            (void)frame_flush(&l->ranks[r].conn, NULL);
        if (p[r].revents & (POLLIN | POLLHUP | POLLERR))
            (void)read_rank(l, r);
    }
    int64_t now = clock_mono_ns();
    if (now - l->ticked_ns < LOOK_MS * CLOCK_MS)
        return;
    l->ticked_ns = now;
    for (int r = 0; r < l->n; r++)
        look_at_page(l, r);
    lead(l, (struct leader_event){.kind = LEADER_EV_TICK});
}

void local_leader_stop(struct local_leader *l, const char *reason)
{
    FRAME_BODY(body, Stop, stop);
    body.reason = frame_text(reason);
    FRAME(f, STOP, stop, &body);
    local_leader_send(l, -1, &f);
    lead(l, (struct leader_event){.kind = LEADER_EV_STOPPING});
}

// ---- life ----

void local_leader_init(struct local_leader *l, const struct leader_config *c,
                       const Weft__Rank__Assign *assign, const char *page_dir)
{
    *l = (struct local_leader){
        .n = c->ranks, .steps = c->steps, .page_dir = page_dir, .stepped = -1, .committed = -1};
    PRE(c->ranks <= LOCAL_RANKS_MAX);
    l->leader = leader_new(c, clock_mono_ns());
    for (int r = 0; r < l->n; r++) {
        struct local_rank *k = &l->ranks[r];
        *k = (struct local_rank){.exit_code = -1, .assign = *assign};
        k->assign.rank = r;
        k->assign.ranks = l->n;
        k->assign.metrics = r == 0 ? assign->metrics : frame_text("");
        leader_place(l->leader, r, "host here");
    }
}

void local_leader_fence(struct local_leader *l, const struct store_entry *scan, int nscan)
{
    lead(l, (struct leader_event){.kind = LEADER_EV_FENCED,
                                  .attempt = (int64_t)l->ranks[0].assign.attempt,
                                  .scan = scan,
                                  .nscan = nscan});
}

int local_leader_connect(struct local_leader *l, int rank)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return -1;
    frame_conn_init(&l->ranks[rank].conn, ends[0]);
    l->ranks[rank].open = true;
    return ends[1];
}

int local_leader_start(struct local_leader *l, int rank, const struct local_start *s, struct err *e)
{
    enum { RANK_FD = 3 };
    char fd[16], parent[16], number[16];
    char *argv[] = {frame_text(s->program),
                    frame_text("--fd"),
                    fd,
                    frame_text("--dir"),
                    frame_text(l->page_dir),
                    frame_text("--parent"),
                    parent,
                    frame_text("--host"),
                    frame_text(s->host),
                    frame_text("--kind"),
                    frame_text(s->kind),
                    frame_text("--rank"),
                    number,
                    NULL};
    pid_t pid;
    snprintf(fd, sizeof fd, "%d", RANK_FD);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    snprintf(number, sizeof number, "%d", rank);
    int theirs = local_leader_connect(l, rank);
    if (theirs < 0)
        return err_errno(e, ERR_IO, "rank %d: its socket", rank);
    const struct child_file files[] = {{s->log, 1}, {s->log, 2}, {theirs, RANK_FD}, {-1, -1}};
    int rc = child_start(&(struct child_start){.program = s->program, .argv = argv, .files = files},
                         &pid);
    close(theirs);
    if (rc)
        return err_errno(e, ERR_INTERNAL, "cannot start %s", s->program);
    l->ranks[rank].pid = pid;
    return 0;
}

bool local_leader_is_open(const struct local_leader *l)
{
    bool any = false;
    for (int r = 0; r < l->n; r++)
        any |= l->ranks[r].open;
    return any;
}

void local_leader_clear(struct local_leader *l)
{
    for (int r = 0; r < l->n; r++) {
        local_leader_hang_up(l, r);
        page_close(l->ranks[r].page);
    }
    leader_free(l->leader);
}
