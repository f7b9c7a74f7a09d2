// SPDX-License-Identifier: Apache-2.0
// Device models: what a plan is held against. A table of the usual ones; a user
// adds others, or changes what is known of one, in a text form:
//
//   NAME[:KEY=SIZE[,KEY=SIZE]…]        a100-80g
//   mi300x:memory=192GB,flops=1307e12
//
// with keys memory, libraries (bytes; 80GB is 80·10⁹, 80GiB 80·2³⁰), flops,
// bandwidth and link (a second). What is not said is the known model's of that
// name; a new name needs its memory. A device file holds one such text a line; blank lines and
// what follows a # do not count. Pure: the caller reads the file.
#pragma once
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

struct device_model {
    const char *name;
    uint64_t memory;       // bytes a process may take; 0: no limit at plan time
    uint64_t libraries;    // estimate of what a process takes besides the arena
    double flops;          // peak of dense bf16 a second, for MFU; 0: not known
    double f32;            // of that peak, what products of f32 reach; 0: not known
    double bandwidth;      // bytes a second of its memory; 0: not known
    double link;           // bytes a second that it sends to other devices; 0: not known
    uint64_t communicator; // what NCCL takes for each
    bool measured;         // on this host (plan/nccl_memory.h); else that is an estimate
};

const struct device_model *device_model_find(const char *name); // in the table; null when unknown
// The model of a device that calls itself so ("NVIDIA H200"); null when that is no name in the table. A
// card of the same family in another form has another peak and another name.
const struct device_model *device_model_reported(const char *name);
// What a process takes of a device that calls itself so, besides its arena, in the table or not.
uint64_t device_model_libraries(const char *name);

// The model that `text` names or describes. `file` is the text of a device
// file, or null, and `path` what errors call it; its models come before the
// table's. ERR_INVALID: not such a text, or a name that nobody knows.
int device_model_read(struct arena *a, const char *text, const char *file, const char *path,
                      struct device_model *out, struct err *e);
