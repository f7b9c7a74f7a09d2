// SPDX-License-Identifier: Apache-2.0
// What a rank makes of its device, for rows of metrics: the model's FLOPs against the peak of all
// devices, and the memory that it holds against what the plan said. Inside worker/rank/train/ only.
#pragma once
#include "common/compile/compile.h"
#include "common/job/job.h"
#include "kernels/backend.h"

struct device_use {
    const struct backend *backend; // borrowed, as is the device
    struct device *device;
    double flops;           // of the model in a step, of all ranks
    double peak;            // FLOPs a second of all ranks; 0: not known
    uint64_t most, planned; // bytes: the most that was seen so far
    uint64_t window;        // of a rank on the host's memory: what it shares with its peers
    int64_t looked_ns;      // when the process was last asked
};

// Where the devices of a job are of one model, which this rank's is.
void device_use_init(struct device_use *u, const struct job *job, const struct compiled *c,
                     const struct backend *b, struct device *d, int rank);
// The most memory that was seen in use: of a device what it has handed out, of a rank on the host's memory
// what its process holds. The process is asked once a second at most. 0 before device_use_init().
uint64_t device_use_memory(struct device_use *u, int64_t now_ns);
