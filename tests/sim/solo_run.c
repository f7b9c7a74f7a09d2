// SPDX-License-Identifier: Apache-2.0
// One schedule of solo attempts: a user who starts a run of some ranks again and again until its
// last step is saved, the real leader in rank 0's process, and the same ranks, saves and disk as in
// a cluster's schedules (sim_world.c). There is no coordinator and no agent.
//
//   user ─► fence, choose a checkpoint ─► leader (the real leader_step) ◄─► ranks ─► disk
//
// The leader lives as long as rank 0's process: it dies with it by a signal, stands still with it,
// and stays a while after rank 0's own end. Beside the invariants of sim_check.h:
//   the culprit   who fails an attempt is named, once, and it was that one; nobody who only gives
//                 up is named when somebody else had failed before
//   no waiting    who stands still for good is named and its attempt ends
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader.h"
#include "tests/sim/sim_check.h"

enum {
    POLL_MS = 150,
    HANG_S = 5,
    JOIN_S = 60,
    SILENT_S = 15,    // of a leader: its ranks give up
    KILL_S = 8,       // after the first bad end the rest are killed
    PATIENCE_S = 60,  // a rank that stands still for good has been named by then
    USER_S = 150,     // a user who sees a process that stands still kills the run by then
    END_S = 2000,     // a run ends within so long after the last fault
    CORE_MS = 1200,   // a crashing process may write a core: its connections end later
    STAY_BAD_S = 6,   // the leader stays so long after rank 0's bad end
    STAY_GOOD_S = 60, // and after a good one
    FAULTS_MOST = 8,
};

struct solo_rank { // what befell a rank of the attempt at hand
    struct rank *rank;
    bool struck;
    int64_t heard_ns;  // the leader was
    int64_t failed_ns; // it ended because of itself; 0: it did not
    int64_t ended_ns;  // its process
    bool suspect;      // as the leader was told
    int64_t latest_up;
};
struct solo_run {
    struct world *w;
    struct host *host;
    const struct variant *kind;
    char job[33], attempt[40], store[300];
    uint64_t epoch;
    uint64_t life;     // of the attempt: what is of an older one is void
    struct proc *proc; // the leader's
    struct leader *leader;
    bool leader_struck, bad, finished, killing;
    int culprits;
    struct solo_rank ranks[MAX_RANKS];
    // the fence
    struct store_entry *scan, chosen;
    int nscan;
    int64_t greatest;
    int code;
};

static void begin_attempt(void *arg, uint64_t tag);
static void tell_leader(struct solo_run *s, struct leader_event ev);

static bool leads(const struct solo_run *s)
{
    return s->leader && s->proc && !s->proc->dead;
}

// ---- the leader's thread ----
static void kill_rest(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    if (s->life != life)
        return;
    for (struct rank *r = s->host->living, *next; r; r = next) {
        next = r->next;
        rank_kill(r, sim_between(&s->w->sim, 100000, 20 * MS));
    }
}

static void end_leader(struct solo_run *s)
{
    if (s->proc)
        proc_die(s->proc);
    leader_free(s->leader);
    s->leader = NULL;
}

struct solo_note { // a frame, or an end, on its way
    struct solo_run *run;
    uint64_t life;
    int rank, code, signal;
    size_t len;
    uint8_t *data;
};

static struct solo_note *make_note(struct solo_run *s, int rank, const Weft__Rank__Frame *f)
{
    struct arena *a = &s->w->sim.arena;
    struct solo_note *n = arena_new(a, struct solo_note);
    n->run = s;
    n->life = s->life;
    n->rank = rank;
    if (f) {
        n->len = weft__rank__frame__get_packed_size(f);
        n->data = arena_alloc(a, n->len + 1);
        weft__rank__frame__pack(f, n->data);
    }
    return n;
}

static int64_t next_arrival(struct sim *s, int64_t *latest)
{
    int64_t at = s->now + sim_between(s, 10000, 200000);
    *latest = at > *latest ? at : *latest;
    return *latest - s->now;
}

