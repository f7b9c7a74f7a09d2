// SPDX-License-Identifier: Apache-2.0
// How long a checkpoint takes beside a raw write and fsync of as many bytes on the same file
// system, and how long the step loop stands still for it.
//
//   bench_ckpt_write DIR RUNS MIB RANKS
//
// The ranks' snapshots, their writer threads and the decider are the product's, all in this
// process; what carries frames between rank processes is a queue here. Each run writes the raw
// files (a thread and a file a rank, from the same memory) and saves, one first and the other first
// in turns; the ratio is taken run by run. The stall of an asynchronous save is what snapshot_begin
// takes (slowest rank); a synchronous save stalls until it is committed. Old checkpoints go outside
// the times.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/ckpt/commit.h"
#include "worker/rank/save/snapshot.h"

enum { RANKS_MAX = 8, PARTS = 12, RUNS_MAX = 1000, NOTES_MAX = 64, WAIT_S = 600 };

static const struct store_owner owner = {"bench", "0123456789abcdef", "bench", "bench: 1\n", 0};
static const int everyone[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};

// What a writer thread hands to the decider.
struct note {
    bool answer; // else a shard's report
    struct shard_report report;
    struct hash128 digests[PARTS];
    int64_t step;
    int code;
};

struct bench {
    const char *dir;
    int ranks, runs;
    struct arena arena;
    struct deal_part parts[PARTS];
    const char *specs[PARTS];
    char *memory; // of the parts, one after the other: replicas share it
    uint64_t bytes, at[PARTS];
    struct deal deal;
    struct store store;
    struct manifest base;
    struct commit commit;
    struct snapshot *rank[RANKS_MAX];
    struct shard_report reports[RANKS_MAX]; // of the open checkpoint, for the writer
    struct hash128 digests[RANKS_MAX][PARTS];
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct note notes[NOTES_MAX];
    int n;
    int64_t steps; // saved
    double raw_s[RUNS_MAX], save_s[RUNS_MAX], ratio[RUNS_MAX], stall_s[RUNS_MAX];
};

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "bench_ckpt_write: %s: %s\n", what, e ? e->text : strerror(errno));
    exit(1);
}

static double seconds_since(int64_t begun_ns)
{
    return (double)(clock_mono_ns() - begun_ns) / 1e9;
}

// ---- what the snapshots call -------------------------------------------------------------------

static int copy(void *arg, int part, uint64_t at, void *to, uint64_t bytes, struct err *e)
{
    const struct bench *b = arg;
    (void)e;
    memcpy(to, b->memory + b->at[part] + at, bytes);
    return 0;
}

static void put(struct bench *b, const struct note *n)
{
    pthread_mutex_lock(&b->lock);
    PRE(b->n < NOTES_MAX);
    b->notes[b->n++] = *n;
    pthread_cond_signal(&b->some);
    pthread_mutex_unlock(&b->lock);
}

static void report(void *arg, const struct shard_report *r)
{
    struct note n = {.report = *r};
    memcpy(n.digests, r->digests, sizeof *r->digests * (size_t)r->n);
    put(arg, &n);
}

static void commit_done(void *arg, int64_t step, int code, const char *text)
{
    struct note n = {.answer = true, .step = step, .code = code};
    if (code)
        fprintf(stderr, "bench_ckpt_write: cannot commit: %s\n", text);
    put(arg, &n);
}

static void deleted(void *arg, struct store_entry id, int code)
{
    (void)arg;
    (void)id;
    (void)code;
}

// ---- the decider -------------------------------------------------------------------------------

static struct note next_note(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->n)
        pthread_cond_wait(&b->some, &b->lock);
    struct note n = b->notes[0];
    memmove(b->notes, b->notes + 1, sizeof n * (size_t)--b->n);
    pthread_mutex_unlock(&b->lock);
    return n;
}

// True once the checkpoint is committed.
static bool carry_out(struct bench *b, const struct commit_action *a)
{
    if (a->kind == COMMIT_DO_ABORTED) {
        fprintf(stderr, "bench_ckpt_write: aborted: %s\n", a->text);
        exit(1);
    }
    if (a->kind == COMMIT_DO_ORDER)
        snapshot_order_commit(b->rank[0], a->id.step, b->reports);
    if (a->kind != COMMIT_DO_COMMITTED)
        return false;
    for (int r = 0; r < b->ranks; r++)
        snapshot_committed(b->rank[r], a->id.step);
    return true;
}

