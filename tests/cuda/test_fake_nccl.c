// SPDX-License-Identifier: Apache-2.0
// The tests' NCCL by itself: what NCCL refuses it refuses, and what would hang a GPU or spoil its memory
// ends the program and is named. Code that passes over it needs no luck on a GPU. What differs between
// ranks is test_collectives's to show, which has a process for each.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/nccl.h"
#include "tests/cuda/dies.h"

enum { N = 64 };
#define MUST(call)                                                     \
    do {                                                               \
        if ((int)(call)) {                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #call); \
            _exit(1);                                                  \
        }                                                              \
    } while (0)

static struct nccl nccl;
static cudaStream_t one, two;
static float *device, *other; // of N

static int make(void **state)
{
    (void)state;
    setenv("WEFT_FAKE_CUDA", "devices:2", 1);
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    unsetenv("NCCL_HOSTID");
    MUST(nccl_load(&nccl) != NULL);
    MUST(cudaSetDevice(0));
    MUST(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    MUST(cudaMalloc((void **)&device, N * sizeof *device));
    MUST(cudaMalloc((void **)&other, N * sizeof *other));
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    cudaStreamDestroy(one);
    cudaStreamDestroy(two);
    cudaFree(device);
    cudaFree(other);
    return 0;
}

static ncclComm_t join(const ncclUniqueId *id, int n, int rank)
{
    ncclComm_t c = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    MUST(nccl.CommInitRankConfig(&c, n, *id, rank, &config) != ncclInProgress);
    return c;
}

static ncclResult_t state_of(ncclComm_t c)
{
    ncclResult_t state = ncclSuccess;
    MUST(nccl.CommGetAsyncError(c, &state));
    return state;
}

static void wait_for(ncclComm_t c)
{
    while (state_of(c) == ncclInProgress)
        ;
    MUST(state_of(c));
}

// Of one rank: it is ready when it has joined.
static ncclComm_t alone(void)
{
    ncclUniqueId id;
    MUST(nccl.GetUniqueId(&id));
    ncclComm_t c = join(&id, 1, 0);
    wait_for(c);
    return c;
}

static ncclResult_t sum(ncclComm_t c, cudaStream_t s)
{
    return nccl.AllReduce(device, device, N, ncclFloat32, ncclSum, c, s);
}

static void close_well(ncclComm_t c)
{
    MUST(nccl.CommFinalize(c) != ncclInProgress);
    wait_for(c);
    MUST(nccl.CommDestroy(c));
}

// ---- what it refuses ---------------------------------------------------------------------------

static void a_rank_outside_of_its_group_is_an_invalid_argument(void **state)
{
    ncclUniqueId id;
    ncclComm_t c = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    (void)state;
    config.blocking = 0;
    MUST(nccl.GetUniqueId(&id));
    assert_int_equal(nccl.CommInitRankConfig(&c, 2, id, 2, &config), ncclInvalidArgument);
    assert_null(c);
}

static void a_rank_that_is_there_already_is_refused(void **state)
{
    ncclUniqueId id;
    (void)state;
    MUST(nccl.GetUniqueId(&id));
    ncclComm_t c[2] = {join(&id, 2, 0), join(&id, 2, 0)};
    assert_int_equal(state_of(c[0]), ncclInProgress); // the other has not come
    assert_int_equal(state_of(c[1]), ncclInvalidUsage);
    MUST(nccl.CommAbort(c[0]));
    MUST(nccl.CommAbort(c[1]));
}

static void join_both(ncclComm_t c[2], const char *const hosts[2])
{
    ncclUniqueId id;
    MUST(nccl.GetUniqueId(&id));
    for (int r = 0; r < 2; r++) {
        if (hosts[r])
            setenv("NCCL_HOSTID", hosts[r], 1);
        c[r] = join(&id, 2, r);
    }
}

static void two_ranks_of_one_host_on_one_device_are_refused(void **state)
{
    static const char *const unnamed[2] = {NULL, NULL}, *const apart[2] = {"r0", "r1"};
    ncclComm_t c[2];
    (void)state;
    join_both(c, unnamed);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(state_of(c[r]), ncclInvalidUsage);
        assert_string_equal(nccl.GetLastError(c[r]), "Duplicate GPU detected");
        MUST(nccl.CommAbort(c[r]));
    }
    join_both(c, apart);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(state_of(c[r]), ncclSuccess);
        MUST(nccl.CommAbort(c[r]));
    }
}

static void an_identity_whose_maker_is_gone_is_a_remote_error(void **state)
{
    ncclUniqueId id;
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    pid_t maker = fork();
    if (!maker) {
        MUST(nccl.GetUniqueId(&id));
        _exit(write(ends[1], &id, sizeof id) != sizeof id);
    }
    assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
    waitpid(maker, NULL, 0);
    ncclComm_t c = join(&id, 2, 1);
    assert_int_equal(state_of(c), ncclRemoteError);
    MUST(nccl.CommAbort(c));
    close(ends[0]);
    close(ends[1]);
}

static void what_is_in_progress_is_not_used(void **state)
{
    ncclComm_t c = alone();
    (void)state;
    assert_int_equal(sum(c, one), ncclInProgress);
    assert_int_equal(sum(c, one), ncclInvalidArgument);
    wait_for(c);
    assert_int_equal(sum(c, one), ncclInProgress);
    assert_int_equal(nccl.CommFinalize(c), ncclInvalidArgument);
    wait_for(c);
    MUST(cudaStreamSynchronize(one));
    close_well(c);
}

