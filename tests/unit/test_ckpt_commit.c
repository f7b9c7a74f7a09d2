// SPDX-License-Identifier: Apache-2.0
// The decider of commits: stories of single checkpoints, then random schedules over a network that
// loses, repeats and reorders, with epochs that end anywhere, against the invariants that hold by
// common/ckpt/README.md.
#include "common/ckpt/commit.h"
#include "tests/unit/ckpt_fixture.h"

// ---- stories ----
struct story {
    struct commit c;
    struct arena a;
    struct commit_actions acts; // of the last event
    int64_t now;
};

static void begin_story(struct story *s, int nranks, int keep, int64_t every)
{
    *s = (struct story){0};
    struct commit_config config = {
        .nranks = nranks, .deadline_ns = 100, .keep = keep, .keep_every = every};
    arena_init(&s->a);
    commit_init(&s->c, &config);
    commit_fence(&s->c, 1, NULL, 0);
}

static void end_story(struct story *s)
{
    commit_clear(&s->c);
    arena_clear(&s->a);
}

static void feed(struct story *s, struct commit_event ev)
{
    s->acts = (struct commit_actions){0};
    ev.now_ns = s->now;
    commit_step(&s->c, &ev, &s->a, &s->acts);
}

static struct store_entry id(int64_t epoch, int64_t step)
{
    return (struct store_entry){.epoch = epoch, .step = step};
}

static void shard(struct story *s, int64_t step, int rank, int code)
{
    struct shard_report r = {.rank = rank, .step = step, .code = code};
    snprintf(r.text, sizeof r.text, "no space");
    feed(s,
         (struct commit_event){.kind = COMMIT_EV_SHARD, .id = id(s->c.epoch, step), .report = &r});
}

static void shard_again(struct story *s, int64_t step, int rank, int tries, int code)
{
    struct shard_report r = {.rank = rank, .step = step, .tries = tries, .code = code};
    feed(s,
         (struct commit_event){.kind = COMMIT_EV_SHARD, .id = id(s->c.epoch, step), .report = &r});
}

static void done(struct story *s, int64_t step, bool ok)
{
    feed(s, (struct commit_event){
                .kind = COMMIT_EV_DONE, .id = id(s->c.epoch, step), .ok = ok, .text = "no rename"});
}

static void save(struct story *s, int64_t step)
{
    for (int r = 0; r < s->c.config.nranks; r++)
        shard(s, step, r, 0);
    done(s, step, true);
}

static void expect(const struct story *s, int i, enum commit_action_kind kind, int64_t step,
                   int rank)
{
    assert_true(i < s->acts.n);
    assert_int_equal(s->acts.v[i].kind, kind);
    assert_int_equal(s->acts.v[i].id.step, step);
    assert_int_equal(s->acts.v[i].rank, rank);
}

static void all_shards_then_the_order_then_committed(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 0, 0);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    done(&s, 10, true);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_COMMITTED, 10, -1);
    assert_int_equal(commit_newest(&s.c)->id.step, 10);
    end_story(&s);
}

// The decider is made anew from its records, as they lie in rows.
static void forget(struct story *s)
{
    struct commit_record *kept = arena_dup(&s->a, s->c.records, sizeof *kept * (size_t)s->c.n);
    struct commit_config config = s->c.config;
    int64_t epoch = s->c.epoch;
    int n = s->c.n;
    commit_clear(&s->c);
    commit_init(&s->c, &config);
    commit_restore(&s->c, epoch, kept, n, s->now);
}

