// SPDX-License-Identifier: Apache-2.0
// Writes the shards of one split, one behind the other, each of a stated number of tokens but the last.
// A shard is llm.c's file (llmc.c), and bears in the header's zeros, from byte 16, the tokenizer's
// identity. Until all is done a shard is called NAME.part; shards_keep() makes what was written
// so far durable, and a later process continues behind that. Inside common/data/prepare/ only.
#pragma once
#include "common/base/list.h"
#include "common/data/token_index.h"

#define SHARD_PART ".bin.part" // ends the name of one that is not done
enum { SHARD_HEADER = 1024, SHARD_IDENTITY = 16 };

struct shards {
    int dir; // borrowed
    int split;
    enum array_type type;
    uint64_t most;        // tokens of a shard
    const char *identity; // the tokenizer's; borrowed
    struct arena names;
    struct token_shard *v; // all of them; the last may still grow
    int n, cap;
    int fd;            // of the last one; -1: it is complete, or there is none
    struct xxh3 *hash; // of its ids
};

void shards_init(struct shards *s, int dir, int split, enum array_type type, uint64_t most,
                 const char *identity);
void shards_clear(struct shards *s);

// Where a document ends among ids: behind the first `end` of them. Its text had so many bytes.
struct shard_mark {
    uint64_t end, bytes;
};

// Appends ids of the type to the last shard and, where that is full, to further ones. A document
// counts to the shard that its last id is in. *filled is set if a shard was completed.
int shards_add(struct shards *s, const void *ids, uint64_t n, const struct shard_mark *marks,
               size_t nmarks, bool *filled, struct err *e);
int shards_keep(struct shards *s, struct err *e); // what was added is durable
// Takes the next of the shards that an earlier process kept, as it was then: what was written later is
// cut off. `complete`: nothing more will be added. It is read through: ERR_DATA, it is not there, or its
// ids or its header are others.
int shards_continue(struct shards *s, const struct token_shard *was, bool complete, struct err *e);
int shards_complete(struct shards *s, struct err *e); // the last one, and durably
int shards_name(struct shards *s, struct err *e);     // all of them, of which some may be named
