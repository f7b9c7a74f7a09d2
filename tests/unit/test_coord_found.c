// SPDX-License-Identifier: Apache-2.0
// Jobs found again: a coordinator that knows its cluster and has no rows asks every host what lies
// in its folders, and takes up what it does not know.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "coordinator/decide/coord.h"
#include "tests/support/stored_row.h"
#include "tests/support/text_facts.h"
#include "tests/unit/unit.h"

static const char cluster[] = "0123456789abcdef0123456789abcdef";
static const char lost_job[] = "aaaabbbbccccddddaaaabbbbccccdddd";
static const char resolved[] =
    "name: lost\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\n"
    "mesh: {dp: 2}\ndata: {train: {images: i, labels: l}, batch: 4}\n"
    "train: {steps: 100}\n";

struct rig {
    struct coord *c;
    int64_t now;
    int asked; // FINDs sent
    int acts;
    int threads;   // that the next job found has
    uint64_t conn; // of the host that speaks
    char refused[400];
    char events[4000]; // their texts, a line each
    char nonce[80];
    struct stored_row *meta; // newest row
};

static void take(struct rig *r, const struct coord_out *out)
{
    for (int i = 0; i < out->nrows; i++) {
        struct stored_row *row = stored_row_new(&out->rows[i]);
        size_t n = strlen(r->events);
        if (row->row.kind == ROW_EVENT)
            snprintf(r->events + n, sizeof r->events - n, "%s: %s\n",
                     event_word((int)row->event->kind), row->event->text);
        if (row->row.kind == ROW_META) {
            struct stored_row *before = r->meta;
            r->meta = row;
            row = before;
        }
        if (row)
            stored_row_free(row);
    }
    for (int i = 0; i < out->nactions; i++) {
        if (out->actions[i].kind == COORD_REFUSE)
            snprintf(r->refused, sizeof r->refused, "%s", out->actions[i].text);
        const Weft__V1__Down *d = out->actions[i].down;
        if (out->actions[i].kind != COORD_SEND)
            continue;
        if (d->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            snprintf(r->nonce, sizeof r->nonce, "%s", d->challenge->nonce);
        if (d->body_case == WEFT__V1__DOWN__BODY_STORAGE)
            r->asked += d->storage->op == WEFT__V1__STORAGE_OP__STORAGE_FIND;
    }
}

static void begin(struct rig *r, const char *known, const struct stored_row *meta)
{
    struct coord_config config = {.cluster = known};
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    r->c = coord_new(&config);
    if (meta)
        assert_int_equal(coord_load(r->c, &meta->row, NULL), 0);
    coord_started(r->c, r->now, 1700000000000, &out);
    take(r, &out);
    arena_clear(&a);
}

static int set_up(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    r.now = 1000000000;
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    coord_free(r->c);
    if (r->meta)
        stored_row_free(r->meta);
    return 0;
}

static void say(struct rig *r, const Weft__V1__Up *up)
{
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    struct coord_event ev = {
        .kind = COORD_EV_UP, .conn = r->conn, .up = up, .now_ns = r->now, .wall_ms = 1700000000000};
    assert_true(add_facts(&a, &ev, NULL));
    coord_step(r->c, &ev, &out);
    take(r, &out);
    arena_clear(&a);
}

static void attach_as(struct rig *r, int number, const char *name, const char *root)
{
    char host[33], inc[] = "00000000000000000000000000000002", id[33];
    snprintf(host, sizeof host, "%032x", (unsigned)number);
    r->conn = (uint64_t)number;
    snprintf(id, sizeof id, "%s", coord_cluster(r->c));
    Weft__V1__Up up;
    Weft__V1__Hello hello;
    Weft__V1__Register reg;
    weft__v1__up__init(&up);
    weft__v1__hello__init(&hello);
    weft__v1__register__init(&reg);
    hello.host = reg.host = host;
    hello.incarnation = reg.incarnation = inc;
    hello.cluster = reg.cluster = id;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    say(r, &up);
    reg.nonce = r->nonce;
    reg.name = frame_text(name);
    reg.checkpoint_root = frame_text(root);
    up.body_case = WEFT__V1__UP__BODY_REGISTER;
    up.register_ = &reg;
    say(r, &up);
}

static void attach(struct rig *r, const char *root)
{
    attach_as(r, 1, "alpha", root);
}

// An answer to FIND that lists nothing yet.
#define NEW_UP(up, done)                          \
    Weft__V1__Up up;                              \
    Weft__V1__StorageDone done;                   \
    weft__v1__up__init(&up);                      \
    weft__v1__storage_done__init(&done);          \
    done.op = WEFT__V1__STORAGE_OP__STORAGE_FIND; \
    done.ok = true;                               \
    up.body_case = WEFT__V1__UP__BODY_STORAGE;    \
    up.storage = &done

static void report_texts(struct rig *r, const char *job, uint64_t attempt, int64_t step,
                         const char *owner, const char *saved)
{
    NEW_UP(up, done);
    Weft__V1__FoundJob found, *list[] = {&found};
    Weft__V1__Checkpoint ckpt, *ckpts[] = {&ckpt, &ckpt};
    weft__v1__found_job__init(&found);
    weft__v1__checkpoint__init(&ckpt);
    ckpt.attempt = 3;
    ckpt.step = step;
    found.job = frame_text(job);
    found.name = frame_text("lost");
    found.resolved = frame_text(owner);
    found.saved = frame_text(saved);
    found.store = frame_text("/ckpt/lost-aaaabbbb");
    found.attempt = attempt;
    found.threads = r->threads;
    found.n_committed = 2; // the same twice
    found.committed = ckpts;
    done.n_found = 1;
    done.found = list;
    say(r, &up);
}

static void report(struct rig *r, const char *job, uint64_t attempt, int64_t step)
{
    report_texts(r, job, attempt, step, resolved, "");
}

static void a_lost_database_finds_its_jobs_again(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 1);
    report(r, lost_job, 4, 60);
    const Weft__V1__JobStatus *s = coord_status(r->c, "lost", &a, NULL);
    assert_non_null(s);
    assert_string_equal(s->job, lost_job);
    assert_int_equal(s->state, WEFT__V1__JOB_STATE__HELD);
    assert_non_null(strstr(s->text, "`weft adopt` takes it"));
    assert_string_equal(s->found, "alpha");
    assert_true(s->in_trouble); // it waits for `weft adopt`
    assert_int_equal(s->attempt, 4);
    assert_int_equal(s->checkpoint_step, 60);
    assert_int_equal(coord_checkpoints(r->c, "lost", &a, NULL)->n_checkpoints, 1);
    attach_as(r, 2, "beta", "/ckpt");
    report(r, lost_job, 4, 60); // another host sees the same folder
    assert_null(strstr(r->events, "host beta reports"));
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 1);
    arena_clear(&a);
}

