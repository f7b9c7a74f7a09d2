// SPDX-License-Identifier: Apache-2.0
// 10,000 queued jobs in the coordinator's database: how long a restart takes until it answers, and
// what cancelling one of them costs, with its transaction.
//
//   bench_restart DIR [JOBS]        DIR: an empty folder on the disk to be measured
//
// The decider and the database are the product's; nobody is attached, so that no job starts. Times
// are of the wall clock, because a transaction waits for the disk.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "coordinator/decide/coord.h"
#include "coordinator/store/db.h"
#include "tests/support/text_facts.h"

enum { BATCH = 100, JOBS = 10000, CANCELS = 500 };

struct bench {
    const char *dir;
    struct db *db;
    struct coord *c;
    int njobs, asked;
    char (*jobs)[33];
    int nsubmitted;
};

static void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_restart: %s\n", e->text);
    exit(1);
}

static double now_ms(void)
{
    return (double)clock_mono_ns() / 1e6;
}

// ---- the daemon's part ----

static int load_row(void *ctx, const struct row *row, struct err *e)
{
    return coord_load(ctx, row, e);
}

static void commit(struct bench *b, struct coord_out *out)
{
    struct err e = {0};
    must(db_commit(b->db, out->rows, out->nrows, &e), &e);
    for (int i = 0; i < out->nactions; i++) {
        const struct coord_action *x = &out->actions[i];
        if (x->kind == COORD_REPLY && x->reply->descriptor == &weft__v1__submit_reply__descriptor)
            memcpy(b->jobs[b->nsubmitted++],
                   ((const Weft__V1__SubmitReply *)(const void *)x->reply)->job, 33);
    }
}

static void begin(struct bench *b)
{
    struct coord_config config = {.seed = "the same ids every time"};
    struct err e = {0};
    struct arena a;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    must(db_open(&b->db, b->dir, DB_OWN, &e), &e);
    b->c = coord_new(&config);
    must(db_load(b->db, load_row, b->c, &e), &e);
    coord_started(b->c, clock_mono_ns(), clock_wall_ms(), &out);
    commit(b, &out);
    arena_clear(&a);
}

static void end(struct bench *b)
{
    coord_free(b->c);
    db_close(b->db);
}

static void step(struct bench *b, struct coord_event *ev, struct coord_out *out)
{
    ev->now_ns = clock_mono_ns();
    ev->wall_ms = clock_wall_ms();
    PRE(add_facts(out->arena, ev, NULL));
    coord_step(b->c, ev, out);
}

// ---- the users' part ----

static void submit(struct bench *b, struct coord_out *out)
{
    struct buf text = {0};
    char id[33];
    Weft__V1__SubmitRequest q;
    weft__v1__submit_request__init(&q);
    buf_printf(&text,
               "name: load-%d\nmodel: {program: mlp, inputs: 64, hidden: [8], classes: 4}\nmesh: "
               "{dp: %d}\n"
               "data: {train: {images: i, labels: l}, batch: 8}\noptimizer: {kind: sgd}\n"
               "schedule: {kind: constant, value: 0.1}\ntrain: {steps: 1000000}\n"
               "checkpoint: {dir: .}\n",
               b->asked, 1 << b->asked % 4);
    snprintf(id, sizeof id, "%032x", 0x7000000 + b->asked++);
    q.request_id = id;
    q.resolved = frame_text(buf_str(&text));
    struct coord_event ev = {.kind = COORD_EV_SUBMIT, .who = "me", .role = "local", .submit = &q};
    step(b, &ev, out);
    buf_clear(&text);
}

static void submit_all(struct bench *b)
{
    while (b->asked < b->njobs) {
        struct arena a;
        arena_init(&a);
        struct coord_out out = {.arena = &a};
        for (int i = 0; i < BATCH && b->asked < b->njobs; i++)
            submit(b, &out);
        commit(b, &out);
        arena_clear(&a);
    }
}

static void cancel(struct bench *b, char *job)
{
    char id[33];
    struct arena a;
    Weft__V1__ActRequest q;
    weft__v1__act_request__init(&q);
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    snprintf(id, sizeof id, "%032x", 0x7000000 + b->asked++);
    q.request_id = id;
    q.verb = WEFT__V1__VERB__CANCEL;
    q.target = job;
    struct coord_event ev = {.kind = COORD_EV_ACT, .who = "me", .role = "local", .act = &q};
    step(b, &ev, &out);
    commit(b, &out);
    arena_clear(&a);
}

int main(int argc, char **argv)
{
    struct bench b = {.njobs = argc > 2 ? atoi(argv[2]) : JOBS};
    if (argc < 2 || b.njobs < 1) {
        fprintf(stderr, "usage: bench_restart DIR [JOBS]\n");
        return 2;
    }
    b.dir = argv[1];
    b.jobs = calloc((size_t)b.njobs, sizeof *b.jobs);
    PRE(b.jobs != NULL);
    begin(&b);
    double at = now_ms();
    submit_all(&b);
    printf("%d jobs submitted, %d a transaction   %9.2f s\n", b.njobs, BATCH,
           (now_ms() - at) / 1e3);
    end(&b);
    at = now_ms();
    begin(&b);
    printf("a restart with them                    %9.2f s\n", (now_ms() - at) / 1e3);
    int n = b.njobs < CANCELS ? b.njobs : CANCELS;
    at = now_ms();
    for (int i = 0; i < n; i++)
        cancel(&b, b.jobs[(long)i * b.njobs / n]);
    printf("cancelling one, a transaction each     %9.3f ms\n", (now_ms() - at) / n);
    end(&b);
    free(b.jobs);
    return 0;
}
