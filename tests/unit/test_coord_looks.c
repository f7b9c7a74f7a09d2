// SPDX-License-Identifier: Apache-2.0
// What is concluded from the workers' answers about the data of a submitted job, over as many of
// them as a cluster may have. The decider and the questions are real, the answers are the test's;
// nothing is sent. That questions reach workers is test_coord_service's.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "coordinator/serve/data_looks.h"
#include "tests/support/text_facts.h"
#include "tests/unit/unit.h"

enum { CONN = 100, NOW_S = 5, WALL_MS = 1700000000 };
#define NEW(Type, type, name) \
    Weft__V1__##Type name;    \
    weft__v1__##type##__init(&name)

struct desk {
    struct coord *c;
    struct rpc *rpc; // without a connection
    struct data_looks looks;
    int hosts;
    char job[1000];
};

static int set_up(void **state)
{
    static const struct coord_config config = {.lease_ns = 10 * CLOCK_S};
    struct desk *d = calloc(1, sizeof *d);
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    d->c = coord_new(&config);
    coord_started(d->c, CLOCK_S, WALL_MS, &out);
    arena_clear(&a);
    data_looks_init(&d->looks);
    *state = d;
    return rpc_open(&d->rpc, NULL);
}

static int tear_down(void **state)
{
    struct desk *d = *state;
    data_looks_clear(&d->looks);
    rpc_close(d->rpc);
    coord_free(d->c);
    free(d);
    return 0;
}

