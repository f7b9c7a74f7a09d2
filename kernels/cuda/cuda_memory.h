// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device and of the host: slots of backend.h. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

// Who hands out memory of the device, and takes it back: CUDA, or a library on it.
struct memory_source {
    const char *name;
    cudaError_t (*take)(void **out, size_t bytes);
    cudaError_t (*give_back)(void *p);
    const char *(*said)(void); // optional: what the library said when `take` found no memory
};
int memory_alloc_from(struct device *d, const struct memory_source *from, size_t bytes, void **out,
                      struct err *e);
int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e); // from CUDA
int memory_left(struct device *d, uint64_t *bytes, struct err *e);
int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_adopt(struct device *d, void *p, size_t bytes, struct err *e);
void memory_free(struct device *d, void *p);
int memory_check(struct device *d, struct err *e); // fails if a guard zone was written
void memory_clear(struct device *d);
