// SPDX-License-Identifier: Apache-2.0
// The leader's thread; see lead.h.
//
// A connection is a *peer*; it becomes a *member* when it has proved the key. Peers are forgotten
// only between turns (sweep), so that a loop over them never loses its footing. Sending never drops
// anybody: a peer whose queue is full is *choked*, gets nothing more, and is dropped by the sweep,
// so that the end of the attempt cannot begin within a list of actions that is being carried out.
// Everything is owned by the thread; lead_stop() only sets a flag.
//
// The end of an attempt: an end of file without Exit, an Exit that is no peer's fault, a hang or a
// rank that did not join names the culprit at once. An Exit with 69 is a consequence: the leader
// waits a moment for the cause before it names the messenger.
#include "worker/rank/lead/lead.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/attempt/board.h"
#include "common/attempt/frame.h"
#include "common/attempt/watch.h"
#include "common/base/clock.h"
#include "common/base/entropy.h"
#include "common/base/log.h"
#include "worker/rank/lead/rank_join.h"
#include "worker/rank/link/rank_frames.h"

enum {
    TICK_MS = 200,
    TELL_MS = 500,      // Progress down
    PROVE_MS = 10000,   // a connection that has not proved the key by then is dropped
    STRANGERS_MAX = 64, // connections that have not
    BLAME_MS = 1500,    // how long an exit with 69 waits for its cause
    SILENT_MS = 3000,   // a remote rank that says nothing for so long is suspect
};

enum peer_state { PEER_NEW, PEER_CHALLENGED, PEER_MEMBER, PEER_GONE };

struct peer {
    struct list link;
    struct frame_conn conn;
    enum peer_state state;
    bool choked; // its queue was full
    int rank, pid;
    char host[RANK_HOST_MAX];
    int64_t since_ns;
    unsigned char a[JOIN_NONCE], b[JOIN_NONCE]; // its nonce, ours
};

struct member {
    struct peer *peer; // null: not here
    bool joined, ended;
    int code; // of Exit
    int64_t ended_ns;
    char why[400];
    char host[RANK_HOST_MAX];
    int pid;
    bool local;
    const struct progress_page *page;
    struct page_view view;
    int64_t heard_ns;
};

struct lead {
    struct lead_config c;
    const struct assignment *at;
    pthread_t thread;
    int wake;
    atomic_bool stop;
    atomic_int here; // members that have not ended, or −1 before all joined
    struct list peers;
    int strangers;
    struct member *members;
    int joined, alive;
    struct board board;
    struct watch watch;
    struct commit commit;
    int64_t started_ns, ticked_ns, told_ns;
    bool failed;
};

void lead_page_path(const char *page_dir, int rank, char *out, size_t size)
{
    snprintf(out, size, "%s/page-%04d", page_dir, rank);
}

// ---- sending ----

static void send_peer(struct peer *p, const Weft__Rank__Frame *f)
{
    struct err e = {0};
    if (p->state == PEER_GONE || p->choked)
        return;
    if (frame_queue(&p->conn, f, &e)) {
        log_warn("lead", "rank %d: %s", p->rank, e.text);
        p->choked = true;
    }
}

static void send_rank(void *ctx, int rank, const Weft__Rank__Frame *f)
{
    struct lead *l = ctx;
    if (l->members[rank].peer)
        send_peer(l->members[rank].peer, f);
}

static void send_all(struct lead *l, const Weft__Rank__Frame *f)
{
    for (int r = 0; r < l->at->ranks; r++)
        send_rank(l, r, f);
}

// ---- who is where ----

// What the others saw of a rank that is known by its frames alone, which are a little old: those
// that wait for it tell the last collective that they saw it enter.
static void seen_by_peers(const struct lead *l, int rank, char *out, size_t size)
{
    uint64_t entered = 0;
    *out = 0;
    for (int r = 0; r < l->at->ranks; r++) {
        const struct page_view *v = &l->members[r].view;
        if (v->awaits == rank + 1 && v->awaits_entered > entered)
            entered = v->awaits_entered;
    }
    if (entered)
        snprintf(out, size, "; its peers saw it enter %llu last", (unsigned long long)entered);
}

