// SPDX-License-Identifier: Apache-2.0
// 10,000 queued jobs on 1,000 hosts of 8 devices, through the decider itself: what one round of
// placement costs, what submitting them costs, and their memory. No I/O: rows and messages are
// made and thrown away, as they are in the daemon before the store and the network see them.
//
//   bench_placement [JOBS [HOSTS]]
//
// Each line is one mix of jobs. First the cluster is filled with jobs of one rank, then JOBS are
// submitted, each with a round of its own; then running jobs are cancelled one by one: a job that
// has not started yet is over at once, so that its device is free in the round of the same step.
// That step is what is timed, in CPU time. The last lines are of rounds that preempt, and of hosts
// that come one by one while the jobs wait.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/attempt/frame.h"
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "coordinator/decide/coord.h"
#include "tests/support/text_facts.h"

enum { DEVICES = 8, ROUNDS = 21, LEASE_MS = 1000 };

struct bench {
    struct coord *c;
    int64_t now_ns;
    int njobs, nhosts, asked;
    char (*placed)[33]; // ids, in the order of submission
    int nplaced;
    char nonce[33], job[33];
    int sent; // messages to hosts in the newest step
};

struct mix {
    const char *name;
    int ranks[4], max_hosts[4]; // of the i-th job: entry i % 4
};

// Of this process: whatever else runs on the machine is not in it.
static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// ---- the decider's other side ----

static double step(struct bench *b, struct coord_event *ev)
{
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    ev->now_ns = b->now_ns += 1000;
    ev->wall_ms = 1700000000000 + b->now_ns / CLOCK_MS;
    PRE(add_facts(&a, ev, NULL));
    double start = cpu_ms();
    coord_step(b->c, ev, &out);
    double ms = cpu_ms() - start;
    b->sent = 0;
    for (int i = 0; i < out.nactions; i++) {
        const struct coord_action *x = &out.actions[i];
        b->sent += x->kind == COORD_SEND;
        if (x->kind == COORD_SEND && x->down->body_case == WEFT__V1__DOWN__BODY_CHALLENGE)
            snprintf(b->nonce, sizeof b->nonce, "%s", x->down->challenge->nonce);
        if (x->kind == COORD_REPLY && ev->kind == COORD_EV_SUBMIT)
            snprintf(b->job, sizeof b->job, "%s",
                     ((const Weft__V1__SubmitReply *)(const void *)x->reply)->job);
        if (x->kind == COORD_REFUSE) {
            fprintf(stderr, "bench_placement: refused: %s\n", x->text);
            exit(1);
        }
    }
    arena_clear(&a);
    return ms;
}

static void say(struct bench *b, uint64_t conn, Weft__V1__Up *up)
{
    struct coord_event ev = {.kind = COORD_EV_UP, .conn = conn, .up = up};
    (void)step(b, &ev);
}

static void attach(struct bench *b, int host)
{
    char id[33], incarnation[33], name[32], rack[32];
    Weft__V1__Up up = WEFT__V1__UP__INIT;
    Weft__V1__Hello hello;
    Weft__V1__Register r;
    Weft__V1__Device device, *devices[DEVICES];
    snprintf(id, sizeof id, "%032x", host + 1);
    snprintf(incarnation, sizeof incarnation, "%032x", 0x10000 + host);
    snprintf(name, sizeof name, "host-%04d", host);
    snprintf(rack, sizeof rack, "rack-%02d", host / 32);
    weft__v1__hello__init(&hello);
    hello.host = id;
    hello.incarnation = incarnation;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    say(b, (uint64_t)host + 1, &up);
    weft__v1__device__init(&device);
    device.kind = frame_text("cpu");
    device.model = frame_text("pretended");
    weft__v1__register__init(&r);
    for (int i = 0; i < DEVICES; i++)
        devices[i] = &device;
    r.nonce = b->nonce;
    r.cluster = frame_text(coord_cluster(b->c));
    r.host = id;
    r.incarnation = incarnation;
    r.name = name;
    r.rack = rack;
    r.address = frame_text("10.0.0.1");
    r.devices = devices;
    r.n_devices = DEVICES;
    up.body_case = WEFT__V1__UP__BODY_REGISTER;
    up.register_ = &r;
    say(b, (uint64_t)host + 1, &up);
}

static void attach_all(struct bench *b)
{
    for (int i = 0; i < b->nhosts; i++)
        attach(b, i);
}

// ---- jobs ----

static double submit(struct bench *b, int ranks, int max_hosts, int priority)
{
    struct buf text = {0};
    char id[33];
    Weft__V1__SubmitRequest q;
    weft__v1__submit_request__init(&q);
    buf_printf(&text,
               "name: load-%d\nmodel: {program: mlp, inputs: 64, hidden: [8], classes: 4}\nmesh: "
               "{dp: %d}\n"
               "data: {train: {images: i, labels: l}, batch: %d}\noptimizer: {kind: sgd}\n"
               "schedule: {kind: constant, value: 0.1}\ntrain: {steps: 1000000}\n"
               "checkpoint: {dir: .}\nresources: {priority: %d, hosts: %d}\n",
               b->asked, ranks, ranks, priority, max_hosts);
    snprintf(id, sizeof id, "%032x", 0x7000000 + b->asked++);
    q.request_id = id;
    q.resolved = frame_text(buf_str(&text));
    struct coord_event ev = {.kind = COORD_EV_SUBMIT, .who = "me", .role = "local", .submit = &q};
    double ms = step(b, &ev);
    buf_clear(&text);
    return ms;
}

