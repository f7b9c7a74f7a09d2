// SPDX-License-Identifier: Apache-2.0
// Between frames and the structs they carry: both ends of the link speak through this one table of
// conversions, so that a field is written and read in one place. Frames made here borrow what they
// point to; structs made here live in the caller's arena.
#pragma once
#include <stdbool.h>

#include "common/attempt/page.h"
#include "common/base/arena.h"
#include "proto/rank.pb-c.h"
#include "worker/rank/link/rank_link.h"

void report_from_view(const struct page_view *v, const char *host, Weft__Rank__Progress *out);
void report_to_view(const Weft__Rank__Progress *p, struct page_view *out);

void report_from_row(const struct step_row *row, Weft__Rank__StepReport *out);
// The row borrows the report's texts.
void report_to_row(const Weft__Rank__StepReport *r, struct step_row *out);

void report_from_shard(const struct shard_report *s, struct arena *a, Weft__Rank__ShardDone *out);
// ERR_DATA when the digests are no whole number of 16 bytes.
int report_to_shard(const Weft__Rank__ShardDone *f, struct arena *a, struct shard_report *out,
                    struct err *e);

// Commit, Committed, Aborted, Delete; false for any other frame or a damaged one.
bool report_to_event(const Weft__Rank__Frame *f, struct arena *a, struct link_event *out);

void report_from_attempt(const struct attempt *a, int rank, Weft__Rank__Assign *out);
int report_to_attempt(const Weft__Rank__Assign *f, struct attempt *a, struct err *e);
