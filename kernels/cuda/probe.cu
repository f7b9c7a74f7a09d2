// SPDX-License-Identifier: Apache-2.0
// Whether this build has code that the device runs. It is asked when the device is opened, so that
// one of another architecture is refused there and not in the first op.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

KERNEL(1) nothing_kernel(int64_t n)
{
    kernel_begin();
    (void)n;
}

cudaError_t probe_image(int *compiled)
{
    struct cudaFuncAttributes a;
    cudaError_t rc = cudaFuncGetAttributes(&a, (const void *)nothing_kernel);
    *compiled = rc == cudaSuccess ? a.ptxVersion : 0;
    return rc;
}
