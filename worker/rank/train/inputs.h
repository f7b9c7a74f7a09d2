// SPDX-License-Identifier: Apache-2.0
// A program's inputs on this rank: which of a step's samples are its own, the feed that reads them
// and the way into the input buffers. Inside worker/rank/train/ only.
#pragma once
#include "common/job/job.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/train/feed.h"

// One input buffer: its box of what the feed reads, a microbatch after the other.
struct input {
    void *device;
    enum input_source { INPUT_SAMPLES, INPUT_LABELS, INPUT_POSITIONS } source;
    int64_t row, rows;       // of the samples read
    int64_t column, columns; // its part of a sample
    int64_t skip;            // elements of the sample before the first column
    size_t elem, pitch;      // bytes: of an element, of a whole sample
    struct zigzag zigzag;    // of the columns in what is read
};

enum { INPUTS_MAX = 16 }; // buffers: a cut of images or labels each
struct inputs {
    struct exec *exec; // borrowed
    const struct backend *backend;
    struct device *device;
    enum program_kind kind;
    int microbatches;
    int64_t microbatch, start, local; // samples: of all ranks, where ours begin, how many are read
    int n;
    struct input input[INPUTS_MAX];
    void *host[2]; // staging of two batches
    // Of a device with memory of its own: the inputs as it wants them, to be copied in one piece
    // each; two, used alternately.
    char *packed[2];
    int newest;         // of the two
    int32_t *positions; // of a sample's columns; null where nobody asks
};

// The job's training or evaluation set, opened and of the format the job says. ERR_DATA also when a
// file is not there. root: what the files lie beneath, null: anywhere. `e` is not null.
int inputs_open_set(const struct job *job, const char *root, const struct job_data_files *files,
                    struct dataset *set, struct err *e);
// ERR_DATA when the set does not fit the program (features, element type).
int inputs_open(struct inputs *in, const struct exec_options *o, struct exec *x,
                enum program_kind kind, const struct dataset *set, struct err *e);
void inputs_close(struct inputs *in); // a zeroed one is fine
// A feed of steps [first, end); `ids` says which their samples are.
int inputs_feed(struct inputs *in, const struct dataset *set, feed_ids ids, const void *ctx,
                uint64_t first, uint64_t end, struct feed **out, struct err *e);
// Queues the batch for the program's next run. Its memory, and what was packed the time before
// last, may change once exec_inputs has come this far.
int inputs_put(struct inputs *in, const struct batch *b, struct err *e);
