// SPDX-License-Identifier: Apache-2.0
// What every backend keeps of backend.h: memory, copies, streams, events, capture, windows, and a
// kernel for every op. What is right here on an emulated or a real GPU is right on the CPU.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/ops/rig.h"
#include "tests/unit/unit.h"

enum { N = 5000 };

static struct rig r;
static const struct backend *b;
static struct err e;
#define MUST(call)                             \
    do {                                       \
        if (call)                              \
            fail_msg("%s: %s", #call, e.text); \
    } while (0)

static int open_rig(void **state)
{
    (void)state;
    e = (struct err){0};
    rig_open(&r, 2, NULL);
    b = r.backend;
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&r);
    return 0;
}

static void *memory(size_t bytes)
{
    void *p = NULL;
    MUST(b->memory.alloc(r.device, bytes, &p, &e));
    return p;
}

static void *host_memory(size_t bytes)
{
    void *p = NULL;
    MUST(b->memory.host_alloc(r.device, bytes, &p, &e));
    return p;
}

static struct stream_q *stream(void)
{
    struct stream_q *q = NULL;
    MUST(b->stream.create(r.device, STREAM_URGENT, &q, &e));
    return q;
}

static struct event *event(void)
{
    struct event *ev = NULL;
    MUST(b->event.create(r.device, &ev, &e));
    return ev;
}

static void set(float *x, float to)
{
    for (int i = 0; i < N; i++)
        x[i] = to;
}

static void all_are(const float *x, float want)
{
    for (int i = 0; i < N; i++)
        assert_true(x[i] == want);
}

// to = 2 · from, N elements, on q.
static void twice(struct stream_q *q, void *to, void *from)
{
    static const struct op_attr attr = {.label = {{0}, {0}}, .labels = 1, .scale = 2};
    struct op_call c = {.op = OP_SCALE, .attr = &attr, .nin = 1, .nout = 1};
    c.in[0] = (struct tensor){from, DT_F32, {1, {N}}};
    c.out[0] = (struct tensor){to, DT_F32, {1, {N}}};
    MUST(b->op.run[OP_SCALE](q, &c, &e));
}

// ---- the table ---------------------------------------------------------------------------------

static void it_has_a_kernel_for_every_op(void **state)
{
    bool all[OP_COUNT];
    (void)state;
    for (int op = 0; op < OP_COUNT; op++)
        all[op] = true;
    MUST(backend_check(b, all, &e));
}

static void it_says_what_it_is_and_how_much_memory_it_has(void **state)
{
    (void)state;
    assert_string_equal(b->name, rig_backend());
    assert_true(b->device.count(&e) >= 1);
    assert_true(r.info.model[0] && r.info.isa[0] && r.info.libraries[0]);
    assert_true(r.info.memory > 1u << 20);
    assert_int_equal(r.info.shares_host, !rig_is_cuda());
}

// ---- memory ------------------------------------------------------------------------------------

static void memory_is_zero_aligned_and_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 4097, (2u << 20) - 1, 2u << 20, (5u << 20) + 3};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = memory(sizes[i]), *host = host_memory(sizes[i]);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(host, 1, sizes[i]);
        MUST(b->stream.copy(r.q, host, p, sizes[i], &e));
        MUST(b->stream.sync(r.q, &e));
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(host[k], 0);
        memset(host, 7, sizes[i]);
        MUST(b->stream.copy(r.q, p, host, sizes[i], &e));
        MUST(b->stream.sync(r.q, &e));
        memset(host, 0, sizes[i]);
        MUST(b->stream.copy(r.q, host, p, sizes[i], &e));
        MUST(b->stream.sync(r.q, &e));
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(host[k], 7);
        if (i % 2) { // what is left is freed with the device
            b->memory.free(r.device, p);
            b->memory.host_free(r.device, host);
        }
    }
}

static uint64_t allocated(void)
{
    struct device_info info;
    b->device.info(r.device, &info);
    return info.allocated;
}

