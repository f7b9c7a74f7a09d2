// SPDX-License-Identifier: Apache-2.0
// The planner and its processes: a plan that hangs, dies or wants too much concerns the job and the
// user alone whose it is. This program is its own double of weft-coordinator: called with --planner
// it hangs or dies where the job's name says so, and else plans as weft-coordinator does.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "coordinator/serve/planner.h"
#include "coordinator/serve/planner_process.h"
#include "tests/unit/unit.h"

#define PATIENCE (60 * CLOCK_S) // a watchdog: nothing here takes long

static const char job_text[] = "name: %s\n"
                               "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n"
                               "mesh: {dp: 2}\n"
                               "data: {train: {images: x, labels: y}, batch: 12}\n"
                               "train: {steps: 10}\n";

static int run_double(int64_t memory)
{
    char text[sizeof job_text + 64] = "";
    struct pollfd p = {.fd = 0, .events = POLLIN};
    poll(&p, 1, -1);
    ssize_t n = pread(1, text, sizeof text - 1, 0);
    if (n > 0 && memmem(text, (size_t)n, "name: hang", 10))
        for (;;)
            pause();
    if (n > 0 && memmem(text, (size_t)n, "name: die", 9))
        abort();
    return planner_process_main(memory);
}

// ---- verbs ----

static struct planner *open_planner(int64_t time_ns, int64_t memory)
{
    struct planner *p;
    struct err e = {0};
    const struct planner_options o = {
        .program = "/proc/self/exe", .time_ns = time_ns, .memory = memory};
    assert_int_equal(planner_open(&o, &p, &e), 0);
    return p;
}

static int put(struct planner *p, const char *who, uint64_t call, const char *name, struct err *e)
{
    char text[sizeof job_text + 64], request[32];
    struct planned job = {.calls = {call}, .ncalls = 1};
    snprintf(text, sizeof text, job_text, name);
    snprintf(request, sizeof request, "of %s", name);
    snprintf(job.who, sizeof job.who, "%s", who);
    job.submit = malloc(sizeof *job.submit);
    weft__v1__submit_request__init(job.submit);
    job.submit->request_id = strdup(request);
    job.submit->resolved = strdup(text);
    return planner_put(p, &job, e);
}

// The next job that is decided; the caller's to forget.
static struct planned next(struct planner *p)
{
    struct planned done;
    struct pollfd fd = {planner_fd(p), POLLIN, 0};
    int64_t end = clock_mono_ns() + PATIENCE;
    while (!planner_next(p, &done)) {
        assert_true(clock_mono_ns() < end);
        poll(&fd, 1, 100);
    }
    return done;
}

static void expect(struct planner *p, uint64_t call, const char *refused)
{
    struct planned done = next(p);
    assert_int_equal(done.calls[0], call);
    if (!refused)
        assert_string_equal(done.refused.text, "");
    else if (!strstr(done.refused.text, refused))
        fail_msg("refused with '%s', not '%s'", done.refused.text, refused);
    assert_int_equal(done.refused.code != 0, refused != NULL);
    planned_clear(&done);
}

static void close_planner(struct planner *p)
{
    planner_close(p);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); // no process is left
    assert_int_equal(errno, ECHILD);
}

// ---- cases ----

static void jobs_of_one_user_leave_in_their_order_each_with_its_verdict(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    assert_int_equal(put(p, "a", 1, "one", NULL), 0);
    assert_int_equal(put(p, "a", 2, "two\nnonsense: 1", NULL), 0);
    assert_int_equal(put(p, "a", 3, "three", NULL), 0);
    expect(p, 1, NULL);
    expect(p, 2, "nonsense");
    expect(p, 3, NULL);
    close_planner(p);
}

static void a_plan_without_end_stops_neither_other_users_nor_the_planners_close(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    assert_int_equal(put(p, "a", 1, "hang", NULL), 0);
    assert_int_equal(put(p, "a", 2, "behind", NULL), 0);
    assert_int_equal(put(p, "b", 3, "other", NULL), 0);
    expect(p, 3, NULL);
    close_planner(p);
}

