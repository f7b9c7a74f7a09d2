// SPDX-License-Identifier: Apache-2.0
// What a transport of devices needs of late.c besides the backend's table: NCCL has the like of it
// from the CUDA runtime. late.c exports it as `weft_late`.
#pragma once
#include "kernels/backend.h"

struct late {
    // Device memory over pages that lie elsewhere; the backend's memory.free gives it back.
    int (*map)(struct device *d, void *pages, size_t bytes, void **out, struct err *e);
    // When q comes to it, `step` is called until it says that it is done. A capture holds it.
    int (*call)(struct stream_q *q, int (*step)(void *ctx, bool *done, struct err *e), void *ctx,
                struct err *e);
};
