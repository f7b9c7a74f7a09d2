// SPDX-License-Identifier: Apache-2.0
// Lets llm.c's sources, as they are, be compiled by CUDA 13: nvcc reads this ahead of each of them
// (-include). They call cudaMemAdvise() as it was up to CUDA 12, with a device's number, or
// cudaCpuDeviceId for the host, where CUDA 13 takes a place.
#pragma once
#include <cuda_runtime.h>

#if defined(__cplusplus) && CUDART_VERSION >= 13000
static inline cudaError_t cudaMemAdvise(const void *p, size_t bytes, cudaMemoryAdvise advice,
                                        int device)
{
    cudaMemLocation where;
    where.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    where.id = device == cudaCpuDeviceId ? 0 : device;
    return cudaMemAdvise(p, bytes, advice, where);
}
#endif
