// SPDX-License-Identifier: Apache-2.0
// The algorithms of a library by which a job's products are computed (backend.h, "Choices"). They
// decide the last bits, so they are settled before step 0, are the same on all ranks whose devices
// are alike, and are the same again after a restart. Inside worker/rank/train/ only.
//
// In each stage one rank of each device model measures and the others take its choices. Texts go
// through the link's keys:
//
//   device/R    what rank R's device and libraries are
//   plan        from rank 0: the ranks that measure, one after the other
//   text/I      what the I-th of them chose, with what those before it chose
//
// A rank that measures knows what was chosen before it, so a product that two stages have is
// computed by one algorithm. A text of another device model is not used, but goes into the record.
// A rank that waits for one that measures does so without an end, and its page goes on; the page of
// one that measures goes on from product to product.
//
// The record of a checkpoint comes first; what of it is not available any more is logged as a
// change of numerics.
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
    struct progress_page *page; // says that a rank which waits lives; may be null
    int rank, ranks;
    const char *before; // the record of the checkpoint that is restored; null: none
};

// Appends the record: a section a device model, each beginning with its header line. Equal on all
// ranks. Nothing on a backend without a choice.
int algorithms_agree(const struct algorithms_options *o, struct buf *record, struct err *e);
