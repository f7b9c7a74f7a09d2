// SPDX-License-Identifier: Apache-2.0
// CUDA's device language for gcc: a kernel's blocks run one after the other on the host, the
// threads of a block as fibers. See kernels/cuda/launch.h for the subset that kernels keep to.
//
// What a GPU leaves undefined ends the program with a message that names kernel, block and thread:
// a barrier that not all threads of the block come to, a shuffle or vote whose lanes do not all
// come with the same mask, a read from a lane that is not there, a write outside dynamic shared
// memory, an access of four elements at an address for one; so does a kernel of the backend that does
// not wait for those before it, and one that was launched early and touches device memory before it
// has (of its first block the threads run to their wait with that memory closed). Shared memory
// holds NaNs when a block begins. Threads take turns in another order in the next block, blocks in
// the next launches, so a missing barrier, or a block that reads what another writes, shows in one
// of them; in the scene `orders` (fake_runtime.c) in each. A launch is queued on the fake runtime's
// stream (fake.h).
#pragma once
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
// One section holds all static shared memory, so that it can be filled when a block begins.
#define __shared__ static __attribute__((section("weft_shared")))

#define DEVICE                         static inline __attribute__((unused))
#define HOST_DEVICE                    static inline __attribute__((unused))
#define KERNEL(threads)                static __attribute__((aligned(EMULATE_BOUND(threads)))) void
#define KERNEL_BESIDE(threads, blocks) KERNEL(threads)
#define KERNEL_HELD(threads, most)     KERNEL(threads)
#define SHARED(type, name)             type *name = (type *)emulate_shared()

// ---- who and where a thread is -----------------------------------------------------------------

