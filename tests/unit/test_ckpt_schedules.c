// SPDX-License-Identifier: Apache-2.0
// The decider of commits under random schedules over a network that loses, repeats and reorders, with
// attempts that end anywhere, against the invariants that hold by common/ckpt/README.md.
#include "tests/unit/commit_case.h"

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
    struct commit_case s;
    int nranks, nids, nflight, keep;
    int64_t attempt, step;
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

// Whether another good one is there that is as good.
static bool is_beaten(struct world *w, const struct known *k)
{
    bool beaten = false;
    for (int i = 0; i < w->nids; i++)
        beaten =
            beaten || (&w->ids[i] != k && w->ids[i].in_dir && !w->ids[i].bad &&
                       !w->ids[i].deleted && loss_of(w->ids[i].id.step) <= loss_of(k->id.step));
    return beaten;
}

static void check_action(struct world *w, const struct commit_action *a)
{
    struct known *k = know(w, a->id);
    if (a->kind == COMMIT_DO_DELETE) { // I5, when it is decided; the same order may come again
        assert_true(k->deleted || k->in_dir);
        assert_true(k->deleted || (w->keep && newer_good(w, a->id) >= w->keep));
        assert_true(k->deleted || !w->s.c.config.keep_best || k->bad || is_beaten(w, k));
        k->deleted = true;
        post(w, (struct message){MSG_DELETE, a->id, 0, true});
        return;
    }
    assert_int_equal(a->id.attempt, w->attempt); // I4
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

// The writer: its first answer is what it repeats; the directory refuses a fenced attempt.
static void write_commit(struct world *w, struct store_entry e)
{
    struct known *k = know(w, e);
    if (!k->written) {
        k->written = e.attempt == w->attempt && draw(w, 8) ? 1 : -1;
        k->in_dir = k->written > 0;
    }
    if (draw(w, 8)) // else it dies or its answer is lost
        post(w, (struct message){MSG_DONE, e, 0, k->written > 0});
}

static void deliver_shard(struct world *w, const struct message *m)
{
    struct shard_report r = {.rank = m->rank,
                             .step = m->id.step,
                             .code = m->ok ? 0 : ERR_IO,
                             .evaluated = true,
                             .eval_loss = loss_of(m->id.step)};
    bool fresh = m->id.attempt == w->attempt && !know(w, m->id)->ordered;
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
        if (m.id.attempt == w->attempt && m.id.step == w->step)
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
            post(w, (struct message){MSG_SHARD, id(w->attempt, w->step), r, w->shard_ok[r]});
}

static void next_attempt(struct world *w)
{
    struct store_entry scan[MAX_IDS];
    int n = 0;
    if (draw(w, 2))
        drive(w, (struct commit_event){.kind = COMMIT_EV_ATTEMPT_END});
    for (int i = 0; i < w->nids; i++)
        if (w->ids[i].in_dir) {
            assert_false(w->ids[i].answered_abort); // what is listed was never denied
            scan[n++] = w->ids[i].id;
        }
    w->attempt++;
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
    commit_fence(&w->s.c, w->attempt, scan, n);
    for (int i = 0; i < n; i++) // what the manifests say
        drive(w, (struct commit_event){
                     .kind = COMMIT_EV_SCORE, .id = scan[i], .loss = loss_of(scan[i].step)});
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
    struct world w = {.seed = seed, .attempt = 1};
    w.nranks = 1 + (int)draw(&w, MAX_RANKS);
    w.keep = (int)draw(&w, 4);
    begin_case(&w.s, w.nranks, w.keep, 0);
    w.s.c.config.keep_best = draw(&w, 2);
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
            next_attempt(&w);
    }
    // With a network that works in the end, every rank that waits gets its answer.
    for (int turn = 0; turn < 2000 && any_waits(&w); turn++) {
        if (w.nflight)
            network(&w);
        for (int r = 0; r < w.nranks && w.nflight < 8; r++)
            if (w.waits[r])
                post(&w, (struct message){MSG_SHARD, id(w.attempt, w.step), r, w.shard_ok[r]});
    }
    assert_false(any_waits(&w));
    int committed = 0;
    for (int i = 0; i < w.nids; i++)
        committed += w.ids[i].answered_ok;
    end_case(&w.s);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_keep_the_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
