// SPDX-License-Identifier: Apache-2.0
// Many threads work on the documents, and what they make is taken in the documents' order:
//
//   one thread reads       documents_next → a slot of the ring
//   N threads work         a slot's batch → its result, in any order
//   the caller's takes     the results, one behind the other
//
// So what is taken does not depend on the number of threads. The ring and a bound on the bytes in it
// keep memory bounded; a single large document passes alone. The first error in the documents' order is
// the one that is returned, whoever was first to see it. Inside common/data/prepare/ only.
#pragma once
#include "common/data/prepare/documents.h"

enum { CONVEYOR_BYTES = 128 << 20, CONVEYOR_THREADS = 256 };

struct conveyor {
    int threads;
    void *context;
    size_t result_size; // of a slot's result, zeroed at first and used again
    // A thread's own state.
    void *(*thread_new)(void *context);
    void (*thread_free)(void *thread);
    int (*work)(void *thread, const struct batch *b, void *result, struct err *e);
    int (*take)(void *context, const struct batch *b, void *result, struct err *e);
    void (*result_clear)(void *result);
    // Every tenth of a second or so, on the caller's thread: nonzero ends it, with that code.
    int (*tick)(void *context, struct err *e);
};

int conveyor_run(const struct conveyor *p, struct documents *d, struct err *e);