static bool decide(struct bench *b, struct note *n)
{
    struct arena a;
    struct commit_actions actions = {0};
    struct commit_event ev = {.kind = n->answer ? COMMIT_EV_DONE : COMMIT_EV_SHARD,
                              .id = {1, n->answer ? n->step : n->report.step},
                              .ok = n->code == 0,
                              .text = ""};
    bool done = false;
    if (!n->answer) {
        int rank = n->report.rank;
        memcpy(b->digests[rank], n->digests, sizeof n->digests);
        b->reports[rank] = n->report;
        b->reports[rank].digests = b->digests[rank];
        ev.report = &n->report;
    }
    arena_init(&a);
    commit_step(&b->commit, &ev, &a, &actions);
    for (int i = 0; i < actions.n; i++)
        done |= carry_out(b, &actions.v[i]);
    arena_clear(&a);
    return done;
}

static void save(struct bench *b, int run)
{
    struct err e = {0};
    int64_t step = ++b->steps, begun = clock_mono_ns(), slowest = 0;
    for (int r = 0; r < b->ranks; r++) {
        int64_t before = clock_mono_ns();
        if (snapshot_begin(b->rank[r], &(struct save_point){.step = step, .samples = step}, &e))
            die("begin", &e);
        int64_t stall = clock_mono_ns() - before;
        slowest = stall > slowest ? stall : slowest;
    }
    for (bool done = false; !done;) {
        struct note n = next_note(b);
        done = decide(b, &n);
    }
    for (int r = 0; r < b->ranks; r++)
        if (snapshot_drain(b->rank[r], WAIT_S * CLOCK_S, NULL, &e))
            die("drain", &e);
    b->save_s[run] = seconds_since(begun);
    b->stall_s[run] = (double)slowest / 1e9;
    if (store_delete(&b->store, 1, step, &e))
        die("delete", &e);
}

// ---- the raw files -----------------------------------------------------------------------------

struct raw {
    const struct bench *b;
    int rank;
    pthread_t thread;
};

static void raw_path(const struct bench *b, int rank, char out[1100])
{
    snprintf(out, 1100, "%s/raw-%d", b->dir, rank);
}

static void *raw_write(void *arg)
{
    const struct raw *r = arg;
    const struct bench *b = r->b;
    char path[1100];
    raw_path(b, r->rank, path);
    uint64_t from = b->bytes * (uint64_t)r->rank / (uint64_t)b->ranks;
    uint64_t end = b->bytes * (uint64_t)(r->rank + 1) / (uint64_t)b->ranks;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path, NULL);
    while (from < end) {
        ssize_t n = write(fd, b->memory + from, end - from);
        if (n <= 0)
            die("write", NULL);
        from += (uint64_t)n;
    }
    if (fsync(fd) || close(fd))
        die("fsync", NULL);
    return NULL;
}

static void raw(struct bench *b, int run)
{
    struct raw r[RANKS_MAX];
    char path[1100];
    int64_t begun = clock_mono_ns();
    for (int i = 0; i < b->ranks; i++) {
        r[i] = (struct raw){b, i, 0};
        if (pthread_create(&r[i].thread, NULL, raw_write, &r[i]))
            die("thread", NULL);
    }
    for (int i = 0; i < b->ranks; i++)
        pthread_join(r[i].thread, NULL);
    b->raw_s[run] = seconds_since(begun);
    for (int i = 0; i < b->ranks; i++) {
        raw_path(b, i, path);
        (void)unlink(path);
    }
}

// ---- life --------------------------------------------------------------------------------------