static void what_is_handed_out_is_counted(void **state)
{
    (void)state;
    uint64_t before = allocated();
    void *p = memory(1000000);
    host_memory(5000);
    assert_int_equal(allocated() - before, 1000000);
    b->memory.free(r.device, p);
    assert_int_equal(allocated(), before);
}

static void a_device_says_whether_a_step_run_twice_gives_the_same_bits(void **state)
{
    (void)state;
    assert_true(r.info.deterministic); // it was opened so
    b->stream.destroy(r.q);
    b->device.close(r.device);
    MUST(b->device.open(&(struct device_options){.threads = 1}, &r.device, &e));
    MUST(b->stream.create(r.device, STREAM_USUAL, &r.q, &e));
    b->device.info(r.device, &r.info);
    assert_int_equal(r.info.deterministic, strcmp(b->name, "cpu") == 0);
}

static void memory_that_is_not_to_be_had_is_an_error_and_nothing_is_lost(void **state)
{
    void *p = NULL;
    (void)state;
    uint64_t before = allocated();
    assert_int_not_equal(b->memory.alloc(r.device, (size_t)1 << 50, &p, &e), 0);
    assert_non_null(
        strstr(e.text, rig_is_cuda() ? "1073741824.0 MiB were asked for" : "cannot map"));
    assert_int_equal(allocated(), before);
    memory(4096);
}

// ---- bytes -------------------------------------------------------------------------------------

static void copies_and_zeroes_come_in_the_order_of_their_stream(void **state)
{
    (void)state;
    float *host = host_memory(N * sizeof(float)), *back = host_memory(N * sizeof(float));
    char *x = memory(N * sizeof(float)), *y = memory(N * sizeof(float));
    size_t half = N / 2 * sizeof(float);
    set(host, 3);
    MUST(b->stream.copy(r.q, x, host, N * sizeof(float), &e));
    twice(r.q, y, x);
    MUST(b->stream.fill_zero(r.q, x, half, &e));
    MUST(b->stream.copy(r.q, y + half, x, half, &e)); // within the device
    MUST(b->stream.copy(r.q, back, y, N * sizeof(float), &e));
    MUST(b->stream.copy(r.q, NULL, NULL, 0, &e)); // nothing is allowed
    MUST(b->stream.sync(r.q, &e));
    for (int i = 0; i < N; i++)
        assert_true(back[i] == (i < N / 2 ? 6 : 0));
}

static void any_host_memory_serves_a_copy(void **state)
{
    float host[N], back[N];
    (void)state;
    void *x = memory(sizeof host);
    set(host, 4);
    MUST(b->stream.copy(r.q, x, host, sizeof host, &e));
    set(back, 0);
    MUST(b->stream.copy(r.q, back, x, sizeof back, &e));
    MUST(b->stream.sync(r.q, &e));
    all_are(back, 4);
}

// ---- streams and events ------------------------------------------------------------------------

static void an_event_carries_one_streams_work_to_another(void **state)
{
    (void)state;
    struct stream_q *q = stream(), *p = stream();
    struct event *made = event(), *read = event();
    float *host = host_memory(N * sizeof(float)), *back = host_memory(N * sizeof(float));
    void *x = memory(N * sizeof(float)), *y = memory(N * sizeof(float));
    for (int round = 1; round <= 5; round++) {
        MUST(b->event.sync(read, &e)); // the first time it was never recorded
        set(host, (float)round);
        MUST(b->stream.copy(q, x, host, N * sizeof(float), &e));
        twice(q, y, x);
        MUST(b->event.record(q, made, &e));
        MUST(b->event.wait(p, made, &e));
        MUST(b->stream.copy(p, back, y, N * sizeof(float), &e));
        MUST(b->event.record(p, read, &e));
        MUST(b->event.sync(read, &e));
        all_are(back, 2 * (float)round);
    }
    b->event.destroy(made);
    b->event.destroy(read);
    b->stream.destroy(q);
    b->stream.destroy(p);
    b->event.destroy(NULL);
    b->stream.destroy(NULL);
}

