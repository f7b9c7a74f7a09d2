// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device and of the host: slots of backend.h. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_host_alloc(struct device *d, size_t bytes, void **out, struct err *e);
int memory_adopt(struct device *d, void *p, size_t bytes, struct err *e);
void memory_free(struct device *d, void *p);
int memory_check(struct device *d, struct err *e); // fails if a guard zone was written
void memory_clear(struct device *d);
