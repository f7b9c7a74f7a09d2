// SPDX-License-Identifier: Apache-2.0
// All-reduce in place over ranks of this host: microseconds, the median of batches, seen by rank
// 0. Prints "bytes microseconds" a line; mpi_allreduce.c measures the same way. `hosts` as a
// letter a rank ("ab") puts ranks on different hosts, so over loopback TCP.
//
//   bench_allreduce [ranks [hosts [trusted]]]     trusted: nothing is encrypted between hosts
//   bench_allreduce limit
//   bench_allreduce beside [hosts]
//
// `beside` starts it on two ranks, is away for twice as long as it takes by itself, and waits: what
// that takes, in times of being away (1: the collective was hidden, 1.5: it was not). First the
// ranks sleep meanwhile, as beside an accelerator, then they work. WEFT_PROGRESS=on|off.
//
// `limit` is what the machine allows: two bound threads add halves of two private buffers in huge
// pages, a[i] = b[i] = a[i] + b[i] in a plain loop, which moves the same bytes to and from memory
// with no windows, notes or tiles.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/bench/allreduce_sizes.h"
#include "tests/bench/bench_board.h"
#include "tests/support/collective_run.h"
#include "worker/collective/collective.h"

static int measure(struct communicator *all, void *buf, struct err *e)
{
    static double us[MOST_BATCHES];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                    .dtype = DT_F32,
                                    .buf = buf,
                                    .count = (int64_t)(sizes[s].bytes / 4),
                                    .root = 0,
                                    .name = "x"};
        for (int b = -WARM; b < sizes[s].batches; b++) {
            int64_t t = clock_mono_ns();
            for (int i = 0; i < sizes[s].repeats; i++) {
                int rc = collective_run(all, &a, e);
                if (rc)
                    return rc;
            }
            if (b >= 0)
                us[b] = (double)(clock_mono_ns() - t) / 1e3 / sizes[s].repeats;
        }
        if (communicator_coordinate(all) == 0)
            printf("%zu %.2f\n", sizes[s].bytes, median(us, sizes[s].batches));
    }
    return 0;
}

// Each to a core of its own, as mpirun --bind-to core does: the scheduler's choice under load is
// not what is measured.
static void bind_to(int rank)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all))
        return;
    int skip = rank % CPU_COUNT(&all);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && skip-- == 0)
            CPU_SET(i, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

// ---- beside something else ----
static uint64_t turns_of(int64_t ns)
{
    enum { TURNS = 1 << 24 };
    volatile uint64_t x = 0;
    int64_t t = clock_mono_ns();
    for (uint64_t i = 0; i < TURNS; i++)
        x += i;
    return (uint64_t)((double)ns * TURNS / (double)(clock_mono_ns() - t));
}

static void work(uint64_t turns)
{
    volatile uint64_t x = 0;
    for (uint64_t i = 0; i < turns; i++)
        x += i;
}

static int run_beside(struct communicator *all, const struct collective_args *a, int64_t away_ns,
                      bool works, double *factor, struct err *e)
{
    enum { TIMES = 21 };
    static double took[TIMES];
    struct collective_args barrier = {.op = COLLECTIVE_BARRIER, .name = "barrier"};
    uint64_t turns = turns_of(away_ns);
    for (int k = 0; k < TIMES; k++) {
        struct collective_ticket ticket;
        int rc = collective_run(all, &barrier, e);
        int64_t t = clock_mono_ns();
        rc = rc ? rc : collective_start(all, a, &ticket, e);
        if (works)
            work(turns);
        else
            usleep((useconds_t)(away_ns / 1000));
        rc = rc ? rc : collective_wait(all, &ticket, e);
        if (rc)
            return rc;
        took[k] = (double)(clock_mono_ns() - t) / (double)away_ns;
    }
    *factor = median(took, TIMES);
    return 0;
}

static int measure_beside(struct communicator *all, void *buf, struct err *e)
{
    struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .name = "x"};
    for (size_t bytes = 1 << 20; bytes <= MOST_BYTES; bytes *= 8) {
        double us[11], asleep, at_work;
        a.count = (int64_t)(bytes / 4);
        for (int k = 0; k < 11; k++) {
            int64_t t = clock_mono_ns();
            int rc = collective_run(all, &a, e);
            if (rc)
                return rc;
            us[k] = (double)(clock_mono_ns() - t) / 1e3;
        }
        int64_t away_ns = (int64_t)(2e3 * median(us, 11));
        int rc = run_beside(all, &a, away_ns, false, &asleep, e);
        rc = rc ? rc : run_beside(all, &a, away_ns, true, &at_work, e);
        if (rc)
            return rc;
        if (communicator_coordinate(all) == 0)
            printf("%zu alone %.0f us, beside sleep %.2f, beside work %.2f\n", bytes,
                   (double)away_ns / 2e3, asleep, at_work);
    }
    return 0;
}

