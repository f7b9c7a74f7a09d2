// SPDX-License-Identifier: Apache-2.0
// The job of a command line: its file and overrides are read, checked and compiled before anybody
// is asked, so that every mistake is reported with the file's own lines and leaves nothing behind. The
// coordinator and the ranks compile the job again; they see the resolved form, which has other
// lines. Inside coordinator/cli/ only.
#pragma once
#include "common/base/arena.h"
#include "common/explain/device_models.h"
#include "common/job/job.h"
#include "coordinator/cli/verbs.h"

// Returns CLIENT_OK, or CLIENT_USAGE with all mistakes printed.
int resolve_job(const struct args *a, struct arena *arena, struct job *job);
// The device to hold the job's plan against: that of --device and --device-file, else the usual one.
int resolve_device(const struct args *f, const struct job *job, struct arena *a,
                   struct device_model *device, struct err *e);
