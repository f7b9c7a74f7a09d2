// SPDX-License-Identifier: Apache-2.0
// Collectives between CUDA devices (backend.h), a process a device, over the tests' own NCCL: results,
// what members must keep, and how everything ends that does not end by itself.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

enum { MOST = 4, IDS = 4, COUNT = 60000 }; // COUNT: over what fits between two members at once

// What the processes of a case share.
struct team {
    unsigned char id[IDS][COMMUNICATOR_ID];
    _Atomic bool has_id[IDS];
    _Atomic int arrived;
};

struct member {
    struct team *team;
    int rank, n;
    const struct backend *b;
    const struct backend_collectives *l;
    struct device *d;
    struct stream_q *q;
    struct err e;
};

#define NEED(x)                                                                           \
    do {                                                                                  \
        if (!(x)) {                                                                       \
            fprintf(stderr, "%s:%d, rank %d: %s (%s)\n", __FILE__, __LINE__, m->rank, #x, \
                    m->e.text);                                                           \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

static void meet(struct member *m, int all)
{
    atomic_fetch_add(&m->team->arrived, 1);
    while (m->team->arrived < all)
        usleep(100);
}

// Opens a communicator of n ranks from `first` on, this one among them.
static struct device_communicator *join(struct member *m, int slot, int first, int n)
{
    struct device_communicator *c = NULL;
    if (m->rank == first) {
        NEED(!m->l->id(m->d, m->team->id[slot], &m->e));
        m->team->has_id[slot] = true;
    }
    while (!m->team->has_id[slot])
        usleep(100);
    NEED(!m->l->open(m->d, m->team->id[slot], "dp", n, m->rank - first, &c, &m->e));
    return c;
}

static void wait_until_ready(struct member *m, struct device_communicator *c)
{
    bool ready = false;
    while (!ready) {
        NEED(!m->l->ready(c, &ready, &m->e));
        (void)sched_yield();
    }
}

static struct device_communicator *join_all(struct member *m)
{
    struct device_communicator *c = join(m, 0, 0, m->n);
    wait_until_ready(m, c);
    return c;
}

static void *device_memory(struct member *m, const void *from, size_t bytes)
{
    void *p = NULL;
    NEED(!m->l->alloc(m->d, bytes, &p, &m->e));
    NEED(!from || !m->b->stream.copy(m->q, p, from, bytes, &m->e));
    return p;
}

// ---- a team of processes -----------------------------------------------------------------------

typedef void (*part)(struct member *m);

static void play(struct team *team, int rank, int n, const char *scene, part run)
{
    struct member member = {.team = team, .rank = rank, .n = n}, *m = &member;
    char set[200];
    struct collectives_library library;
    snprintf(set, sizeof set, "devices:%d%s%s", MOST, scene[0] ? "," : "", scene);
    setenv("WEFT_FAKE_CUDA", set, 1);
    setenv("WEFT_CUDA_GUARD", "1", 1);
    alarm(60);
    NEED(!backend_load("cuda", &m->b, &m->e));
    m->l = m->b->collectives;
    NEED(m->l);
    NEED(!m->b->device.open(&(struct device_options){.ordinal = rank, .threads = 1}, &m->d, &m->e));
    NEED(!m->b->stream.create(m->d, STREAM_URGENT, &m->q, &m->e));
    NEED(!m->l->load(m->d, true, &library, &m->e));
    run(m);
    m->b->device.close(m->d);
    _exit(0);
}

// Runs a part in n processes; scenes: rank 0's, and all others'. Returns the first status that is not
// 0, after which the others are killed. said: what they wrote, if not null.
static int run_team(int n, const char *scene, const char *others, part run, char said[2000])
{
    int result = 0, out = memfd_create("said", MFD_CLOEXEC);
    pid_t pid[MOST];
    struct team *team =
        mmap(NULL, sizeof *team, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(team != MAP_FAILED && out >= 0);
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        if (!pid[r]) {
            if (said)
                dup2(out, STDERR_FILENO);
            play(team, r, n, r ? others : scene, run);
        }
        assert_true(pid[r] > 0);
    }
    for (int left = n; left; left--) {
        int status;
        pid_t ended = waitpid(-1, &status, 0);
        assert_true(ended > 0);
        for (int r = 0; r < n; r++)
            if (pid[r] == ended)
                pid[r] = 0;
            else if (pid[r] && status && !result)
                kill(pid[r], SIGKILL);
        result = result ? result : status;
    }
    if (said) {
        ssize_t got = pread(out, said, 1999, 0);
        said[got > 0 ? got : 0] = 0;
    }
    close(out);
    munmap(team, sizeof *team);
    return result;
}

// ---- results -----------------------------------------------------------------------------------

// What rank r has at place i before a call.
static float number(int r, int i)
{
    return (float)(r + 1) * 1000 + (float)(i % 97);
}

struct numbers {
    float v[MOST * COUNT];
};

static void fill(struct numbers *x, int rank, int n)
{
    for (int i = 0; i < n; i++)
        x->v[i] = number(rank, i);
}

static float sum_of(int n, int i)
{
    float sum = 0;
    for (int r = 0; r < n; r++)
        sum += number(r, i);
    return sum;
}

// What rank `rank` has at place i after the call.
static float expect(enum collective_op op, enum collective_reduce reduce, int n, int rank, int i)
{
    const int slice = COUNT / n, from = i / slice;
    if (op == COLLECTIVE_ALL_REDUCE)
        return reduce == COLLECTIVE_MAX ? number(n - 1, i) : sum_of(n, i);
    if (op == COLLECTIVE_REDUCE_SCATTER)
        return from == rank ? sum_of(n, i) : number(rank, i);
    if (op == COLLECTIVE_ALL_GATHER)
        return number(from, i);
    if (op == COLLECTIVE_ALL_TO_ALL)
        return number(from, rank * slice + i % slice);
    return number(1, i); // a broadcast of rank 1
}

static void run_each_kind(struct member *m)
{
    static struct numbers x;
    static const struct {
        enum collective_op op;
        enum collective_reduce reduce;
    } kinds[] = {
        {COLLECTIVE_ALL_REDUCE, COLLECTIVE_SUM},     {COLLECTIVE_ALL_REDUCE, COLLECTIVE_MAX},
        {COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SUM}, {COLLECTIVE_ALL_GATHER, COLLECTIVE_SUM},
        {COLLECTIVE_ALL_TO_ALL, COLLECTIVE_SUM},     {COLLECTIVE_BROADCAST, COLLECTIVE_SUM}};
    struct device_communicator *c = join_all(m);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fill(&x, m->rank, COUNT);
        void *buf = device_memory(m, x.v, sizeof(float) * COUNT);
        void *from = device_memory(m, x.v, sizeof(float) * COUNT);
        const struct collective_args a = {.op = kinds[k].op,
                                          .reduce = kinds[k].reduce,
                                          .dtype = DT_F32,
                                          .from = from,
                                          .buf = buf,
                                          .count = COUNT,
                                          .root = 1};
        NEED(!m->l->run(c, m->q, &a, 1, &m->e));
        NEED(!m->b->stream.copy(m->q, x.v, buf, sizeof(float) * COUNT, &m->e));
        NEED(!m->b->stream.sync(m->q, &m->e));
        for (int i = 0; i < COUNT; i++)
            NEED(x.v[i] == expect(kinds[k].op, kinds[k].reduce, m->n, m->rank, i));
        m->b->memory.free(m->d, buf);
        m->b->memory.free(m->d, from);
    }
    NEED(!m->l->check(c, &m->e));
    m->l->close(&c, 1);
}

static void every_kind_has_its_result_on_any_number_of_devices(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST; n++)
        assert_int_equal(run_team(n, "", "", run_each_kind, NULL), 0);
}

