// SPDX-License-Identifier: Apache-2.0
// index.json of a folder of token shards, as `weft data prepare` writes it; README.md draws it. Who
// reads the shards holds their sizes against it. Inside common/data/ only.
#pragma once
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/data/array.h"

#define TOKEN_INDEX "index.json"
#define TOKEN_TOKENIZER \
    "tokenizer.json" // a copy of the one that made the tokens, where it is a file
#define TOKEN_INDEX_KIND "weft tokens"
enum {
    TOKEN_INDEX_FORMAT = 1,
    TOKEN_SPLITS = 2,
    TOKEN_SHARDS_MOST = 100000, // of a split
};
extern const char *const token_splits[TOKEN_SPLITS]; // "train", "val"

struct token_shard {
    const char *file; // a name, no path
    int split;
    uint64_t tokens;
    uint64_t documents, bytes; // that end in it; the bytes of their texts
    struct hash128 digest;     // of the ids
};

struct token_source {
    const char *path; // as it was given
    uint64_t bytes;   // of the file; 0: of unknown size
};

struct token_index {                // its texts and arrays are in an arena, or borrowed
    const char *tokenizer, *digest; // its name, and the hash of what it is made of
    int64_t vocab, end;             // the id behind every document
    enum array_type type;           // of the ids: ARRAY_U16 or ARRAY_U32
    double val_fraction;
    struct token_shard *shards;
    int nshards;
    const struct token_shard **by_name; // of an index that was read: its shards by their names
    struct token_source *sources;
    int nsources;
};

void token_index_print(const struct token_index *index, struct buf *out);
void token_shard_print(const struct token_shard *s, struct json_out *w); // tokens, documents, bytes
void token_digest_print(struct json_out *w, const char *key, struct hash128 digest);
int token_digest_read(const struct json *o, const char *key, struct hash128 *out, struct err *e);
// ERR_DATA, ERR_LIMIT: it is none, in words without the file's name. *foreign: it is whole JSON of
// another program, which is no error of whoever looks for one.
int token_index_parse(struct arena *a, const char *text, size_t len, struct token_index *index,
                      bool *foreign, struct err *e);
// Reads FOLDER/index.json ("" or "DIR/"); ERR_NOTFOUND: there is none, or another program's.
int token_index_read(struct arena *a, const char *root, const char *folder,
                     struct token_index *index, struct err *e);
// The shard of this name, or null.
const struct token_shard *token_index_find(const struct token_index *index, const char *file);
// ERR_DATA: the open file is not as long, or not of the type, that the index says.
int token_index_check(const struct token_index *index, const struct array *shard, struct err *e);
// What a split's shards hold together; `file` and `digest` are empty.
struct token_shard token_index_sum(const struct token_index *index, int split);
