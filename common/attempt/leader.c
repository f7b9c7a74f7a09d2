// SPDX-License-Identifier: Apache-2.0
// A leader's decisions; see leader.h.
#include "common/attempt/leader.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/attempt/board.h"
#include "common/attempt/leader_act.h"
#include "common/attempt/saves.h"
#include "common/attempt/watch.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/protocol_rule.h"

struct leader {
    struct leader_config c;
    enum leader_state state;
    struct leader_rank *ranks;
    int joined, alive;
    struct board board;
    struct watch watch;
    struct saves saves;
    bool named;         // a culprit
    int64_t now_ns;     // of the newest event
    int64_t join_ns;    // by then all have joined
    int64_t cut_off_ns; // since when some rank cannot be heard; 0: all can
    int64_t blame_ns;   // by then the cause of an exit with 69 must be known; 0: there was none
    int lost_peer;      // who ended so
};

// ---- where a rank is ----

// Returns the last collective that others saw a rank enter: those that wait for it say so. Its
// own page may be older, since it is passed on.
static uint64_t seen_by_peers(const struct leader *l, int rank)
{
    uint64_t entered = 0;
    for (int r = 0; r < l->c.ranks; r++) {
        const struct page_view *v = &l->ranks[r].view;
        if (v->awaits == rank + 1 && v->awaits_entered > entered)
            entered = v->awaits_entered;
    }
    return entered;
}

// "rank 2 on host b device 1 (running, step 12, …)".
static void say_where(const void *ctx, int rank, char *out, size_t size)
{
    const struct leader *l = ctx;
    const struct leader_rank *k = &l->ranks[rank];
    char page[200], peers[60] = "";
    if (!k->place[0]) {
        snprintf(out, size, "rank %d (not joined yet)", rank);
        return;
    }
    if (!k->seen) {
        snprintf(out, size, "rank %d on %s (not heard of yet)", rank, k->place);
        return;
    }
    uint64_t entered = seen_by_peers(l, rank);
    if (entered > k->view.collective_entered)
        snprintf(peers, sizeof peers, "; its peers saw it enter %llu last",
                 (unsigned long long)entered);
    page_view_text(&k->view, page, sizeof page);
    snprintf(out, size, "rank %d on %s (%s%s)", rank, k->place, page, peers);
}

// ---- the culprit ----

// A new culprit in `out`, or null when there is one already or nobody is looked for any more. Its
// text is still empty.
static struct culprit *name_culprit(struct leader *l, enum culprit_kind kind, int rank,
                                    struct leader_out *out)
{
    if (l->named || l->state == LEADER_OVER)
        return NULL;
    l->named = true;
    struct culprit *x = arena_new(out->arena, struct culprit);
    *x = (struct culprit){.kind = kind, .rank = rank, .unreached = -1};
    leader_act(out, LEADER_CULPRIT)->culprit = x;
    return x;
}

// Names a rank as the culprit, with the text "WHERE HOW".
static struct culprit *name_rank(struct leader *l, enum culprit_kind kind, int rank,
                                 const char *how, struct leader_out *out)
{
    struct culprit *x = name_culprit(l, kind, rank, out);
    char at[BOARD_WHERE];
    if (!x)
        return NULL;
    say_where(l, rank, at, sizeof at);
    snprintf(x->text, sizeof x->text, "%s %s", at, how);
    return x;
}

static bool is_under_way(const struct leader *l)
{
    return l->state <= LEADER_RUNNING;
}

// ---- ends of ranks ----

static void mark_ended(struct leader *l, int rank)
{
    l->ranks[rank].ended = true;
    l->alive--;
    watch_gone(&l->watch, rank);
}

static void name_ended(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    char how[1000], error[400] = "";
    const char *why = l->ranks[ev->rank].why;
    if (!*why && ev->log) { // it had no time to say so
        log_last_error(ev->log, error, sizeof error);
        why = error;
    }
    if (ev->signal)
        snprintf(how, sizeof how, "ended with signal %d, killed%s%s", ev->signal, *why ? ": " : "",
                 why);
    else
        snprintf(how, sizeof how, "ended with exit %d, %s%s%s", ev->code, rank_exit_text(ev->code),
                 *why ? ": " : "", why);
    struct culprit *x =
        name_rank(l, ev->signal ? CULPRIT_DIED : CULPRIT_EXITED, ev->rank, how, out);
    if (!x)
        return;
    x->code = ev->code;
    x->signal = ev->signal;
    x->log = ev->log;
}

// Waits a moment before this rank is blamed: its end says that another one is the cause.
static void blame_later(struct leader *l, int rank)
{
    if (l->blame_ns)
        return;
    l->blame_ns = l->now_ns + (WEFT_RULE(lost_peer_waits) ? LEADER_BLAME_MS * CLOCK_MS : 0);
    l->lost_peer = rank;
}

