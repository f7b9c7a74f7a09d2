// SPDX-License-Identifier: Apache-2.0
// Marks: a stream tells the host how far it has come, by words in pinned memory that the host
// reads.
//
// One thread moves 24 bytes over the bus and computes nothing: it takes as long as a launch, some
// µs. A mark holds a value and a count. When a graph is replayed it writes the same value again,
// and only the count tells one replay from the next. This is why a mark is a kernel: a memset node
// cannot count, and a memcpy node would need a counter that something else advances. The count is
// read back from the host's memory, one round trip over the bus, so that a mark needs no memory of
// the device, which the plan counts to the byte. The fences make the host see the value before the
// count, and both before the stream goes on.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

KERNEL(1) mark_kernel(volatile uint64_t *words, uint64_t value, uint64_t add)
{
    kernel_begin();
    words[0] = value;
    __threadfence_system();
    words[1] = words[1] + add;
    __threadfence_system();
}

// It does not become the stream's last op: no error is ever a mark's own.
int stream_mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc)
        return rc;
    LAUNCH(mark_kernel, 1, 1, 0, q, (volatile uint64_t *)words, value, add);
    return cuda_check(q->device, q, "launch of a mark", cudaGetLastError(), e);
}
