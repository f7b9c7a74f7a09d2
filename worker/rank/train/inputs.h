// SPDX-License-Identifier: Apache-2.0
// A program's inputs on this rank: which samples of a step they are, the feed that reads these, and
// the copy into the program's input buffers. Inside worker/rank/train/ only.
#pragma once
#include "common/job/job.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/train/feed.h"

// One input buffer. Of each microbatch that the feed reads it holds some rows (samples) and of these
// some columns.
struct input {
    void *device;
    enum input_source { INPUT_SAMPLES, INPUT_LABELS, INPUT_POSITIONS, INPUT_PLACES } source;
    int64_t row, rows;       // [row, row + rows) of the samples that this rank reads
    int64_t column, columns; // [column, column + columns) of each
    int64_t skip;            // elements of a sample that lie before column 0
    size_t elem, pitch;      // bytes: of an element, of a whole sample
    struct zigzag zigzag;    // the order in which columns are taken from a sample
};

enum { INPUTS_MAX = 16 }; // input buffers of a program: one for each way in which it cuts a value
struct inputs {
    struct exec *exec; // borrowed
    const struct backend *backend;
    struct device *device;
    enum program_kind kind;
    int microbatches;
    int64_t microbatch, start, local; // samples over all ranks, and which the feed reads (feed.h)
    int n;
    struct input input[INPUTS_MAX];
    void *host[2]; // staging memory of the feed's two batches
    // For a device with memory of its own: all inputs of each of the two batches as they will lie
    // there, so that each is copied in one piece. The feed's thread fills them.
    char *packed[2];
    int32_t *positions; // of a sample's columns; null where no input asks for them
};

int inputs_open(struct inputs *in, const struct exec_options *o, struct exec *x,
                enum program_kind kind, const struct dataset *set, struct err *e);
void inputs_close(struct inputs *in); // a zeroed one is fine
// Opens a feed of steps [first, end) for these inputs; `ids` says which samples.
int inputs_feed(struct inputs *in, const struct dataset *set, feed_ids ids, const void *ctx,
                uint64_t first, uint64_t end, struct feed **out, struct err *e);
// Queues the copy of a batch, a feed's or one whose `packed` is null, for the program's next run. The
// batch may change once the stream of exec_inputs() has come this far: before that no other may be
// put that is not a feed's.
int inputs_put(struct inputs *in, const struct batch *b, struct err *e);