static void rank_reads(void *arg, uint64_t tag)
{
    struct solo_note *n = arg;
    struct solo_run *s = n->run;
    (void)tag;
    if (n->life != s->life)
        return;
    Weft__Rank__Frame *f = weft__rank__frame__unpack(NULL, n->len, n->data);
    s->ranks[n->rank].heard_ns = s->w->sim.now;
    if (f->body_case != WEFT__RANK__FRAME__BODY_PROGRESS)
        rank_hear(s->ranks[n->rank].rank, f);
    weft__rank__frame__free_unpacked(f, NULL);
}

static void send_to_rank(struct solo_run *s, int rank, const Weft__Rank__Frame *f)
{
    struct rank *r = s->ranks[rank].rank;
    if (r && !r->proc.dead)
        proc_after(&r->proc, next_arrival(&s->w->sim, &r->latest_down), rank_reads,
                   make_note(s, rank, f), 0);
}

static void send_frame(struct solo_run *s, int rank, const Weft__Rank__Frame *f)
{
    if (f->body_case == WEFT__RANK__FRAME__BODY_COMMIT)
        check_decided(s->w, s->job, (struct store_entry){(int64_t)s->epoch, f->commit->step},
                      COMMIT_ORDERED);
    if (f->body_case == WEFT__RANK__FRAME__BODY_DELETE)
        check_decided(s->w, s->job, (struct store_entry){f->delete_->epoch, f->delete_->step},
                      COMMIT_DELETING);
    if (f->body_case == WEFT__RANK__FRAME__BODY_COMMITTED && rank < 0)
        check_decided(s->w, s->job, (struct store_entry){(int64_t)s->epoch, f->committed->step},
                      COMMIT_COMMITTED);
    for (int r = 0; r < s->kind->ranks; r++)
        if (rank < 0 || rank == r)
            send_to_rank(s, r, f);
}

// ---- the culprit ----
static void check_culprit(struct solo_run *s, const struct culprit *x)
{
    struct sim *sim = &s->w->sim;
    const struct solo_rank *k = x->rank >= 0 ? &s->ranks[x->rank] : NULL;
    if (++s->culprits > 1)
        sim_fail(sim, "a second culprit is named: %s", x->text);
    if (x->kind == CULPRIT_HUNG && x->rank == 0) // the leader's own process, which runs
        sim_fail(sim, "the leader blames its own pause on a rank: %s", x->text);
    if (x->kind == CULPRIT_HUNG && !k->struck)
        sim_fail(sim, "nothing had happened to whom the leader names: %s", x->text);
    if ((x->kind == CULPRIT_EXITED || x->kind == CULPRIT_DIED) && !k->failed_ns)
        sim_fail(sim, "it did not fail of its own: %s", x->text);
    for (int r = 0; r < s->kind->ranks && x->kind == CULPRIT_GAVE_UP; r++)
        if (s->ranks[r].failed_ns && s->ranks[r].failed_ns < k->ended_ns)
            sim_fail(sim, "a messenger is named, and rank %d had failed before it: %s", r, x->text);
}

static void on_culprit(struct solo_run *s, const struct culprit *x)
{
    TRACE(&s->w->sim, "leader", "names: %s", x->text);
    check_culprit(s, x);
    if (x->kind == CULPRIT_STOPPED) {
        FRAME_BODY(stop, Stop, stop);
        FRAME(asked, STOP, stop, &stop);
        send_frame(s, -1, &asked);
    }
    FRAME_BODY(body, Lost, lost);
    body.rank = x->rank;
    body.why = frame_text(x->text);
    FRAME(f, LOST, lost, &body);
    send_frame(s, -1, &f);
    tell_leader(s, (struct leader_event){.kind = LEADER_EV_OVER});
}

static void carry_out(struct solo_run *s, const struct leader_action *a)
{
    if (a->kind == LEADER_SEND) {
        if (s->w->sim.tracing)
            trace_leader(s->w, a->rank, a->frame);
        send_frame(s, a->rank, a->frame);
    } else if (a->kind == LEADER_CULPRIT) {
        on_culprit(s, a->culprit);
    } else if (a->kind == LEADER_COMMITTED && a->id.step >= s->kind->steps) {
        s->finished = true;
    }
}

