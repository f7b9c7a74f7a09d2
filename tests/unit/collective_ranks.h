// SPDX-License-Identifier: Apache-2.0
// For tests of collectives: worlds of real processes. The ranks are forked children that meet
// through a folder of small files; each runs one function and its exit status is the verdict. A
// child must not use cmocka's assertions: CHECK prints where and leaves.
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/unit.h"
#include "worker/collective/collective.h"

enum { RANKS = 8 };

struct test_ranks { // what all ranks of a test share
    int ranks;
    const char *hosts; // a letter a rank: "aabb"; null: one host
    size_t window;
    int64_t deadline_ns, connect_ns;
    const char *listen; // null: any port of loopback
    int odd_key;        // the rank with another key, or −1
    int held; // the rank that publishes its address and then waits for "strangers", or −1
    struct progress_page *progress; // a rank's own, set before it joins, or null
    int threads;                    // of a rank that joins, as world_options has it
    char dir[64];
    pid_t pid[RANKS];
};

static struct test_ranks test; // zeroed by test_begin
static bool trusted_network;   // between hosts nothing is encrypted
static int test_rank;

#define CHECK(x)                                                                        \
    do {                                                                                \
        if (!(x)) {                                                                     \
            fprintf(stderr, "rank %d: %s:%d: %s\n", test_rank, __FILE__, __LINE__, #x); \
            _exit(1);                                                                   \
        }                                                                               \
    } while (0)
#define DO(call)                                                                            \
    do {                                                                                    \
        if (call) {                                                                         \
            fprintf(stderr, "rank %d: %s:%d: %s\n", test_rank, __FILE__, __LINE__, e.text); \
            _exit(1);                                                                       \
        }                                                                                   \
    } while (0)

static inline int test_put(void *ctx, const char *key, const char *value, struct err *e)
{
    char path[PATH_MAX], tmp[PATH_MAX];
    (void)ctx;
    snprintf(path, sizeof path, "%s/kv.%s", test.dir, key);
    snprintf(tmp, sizeof tmp, "%s/tmp.%s", test.dir, key);
    FILE *f = fopen(tmp, "w");
    if (!f || fputs(value, f) < 0 || fclose(f) || rename(tmp, path))
        return err_errno(e, ERR_IO, "%s", path);
    return 0;
}

static inline int test_get(void *ctx, const char *key, char *value, size_t size,
                           int64_t deadline_ns, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/kv.%s", test.dir, ctx ? "strangers" : key);
    while (ctx && access(path, F_OK))
        clock_sleep_ms(1);
    snprintf(path, sizeof path, "%s/kv.%s", test.dir, key);
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            ssize_t n = read(fd, value, size - 1);
            close(fd);
            value[n < 0 ? 0 : n] = 0;
            return 0;
        }
        if (clock_mono_ns() >= deadline_ns)
            return err_set(e, ERR_TIMEOUT, "%s is not there", key);
        clock_sleep_ms(1);
    }
}

static inline int test_open(struct world **w, struct err *e)
{
    char host[2] = "a";
    if (test.hosts)
        host[0] = test.hosts[test_rank];
    struct world_options o = {.rank = test_rank,
                              .ranks = test.ranks,
                              .host = host,
                              .listen = test.listen ? test.listen : "127.0.0.1:0",
                              .key = "the attempt's secret",
                              .plain = trusted_network,
                              .attempt = 7,
                              .connect_ns = test.connect_ns ? test.connect_ns : 60 * CLOCK_S,
                              .deadline_ns = test.deadline_ns,
                              .progress = test.progress,
                              .threads = test.threads,
                              .socket_dir = test.dir,
                              .put = test_put,
                              .get = test_get};
    if (test_rank == test.held)
        o.ctx = &test;
    if (test_rank == test.odd_key)
        o.key[0] = 'T';
    return world_open(&o, w, e);
}

// The world, its window and the communicator of all ranks.
static inline float *test_join(struct world **w, struct communicator **all)
{
    struct err e;
    void *mem = NULL;
    int ranks[RANKS];
    for (int i = 0; i < test.ranks; i++)
        ranks[i] = i;
    DO(test_open(w, &e));
    if (test.window)
        DO(world_window(*w, test.window, &mem, &e));
    DO(communicator_new(*w, "all", ranks, test.ranks, all, &e));
    return mem;
}

static inline void test_leave(struct world *w, struct communicator *all)
{
    communicator_free(all);
    world_close(w);
}

static inline void test_begin(int ranks, const char *hosts, size_t window)
{
    test = (struct test_ranks){
        .ranks = ranks, .hosts = hosts, .window = window, .odd_key = -1, .held = -1};
    test.deadline_ns = 60 * CLOCK_S;
    strcpy(test.dir, "/tmp/weft-coll-XXXXXX");
    if (!mkdtemp(test.dir))
        abort();
}

static inline void test_start(void (*rank)(void))
{
    fflush(NULL);
    for (int i = 0; i < test.ranks; i++) {
        test.pid[i] = fork();
        if (test.pid[i])
            continue;
        test_rank = i;
        alarm(120); // the watchdog: far beyond what any case takes
        rank();
        _exit(0);
    }
}

// What became of a rank: its exit status, or minus its signal.
static inline int test_end(int rank)
{
    int status = 0;
    while (waitpid(test.pid[rank], &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline void test_clear(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", test.dir);
    if (system(command))
        abort();
}

static inline void expect(const struct err *e, int code, const char *text)
{
    if (e->code == code && strstr(e->text, text))
        return;
    fprintf(stderr, "rank %d: wanted code %d with '%s', got %d: %s\n", test_rank, code, text,
            e->code, e->text);
    _exit(1);
}

// A file that says "rank did it", and waiting for one.
static inline void test_mark(const char *what)
{
    struct err e;
    DO(test_put(NULL, what, "1", &e));
}

static inline void test_await(const char *what)
{
    char value[8];
    struct err e;
    if (test_get(NULL, what, value, sizeof value, clock_mono_ns() + 60 * CLOCK_S, &e))
        abort();
}

// The group of tests twice: data moves only inside the ranks' calls, then in their progress threads
// as well.
static int failed_without;
#define RUN_BOTH(tests)                                                                           \
    (setenv("WEFT_PROGRESS", "off", 1),                                                           \
     failed_without = cmocka_run_group_tests_name("without progress threads", tests, NULL, NULL), \
     setenv("WEFT_PROGRESS", "on", 1),                                                            \
     failed_without + cmocka_run_group_tests_name("with progress threads", tests, NULL, NULL))

// Runs `rank` as that many processes; all must end well.
static inline void test_run(int ranks, const char *hosts, size_t window, void (*rank)(void))
{
    test_begin(ranks, hosts, window);
    test_start(rank);
    int wrong = 0;
    for (int i = 0; i < ranks; i++)
        wrong += test_end(i) != 0;
    test_clear();
    assert_int_equal(wrong, 0);
}
