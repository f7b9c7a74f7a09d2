// SPDX-License-Identifier: Apache-2.0
// prepare.json: what a folder of tokens is made of, and how far that has come. It is there from before
// the first shard, replaced whole each time the shards were kept, and stays when all is done, so that
// the same command finds its work done and another is refused. Inside common/data/prepare/ only.
#pragma once
#include "common/data/prepare/documents.h"
#include "common/data/token_index.h"

#define JOURNAL "prepare.json"

enum fact {
    FACT_TOKENIZER, // its identity
    FACT_END,
    FACT_FIELD,
    FACT_VAL_FRACTION,
    FACT_SHARD_TOKENS,
    FACT_INPUTS, // digest of sources.h
    FACTS
};

struct journal {
    const char *facts[FACTS];
    struct place at;       // where reading continues
    struct hash128 stream; // documents_init()
    bool complete;
    struct token_shard *shards[TOKEN_SPLITS];
    int nshards[TOKEN_SPLITS];
};

int journal_write(const char *dir, const struct journal *j, struct err *e);
// What DIR/prepare.json holds, in the arena. ERR_NOTFOUND: there is none. ERR_DATA: it is damaged.
int journal_read(const char *dir, struct arena *a, struct journal *j, struct err *e);
int journal_parse(struct arena *a, const char *text, size_t len, struct journal *j, struct err *e);
// ERR_INVALID: the folder is another command's; which of its words differs is said.
int journal_compare(const char *dir, const struct journal *was, const struct journal *now,
                    struct err *e);
