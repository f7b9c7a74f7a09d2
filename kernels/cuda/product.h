// SPDX-License-Identifier: Apache-2.0
// One product (layout.h) by cuBLASLt, and the choice among the library's algorithms for it.
// Inside kernels/cuda/ only.
//
// A choice belongs to a key: sizes, layout, dtypes, what follows, and the alignment of the
// pointers. It is settled by product_tune(), or at the first product_run() by what the library
// names first. `struct gemm_state` is the device's: the library's handle and all choices.
#pragma once
#include "kernels/cuda/layout.h"

enum product_choice {
    PRODUCT_NONE,  // no algorithm: none runs, or two kernels were found to be faster
    PRODUCT_KNOWN, // one that was settled before, imported, in the cache, or named first
    PRODUCT_TIMED  // the fastest, timed now
};
// Settles the choice for p's key if it is not settled: what was imported, if it runs here; with
// `time` what the cache on disk has, or the fastest of those that the library proposes; else the
// first of them that runs. Queues and waits; writes out, aux, sums and scratch.
int product_tune(struct stream_q *q, const struct product *p, bool time, enum product_choice *how,
                 struct err *e);
// Times p, for which product_tune() found an algorithm, against the caller's own two kernels, which
// do the same; chooses none for p's key if these are faster.
int product_compare(struct stream_q *q, const struct product *p,
                    int (*two)(void *ctx, struct err *e), void *ctx, struct err *e);
// Queues the product. *ran false: there is no algorithm, and nothing was queued. Inside a capture
// ERR_UNSUPPORTED, if its key has neither been tuned nor run before.
int product_run(struct stream_q *q, const struct product *p, bool *ran, struct err *e);

// ---- the library and its choices, of a device --------------------------------------------------

int gemm_open(struct device *d, struct err *e);
void gemm_close(struct device *d);
const char *gemm_version(void);                        // "13.0.2", for the numerics record
void gemm_cache(struct device *d, const char *folder); // reads timings there, and keeps them
// Reads and writes which algorithms are chosen; these are slots of backend.h.
int algorithms_read(struct device *d, const char *text, struct err *e);
int algorithms_write(struct device *d, struct buf *out, struct err *e);
// Records a choice that was made elsewhere; reading other choices does not change it.
void algorithms_note(struct device *d, const char *key, const char *choice);
