// SPDX-License-Identifier: Apache-2.0
// The fake runtime by itself: late work, events, pageable and pinned memory, capture. Where these
// tests say what CUDA does, the fake does no more: code that passes over it needs no luck on a GPU.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/alone.h"
#include "tests/cuda/dies.h"
#include "tests/unit/unit.h"

enum { N = 1000 };
#define MUST(call) assert_int_equal(call, cudaSuccess)

static cudaStream_t one, two;
static int *pinned, *device, *other; // of N

KERNEL(256) add_kernel(int *x, int add, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] += add;
}

static void add(int *x, int what, cudaStream_t s)
{
    LAUNCH(add_kernel, launch_blocks(N, 256, 1000), 256, 0, s, x, what, (int64_t)N);
    MUST(cudaGetLastError());
}

static void set(int *x, int to)
{
    for (int i = 0; i < N; i++)
        x[i] = to;
}

static void all_are(const int *x, int want)
{
    for (int i = 0; i < N; i++)
        assert_int_equal(x[i], want);
}

static void copy(int *to, const int *from, cudaStream_t s)
{
    MUST(cudaMemcpyAsync(to, from, N * sizeof(int), cudaMemcpyDefault, s));
}

static int make(void **state)
{
    (void)state;
    setenv("WEFT_FAKE_CUDA", "devices:2", 1);
    MUST(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    MUST(cudaHostAlloc((void **)&pinned, N * sizeof(int), 0));
    MUST(cudaMalloc((void **)&device, N * sizeof(int)));
    MUST(cudaMalloc((void **)&other, N * sizeof(int)));
    MUST(cudaMemset(device, 0, N * sizeof(int)));
    MUST(cudaMemset(other, 0, N * sizeof(int)));
    MUST(cudaDeviceSynchronize());
    set(pinned, 0);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    cudaStreamDestroy(one);
    cudaStreamDestroy(two);
    cudaFree(device);
    cudaFree(other);
    cudaFreeHost(pinned);
    cudaGetLastError();
    return 0;
}

// ---- late --------------------------------------------------------------------------------------

static void queued_work_is_not_done_before_it_is_waited_for(void **state)
{
    (void)state;
    set(pinned, 5);
    copy(device, pinned, one);
    add(device, 2, one);
    copy(pinned, device, one);
    all_are(pinned, 5);
    MUST(cudaStreamSynchronize(one));
    all_are(pinned, 7);
}

static void pinned_memory_is_read_when_the_copy_runs_and_pageable_memory_at_the_call(void **state)
{
    int heap[N];
    (void)state;
    set(pinned, 1);
    set(heap, 1);
    copy(device, pinned, one);
    copy(other, heap, one);
    set(pinned, 2);
    set(heap, 2);
    copy(heap, other, one); // to pageable memory: done when it returns
    all_are(heap, 1);
    copy(heap, device, one);
    all_are(heap, 2);
}

static void another_streams_work_is_not_there_without_the_event(void **state)
{
    cudaEvent_t ev;
    (void)state;
    MUST(cudaEventCreateWithFlags(&ev, cudaEventDisableTiming));
    add(device, 3, one);
    MUST(cudaEventRecord(ev, one));
    copy(pinned, device, two);
    MUST(cudaStreamSynchronize(two));
    all_are(pinned, 0); // what a GPU may do as well
    MUST(cudaStreamWaitEvent(two, ev, 0));
    copy(pinned, device, two);
    MUST(cudaStreamSynchronize(two));
    all_are(pinned, 3);
    cudaEventDestroy(ev);
}

static void an_event_waits_for_what_was_recorded_last_before_the_wait(void **state)
{
    cudaEvent_t ev;
    (void)state;
    MUST(cudaEventCreateWithFlags(&ev, 0));
    MUST(cudaStreamWaitEvent(two, ev, 0)); // never recorded: no wait
    MUST(cudaEventSynchronize(ev));
    MUST(cudaEventQuery(ev));
    add(device, 1, one);
    MUST(cudaEventRecord(ev, one));
    MUST(cudaStreamWaitEvent(two, ev, 0));
    add(device, 1, one);
    MUST(cudaEventRecord(ev, one)); // two does not wait for this one
    copy(pinned, device, two);
    MUST(cudaStreamSynchronize(two));
    all_are(pinned, 1);
    assert_int_equal(cudaEventQuery(ev), cudaErrorNotReady);
    while (cudaEventQuery(ev) == cudaErrorNotReady)
        cudaGetLastError();
    MUST(cudaEventQuery(ev));
    cudaEventDestroy(ev);
}

static void with_a_seed_work_may_run_early_and_nothing_else_changes(void **state)
{
    cudaEvent_t ev;
    bool early = false;
    (void)state;
    MUST(cudaEventCreateWithFlags(&ev, 0));
    for (int seed = 1; seed <= 20; seed++) {
        char scene[32];
        snprintf(scene, sizeof scene, "seed:%d", seed);
        setenv("WEFT_FAKE_CUDA", scene, 1);
        MUST(cudaMemset(device, 0, N * sizeof(int)));
        MUST(cudaDeviceSynchronize());
        set(pinned, -1);
        for (int k = 0; k < 8; k++)
            add(device, 1, one);
        MUST(cudaEventRecord(ev, one));
        MUST(cudaStreamWaitEvent(two, ev, 0));
        copy(pinned, device, two);
        early |= pinned[0] == 8;
        MUST(cudaStreamSynchronize(two));
        all_are(pinned, 8);
    }
    assert_true(early);
    cudaEventDestroy(ev);
}

static void with_CUDA_LAUNCH_BLOCKING_a_kernel_is_done_when_its_launch_returns(void **state)
{
    (void)state;
    set(pinned, 5);
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    add(pinned, 2, one);
    unsetenv("CUDA_LAUNCH_BLOCKING");
    all_are(pinned, 7);
}

// ---- memory ------------------------------------------------------------------------------------

static void copies_and_fills_stay_inside_allocations(void **state)
{
    int heap[8];
    (void)state;
    assert_int_equal(cudaMemcpyAsync(device, pinned, (N + 1) * sizeof(int), cudaMemcpyDefault, one),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(device + N - 1, 0, 8, one), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(heap, 0, sizeof heap, one), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(device + 1), cudaErrorInvalidValue);
    MUST(cudaHostRegister(heap, sizeof heap, 0));
    assert_int_equal(cudaHostRegister(heap, sizeof heap, 0), cudaErrorHostMemoryAlreadyRegistered);
    MUST(cudaMemsetAsync(heap, 0, sizeof heap, one));
    MUST(cudaHostUnregister(heap));
    assert_int_equal(heap[7], 0);
    assert_int_equal(cudaHostUnregister(heap), cudaErrorHostMemoryNotRegistered);
}

static void devices_have_memory_of_their_own(void **state)
{
    size_t left[2], all;
    void *p;
    (void)state;
    setenv("WEFT_FAKE_CUDA", "devices:2,memory:10000000", 1);
    MUST(cudaSetDevice(1));
    MUST(cudaMalloc(&p, 6000000));
    MUST(cudaMemGetInfo(&left[1], &all));
    assert_int_equal(cudaMalloc(&p, 6000000), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation); // reported once
    MUST(cudaSetDevice(0));
    MUST(cudaMemGetInfo(&left[0], &all));
    assert_true(left[0] > 9000000 && left[1] < 5000000 && all == 10000000);
    add(device, 1, one);
    MUST(cudaSetDevice(1));
    LAUNCH(add_kernel, 1, 32, 0, one, device, 1, (int64_t)1); // a stream of device 0
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    MUST(cudaFree(p));
    MUST(cudaSetDevice(0));
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
}

// ---- graphs ------------------------------------------------------------------------------------

static cudaGraphExec_t end_capture(cudaStream_t s)
{
    cudaGraph_t g;
    cudaGraphExec_t x;
    MUST(cudaStreamEndCapture(s, &g));
    MUST(cudaGraphInstantiate(&x, g, 0));
    MUST(cudaGraphDestroy(g));
    return x;
}

static void a_graph_runs_what_was_captured_each_time_it_is_launched(void **state)
{
    (void)state;
    MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    copy(device, pinned, one);
    add(device, 1, one);
    copy(pinned, device, one);
    cudaGraphExec_t x = end_capture(one);
    MUST(cudaStreamSynchronize(one));
    all_are(pinned, 0);
    MUST(cudaGraphLaunch(x, one));
    MUST(cudaGraphLaunch(x, one));
    all_are(pinned, 0);
    MUST(cudaStreamSynchronize(one));
    all_are(pinned, 2);
    MUST(cudaGraphLaunch(x, two));
    MUST(cudaGraphExecDestroy(x)); // what is queued still runs
    MUST(cudaStreamSynchronize(two));
    all_are(pinned, 3);
}

static size_t left(void)
{
    size_t bytes, all;
    MUST(cudaMemGetInfo(&bytes, &all));
    return bytes;
}

static void a_graph_has_memory_of_the_device_from_its_upload_or_first_launch_on(void **state)
{
    char full[64];
    (void)state;
    for (int uploads = 0; uploads < 2; uploads++) {
        MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
        add(device, 1, one);
        cudaGraphExec_t x = end_capture(one);
        const size_t before = left();
        snprintf(full, sizeof full, "devices:2,memory:%zu", ((size_t)8 << 30) - before + 1000);
        setenv("WEFT_FAKE_CUDA", full, 1);
        assert_int_equal(uploads ? cudaGraphUpload(x, one) : cudaGraphLaunch(x, one),
                         cudaErrorMemoryAllocation);
        assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
        setenv("WEFT_FAKE_CUDA", "devices:2", 1);
        MUST(uploads ? cudaGraphUpload(x, one) : cudaGraphLaunch(x, one));
        const size_t after = left();
        assert_true(after < before);
        MUST(cudaGraphLaunch(x, one));
        MUST(cudaStreamSynchronize(one));
        assert_int_equal(left(), after);
        MUST(cudaGraphExecDestroy(x));
        assert_int_equal(left(), before);
    }
}

// What a host may see of a graph that runs: pinned memory, a node at a time.
static void each_look_at_an_event_behind_a_graph_lets_one_node_run(void **state)
{
    cudaEvent_t ev;
    (void)state;
    MUST(cudaEventCreateWithFlags(&ev, cudaEventDisableTiming));
    MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    add(pinned, 1, one);
    add(device, 1, one);
    add(pinned, 1, one);
    cudaGraphExec_t x = end_capture(one);
    for (int round = 0; round < 2; round++) {
        set(pinned, 0);
        MUST(cudaGraphLaunch(x, one));
        MUST(cudaEventRecord(ev, one));
        for (int look = 1; look <= 4; look++) {
            assert_int_equal(cudaEventQuery(ev), cudaErrorNotReady);
            all_are(pinned, look < 3 ? 1 : 2);
        }
        MUST(cudaEventQuery(ev));
    }
    MUST(cudaGraphExecDestroy(x));
    cudaEventDestroy(ev);
}

static void replay_into_memory_that_was_given_back(void)
{
    MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    add(pinned, 1, one);
    cudaGraphExec_t x = end_capture(one);
    MUST(cudaGraphLaunch(x, one));
    MUST(cudaFreeHost(pinned)); // waits for the device
    MUST(cudaGraphLaunch(x, one));
    (void)cudaStreamSynchronize(one);
}

static void a_kernel_is_held_to_its_memory_when_it_runs_too(void **state)
{
    (void)state;
    dies_saying(replay_into_memory_that_was_given_back, "which is no memory of the device", false);
}

// one: device += 1 ─┬──────────────── other += 5 ─┬─ copy
// two:              └─ other = device ───────────────┘       without the second event: a race
static void a_fork_comes_back_by_an_event_or_the_capture_is_lost(void **state)
{
    cudaEvent_t fork, join;
    cudaGraph_t g;
    (void)state;
    MUST(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    for (int joined = 0; joined < 2; joined++) {
        MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
        add(device, 1, one);
        MUST(cudaEventRecord(fork, one));
        MUST(cudaStreamWaitEvent(two, fork, 0));
        copy(other, device, two);
        MUST(cudaEventRecord(join, two));
        if (joined)
            MUST(cudaStreamWaitEvent(one, join, 0));
        add(other, 5, one);
        copy(pinned, other, one);
        if (joined)
            break;
        assert_int_equal(cudaStreamEndCapture(one, &g), cudaErrorStreamCaptureUnjoined);
        assert_null(g);
        cudaGetLastError();
    }
    cudaGraphExec_t x = end_capture(one);
    MUST(cudaGraphLaunch(x, one));
    MUST(cudaGraphLaunch(x, one));
    MUST(cudaStreamSynchronize(one));
    all_are(pinned, 7);
    MUST(cudaGraphExecDestroy(x));
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
}

static void wait_for_stream(cudaEvent_t ev)
{
    (void)ev;
    assert_int_equal(cudaStreamSynchronize(one), cudaErrorStreamCaptureUnsupported);
}

static void wait_for_another_stream(cudaEvent_t ev)
{
    (void)ev;
    assert_int_equal(cudaStreamSynchronize(two), cudaErrorStreamCaptureUnsupported);
}

static void ask_for_another_event(cudaEvent_t ev)
{
    assert_int_equal(cudaEventQuery(ev), cudaErrorStreamCaptureUnsupported);
}

static void get_memory(cudaEvent_t ev)
{
    void *p;
    (void)ev;
    assert_int_equal(cudaMalloc(&p, 100), cudaErrorStreamCaptureUnsupported);
}

static void wait_for_older_work(cudaEvent_t ev)
{
    assert_int_equal(cudaStreamWaitEvent(one, ev, 0), cudaErrorStreamCaptureIsolation);
}

static void ask_for_captured_event(cudaEvent_t ev)
{
    MUST(cudaEventRecord(ev, one));
    assert_int_equal(cudaEventQuery(ev), cudaErrorCapturedEvent);
}

static void what_cuda_refuses_in_a_capture_loses_it(void **state)
{
    static void (*const mistakes[])(cudaEvent_t ev) = {
        wait_for_stream, wait_for_another_stream, ask_for_another_event,
        get_memory,      wait_for_older_work,     ask_for_captured_event};
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        cudaGraph_t g;
        cudaEvent_t ev;
        MUST(cudaEventCreateWithFlags(&ev, 0));
        MUST(cudaEventRecord(ev, two));
        MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
        mistakes[i](ev);
        cudaGetLastError();
        assert_int_equal(cudaMemsetAsync(device, 0, 4, one), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(one, &g), cudaErrorStreamCaptureInvalidated);
        cudaGetLastError();
        MUST(cudaMemsetAsync(device, 0, 4, one)); // and the stream is an ordinary one again
        cudaEventDestroy(ev);
    }
}

static void *get_memory_there(void *got)
{
    void *p = NULL;
    *(cudaError_t *)got = cudaMalloc(&p, 100);
    (void)cudaFree(p);
    return NULL;
}

static void *end_capture_there(void *got)
{
    cudaGraph_t g = NULL;
    *(cudaError_t *)got = cudaStreamEndCapture(one, &g);
    if (g)
        (void)cudaGraphDestroy(g);
    return NULL;
}

static cudaError_t on_a_thread(void *(*run)(void *got))
{
    pthread_t thread;
    cudaError_t got = cudaSuccess;
    assert_int_equal(pthread_create(&thread, NULL, run, &got), 0);
    pthread_join(thread, NULL);
    return got;
}

static void a_capture_forbids_by_its_mode_what_this_thread_and_others_do(void **state)
{
    static const struct {
        enum cudaStreamCaptureMode mode;
        cudaError_t here, there, end;
    } cases[] = {
        {cudaStreamCaptureModeRelaxed, cudaSuccess, cudaSuccess, cudaSuccess},
        {cudaStreamCaptureModeThreadLocal, cudaErrorStreamCaptureUnsupported, cudaSuccess,
         cudaErrorStreamCaptureWrongThread},
        {cudaStreamCaptureModeGlobal, cudaErrorStreamCaptureUnsupported,
         cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureWrongThread},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cudaGraph_t g = NULL;
        void *p = NULL;
        MUST(cudaStreamBeginCapture(one, cases[i].mode));
        assert_int_equal(on_a_thread(get_memory_there), cases[i].there);
        assert_int_equal(cudaMalloc(&p, 100), cases[i].here);
        assert_int_equal(on_a_thread(end_capture_there), cases[i].end);
        if (cases[i].end)
            assert_int_equal(cudaStreamEndCapture(one, &g), cudaErrorStreamCaptureInvalidated);
        (void)cudaGetLastError();
        MUST(cudaFree(p));
    }
}

static void an_event_without_times_has_none(void **state)
{
    cudaEvent_t timed, plain;
    float ms;
    (void)state;
    MUST(cudaEventCreate(&timed));
    MUST(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    MUST(cudaEventRecord(timed, one));
    MUST(cudaEventRecord(plain, one));
    MUST(cudaStreamSynchronize(one));
    MUST(cudaEventElapsedTime(&ms, timed, timed));
    assert_int_equal(cudaEventElapsedTime(&ms, timed, plain), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    cudaEventDestroy(timed);
    cudaEventDestroy(plain);
}

// ---- failures ----------------------------------------------------------------------------------

// In a child: a device that has failed stays so.
static void fail_on_the_second_kernel(void)
{
    setenv("WEFT_FAKE_CUDA", "sticky:2", 1);
    add(device, 1, one);
    add(device, 1, one);
    MUST(cudaStreamSynchronize(two)); // nothing to do with it, and nothing seen yet
    assert_int_equal(cudaStreamSynchronize(one), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamSynchronize(two), cudaErrorIllegalAddress);
    assert_int_equal(cudaMemset(device, 0, 4), cudaErrorIllegalAddress);
    cudaGetLastError();
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    fputs("as it should", stderr);
    _exit(3);
}

static void a_wrong_address_is_seen_at_the_wait_and_for_ever_after(void **state)
{
    (void)state;
    dies_saying(fail_on_the_second_kernel, "as it should", false);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(queued_work_is_not_done_before_it_is_waited_for),
        CASE(pinned_memory_is_read_when_the_copy_runs_and_pageable_memory_at_the_call),
        CASE(another_streams_work_is_not_there_without_the_event),
        CASE(an_event_waits_for_what_was_recorded_last_before_the_wait),
        CASE(with_a_seed_work_may_run_early_and_nothing_else_changes),
        CASE(with_CUDA_LAUNCH_BLOCKING_a_kernel_is_done_when_its_launch_returns),
        CASE(copies_and_fills_stay_inside_allocations),
        CASE(devices_have_memory_of_their_own),
        CASE(a_graph_runs_what_was_captured_each_time_it_is_launched),
        CASE(a_graph_has_memory_of_the_device_from_its_upload_or_first_launch_on),
        CASE(each_look_at_an_event_behind_a_graph_lets_one_node_run),
        CASE(a_kernel_is_held_to_its_memory_when_it_runs_too),
        CASE(a_fork_comes_back_by_an_event_or_the_capture_is_lost),
        CASE(what_cuda_refuses_in_a_capture_loses_it),
        CASE(a_capture_forbids_by_its_mode_what_this_thread_and_others_do),
        CASE(an_event_without_times_has_none),
        CASE(a_wrong_address_is_seen_at_the_wait_and_for_ever_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