static void before_2_28_slices_are_exchanged_by_sends_and_receives(void **state)
{
    (void)state;
    assert_int_equal(run_team(3, "nccl_version:22703", "nccl_version:22703", run_each_kind, NULL),
                     0);
}

// bf16 of 1.0 and 2.0; u8 may travel, though nothing adds it up.
static void run_other_types(struct member *m)
{
    const uint16_t half[2] = {0x3f80, 0x4000}, sums[2] = {0x4000, 0x4080};
    unsigned char bytes[6] = {0};
    uint16_t got[2];
    struct device_communicator *c = join_all(m);
    memset(bytes + 3 * m->rank, 'a' + m->rank, 3);
    void *halves = device_memory(m, half, sizeof half), *letters = device_memory(m, bytes, 6);
    const struct collective_args calls[] = {
        {.op = COLLECTIVE_ALL_REDUCE, .dtype = DT_BF16, .buf = halves, .count = 2},
        {.op = COLLECTIVE_ALL_GATHER, .dtype = DT_U8, .buf = letters, .count = 6}};
    NEED(!m->l->run(c, m->q, calls, 2, &m->e));
    NEED(!m->b->stream.copy(m->q, got, halves, sizeof got, &m->e));
    NEED(!m->b->stream.copy(m->q, bytes, letters, 6, &m->e));
    NEED(!m->b->stream.sync(m->q, &m->e));
    NEED(memcmp(got, sums, sizeof got) == 0);
    NEED(memcmp(bytes, "aaabbb", 6) == 0);
    m->l->close(&c, 1);
}

