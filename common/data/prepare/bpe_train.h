// SPDX-License-Identifier: Apache-2.0
// Learns the merges of a byte-level BPE from counted pieces: again and again, the pair of tokens that
// stands most often side by side becomes one token. Of pairs that are as frequent the one with the
// smaller first id wins, then with the smaller second. Ids are those that `tokenizers` gives: the special
// token, the 256 bytes in the order of their printable characters, then the merges' tokens.
// Inside common/data/prepare/ only.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"
#include "common/data/prepare/piece_counts.h"

enum { BPE_SPECIAL = 1 };

struct bpe_token { // its bytes in `text`
    uint64_t at;
    uint32_t len;
};
struct bpe_merge {
    uint32_t left, right;
};
struct bpe_learned {
    struct buf text;
    struct bpe_token *tokens; // those of ids below BPE_SPECIAL are empty
    uint32_t ntokens;
    struct bpe_merge *merges; // as many as tokens behind the bytes, or more: two may make the same
    uint32_t nmerges;
};

// Until there are `vocab` tokens, or no pair is left. `tick` is called now and then with the tokens so
// far; nonzero ends it, with that code. ERR_LIMIT: the pieces are too many.
int bpe_train(struct bpe_learned *l, const struct piece_counts *pieces, uint32_t vocab,
              int (*tick)(void *context, uint32_t tokens, struct err *e), void *context,
              struct err *e);
void bpe_learned_clear(struct bpe_learned *l);
