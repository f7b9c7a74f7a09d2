// SPDX-License-Identifier: Apache-2.0
// Marks of a stream, as backend.h describes them. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/cuda_device.h"

#ifdef __cplusplus
extern "C" {
#endif

int stream_mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e);
// Must be called before host memory that may hold marks' words is freed, while no mark is under way.
void marks_forget(const void *p, size_t bytes);

#ifdef __cplusplus
}
#endif
