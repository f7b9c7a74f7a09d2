// SPDX-License-Identifier: Apache-2.0
// Marks: a stream reports to the host how far it has come, by words in pinned memory that the host
// reads.
//
// One thread writes 16 bytes over the bus and computes next to nothing: it takes as long as a
// launch, some µs. A mark holds a value and a count. When a graph is replayed it writes the same
// value again, and only the count differs between replays. This is why a mark is a kernel: a
// memset node cannot count, and a memcpy node would need a counter that something else advances.
//
// Each pair of words has a counter in the device's own memory, so that nothing is read over the bus,
// which a stream would wait for. The counters are part of the kernels' image: the plan counts the
// memory that is allocated, to the byte, and a capture allows no allocation. A counter is not reset
// when another pair gets it: marks subtract what it stood at then. The fences make the host see the
// value before the count, and both before the stream continues.
#include <pthread.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mark.h"

enum { COUNTERS = 256 }; // pairs of words at a time, in a process

static __device__ uint64_t counts[COUNTERS];

// Which pair of words has a counter. Each device of a process has counters of its own under the
// same numbers; a number stays with the device that had it first.
static struct counter {
    const uint64_t *words; // null: nobody's now
    bool used;             // by the device `ordinal`
    int ordinal;
    uint64_t at;   // what it stands at between two pairs
    uint64_t base; // what a mark subtracts
} counters[COUNTERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

KERNEL(1) mark_kernel(volatile uint64_t *words, uint64_t value, uint64_t add, uint64_t base, int k)
{
    kernel_begin();
    const uint64_t count = counts[k] + add;
    counts[k] = count;
    words[0] = value;
    __threadfence_system();
    words[1] = count - base;
    __threadfence_system();
}

// Returns the pair's counter, or one that nobody has; null: all are taken.
static const struct counter *find_counter(int ordinal, const uint64_t words[2])
{
    struct counter *none = NULL, *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct counter *k = counters; k < counters + COUNTERS && !found; k++)
        if (k->words == words)
            found = k;
        else if (!k->words && !none && (!k->used || k->ordinal == ordinal))
            none = k;
    if (!found && none) { // nothing has marked the pair yet: the host may read its words
        none->words = words;
        none->used = true;
        none->ordinal = ordinal;
        none->base = none->at - words[1];
        found = none;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void marks_forget(const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (struct counter *k = counters; k < counters + COUNTERS; k++)
        if ((uintptr_t)k->words >= (uintptr_t)p && (uintptr_t)k->words < (uintptr_t)p + bytes) {
            k->at = k->base + k->words[1];
            k->words = NULL;
        }
    pthread_mutex_unlock(&lock);
}

// A mark is not noted as the stream's last op, since it causes no errors.
int stream_mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e)
{
    int rc = device_bind(q->device, e);
    if (rc)
        return rc;
    const struct counter *k = find_counter(q->device->ordinal, words);
    if (!k)
        return err_set(e, ERR_UNSUPPORTED, "more than %d pairs of words are marked", COUNTERS);
    LAUNCH(mark_kernel, 1, 1, 0, q, (volatile uint64_t *)words, value, add, k->base,
           (int)(k - counters));
    return cuda_check(q->device, q, "launch of a mark", cudaGetLastError(), e);
}
