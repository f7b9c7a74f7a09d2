// SPDX-License-Identifier: Apache-2.0
// A host whose worker cannot open a job's data is none to the job. While the job waits, such hosts
// are asked again, so that data which somebody brings there is found without a word to weft:
//
//   in coord.lacks ── after LOOK_AGAIN_S, or a worker of them attaches ──► asked, LOOK_WAIT_S at most
//        ▲                                                                    │
//        └── it cannot, says nothing ◄────────────────────────────────────────┤
//                                       it can: placement may use the host ◄──┘
//
// At most LOOKS_AGAIN jobs are asked about at once, begun by ticks, so a host gets so many questions a
// tick and no more, however many jobs wait; who waits longest comes first. A host that leaves a
// question unanswered (its file system hangs) is left alone for LOOK_AGAIN_S. Only a stream that was
// asked is heard, once a question. Inside coordinator/ only.
#pragma once
#include "coordinator/job_record.h"

struct host;

void looks_again_tick(struct coord *c);
bool looks_again_is_due(const struct coord *c); // the next tick has something to do
void looks_again_take(struct coord *c, struct host *host, const Weft__V1__StorageDone *d);
void looks_again_here(struct coord *c, const struct host *host); // its worker has attached
// How long it takes at present until a job's hosts are asked again.
int64_t looks_again_every_s(const struct coord *c);
void looks_again_free(struct coord *c); // when the coordinator ends
