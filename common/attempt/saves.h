// SPDX-License-Identifier: Apache-2.0
// Inside common/attempt/ only. The saves of one attempt: the decisions about its checkpoints
// (common/ckpt/commit.h) between the ranks' frames that feed them and the frames that they make.
//
// Reports of shards are kept as they came until their checkpoint is decided: the writer gets them
// with the order to commit. Only the writer reads the digests in them.
#pragma once
#include "common/attempt/leader_out.h"
#include "common/ckpt/commit.h"

struct saves {
    int ranks;
    struct commit commit;
    Weft__Rank__ShardDone **shards; // [ranks] of one checkpoint, the heap's; null: not in
    int64_t shards_step;            // of which step
    int shards_tries;               // and try
};

void saves_init(struct saves *s, const struct commit_config *c);
void saves_clear(struct saves *s);
void saves_shard(struct saves *s, int rank, const Weft__Rank__ShardDone *f, int64_t now_ns,
                 struct leader_out *out);
void saves_commit_done(struct saves *s, const Weft__Rank__CommitDone *f, int64_t now_ns,
                       struct leader_out *out);
void saves_deleted(struct saves *s, const Weft__Rank__Deleted *f, struct leader_out *out);
// Decides upon COMMIT_EV_BAD (with the id) or COMMIT_EV_ATTEMPT_END.
void saves_decide(struct saves *s, struct commit_event *ev, struct leader_out *out);
void saves_tick(struct saves *s, int64_t now_ns, struct leader_out *out);
void saves_extend(struct saves *s, int64_t ns); // an open deadline moves on by so much
