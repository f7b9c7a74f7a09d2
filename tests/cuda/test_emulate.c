// SPDX-License-Identifier: Apache-2.0
// The emulator by itself: what CUDA promises is kept, and what it leaves undefined is caught.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rand.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/philox.h"
#include "tests/cuda/alone.h"
#include "tests/cuda/dies.h"
#include "tests/support/normal.h"
#include "tests/unit/unit.h"

enum { N = 4096 };

static void *on_device(const void *from, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from)
        assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyDefault), cudaSuccess);
    return p;
}

// Waits for everything, brings the bytes back and frees the memory.
static void take(void *to, void *from, size_t bytes)
{
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaSuccess);
    assert_int_equal(cudaFree(from), cudaSuccess);
}

// ---- who a thread is ---------------------------------------------------------------------------

KERNEL(24) name_kernel(int *out)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + block_thread()] +=
        (int)(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x +
              10000 * blockIdx.y + 100000 * blockIdx.z);
}

static void every_thread_of_every_block_runs_once_under_its_own_name(void **state)
{
    enum { ALL = 2 * 3 * 4 * 4 * 3 * 2 };
    int got[ALL] = {0}, at = 0;
    (void)state;
    int *out = on_device(got, sizeof got);
    LAUNCH(name_kernel, launch_dim(4, 3, 2), launch_dim(2, 3, 4), 0, NULL, out);
    take(got, out, sizeof got);
    for (int bz = 0; bz < 2; bz++)
        for (int by = 0; by < 3; by++)
            for (int bx = 0; bx < 4; bx++)
                for (int z = 0; z < 4; z++)
                    for (int y = 0; y < 3; y++)
                        for (int x = 0; x < 2; x++)
                            assert_int_equal(got[at++], x + 10 * y + 100 * z + 1000 * bx +
                                                            10000 * by + 100000 * bz);
}

// ---- barriers and shared memory ----------------------------------------------------------------

KERNEL(1024) reverse_kernel(const int *in, int *out)
{
    __shared__ int kept[1024];
    SHARED(int, also);
    int n = (int)blockDim.x, me = (int)threadIdx.x;
    kept[me] = in[me];
    also[n - 1 - me] = in[me];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1000000 * kept[n - 1 - me] + also[me];
}

static void a_barrier_shows_what_all_others_wrote_whoever_went_first(void **state)
{
    static const int sizes[] = {1, 31, 32, 33, 100, 256, 1024};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        enum { BLOCKS = 3 };
        int n = sizes[s], in[1024], got[BLOCKS * 1024];
        for (int i = 0; i < n; i++)
            in[i] = i;
        int *from = on_device(in, sizeof in), *out = on_device(NULL, sizeof got);
        LAUNCH(reverse_kernel, BLOCKS, n, (size_t)n * sizeof(int), NULL, from, out);
        take(got, out, sizeof got);
        cudaFree(from);
        for (int i = 0; i < BLOCKS * n; i++)
            assert_int_equal(got[i], 1000001 * (n - 1 - i % n));
    }
}

KERNEL(32) dirty_kernel(int *out)
{
    __shared__ int fixed[32];
    SHARED(float, given);
    unsigned me = threadIdx.x;
    out[blockIdx.x * 32 + me] = fixed[me] == -1 && isnan(given[me]);
    __syncthreads();
    fixed[me] = 0;
    given[me] = 0;
}

static void shared_memory_is_full_of_nonsense_when_a_block_begins(void **state)
{
    int got[96];
    (void)state;
    int *out = on_device(NULL, sizeof got);
    LAUNCH(dirty_kernel, 3, 32, 32 * sizeof(float), NULL, out);
    take(got, out, sizeof got);
    for (int i = 0; i < 96; i++)
        assert_int_equal(got[i], 1);
}

// ---- shuffles and votes ------------------------------------------------------------------------

enum { KINDS = 8 };

KERNEL(64) shuffle_kernel(int *out)
{
    int me = (int)threadIdx.x, *to = out + KINDS * me;
    to[0] = __shfl_sync(WARP_ALL, me, 5);
    to[1] = __shfl_sync(WARP_ALL, me, me + 1, 8);
    to[2] = __shfl_up_sync(WARP_ALL, me, 3);
    to[3] = __shfl_down_sync(WARP_ALL, me, 3, 16);
    to[4] = __shfl_xor_sync(WARP_ALL, me, 5);
    to[5] = (int)__ballot_sync(WARP_ALL, me % 3 == 0);
    to[6] = __any_sync(WARP_ALL, me == 40) + 2 * __all_sync(WARP_ALL, me < 32);
    __syncwarp();
    to[7] = 0;
    if (me % 2)
        to[7] = (int)__shfl_xor_sync(0xaaaaaaaau, (double)me, 2);
}

