// SPDX-License-Identifier: Apache-2.0
// The feed: reads this rank's samples one step ahead, on a thread of its own.
// Inside worker/rank/train/ only.
//
// A batch lies in memory as the program's input buffers want it: microbatch after microbatch, of
// each the samples of this rank. There are two batches: one that the step loop has taken and one
// that is being read.
#pragma once
#include "common/data/dataset.h"

struct feed;

// Says which samples to read: the global numbers at batch positions [first, first + count) of
// `step`.
typedef void (*feed_ids)(const void *ctx, uint64_t step, uint64_t first, size_t count,
                         uint64_t *out);

struct batch {
    const void *images;
    const int32_t *labels;
    const int32_t *positions; // of each sample's tokens; null: every sample's are 0, 1, 2, …
    char *packed;             // the same as the program's inputs; null: it is not packed
};

struct feed_options {
    const struct dataset *set; // borrowed
    feed_ids ids;
    const void *ctx;
    int microbatches;
    int64_t microbatch;   // samples of a microbatch over all ranks
    int64_t start, local; // of each microbatch this rank reads samples [start, start + local);
                          // local is 0 in a stage that reads no data
    uint64_t first, end;  // steps [first, end)
    void *host[2];        // borrowed staging memory, feed_bytes() each
    // What is done with a batch that was read, on the feed's thread; null: nothing.
    void (*pack)(const void *packer, const struct batch *b);
    const void *packer;
    char *packed[2]; // borrowed; batch.packed of the two
};

size_t feed_bytes(const struct dataset *set, int microbatches, int64_t local);
int feed_open(const struct feed_options *o, struct feed **out, struct err *e);
void feed_close(struct feed *f); // null is fine; joins the thread
// Waits until feed_next() would not, and no longer than until a time of the monotonic clock; whether it
// came to that.
bool feed_wait(struct feed *f, int64_t until_ns);
// Waits for the next step's batch; it stays valid until the next call.
int feed_next(struct feed *f, struct batch *out, struct err *e);
