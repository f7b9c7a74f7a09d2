// SPDX-License-Identifier: Apache-2.0
// Marks: a stream tells the host where it is, in pinned words that the host looks at.
//
// One thread: 24 bytes over the bus, no FLOP; as long as a launch, some µs. A kernel, since a
// memset node cannot count and a memcpy node needs a counter that something else counts: a replayed
// graph brings the same value again, and only the count tells the replay from the one before. The
// count is read back from the host's memory (one turn over the bus) so that a mark needs none of
// the device's, which the plan counts to the byte. The fences order value before count for the
// host, and bring both out before the stream goes on.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

KERNEL(1) mark_kernel(volatile uint64_t *words, uint64_t value, uint64_t add)
{
    words[0] = value;
    __threadfence_system();
    words[1] = words[1] + add;
    __threadfence_system();
}

// The op that the stream notes stays the last: a mark fails at nothing of its own.
int stream_mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc)
        return rc;
    LAUNCH(mark_kernel, 1, 1, 0, q->stream, (volatile uint64_t *)words, value, add);
    return cuda_check(q->device, q, "launch of a mark", cudaGetLastError(), e);
}