static void hosts_that_come_back_later_are_asked_too_even_after_a_restart(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    assert_true(row_value(&r->meta->row, "lost_ms")->number > 0);
    coord_free(r->c);
    begin(r, cluster, r->meta);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 1);
}

static void nobody_is_asked_by_a_new_cluster_or_one_that_lost_nothing(void **state)
{
    struct rig *r = *state;
    begin(r, NULL, NULL);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 0);
    coord_free(r->c);
    begin(r, cluster, r->meta);
    attach(r, "/ckpt");
    assert_int_equal(r->asked, 0);
}

static void what_cannot_be_is_not_believed(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    static const struct {
        const char *job;
        uint64_t attempt;
        int64_t step;
        int threads;
    } lies[] = {{"no id", 4, 60, 2},   {lost_job, 2, 60, 2}, // its checkpoint is of attempt 3
                {lost_job, 4, -1, 2},  {lost_job, UINT64_MAX, 60, 2},
                {lost_job, 4, 60, -1}, {lost_job, 4, 60, 1025}};
    for (int i = 0; i < 6; i++) {
        attach_as(r, 1 + i, "alpha", "/ckpt");
        r->threads = lies[i].threads;
        report(r, lies[i].job, lies[i].attempt, lies[i].step);
    }
    assert_int_equal(r->asked, 6);
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 0);
    arena_clear(&a);
}

static void an_answer_that_nobody_asked_for_makes_no_jobs(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, NULL, NULL);
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60); // nothing was lost
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 0);
    coord_free(r->c);
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60);
    report(r, "bbbbbbbbccccddddaaaabbbbccccdddd", 4, 60); // and it was asked once
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 1);
    arena_clear(&a);
}

static void a_host_that_has_answered_is_not_asked_again(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    for (int i = 0; i < 3; i++) {
        char job[33];
        snprintf(job, sizeof job, "%032x", (unsigned)i);
        attach(r, "/ckpt");
        report(r, job, 4, 60);
    }
    assert_int_equal(r->asked, 1);
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 1);
    arena_clear(&a);
}

