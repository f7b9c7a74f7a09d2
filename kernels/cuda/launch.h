// SPDX-License-Identifier: Apache-2.0
// How kernels are written and launched, so that one source serves nvcc and the emulator.
// Inside kernels/cuda/ only.
//
// A .cu keeps to what CUDA C++ and GNU C11 share: no templates, references, overloads, default
// arguments, C++ casts, members or compound literals; casts from void * are written. nvcc compiles
// it for the device; with WEFT_EMULATE gcc compiles it as C against tests/cuda/emulate.h, which
// runs the threads of a block as fibers and stops at what a GPU would leave undefined.
//
//   KERNEL(256) twice(float *x, int64_t n)                a kernel of at most 256 threads a block
//   { kernel_begin(); … }                                 what every kernel begins with
//   KERNEL_BESIDE(256, 2) …                               the same, with registers for as many blocks
//                                                         at once on a processor, and no fewer
//   KERNEL_HELD(512, 80) …                                with at most so many registers a thread
//   DEVICE float half_of(float x) { … }                   a device function
//   __shared__ float part[32];                            static shared memory
//   SHARED(float, rows);                                  `float *rows`, of the launch's bytes
//   UNROLL for (…) …                                      over what lies in registers, which cannot be
//                                                         indexed at run time
//   LAUNCH(twice, grid, block, shared_bytes, q, x, n);    on the stream of struct stream_q *q
//   return op_launched(q, c, e);                     cuda_device.h: what every launch ends with
//
// A thread waits for a load where it first uses the result: also where it converts it, and before a
// branch ends in which it does. Loads that are to be under way together stand in a row, with every
// question asked before the first and every result used behind the last. Only the machine code shows
// whether they are.
//
// A grid of no blocks is an error of CUDA's: an op of nothing returns before it launches. Arguments
// are copied at the launch: structs by value may be up to 4 KB in all, and hold device pointers
// alone. No thread leaves a kernel while others of its block still come to a barrier or a shuffle.
// More than 48 KB of dynamic shared memory must be asked for once with cudaFuncSetAttribute.
//
// On a stream that launches early (q->early) a kernel's blocks come to the processors once the
// threads of the kernel before it have ended, which may be before what that wrote is seen.
// kernel_begin() is where each thread waits for it; before it a kernel touches no global memory.
// README.md says why that is enough.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef WEFT_EMULATE
#include "tests/cuda/emulate.h"

#define UNROLL
#else
#include <cuda_runtime.h>

#define DEVICE                         static __device__ __forceinline__
#define HOST_DEVICE                    static __host__ __device__ __forceinline__
#define KERNEL(threads)                static __global__ void __launch_bounds__(threads)
#define KERNEL_BESIDE(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
// At most so many registers a thread; nvcc takes no __launch_bounds__ beside it. CUDA 12.4 and later.
#define KERNEL_HELD(threads, most)     static __global__ void __maxnreg__(most)
#define UNROLL                         _Pragma("unroll")
#define SHARED(type, name)                                               \
    extern __shared__ __align__(16) unsigned char launch_shared_bytes[]; \
    type *name = (type *)(void *)launch_shared_bytes
// op_launched() asks whether the launch was refused.
#define LAUNCH(kernel, grid, block, shared_bytes, q, ...)                               \
    do {                                                                                \
        cudaLaunchAttribute early_;                                                     \
        const cudaLaunchConfig_t how_ =                                                 \
            launch_config(grid, block, shared_bytes, (q)->stream, (q)->early, &early_); \
        (void)cudaLaunchKernelEx(&how_, kernel, __VA_ARGS__);                           \
    } while (0)

// `a` is borrowed until the launch.
static inline cudaLaunchConfig_t launch_config(dim3 grid, dim3 block, size_t shared_bytes,
                                               cudaStream_t stream, bool early,
                                               cudaLaunchAttribute *a)
{
    cudaLaunchConfig_t how = {};
    a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a->val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = grid;
    how.blockDim = block;
    how.dynamicSmemBytes = shared_bytes;
    how.stream = stream;
    how.attrs = a;
    how.numAttrs = early;
    return how;
}
#endif

// The first statement of every kernel, for all its threads: waits until the kernel before it in the
// stream has ended and what it wrote is seen. No kernel lets the next one come before its threads
// have ended (a trigger): cuBLASLt launches some of its kernels early itself, they would come too,
// and their scratch is ours a moment before.
DEVICE void kernel_begin(void)
{
#if defined(WEFT_EMULATE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
    cudaGridDependencySynchronize();
#endif
}

// A grid or block of up to three dimensions.
static inline dim3 launch_dim(unsigned x, unsigned y, unsigned z)
{
    dim3 d;
    d.x = x;
    d.y = y;
    d.z = z;
    return d;
}

// Blocks that `n` elements take at `each` elements a block, at most `most`: kernels that may get
// fewer than they have work for walk in strides of the grid. At least 1.
static inline unsigned launch_blocks(int64_t n, int64_t each, int64_t most)
{
    int64_t blocks = (n + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}