static void a_restored_order_goes_out_when_all_reports_have_come_again(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    save(&s, 10);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    forget(&s);
    assert_int_equal(commit_newest(&s.c)->id.step, 10);
    shard(&s, 20, 0, 0);
    assert_int_equal(s.acts.n, 0); // nothing to send the writer yet
    shard(&s, 20, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    shard(&s, 20, 1, 0);
    assert_int_equal(s.acts.n, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    end_story(&s);
}

static void a_restored_save_has_its_deadline_again(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    shard(&s, 20, 0, 0);
    s.now = 90;
    forget(&s);
    assert_int_equal(commit_deadline(&s.c), 190);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    end_story(&s);
}

static void a_repeated_report_gets_the_answer_that_was_given(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    save(&s, 10);
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_COMMITTED, 10, 1);
    done(&s, 10, false); // a second answer changes nothing
    assert_int_equal(s.acts.n, 0);
    shard(&s, 20, 1, 5);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1: no space"));
    shard(&s, 20, 0, 0);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, 0);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1: no space"));
    end_story(&s);
}

static void a_deadline_aborts_only_before_the_order(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    s.now = 1000;
    shard(&s, 10, 0, 0);
    assert_int_equal(commit_deadline(&s.c), 1100);
    s.now = 1099;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    assert_int_equal(s.acts.n, 0);
    s.now = 1100;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    expect(&s, 0, COMMIT_DO_ABORTED, 10, -1);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1"));
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    s.now = 1 << 20;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    assert_int_equal(s.acts.n, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_EPOCH_END});
    assert_int_equal(s.acts.n, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    end_story(&s);
}

static void the_end_of_the_epoch_aborts_what_is_preparing(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_EPOCH_END});
    expect(&s, 0, COMMIT_DO_ABORTED, 10, -1);
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_ABORTED, 10, 1);
    end_story(&s);
}

static void what_was_ordered_is_decided_by_the_next_fence(void **state)
{
    (void)state;
    for (int there = 0; there < 2; there++) {
        struct story s;
        struct store_entry scan[] = {id(1, 10)};
        begin_story(&s, 1, 0, 0);
        shard(&s, 10, 0, 0);
        commit_fence(&s.c, 2, scan, there);
        const struct commit_record *r = commit_find(&s.c, id(1, 10));
        assert_true(there ? r && r->state == COMMIT_COMMITTED : !r);
        feed(&s, (struct commit_event){.kind = COMMIT_EV_DONE, .id = id(1, 10), .ok = !there});
        assert_int_equal(s.acts.n, 0); // the old writer's answer comes too late
        end_story(&s);
    }
}

static void a_writer_that_repeats_itself_gets_the_order_again(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    shard(&s, 10, 1, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 0, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    end_story(&s);
}

static void a_second_save_while_one_is_open_is_aborted(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    shard(&s, 20, 0, 0);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_non_null(strstr(s.acts.v[0].text, "step 10"));
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    end_story(&s);
}

static void begin_last_save(struct story *s, int64_t patience)
{
    begin_story(s, 2, 0, 0);
    s->c.config.steps = 20;
    s->c.config.patience_ns = patience;
    s->now = 1000;
}

static void the_last_save_is_tried_again_while_there_is_patience(void **state)
{
    (void)state;
    struct story s;
    begin_last_save(&s, 50);
    shard(&s, 10, 0, ERR_IO); // it is not the last, but the time counts from here
    assert_false(s.acts.v[0].again || s.acts.v[0].late);
    shard(&s, 20, 0, ERR_IO);
    assert_true(s.acts.v[0].again && !s.acts.v[0].late);
    s.now += 49;
    shard_again(&s, 20, 0, 1, 0);
    shard_again(&s, 20, 1, 1, ERR_IO);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_true(s.acts.v[0].again);
    assert_int_equal(s.acts.v[0].tries, 1);
    s.now++;
    shard_again(&s, 20, 1, 2, ERR_IO);
    assert_true(!s.acts.v[0].again && s.acts.v[0].late);
    end_story(&s);
}

static void a_save_that_is_tried_again_commits_with_the_shards_of_that_try(void **state)
{
    (void)state;
    struct story s;
    begin_last_save(&s, 50);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, ERR_IO);
    shard_again(&s, 20, 1, 1, 0);
    shard(&s, 20, 0, 0); // this rank has not heard of the abort: its shard is of the older try
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, 0);
    assert_true(s.acts.v[0].tries == 0 && s.acts.v[0].again);
    shard_again(&s, 20, 0, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    done(&s, 20, false); // and the writer fails too
    assert_true(s.acts.v[0].again && s.acts.v[0].tries == 1);
    shard_again(&s, 20, 0, 2, 0);
    shard_again(&s, 20, 1, 2, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    assert_int_equal(commit_newest(&s.c)->id.step, 20);
    end_story(&s);
}

static void patience_begins_anew_with_each_save_that_succeeds(void **state)
{
    (void)state;
    struct story s;
    begin_last_save(&s, 50);
    shard(&s, 4, 0, ERR_IO);
    s.now += 49;
    save(&s, 6);
    s.now += 49;
    shard(&s, 8, 0, ERR_IO);
    assert_false(s.acts.v[0].late);
    s.now += 50;
    shard(&s, 10, 0, ERR_IO);
    assert_true(s.acts.v[0].late && !s.acts.v[0].again);
    end_story(&s);
}

static void the_newest_stay_and_multiples_stay_and_the_rest_goes(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 1, 2, 30);
    static const int64_t goes[] = {0, 0, 10, 20, 0, 40}; // after the save of (i + 1) · 10
    for (int i = 0; i < 6; i++) {
        save(&s, (i + 1) * 10);
        assert_int_equal(s.acts.n, goes[i] ? 2 : 1);
        if (goes[i])
            expect(&s, 1, COMMIT_DO_DELETE, goes[i], 0);
    }
    assert_int_equal(commit_find(&s.c, id(1, 30))->state, COMMIT_COMMITTED);
    end_story(&s);
}