static void other_types_travel_in_one_group(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "", "", run_other_types, NULL), 0);
}

// Large ones would wait for each other for ever if they were not one group.
static void swap_in_a_group(struct member *m)
{
    static struct numbers x;
    struct device_communicator *c = join_all(m);
    fill(&x, m->rank, COUNT);
    void *from = device_memory(m, x.v, sizeof(float) * COUNT);
    void *to = device_memory(m, NULL, sizeof(float) * COUNT);
    const struct collective_args calls[] = {
        {.op = COLLECTIVE_SEND, .dtype = DT_F32, .buf = from, .count = COUNT},
        {.op = COLLECTIVE_RECV, .dtype = DT_F32, .buf = to, .count = COUNT}};
    NEED(!m->l->run(c, m->q, calls, 2, &m->e));
    NEED(!m->b->stream.copy(m->q, x.v, to, sizeof(float) * COUNT, &m->e));
    NEED(!m->b->stream.sync(m->q, &m->e));
    for (int i = 0; i < COUNT; i++)
        NEED(x.v[i] == number(1 - m->rank, i));
    m->l->close(&c, 1);
}

static void sends_and_receives_of_a_group_do_not_wait_for_each_other(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "", "", swap_in_a_group, NULL), 0);
}

// Launched in one order, waited for in two.
static void wait_crosswise(struct member *m)
{
    struct device_communicator *c[2] = {join(m, 0, 0, 2), join(m, 1, 0, 2)};
    struct stream_q *q[2];
    float got[2];
    void *buf[2];
    for (int k = 0; k < 2; k++) {
        const float x = (float)(10 * k + m->rank + 1);
        wait_until_ready(m, c[k]);
        NEED(!m->b->stream.create(m->d, STREAM_URGENT, &q[k], &m->e));
        buf[k] = device_memory(m, &x, sizeof x);
        NEED(!m->b->stream.sync(m->q, &m->e));
    }
    for (int k = 0; k < 2; k++) {
        const struct collective_args a = {
            .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf[k], .count = 1};
        NEED(!m->l->run(c[k], q[k], &a, 1, &m->e));
    }
    for (int i = 0; i < 2; i++) {
        int k = m->rank ? i : 1 - i;
        NEED(!m->b->stream.copy(q[k], &got[k], buf[k], sizeof(float), &m->e));
        NEED(!m->b->stream.sync(q[k], &m->e));
    }
    NEED(got[0] == 3 && got[1] == 23);
    m->l->close(c, 2);
}

