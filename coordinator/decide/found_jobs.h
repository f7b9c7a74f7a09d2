// SPDX-License-Identifier: Apache-2.0
// Jobs found again. The directory decides what exists: after a lost database (the cluster's id was
// there, the rows were not) every host that attaches is asked for this cluster's job folders, and
// each job unknown here is taken up as HELD, with its attempt and checkpoints, until somebody adopts it.
// Inside coordinator/ only.
#pragma once
#include "coordinator/decide/host.h"

void found_ask(struct coord *c, struct host *host);
// The jobs from `from` to `to` of the answer, with the facts of each that it lists: a long one is taken in
// several steps, so that others are heard in between.
void found_take(struct coord *c, struct host *host, const Weft__V1__StorageDone *d,
                Weft__Plan__JobFacts *const *facts, int from, int to);
