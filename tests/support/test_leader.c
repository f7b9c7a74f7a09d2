// SPDX-License-Identifier: Apache-2.0
// See test_leader.h.
#include "tests/support/test_leader.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/log.h"

void test_leader_send(struct test_leader *l, int rank, const Weft__Rank__Frame *f)
{
    for (int r = 0; r < l->n; r++) {
        struct test_rank *k = &l->ranks[r];
        if (!k->open || (rank >= 0 && rank != r))
            continue;
        if (frame_queue(&k->conn, f, NULL) && k->pid)
            (void)kill(k->pid, SIGKILL); // it reads nothing any more
        (void)frame_flush(&k->conn, NULL);
    }
}

// ---- what the leader decides is carried out ----

static void lead(struct test_leader *l, struct leader_event ev);

static void name_culprit(struct test_leader *l, const struct culprit *x)
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
    test_leader_send(l, -1, &f);
    lead(l, (struct leader_event){.kind = LEADER_EV_OVER});
}

static void carry_out(struct test_leader *l, const struct leader_action *a)
{
    switch (a->kind) {
    case LEADER_SEND:
        test_leader_send(l, a->rank, a->frame);
        return;
    case LEADER_REPORT:
        l->stepped = a->report->step;
        return;
    case LEADER_COMMITTED:
        l->committed = a->id.step;
        if (l->steps && a->id.step >= l->steps) // what follows are good ends
            lead(l, (struct leader_event){.kind = LEADER_EV_STOPPING});
        return;
    case LEADER_ABORTED: // the writer has logged it
        if (a->late)
            test_leader_stop(l, "its checkpoints cannot be saved, and its patience is over");
        return;
    case LEADER_CULPRIT:
        name_culprit(l, a->culprit);
        return;
    case LEADER_RECORDS: // the folder is the record
    case LEADER_LOST:    // the writer has logged it
    case LEADER_READY:
        return;
    }
}

static void lead(struct test_leader *l, struct leader_event ev)
{
    struct arena a;
    struct leader_out out = {.arena = &a};
    arena_init(&a);
    ev.now_ns = clock_mono_ns();
    leader_step(l->leader, &ev, &out);
    for (int i = 0; i < out.n; i++)
        carry_out(l, &out.v[i]);
    arena_clear(&a);
}

// ---- what ranks say and show ----

static void look_at_page(struct test_leader *l, int rank)
{
    struct test_rank *k = &l->ranks[rank];
    char path[4200];
    struct page_view v;
    page_path(l->page_dir, rank, path, sizeof path);
    if (leader_rank(l->leader, rank)->ended || (!k->page && !(k->page = page_open(path))))
        return;
    page_read(k->page, &v);
    v.stopped = k->pid && child_is_stopped(k->pid);
    lead(l, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = rank, .page = &v});
}

void test_leader_hang_up(struct test_leader *l, int rank)
{
    if (l->ranks[rank].open)
        frame_conn_clear(&l->ranks[rank].conn);
    l->ranks[rank].open = false;
}

static void hear(struct test_leader *l, int rank, Weft__Rank__Frame *f)
{
    struct test_rank *k = &l->ranks[rank];
    if (f->body_case == WEFT__RANK__FRAME__BODY_HELLO) {
        k->greeted = f->hello->version == FRAME_VERSION;
        FRAME(assign, ASSIGN, assign, &k->assign);
        test_leader_send(l, rank, &assign);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_EXIT) {
        k->exit_code = f->exit->code;
        k->unreached = f->exit->unreached;
        snprintf(k->why, sizeof k->why, "%s", f->exit->why);
    } else if (leader_hears(f)) {
        lead(l, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = f});
    }
}

// False: nothing is there now.
static bool read_rank(struct test_leader *l, int rank)
{
    struct test_rank *k = &l->ranks[rank];
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
        test_leader_hang_up(l, rank);
        if (!k->pid) // a link that was closed, or never said why
            test_leader_ended(l, rank, k->exit_code < 0 ? 0 : k->exit_code,
                              k->exit_code < 0 ? SIGKILL : 0);
    }
    return any;
}

void test_leader_ended(struct test_leader *l, int rank, int code, int signal)
{
    struct test_rank *k = &l->ranks[rank];
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
    test_leader_hang_up(l, rank);
}

void test_leader_turn(struct test_leader *l, int timeout_ms)
{
    struct pollfd p[TEST_RANKS_MAX];
    for (int r = 0; r < l->n; r++) {
        const struct test_rank *k = &l->ranks[r];
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
    if (now - l->ticked_ns < LEADER_TICK_MS / 2 * CLOCK_MS)
        return;
    l->ticked_ns = now;
    for (int r = 0; r < l->n; r++)
        look_at_page(l, r);
    lead(l, (struct leader_event){.kind = LEADER_EV_TICK});
}

void test_leader_stop(struct test_leader *l, const char *reason)
{
    FRAME_BODY(body, Stop, stop);
    body.reason = frame_text(reason);
    FRAME(f, STOP, stop, &body);
    test_leader_send(l, -1, &f);
    lead(l, (struct leader_event){.kind = LEADER_EV_STOPPING});
}

// ---- life ----

void test_leader_init(struct test_leader *l, const struct leader_config *c,
                      const Weft__Rank__Assign *assign, const char *page_dir)
{
    *l = (struct test_leader){
        .n = c->ranks, .steps = c->steps, .page_dir = page_dir, .stepped = -1, .committed = -1};
    PRE(c->ranks <= TEST_RANKS_MAX);
    l->leader = leader_new(c, clock_mono_ns());
    for (int r = 0; r < l->n; r++) {
        struct test_rank *k = &l->ranks[r];
        *k = (struct test_rank){.exit_code = -1, .assign = *assign};
        k->assign.rank = r;
        k->assign.ranks = l->n;
        k->assign.metrics = r == 0 ? assign->metrics : frame_text("");
        leader_place(l->leader, r, "host here");
    }
}

void test_leader_fence(struct test_leader *l, const struct store_entry *scan, int nscan)
{
    lead(l, (struct leader_event){.kind = LEADER_EV_FENCED,
                                  .epoch = (int64_t)l->ranks[0].assign.epoch,
                                  .scan = scan,
                                  .nscan = nscan});
}

int test_leader_connect(struct test_leader *l, int rank)
{
    int ends[2];
    PRE(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    frame_conn_init(&l->ranks[rank].conn, ends[0]);
    l->ranks[rank].open = true;
    return ends[1];
}

void test_leader_watch(struct test_leader *l, int rank, pid_t pid)
{
    l->ranks[rank].pid = pid;
}

bool test_leader_is_open(const struct test_leader *l)
{
    bool any = false;
    for (int r = 0; r < l->n; r++)
        any |= l->ranks[r].open;
    return any;
}

void test_leader_clear(struct test_leader *l)
{
    for (int r = 0; r < l->n; r++) {
        test_leader_hang_up(l, r);
        page_close(l->ranks[r].page);
    }
    leader_free(l->leader);
}