static void a_plan_whose_time_is_over_is_refused_and_the_next_one_made(void **state)
{
    (void)state;
    struct planner *p = open_planner(2 * CLOCK_S, 0);
    assert_int_equal(put(p, "a", 1, "hang", NULL), 0);
    assert_int_equal(put(p, "a", 2, "behind", NULL), 0);
    expect(p, 1, "longer than 2 s");
    struct planned done = next(p); // its own time may be over too, on a busy machine
    assert_int_equal(done.calls[0], 2);
    planned_clear(&done);
    close_planner(p);
}

static void a_process_that_dies_refuses_the_job_at_hand_alone(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    assert_int_equal(put(p, "a", 1, "die", NULL), 0);
    assert_int_equal(put(p, "a", 2, "behind", NULL), 0);
    expect(p, 1, "signal 6");
    expect(p, 2, NULL);
    close_planner(p);
}

static void a_plan_that_needs_more_than_its_memory_is_refused(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); // which needs terabytes of addresses
#endif
    struct planner *p = open_planner(0, 1 << 20);
    assert_int_equal(put(p, "a", 1, "one", NULL), 0);
    expect(p, 1, "of the 1.0 MiB of memory");
    close_planner(p);
}

static void a_client_that_leaves_takes_its_plan_along(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    struct planned done;
    assert_int_equal(put(p, "a", 1, "hang", NULL), 0);
    assert_int_equal(put(p, "a", 2, "waits", NULL), 0);
    assert_int_equal(put(p, "a", 3, "stays", NULL), 0);
    assert_false(planner_next(p, &done)); // the first is begun
    planner_cancel(p, 1);
    planner_cancel(p, 2);
    expect(p, 3, NULL);
    close_planner(p);
}

static void a_request_that_is_repeated_is_planned_once_and_answered_to_all(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    struct planned done;
    assert_int_equal(put(p, "a", 1, "one", NULL), 0);
    assert_int_equal(put(p, "a", 2, "one", NULL), 0);
    assert_int_equal(put(p, "a", 3, "one", NULL), 0);
    assert_int_equal(put(p, "b", 4, "one", NULL), 0); // another user's is another request
    planner_cancel(p, 1);                             // the others still want it
    for (int left = 2; left; left--) {
        done = next(p);
        assert_int_equal(done.ncalls, done.who[0] == 'a' ? 2 : 1);
        assert_int_equal(done.refused.code, 0);
        planned_clear(&done);
    }
    assert_false(planner_next(p, &done));
    close_planner(p);
}

static Weft__V1__FoundJob *make_found(const char *name)
{
    char text[sizeof job_text + 64];
    Weft__V1__FoundJob *f = malloc(sizeof *f);
    weft__v1__found_job__init(f);
    snprintf(text, sizeof text, job_text, name);
    f->resolved = strdup(text);
    return f;
}

static void put_found(struct planner *p, const char *host, const char *const *names, int n)
{
    struct planned found = {.conn = 7};
    snprintf(found.who, sizeof found.who, "%s", host);
    found.found = malloc(sizeof *found.found);
    weft__v1__up__init(found.found);
    found.found->body_case = WEFT__V1__UP__BODY_STORAGE;
    found.found->storage = malloc(sizeof *found.found->storage);
    weft__v1__storage_done__init(found.found->storage);
    found.found->storage->n_found = (size_t)n;
    found.found->storage->found = calloc((size_t)n, sizeof(void *));
    for (int i = 0; i < n; i++)
        found.found->storage->found[i] = make_found(names[i]);
    assert_int_equal(planner_put(p, &found, NULL), 0);
}

// Hosts may find any number of texts that take long to read.
static void what_hosts_found_keeps_no_one_who_submits_waiting(void **state)
{
    (void)state;
    static const char *const names[] = {"hang-1", "hang-2", "hang-3"};
    static const char *const hosts[] = {"h0", "h1", "h2", "h3", "h4", "h5"};
    struct planner *p = open_planner(3600 * CLOCK_S, 0);
    for (int i = 0; i < 6; i++)
        put_found(p, hosts[i], names, 3);
    assert_int_equal(put(p, "a", 9, "one", NULL), 0);
    expect(p, 9, NULL);
    close_planner(p);
}

