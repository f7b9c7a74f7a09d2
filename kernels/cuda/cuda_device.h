// SPDX-License-Identifier: Apache-2.0
// A CUDA device and its streams, as kernels see them; their errors; the binding of a device to a
// thread. Inside kernels/cuda/ only.
//
// Included by C and by .cu files; everything declared here has C's linkage.
#pragma once
#ifdef __cplusplus
#define _Noreturn __attribute__((noreturn))
extern "C" {
#endif

#ifndef __CUDACC__ // nvcc brings its own, with C++'s linkage
#include <cuda_runtime_api.h>
#endif

#include "common/base/list.h"
#include "kernels/cpu/loops.h"
#include "kernels/cuda/switches.h"
#include "kernels/kernel.h"

struct device {
    int ordinal;
    bool deterministic;
    bool guard;  // WEFT_CUDA_GUARD: zones around every allocation are checked at sync and close
    bool blocks; // CUDA_LAUNCH_BLOCKING: each launch waits, to show which op it is that fails
    int switches[SWITCH_COUNT];
    struct device_info info; // all but `allocated`
    char model[64];
    int major, minor; // compute capability
    int compiled;     // the one that its kernels were compiled for: 90
    int processors;   // streaming multiprocessors
    int captures;     // streams that capture: nothing may be waited for
    bool abandoned;   // device_abandon
    uint64_t memory, allocated;
    struct list regions, streams, events, graphs; // what is freed when it is closed
    struct gemm_state *gemm;                      // product.c's: handle, chosen algorithms
    struct attention_state *attention;            // attention_library.c's
    struct err failed; // the first sticky error: all later calls repeat it
};

struct stream_q {
    struct device *device;
    cudaStream_t stream;
    bool early;   // our kernels are launched before those ahead of them have ended
    enum op last; // the op that was queued last: named when the device fails behind it
    bool any;     // an op was queued
    struct list link;
};

// ---- errors ------------------------------------------------------------------------------------

// Turns what CUDA's `call` returned into an error: ERR_DEVICE, whose text names the call, the last
// op of the stream (null: no op), the device, and what CUDA says. A sticky error is kept in the
// device, and every later call fails with it.
int cuda_check(struct device *d, struct stream_q *q, const char *call, cudaError_t rc,
               struct err *e);
// CUDA(d, q, e, cudaStreamSynchronize(q->stream)): 0 or the error.
#define CUDA(d, q, e, call) cuda_check(d, q, #call, call, e)
// Called after every LAUNCH of an op: 0, or the error for which the launch was refused.
int op_launched(struct stream_q *q, const struct op_call *c, struct err *e);

// Makes this the calling thread's device. Fails if the device has failed before.
int device_bind(struct device *d, struct err *e);
// Kernels may run on the device that never end. From now on no call waits for it: all that was queued
// counts as done, and nothing is freed, which would wait for these kernels. Both: any thread.
void device_abandon(struct device *d);
bool device_is_abandoned(const struct device *d);
// Advice on what to do about an error, where there is some; else "".
const char *cuda_advice(cudaError_t rc);

// probe.cu: whether this build has code for the bound device, and for what capability it was
// compiled (90).
cudaError_t probe_image(int *compiled);

#ifdef __cplusplus
}
#endif