static void where(void *ctx, int rank, char *out, size_t size)
{
    const struct lead *l = ctx;
    const struct member *m = &l->members[rank];
    char at[200], seen[60] = "";
    if (!m->joined) {
        snprintf(out, size, "rank %d, which has not joined", rank);
        return;
    }
    page_view_text(&m->view, at, sizeof at);
    if (!m->page)
        seen_by_peers(l, rank, seen, sizeof seen);
    snprintf(out, size, "rank %d on host %s (%s%s)", rank, m->host, at, seen);
}

// Reads the page of a rank of this host; others tell theirs.
static void look(struct lead *l, int rank, int64_t now)
{
    struct member *m = &l->members[rank];
    if (!m->joined)
        return;
    if (m->local && !m->page) {
        char path[4096];
        lead_page_path(l->c.page_dir, rank, path, sizeof path);
        (void)page_open(path, &m->page, NULL); // not there yet: its Progress frames tell
    }
    if (m->page)
        page_read(m->page, &m->view);
    watch_see(&l->watch, rank, &m->view, now);
}

// Whether the process of a rank cannot run: stopped here, silent elsewhere.
static bool suspect(void *ctx, int rank)
{
    const struct lead *l = ctx;
    const struct member *m = &l->members[rank];
    char path[40], text[512];
    if (!m->local)
        return clock_mono_ns() - m->heard_ns > SILENT_MS * CLOCK_MS;
    snprintf(path, sizeof path, "/proc/%d/stat", m->pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return state && (state[2] == 'T' || state[2] == 't' || state[2] == 'Z');
}

// ---- checkpoints ----

static void send_commit(struct lead *l, int64_t step)
{
    struct arena a;
    arena_init(&a);
    const struct shard_report *reports = commit_reports(&l->commit);
    FRAME_BODY(body, Commit, commit);
    body.step = step;
    body.n_shards = (size_t)l->at->ranks;
    body.shards = arena_array(&a, Weft__Rank__ShardDone *, l->at->ranks);
    for (int r = 0; r < l->at->ranks; r++) {
        body.shards[r] = arena_new(&a, Weft__Rank__ShardDone);
        rank_frame_from_shard(&reports[r], &a, body.shards[r]);
    }
    FRAME(f, COMMIT, commit, &body);
    send_rank(l, 0, &f);
    arena_clear(&a);
}

static void send_to(struct lead *l, int rank, const Weft__Rank__Frame *f)
{
    if (rank < 0)
        send_all(l, f);
    else
        send_rank(l, rank, f);
}

static void act(struct lead *l, const struct commit_action *x)
{
    FRAME_BODY(committed, Committed, committed);
    FRAME_BODY(aborted, Aborted, aborted);
    FRAME_BODY(deletion, Delete, delete);
    committed.step = aborted.step = deletion.step = x->id.step;
    deletion.epoch = x->id.epoch;
    aborted.why = frame_text(x->text);
    FRAME(fc, COMMITTED, committed, &committed);
    FRAME(fa, ABORTED, aborted, &aborted);
    FRAME(fd, DELETE, delete_, &deletion);
    switch (x->kind) {
    case COMMIT_DO_ORDER:
        send_commit(l, x->id.step);
        return;
    case COMMIT_DO_COMMITTED:
        send_to(l, x->rank, &fc);
        if (x->rank < 0 && l->c.on_saved)
            l->c.on_saved(l->c.ctx, x->id.step);
        return;
    case COMMIT_DO_ABORTED:
        send_to(l, x->rank, &fa);
        return;
    case COMMIT_DO_DELETE:
        send_rank(l, 0, &fd);
        return;
    }
}

static void decide(struct lead *l, struct commit_event *ev)
{
    struct arena a;
    struct commit_actions actions = {0};
    arena_init(&a);
    ev->now_ns = clock_mono_ns();
    commit_step(&l->commit, ev, &a, &actions);
    // Deletions go out first: rank 0 carries out what it was ordered before the answer to its last
    // save lets it end.
    for (int i = 0; i < actions.n; i++)
        if (actions.v[i].kind == COMMIT_DO_DELETE)
            act(l, &actions.v[i]);
    for (int i = 0; i < actions.n; i++)
        if (actions.v[i].kind != COMMIT_DO_DELETE)
            act(l, &actions.v[i]);
    arena_clear(&a);
}

static void on_shard(struct lead *l, int rank, const Weft__Rank__ShardDone *f)
{
    struct arena a;
    struct shard_report r;
    struct err e = {0};
    arena_init(&a);
    if (rank_frame_to_shard(f, &a, &r, &e)) {
        memset(&r, 0, sizeof r);
        r.step = f->step;
        r.code = e.code;
        snprintf(r.text, sizeof r.text, "%.190s", e.text);
    }
    r.rank = rank; // whatever it says: who speaks is known
    struct commit_event ev = {.kind = COMMIT_EV_SHARD,
                              .id = {.epoch = (int64_t)l->at->epoch, .step = r.step},
                              .report = &r};
    decide(l, &ev);
    arena_clear(&a);
}

// ---- the end of the attempt ----

static void fail(struct lead *l, int rank, const char *why)
{
    if (l->failed)
        return;
    l->failed = true;
    atomic_store(&l->here, l->alive); // whoever has not joined is not waited for
    log_info("lead", "%s", why);      // the ranks log it as their error
    FRAME_BODY(body, Lost, lost);
    body.rank = rank;
    body.why = frame_text(why);
    FRAME(f, LOST, lost, &body);
    send_all(l, &f);
    struct commit_event ev = {.kind = COMMIT_EV_EPOCH_END};
    decide(l, &ev);
}

static void end_member(struct lead *l, int rank, int code, const char *why, int64_t now)
{
    struct member *m = &l->members[rank];
    if (m->ended)
        return;
    look(l, rank, now);
    m->ended = true;
    m->code = code;
    m->ended_ns = now;
    snprintf(m->why, sizeof m->why, "%s", why);
    watch_gone(&l->watch, rank);
    l->alive--;
    atomic_store(&l->here, l->alive);
}

static void died(struct lead *l, int rank, const char *how)
{
    char at[300], text[500];
    end_member(l, rank, -1, how, clock_mono_ns());
    where(l, rank, at, sizeof at);
    snprintf(text, sizeof text, "%s %s", at, how);
    fail(l, rank, text);
}

static void on_exit_frame(struct lead *l, int rank, const Weft__Rank__Exit *x)
{
    char at[300], text[1000];
    end_member(l, rank, x->code, x->why, clock_mono_ns());
    if (x->code == RANK_EXIT_DRAINED && l->members[rank].view.state < RANK_RUNNING) {
        snprintf(text, sizeof text, "rank %d was asked to stop before the first step", rank);
        fail(l, rank, text);
    }
    if (x->code == RANK_EXIT_DONE || x->code == RANK_EXIT_DRAINED || x->code == RANK_EXIT_LOST)
        return;
    where(l, rank, at, sizeof at);
    snprintf(text, sizeof text, "%s ended with %d, %s: %s", at, x->code, rank_exit_text(x->code),
             x->why);
    fail(l, rank, text);
}

// An exit with 69 whose cause nobody named.
static void blame_messengers(struct lead *l, int64_t now)
{
    for (int r = 0; r < l->at->ranks && !l->failed; r++) {
        const struct member *m = &l->members[r];
        char at[300], text[800];
        if (!m->ended || m->code != RANK_EXIT_LOST || now - m->ended_ns < BLAME_MS * CLOCK_MS)
            continue;
        where(l, r, at, sizeof at);
        snprintf(text, sizeof text, "%s gave up: %s", at, m->why);
        fail(l, r, text);
    }
}

// Marks a connection for the sweep. A member that goes without Exit has died.
static void drop(struct lead *l, struct peer *p)
{
    enum peer_state was = p->state;
    if (was == PEER_GONE)
        return;
    p->state = PEER_GONE;
    if (was != PEER_MEMBER) {
        l->strangers--;
        return;
    }
    l->members[p->rank].peer = NULL;
    if (!l->members[p->rank].ended)
        died(l, p->rank, p->choked ? "reads nothing any more" : "died");
}

// ---- joining ----

static struct peer *add_peer(struct lead *l, int fd)
{
    struct peer *p = calloc(1, sizeof *p);
    PRE(p != NULL);
    frame_conn_init(&p->conn, fd);
    p->conn.max_in = FRAME_MAX_JOIN;
    p->since_ns = clock_mono_ns();
    p->rank = -1;
    list_append(&l->peers, &p->link);
    l->strangers++;
    return p;
}

static void refuse(struct lead *l, struct peer *p, bool retry, const char *why)
{
    FRAME_BODY(body, Refuse, refuse);
    body.why = frame_text(why);
    body.retry = retry;
    FRAME(f, REFUSE, refuse, &body);
    send_peer(p, &f);
    (void)frame_flush(&p->conn, NULL);
    drop(l, p);
}

static void on_hello(struct lead *l, struct peer *p, const Weft__Rank__Hello *h)
{
    char why[220] = "";
    bool known = h->rank >= 0 && h->rank < l->at->ranks;
    bool retry = h->epoch != l->at->epoch || l->failed || (known && l->members[h->rank].ended);
    if (h->version != JOIN_VERSION || h->nonce.len != JOIN_NONCE)
        snprintf(why, sizeof why, "it speaks version %d", JOIN_VERSION);
    else if (h->epoch != l->at->epoch)
        snprintf(why, sizeof why, "it leads epoch %llu", (unsigned long long)l->at->epoch);
    else if (h->ranks != l->at->ranks || h->rank < 1 || h->rank >= l->at->ranks)
        snprintf(why, sizeof why, "the attempt has %d ranks, numbered from 0", l->at->ranks);
    else if (l->members[h->rank].joined)
        snprintf(why, sizeof why, "rank %d is here already, pid %d on host %s", h->rank,
                 l->members[h->rank].pid, l->members[h->rank].host);
    if (why[0]) {
        refuse(l, p, retry, why);
        return;
    }
    unsigned char mac[JOIN_MAC];
    p->rank = h->rank;
    p->pid = h->pid;
    snprintf(p->host, sizeof p->host, "%s", h->host);
    memcpy(p->a, h->nonce.data, JOIN_NONCE);
    if (entropy_bytes(p->b, JOIN_NONCE, NULL)) {
        drop(l, p);
        return;
    }
    struct join_who who = {h->rank, h->ranks, h->epoch, p->host, l->at->key};
    join_mac(&who, "leader", p->a, p->b, mac);
    FRAME_BODY(body, Challenge, challenge);
    body.nonce.data = p->b;
    body.nonce.len = JOIN_NONCE;
    body.mac.data = mac;
    body.mac.len = JOIN_MAC;
    FRAME(f, CHALLENGE, challenge, &body);
    send_peer(p, &f);
    p->state = PEER_CHALLENGED;
}

static void admit(struct lead *l, struct peer *p, int rank, const char *host)
{
    struct member *m = &l->members[rank];
    l->strangers--;
    p->state = PEER_MEMBER;
    p->rank = rank;
    p->conn.max_in = FRAME_MAX;
    m->peer = p;
    m->pid = p->pid;
    m->joined = true;
    m->local = !strcmp(host, l->at->host);
    m->heard_ns = clock_mono_ns();
    m->view.rank = rank;
    snprintf(m->host, sizeof m->host, "%s", host);
    l->joined++;
    l->alive++;
    if (l->joined == l->at->ranks)
        atomic_store(&l->here, l->alive);
    Weft__Rank__Assign body;
    rank_frame_from_assignment(l->at, rank, &body);
    FRAME(f, ASSIGN, assign, &body);
    send_peer(p, &f);
    log_debug("lead", "rank %d joined from host %s", rank, host);
}

static void on_proof(struct lead *l, struct peer *p, const Weft__Rank__Proof *proof)
{
    unsigned char mac[JOIN_MAC];
    struct join_who who = {p->rank, l->at->ranks, l->at->epoch, p->host, l->at->key};
    join_mac(&who, "rank", p->b, p->a, mac);
    if (proof->mac.len != JOIN_MAC || !join_mac_equal(mac, proof->mac.data)) {
        log_warn("lead", "somebody who calls itself rank %d does not know the key", p->rank);
        refuse(l, p, false, "the key is wrong");
    } else if (l->members[p->rank].joined) {
        refuse(l, p, false, "the rank is here already");
    } else {
        admit(l, p, p->rank, p->host);
    }
}

// ---- frames ----

static void on_progress(struct lead *l, int rank, const Weft__Rank__Progress *f)
{
    struct member *m = &l->members[rank];
    if (m->page)
        return;
    rank_frame_to_view(f, &m->view);
    m->view.rank = rank;
}

static void on_writer(struct lead *l, const Weft__Rank__Frame *f)
{
    struct commit_event ev = {0};
    if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT_DONE) {
        ev.kind = COMMIT_EV_DONE;
        ev.id = (struct store_entry){(int64_t)l->at->epoch, f->commit_done->step};
        ev.ok = f->commit_done->code == 0;
        ev.text = f->commit_done->text;
    } else {
        ev.kind = COMMIT_EV_DELETED;
        ev.id = (struct store_entry){f->deleted->epoch, f->deleted->step};
        ev.ok = f->deleted->code == 0;
    }
    decide(l, &ev);
}