static void keep_one_still_keeps_two_and_damaged_ones_do_not_count(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 1, 1, 0);
    save(&s, 10);
    save(&s, 20);
    assert_int_equal(s.acts.n, 1);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_BAD, .id = id(1, 20)});
    assert_int_equal(commit_newest(&s.c)->id.step, 10);
    save(&s, 30);
    assert_int_equal(s.acts.n, 1); // 10 and 30 are the newest two good ones
    save(&s, 40);
    assert_int_equal(s.acts.n, 3);
    expect(&s, 1, COMMIT_DO_DELETE, 20, 0);
    expect(&s, 2, COMMIT_DO_DELETE, 10, 0);
    end_story(&s);
}

static void a_deletion_that_failed_goes_out_again_and_is_never_restored_from(void **state)
{
    (void)state;
    struct story s;
    struct store_entry scan[] = {id(1, 10), id(1, 20), id(1, 30)};
    begin_story(&s, 1, 2, 0);
    save(&s, 10);
    save(&s, 20);
    save(&s, 30);
    expect(&s, 1, COMMIT_DO_DELETE, 10, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_DELETED, .id = id(1, 10), .ok = false});
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_DELETING);
    commit_fence(&s.c, 2, scan, 3);
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_DELETING);
    save(&s, 40);
    assert_int_equal(s.acts.n, 3);
    expect(&s, 1, COMMIT_DO_DELETE, 20, 0);
    expect(&s, 2, COMMIT_DO_DELETE, 10, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_DELETED, .id = id(1, 10), .ok = true});
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_GONE);
    end_story(&s);
}

// ---- random schedules ----
// The world around the decider: ranks that repeat their reports, a writer with a directory, a
// network of messages in flight. What the invariants need is remembered apart from the decider.
enum { MAX_RANKS = 3, MAX_IDS = 64, MAX_FLIGHT = 64 };
enum message_kind { MSG_SHARD, MSG_ORDER, MSG_DONE, MSG_ANSWER, MSG_DELETE, MSG_DELETED };
struct message {
    enum message_kind kind;
    struct store_entry id;
    int rank;
    bool ok;
};
struct known {
    struct store_entry id;
    int reported;          // bits of ranks whose good report the decider has seen
    bool ordered, refused; // an order went out; the writer's first answer, delivered, was no
    bool answered_ok, answered_abort, in_dir, deleted, bad;
    int written; // the writer's first answer: 0 none, 1 done, −1 failed
};
struct world {
    struct story s;
    int nranks, nids, nflight, keep;
    int64_t epoch, step;
    struct known ids[MAX_IDS];
    struct message flight[MAX_FLIGHT];
    bool waits[MAX_RANKS], shard_ok[MAX_RANKS]; // each rank's open save
    uint32_t seed;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->seed = w->seed * 1664525u + 1013904223u;
    return (w->seed >> 8) % n;
}