static int rank_main(int rank, int ranks, const char *hosts, bool trusted, const char *dir,
                     bool beside)
{
    struct err e;
    struct world *w = NULL;
    struct communicator *all;
    void *buf;
    int group[BOARD_RANKS];
    char host[2] = {hosts ? hosts[rank] : 'a', 0};
    if (!beside)
        bind_to(rank);
    struct world_options o = {.rank = rank,
                              .ranks = ranks,
                              .host = host,
                              .listen = "127.0.0.1:0",
                              .plain = trusted,
                              .connect_ns = 10 * CLOCK_S,
                              .deadline_ns = 60 * CLOCK_S,
                              .socket_dir = dir,
                              .put = board_put,
                              .get = board_get};
    for (int i = 0; i < ranks; i++)
        group[i] = i;
    int rc = world_open(&o, &w, &e);
    if (!rc)
        rc = world_window(w, MOST_BYTES, &buf, &e);
    if (!rc)
        rc = communicator_new(w, "all", group, ranks, &all, &e);
    if (!rc)
        memset(buf, 0, MOST_BYTES);
    if (!rc)
        rc = (beside ? measure_beside : measure)(all, buf, &e);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, e.text);
    world_close(w);
    return rc != 0;
}

// ---- the machine's limit ----
typedef float vec __attribute__((vector_size(32)));

struct half {
    vec *a, *b;
    size_t n;
    int cpu;
    pthread_barrier_t *both;
    double *us;
    int batches;
};

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
static void
add_in_place(vec *a, vec *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] = a[i] + b[i];
}

static void *add_half(void *arg)
{
    struct half *h = arg;
    bind_to(h->cpu);
    for (int r = -WARM; r < h->batches; r++) {
        pthread_barrier_wait(h->both);
        int64_t t = clock_mono_ns();
        add_in_place(h->a, h->b, h->n);
        pthread_barrier_wait(h->both);
        if (r >= 0)
            h->us[r] = (double)(clock_mono_ns() - t) / 1e3;
    }
    return NULL;
}

static int limit(size_t bytes, int batches)
{
    static double us[2][MOST_BATCHES];
    vec *m = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_barrier_t both;
    pthread_t other;
    if (m == MAP_FAILED || pthread_barrier_init(&both, NULL, 2))
        return 1;
    madvise(m, 2 * bytes, MADV_HUGEPAGE);
    memset(m, 0, 2 * bytes);
    size_t n = bytes / sizeof *m;
    struct half h[2] = {{m, m + n, n / 2, 0, &both, us[0], batches},
                        {m + n / 2, m + n + n / 2, n / 2, 1, &both, us[1], batches}};
    if (pthread_create(&other, NULL, add_half, &h[1]))
        return 1;
    add_half(&h[0]);
    pthread_join(other, NULL);
    printf("%zu %.2f\n", bytes, median(us[0], batches));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "limit"))
        return limit(MOST_BYTES, MOST_BATCHES);

    char dir[] = "/tmp/weft-bench-XXXXXX";
    bool beside = argc > 1 && !strcmp(argv[1], "beside");
    int ranks = argc > 1 && !beside ? atoi(argv[1]) : 2, status, failed = 0;
    const char *hosts = argc > 2 ? argv[2] : NULL;
    bool trusted = argc > 3 && !strcmp(argv[3], "trusted");
    if (ranks < 1 || ranks > BOARD_RANKS || (hosts && strlen(hosts) != (size_t)ranks) ||
        !mkdtemp(dir) || board_open())
        return 2;
    for (int i = 0; i < ranks; i++)
        if (fork() == 0)
            exit(rank_main(i, ranks, hosts, trusted, dir, beside));
    while (wait(&status) > 0)
        failed |= status;
    rmdir(dir);
    return failed != 0;
}