static void on_member(struct lead *l, struct peer *p, const Weft__Rank__Frame *f)
{
    int r = p->rank;
    struct step_row row;
    l->members[r].heard_ns = clock_mono_ns();
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_PUT:
        board_put(&l->board, r, f->kv_put->key, f->kv_put->value);
        return;
    case WEFT__RANK__FRAME__BODY_KV_GET:
        board_get(&l->board, r, f->kv_get->key);
        return;
    case WEFT__RANK__FRAME__BODY_BARRIER:
        board_barrier(&l->board, r, f->barrier, clock_mono_ns());
        return;
    case WEFT__RANK__FRAME__BODY_READY:
        board_ready(&l->board, r, f->ready->plan_hash);
        return;
    case WEFT__RANK__FRAME__BODY_STEP_REPORT:
        rank_frame_to_row(f->step_report, &row);
        if (r == 0 && l->c.on_row)
            l->c.on_row(l->c.ctx, &row);
        return;
    case WEFT__RANK__FRAME__BODY_SHARD_DONE:
        on_shard(l, r, f->shard_done);
        return;
    case WEFT__RANK__FRAME__BODY_COMMIT_DONE:
    case WEFT__RANK__FRAME__BODY_DELETED:
        if (r == 0)
            on_writer(l, f);
        return;
    case WEFT__RANK__FRAME__BODY_PROGRESS:
        on_progress(l, r, f->progress);
        return;
    case WEFT__RANK__FRAME__BODY_EXIT:
        on_exit_frame(l, r, f->exit);
        return;
    default:
        log_warn("lead", "rank %d sent a frame of kind %d, which is not for a leader", r,
                 (int)f->body_case);
        drop(l, p);
    }
}