static void shuffles_and_votes_go_to_the_lanes_that_cuda_says(void **state)
{
    int got[64 * KINDS];
    (void)state;
    int *out = on_device(NULL, sizeof got);
    LAUNCH(shuffle_kernel, 1, 64, 0, NULL, out);
    take(got, out, sizeof got);
    for (int t = 0; t < 64; t++) {
        int lane = t % 32, first = t - lane, *is = got + KINDS * t;
        unsigned thirds = 0;
        for (int l = 0; l < 32; l++)
            thirds |= (unsigned)((first + l) % 3 == 0) << l;
        assert_int_equal(is[0], first + 5);
        assert_int_equal(is[1], first + lane / 8 * 8 + (lane + 1) % 8);
        assert_int_equal(is[2], lane < 3 ? t : t - 3);
        assert_int_equal(is[3], lane % 16 >= 13 ? t : t + 3);
        assert_int_equal(is[4], first + (lane ^ 5));
        assert_int_equal(is[5], (int)thirds);
        assert_int_equal(is[6], first ? 1 : 2);
        assert_int_equal(is[7], t % 2 ? first + (lane ^ 2) : 0);
    }
}

KERNEL(40) early_kernel(int *out)
{
    unsigned me = threadIdx.x;
    if (me >= 36)
        return; // lanes that have left are no longer waited for
    out[me] = (int)__ballot_sync(WARP_ALL, 1);
}

static void a_vote_does_without_lanes_that_have_returned_or_never_were(void **state)
{
    int got[36];
    (void)state;
    int *out = on_device(NULL, sizeof got);
    LAUNCH(early_kernel, 1, 40, 0, NULL, out);
    take(got, out, sizeof got);
    for (int t = 0; t < 36; t++)
        assert_int_equal(got[t], t < 32 ? -1 : 0xf);
}

// ---- numbers.h ---------------------------------------------------------------------------------

KERNEL(1024) sums_kernel(double *out)
{
    __shared__ float part[32];
    __shared__ double wide[32];
    unsigned me = threadIdx.x;
    float sum = block_sum((float)(me + 1), part),
          most = block_max(me == 7 ? 99 : (float)me / 4, part);
    double all = block_sum_f64(me + 0.25, wide);
    if (me == blockDim.x - 1) {
        out[0] = (double)sum;
        out[1] = (double)most;
        out[2] = all;
    }
    most = block_max(me == 3 ? NAN : 0, part);
    if (me == 0)
        out[3] = (double)most;
}

static void a_blocks_sum_and_maximum_reach_every_thread(void **state)
{
    (void)state;
    for (int n = 32; n <= 1024; n *= 2) {
        double got[4];
        double *out = on_device(NULL, sizeof got);
        LAUNCH(sums_kernel, 1, n, 0, NULL, out);
        take(got, out, sizeof got);
        assert_true(got[0] == n * (n + 1) / 2);
        assert_true(got[1] == fmax(99, (n - 1) / 4.0));
        assert_true(got[2] == n * (n - 1) / 2 + n * 0.25);
        assert_true(isnan(got[3]));
    }
}

KERNEL(256) draws_kernel(uint64_t seed, unsigned stream, unsigned step, uint64_t first, float *out)
{
    uint64_t i = first + blockIdx.x * blockDim.x + threadIdx.x;
    uint4 block = draw_block(seed, stream, step, i >> 1);
    uint4 fours = draw_block(seed, stream, step, i >> 2);
    out[i - first] = draw_uniform_of(draw_word(fours, (unsigned)(i & 3)));
    out[N + i - first] = draw_normal_of(block, (unsigned)(i & 1));
}

static void draws_are_the_hosts_to_the_bit(void **state)
{
    static const uint64_t firsts[] = {0, 7, (1ull << 34) - 100, (1ull << 62) + 3};
    (void)state;
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
        const struct rand_site site = {0x123456789abcdef0u + f, 0xdeadbeef, 77};
        static float got[2 * N];
        float *out = on_device(NULL, sizeof got);
        LAUNCH(draws_kernel, N / 256, 256, 0, NULL, site.seed, site.stream, site.step, firsts[f],
               out);
        take(got, out, sizeof got);
        for (uint64_t i = 0; i < N; i++) {
            assert_true(got[i] == rand_uniform(&site, firsts[f] + i));
            assert_true(got[N + i] == draw_normal(&site, firsts[f] + i));
        }
    }
}