static void an_event_asked_again_and_again_is_done_in_the_end(void **state)
{
    (void)state;
    struct event *ev = event();
    bool done = false;
    MUST(b->event.query(ev, &done, &e));
    assert_true(done); // never recorded
    void *x = memory(N * sizeof(float));
    for (int i = 0; i < 10; i++)
        twice(r.q, x, x);
    MUST(b->event.record(r.q, ev, &e));
    do
        MUST(b->event.query(ev, &done, &e));
    while (!done);
}

// ---- a second thread ---------------------------------------------------------------------------

struct copier {
    struct stream_q *q;
    void *to, *host;
    _Atomic bool stop;
    _Atomic int copies;
};

static void *copy_on(void *arg)
{
    struct copier *c = arg;
    struct err mine = {0};
    while (!c->stop || !c->copies) {
        if (b->stream.copy(c->q, c->to, c->host, N, &mine) || b->stream.sync(c->q, &mine))
            abort();
        c->copies++;
    }
    return NULL;
}

static void ops_run_while_another_thread_copies(void **state)
{
    enum { ROUNDS = 100 };
    struct copier c = {.q = stream(), .to = memory(N), .host = host_memory(N)};
    pthread_t thread;
    (void)state;
    memset(c.host, 9, N);
    float *host = host_memory(N * sizeof(float));
    void *x = memory(N * sizeof(float)), *y = memory(N * sizeof(float));
    assert_int_equal(pthread_create(&thread, NULL, copy_on, &c), 0);
    for (int round = 0; round < ROUNDS; round++) {
        set(host, (float)round);
        MUST(b->stream.copy(r.q, x, host, N * sizeof(float), &e));
        twice(r.q, y, x);
        MUST(b->stream.copy(r.q, host, y, N * sizeof(float), &e));
        MUST(b->stream.sync(r.q, &e));
        all_are(host, 2 * (float)round);
    }
    c.stop = true;
    pthread_join(thread, NULL);
    MUST(b->stream.fill_zero(c.q, c.host, 0, &e));
    MUST(b->stream.copy(c.q, host, c.to, N, &e));
    MUST(b->stream.sync(c.q, &e));
    assert_memory_equal(host, c.host, N);
}

// ---- windows -----------------------------------------------------------------------------------

