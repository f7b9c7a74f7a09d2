// SPDX-License-Identifier: Apache-2.0
// Conversions between frames and the structs that they carry. Frames made here borrow what they
// point to; structs made here live in the caller's arena. Inside worker/rank/link/ only.
#pragma once
#include <stdbool.h>

#include "common/attempt/page.h"
#include "common/base/arena.h"
#include "proto/rank.pb-c.h"
#include "worker/rank/link/rank_link.h"

void rank_frame_from_row(const struct step_row *row, Weft__Rank__StepReport *out);

void rank_frame_from_shard(const struct shard_report *s, struct arena *a,
                           Weft__Rank__ShardDone *out);

// Of a frame Commit, Committed, Aborted or Delete; false for any other frame, and for a damaged one.
bool rank_frame_to_event(const Weft__Rank__Frame *f, struct arena *a, struct link_event *out);

int rank_frame_to_assignment(const Weft__Rank__Assign *f, struct assignment *a, struct err *e);
