// SPDX-License-Identifier: Apache-2.0
// Checkpoints as others have them, both ways: `weft export` and `weft import`.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"

// Called after each piece with the bytes that are done, of all. Anything but 0 stops: the act fails
// with ERR_ABORTED and leaves nothing.
struct weights_watch {
    int (*done)(void *ctx, uint64_t bytes, uint64_t of);
    void *ctx;
};

// A member of config.json: a JSON text.
struct config_member {
    const char *name, *json;
};

struct export_options {
    const char *checkpoint; // a step's folder, or a job's
    int64_t step;           // of a job's folder: which; -1: the newest
    const char *dir;        // is made; an empty one may be there
    const char *program;    // or null: whose section `export hf` says what is written
    bool npz;               // weft's own names, f32, in one file model.npz
    bool bf16;              // else f32
    uint64_t shard_bytes;   // of a file at most, but for a tensor that is larger
    int nmembers;           // of config.json beside what the program says: token ids
    const struct config_member *members;
    struct weights_watch watch;
};
struct export_result {
    int64_t step;
    int tensors, files;
    uint64_t bytes;
};
int weights_export(const struct export_options *o, struct export_result *out, struct err *e);

struct import_options {
    const char *dir;     // of config.json and safetensors files
    const char *out;     // a job's folder of checkpoints, which is made
    const char *program; // or null: the first of weft's own that takes config.json
    struct weights_watch watch;
};
struct import_result {
    const char *program, *job; // the job file that is written beside the checkpoint, to start from
    int tensors, params;
    uint64_t bytes;
};
int weights_import(const struct import_options *o, struct arena *a, struct import_result *out,
                   struct err *e);