// What one host reports, as often as there are hosts: nobody has adopted any of it.
static void jobs_that_wait_to_be_adopted_are_limited(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    static Weft__V1__FoundJob jobs[FOUND_MAX], *list[FOUND_MAX];
    static char ids[FOUND_MAX][33];
    begin(r, cluster, NULL);
    for (int h = 0; h < 12; h++) {
        NEW_UP(up, done);
        for (int i = 0; i < FOUND_MAX; i++) {
            weft__v1__found_job__init(&jobs[i]);
            snprintf(ids[i], sizeof ids[i], "%032x", (unsigned)(h * FOUND_MAX + i));
            jobs[i].job = ids[i];
            jobs[i].name = frame_text("lost");
            jobs[i].resolved = frame_text(resolved);
            list[i] = &jobs[i];
        }
        done.n_found = FOUND_MAX;
        done.found = list;
        attach_as(r, 1 + h, "alpha", "/ckpt");
        say(r, &up);
    }
    assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, 10 * FOUND_MAX);
    arena_clear(&a);
}

static void act(struct rig *r, Weft__V1__Verb verb, const char *target)
{
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    Weft__V1__ActRequest q;
    weft__v1__act_request__init(&q);
    char id[33];
    snprintf(id, sizeof id, "%032d", ++r->acts);
    q.request_id = id;
    q.verb = verb;
    q.target = frame_text(target);
    struct coord_event ev = {.kind = COORD_EV_ACT,
                             .call = 1,
                             .act = &q,
                             .who = "jane",
                             .role = "client",
                             .now_ns = r->now,
                             .wall_ms = 1700000000000};
    r->refused[0] = 0;
    coord_step(r->c, &ev, &out);
    take(r, &out);
    arena_clear(&a);
}

static void submit(struct rig *r)
{
    struct arena a = {0};
    struct coord_out out = {.arena = &a};
    Weft__V1__SubmitRequest q;
    weft__v1__submit_request__init(&q);
    q.request_id = frame_text("ffffffffffffffffffffffffffffffff");
    q.resolved = frame_text(resolved);
    struct coord_event ev = {.kind = COORD_EV_SUBMIT,
                             .call = 1,
                             .submit = &q,
                             .who = "jane",
                             .role = "client",
                             .now_ns = r->now,
                             .wall_ms = 1700000000000};
    assert_true(add_facts(&a, &ev, NULL));
    coord_step(r->c, &ev, &out);
    take(r, &out);
    arena_clear(&a);
}

static int state_of(struct rig *r, const char *target)
{
    struct arena a = {0};
    const Weft__V1__JobStatus *s = coord_status(r->c, target, &a, NULL);
    int is = s ? (int)s->state : -1;
    arena_clear(&a);
    return is;
}

static void a_found_job_continues_only_after_somebody_adopted_it(void **state)
{
    struct rig *r = *state;
    struct arena a = {0};
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60);
    act(r, WEFT__V1__VERB__RESUME, "lost");
    assert_non_null(strstr(r->refused, "`weft adopt` it"));
    act(r, WEFT__V1__VERB__CANCEL, "lost");
    act(r, WEFT__V1__VERB__RESUME, "lost"); // not by this way either
    assert_non_null(strstr(r->refused, "`weft adopt` it"));
    assert_int_equal(state_of(r, "lost"), WEFT__V1__JOB_STATE__CANCELLED);
    act(r, WEFT__V1__VERB__ADOPT, "lost");
    assert_string_equal(r->refused, "");
    assert_string_equal(coord_status(r->c, "lost", &a, NULL)->owner, "jane");
    act(r, WEFT__V1__VERB__RESUME, "lost");
    assert_string_equal(r->refused, "");
    assert_int_equal(state_of(r, "lost"), WEFT__V1__JOB_STATE__QUEUED);
    arena_clear(&a);
}

static void a_found_job_never_has_the_name_of_one_that_a_person_made(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    submit(r); // the same name
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60);
    act(r, WEFT__V1__VERB__CANCEL, "lost");
    assert_int_equal(state_of(r, "lost"), WEFT__V1__JOB_STATE__CANCELLED);
    assert_int_equal(state_of(r, lost_job), WEFT__V1__JOB_STATE__HELD);
}

static void of_two_found_jobs_of_a_name_neither_has_it(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60);
    attach_as(r, 2, "beta", "/other");
    report(r, "bbbbbbbbccccddddaaaabbbbccccdddd", 4, 60);
    act(r, WEFT__V1__VERB__ADOPT, "lost");
    assert_non_null(strstr(r->refused, "names 2 jobs that were found again: give an id"));
    act(r, WEFT__V1__VERB__ADOPT, "bbbb");
    assert_string_equal(r->refused, "");
    act(r, WEFT__V1__VERB__RESUME, "lost"); // now it is clear which
    assert_int_equal(state_of(r, "bbbb"), WEFT__V1__JOB_STATE__QUEUED);
}

