// SPDX-License-Identifier: Apache-2.0
// The algorithms of a library by which a job's products are computed (backend.h, "Choices"). They
// decide the last bits, so they are settled before step 0, are the same on all ranks whose devices
// are alike, and are the same again after a restart. Inside worker/rank/train/ only.
//
// In each stage one rank of each device model measures, and the others take its choices. The ranks
// that measure do so one after the other. Texts go through keys of the link, all of which begin with
// "algorithms/":
//
//   device/R    the names of rank R's device and libraries
//   plan        from rank 0: the ranks that measure, in their order
//   text/I      from the I-th of them: its choices, with those made before it
//
// A rank that measures has the choices made before it, so that a product which two stages compute is
// computed by one algorithm. Choices for another device model are not used, but go into the record.
// A rank waits for the one that measures without a deadline, and its page shows that it lives; the
// page of the one that measures moves from product to product.
//
// What the restored checkpoint recorded comes before all measuring. If some of it is not available
// any more, that is logged as a change of numerics.
#pragma once
#include "common/base/buf.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/link/rank_link.h"

struct algorithms_options {
    const struct backend *backend; // borrowed, as is all below
    struct device *device;
    struct exec *exec; // its memory is written over: draw or restore the state afterwards
    const struct compiled *compiled;
    struct link *link;
    struct progress_page *page; // shows that a rank which waits lives; may be null
    int rank, ranks;
    const char *before; // the record of the checkpoint that is restored; null: none
};

// Appends the record, which is the same on all ranks: a section for each device model, each
// beginning with its header line. Appends nothing where the backend has no choice.
int algorithms_agree(const struct algorithms_options *o, struct buf *record, struct err *e);