static void what_is_launched_in_one_order_may_be_waited_for_in_any(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "", "", wait_crosswise, NULL), 0);
}

// ---- what members must keep --------------------------------------------------------------------

static void run_before_it_is_ready(struct member *m)
{
    struct device_communicator *c = join(m, 0, 0, 2);
    void *buf = device_memory(m, NULL, 4);
    const struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .count = 1};
    NEED(m->l->run(c, m->q, &a, 1, &m->e) == ERR_UNSUPPORTED);
    NEED(strcmp(m->e.text, "communicator dp: ncclAllReduce: invalid argument (run with "
                           "NCCL_DEBUG=WARN for details): Attempt to use communicator before the "
                           "previous operation returned ncclSuccess") == 0);
    meet(m, 2); // rank 1 has joined, which needs rank 0
    m->l->abort(&c, 1);
    m->l->close(&c, 1);
}

static void a_communicator_that_is_not_ready_runs_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "nccl_init", "nccl_init", run_before_it_is_ready, NULL), 0);
}

// What rank 0 calls, and another call of rank 1's.
static const struct {
    struct collective_args of[2];
    const char *say[2];
} unlike[] = {
    {{{.dtype = DT_F32, .count = 8}, {.dtype = DT_F32, .count = 9}},
     {"all-reduce of 8 elements of type 7", "all-reduce of 9 elements of type 7"}},
    {{{.dtype = DT_F32, .count = 8}, {.dtype = DT_BF16, .count = 8}},
     {"all-reduce of 8 elements of type 7", "all-reduce of 8 elements of type 9"}},
    {{{.dtype = DT_F32, .count = 8}, {.dtype = DT_F32, .count = 8, .reduce = COLLECTIVE_MAX}},
     {"type 7, reduction 0", "type 7, reduction 2"}},
    {{{.dtype = DT_F32, .count = 8}, {.op = COLLECTIVE_BROADCAST, .dtype = DT_F32, .count = 8}},
     {"call 0, all-reduce of 8", "call 0, broadcast of 8"}},
    {{{.op = COLLECTIVE_BROADCAST, .dtype = DT_F32, .count = 8},
      {.op = COLLECTIVE_BROADCAST, .dtype = DT_F32, .count = 8, .root = 1}},
     {"broadcast of 8 elements of type 7, reduction 0, root 0",
      "broadcast of 8 elements of type 7, reduction 0, root 1"}},
    {{{.op = COLLECTIVE_SEND, .dtype = DT_F32, .count = 8},
      {.op = COLLECTIVE_RECV, .dtype = DT_F32, .count = 9}},
     {"send of 8", "receive of 9"}},
};
static size_t differs; // the one that is tried

static void run_another_call(struct member *m)
{
    struct device_communicator *c = join_all(m);
    struct collective_args a = unlike[differs].of[m->rank];
    a.buf = device_memory(m, NULL, 64);
    NEED(!m->l->run(c, m->q, &a, 1, &m->e));
    (void)m->b->stream.sync(m->q, &m->e);
}

static void launch_in_another_order(struct member *m)
{
    struct device_communicator *c[2] = {join(m, 0, 0, 2), join(m, 1, 0, 2)};
    struct stream_q *q[2];
    void *buf = device_memory(m, NULL, 64);
    for (int k = 0; k < 2; k++) {
        wait_until_ready(m, c[k]);
        NEED(!m->b->stream.create(m->d, STREAM_URGENT, &q[k], &m->e));
    }
    meet(m, 2); // both have both
    for (int i = 0; i < 2; i++) {
        int k = m->rank ? i : 1 - i;
        const struct collective_args a = {
            .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = (float *)buf + k, .count = 1};
        NEED(!m->l->run(c[k], q[k], &a, 1, &m->e));
    }
    (void)m->b->stream.sync(q[0], &m->e);
    (void)m->b->stream.sync(q[1], &m->e);
}

