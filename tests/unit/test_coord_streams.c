// SPDX-License-Identifier: Apache-2.0
// Watchers and readers of logs where gRPC and the decider are doubles: what a full queue does, and
// what a watcher is told.
#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "coordinator/serve/streams.h"
#include "tests/unit/unit.h"

enum { READER = 1, WATCHER = 2, HOST = 7, OTHER_HOST = 8, NEWEST = 3, EVENTS = 3 };

static uint64_t full; // the stream whose queue is full
static struct buf did;

// ---- gRPC ----

int rpc_send(struct rpc *r, uint64_t call, const ProtobufCMessage *m, struct err *e)
{
    (void)r;
    if (call == full)
        return err_set(e, ERR_LIMIT, "full");
    bool update = m->descriptor == &weft__v1__watch_update__descriptor;
    const Weft__V1__WatchUpdate *u = update ? (const void *)m : NULL;
    if (u && u->event && u->event->seq)
        buf_printf(&did, "event %d to %d; ", (int)u->event->seq, (int)call);
    else
        buf_printf(&did, "%s to %d; ", m->descriptor->short_name, (int)call);
    return 0;
}

void rpc_finish(struct rpc *r, uint64_t call, enum rpc_code code, const char *text)
{
    (void)r, (void)text;
    buf_printf(&did, "end %d with %d; ", (int)call, (int)code);
}

void rpc_cancel(struct rpc *r, uint64_t call)
{
    (void)r;
    buf_printf(&did, "cut %d; ", (int)call);
}

static void expect_did(const char *want)
{
    assert_string_equal(buf_str(&did), want);
    buf_reset(&did);
}

// ---- the decider: a running job with a rank on each of two hosts, in attempt NEWEST ----

Weft__V1__JobStatus *coord_status(const struct coord *c, const char *target, struct arena *a,
                                  struct err *e)
{
    (void)c, (void)e;
    Weft__V1__JobStatus *s = arena_new(a, Weft__V1__JobStatus);
    weft__v1__job_status__init(s);
    s->job = frame_text(target);
    s->state = WEFT__V1__JOB_STATE__RUNNING;
    return s;
}

int coord_log_hosts(const struct coord *c, const char *target, int rank, uint64_t attempt,
                    uint64_t *conns, int max, char job[ID_LEN], struct err *e)
{
    (void)c, (void)rank, (void)max;
    if (attempt > NEWEST) {
        err_set(e, ERR_INVALID, "no such attempt yet");
        return -1;
    }
    snprintf(job, ID_LEN, "%s", target);
    conns[0] = HOST;
    conns[1] = OTHER_HOST;
    return 2;
}

// ---- the database: a job of EVENTS events ----

int db_events(struct db *s, const char *job, uint64_t seq, struct arena *a, Weft__V1__Event ***out,
              size_t *n, struct err *e)
{
    (void)s, (void)e;
    assert_string_equal(job, "job");
    *out = arena_array(a, Weft__V1__Event *, EVENTS);
    for (*n = 0; seq <= EVENTS; seq++) {
        Weft__V1__Event *event = arena_new(a, Weft__V1__Event);
        weft__v1__event__init(event);
        event->seq = seq;
        (*out)[(*n)++] = event;
    }
    return 0;
}

// ---- what clients ask ----

static void read_logs_of(struct streams *s, uint64_t attempt, bool follow)
{
    Weft__V1__LogsRequest q;
    weft__v1__logs_request__init(&q);
    q.job = frame_text("job");
    q.attempt = attempt;
    q.follow = follow;
    streams_logs(s, READER, &q);
}

static void read_logs(struct streams *s)
{
    read_logs_of(s, 0, false);
}

static void watch_from(struct streams *s, bool states, uint64_t from_event)
{
    Weft__V1__JobRequest q;
    weft__v1__job_request__init(&q);
    q.job = frame_text("job");
    q.states = states;
    q.from_event = from_event;
    streams_watch(s, WATCHER, &q);
}

static void watch(struct streams *s, bool states)
{
    watch_from(s, states, 0);
}