static void a_group_ends_where_it_began(void **state)
{
    ncclComm_t c = alone();
    (void)state;
    assert_int_equal(nccl.GroupEnd(), ncclInvalidUsage);
    MUST(nccl.GroupStart());
    MUST(nccl.GroupStart());
    assert_int_equal(sum(c, one), ncclSuccess); // nothing is launched before the outer end
    MUST(nccl.GroupEnd());
    assert_int_equal(state_of(c), ncclSuccess);
    assert_int_equal(nccl.GroupEnd(), ncclInProgress);
    wait_for(c);
    MUST(cudaStreamSynchronize(one));
    close_well(c);
}

static void a_peer_or_root_that_is_not_in_the_group_is_an_invalid_argument(void **state)
{
    ncclComm_t c = alone();
    (void)state;
    assert_int_equal(nccl.Broadcast(device, device, N, ncclFloat32, 1, c, one),
                     ncclInvalidArgument);
    assert_int_equal(nccl.Send(device, N, ncclFloat32, -1, c, one), ncclInvalidArgument);
    close_well(c);
}

// ---- what ends the program ---------------------------------------------------------------------

static void connect_lazily(void)
{
    ncclUniqueId id;
    unsetenv("NCCL_RUNTIME_CONNECT");
    (void)nccl.GetUniqueId(&id);
}

static void launch_in_any_order(void)
{
    ncclUniqueId id;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    (void)nccl.GetUniqueId(&id);
}

static void block(void)
{
    ncclUniqueId id;
    ncclComm_t c;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    MUST(nccl.GetUniqueId(&id));
    (void)nccl.CommInitRankConfig(&c, 1, id, 0, &config);
}

static void overlap_halves(void)
{
    (void)nccl.AllReduce(device, device + N / 4, N / 2, ncclFloat32, ncclSum, alone(), one);
}

static void sum_the_hosts_memory(void)
{
    static float host[N];
    (void)nccl.AllReduce(host, host, N, ncclFloat32, ncclSum, alone(), one);
}

static void gather_past_the_end(void)
{
    (void)nccl.AllGather(other, device, N + 1, ncclFloat32, alone(), one);
}

static void use_another_devices_stream(void)
{
    cudaStream_t s;
    ncclComm_t c = alone();
    MUST(cudaSetDevice(1));
    MUST(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    (void)sum(c, s);
}

static void group_two_streams(void)
{
    ncclComm_t c = alone();
    MUST(nccl.GroupStart());
    MUST(sum(c, one));
    (void)sum(c, two);
}

static void group_two_communicators(void)
{
    ncclComm_t a = alone(), b = alone();
    MUST(nccl.GroupStart());
    MUST(sum(a, one));
    (void)sum(b, one);
}

static void capture(void)
{
    ncclComm_t c = alone();
    MUST(cudaStreamBeginCapture(one, cudaStreamCaptureModeThreadLocal));
    (void)sum(c, one);
}

static void destroy_at_once(void)
{
    (void)nccl.CommDestroy(alone());
}

static void use_after_the_end(void)
{
    ncclComm_t c = alone();
    close_well(c);
    (void)sum(c, one);
}

static void abort_twice(void)
{
    ncclComm_t c = alone();
    MUST(nccl.CommAbort(c));
    (void)nccl.CommAbort(c);
}

static void *ask_without_end(void *c)
{
    for (;;)
        (void)state_of(c);
    return NULL;
}

static void ask_by_two_threads(void)
{
    pthread_t thread;
    ncclComm_t c = alone();
    MUST(pthread_create(&thread, NULL, ask_without_end, c));
    (void)ask_without_end(c);
}

static void what_a_gpu_would_not_survive_ends_the_program(void **state)
{
    static const struct {
        void (*mistake)(void);
        const char *say;
    } cases[] = {
        {connect_lazily, "NCCL_RUNTIME_CONNECT is not 0"},
        {launch_in_any_order, "NCCL_LAUNCH_ORDER_IMPLICIT is not 1"},
        {block, "a communicator that blocks cannot be aborted while it is opened"},
        {overlap_halves, "operand and result of all-reduce overlap"},
        {sum_the_hosts_memory, "the operand of all-reduce is no memory of the device"},
        {gather_past_the_end, "the operand of all-gather is no memory of the device"},
        {use_another_devices_stream, "its device is 0, the stream's 1"},
        {group_two_streams, "a group of several communicators or streams is not emulated"},
        {group_two_communicators, "a group of several communicators or streams is not emulated"},
        {capture, "captures of collectives are not emulated"},
        {destroy_at_once, "a communicator is destroyed that is not finalized"},
        {use_after_the_end, "a communicator is used that was given back, or never was"},
        {abort_twice, "a communicator is used that was given back, or never was"},
        {ask_by_two_threads, "two threads are in its calls at once"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        dies_saying(cases[i].mistake, cases[i].say, false);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, make, unmake)
    const struct CMUnitTest tests[] = {
        CASE(a_rank_outside_of_its_group_is_an_invalid_argument),
        CASE(a_rank_that_is_there_already_is_refused),
        CASE(two_ranks_of_one_host_on_one_device_are_refused),
        CASE(an_identity_whose_maker_is_gone_is_a_remote_error),
        CASE(what_is_in_progress_is_not_used),
        CASE(a_group_ends_where_it_began),
        CASE(a_peer_or_root_that_is_not_in_the_group_is_an_invalid_argument),
        CASE(what_a_gpu_would_not_survive_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