// A collective window is a memfd that other processes map too.
static void a_window_that_somebody_else_mapped_serves_ops(void **state)
{
    size_t bytes = N * sizeof(float);
    (void)state;
    int fd = memfd_create("window", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    float *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    float *peer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(window != MAP_FAILED && peer != MAP_FAILED);
    if (b->memory.adopt)
        MUST(b->memory.adopt(r.device, window, bytes, &e));
    void *x = memory(bytes);
    set(peer, 8);
    MUST(b->stream.sync(r.q, &e));
    twice(r.q, x, window);
    twice(r.q, window, x);
    MUST(b->stream.sync(r.q, &e));
    all_are(peer, 32);
    rig_close(&r); // which gives the window back before it is unmapped
    munmap(window, bytes);
    munmap(peer, bytes);
    close(fd);
    rig_open(&r, 1, NULL);
}

// ---- graphs ------------------------------------------------------------------------------------

static void a_captured_graph_reads_what_its_buffers_hold_when_it_runs(void **state)
{
    (void)state;
    void *graph = NULL;
    if (!b->graph) {
        assert_false(rig_is_cuda());
        return;
    }
    float *host = host_memory(N * sizeof(float)), *back = host_memory(N * sizeof(float));
    void *x = memory(N * sizeof(float)), *y = memory(N * sizeof(float));
    set(host, 1);
    MUST(b->graph->begin(r.q, &e));
    MUST(b->stream.copy(r.q, x, host, N * sizeof(float), &e));
    twice(r.q, y, x);
    twice(r.q, y, y);
    MUST(b->stream.copy(r.q, back, y, N * sizeof(float), &e));
    MUST(b->graph->end(r.q, &graph, &e));
    MUST(b->stream.sync(r.q, &e));
    all_are(back, 0); // nothing ran
    for (int round = 1; round <= 3; round++) {
        set(host, (float)round);
        MUST(b->graph->launch(r.q, graph, &e));
        MUST(b->stream.sync(r.q, &e));
        all_are(back, 4 * (float)round);
    }
    b->graph->destroy(graph);
    b->graph->destroy(NULL);
}

static void a_capture_takes_a_second_stream_in_by_events(void **state)
{
    (void)state;
    void *graph = NULL;
    if (!b->graph)
        return;
    struct stream_q *side = stream();
    struct event *fork = event(), *join = event();
    float *host = host_memory(N * sizeof(float));
    void *x = memory(N * sizeof(float)), *y = memory(N * sizeof(float)),
         *z = memory(N * sizeof(float));
    set(host, 1);
    MUST(b->stream.copy(r.q, x, host, N * sizeof(float), &e));
    MUST(b->graph->begin(r.q, &e));
    twice(r.q, x, x);
    MUST(b->event.record(r.q, fork, &e));
    MUST(b->event.wait(side, fork, &e));
    twice(side, y, x);
    MUST(b->event.record(side, join, &e));
    MUST(b->event.wait(r.q, join, &e));
    twice(r.q, z, y);
    MUST(b->stream.copy(r.q, host, z, N * sizeof(float), &e));
    MUST(b->graph->end(r.q, &graph, &e));
    for (int round = 0; round < 3; round++)
        MUST(b->graph->launch(r.q, graph, &e));
    MUST(b->stream.sync(r.q, &e));
    all_are(host, 8 * 4); // 1 doubled three times by the rounds, then twice more
    b->graph->destroy(graph);
}

static void *copy_once(void *arg)
{
    struct copier *c = arg;
    struct err mine = {0};
    c->copies = !b->stream.copy(c->q, c->to, c->host, N, &mine) && !b->stream.sync(c->q, &mine);
    return NULL;
}

static void while_one_thread_captures_another_copies_and_waits(void **state)
{
    (void)state;
    void *graph = NULL;
    if (!b->graph)
        return;
    struct copier c = {.q = stream(), .to = memory(N), .host = host_memory(N)};
    pthread_t thread;
    void *x = memory(N * sizeof(float));
    MUST(b->graph->begin(r.q, &e));
    twice(r.q, x, x);
    assert_int_equal(pthread_create(&thread, NULL, copy_once, &c), 0);
    pthread_join(thread, NULL);
    assert_int_equal(c.copies, 1);
    twice(r.q, x, x);
    MUST(b->graph->end(r.q, &graph, &e));
    b->graph->destroy(graph);
}

static void a_capture_that_asks_for_what_cannot_be_captured_fails_and_the_stream_lives(void **state)
{
    (void)state;
    void *graph = NULL, *p = NULL;
    if (!b->graph)
        return;
    void *x = memory(N * sizeof(float));
    MUST(b->graph->begin(r.q, &e));
    assert_int_equal(b->memory.alloc(r.device, 4096, &p, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "cudaErrorStreamCaptureUnsupported"));
    assert_int_equal(b->graph->end(r.q, &graph, &e), ERR_DEVICE);
    assert_non_null(strstr(e.text, "cudaErrorStreamCaptureInvalidated"));
    twice(r.q, x, x);
    MUST(b->stream.sync(r.q, &e));
    memory(4096);
}

// ---- marks -------------------------------------------------------------------------------------

static void a_mark_writes_its_words_when_the_stream_comes_to_it(void **state)
{
    (void)state;
    if (!b->stream.mark) {
        assert_false(rig_is_cuda());
        return;
    }
    uint64_t *words = host_memory(4 * sizeof *words);
    memset(words, 0, 4 * sizeof *words);
    float *host = host_memory(N * sizeof(float));
    void *x = memory(N * sizeof(float));
    set(host, 1);
    MUST(b->stream.mark(r.q, words, 7, 3, &e));
    MUST(b->stream.copy(r.q, x, host, N * sizeof(float), &e));
    MUST(b->stream.mark(r.q, words + 2, (uint64_t)1 << 40, 1, &e)); // another pair, all 64 bits
    twice(r.q, x, x);
    MUST(b->stream.mark(r.q, words, 9, 30, &e));
    MUST(b->stream.sync(r.q, &e));
    assert_memory_equal(words, ((uint64_t[]){9, 33, (uint64_t)1 << 40, 1}), 4 * sizeof *words);
}

// Whatever was counted in the memory before, and whatever the host wrote there before the first.
static void marks_of_new_memory_count_from_what_it_holds(void **state)
{
    (void)state;
    if (!b->stream.mark)
        return;
    for (uint64_t round = 0; round < 600; round++) { // more often than there are counters
        void *p;
        MUST(b->memory.host_alloc(r.device, 4 * sizeof(uint64_t), &p, &e));
        uint64_t *words = p;
        memcpy(words, ((uint64_t[]){0, round, 0, 0}), 4 * sizeof *words);
        MUST(b->stream.mark(r.q, words, round, 3, &e));
        MUST(b->stream.mark(r.q, words + 2, round, 5, &e));
        MUST(b->stream.mark(r.q, words, 1, 4, &e));
        MUST(b->stream.sync(r.q, &e));
        assert_memory_equal(words, ((uint64_t[]){1, round + 7, round, 5}), 4 * sizeof *words);
        b->memory.free(r.device, words);
    }
}

static void a_captured_mark_marks_at_every_replay(void **state)
{
    (void)state;
    void *graph = NULL;
    if (!b->stream.mark || !b->graph)
        return;
    uint64_t *words = host_memory(2 * sizeof *words);
    memset(words, 0, 2 * sizeof *words);
    void *x = memory(N * sizeof(float));
    MUST(b->graph->begin(r.q, &e));
    MUST(b->stream.mark(r.q, words, 1, 5, &e));
    twice(r.q, x, x);
    MUST(b->stream.mark(r.q, words, 2, 6, &e));
    MUST(b->graph->end(r.q, &graph, &e));
    MUST(b->stream.sync(r.q, &e));
    assert_int_equal(words[1], 0); // nothing ran
    for (uint64_t round = 1; round <= 3; round++) {
        MUST(b->graph->launch(r.q, graph, &e));
        MUST(b->stream.sync(r.q, &e));
        assert_int_equal(words[0], 2);
        assert_int_equal(words[1], 11 * round);
    }
    b->graph->destroy(graph);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)
    const struct CMUnitTest tests[] = {
        CASE(it_has_a_kernel_for_every_op),
        CASE(it_says_what_it_is_and_how_much_memory_it_has),
        CASE(memory_is_zero_aligned_and_whole),
        CASE(a_device_says_whether_a_step_run_twice_gives_the_same_bits),
        CASE(what_is_handed_out_is_counted),
        CASE(memory_that_is_not_to_be_had_is_an_error_and_nothing_is_lost),
        CASE(copies_and_zeroes_come_in_the_order_of_their_stream),
        CASE(any_host_memory_serves_a_copy),
        CASE(an_event_carries_one_streams_work_to_another),
        CASE(an_event_asked_again_and_again_is_done_in_the_end),
        CASE(ops_run_while_another_thread_copies),
        CASE(a_window_that_somebody_else_mapped_serves_ops),
        CASE(a_captured_graph_reads_what_its_buffers_hold_when_it_runs),
        CASE(a_capture_takes_a_second_stream_in_by_events),
        CASE(while_one_thread_captures_another_copies_and_waits),
        CASE(a_capture_that_asks_for_what_cannot_be_captured_fails_and_the_stream_lives),
        CASE(a_mark_writes_its_words_when_the_stream_comes_to_it),
        CASE(marks_of_new_memory_count_from_what_it_holds),
        CASE(a_captured_mark_marks_at_every_replay),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