static void on_frame(struct lead *l, struct peer *p, const Weft__Rank__Frame *f)
{
    if (p->state == PEER_MEMBER)
        on_member(l, p, f);
    else if (p->state == PEER_NEW && f->body_case == WEFT__RANK__FRAME__BODY_HELLO)
        on_hello(l, p, f->hello);
    else if (p->state == PEER_CHALLENGED && f->body_case == WEFT__RANK__FRAME__BODY_PROOF)
        on_proof(l, p, f->proof);
    else
        drop(l, p);
}

static void read_peer(struct lead *l, struct peer *p)
{
    struct err e = {0}, bad = {0};
    int end = frame_fill(&p->conn, &e);
    Weft__Rank__Frame *f;
    while (p->state != PEER_GONE && !frame_next(&p->conn, &f, &bad) && f) {
        on_frame(l, p, f);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    if (bad.code)
        log_warn("lead", "%s %d: %s", p->state == PEER_MEMBER ? "rank" : "a stranger as rank",
                 p->rank, bad.text);
    if (bad.code || end)
        drop(l, p);
}

// ---- the loop ----

static void accept_peers(struct lead *l, int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        int one = 1; // answers are small and waited for; refused by unix sockets, which need it not
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (l->strangers >= STRANGERS_MAX)
            close(fd);
        else
            add_peer(l, fd);
    }
}