static struct known *know(struct world *w, struct store_entry e)
{
    for (int i = 0; i < w->nids; i++)
        if (store_entry_compare(w->ids[i].id, e) == 0)
            return &w->ids[i];
    assert_true(w->nids < MAX_IDS);
    w->ids[w->nids] = (struct known){.id = e};
    return &w->ids[w->nids++];
}

static void post(struct world *w, struct message m)
{
    if (w->nflight < MAX_FLIGHT && draw(w, 10))
        w->flight[w->nflight++] = m;
}

static int newer_good(struct world *w, struct store_entry e)
{
    int n = 0;
    for (int i = 0; i < w->nids; i++)
        n += w->ids[i].in_dir && !w->ids[i].bad && !w->ids[i].deleted &&
             store_entry_compare(w->ids[i].id, e) > 0;
    return n;
}

static void check_action(struct world *w, const struct commit_action *a)
{
    struct known *k = know(w, a->id);
    if (a->kind == COMMIT_DO_DELETE) { // I5, when it is decided; the same order may come again
        assert_true(k->deleted || k->in_dir);
        assert_true(k->deleted || newer_good(w, a->id) >= (w->keep > 2 ? w->keep : 2));
        k->deleted = true;
        post(w, (struct message){MSG_DELETE, a->id, 0, true});
        return;
    }
    assert_int_equal(a->id.epoch, w->epoch); // I4
    if (a->kind == COMMIT_DO_ORDER) {
        assert_int_equal(k->reported, (1 << w->nranks) - 1);
        assert_false(k->answered_ok || k->answered_abort);
        k->ordered = true;
        post(w, (struct message){MSG_ORDER, a->id, 0, true});
        return;
    }
    bool ok = a->kind == COMMIT_DO_COMMITTED;
    if (ok) // I1, I3; the answer of one that retention removed since may be repeated
        assert_true((k->in_dir || (k->answered_ok && k->deleted)) && !k->answered_abort);
    else
        assert_true(!k->answered_ok && (!k->ordered || k->refused)); // no deadline past the order
    *(ok ? &k->answered_ok : &k->answered_abort) = true;
    for (int r = 0; r < w->nranks; r++)
        if (a->rank < 0 || a->rank == r)
            post(w, (struct message){MSG_ANSWER, a->id, r, ok});
}

static void drive(struct world *w, struct commit_event ev)
{
    feed(&w->s, ev);
    for (int i = 0; i < w->s.acts.n; i++)
        check_action(w, &w->s.acts.v[i]);
    int open = 0;
    for (int i = 0; i < w->s.c.n; i++)
        open += w->s.c.records[i].state <= COMMIT_ORDERED;
    assert_true(open <= 1);
}

// The writer: its first answer is what it repeats; the directory refuses a fenced epoch.
static void write_commit(struct world *w, struct store_entry e)
{
    struct known *k = know(w, e);
    if (!k->written) {
        k->written = e.epoch == w->epoch && draw(w, 8) ? 1 : -1;
        k->in_dir = k->written > 0;
    }
    if (draw(w, 8)) // else it dies or its answer is lost
        post(w, (struct message){MSG_DONE, e, 0, k->written > 0});
}