// The next host says `up`; `nonce` gets that of the answer's challenge.
static void say_up(struct desk *d, int host, const Weft__V1__Up *up, char nonce[80])
{
    struct arena a;
    struct coord_event ev = {.kind = COORD_EV_UP,
                             .now_ns = NOW_S * CLOCK_S,
                             .wall_ms = WALL_MS,
                             .conn = CONN + (uint64_t)host,
                             .up = up};
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    coord_step(d->c, &ev, &out);
    for (int i = 0; i < out.nactions; i++)
        if (out.actions[i].kind == COORD_SEND &&
            out.actions[i].down->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            snprintf(nonce, 80, "%s", out.actions[i].down->challenge->nonce);
    arena_clear(&a);
}

// Hosts w0, w1, … with so many CPU devices each.
static void attach_hosts(struct desk *d, int n, int devices)
{
    for (int end = d->hosts + n; d->hosts < end; d->hosts++) {
        char id[33], name[20], nonce[80] = "";
        NEW(Up, up, up);
        NEW(Hello, hello, hello);
        NEW(Register, register, r);
        NEW(Device, device, device);
        Weft__V1__Device *list[8];
        snprintf(id, sizeof id, "%032x", 0xa000 + d->hosts);
        snprintf(name, sizeof name, "w%d", d->hosts);
        hello.host = hello.incarnation = r.host = r.incarnation = id;
        up.body_case = WEFT__V1__UP__BODY_HELLO;
        up.hello = &hello;
        say_up(d, d->hosts, &up, nonce);
        device.kind = frame_text("cpu");
        for (int i = 0; i < devices; i++)
            list[i] = &device;
        r.nonce = nonce;
        r.cluster = frame_text(coord_cluster(d->c));
        r.name = name;
        r.devices = list;
        r.n_devices = (size_t)devices;
        up.body_case = WEFT__V1__UP__BODY_REGISTER;
        up.register_ = &r;
        say_up(d, d->hosts, &up, nonce);
    }
}

// As the planner leaves them.
static Weft__Plan__JobFacts **copy_facts(const char *text)
{
    struct arena a;
    uint8_t packed[4000];
    Weft__Plan__JobFacts **facts = calloc(1, sizeof *facts);
    arena_init(&a);
    size_t len = weft__plan__job_facts__pack(read_facts(&a, text, "", NULL), packed);
    facts[0] = weft__plan__job_facts__unpack(NULL, len, packed);
    arena_clear(&a);
    return facts;
}

// Asks about the job; whether it was asked. `about` is what is left.
static bool begin_job(struct desk *d, struct checked_job *about)
{
    NEW(SubmitRequest, submit_request, q);
    uint8_t packed[2000];
    q.resolved = d->job;
    size_t len = weft__v1__submit_request__pack(&q, packed);
    *about = (struct checked_job){.job.ncalls = 1};
    about->job.submit = weft__v1__submit_request__unpack(NULL, len, packed);
    about->job.facts = copy_facts(d->job);
    return data_looks_begin(&d->looks, d->rpc, d->c, about, NOW_S * CLOCK_S);
}

// A job of so many ranks with two files.
static bool begin(struct desk *d, int ranks, const char *images, struct checked_job *about)
{
    snprintf(d->job, sizeof d->job,
             "name: it\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: %d}\n"
             "data: {train: {images: %s, labels: y}, batch: %d}\ntrain: {steps: 10}\n",
             ranks, images, 12 * ranks);
    return begin_job(d, about);
}

static void ask(struct desk *d, int ranks, const char *images)
{
    struct checked_job about;
    assert_true(begin(d, ranks, images, &about));
}

enum { DIR = 1 << 2 }; // of a job with two files
// The host has not these of the files, and may not have the checkpoints (DIR), as bits, and says why.
static void answer_to(struct desk *d, uint64_t question, int host, unsigned lacks)
{
    NEW(StorageDone, storage_done, m);
    int32_t missing[3];
    char *why[3];
    m.ok = true;
    m.attempt = question;
    m.missing = missing;
    m.missing_why = why;
    for (int i = 0; i < 3; i++) {
        if (!(lacks >> i & 1))
            continue;
        why[m.n_missing] = frame_text(host ? "other words" : "the first\nand more");
        missing[m.n_missing++] = i;
    }
    m.n_missing_why = m.n_missing;
    data_looks_hear(&d->looks, CONN + (uint64_t)host, &m);
}

static void answer(struct desk *d, int host, unsigned lacks)
{
    answer_to(d, d->looks.last_question, host, lacks);
}

static void answer_alike(struct desk *d, int from, int to, unsigned lacks)
{
    for (int i = from; i < to; i++)
        answer(d, i, lacks);
}

// What has been concluded by then: `refused` or `notice`, or neither.
static void concluded(struct desk *d, int64_t at_s, const char *refused, const char *notice)
{
    struct checked_job l;
    assert_true(data_looks_next(&d->looks, at_s * CLOCK_S, &l));
    assert_string_equal(l.job.refused.code ? l.job.refused.text : "", refused);
    assert_string_equal(l.notice, notice);
    planned_clear(&l.job);
}

static void not_concluded(struct desk *d, int64_t at_s)
{
    struct checked_job l;
    assert_false(data_looks_next(&d->looks, at_s * CLOCK_S, &l));
}

// ---- cases ----

#define HINT   " (relative paths of submitted jobs start at the workers' --data-root)"
#define NOBODY "no worker here that could take the job has this data"

static void every_worker_of_a_large_cluster_is_asked(void **state)
{
    struct desk *d = *state;
    enum { MANY = 1000 };
    attach_hosts(d, MANY, 1);
    ask(d, 2, "x");
    answer_alike(d, 0, MANY - 1, 1);
    not_concluded(d, NOW_S);
    answer(d, MANY - 1, 1);
    concluded(d, NOW_S, NOBODY HINT ": data.train.images: x cannot be opened (w0: the first)", "");
    ask(d, 2, "x");
    answer_alike(d, 0, MANY - 1, 1);
    answer(d, MANY - 1, 0); // the last has it: ranks find out
    concluded(d, NOW_S, "", "");
}

static void every_file_that_all_of_them_miss_is_named(void **state)
{
    struct desk *d = *state;
    attach_hosts(d, 2, 1);
    ask(d, 1, "/data/x");
    answer_alike(d, 0, 2, 1 << 0 | 1 << 1);
    concluded(d, NOW_S,
              NOBODY HINT ": data.train.images: /data/x cannot be opened (w0: the first); "
                          "data.train.labels: y cannot be opened (w0: the first)",
              "");
    ask(d, 1, "/data/x");
    answer(d, 0, 1 << 0);
    answer(d, 1, 1 << 1);
    concluded(d, NOW_S, "", "");
}

static void who_is_silent_may_have_it(void **state)
{
    struct desk *d = *state;
    attach_hosts(d, 3, 1);
    ask(d, 1, "/data/x");
    answer_alike(d, 0, 2, 1);
    not_concluded(d, NOW_S + LOOK_S - 1);
    concluded(d, NOW_S + LOOK_S, "", "");
    ask(d, 1, "/data/x");
    answer_alike(d, 0, 2, 1);
    data_looks_host_gone(&d->looks, CONN + 2);
    data_looks_host_gone(&d->looks, CONN + 2); // once
    concluded(d, NOW_S, "", "");
}

static void one_worker_counts_once(void **state)
{
    struct desk *d = *state;
    NEW(StorageDone, storage_done, m);
    int32_t missing[] = {0, 0, 0};
    attach_hosts(d, 2, 1);
    ask(d, 1, "/data/x");
    m.ok = true;
    m.attempt = d->looks.last_question;
    m.missing = missing;
    m.n_missing = 3;
    assert_true(data_looks_hear(&d->looks, CONN, &m));
    assert_false(data_looks_hear(&d->looks, CONN, &m));
    answer(d, 1, 0);
    concluded(d, NOW_S, "", "");
}

static void a_job_that_nobody_was_asked_about_is_taken_with_a_notice(void **state)
{
    struct desk *d = *state;
    struct checked_job about;
    attach_hosts(d, 1, 1);
    int n = 0;
    while (begin(d, 1, "x", &about))
        n++;
    planned_clear(&about.job);
    assert_true(n > 0);
    char notice[200];
    snprintf(notice, sizeof notice,
             "no worker was asked whether its data is there: they are asked about %d jobs", n);
    assert_string_equal(about.notice, notice);
    concluded(d, NOW_S + LOOK_S, "", "");
    ask(d, 1, "x");
}

static void a_job_that_nobody_is_there_to_be_asked_about_is_taken_with_a_notice(void **state)
{
    struct desk *d = *state;
    struct checked_job about;
    assert_false(begin(d, 1, "x", &about));
    assert_string_equal(about.notice, "no worker was asked whether its data is there: none with a "
                                      "cpu device is attached");
    planned_clear(&about.job);
}

static void a_job_whose_checkpoints_would_leave_every_root_is_refused(void **state)
{
    struct desk *d = *state;
    attach_hosts(d, 2, 1);
    ask(d, 1, "/data/x");
    answer_alike(d, 0, 2, DIR);
    concluded(d, NOW_S,
              "no worker here that could take the job may keep its checkpoints there: "
              "checkpoint.dir: ckpt leaves the --checkpoint-root (w0: the first)",
              "");
    ask(d, 1, "/data/x");
    answer(d, 0, DIR);
    answer(d, 1, 0);
    concluded(d, NOW_S, "", "");
}

static void an_answer_to_a_former_coordinator_is_not_heard(void **state)
{
    struct desk *d = *state;
    attach_hosts(d, 1, 1);
    ask(d, 1, "/data/x");
    uint64_t former = d->looks.last_question;
    data_looks_clear(&d->looks);
    data_looks_init(&d->looks); // started again
    ask(d, 1, "/data/y");
    assert_true(d->looks.last_question != former);
    answer_to(d, former, 0, 1);
    not_concluded(d, NOW_S);
    answer(d, 0, 0);
    concluded(d, NOW_S, "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        CASE(every_worker_of_a_large_cluster_is_asked),
        CASE(every_file_that_all_of_them_miss_is_named),
        CASE(who_is_silent_may_have_it),
        CASE(one_worker_counts_once),
        CASE(an_answer_to_a_former_coordinator_is_not_heard),
        CASE(a_job_that_nobody_was_asked_about_is_taken_with_a_notice),
        CASE(a_job_that_nobody_is_there_to_be_asked_about_is_taken_with_a_notice),
        CASE(a_job_whose_checkpoints_would_leave_every_root_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