// Three ranks in a ring, each pair with a communicator of its own: no two of these share two ranks. Each
// rank sends before it receives, which is little enough to be buffered.
static void send_round_a_ring(struct member *m)
{
    struct device_communicator *c[2] = {NULL, NULL};
    void *buf = device_memory(m, NULL, 8);
    const int to = m->rank, from = (m->rank + 2) % 3;
    NEED(!m->l->id(m->d, m->team->id[to], &m->e));
    m->team->has_id[to] = true;
    while (!m->team->has_id[from])
        usleep(100);
    NEED(!m->l->open(m->d, m->team->id[to], "to", 2, 0, &c[0], &m->e));
    NEED(!m->l->open(m->d, m->team->id[from], "from", 2, 1, &c[1], &m->e));
    for (int k = 0; k < 2; k++) {
        const struct collective_args a = {.op = k ? COLLECTIVE_RECV : COLLECTIVE_SEND,
                                          .dtype = DT_F32,
                                          .buf = (float *)buf + k,
                                          .count = 1};
        wait_until_ready(m, c[k]);
        NEED(!m->l->run(c[k], m->q, &a, 1, &m->e));
    }
    (void)m->b->stream.sync(m->q, &m->e);
}

// These would hang a GPU, or overwrite its memory; the twin ends.
static void what_would_hang_a_gpu_ends_the_twin_and_is_named(void **state)
{
    char said[2000];
    (void)state;
    for (differs = 0; differs < sizeof unlike / sizeof *unlike; differs++) {
        assert_int_not_equal(run_team(2, "", "", run_another_call, said), 0);
        if (!strstr(said, unlike[differs].say[0]) || !strstr(said, unlike[differs].say[1]))
            fail_msg("%s", said);
    }
    assert_int_not_equal(run_team(2, "", "", launch_in_another_order, said), 0);
    if (!strstr(said, "call 0 is for ever: 2 devices wait for each other's calls"))
        fail_msg("%s", said);
    assert_int_not_equal(run_team(3, "", "", send_round_a_ring, said), 0);
    if (!strstr(said, "call 0 is for ever: 3 devices wait for each other's calls"))
        fail_msg("%s", said);
}

// ---- the end of what does not end --------------------------------------------------------------

struct abort_later {
    struct member *m;
    struct device_communicator *c;
    _Atomic bool begun;
};

static void *abort_when_begun(void *arg)
{
    struct abort_later *a = arg;
    while (!a->begun)
        usleep(1000);
    usleep(50000); // by now the other thread waits, which nobody sees from here
    a->m->l->abort(&a->c, 1);
    return NULL;
}

static void abort_while_it_opens(struct member *m)
{
    bool ready = true;
    struct device_communicator *c = join(m, 0, 0, 2);
    NEED(!m->l->ready(c, &ready, &m->e) && !ready);
    meet(m, 2); // rank 1 has begun, and so joined
    m->l->abort(&c, 1);
    NEED(m->l->ready(c, &ready, &m->e) == ERR_ABORTED && !ready);
    NEED(strcmp(m->e.text, "communicator dp was aborted") == 0);
    NEED(!m->l->check(c, &m->e)); // nobody's news
    m->l->close(&c, 1);
}

static void an_abort_ends_what_is_being_opened(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "nccl_init", "nccl_init", abort_while_it_opens, NULL), 0);
}

static int refused; // ncclResult_t

static void open_what_nccl_refuses(struct member *m)
{
    const bool misused = refused == 4 || refused == 5; // ncclInvalidArgument, ncclInvalidUsage
    bool ready = false;
    struct device_communicator *c = join(m, 0, 0, 2);
    while (!m->l->ready(c, &ready, &m->e) && !ready)
        (void)sched_yield();
    NEED(m->e.code == (misused ? ERR_UNSUPPORTED : ERR_IO) && !ready);
    NEED(strstr(m->e.text, "communicator dp: ncclCommInitRankConfig: ") == m->e.text);
    m->l->close(&c, 1);
}