// A text that kills its process takes no other along, nor does it wait behind a line that is full.
static void what_was_found_is_read_text_by_text(void **state)
{
    (void)state;
    static const char *const names[] = {"die", "one", "two\nnonsense: 1", "three"};
    enum { NAMES = sizeof names / sizeof *names };
    struct planner *p = open_planner(0, 0);
    char name[32];
    for (int i = 0; i < PLANNER_MAX; i++) {
        snprintf(name, sizeof name, "hang-%d", i);
        assert_int_equal(put(p, i % 2 ? "a" : "b", (uint64_t)i + 1, name, NULL), 0);
    }
    put_found(p, "host", names, NAMES);
    struct planned done = next(p);
    assert_int_equal(done.conn, 7);
    assert_int_equal(planned_texts(&done), NAMES);
    assert_non_null(strstr(done.facts[0]->refused, "signal 6"));
    assert_string_equal(done.facts[1]->name, "one");
    assert_int_equal(done.facts[1]->ranks, 2);
    assert_non_null(strstr(done.facts[2]->refused, "nonsense"));
    assert_string_equal(done.facts[3]->name, "three");
    planned_clear(&done);
    close_planner(p);
}

static void a_text_that_continues_another_is_compared_with_it(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    char before[sizeof job_text + 64], now[sizeof job_text + 64];
    snprintf(before, sizeof before, job_text, "one\nresources: {threads: 3}");
    snprintf(now, sizeof now, job_text, "one\nschedule: {kind: constant, value: 0.5}");
    struct planned job = {.calls = {1}, .ncalls = 1}, done;
    job.submit = malloc(sizeof *job.submit);
    weft__v1__submit_request__init(job.submit);
    job.submit->resolved = strdup(now);
    job.before = strdup(before);
    assert_int_equal(planner_put(p, &job, NULL), 0);
    done = next(p);
    assert_string_equal(done.refused.text, "");
    assert_string_equal(done.facts[0]->identity, "");
    assert_non_null(strstr(done.facts[0]->changes, "schedule.value"));
    assert_null(strstr(done.facts[0]->changes, "threads")); // it keeps those that it has
    assert_int_equal(done.facts[0]->threads, 0);
    assert_int_equal(strlen(done.facts[0]->before_hash), 64);
    assert_string_not_equal(done.facts[0]->before_hash, done.facts[0]->hash);
    planned_clear(&done);
    close_planner(p);
}

static void one_user_cannot_fill_the_line(void **state)
{
    (void)state;
    struct planner *p = open_planner(0, 0);
    struct err e = {0};
    char name[32];
    for (int i = 0; i < PLANNER_USER_MAX; i++) {
        snprintf(name, sizeof name, "hang-%d", i);
        assert_int_equal(put(p, "a", (uint64_t)i + 1, name, &e), 0);
    }
    assert_int_equal(put(p, "a", 99, "more", &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "32 jobs of a wait"));
    assert_int_equal(put(p, "b", 100, "other", &e), 0);
    expect(p, 100, NULL);
    close_planner(p);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--planner") == 0)
        return run_double(strtoll(argv[2], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_of_one_user_leave_in_their_order_each_with_its_verdict),
        cmocka_unit_test(a_plan_without_end_stops_neither_other_users_nor_the_planners_close),
        cmocka_unit_test(a_plan_whose_time_is_over_is_refused_and_the_next_one_made),
        cmocka_unit_test(a_process_that_dies_refuses_the_job_at_hand_alone),
        cmocka_unit_test(a_plan_that_needs_more_than_its_memory_is_refused),
        cmocka_unit_test(a_client_that_leaves_takes_its_plan_along),
        cmocka_unit_test(a_request_that_is_repeated_is_planned_once_and_answered_to_all),
        cmocka_unit_test(what_was_found_is_read_text_by_text),
        cmocka_unit_test(what_hosts_found_keeps_no_one_who_submits_waiting),
        cmocka_unit_test(a_text_that_continues_another_is_compared_with_it),
        cmocka_unit_test(one_user_cannot_fill_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
