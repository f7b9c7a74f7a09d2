// SPDX-License-Identifier: Apache-2.0
// The sinks of a worker: for each attempt whose rank 0 is here, those that its job names get its rows of
// metrics, each in a process of its own.
//
// Everything that may wait, as the file system of a job's folder, happens on a thread of each attempt,
// which nobody waits for but sinks_close, and that not for long. So nothing of a sink reaches a rank or
// the worker's loop. All calls here are the loop's thread's.
//
//   sinks_open → sinks_begin when a rank 0 starts → sinks_end when it has ended → sinks_close
#pragma once
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/rank.pb-c.h"

enum { SINKS_MAX = 16 }; // of a worker

struct sinks;
// `given` are NAME=COMMAND, borrowed; commands are split at blanks. "tensorboard" is always there. A null
// *out is a worker without sinks: where weft-sink is not found and none was given. `rest_ns`: how long a
// sink may take what is left, from when its rank 0 ended.
int sinks_open(const char *const *given, int n, int64_t rest_ns, struct sinks **out, struct err *e);
// A rank 0 has started in this slot. Appends to `missing` the sinks that the job names and this worker
// has not, for people.
void sinks_begin(struct sinks *s, int slot, const Weft__Rank__Assign *a, struct buf *missing);
void sinks_end(struct sinks *s, int slot); // of any rank
// Ends what lives, after that time. Null is fine. `waits`, or null, is called once if that lasts, with the
// names of the sinks that are waited for.
void sinks_close(struct sinks *s, void (*waits)(const char *names));