struct emulate_now {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern struct emulate_now emulate_now;
#define threadIdx (emulate_now.thread)
#define blockIdx  (emulate_now.block)
#define blockDim  (emulate_now.block_dim)
#define gridDim   (emulate_now.grid_dim)
#define warpSize  32
void *emulate_shared(void);

// ---- meeting -----------------------------------------------------------------------------------

struct emulate_at { // a place in the source
    const char *file;
    int line;
};
#define EMULATE_AT ((struct emulate_at){__FILE__, __LINE__})

void emulate_barrier(struct emulate_at at);
void emulate_wait(struct emulate_at at); // for the kernels before this one
// What lane `from` of the caller's warp brought; from < 0: the caller's own. All lanes of `mask`
// that have not returned meet here.
uint64_t emulate_shuffle(struct emulate_at at, unsigned mask, uint64_t mine, int from);
unsigned emulate_ballot(struct emulate_at at, unsigned mask, bool predicate);
// The lane that a shuffle reads from; −1: the caller's own.
int emulate_lane_idx(int source, int width);
int emulate_lane_up(unsigned delta, int width);
int emulate_lane_down(unsigned delta, int width);
int emulate_lane_xor(int lanes, int width);

#define EMULATE_WIDTH(...)        EMULATE_WIDTH_(0, ##__VA_ARGS__, 32)
#define EMULATE_WIDTH_(z, w, ...) (w)
#define EMULATE_SHUFFLE(mask, v, from)                                              \
    ({                                                                              \
        __typeof__(({ v; })) v_ = (v);                                              \
        uint64_t bits_ = 0;                                                         \
        _Static_assert(sizeof v_ <= sizeof bits_, "a shuffle moves up to 8 bytes"); \
        memcpy(&bits_, &v_, sizeof v_);                                             \
        bits_ = emulate_shuffle(EMULATE_AT, mask, bits_, from);                     \
        memcpy(&v_, &bits_, sizeof v_);                                             \
        v_;                                                                         \
    })
#define __shfl_sync(mask, v, source, ...) \
    EMULATE_SHUFFLE(mask, v, emulate_lane_idx(source, EMULATE_WIDTH(__VA_ARGS__)))
#define __shfl_up_sync(mask, v, delta, ...) \
    EMULATE_SHUFFLE(mask, v, emulate_lane_up(delta, EMULATE_WIDTH(__VA_ARGS__)))
#define __shfl_down_sync(mask, v, delta, ...) \
    EMULATE_SHUFFLE(mask, v, emulate_lane_down(delta, EMULATE_WIDTH(__VA_ARGS__)))
#define __shfl_xor_sync(mask, v, lanes, ...) \
    EMULATE_SHUFFLE(mask, v, emulate_lane_xor(lanes, EMULATE_WIDTH(__VA_ARGS__)))
#define __ballot_sync(mask, p)          emulate_ballot(EMULATE_AT, mask, (p) != 0)
#define __any_sync(mask, p)             (emulate_ballot(EMULATE_AT, mask, (p) != 0) != 0)
#define __all_sync(mask, p)             (emulate_ballot(EMULATE_AT, mask, !(p)) == 0)
#define __syncthreads()                 emulate_barrier(EMULATE_AT)
#define __syncwarp(...)                 ((void)emulate_ballot(EMULATE_AT, EMULATE_MASK(__VA_ARGS__), false))
#define EMULATE_MASK(...)               EMULATE_MASK_(0, ##__VA_ARGS__, 0xffffffffu)
#define EMULATE_MASK_(z, m, ...)        (m)
#define cudaGridDependencySynchronize() emulate_wait(EMULATE_AT)
#define __threadfence()                 ((void)0)
#define __threadfence_block()           ((void)0)
#define __threadfence_system()          __atomic_thread_fence(__ATOMIC_SEQ_CST) // a host thread looks on

// ---- launches ----------------------------------------------------------------------------------

// When a kernel begins: it may lack a wait, it has one, its blocks may be there before those of the
// kernel before it have ended.
enum emulate_when { EMULATE_ALONE, EMULATE_BEHIND, EMULATE_EARLY };

struct emulate_kernel {
    const char *name;
    struct emulate_at at;
    void (*call)(const void *args); // unpacks them and calls the kernel
    dim3 grid, block;
    size_t shared_bytes; // dynamic
    enum emulate_when when;
    const void *function;
    unsigned bound; // threads of a block at most
};
// fake_queue.c: queues a copy of the arguments on the stream.
void emulate_launch(const struct emulate_kernel *k, const void *args, size_t bytes,
                    cudaStream_t stream);
// emulate.c: runs all blocks, now.
void emulate_run(const struct emulate_kernel *k, const void *args);

static inline dim3 emulate_dim1(int64_t x)
{
    return (dim3){x < 0 || x > 0xffffffff ? 0 : (unsigned)x, 1, 1};
}
static inline dim3 emulate_dim3(dim3 d)
{
    return d;
}
#define EMULATE_DIM(d) _Generic((d), dim3 : emulate_dim3, default : emulate_dim1)(d)

#define LAUNCH(kernel, grid, block, shared, q, ...)          \
    EMULATE_LAUNCH(kernel, grid, block, shared, (q)->stream, \
                   (q)->early ? EMULATE_EARLY : EMULATE_BEHIND, __VA_ARGS__)
#define EMULATE_LAUNCH(kernel_, grid_, block_, shared_, stream_, when_, ...)     \
    ({                                                                           \
        struct args_ {                                                           \
            EMULATE_EACH(EMULATE_FIELD, __VA_ARGS__)                             \
        };                                                                       \
        void call_(const void *p_)                                               \
        {                                                                        \
            const struct args_ *a_ = (const struct args_ *)p_;                   \
            kernel_(EMULATE_LIST(EMULATE_PASS, __VA_ARGS__));                    \
        }                                                                        \
        struct args_ all_;                                                       \
        _Static_assert(sizeof all_ <= 4096, "a launch takes 4 KB of arguments"); \
        memset(&all_, 0, sizeof all_);                                           \
        EMULATE_EACH(EMULATE_SET, __VA_ARGS__)                                   \
        const struct emulate_kernel k_ = {.name = #kernel_,                      \
                                          .at = EMULATE_AT,                      \
                                          .call = call_,                         \
                                          .grid = EMULATE_DIM(grid_),            \
                                          .block = EMULATE_DIM(block_),          \
                                          .shared_bytes = shared_,               \
                                          .when = when_,                         \
                                          .function = (const void *)kernel_,     \
                                          .bound = __alignof__(kernel_)};        \
        emulate_launch(&k_, &all_, sizeof all_, stream_);                        \
    })
#define EMULATE_FIELD(n, x) __typeof__(({ x; })) a##n;
#define EMULATE_SET(n, x)   all_.a##n = (x);
#define EMULATE_PASS(n, x)  a_->a##n

#include "tests/cuda/emulate_args.h"
#include "tests/cuda/emulate_intrinsics.h"