static void tell_leader(struct solo_run *s, struct leader_event ev)
{
    struct arena a;
    struct leader_out out = {.arena = &a};
    if (!leads(s))
        return;
    arena_init(&a);
    ev.now_ns = s->w->sim.now;
    leader_step(s->leader, &ev, &out);
    for (int i = 0; i < out.n && leads(s); i++)
        carry_out(s, &out.v[i]);
    arena_clear(&a);
}

// ---- what it sees ----
static int whom_it_awaits(const struct rank *r)
{
    for (int i = 0; i < r->n && r->entered > r->left; i++)
        if (r->attempt->rank[i] && r->attempt->rank[i]->entered < r->entered)
            return i;
    return -1;
}

static void look_at_rank(struct solo_run *s, int rank)
{
    struct solo_rank *k = &s->ranks[rank];
    const struct rank *r = k->rank;
    if (!r || leader_rank(s->leader, rank)->ended)
        return;
    int awaits = whom_it_awaits(r);
    struct page_view v = {.rank = rank,
                          .step = r->step,
                          .state = r->state,
                          .collective_entered = r->entered,
                          .collective_left = r->left,
                          .collective_text = SIM_COLLECTIVE,
                          .awaits = awaits + 1,
                          .awaits_entered = awaits < 0 ? 0 : r->attempt->rank[awaits]->entered};
    tell_leader(s, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = rank, .page = &v});
    if (k->suspect != r->proc.stopped && leads(s)) {
        k->suspect = r->proc.stopped;
        tell_leader(s, (struct leader_event){
                           .kind = LEADER_EV_SUSPECT, .rank = rank, .suspect = k->suspect});
    }
}

static void polls(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    if (s->life != life || !leads(s))
        return;
    FRAME_BODY(p, Progress, progress);
    FRAME(f, PROGRESS, progress, &p);
    for (int r = 0; r < s->kind->ranks && leads(s); r++) {
        look_at_rank(s, r);
        send_to_rank(s, r, &f); // a sign of life
    }
    tell_leader(s, (struct leader_event){.kind = LEADER_EV_TICK});
    if (leads(s))
        proc_after(s->proc, POLL_MS * MS, polls, s, life);
}

// ---- what ranks say ----
static void leader_reads(void *arg, uint64_t tag)
{
    struct solo_note *n = arg;
    struct solo_run *s = n->run;
    (void)tag;
    if (n->life != s->life || !leads(s))
        return;
    if (!n->data) { // the end of its connection
        look_at_rank(s, n->rank);
        tell_leader(s,
                    (struct leader_event){.kind = LEADER_EV_DIED, .rank = n->rank, .text = "died"});
        return;
    }
    Weft__Rank__Frame *f = weft__rank__frame__unpack(NULL, n->len, n->data);
    if (f->body_case == WEFT__RANK__FRAME__BODY_EXIT)
        tell_leader(s, (struct leader_event){.kind = LEADER_EV_ENDED,
                                             .rank = n->rank,
                                             .code = f->exit->code,
                                             .text = f->exit->why});
    else
        tell_leader(s, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = n->rank, .frame = f});
    weft__rank__frame__free_unpacked(f, NULL);
}

void solo_rank_says(struct rank *r, const Weft__Rank__Frame *f)
{
    struct solo_run *s = r->w->solo;
    struct solo_rank *k = &s->ranks[r->rank];
    if (f->body_case == WEFT__RANK__FRAME__BODY_EXIT) {
        int code = f->exit->code;
        k->ended_ns = s->w->sim.now;
        k->failed_ns = rank_exit_is_cause(code) ? s->w->sim.now : k->failed_ns;
    }
    if (s->w->sim.tracing)
        trace_rank(r, f);
    if (leads(s))
        proc_after(s->proc, next_arrival(&s->w->sim, &k->latest_up), leader_reads,
                   make_note(s, r->rank, f), 0);
}

// ---- ends ----
static void leader_is_gone(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    if (s->life != life || !leads(s))
        return;
    TRACE(&s->w->sim, "leader", "is gone");
    end_leader(s);
    for (int r = 1; r < s->kind->ranks; r++)
        if (s->ranks[r].rank && !s->ranks[r].rank->proc.dead)
            rank_lost_peer(s->ranks[r].rank);
}