static void name_who_lost_a_peer(struct leader *l, struct leader_out *out)
{
    char how[500];
    snprintf(how, sizeof how, "gave up: %s", l->ranks[l->lost_peer].why);
    struct culprit *x = name_rank(l, CULPRIT_GAVE_UP, l->lost_peer, how, out);
    int one_more = l->ranks[l->lost_peer].unreached;
    if (x && one_more > 0 && one_more <= l->c.ranks && !l->ranks[one_more - 1].ended)
        x->unreached = one_more - 1;
}

static void name_nobody_left(struct leader *l, struct leader_out *out)
{
    struct culprit *x = name_culprit(l, CULPRIT_LEFT, -1, out);
    if (x)
        snprintf(x->text, sizeof x->text,
                 "all ranks have left and the last checkpoint is not acknowledged");
}

// The last step of a rank that has ended. One that failed at once may have shown only its start
// before, or nothing.
static void take_last_step(struct leader *l, struct leader_rank *k, int64_t step)
{
    struct page_view *v = &k->view;
    k->seen = k->seen || step > 0;
    if (l->c.steps && step > l->c.steps)
        step = l->c.steps;
    if (step <= v->step)
        return;
    v->step = step;
    if (step > 0 && v->state < RANK_RUNNING) {
        v->state = RANK_RUNNING;
        v->phase = -1; // where in the step is not known
    }
}

static void on_ended(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    struct leader_rank *k = &l->ranks[ev->rank];
    if (k->ended)
        return;
    mark_ended(l, ev->rank);
    snprintf(k->why, sizeof k->why, "%s", ev->text ? ev->text : "");
    k->unreached = ev->unreached;
    take_last_step(l, k, ev->step);
    if (ev->signal || rank_exit_is_cause(ev->code))
        name_ended(l, ev, out);
    else if (is_under_way(l) && ev->code != RANK_EXIT_DONE)
        blame_later(l, ev->rank);
    else if (is_under_way(l) && l->alive == 0 && !l->blame_ns)
        name_nobody_left(l, out);
}

static void on_gone(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    (void)out;
    if (!l->ranks[ev->rank].ended)
        mark_ended(l, ev->rank);
}

// ---- pages ----

// A rank's page is the rank's to write: no step of its is beyond the job.
static void take_view(struct leader *l, int rank, const struct page_view *v)
{
    struct leader_rank *k = &l->ranks[rank];
    k->view = *v;
    k->view.rank = rank;
    if (k->view.step < -1)
        k->view.step = -1;
    if (l->c.steps && k->view.step > l->c.steps)
        k->view.step = l->c.steps;
    if (!k->ended)
        watch_see(&l->watch, rank, &k->view, l->now_ns);
}

static void join_rank(struct leader *l, int rank)
{
    struct leader_rank *k = &l->ranks[rank];
    if (k->joined)
        return;
    k->joined = true;
    l->joined++;
    k->view.rank = rank;
    if (!k->ended)
        watch_see(&l->watch, rank, &k->view, l->now_ns);
}

static void on_page(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    (void)out;
    join_rank(l, ev->rank);
    l->ranks[ev->rank].seen = true;
    take_view(l, ev->rank, ev->page);
}

// ---- frames ----

// The directory decides: where a greater attempt has begun no save of this attempt can ever commit.
static void on_commit_done(struct leader *l, const Weft__Rank__CommitDone *f,
                           struct leader_out *out)
{
    saves_commit_done(&l->saves, f, l->now_ns, out);
    if (f->code != ERR_FENCED)
        return;
    struct culprit *x = name_culprit(l, CULPRIT_FENCED, -1, out);
    if (x)
        snprintf(x->text, sizeof x->text, "a newer attempt has the checkpoint folder: %.400s",
                 f->text);
}

static void check_plans(struct leader *l, struct leader_out *out)
{
    if (!l->board.agreed || l->state != LEADER_JOINING)
        return;
    if (!l->board.agreed[0]) {
        l->state = LEADER_RUNNING;
        leader_act(out, LEADER_READY);
        return;
    }
    struct culprit *x = name_culprit(l, CULPRIT_PLANS, -1, out);
    if (x)
        snprintf(x->text, sizeof x->text, "the ranks do not run the same plan: %.400s",
                 l->board.agreed);
}