static void tell_progress(struct lead *l, int64_t now)
{
    if (now - l->told_ns < TELL_MS * CLOCK_MS)
        return;
    l->told_ns = now;
    Weft__Rank__Progress body;
    rank_frame_from_view(&l->members[0].view, l->at->host, &body);
    FRAME(f, PROGRESS, progress, &body);
    send_all(l, &f);
}

static void check_joined(struct lead *l, int64_t now)
{
    if (l->joined == l->at->ranks || now - l->started_ns < l->c.join_ns)
        return;
    struct buf text = {0};
    int first = -1;
    buf_printf(&text, "only %d of %d ranks joined within %.1f s; missing:", l->joined, l->at->ranks,
               (double)l->c.join_ns / 1e9);
    for (int r = 0; r < l->at->ranks; r++) {
        if (l->members[r].joined)
            continue;
        first = first < 0 ? r : first;
        if (text.len < 300)
            buf_printf(&text, " %d", r);
    }
    fail(l, first, buf_str(&text));
    buf_clear(&text);
}

static void check_hang(struct lead *l, int64_t now)
{
    struct watch_verdict v;
    for (int r = 0; r < l->at->ranks; r++)
        if (!l->members[r].ended)
            look(l, r, now);
    if (l->failed || !watch_hung(&l->watch, now, suspect, l, &v))
        return;
    char at[300], text[500];
    where(l, v.rank, at, sizeof at);
    snprintf(text, sizeof text, "%s hangs: no progress for %.1f s", at, (double)v.still_ns / 1e9);
    fail(l, v.rank, text);
}

