// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime over host memory: what its own files share, and what a fake library (cublasLt)
// that queues work on its streams needs.
//
// Work that is queued does not run before somebody waits for it: a host that reads too early, or
// two streams without the event between them, get wrong numbers instead of luck. Device memory lies
// in a range of its own and is closed to the host but while queued work runs. WEFT_FAKE_CUDA, a
// list with commas, sets the scene: fake_runtime.c says what.
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Queues `run` with a copy of its `bytes` of arguments. It may touch device memory. cudaSuccess or
// why not (a failed device, …).
cudaError_t fake_enqueue(cudaStream_t stream, void (*run)(const void *args), const void *args,
                         size_t bytes, const char *what);

// The device's clock, which cudaEventElapsedTime reads, goes by the work that runs: a µs each, and
// what the work says here.
void fake_time_passes(double us);

// ---- fake_runtime.c ----------------------------------------------------------------------------

// Every call of the API holds the one lock.
void fake_lock(void);
void fake_unlock(void);
// Notes the thread's last error and returns it.
cudaError_t fake_error(cudaError_t rc);
// The error that the current device has failed with, or cudaSuccess.
cudaError_t fake_failed(void);
cudaError_t fake_failed_of(int device);
void fake_fail(int device, cudaError_t rc);
int fake_device(void);
// Whether WEFT_FAKE_CUDA names it; its number in *n where one follows.
bool fake_scene(const char *name, long *n);
// Bytes of dynamic shared memory that a kernel may be launched with.
size_t fake_shared_allowed(const void *function);
// Counts a kernel that runs: true when it is the one that is to fail.
bool fake_kernel_fails(void);
// A kernel that is slow or never ends, where the scene says so.
void fake_kernel_begins(void);

// ---- fake_queue.c ------------------------------------------------------------------------------

// What CUDA refuses while this thread captures a stream, and what it ends the capture with.
cudaError_t fake_refused_in_capture(void);
// Runs all that is queued on the current device.
void fake_finish_all(void);

// ---- fake_memory.c -----------------------------------------------------------------------------

// Opens device memory to this process, and closes it again; calls nest.
// As memset; zeros of a large piece of the device cost nothing before somebody touches them.
void fake_memory_fill(char *to, int with, size_t bytes);
void fake_memory_open(void);
void fake_memory_close(void);
// Closes it to a kernel that runs, and opens it to that again.
void fake_memory_hide(bool hide);
enum fake_where { FAKE_PAGEABLE, FAKE_PINNED, FAKE_DEVICE };
// What kind of memory that is; false if it begins in one region of the device and ends outside it.
bool fake_memory_where(const void *p, size_t bytes, enum fake_where *where);
// A word of a kernel's arguments that looks like a pointer to memory the device does not know.
const void *fake_memory_stray(const void *args, size_t bytes);

size_t fake_memory_bytes(void); // of the device, allocated now
// Of a device, what no pointer of the caller's leads to. False: so much is not left.
bool fake_memory_take(int device, size_t bytes);
void fake_memory_give_back(int device, size_t bytes);

// A copy of all device memory, to be freed; to be brought back; and to be compared with: the first
// byte that is unlike it now, or null. Nothing may be allocated or freed in between.
char *fake_memory_keep(void);
void fake_memory_restore(const char *kept);
const void *fake_memory_unlike(const char *kept);