static void on_frame(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    const Weft__Rank__Frame *f = ev->frame;
    int r = ev->rank;
    join_rank(l, r);
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_PUT:
        board_put(&l->board, r, f->kv_put, out);
        return;
    case WEFT__RANK__FRAME__BODY_KV_GET:
        board_get(&l->board, r, f->kv_get->key, out);
        return;
    case WEFT__RANK__FRAME__BODY_BARRIER:
        board_barrier(&l->board, r, f->barrier, l->now_ns, out);
        return;
    case WEFT__RANK__FRAME__BODY_READY:
        if (r == 0 && *f->ready->note && !l->board.plans[0])
            leader_act(out, LEADER_NOTE)->text = arena_strdup(out->arena, f->ready->note);
        board_ready(&l->board, r, f->ready->plan_hash, out);
        check_plans(l, out);
        return;
    case WEFT__RANK__FRAME__BODY_STEP_REPORT:
        if (r == 0)
            leader_act(out, LEADER_REPORT)->report = f->step_report;
        return;
    case WEFT__RANK__FRAME__BODY_SHARD_DONE:
        if (l->state != LEADER_OVER)
            saves_shard(&l->saves, r, f->shard_done, l->now_ns, out);
        return;
    case WEFT__RANK__FRAME__BODY_COMMIT_DONE:
        if (r == 0)
            on_commit_done(l, f->commit_done, out);
        return;
    case WEFT__RANK__FRAME__BODY_DELETED:
        if (r == 0)
            saves_deleted(&l->saves, f->deleted, out);
        return;
    default:
        return;
    }
}

bool leader_hears(const Weft__Rank__Frame *f)
{
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_PUT:
    case WEFT__RANK__FRAME__BODY_KV_GET:
    case WEFT__RANK__FRAME__BODY_BARRIER:
    case WEFT__RANK__FRAME__BODY_READY:
    case WEFT__RANK__FRAME__BODY_STEP_REPORT:
    case WEFT__RANK__FRAME__BODY_SHARD_DONE:
    case WEFT__RANK__FRAME__BODY_COMMIT_DONE:
    case WEFT__RANK__FRAME__BODY_DELETED:
        return true;
    default:
        return false;
    }
}

static void on_recall(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    board_recall(&l->board, ev->frame, out);
    check_plans(l, out);
}

// ---- the owner's will ----

static void on_fenced(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    commit_fence(&l->saves.commit, ev->attempt, ev->scan, ev->nscan);
    leader_act(out, LEADER_RECORDS);
    l->join_ns = l->now_ns + l->c.join_ns;
}

static void on_bad(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    struct commit_event bad = {.kind = COMMIT_EV_BAD, .id = ev->id};
    saves_decide(&l->saves, &bad, out);
}

static void on_score(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    struct commit_event score = {.kind = COMMIT_EV_SCORE, .id = ev->id, .loss = ev->loss};
    saves_decide(&l->saves, &score, out);
}

static void on_stopping(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    (void)ev;
    if (l->state == LEADER_JOINING)
        board_call_off(&l->board, out);
    if (is_under_way(l))
        l->state = LEADER_STOPPING;
}

static void on_over(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    struct commit_event end = {.kind = COMMIT_EV_ATTEMPT_END};
    (void)ev;
    if (l->state == LEADER_OVER)
        return;
    l->state = LEADER_OVER;
    saves_decide(&l->saves, &end, out);
}

// ---- time ----

static void check_joined(struct leader *l, struct leader_out *out)
{
    if (l->state != LEADER_JOINING || l->joined == l->c.ranks || l->now_ns < l->join_ns)
        return;
    struct culprit *x = name_culprit(l, CULPRIT_ABSENT, -1, out);
    if (!x)
        return;
    int n = snprintf(x->text, sizeof x->text,
                     "only %d of %d ranks joined within %.1f s; missing:", l->joined, l->c.ranks,
                     (double)l->c.join_ns / 1e9);
    for (int r = 0; r < l->c.ranks; r++) {
        if (l->ranks[r].joined)
            continue;
        x->rank = x->rank < 0 ? r : x->rank;
        if (n < 300)
            n += snprintf(x->text + n, sizeof x->text - (size_t)n, " %d", r);
    }
}

static void check_hang(struct leader *l, struct leader_out *out)
{
    struct watch_verdict v;
    char how[80];
    if (!is_under_way(l) || !watch_hung(&l->watch, l->now_ns, &v))
        return;
    snprintf(how, sizeof how, "hangs: no progress for %.1f s", (double)v.still_ns / 1e9);
    (void)name_rank(l, CULPRIT_HUNG, v.rank, how, out);
}

// So much time counts for no wait.
static void extend_waits(struct leader *l, int64_t ns)
{
    board_extend(&l->board, ns);
    saves_extend(&l->saves, ns);
    watch_postpone(&l->watch, ns, l->now_ns);
    l->join_ns += ns;
}

static void on_tick(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    if (ev->cut_off && !l->cut_off_ns)
        l->cut_off_ns = l->now_ns;
    if (!ev->cut_off && l->cut_off_ns) {
        extend_waits(l, l->now_ns - l->cut_off_ns);
        l->cut_off_ns = 0;
    }
    if (!ev->cut_off) {
        board_tick(&l->board, l->now_ns, out);
        saves_tick(&l->saves, l->now_ns, out);
        check_joined(l, out);
    }
    if (is_under_way(l) && l->blame_ns && (l->now_ns >= l->blame_ns || l->alive == 0))
        name_who_lost_a_peer(l, out);
    if (!ev->cut_off)
        check_hang(l, out);
}