static void tick(struct lead *l)
{
    int64_t now = clock_mono_ns();
    if (now - l->ticked_ns < TICK_MS * CLOCK_MS)
        return;
    l->ticked_ns = now;
    board_tick(&l->board, now);
    if (!l->failed)
        check_joined(l, now);
    check_hang(l, now);
    blame_messengers(l, now);
    int64_t due = commit_deadline(&l->commit);
    if (due && now >= due) {
        struct commit_event ev = {.kind = COMMIT_EV_TICK};
        decide(l, &ev);
    }
    list_for_each (it, &l->peers) {
        struct peer *p = list_entry(it, struct peer, link);
        if (p->state < PEER_MEMBER && now - p->since_ns > PROVE_MS * CLOCK_MS)
            drop(l, p);
    }
    tell_progress(l, now);
}

// Writes what waits, then forgets the dropped.
static int sweep(struct lead *l)
{
    int n = 0;
    list_for_each (it, &l->peers) {
        struct peer *p = list_entry(it, struct peer, link);
        if (p->state != PEER_GONE && (p->choked || frame_flush(&p->conn, NULL)))
            drop(l, p);
        if (p->state == PEER_GONE) {
            list_remove(&p->link);
            frame_conn_clear(&p->conn);
            free(p);
        } else {
            n++;
        }
    }
    return n;
}