static void what_nccl_cannot_open_is_no_fault_of_the_device(void **state)
{
    char scene[32];
    (void)state;
    for (refused = 1; refused <= 6; refused++) {
        snprintf(scene, sizeof scene, "nccl_refuses:%d", refused);
        assert_int_equal(run_team(2, scene, scene, open_what_nccl_refuses, NULL), 0);
    }
}

static void abort_while_it_is_launched(struct member *m)
{
    pthread_t thread;
    struct device_communicator *c = join_all(m);
    void *buf = device_memory(m, NULL, 4);
    struct abort_later later = {.m = m, .c = c};
    const struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .count = 1};
    NEED(!pthread_create(&thread, NULL, abort_when_begun, &later));
    later.begun = true;
    NEED(m->l->run(c, m->q, &a, 1, &m->e) == ERR_ABORTED);
    pthread_join(thread, NULL);
    NEED(!m->b->stream.sync(m->q, &m->e));
    m->l->close(&c, 1);
}

static void an_abort_ends_what_is_being_launched(void **state)
{
    (void)state;
    assert_int_equal(
        run_team(2, "nccl_launch:1", "nccl_launch:1", abort_while_it_is_launched, NULL), 0);
}

// The peer is there and never comes to the call, as one that hangs or has died behind NVLink.
static void abort_while_it_runs(struct member *m)
{
    pthread_t thread;
    struct device_communicator *c = join_all(m);
    void *buf = device_memory(m, NULL, 4);
    struct abort_later later = {.m = m, .c = c};
    const struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .count = 1};
    if (m->rank == 0) {
        NEED(!pthread_create(&thread, NULL, abort_when_begun, &later));
        NEED(!m->l->run(c, m->q, &a, 1, &m->e));
        later.begun = true;
        NEED(!m->b->stream.sync(m->q, &m->e));
        pthread_join(thread, NULL);
        NEED(m->l->run(c, m->q, &a, 1, &m->e) == ERR_ABORTED);
    }
    meet(m, 2);
    m->l->abort(&c, 1);
    m->l->close(&c, 1);
}

static void an_abort_ends_what_waits_on_the_device(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "", "", abort_while_it_runs, NULL), 0);
}

// Rank 1 leaves; rank 0 has calls on two communicators, the first of which waits for the second on the
// device. To abort one alone would wait for the other.
static void close_while_a_peer_is_gone(struct member *m)
{
    struct device_communicator *c[2] = {join(m, 0, 0, 2), join(m, 1, 0, 2)};
    struct stream_q *q[2];
    struct event *done;
    void *buf = device_memory(m, NULL, 8);
    NEED(!m->b->event.create(m->d, &done, &m->e));
    for (int k = 0; k < 2; k++) {
        wait_until_ready(m, c[k]);
        NEED(!m->b->stream.create(m->d, STREAM_URGENT, &q[k], &m->e));
    }
    meet(m, 2);
    if (m->rank == 1)
        return;
    for (int k = 1; k >= 0; k--) {
        const struct collective_args a = {
            .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = (float *)buf + k, .count = 1};
        if (k == 0)
            NEED(!m->b->event.wait(q[0], done, &m->e));
        NEED(!m->l->run(c[k], q[k], &a, 1, &m->e));
        if (k == 1)
            NEED(!m->b->event.record(q[1], done, &m->e));
    }
    m->l->close(c, 2);
    NEED(!m->b->stream.sync(q[0], &m->e));
    NEED(!m->b->stream.sync(q[1], &m->e));
}

static void communicators_are_closed_together_when_a_peer_is_gone(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "", "", close_while_a_peer_is_gone, NULL), 0);
}

