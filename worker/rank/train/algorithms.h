// SPDX-License-Identifier: Apache-2.0
// Which of a library's algorithms a job's products are computed by (backend.h, "Choices"): settled
// before step 0, the same on all ranks whose devices are alike, and the same again after a restart,
// since they decide the last bits.
//
// Of each stage one rank a device model measures, the others take its choices; they go through the
// link's keys:
//
//   device/R    what rank R's device and libraries are
//   plan        from rank 0: the ranks that measure, one after the other
//   text/I      what the I-th of them chose, with what those before it chose
//
// Whoever measures knows what was chosen before it, so a product of two stages is computed one way.
// A text of another device model is not taken, but kept for the record. What a checkpoint's record
// holds comes first; what of it cannot be had any more is told as a change of numerics.
#pragma once
#include "common/base/buf.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/link/rank_link.h"

struct algorithms_options {
    const struct backend *backend; // borrowed, as is all below
    struct device *device;
    struct exec *exec; // before anything of value lies in its memory
    const struct compiled *compiled;
    struct link *link;
    int rank, ranks;
    const char *before; // the record of the checkpoint that is restored; null: none
};

// Appends the record: a section a device model, each beginning with its header line. Equal on all
// ranks. Nothing on a backend without a choice.
int algorithms_agree(const struct algorithms_options *o, struct buf *record, struct err *e);