KERNEL(32) fours_kernel(const void *in, enum dtype t, void *same, void *sixteen)
{
    int64_t i = 4 * (int64_t)threadIdx.x;
    float v[LANES];
    lanes_load(in, t, i, 1, 4, 4, v);
    lanes_store(same, t, i, 4, 4, v);
    store_f32(sixteen, DT_BF16, i, v[0]);
    store_f32(sixteen, DT_BF16, i + 1, v[1]);
    store_f32(sixteen, DT_BF16, i + 2, v[2]);
    store_f32(sixteen, DT_BF16, i + 3, load_f32(in, t, i + 3));
}

static void four_elements_at_once_are_the_same_four(void **state)
{
    enum { M = 128 };
    float in[M], same[M];
    uint16_t half[M], halves[M];
    (void)state;
    for (int i = 0; i < M; i++) {
        in[i] = (float)(i - 60) / 8; // bf16 holds each
        half[i] = (uint16_t)(__float_as_uint(in[i]) >> 16);
    }
    float *from = on_device(in, sizeof in), *to = on_device(NULL, sizeof same);
    uint16_t *small = on_device(NULL, sizeof half), *again = on_device(NULL, sizeof half);
    LAUNCH(fours_kernel, 1, 32, 0, NULL, from, DT_F32, to, small);
    LAUNCH(fours_kernel, 1, 32, 0, NULL, small, DT_BF16, again, small);
    take(same, to, sizeof same);
    take(halves, again, sizeof halves);
    assert_memory_equal(same, in, sizeof in);
    assert_memory_equal(halves, half, sizeof half);
    cudaFree(from);
    cudaFree(small);
}

// ---- what ends the program ---------------------------------------------------------------------

KERNEL(64) skipped_kernel(int n)
{
    if ((int)threadIdx.x >= n)
        return;
    __syncthreads();
}

static void skipped_barrier(void)
{
    LAUNCH(skipped_kernel, 1, 64, 0, NULL, 63);
    cudaDeviceSynchronize();
}

KERNEL(64) divided_kernel(int n)
{
    if ((int)threadIdx.x < n)
        __syncthreads();
    else
        __syncthreads();
}

static void divided_barrier(void)
{
    LAUNCH(divided_kernel, 1, 64, 0, NULL, 32);
    cudaDeviceSynchronize();
}

KERNEL(32) lonely_kernel(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_xor_sync(WARP_ALL, 1, 1);
    __syncthreads();
}

static void lonely_shuffle(void)
{
    int *out = on_device(NULL, 64);
    LAUNCH(lonely_kernel, 1, 32, 0, NULL, out);
    cudaDeviceSynchronize();
}

KERNEL(32) absent_kernel(int *out)
{
    out[0] = __shfl_xor_sync(WARP_ALL, 1, 16);
}

static void absent_lane(void)
{
    int *out = on_device(NULL, 64);
    LAUNCH(absent_kernel, 1, 24, 0, NULL, out);
    cudaDeviceSynchronize();
}

KERNEL(32) outside_kernel(int *out)
{
    out[threadIdx.x] = (int)__ballot_sync(0xffu, 1);
}

static void outside_the_mask(void)
{
    int *out = on_device(NULL, 256);
    LAUNCH(outside_kernel, 1, 32, 0, NULL, out);
    cudaDeviceSynchronize();
}

KERNEL(32) overrun_kernel(int past)
{
    SHARED(int, room);
    room[threadIdx.x + (unsigned)past] = 1;
}

static void shared_overrun(void)
{
    LAUNCH(overrun_kernel, 1, 32, 32 * sizeof(int), NULL, 1);
    cudaDeviceSynchronize();
}

KERNEL(32) write_kernel(int *to, int at)
{
    to[at] = 1;
}

static void device_overrun(void)
{
    int *p = on_device(NULL, 100 * sizeof(int));
    LAUNCH(write_kernel, 1, 1, 0, NULL, p, 100);
    cudaDeviceSynchronize();
    cudaFree(p);
}

static void host_pointer_in_arguments(void)
{
    int x;
    LAUNCH(write_kernel, 1, 1, 0, NULL, &x, 0);
}

KERNEL(32) fourfold_kernel(const float *from, int64_t at, float4 *to)
{
    float v[LANES];
    lanes_load_f32(from + at, v);
    to[threadIdx.x] = make_float4(v[0], v[1], v[2], v[3]);
}