static void publish(struct streams *s, Weft__V1__JobStatus *status, Weft__Rank__StepReport *report,
                    Weft__V1__Event *event)
{
    Weft__V1__WatchUpdate u;
    weft__v1__watch_update__init(&u);
    u.status = status;
    u.report = report;
    u.event = event;
    streams_publish(s, "job", &u);
}

static void publish_one_of_each(struct streams *s)
{
    Weft__V1__JobStatus status;
    Weft__Rank__StepReport report;
    Weft__V1__Event event;
    weft__v1__job_status__init(&status);
    weft__rank__step_report__init(&report);
    weft__v1__event__init(&event);
    publish(s, NULL, &report, NULL);
    publish(s, NULL, NULL, &event);
    publish(s, &status, NULL, NULL);
}

// ---- cases ----

static void a_reader_waits_for_no_host_that_could_not_be_asked(void **state)
{
    struct streams *s = *state;
    full = HOST;
    read_logs(s);
    expect_did("cut 7; Down to 8; ");
    streams_host_gone(s, HOST); // as the end of its stream tells
    streams_host_gone(s, OTHER_HOST);
    expect_did("end 1 with 0; ");
}

static void a_host_that_a_stop_could_not_reach_sends_nothing_more(void **state)
{
    struct streams *s = *state;
    read_logs(s);
    expect_did("Down to 7; Down to 8; ");
    full = OTHER_HOST;
    streams_closed(s, READER);
    expect_did("Down to 7; cut 8; ");
}

static void only_who_follows_waits_for_an_attempt_that_is_yet_to_come(void **state)
{
    struct streams *s = *state;
    char refused[40];
    snprintf(refused, sizeof refused, "end 1 with %d; ", (int)RPC_INVALID_ARGUMENT);
    read_logs_of(s, NEWEST + 1, false);
    expect_did(refused);
    read_logs_of(s, NEWEST + 1, true);
    expect_did("Down to 7; Down to 8; ");
    streams_closed(s, READER);
    expect_did("Down to 7; Down to 8; ");
}

static void who_watches_states_hears_of_nothing_else(void **state)
{
    struct streams *s = *state;
    watch(s, true);
    expect_did("WatchUpdate to 2; ");
    publish_one_of_each(s);
    expect_did("WatchUpdate to 2; ");
}

static void who_watches_all_hears_of_all(void **state)
{
    struct streams *s = *state;
    watch(s, false);
    publish_one_of_each(s);
    expect_did("WatchUpdate to 2; WatchUpdate to 2; WatchUpdate to 2; WatchUpdate to 2; ");
}

static void who_watches_late_hears_first_what_has_happened_meanwhile(void **state)
{
    struct streams *s = *state;
    watch_from(s, false, 2);
    expect_did("event 2 to 2; event 3 to 2; WatchUpdate to 2; ");
    publish_one_of_each(s);
    expect_did("WatchUpdate to 2; WatchUpdate to 2; WatchUpdate to 2; ");
}

static void who_watches_late_and_reads_too_slowly_loses_the_stream(void **state)
{
    struct streams *s = *state;
    char end[40];
    snprintf(end, sizeof end, "end 2 with %d; ", (int)RPC_RESOURCE_EXHAUSTED);
    full = WATCHER;
    watch_from(s, false, 2);
    expect_did(end);
    full = 0;
    publish_one_of_each(s);
    expect_did("");
}

static int setup(void **state)
{
    static struct streams s;
    full = 0;
    buf_reset(&did);
    streams_init(&s, NULL, NULL, (struct db *)(void *)&full); // not looked into
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    streams_clear(*state);
    buf_clear(&did);
    return 0;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_reader_waits_for_no_host_that_could_not_be_asked),
        CASE(a_host_that_a_stop_could_not_reach_sends_nothing_more),
        CASE(only_who_follows_waits_for_an_attempt_that_is_yet_to_come),
        CASE(who_watches_states_hears_of_nothing_else),
        CASE(who_watches_all_hears_of_all),
        CASE(who_watches_late_hears_first_what_has_happened_meanwhile),
        CASE(who_watches_late_and_reads_too_slowly_loses_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