static void hosts_that_report_different_things_of_a_job_are_named(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report(r, lost_job, 4, 60);
    attach_as(r, 2, "beta", "/ckpt");
    report(r, lost_job, 9, 60);
    assert_non_null(strstr(r->events, "found: host beta reports attempt 9"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
// The list may be long, and others want to be heard in between.
static void a_list_is_taken_in_pieces(void **state)
{
    enum { JOBS = 3 };
    struct rig *r = *state;
    Weft__V1__FoundJob found[JOBS], *list[JOBS];
    Weft__Plan__JobFacts *facts[JOBS];
    char ids[JOBS][33];
    struct arena a = {0};
    NEW_UP(up, done);
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    for (int i = 0; i < JOBS; i++) {
        weft__v1__found_job__init(list[i] = &found[i]);
        snprintf(ids[i], sizeof ids[i], "%032x", 0xb0 + (unsigned)i);
        found[i].job = ids[i];
        found[i].name = frame_text("lost");
        found[i].resolved = frame_text(resolved);
        found[i].store = frame_text("/ckpt/lost");
        found[i].attempt = 1;
        facts[i] = read_facts(&a, resolved, "", "");
    }
    done.n_found = JOBS;
    done.found = list;
    for (int from = 0; from < JOBS; from += 2) {
        struct coord_out out = {.arena = &a};
        struct coord_event ev = {.kind = COORD_EV_FOUND,
                                 .conn = r->conn,
                                 .up = &up,
                                 .facts = facts,
                                 .from = from,
                                 .to = from ? JOBS : 2,
                                 .now_ns = r->now,
                                 .wall_ms = 1700000000000};
        assert_true(coord_awaits_found(r->c, r->conn));
        coord_step(r->c, &ev, &out);
        take(r, &out);
        assert_int_equal(coord_jobs(r->c, true, 0, 0, &a)->n_jobs, from ? JOBS : 2);
    }
    assert_false(coord_awaits_found(r->c, r->conn));
    arena_clear(&a);
}

static const char other_rate[] =
    "name: lost\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\n"
    "mesh: {dp: 2}\ndata: {train: {images: i, labels: l}, batch: 4}\n"
    "schedule: {kind: constant, value: 0.5}\ntrain: {steps: 100}\n";
static const char other_seed[] =
    "name: lost\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\n"
    "mesh: {dp: 2}\ndata: {train: {images: i, labels: l}, batch: 4}\n"
    "train: {steps: 100, seed: 99}\n";

static void
a_found_text_that_changed_since_its_checkpoint_says_how_before_it_is_adopted(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report_texts(r, lost_job, 4, 60, other_rate, resolved);
    assert_non_null(strstr(r->events, "differs from the newest checkpoint there: schedule"));
    assert_non_null(strstr(r->events, "0.5"));
    act(r, WEFT__V1__VERB__ADOPT, "lost"); // such keys may be changed while it trains
    assert_string_equal(r->refused, "");
}

static void a_found_text_of_another_training_than_its_checkpoint_is_not_adopted(void **state)
{
    struct rig *r = *state;
    begin(r, cluster, NULL);
    attach(r, "/ckpt");
    report_texts(r, lost_job, 4, 60, other_seed, resolved);
    assert_non_null(strstr(r->events, "another training than the newest checkpoint there, which "
                                      "differs in train.seed"));
    act(r, WEFT__V1__VERB__ADOPT, "lost");
    assert_non_null(strstr(r->refused, "differs in train.seed: put OWNER right"));
    act(r, WEFT__V1__VERB__RESUME, "lost");
    assert_non_null(strstr(r->refused, "nobody has adopted it"));
    attach_as(r, 2, "beta", "/ckpt"); // it was put right, and another host sees it
    r->refused[0] = 0;
    report(r, lost_job, 4, 60);
    act(r, WEFT__V1__VERB__ADOPT, "lost");
    assert_string_equal(r->refused, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_lost_database_finds_its_jobs_again),
        CASE(hosts_that_come_back_later_are_asked_too_even_after_a_restart),
        CASE(nobody_is_asked_by_a_new_cluster_or_one_that_lost_nothing),
        CASE(what_cannot_be_is_not_believed),
        CASE(an_answer_that_nobody_asked_for_makes_no_jobs),
        CASE(a_host_that_has_answered_is_not_asked_again),
        CASE(jobs_that_wait_to_be_adopted_are_limited),
        CASE(a_found_job_continues_only_after_somebody_adopted_it),
        CASE(a_found_job_never_has_the_name_of_one_that_a_person_made),
        CASE(of_two_found_jobs_of_a_name_neither_has_it),
        CASE(hosts_that_report_different_things_of_a_job_are_named),
        CASE(a_list_is_taken_in_pieces),
        CASE(a_found_text_that_changed_since_its_checkpoint_says_how_before_it_is_adopted),
        CASE(a_found_text_of_another_training_than_its_checkpoint_is_not_adopted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