static void misaligned_access(void)
{
    void *p = on_device(NULL, 1024);
    LAUNCH(fourfold_kernel, 1, 1, 0, NULL, p, 16, p);
    cudaDeviceSynchronize();
    LAUNCH(fourfold_kernel, 1, 1, 0, NULL, p, 18, p);
    cudaDeviceSynchronize();
}

static void host_reads_device(void)
{
    volatile int *p = on_device(NULL, 64);
    exit(p[3]);
}

// Three faults that blocks and threads in order would hide, each in one launch.
static void in_all_orders(void)
{
    setenv("WEFT_FAKE_CUDA", "orders", 1);
}

KERNEL(64) unawaited_kernel(int *out)
{
    __shared__ int kept[64];
    unsigned me = threadIdx.x;
    for (int round = 0; round < 2; round++) {
        kept[me] = (int)me + round;
        __syncthreads();
        out[64 * round + (int)me] = kept[63 - me]; // and nobody waits before the next round
    }
}

static void unawaited_readers(void)
{
    in_all_orders();
    int *out = on_device(NULL, 2 * 64 * sizeof(int));
    LAUNCH(unawaited_kernel, 1, 64, 0, NULL, out);
    cudaDeviceSynchronize();
}

KERNEL(32) shift_kernel(int *x)
{
    unsigned i = blockIdx.x * 32 + threadIdx.x;
    int next = x[i + 32]; // of the next block, which may have written it
    __syncthreads();
    x[i] = next;
}

static void blocks_in_each_others_way(void)
{
    int in[4 * 32];
    for (int i = 0; i < 4 * 32; i++)
        in[i] = i;
    in_all_orders();
    int *x = on_device(in, sizeof in);
    LAUNCH(shift_kernel, 3, 32, 0, NULL, x);
    cudaDeviceSynchronize();
}

KERNEL(32) unset_kernel(float *out)
{
    SHARED(float, most);
    out[threadIdx.x] = fmaxf(most[threadIdx.x], 0); // a NaN is no maximum, nor is 0
}

static void unset_shared_memory(void)
{
    in_all_orders();
    float *out = on_device(NULL, 32 * sizeof(float));
    LAUNCH(unset_kernel, 1, 32, 32 * sizeof(float), NULL, out);
    cudaDeviceSynchronize();
}

// ---- kernels that are launched early -----------------------------------------------------------

KERNEL(64) hasty_kernel(int *x)
{
    x[threadIdx.x] += 1;
    kernel_begin();
}

KERNEL(64) forgetful_kernel(int *x)
{
    x[threadIdx.x] += 1;
}

KERNEL(64) loose_kernel(int *x)
{
    if (threadIdx.x < 32)
        kernel_begin();
    __syncthreads();
    x[threadIdx.x] += 1;
}

// Up to its wait it has shared memory alone.
KERNEL(64) patient_kernel(int *x)
{
    __shared__ int kept[64];
    kept[threadIdx.x] = (int)(blockIdx.x * 64 + threadIdx.x);
    kernel_begin();
    __syncthreads();
    x[kept[63 - threadIdx.x]] += 1;
}

static void hasty(void)
{
    int *x = on_device(NULL, 64 * sizeof(int));
    EMULATE_LAUNCH(hasty_kernel, 1, 64, 0, NULL, EMULATE_EARLY, x);
    cudaDeviceSynchronize();
}

static void forgetful(void)
{
    int *x = on_device(NULL, 64 * sizeof(int));
    EMULATE_LAUNCH(forgetful_kernel, 1, 64, 0, NULL, EMULATE_BEHIND, x);
    cudaDeviceSynchronize();
}

static void loose(void)
{
    int *x = on_device(NULL, 64 * sizeof(int));
    EMULATE_LAUNCH(loose_kernel, 1, 64, 0, NULL, EMULATE_EARLY, x);
    cudaDeviceSynchronize();
}

static void loose_in_order(void)
{
    int *x = on_device(NULL, 64 * sizeof(int));
    EMULATE_LAUNCH(loose_kernel, 1, 64, 0, NULL, EMULATE_BEHIND, x);
    cudaDeviceSynchronize();
}

static void a_kernel_that_waits_first_may_be_launched_early(void **state)
{
    enum { ALL = 3 * 64 };
    int got[ALL] = {0};
    (void)state;
    int *x = on_device(got, sizeof got);
    for (int i = 0; i < 4; i++)
        EMULATE_LAUNCH(patient_kernel, 3, 64, 0, NULL, EMULATE_EARLY, x);
    take(got, x, sizeof got);
    for (int i = 0; i < ALL; i++)
        assert_int_equal(got[i], 4);
}

