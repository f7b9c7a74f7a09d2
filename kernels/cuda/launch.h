// SPDX-License-Identifier: Apache-2.0
// How kernels are written and launched, so that one source serves nvcc and the emulator.
//
// A .cu keeps to what CUDA C++ and GNU C11 share: no templates, references, overloads, default
// arguments, C++ casts, members or compound literals; casts from void * are written. nvcc compiles
// it for the device; with WEFT_EMULATE gcc compiles it as C against tests/cuda/emulate.h, which
// runs the threads of a block as fibers and stops at what a GPU would leave undefined.
//
//   KERNEL(256) twice(float *x, int64_t n) { … }          a kernel of at most 256 threads a block
//   KERNEL_BESIDE(256, 2) …                               the same, with registers for as many blocks
//                                                         at once on a processor, and no fewer
//   DEVICE float half_of(float x) { … }                   a device function
//   __shared__ float part[32];                            static shared memory
//   SHARED(float, rows);                                  `float *rows`, of the launch's bytes
//   LAUNCH(twice, grid, block, shared_bytes, q->stream, x, n);
//   return op_launched(q, c, e);                     cuda_device.h: what every launch ends with
//
// A grid of no blocks is an error of CUDA's: an op of nothing returns before it launches. Arguments
// are copied at the launch: structs by value may be up to 4 KB in all, and hold device pointers
// alone. No thread leaves a kernel while others of its block still come to a barrier or a shuffle.
// More than 48 KB of dynamic shared memory must be asked for once with cudaFuncSetAttribute.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef WEFT_EMULATE
#include "tests/cuda/emulate.h"
#else
#include <cuda_runtime.h>

#define DEVICE                         static __device__ __forceinline__
#define HOST_DEVICE                    static __host__ __device__ __forceinline__
#define KERNEL(threads)                static __global__ void __launch_bounds__(threads)
#define KERNEL_BESIDE(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
#define SHARED(type, name)                                               \
    extern __shared__ __align__(16) unsigned char launch_shared_bytes[]; \
    type *name = (type *)(void *)launch_shared_bytes
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#endif

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
