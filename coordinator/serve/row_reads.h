// SPDX-License-Identifier: Apache-2.0
// Pieces of jobs' metrics that clients ask for. The folder of a job is seen by workers alone, the same
// by all of them, so one of them is asked (STORAGE_ROWS), and when it fails or is silent for a while
// the next, three at most. All functions are the owner's. Inside coordinator/ only.
#pragma once
#include "common/base/list.h"
#include "common/rpc/rpc.h"
#include "coordinator/decide/coord.h"

struct row_reads {
    struct list open;
    int n;
    uint64_t last_question; // its number, counted from anywhere
};

void row_reads_init(struct row_reads *r);
void row_reads_clear(struct row_reads *r);
void row_reads_begin(struct row_reads *r, struct rpc *rpc, const struct coord *c, uint64_t call,
                     const Weft__V1__RowsRequest *q);
// False: none of its questions was put to this stream so.
bool row_reads_hear(struct row_reads *r, struct rpc *rpc, uint64_t conn,
                    const Weft__V1__StorageDone *d);
void row_reads_host_gone(struct row_reads *r, struct rpc *rpc, uint64_t conn);
void row_reads_cancel(struct row_reads *r, uint64_t call);
int64_t row_reads_due(const struct row_reads *r); // 0: nothing is open
void row_reads_tick(struct row_reads *r, struct rpc *rpc, int64_t now_ns);
