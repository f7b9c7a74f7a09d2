// SPDX-License-Identifier: Apache-2.0
// The decisions of a checkpoint's life. See commit.h.
#include "common/ckpt/commit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/protocol_rule.h"

enum {
    DEAD_MAX = 1000
}; // records of what was aborted or deleted, the newest steps; who lies makes many

const char *commit_state_name(enum commit_state s)
{
    static const char *const names[COMMIT_STATES] = {"PREPARING", "ORDERED", "COMMITTED", "ABORTED",
                                                     "DELETING",  "GONE",    "LOST"};
    return s < COMMIT_STATES ? names[s] : "?";
}

// ---- records ----
static int find_index(const struct commit *c, struct store_entry id, bool *there)
{
    int lo = 0, hi = c->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (store_entry_compare(c->records[mid].id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *there = lo < c->n && store_entry_compare(c->records[lo].id, id) == 0;
    return lo;
}

static struct commit_record *get_record(const struct commit *c, struct store_entry id)
{
    bool there;
    int i = find_index(c, id, &there);
    return there ? &c->records[i] : NULL;
}

static bool is_dead(const struct commit_record *r)
{
    return r->state == COMMIT_ABORTED || r->state >= COMMIT_GONE;
}

// Forgets the oldest dead records beyond the limit.
static void forget_dead(struct commit *c)
{
    int dead = 0, kept = 0, open = c->open;
    for (int i = 0; i < c->n; i++)
        dead += is_dead(&c->records[i]);
    if (dead <= DEAD_MAX)
        return;
    for (int i = 0; i < c->n; i++) {
        if (is_dead(&c->records[i]) && dead-- > DEAD_MAX)
            continue;
        if (i == c->open)
            open = kept;
        c->records[kept++] = c->records[i];
    }
    c->n = kept;
    c->open = open;
}

static int insert_record(struct commit *c, struct store_entry id, enum commit_state state)
{
    bool there;
    int i = find_index(c, id, &there);
    PRE(!there);
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 16;
        c->records = realloc(c->records, sizeof *c->records * (size_t)c->cap);
        PRE(c->records);
    }
    memmove(&c->records[i + 1], &c->records[i], sizeof *c->records * (size_t)(c->n - i));
    c->records[i] = (struct commit_record){.id = id, .state = state};
    c->n++;
    if (c->open >= i)
        c->open++;
    return i;
}

// ---- reports ----
static void forget_reports(struct commit *c)
{
    memset(c->reported, 0, sizeof *c->reported * (size_t)c->config.nranks);
}

static int find_missing_rank(const struct commit *c) // −1: all are in
{
    for (int r = 0; r < c->config.nranks; r++)
        if (!c->reported[r])
            return r;
    return -1;
}

// ---- actions ----
struct out {
    struct arena *arena;
    struct commit_actions *actions;
    int64_t now_ns;
};

static void add_action(struct out *o, enum commit_action_kind kind, struct store_entry id, int rank,
                       const char *text)
{
    struct commit_actions *s = o->actions;
    s->v = arena_grow(o->arena, s->v, sizeof *s->v, s->n, &s->cap);
    struct commit_action *a = &s->v[s->n++];
    *a = (struct commit_action){.kind = kind, .id = id, .rank = rank};
    snprintf(a->text, sizeof a->text, "%s", text ? text : "");
}

static void add_answer(struct out *o, const struct commit_record *r, int rank)
{
    bool aborted = r->state == COMMIT_ABORTED;
    add_action(o, aborted ? COMMIT_DO_ABORTED : COMMIT_DO_COMMITTED, r->id, rank, r->why);
    struct commit_action *a = &o->actions->v[o->actions->n - 1];
    a->tries = r->tries;
    a->failed = aborted && r->failed;
    a->again = aborted && r->again;
}

// ---- moves ----
static void set_state(struct commit_record *r, enum commit_state to)
{
    static const bool allowed[COMMIT_STATES][COMMIT_STATES] = {
        [COMMIT_PREPARING] = {[COMMIT_ORDERED] = true, [COMMIT_ABORTED] = true},
        [COMMIT_ORDERED] = {[COMMIT_COMMITTED] = true, [COMMIT_ABORTED] = true},
        [COMMIT_COMMITTED] = {[COMMIT_DELETING] = true, [COMMIT_LOST] = true},
        [COMMIT_ABORTED] = {[COMMIT_PREPARING] = true},
        [COMMIT_DELETING] = {[COMMIT_GONE] = true, [COMMIT_LOST] = true},
    };
    PRE(allowed[r->state][to]);
    r->state = to;
}

// Whether saves have failed for as long as the job has patience.
static bool is_over(const struct commit *c, const struct out *o)
{
    return o->now_ns - c->failing_ns >= c->config.patience_ns;
}

static void abort_open(struct commit *c, struct out *o, bool failed, const char *why)
{
    struct commit_record *r = &c->records[c->open];
    if (failed && !c->failing_ns)
        c->failing_ns = o->now_ns;
    set_state(r, COMMIT_ABORTED);
    r->failed = failed;
    r->again = failed && c->config.steps && r->id.step >= c->config.steps && !is_over(c, o);
    snprintf(r->why, sizeof r->why, "%s", why);
    c->open = -1;
    add_answer(o, r, -1);
    o->actions->v[o->actions->n - 1].late = failed && is_over(c, o);
}

// Opens a save that failed for another try.
static void open_again(struct commit *c, struct commit_record *r, int tries, struct out *o)
{
    if (r->state == COMMIT_ABORTED)
        set_state(r, COMMIT_PREPARING);
    r->tries = tries;
    r->failed = r->again = false;
    r->why[0] = 0;
    c->open = (int)(r - c->records);
    c->opened_ns = o->now_ns;
    forget_reports(c);
}

static void open_checkpoint(struct commit *c, struct store_entry id, int64_t now_ns, struct out *o)
{
    bool busy = c->open >= 0;
    int i = insert_record(c, id, busy ? COMMIT_ABORTED : COMMIT_PREPARING);
    if (busy) {
        const struct commit_record *other = &c->records[c->open];
        snprintf(c->records[i].why, sizeof c->records[i].why,
                 "the checkpoint of step %" PRId64 " is still open", other->id.step);
        add_answer(o, &c->records[i], -1);
        return;
    }
    c->open = i;
    c->opened_ns = now_ns;
    forget_reports(c);
}

// ---- retention ----
// From the newest down: the newest `keep` good ones stay, and older ones are deleted unless they
// are kept by keep_every or are the best. Damaged ones do not count, and go once they are older than
// those. A better one that is still being written deletes nothing: only COMMITTED ones are compared.
static void delete_old(struct commit *c, struct out *o)
{
    const struct commit_record *best =
        c->config.keep_best && WEFT_RULE(best_stays) ? commit_best(c) : NULL;
    int keep = c->config.keep, good = 0;
    for (int i = c->n - 1; i >= 0; i--) {
        struct commit_record *r = &c->records[i];
        if (r->state == COMMIT_DELETING && r->retry) {
            r->retry = false;
            add_action(o, COMMIT_DO_DELETE, r->id, 0, NULL);
        }
        if (r->state != COMMIT_COMMITTED || c->config.keep == 0)
            continue;
        bool inside = good < keep;
        bool every = c->config.keep_every && r->id.step % c->config.keep_every == 0 && !r->bad;
        good += !r->bad;
        if (inside || every || r == best)
            continue;
        set_state(r, COMMIT_DELETING);
        add_action(o, COMMIT_DO_DELETE, r->id, 0, NULL);
    }
}

// ---- a folder that was removed ----
// Every checkpoint before the save of `id`, whose folder had to be made again, is gone.
static void lose_committed(struct commit *c, struct store_entry id, struct out *o)
{
    int64_t first = 0, last = 0;
    int n = 0;
    for (int i = 0; i < c->n && store_entry_compare(c->records[i].id, id) < 0; i++) {
        struct commit_record *r = &c->records[i];
        if (r->state == COMMIT_COMMITTED) {
            first = n++ ? first : r->id.step;
            last = r->id.step;
        }
        if (r->state != COMMIT_COMMITTED && r->state != COMMIT_DELETING)
            continue;
        set_state(r, COMMIT_LOST);
        snprintf(r->why, sizeof r->why, "somebody removed the folder that it was in");
    }
    char text[200];
    if (n == 1)
        snprintf(text, sizeof text, "its checkpoint, of step %" PRId64, last);
    else
        snprintf(text, sizeof text, "its %d checkpoints, of steps %" PRId64 " to %" PRId64, n,
                 first, last);
    if (n)
        add_action(o, COMMIT_DO_LOST, id, -1, text);
}

// ---- events ----
static void on_report(struct commit *c, const struct shard_report *rep, struct out *o)
{
    if (c->reported[rep->rank])
        return;
    if (rep->code) {
        char why[200];
        snprintf(why, sizeof why, "rank %d: %.150s", rep->rank, rep->text);
        abort_open(c, o, true, why);
        return;
    }
    c->reported[rep->rank] = true;
    if (WEFT_RULE(commit_all_in) && find_missing_rank(c) >= 0)
        return;
    struct commit_record *r = &c->records[c->open];
    set_state(r, COMMIT_ORDERED);
    add_action(o, COMMIT_DO_ORDER, r->id, 0, NULL);
}

// A report while ORDERED. The writer repeats its own when the order has not reached it. After a
// restart of the leader all reports come again, and the order goes out when the last of them is in.
static void on_late_report(struct commit *c, const struct shard_report *rep, struct store_entry id,
                           struct out *o)
{
    bool was_in = c->reported[rep->rank];
    if (!rep->code)
        c->reported[rep->rank] = true;
    if (find_missing_rank(c) < 0 && (!was_in || rep->rank == 0))
        add_action(o, COMMIT_DO_ORDER, id, 0, NULL);
}

// Answers a report of an older try: all ranks heard once that it had been aborted, and this one
// repeats its report because it did not hear it.
static void answer_older_try(struct out *o, const struct commit_record *r,
                             const struct shard_report *rep)
{
    add_action(o, COMMIT_DO_ABORTED, r->id, rep->rank, "an older try");
    struct commit_action *a = &o->actions->v[o->actions->n - 1];
    a->tries = rep->tries;
    a->again = true;
}

// A loss that is no number says nothing of a checkpoint.
static void set_loss(struct commit_record *r, double loss)
{
    r->scored = isfinite(loss);
    r->loss = r->scored ? loss : 0;
}

static void on_shard(struct commit *c, const struct commit_event *ev, struct out *o)
{
    const struct shard_report *rep = ev->report;
    PRE(rep && rep->step == ev->id.step);
    if (ev->id.attempt != c->attempt || rep->rank < 0 || rep->rank >= c->config.nranks)
        return;
    struct commit_record *r = get_record(c, ev->id);
    if (!r) {
        open_checkpoint(c, ev->id, ev->now_ns, o);
        r = get_record(c, ev->id);
        if (r->state == COMMIT_ABORTED)
            return; // every rank has just been answered
    }
    // The report says that the folder was removed. Whatever becomes of this save, the checkpoints
    // before it are lost.
    if (rep->removed)
        lose_committed(c, r->id, o);
    bool may_open = c->open < 0 || &c->records[c->open] == r;
    if (rep->tries > r->tries && may_open &&
        (r->state == COMMIT_ABORTED || r->state == COMMIT_PREPARING))
        open_again(c, r, rep->tries, o);
    if (rep->rank == 0 && r->state == COMMIT_PREPARING && rep->evaluated)
        set_loss(r, rep->eval_loss);
    if (rep->tries < r->tries)
        answer_older_try(o, r, rep);
    else if (r->state == COMMIT_PREPARING)
        on_report(c, rep, o);
    else if (r->state != COMMIT_ORDERED)
        add_answer(o, r, rep->rank);
    else
        on_late_report(c, rep, r->id, o);
}

static void on_done(struct commit *c, const struct commit_event *ev, struct out *o)
{
    struct commit_record *r = get_record(c, ev->id);
    if (!r || r->state != COMMIT_ORDERED)
        return;
    if (!ev->ok) {
        abort_open(c, o, true, ev->text ? ev->text : "the writer failed");
        return;
    }
    set_state(r, COMMIT_COMMITTED);
    c->failing_ns = 0;
    c->open = -1;
    add_answer(o, r, -1);
    delete_old(c, o);
}

static bool is_preparing(const struct commit *c)
{
    return c->open >= 0 && c->records[c->open].state == COMMIT_PREPARING;
}

static void on_tick(struct commit *c, const struct commit_event *ev, struct out *o)
{
    int64_t due = commit_deadline(c);
    if (!due || ev->now_ns < due)
        return;
    char why[200];
    snprintf(why, sizeof why, "rank %d's shard did not come in time", find_missing_rank(c));
    abort_open(c, o, true, why);
}

static void on_attempt_end(struct commit *c, const struct commit_event *ev, struct out *o)
{
    (void)ev;
    if (is_preparing(c))
        abort_open(c, o, false, "the attempt ended");
}

static void on_bad(struct commit *c, const struct commit_event *ev, struct out *o)
{
    struct commit_record *r = get_record(c, ev->id);
    (void)o;
    if (r)
        r->bad = true;
}

static void on_score(struct commit *c, const struct commit_event *ev, struct out *o)
{
    struct commit_record *r = get_record(c, ev->id);
    (void)o;
    if (r && !r->scored)
        set_loss(r, ev->loss);
}

static void on_deleted(struct commit *c, const struct commit_event *ev, struct out *o)
{
    struct commit_record *r = get_record(c, ev->id);
    (void)o;
    if (!r || r->state != COMMIT_DELETING)
        return;
    if (ev->ok)
        set_state(r, COMMIT_GONE);
    else
        r->retry = true;
}

void commit_step(struct commit *c, const struct commit_event *ev, struct arena *a,
                 struct commit_actions *out)
{
    static void (*const on[COMMIT_EVENTS])(struct commit *, const struct commit_event *,
                                           struct out *) = {
        [COMMIT_EV_SHARD] = on_shard, [COMMIT_EV_DONE] = on_done,
        [COMMIT_EV_TICK] = on_tick,   [COMMIT_EV_ATTEMPT_END] = on_attempt_end,
        [COMMIT_EV_BAD] = on_bad,     [COMMIT_EV_DELETED] = on_deleted,
        [COMMIT_EV_SCORE] = on_score,
    };
    PRE(ev->kind < COMMIT_EVENTS);
    struct out o = {a, out, ev->now_ns};
    on[ev->kind](c, ev, &o);
    forget_dead(c);
}

// ---- life ----
void commit_init(struct commit *c, const struct commit_config *config)
{
    PRE(config->nranks > 0);
    *c = (struct commit){.config = *config, .open = -1};
    c->reported = heap_alloc(sizeof *c->reported * (size_t)config->nranks);
}

void commit_clear(struct commit *c)
{
    free(c->reported);
    free(c->records);
    *c = (struct commit){.open = -1};
}

void commit_fence(struct commit *c, int64_t attempt, const struct store_entry *scan, int n)
{
    PRE(attempt > c->attempt);
    struct commit old = *c;
    c->records = NULL;
    c->n = c->cap = 0;
    c->open = -1;
    c->attempt = attempt;
    forget_reports(c);
    for (int i = 0; i < n; i++) {
        const struct commit_record *was = get_record(&old, scan[i]);
        bool deleting = was && (was->state == COMMIT_DELETING || was->state == COMMIT_GONE);
        int at = insert_record(c, scan[i], deleting ? COMMIT_DELETING : COMMIT_COMMITTED);
        struct commit_record *r = &c->records[at];
        r->retry = deleting;
        r->bad = was && was->bad;
        r->scored = was && was->scored;
        r->loss = was ? was->loss : 0;
    }
    // What the folder does not hold any more may be put back: it is known then.
    for (int i = 0; old.records && i < old.n; i++) {
        const struct commit_record *r = &old.records[i];
        bool there;
        (void)find_index(c, r->id, &there);
        if (there || (r->state != COMMIT_COMMITTED && r->state != COMMIT_LOST))
            continue;
        int at = insert_record(c, r->id, COMMIT_LOST);
        snprintf(c->records[at].why, sizeof c->records[at].why, "%s",
                 r->state == COMMIT_LOST
                     ? r->why
                     : "its folder did not list it at a start: it was set aside or removed");
    }
    free(old.records);
}

void commit_restore(struct commit *c, int64_t attempt, const struct commit_record *records, int n,
                    int64_t now_ns)
{
    PRE(c->n == 0);
    c->attempt = attempt;
    for (int i = 0; i < n; i++) {
        int at = insert_record(c, records[i].id, records[i].state); // moves the array
        c->records[at] = records[i];
    }
    for (int i = 0; i < c->n; i++)
        if (c->records[i].id.attempt == attempt && c->records[i].state <= COMMIT_ORDERED)
            c->open = i;
    c->opened_ns = now_ns;
}

// ---- views ----
const struct commit_record *commit_find(const struct commit *c, struct store_entry id)
{
    return get_record(c, id);
}

const struct commit_record *commit_newest(const struct commit *c)
{
    for (int i = c->n - 1; i >= 0; i--)
        if (c->records[i].state == COMMIT_COMMITTED && !c->records[i].bad)
            return &c->records[i];
    return NULL;
}

void commit_best_offer(struct commit_best *b, const void *which, bool good, bool evaluated,
                       double loss)
{
    if (good && evaluated && (!b->which || loss < b->loss))
        *b = (struct commit_best){which, loss};
}

const struct commit_record *commit_best(const struct commit *c)
{
    struct commit_best best = {0};
    for (int i = 0; i < c->n; i++) {
        const struct commit_record *r = &c->records[i];
        commit_best_offer(&best, r, r->state == COMMIT_COMMITTED && !r->bad, r->scored, r->loss);
    }
    return best.which;
}

int64_t commit_deadline(const struct commit *c)
{
    return is_preparing(c) && c->config.deadline_ns ? c->opened_ns + c->config.deadline_ns : 0;
}