static void deliver_shard(struct world *w, const struct message *m)
{
    struct shard_report r = {.rank = m->rank, .step = m->id.step, .code = m->ok ? 0 : ERR_IO};
    bool fresh = m->id.epoch == w->epoch && !know(w, m->id)->ordered;
    if (fresh && m->ok)
        know(w, m->id)->reported |= 1 << m->rank;
    drive(w, (struct commit_event){.kind = COMMIT_EV_SHARD, .id = m->id, .report = &r});
}

static void deliver(struct world *w, struct message m)
{
    struct known *k = know(w, m.id);
    switch (m.kind) {
    case MSG_SHARD:
        deliver_shard(w, &m);
        break;
    case MSG_ORDER:
        write_commit(w, m.id);
        break;
    case MSG_DONE:
        k->refused |= !m.ok;
        drive(w, (struct commit_event){.kind = COMMIT_EV_DONE, .id = m.id, .ok = m.ok});
        break;
    case MSG_ANSWER:
        if (m.id.epoch == w->epoch && m.id.step == w->step)
            w->waits[m.rank] = false;
        break;
    case MSG_DELETE:
        k->in_dir = k->in_dir && !draw(w, 2);
        post(w, (struct message){MSG_DELETED, m.id, 0, !k->in_dir});
        break;
    case MSG_DELETED:
        drive(w, (struct commit_event){.kind = COMMIT_EV_DELETED, .id = m.id, .ok = m.ok});
        break;
    }
}

static void network(struct world *w)
{
    if (!w->nflight)
        return;
    int i = (int)draw(w, (uint32_t)w->nflight);
    struct message m = w->flight[i];
    if (draw(w, 6)) // else it stays in flight as well: delivered twice
        w->flight[i] = w->flight[--w->nflight];
    deliver(w, m);
}

static bool any_waits(const struct world *w)
{
    return w->waits[0] || w->waits[1] || w->waits[2];
}

static void ranks(struct world *w)
{
    if (!any_waits(w) && w->nids < MAX_IDS - 8) {
        w->step += 1 + draw(w, 5);
        for (int r = 0; r < w->nranks; r++) {
            w->waits[r] = true;
            w->shard_ok[r] = draw(w, 12) != 0;
        }
    }
    for (int r = 0; r < w->nranks; r++)
        if (w->waits[r] && draw(w, 2))
            post(w, (struct message){MSG_SHARD, id(w->epoch, w->step), r, w->shard_ok[r]});
}

static void next_epoch(struct world *w)
{
    struct store_entry scan[MAX_IDS];
    int n = 0;
    if (draw(w, 2))
        drive(w, (struct commit_event){.kind = COMMIT_EV_EPOCH_END});
    for (int i = 0; i < w->nids; i++)
        if (w->ids[i].in_dir) {
            assert_false(w->ids[i].answered_abort); // what is listed was never denied
            scan[n++] = w->ids[i].id;
        }
    w->epoch++;
    if (!draw(w, 3)) { // the decider's process died too; a deletion it had ordered is forgotten
        struct commit_config config = w->s.c.config;
        commit_clear(&w->s.c);
        commit_init(&w->s.c, &config);
        for (int i = 0; i < w->nids; i++)
            w->ids[i].deleted &= !w->ids[i].in_dir;
        int kept = 0; // the new fence's process group is new: old deletions were its children's
        for (int i = 0; i < w->nflight; i++)
            if (w->flight[i].kind != MSG_DELETE && w->flight[i].kind != MSG_DELETED)
                w->flight[kept++] = w->flight[i];
        w->nflight = kept;
        for (int i = 0; i < w->nids; i++)
            w->ids[i].bad = false;
    }
    commit_fence(&w->s.c, w->epoch, scan, n);
    w->step = draw(w, 4);
    memset(w->waits, 0, sizeof w->waits);
}

static void mark_bad(struct world *w)
{
    if (!w->nids)
        return;
    struct known *k = &w->ids[draw(w, (uint32_t)w->nids)];
    if (!k->in_dir || !commit_find(&w->s.c, k->id))
        return;
    k->bad = true;
    drive(w, (struct commit_event){.kind = COMMIT_EV_BAD, .id = k->id});
}