static void mistakes_end_the_program_and_say_where(void **state)
{
    static const struct {
        const char *say; // under a sanitizer it may be the one that speaks
        void (*mistake)(void);
        bool sanitizer;
    } cases[] = {
        {"kernel skipped_kernel", skipped_barrier, false},
        {"has returned", skipped_barrier, false},
        {"waits at the barrier", divided_barrier, false},
        {"waits at the shuffle or vote", lonely_shuffle, false},
        {"reads lane 24, which does not take part", absent_lane, false},
        {"the caller's lane is not in its mask 000000ff", outside_the_mask, false},
        {"shared memory was written behind its 128 bytes", shared_overrun, true},
        {"something wrote behind the allocation", device_overrun, true},
        {"is given 0x", host_pointer_in_arguments, false},
        {"kernel fourfold_kernel", misaligned_access, true},
        {"no multiple of the access's size", misaligned_access, true},
        {"the host touched device memory", host_reads_device, true},
        {"kernel unawaited_kernel", unawaited_readers, false},
        {"depends on the order of its blocks or threads", unawaited_readers, false},
        {"depends on the order of its blocks or threads", blocks_in_each_others_way, false},
        {"or on what shared memory held", unset_shared_memory, false},
        {"kernel hasty_kernel", hasty, false},
        {"touches device memory before it waits", hasty, false},
        {"kernel forgetful_kernel", forgetful, false},
        {"has never waited for the kernels before it", forgetful, false},
        {"waits at the barrier", loose, false},
        {"and has not waited for the kernels before it", loose, false},
        {"has never waited for the kernels before it", loose_in_order, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        dies_saying(cases[i].mistake, cases[i].say, cases[i].sanitizer);
}

// What every op does: sums over a block, a walk in strides, in place.
KERNEL(64) orderly_kernel(float *x, int n)
{
    __shared__ float part[WARP];
    for (int i = (int)(blockIdx.x * 64 + threadIdx.x); i < n; i += (int)gridDim.x * 64) {
        float sum = block_sum(x[i], part);
        x[i] = (float)i - sum;
    }
}

static void a_sound_kernel_leaves_the_same_in_all_orders_and_runs_once(void **state)
{
    enum { ALL = 5 * 128 };
    float x[ALL];
    (void)state;
    for (int i = 0; i < ALL; i++)
        x[i] = 1;
    setenv("WEFT_FAKE_CUDA", "orders", 1);
    float *on = on_device(x, sizeof x);
    LAUNCH(orderly_kernel, 2, 64, 0, NULL, on, ALL);
    take(x, on, sizeof x);
    unsetenv("WEFT_FAKE_CUDA");
    for (int i = 0; i < ALL; i++)
        assert_true(x[i] == (float)(i - 64));
}

static void launches_that_cuda_refuses_are_refused(void **state)
{
    int *p = on_device(NULL, 64);
    (void)state;
    LAUNCH(write_kernel, 0, 32, 0, NULL, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(write_kernel, 1, 1025, 0, NULL, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(write_kernel, 1, 64, 0, NULL, p, 0); // compiled for 32
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchOutOfResources);
    LAUNCH(write_kernel, launch_dim(1, 65536, 1), 1, 0, NULL, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(write_kernel, 1, 1, (48 << 10) + 1, NULL, p, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute((const void *)write_kernel,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10),
                     cudaSuccess);
    LAUNCH(write_kernel, 1, 1, 100 << 10, NULL, p, 0);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    cudaFree(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_of_every_block_runs_once_under_its_own_name),
        cmocka_unit_test(a_barrier_shows_what_all_others_wrote_whoever_went_first),
        cmocka_unit_test(shared_memory_is_full_of_nonsense_when_a_block_begins),
        cmocka_unit_test(shuffles_and_votes_go_to_the_lanes_that_cuda_says),
        cmocka_unit_test(a_vote_does_without_lanes_that_have_returned_or_never_were),
        cmocka_unit_test(a_blocks_sum_and_maximum_reach_every_thread),
        cmocka_unit_test(draws_are_the_hosts_to_the_bit),
        cmocka_unit_test(four_elements_at_once_are_the_same_four),
        cmocka_unit_test(a_kernel_that_waits_first_may_be_launched_early),
        cmocka_unit_test(mistakes_end_the_program_and_say_where),
        cmocka_unit_test(a_sound_kernel_leaves_the_same_in_all_orders_and_runs_once),
        cmocka_unit_test(launches_that_cuda_refuses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