static void turn(struct lead *l, struct pollfd *p, int npeers)
{
    p[0] = (struct pollfd){.fd = l->wake, .events = POLLIN};
    p[1] = (struct pollfd){.fd = l->c.unix_fd, .events = POLLIN};
    p[2] = (struct pollfd){.fd = l->c.tcp_fd, .events = POLLIN};
    int n = 3;
    list_for_each (it, &l->peers) {
        struct peer *peer = list_entry(it, struct peer, link);
        short out = frame_conn_pending(&peer->conn) ? POLLOUT : 0;
        p[n++] = (struct pollfd){.fd = peer->conn.fd, .events = (short)(POLLIN | out)};
    }
    PRE(n == 3 + npeers);
    if (poll(p, (nfds_t)n, TICK_MS / 2) <= 0)
        return;
    n = 3;
    list_for_each (it, &l->peers) // before new ones are added
    {
        struct peer *peer = list_entry(it, struct peer, link);
        if (p[n++].revents & (POLLIN | POLLHUP | POLLERR))
            read_peer(l, peer);
    }
    for (int i = 1; i < 3; i++)
        if (p[i].revents & POLLIN)
            accept_peers(l, p[i].fd);
}

static void *run(void *arg)
{
    struct lead *l = arg;
    struct pollfd *p =
        malloc(sizeof *p * (size_t)(3 + l->at->ranks + STRANGERS_MAX + l->at->ranks));
    PRE(p != NULL);
    while (!atomic_load(&l->stop)) {
        int n = sweep(l);
        turn(l, p, n);
        tick(l);
    }
    sweep(l);
    free(p);
    return NULL;
}

// ---- life ----

static void destroy(struct lead *l)
{
    list_for_each (it, &l->peers) {
        struct peer *p = list_entry(it, struct peer, link);
        frame_conn_clear(&p->conn);
        free(p);
    }
    for (int r = 0; r < l->at->ranks; r++)
        page_close(l->members[r].page);
    free(l->members);
    board_clear(&l->board);
    watch_clear(&l->watch);
    commit_clear(&l->commit);
    if (l->wake >= 0)
        close(l->wake);
    if (l->c.unix_fd >= 0)
        close(l->c.unix_fd);
    if (l->c.tcp_fd >= 0)
        close(l->c.tcp_fd);
    free(l);
}

int lead_start(const struct lead_config *c, struct lead **out, int *link_fd, struct err *e)
{
    int sv[2] = {-1, -1}, rc = 0;
    struct lead *l = calloc(1, sizeof *l);
    PRE(l != NULL);
    l->c = *c;
    l->at = c->assignment;
    l->members = calloc((size_t)l->at->ranks, sizeof *l->members);
    PRE(l->members != NULL);
    list_init(&l->peers);
    atomic_store(&l->here, -1);
    struct board_ops ops = {l, send_rank, where};
    board_init(&l->board, l->at->ranks, &ops);
    watch_init(&l->watch, l->at->ranks, l->at->hang_after_ns);
    l->watch.limit_ns[RANK_STARTING] = c->start_ns;
    l->watch.limit_ns[RANK_READY] = c->start_ns;
    l->watch.limit_ns[RANK_SAVING] = c->save_ns;
    commit_init(&l->commit, &c->commit);
    commit_fence(&l->commit, (int64_t)l->at->epoch, c->scan, c->nscan);
    l->started_ns = clock_mono_ns();
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv)) {
        rc = err_errno(e, ERR_INTERNAL, "cannot make the leader's descriptors");
        destroy(l);
        return rc;
    }
    struct peer *own = add_peer(l, sv[0]);
    own->pid = (int)getpid();
    admit(l, own, 0, l->at->host);
    if ((errno = pthread_create(&l->thread, NULL, run, l))) {
        rc = err_errno(e, ERR_INTERNAL, "cannot start the leader's thread");
        destroy(l);
        close(sv[1]);
        return rc;
    }
    *link_fd = sv[1];
    *out = l;
    return 0;
}

void lead_stop(struct lead *l, int64_t wait_ns)
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
    destroy(l);
}