static double cancel(struct bench *b, char *job)
{
    char id[33];
    Weft__V1__ActRequest q;
    weft__v1__act_request__init(&q);
    snprintf(id, sizeof id, "%032x", 0x7000000 + b->asked++);
    q.request_id = id;
    q.verb = WEFT__V1__VERB__CANCEL;
    q.target = job;
    struct coord_event ev = {.kind = COORD_EV_ACT, .who = "me", .role = "local", .act = &q};
    return step(b, &ev);
}

static void open_coord(struct bench *b)
{
    struct coord_config config = {.seed = "the same ids every time",
                                  .lease_ns = LEASE_MS * CLOCK_MS};
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    b->now_ns = CLOCK_S;
    b->c = coord_new(&config);
    coord_started(b->c, b->now_ns, 1700000000000, &out);
    arena_clear(&a);
    for (int i = 0; i < 6; i++) { // the grace is over
        b->now_ns += LEASE_MS / 5 * CLOCK_MS;
        struct coord_event ev = {.kind = COORD_EV_TICK};
        (void)step(b, &ev);
    }
}

static void fill(struct bench *b)
{
    b->nplaced = b->nhosts * DEVICES;
    for (int i = 0; i < b->nplaced; i++) {
        (void)submit(b, 1, 1, 0);
        memcpy(b->placed[i], b->job, sizeof b->job);
    }
}

// ---- the numbers ----

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

// Of the heap, in use: freed memory of an earlier mix does not hide it.
static double heap_kb(void)
{
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd) / 1024;
}

static void rounds(struct bench *b, const struct mix *m)
{
    double ms[ROUNDS], all = 0;
    open_coord(b);
    attach_all(b);
    fill(b);
    double before = heap_kb();
    for (int i = 0; i < b->njobs; i++)
        all += submit(b, m->ranks[i % 4], m->max_hosts[i % 4], 0);
    double kb = heap_kb() - before;
    for (int i = 0; i < ROUNDS; i++)
        ms[i] = cancel(b, b->placed[i * 7]);
    qsort(ms, ROUNDS, sizeof *ms, by_value);
    printf("%-44s round: median %7.2f ms, max %7.2f ms; submit: %6.2f s for all, %.1f KB a job\n",
           m->name, ms[ROUNDS / 2], ms[ROUNDS - 1], all / 1e3, kb / b->njobs);
    coord_free(b->c);
}

static void preempting(struct bench *b, int ranks)
{
    open_coord(b);
    attach_all(b);
    fill(b);
    for (int i = 0; i < b->njobs; i++)
        (void)submit(b, 1, 1, 0);
    double ms = submit(b, ranks, 1000, 5);
    printf("a job of %4d ranks preempts as many of %d      %7.2f ms (%d messages)\n", ranks,
           b->nplaced, ms, b->sent);
    coord_free(b->c);
}

// Each registration is a round that finds room.
static void filling(struct bench *b)
{
    open_coord(b);
    for (int i = 0; i < b->njobs; i++)
        (void)submit(b, 1 << i % 4, 1, 0);
    double ms = 0, most = 0;
    double start = cpu_ms();
    for (int i = 0; i < b->nhosts; i++) {
        double at = cpu_ms();
        attach(b, i);
        ms = cpu_ms() - at;
        most = ms > most ? ms : most;
    }
    printf("hosts attach one by one, jobs of 1 to 8 ranks wait: %.2f ms a host, max %.2f ms\n",
           (cpu_ms() - start) / b->nhosts, most);
    coord_free(b->c);
}

int main(int argc, char **argv)
{
    static const struct mix mixes[] = {
        {"jobs of 1 rank", {1, 1, 1, 1}, {1, 1, 1, 1}},
        {"jobs of 1, 2, 4, 8 ranks on one host", {1, 2, 4, 8}, {1, 1, 1, 1}},
        {"jobs of 4, 16, 64, 256 ranks over hosts", {4, 16, 64, 256}, {1000, 1000, 1000, 1000}},
        {"jobs that fit no host (16 ranks, hosts: 1)", {16, 16, 16, 16}, {1, 1, 1, 1}},
        {"jobs that never fit (64 ranks, hosts: 4)", {64, 64, 64, 64}, {4, 4, 4, 4}},
    };
    struct bench b = {.njobs = argc > 1 ? atoi(argv[1]) : 10000,
                      .nhosts = argc > 2 ? atoi(argv[2]) : 1000};
    b.placed = calloc((size_t)b.nhosts * DEVICES, sizeof *b.placed);
    PRE(b.placed != NULL && b.njobs > 0 && b.nhosts * DEVICES > 7 * ROUNDS);
    printf("%d jobs wait, %d hosts of %d devices\n", b.njobs, b.nhosts, DEVICES);
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        rounds(&b, &mixes[i]);
        fflush(stdout);
    }
    preempting(&b, 64);
    preempting(&b, 1024);
    filling(&b);
    free(b.placed);
    return 0;
}