// Twelve tensors, as four layers with two optimizer moments have: matrices that every rank holds.
static void make_state(struct bench *b, uint64_t bytes)
{
    static char names[PARTS][16];
    enum { COLUMNS = 1024 };
    int64_t rows = (int64_t)(bytes / PARTS / COLUMNS / sizeof(float));
    for (int i = 0; i < PARTS; i++) {
        snprintf(names[i], sizeof names[i], "tensor-%02d", i);
        struct shape shape = {2, {rows, COLUMNS}};
        b->parts[i] = (struct deal_part){.name = names[i],
                                         .dtype = DT_F32,
                                         .global = shape,
                                         .box = {.shape = shape},
                                         .nranks = b->ranks,
                                         .ranks = everyone};
        b->specs[i] = "[null,null]";
        b->at[i] = b->bytes;
        b->bytes += box_bytes(&b->parts[i].box, DT_F32);
    }
    b->memory = malloc(b->bytes);
    PRE(b->memory);
    for (uint64_t i = 0; i < b->bytes / sizeof(uint32_t); i++)
        ((uint32_t *)(void *)b->memory)[i] = (uint32_t)(i * 2654435761u) >> 3;
}

static void start(struct bench *b)
{
    struct err e = {0};
    struct commit_config config = {.nranks = b->ranks};
    static struct manifest_axis dp = {"dp", 1};
    dp.size = b->ranks;
    b->base = (struct manifest){.cluster = owner.cluster,
                                .job = owner.job,
                                .name = owner.name,
                                .job_hash = "bench",
                                .run = "bench",
                                .attempt = 1,
                                .tokenizer = "",
                                .optimizer = "adamw",
                                .resolved = "name: bench\n",
                                .parent_attempt = -1,
                                .parent_step = -1,
                                .naxes = 1,
                                .mesh = &dp,
                                .numerics = {"cpu", "cpu", "any", "none", "", "", 1, true}};
    if (store_make(&b->store, NULL, b->dir, &owner, &e) ||
        deal_make(&b->arena, b->parts, PARTS, b->ranks, &b->deal, &e))
        die("open", &e);
    commit_init(&b->commit, &config);
    commit_fence(&b->commit, 1, NULL, 0);
    for (int r = 0; r < b->ranks; r++) {
        struct snapshot_config c = {.store = &b->store,
                                    .rank = r,
                                    .nranks = b->ranks,
                                    .attempt = 1,
                                    .parts = b->parts,
                                    .nparts = PARTS,
                                    .specs = b->specs,
                                    .deal = &b->deal,
                                    .base = &b->base,
                                    .ops = {b, copy, report, commit_done, deleted}};
        if (snapshot_new(&b->rank[r], &c, &e))
            die("snapshot", &e);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print(struct bench *b)
{
    double mb = (double)b->bytes / 1e6;
    double raw_s = median(b->raw_s, b->runs), save_s = median(b->save_s, b->runs);
    double ratio = median(b->ratio, b->runs); // sorted from here on
    printf("%8.1f MB %d ranks  raw %8.1f ms %6.0f MB/s  save %8.1f ms %6.0f MB/s  save/raw %.2f "
           "[%.2f-%.2f]  stall async %6.2f ms, sync %8.1f ms\n",
           mb, b->ranks, raw_s * 1e3, mb / raw_s, save_s * 1e3, mb / save_s, ratio, b->ratio[0],
           b->ratio[b->runs - 1], median(b->stall_s, b->runs) * 1e3, save_s * 1e3);
}

static void stop(struct bench *b)
{
    for (int r = 0; r < b->ranks; r++)
        snapshot_free(b->rank[r]);
    commit_clear(&b->commit);
    store_close(&b->store);
    arena_clear(&b->arena);
    free(b->memory);
}

int main(int argc, char **argv)
{
    static struct bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};
    int mib = argc == 5 ? atoi(argv[3]) : 0;
    b.runs = argc == 5 ? atoi(argv[2]) : 0;
    b.ranks = argc == 5 ? atoi(argv[4]) : 0;
    if (mib < 1 || b.runs < 1 || b.runs > RUNS_MAX || b.ranks < 1 || b.ranks > RANKS_MAX) {
        fprintf(stderr, "usage: bench_ckpt_write DIR RUNS MIB RANKS\n");
        return 2;
    }
    b.dir = argv[1];
    arena_init(&b.arena);
    make_state(&b, (uint64_t)mib << 20);
    start(&b);
    raw(&b, 0); // warm up: both make their files once
    save(&b, 0);
    for (int i = 0; i < b.runs; i++) {
        (i % 2 ? save : raw)(&b, i);
        (i % 2 ? raw : save)(&b, i);
        b.ratio[i] = b.save_s[i] / b.raw_s[i];
    }
    print(&b);
    stop(&b);
    return 0;
}
