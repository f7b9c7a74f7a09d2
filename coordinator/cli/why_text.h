// SPDX-License-Identifier: Apache-2.0
// A job's history as people read it: every event with its time (checkpoints in a row as one), what the
// job waits for, and where the time went. Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>

#include "common/base/buf.h"
#include "proto/weft.pb-c.h"

// `full`: each checkpoint is a line of its own.
void why_print(const Weft__V1__WhyReply *r, bool full, struct buf *out);
// The share of the time in which the job ran, of all in which it was meant to; below 0: there was none.
double why_goodput(const Weft__V1__WhyReply *r);