static int play(uint32_t seed)
{
    struct world w = {.seed = seed, .epoch = 1};
    w.nranks = 1 + (int)draw(&w, MAX_RANKS);
    w.keep = (int)draw(&w, 4);
    begin_story(&w.s, w.nranks, w.keep, 0);
    for (int turn = 0; turn < 250; turn++) {
        uint32_t what = draw(&w, 100);
        w.s.now += draw(&w, 9);
        if (what < 55)
            network(&w);
        else if (what < 92)
            ranks(&w);
        else if (what < 96)
            drive(&w, (struct commit_event){.kind = COMMIT_EV_TICK});
        else if (what < 98)
            mark_bad(&w);
        else
            next_epoch(&w);
    }
    // With a network that works in the end, every rank that waits gets its answer.
    for (int turn = 0; turn < 2000 && any_waits(&w); turn++) {
        if (w.nflight)
            network(&w);
        for (int r = 0; r < w.nranks && w.nflight < 8; r++)
            if (w.waits[r])
                post(&w, (struct message){MSG_SHARD, id(w.epoch, w.step), r, w.shard_ok[r]});
    }
    assert_false(any_waits(&w));
    int committed = 0;
    for (int i = 0; i < w.nids; i++)
        committed += w.ids[i].answered_ok;
    end_story(&w.s);
    return committed;
}

static void random_schedules_keep_the_invariants(void **state)
{
    (void)state;
    int committed = 0;
    for (uint32_t seed = 1; seed <= 4000; seed++)
        committed += play(seed);
    assert_true(committed > 4000); // the schedules are not all failures
    print_message("%d checkpoints committed in 4000 schedules\n", committed);
}

// Who lies reports shards of any steps; a run of a million saves must not carry them all either.
static void of_saves_that_came_to_nothing_the_newest_are_known(void **state)
{
    (void)state;
    struct story s;
    begin_story(&s, 1, 2, 0);
    save(&s, 5);
    for (int64_t step = 5000; step < 10000; step++)
        shard(&s, step, 0, 1);
    save(&s, 10000);
    assert_int_equal(s.c.n, 1002);
    assert_null(commit_find(&s.c, id(1, 8000)));
    assert_int_equal(commit_find(&s.c, id(1, 9999))->state, COMMIT_ABORTED);
    assert_int_equal(commit_find(&s.c, id(1, 5))->state, COMMIT_COMMITTED);
    assert_int_equal(commit_newest(&s.c)->id.step, 10000);
    end_story(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shards_then_the_order_then_committed),
        cmocka_unit_test(a_restored_order_goes_out_when_all_reports_have_come_again),
        cmocka_unit_test(a_restored_save_has_its_deadline_again),
        cmocka_unit_test(a_repeated_report_gets_the_answer_that_was_given),
        cmocka_unit_test(a_deadline_aborts_only_before_the_order),
        cmocka_unit_test(the_end_of_the_epoch_aborts_what_is_preparing),
        cmocka_unit_test(what_was_ordered_is_decided_by_the_next_fence),
        cmocka_unit_test(a_writer_that_repeats_itself_gets_the_order_again),
        cmocka_unit_test(a_second_save_while_one_is_open_is_aborted),
        cmocka_unit_test(the_last_save_is_tried_again_while_there_is_patience),
        cmocka_unit_test(a_save_that_is_tried_again_commits_with_the_shards_of_that_try),
        cmocka_unit_test(patience_begins_anew_with_each_save_that_succeeds),
        cmocka_unit_test(the_newest_stay_and_multiples_stay_and_the_rest_goes),
        cmocka_unit_test(keep_one_still_keeps_two_and_damaged_ones_do_not_count),
        cmocka_unit_test(a_deletion_that_failed_goes_out_again_and_is_never_restored_from),
        cmocka_unit_test(of_saves_that_came_to_nothing_the_newest_are_known),
        cmocka_unit_test(random_schedules_keep_the_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