// Time in which this process stood still counts for no wait: what others did meanwhile, however short
// it was, may not be read yet.
static void leave_out_pause(struct leader *l, int64_t pause_ns)
{
    extend_waits(l, pause_ns);
    if (l->blame_ns)
        l->blame_ns += pause_ns;
    if (l->cut_off_ns)
        l->cut_off_ns += pause_ns;
}

// ---- the door ----

void leader_step(struct leader *l, const struct leader_event *ev, struct leader_out *out)
{
    static void (*const on[LEADER_EVENTS])(struct leader *, const struct leader_event *,
                                           struct leader_out *) = {
        [LEADER_EV_FENCED] = on_fenced,     [LEADER_EV_BAD] = on_bad,
        [LEADER_EV_SCORE] = on_score,       [LEADER_EV_FRAME] = on_frame,
        [LEADER_EV_PAGE] = on_page,         [LEADER_EV_ENDED] = on_ended,
        [LEADER_EV_GONE] = on_gone,         [LEADER_EV_RECALL] = on_recall,
        [LEADER_EV_STOPPING] = on_stopping, [LEADER_EV_OVER] = on_over,
        [LEADER_EV_TICK] = on_tick,
    };
    PRE(ev->kind < LEADER_EVENTS && ev->rank >= 0 && ev->rank < l->c.ranks);
    int64_t gap_ns = ev->now_ns - l->now_ns;
    l->now_ns = ev->now_ns;
    if (WEFT_RULE(leader_gap) && gap_ns > LEADER_TICK_MS * CLOCK_MS)
        leave_out_pause(l, gap_ns - LEADER_TICK_MS * CLOCK_MS);
    on[ev->kind](l, ev, out);
}

struct leader *leader_new(const struct leader_config *c, int64_t now_ns)
{
    PRE(c->ranks > 0);
    struct leader *l = heap_alloc(sizeof *l);
    struct commit_config saving = {.nranks = c->ranks,
                                   .deadline_ns = LEADER_STILL_S * CLOCK_S,
                                   .keep = c->keep,
                                   .keep_every = c->keep_every,
                                   .keep_best = c->keep_best,
                                   .steps = c->steps,
                                   .patience_ns = c->patience_ns};
    l->c = *c;
    l->now_ns = now_ns;
    l->join_ns = now_ns + c->join_ns;
    l->alive = c->ranks;
    l->ranks = heap_alloc(sizeof *l->ranks * (size_t)c->ranks);
    board_init(&l->board, c->ranks, say_where, l);
    saves_init(&l->saves, &saving);
    watch_init(&l->watch, c->ranks, c->hang_after_ns);
    l->watch.limit_ns[RANK_STARTING] = LEADER_STILL_S * CLOCK_S;
    l->watch.limit_ns[RANK_READY] = LEADER_STILL_S * CLOCK_S;
    l->watch.limit_ns[RANK_SAVING] = LEADER_STILL_S * CLOCK_S;
    return l;
}

void leader_free(struct leader *l)
{
    if (!l)
        return;
    board_clear(&l->board);
    saves_clear(&l->saves);
    watch_clear(&l->watch);
    free(l->ranks);
    free(l);
}

void leader_restore(struct leader *l, const struct leader_memory *m, int64_t now_ns)
{
    l->state = m->state;
    commit_restore(&l->saves.commit, m->attempt, m->records, m->nrecords, now_ns);
}

void leader_place(struct leader *l, int rank, const char *place)
{
    snprintf(l->ranks[rank].place, sizeof l->ranks[rank].place, "%s", place);
}

// ---- views ----

const struct leader_rank *leader_rank(const struct leader *l, int rank)
{
    return &l->ranks[rank];
}

int leader_joined(const struct leader *l)
{
    return l->joined;
}

int leader_ready(const struct leader *l)
{
    return l->board.ready;
}

int leader_alive(const struct leader *l)
{
    return l->alive;
}

// A page begins with step 0: of a rank that has ended, only a later one shows that it had trained.
static bool shows_training(const struct leader_rank *k)
{
    bool trains = k->view.state == RANK_RUNNING || k->view.state == RANK_SAVING;
    return k->seen && (trains || k->view.step > 0);
}

int64_t leader_shown_step(const struct leader *l)
{
    int64_t step = -1;
    for (int r = 0; r < l->c.ranks; r++)
        if (shows_training(&l->ranks[r]) && l->ranks[r].view.step > step)
            step = l->ranks[r].view.step;
    return step;
}

const struct commit *leader_commit(const struct leader *l)
{
    return &l->saves.commit;
}