static void check_named(struct solo_run *s)
{
    if (s->bad && !s->culprits && !s->leader_struck)
        sim_fail(&s->w->sim, "epoch %d has failed and nobody is named", (int)s->epoch);
}

static void attempt_is_over(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    struct sim *sim = &s->w->sim;
    if (s->life != life)
        return;
    check_named(s);
    end_leader(s);
    s->life++;
    if (s->finished && !s->bad)
        s->w->done = true;
    else
        sim_after(sim, sim_between(sim, 50 * MS, 2 * S), begin_attempt, s, s->life);
}

void solo_rank_ended(struct rank *r, int code, int signal)
{
    struct solo_run *s = r->w->solo;
    struct sim *sim = &s->w->sim;
    struct solo_rank *k = &s->ranks[r->rank];
    bool bad = signal || (code != RANK_EXIT_DONE && code != RANK_EXIT_DRAINED);
    k->ended_ns = k->ended_ns ? k->ended_ns : sim->now;
    if (signal && !k->failed_ns)
        k->failed_ns = sim->now;
    s->bad = s->bad || bad;
    if (bad && !s->killing) {
        s->killing = true;
        sim_after(sim, KILL_S * S, kill_rest, s, s->life);
    }
    int64_t until_closed = signal ? sim_between(sim, 1000, CORE_MS * MS) : 0;
    if (leads(s) && r->rank > 0)
        proc_after(s->proc, until_closed + next_arrival(sim, &k->latest_up), leader_reads,
                   make_note(s, r->rank, NULL), 0);
    if (r->rank == 0) {
        s->leader_struck = s->leader_struck || signal;
        sim_after(sim, signal ? 100000 : (bad ? STAY_BAD_S : STAY_GOOD_S) * S, leader_is_gone, s,
                  s->life);
    }
    if (!s->host->living)
        sim_after(sim, 3 * S, attempt_is_over, s, s->life); // the leader has seen the last of them
}

// Where no leader is left to name a process that stands still, or no parent kills it, the user does.
static void user_looks(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    bool still = false;
    if (s->life != life)
        return;
    for (const struct rank *r = s->host->living; r; r = r->next)
        still = still || r->proc.stopped;
    if (still) {
        TRACE(&s->w->sim, "user", "kills what stands still");
        s->leader_struck = true;
        kill_rest(s, life);
    }
    sim_after(&s->w->sim, USER_S * S, user_looks, s, life);
}

static void check_silence(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    struct sim *sim = &s->w->sim;
    if (s->life != life)
        return;
    for (int r = 1; r < s->kind->ranks; r++) {
        struct solo_rank *k = &s->ranks[r];
        if (k->rank && !k->rank->proc.dead && !k->rank->proc.stopped &&
            sim->now - k->heard_ns > SILENT_S * S)
            rank_lost_peer(k->rank);
    }
    sim_after(sim, S, check_silence, s, life);
}

// ---- an attempt begins ----
static void spawn_rank(struct solo_run *s, int rank)
{
    char name[64] = "";
    FRAME_BODY(a, Assign, assign);
    if (s->chosen.epoch >= 0)
        store_entry_name(s->chosen.epoch, s->chosen.step, name);
    a.ranks = s->kind->ranks;
    a.job_text = s->kind->resolved;
    a.store = s->store;
    a.restore = name;
    a.restore_step = s->chosen.epoch >= 0 ? s->chosen.step : 0;
    struct agent_spawn sp = {
        .job = s->job, .epoch = s->epoch, .rank = rank, .device = rank, .assign = &a};
    s->ranks[rank].heard_ns = s->w->sim.now;
    s->ranks[rank].rank = rank_spawn(s->host, rank, &sp);
    leader_place(s->leader, rank, "host h0");
}

static void make_leader(struct solo_run *s)
{
    struct leader_config c = {.ranks = s->kind->ranks,
                              .steps = s->kind->steps,
                              .hang_after_ns = HANG_S * S,
                              .join_ns = JOIN_S * S,
                              .stops_by_signal = true,
                              .keep = 2};
    s->leader = leader_new(&c, s->w->sim.now);
    tell_leader(s, (struct leader_event){.kind = LEADER_EV_FENCED,
                                         .epoch = (int64_t)s->epoch,
                                         .scan = s->scan,
                                         .nscan = s->nscan});
}

