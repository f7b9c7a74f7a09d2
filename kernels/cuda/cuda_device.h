// SPDX-License-Identifier: Apache-2.0
// What the files of the CUDA backend share: the device, its streams and errors.
// Inside kernels/cuda/ only.
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
    bool guard; // WEFT_CUDA_GUARD: zones around every allocation are checked at sync and close
    int switches[SWITCH_COUNT];
    char model[64];
    int major, minor; // compute capability
    int compiled;     // the one that its kernels were compiled for: 90
    int processors;   // streaming multiprocessors
    int captures;     // streams that capture: nothing may be waited for
    uint64_t memory, allocated;
    struct list regions, streams, events, graphs; // what device_close frees
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

struct event {
    struct device *device;
    cudaEvent_t event;
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
// Advice on what to do about an error, where there is some; else "".
const char *cuda_advice(cudaError_t rc);

// ---- cuda_device.c -----------------------------------------------------------------------------

int device_count(struct err *e);
int device_open(const struct device_options *o, struct device **out, struct err *e);
void device_close(struct device *d);
void device_info(const struct device *d, struct device_info *out);
// probe.cu: whether this build has code for the bound device, and for what capability it was
// compiled (90).
cudaError_t probe_image(int *compiled);

// ---- cuda_stream.c -----------------------------------------------------------------------------

int cuda_stream_create(struct device *d, struct stream_q **out, struct err *e);
void cuda_stream_destroy(struct stream_q *q);
int cuda_stream_sync(struct stream_q *q, struct err *e);
int event_create(struct device *d, struct event **out, struct err *e);
void event_destroy(struct event *ev);
int event_record(struct stream_q *q, struct event *ev, struct err *e);
int event_wait(struct stream_q *q, struct event *ev, struct err *e);
int event_query(struct event *ev, bool *done, struct err *e);
int event_sync(struct event *ev, struct err *e);
int stream_copy(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e);
int stream_fill_zero(struct stream_q *q, void *to, size_t bytes, struct err *e);
int capture_begin(struct stream_q *q, struct err *e);
int capture_end(struct stream_q *q, void **graph, struct err *e);
int graph_launch(struct stream_q *q, void *graph, struct err *e);
void graph_destroy(void *graph);
void stream_clear(struct device *d);
// mark.cu. marks_forget must be called before host memory that may hold marks' words is freed,
// while no mark is under way.
int stream_mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e);
void marks_forget(const void *p, size_t bytes);

// ---- cuda_memory.c -----------------------------------------------------------------------------

int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_adopt(struct device *d, void *p, size_t bytes, struct err *e);
void memory_free(struct device *d, void *p);
int memory_check(struct device *d, struct err *e); // fails if a guard zone was written
void memory_clear(struct device *d);

// ---- libraries that are opened and closed with the device ---------------------------------------

int gemm_open(struct device *d, struct err *e);
void gemm_close(struct device *d);
const char *gemm_version(void);                        // "13.0.2", for the numerics record
void gemm_cache(struct device *d, const char *folder); // reads timings there, and keeps them
int attention_open(struct device *d, struct err *e);
void attention_close(struct device *d);
// Finds and compiles what serves a call, so that no captured step has to.
int attention_tune(struct stream_q *q, const struct op_call *c, struct err *e);
const char *attention_version(void); // cuDNN's

// Reads and writes which algorithms are chosen; these are slots of backend.h.
int algorithms_read(struct device *d, const char *text, struct err *e);
int algorithms_write(struct device *d, struct buf *out, struct err *e);
// Records a choice that was made elsewhere; reading other choices does not change it.
void algorithms_note(struct device *d, const char *key, const char *choice);

#ifdef __cplusplus
}
#endif