// A kernel is left behind that never ends: nothing waits for it any more.
static void leave_while_a_kernel_spins(struct member *m)
{
    pthread_t thread;
    struct device_communicator *c = join_all(m);
    struct stream_q *other;
    struct event *done;
    void *host, *buf = device_memory(m, NULL, 4);
    bool is_done = false;
    struct abort_later later = {.m = m, .c = c};
    const struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .count = 1};
    if (m->rank == 1) {
        meet(m, 2);
        return;
    }
    NEED(!m->b->stream.create(m->d, STREAM_USUAL, &other, &m->e));
    NEED(!m->b->event.create(m->d, &done, &m->e));
    NEED(!m->b->memory.host_alloc(m->d, 64, &host, &m->e));
    NEED(!pthread_create(&thread, NULL, abort_when_begun, &later));
    NEED(!m->l->run(c, m->q, &a, 1, &m->e));
    NEED(!m->b->event.record(m->q, done, &m->e));
    later.begun = true;
    NEED(!m->b->event.sync(done, &m->e)); // comes back when the call was aborted
    pthread_join(thread, NULL);
    NEED(!m->b->event.record(m->q, done, &m->e)); // behind that kernel
    NEED(!m->b->event.query(done, &is_done, &m->e) && is_done);
    NEED(!m->b->event.sync(done, &m->e));
    NEED(!m->b->stream.sync(m->q, &m->e));
    m->b->memory.host_free(m->d, host);
    m->b->memory.free(m->d, buf);
    m->b->event.destroy(done);
    m->l->close(&c, 1);
    m->b->stream.destroy(other);
    m->b->stream.destroy(m->q);
    meet(m, 2);
}

static void behind_an_abort_nobody_waits_for_a_kernel_that_never_ends(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "nccl_spins", "nccl_spins", leave_while_a_kernel_spins, NULL), 0);
}

static void *check_until_it_fails(void *arg)
{
    struct abort_later *a = arg;
    struct member *m = a->m;
    struct err e = {0};
    while (!m->l->check(a->c, &e))
        usleep(1000);
    m->e = e;
    NEED(e.code == ERR_PEER);
    NEED(strcmp(e.text,
                "communicator dp: collectives: remote process exited or there was a network "
                "error") == 0);
    m->l->abort(&a->c, 1);
    return NULL;
}

static void see_a_remote_error(struct member *m)
{
    pthread_t thread;
    struct device_communicator *c = join_all(m);
    void *buf = device_memory(m, NULL, 4);
    struct abort_later later = {.m = m, .c = c};
    const struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = buf, .count = 1};
    NEED(!m->l->run(c, m->q, &a, 1, &m->e));
    NEED(!pthread_create(&thread, NULL, check_until_it_fails, &later));
    NEED(!m->b->stream.sync(m->q, &m->e));
    pthread_join(thread, NULL);
    m->l->close(&c, 1);
}

static void an_error_of_a_peer_is_found_beside_a_thread_that_waits(void **state)
{
    (void)state;
    assert_int_equal(run_team(2, "nccl_remote:1", "nccl_remote:1", see_a_remote_error, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_its_result_on_any_number_of_devices),
        cmocka_unit_test(before_2_28_slices_are_exchanged_by_sends_and_receives),
        cmocka_unit_test(other_types_travel_in_one_group),
        cmocka_unit_test(sends_and_receives_of_a_group_do_not_wait_for_each_other),
        cmocka_unit_test(what_is_launched_in_one_order_may_be_waited_for_in_any),
        cmocka_unit_test(a_communicator_that_is_not_ready_runs_nothing),
        cmocka_unit_test(what_would_hang_a_gpu_ends_the_twin_and_is_named),
        cmocka_unit_test(an_abort_ends_what_is_being_opened),
        cmocka_unit_test(what_nccl_cannot_open_is_no_fault_of_the_device),
        cmocka_unit_test(an_abort_ends_what_is_being_launched),
        cmocka_unit_test(an_abort_ends_what_waits_on_the_device),
        cmocka_unit_test(communicators_are_closed_together_when_a_peer_is_gone),
        cmocka_unit_test(behind_an_abort_nobody_waits_for_a_kernel_that_never_ends),
        cmocka_unit_test(an_error_of_a_peer_is_found_beside_a_thread_that_waits),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