static void fence(void *arg)
{
    struct solo_run *s = arg;
    struct store st = {.fd = -1};
    struct err e = {0};
    struct store_owner owner = {"solo", s->job, s->kind->name, s->kind->resolved};
    struct store_entry *all = NULL;
    int n = 0;
    int rc = store_make(&st, "/ckpt", &owner, &e);
    snprintf(s->store, sizeof s->store, "%s", st.path);
    rc = rc ? rc : store_fence(&st, (int64_t)s->epoch, s->attempt, &s->greatest, &e);
    rc = rc ? rc : store_scan(&st, &s->w->sim.arena, &all, &n, &e);
    s->scan = arena_array(&s->w->sim.arena, struct store_entry, n + 1);
    s->nscan = 0;
    s->chosen = (struct store_entry){-1, -1};
    for (int i = 0; i < n && !rc; i++) { // the newest first
        if (!check_whole(s->store, s->job, all[i]))
            continue;
        s->chosen = s->nscan ? s->chosen : all[i];
        s->scan[s->nscan++] = all[i];
    }
    store_close(&st);
    s->code = rc;
}

static void fenced(void *arg)
{
    struct solo_run *s = arg;
    struct sim *sim = &s->w->sim;
    if (s->code) { // the user tries again
        TRACE(sim, "user", "cannot begin epoch %d: code %d", (int)s->epoch, s->code);
        s->epoch = s->code == ERR_FENCED ? (uint64_t)s->greatest : s->epoch;
        proc_die(s->proc);
        s->life++;
        sim_after(sim, sim_between(sim, 50 * MS, S), begin_attempt, s, s->life);
        return;
    }
    check_fenced(s->w, s->job, s->epoch, s->attempt, s->store);
    if (s->chosen.step >= s->kind->steps) {
        s->w->done = true;
        return;
    }
    TRACE(sim, "user", "begins epoch %d after step %d", (int)s->epoch,
          s->chosen.epoch < 0 ? 0 : (int)s->chosen.step);
    make_leader(s);
    for (int r = 0; r < s->kind->ranks; r++)
        spawn_rank(s, r); // each joins with its first frame
    proc_after(s->proc, POLL_MS * MS, polls, s, s->life);
    sim_after(sim, S, check_silence, s, s->life);
    sim_after(sim, USER_S * S, user_looks, s, s->life);
}

static void begin_attempt(void *arg, uint64_t life)
{
    struct solo_run *s = arg;
    struct sim *sim = &s->w->sim;
    if (s->life != life || s->w->done)
        return;
    s->epoch++;
    s->bad = s->killing = s->leader_struck = false;
    s->culprits = 0;
    memset(s->ranks, 0, sizeof s->ranks);
    sim_hex(sim, s->attempt);
    s->proc = arena_new(&sim->arena, struct proc);
    proc_init(s->proc, sim, "leader.e%d", (int)s->epoch);
    s->host->proc = s->proc; // whose children the ranks are
    fiber_start(s->proc, ACT_FENCE, fence, fenced, s);
}

// ---- faults ----
static struct rank *any_rank(struct solo_run *s)
{
    struct rank *pick = NULL;
    int n = 0;
    for (struct rank *r = s->host->living; r; r = r->next)
        if (!r->dying && !r->exiting && sim_below(&s->w->sim, ++n) == 0)
            pick = r;
    return pick;
}

struct stillness {
    struct solo_run *run;
    int rank;
};

static void still_there(void *arg, uint64_t life)
{
    const struct stillness *x = arg;
    const struct solo_run *s = x->run;
    if (s->life == life && leads(s) && !s->leader_struck && !s->culprits &&
        !s->ranks[x->rank].rank->proc.dead)
        sim_fail(&s->w->sim, "rank %d has stood still for %d s and nobody is named", x->rank,
                 PATIENCE_S);
}

