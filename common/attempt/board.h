// SPDX-License-Identifier: Apache-2.0
// The board: what the ranks of one attempt say to each other through their leader before and between
// steps: keys with one writer, barriers, and the agreement on the plan.
//
// Pure state: questions and time come in, answers go out as frames to send (leader_out.h).
// Everything is idempotent: asking again gives the same answer. A barrier that times out lists who
// is missing and where each is.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/leader_out.h"
#include "common/base/list.h"
#include "common/base/map.h"

enum { BOARD_KEY_MAX = 256, BOARD_VALUE_MAX = 4096 };
enum { BOARD_BYTES_MAX = 64 << 20 }; // of all keys with what is kept of each
enum { BOARD_BARRIERS_MAX = 1024 };  // remembered; ranks are never further apart than a few
enum { BOARD_WHERE = 500 };

// "rank 2 on host b (starting, …)" into out.
typedef void board_where_fn(const void *ctx, int rank, char *out, size_t size);

struct board {
    board_where_fn *where;
    const void *ctx;
    int ranks;
    struct map keys;
    size_t bytes;         // of them
    struct list barriers; // the oldest first
    int nbarriers;
    char **plans; // [ranks]; null: not ready
    int ready;
    char *agreed;    // the answer to all that are ready: "" or why not; null: not answered yet
    bool called_off; // none begins: that is the answer
};

void board_init(struct board *b, int ranks, board_where_fn *where, const void *ctx);
void board_clear(struct board *b);

void board_put(struct board *b, int rank, const Weft__Rank__KvPut *f, struct leader_out *out);
void board_get(struct board *b, int rank, const char *key, struct leader_out *out);
void board_barrier(struct board *b, int rank, const Weft__Rank__Barrier *f, int64_t now_ns,
                   struct leader_out *out);
void board_ready(struct board *b, int rank, const char *plan_hash, struct leader_out *out);
// No rank begins, unless they were answered already: those that are ready hear that, and who comes later.
void board_call_off(struct board *b, struct leader_out *out);
void board_tick(struct board *b, int64_t now_ns, struct leader_out *out); // deadlines of barriers

// After a restart the leader takes in what it answered before (KvValue, BarrierDone, ReadyDone) and
// what ranks put (KvPut: which rank wrote it shows when that rank asks again). Such an answer
// stands, also for ranks that wait now. Other frames, and what is known already, change nothing.
void board_recall(struct board *b, const Weft__Rank__Frame *f, struct leader_out *out);
void board_extend(struct board *b, int64_t ns); // all open deadlines move on by so much