static void stop_rank(struct solo_run *s, struct rank *r)
{
    struct sim *sim = &s->w->sim;
    bool for_good = s->kind->ranks > 1 && sim_chance(sim, 500); // else somebody sees to it
    rank_hangs(r, for_good ? 0 : sim_between(sim, S, 40 * S));
    s->leader_struck = s->leader_struck || r->rank == 0;
    if (r->rank == 0 && leads(s)) { // its leader's thread stands still as well
        proc_stop(s->proc);
        r->shares = s->proc;
    }
    if (for_good && r->rank > 0 && r->state >= RANK_RUNNING) {
        struct stillness *x = arena_new(&sim->arena, struct stillness);
        *x = (struct stillness){s, r->rank};
        sim_after(sim, PATIENCE_S * S, still_there, x, s->life);
    }
}

static void lose_power(struct solo_run *s)
{
    struct sim *sim = &s->w->sim;
    TRACE(sim, "world", "power loss");
    s->life++; // whatever was going on is void
    end_leader(s);
    while (s->host->living)
        rank_fails(s->host->living, -9);
    s->life++;
    disk_power_loss(&s->w->disk);
    check_after_power_loss(s->w);
    sim_after(sim, sim_between(sim, 500 * MS, 3 * S), begin_attempt, s, s->life);
}

static void ask_all_to_stop(struct solo_run *s)
{
    FRAME_BODY(b, Stop, stop);
    b.reason = frame_text("SIGINT");
    FRAME(f, STOP, stop, &b);
    TRACE(&s->w->sim, "user", "interrupts the run");
    for (struct rank *r = s->host->living, *next; r; r = next) {
        next = r->next;
        if (!r->proc.stopped)
            rank_hear(r, &f);
    }
}

static void strikes(void *arg, uint64_t kind)
{
    static const int codes[] = {RANK_EXIT_LOST, RANK_EXIT_INTERNAL, RANK_EXIT_DEVICE};
    struct solo_run *s = arg;
    struct sim *sim = &s->w->sim;
    struct rank *r = any_rank(s);
    if (s->w->done)
        return;
    if (kind >= 9)
        lose_power(s);
    else if (kind == 8)
        ask_all_to_stop(s);
    if (kind >= 8 || !r)
        return;
    if (r->proc.stopped && kind >= 3)
        return;
    s->ranks[r->rank].struck = true;
    if (kind < 3)
        rank_fails(r, -11);
    else if (kind < 6)
        stop_rank(s, r);
    else
        rank_fails(r, codes[sim_below(sim, 3)]);
}

static void does_not_end(void *arg, uint64_t tag)
{
    struct solo_run *s = arg;
    (void)tag;
    if (!s->w->done)
        sim_fail(&s->w->sim, "the run does not end though all faults have: epoch %d",
                 (int)s->epoch);
}

static void quiet(void *arg, uint64_t tag)
{
    struct solo_run *s = arg;
    (void)tag;
    TRACE(&s->w->sim, "world", "no more faults");
    s->w->quiet = true;
    s->w->disk.eio_per_mille = 0;
    sim_after(&s->w->sim, END_S * S, does_not_end, s, 0);
}

void solo_begin(struct world *w)
{
    static const struct fault_mix mix = {.name = "solo"};
    struct sim *sim = &w->sim;
    struct solo_run *s = arena_new(&sim->arena, struct solo_run);
    w->mix = &mix;
    w->solo = s;
    w->disk.eio_per_mille = sim->seed % 3 == 0 ? 30 : 0;
    w->nhosts = 1;
    s->w = w;
    s->host = &w->hosts[0];
    s->host->w = w;
    snprintf(s->host->name, sizeof s->host->name, "h0");
    s->kind = variant_at(sim_below(sim, variant_count()));
    sim_hex(sim, s->job);
    int64_t end = sim_between(sim, 6 * S, 30 * S);
    for (int n = 1 + sim_below(sim, FAULTS_MOST); n > 0; n--)
        sim_after(sim, sim_between(sim, 200 * MS, end), strikes, s, (uint64_t)sim_below(sim, 10));
    sim_after(sim, end, quiet, s, 0);
    begin_attempt(s, s->life);
}

void solo_end(struct world *w)
{
    struct solo_run *s = w->solo;
    s->life++;
    end_leader(s);
    while (s->host->living)
        rank_fails(s->host->living, -9);
}
