// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: a piece of text becomes the tokens of its characters (of its bytes, over a
// byte-level vocabulary), and then the pair of neighbours with the lowest rank merges, the leftmost of
// equals first, until none does. Inside common/tokenizer/ only.
#pragma once
#include "common/tokenizer/char_class.h"
#include "common/tokenizer/piece_cache.h"
#include "common/tokenizer/vocabulary.h"

enum {
    BPE_BYTES = 256,
    BPE_CLOSE = 129, // ASCII, and ▁
};

struct bpe {
    struct vocabulary vocabulary;
    bool byte_level;    // contents are bytes, written as byte_level.h says
    bool ignore_merges; // a piece that is a token as a whole is that token
    bool byte_fallback; // a character that is no token becomes its bytes' tokens, <0xE2>
    bool fuse_unknown;
    int32_t unknown; // what else is no token becomes; −1: nothing

    // What follows is bpe_prepare's.
    int32_t fallback[BPE_BYTES]; // −1: none
    struct bpe_start {
        int32_t ids[2]; // of byte-level's one byte
        int n;          // 0: unknown, or nothing
        bool known;     // the byte's character is a token
    } starts[BPE_BYTES];
    uint32_t *characters; // 1 + id by code point
    // Two characters between which no merge reaches are tokenized apart.
    bool cuts;
    uint8_t close[BPE_CLOSE][BPE_CLOSE]; // a merge may reach between
    uint64_t *pairs;                     // the others that one reaches between, by hash; 0: free
    size_t pair_mask;
};

struct bpe_work {
    struct piece_cache cache;
    struct token_ids symbols;
    struct bpe_links {
        int32_t before, after;
        uint32_t rank; // of this symbol and the one after it
    } * links;
    uint64_t *heap; // rank, then place
    size_t links_room;
    struct buf spelled; // a piece as a byte-level vocabulary writes it
};

void bpe_prepare(struct bpe *b); // once the vocabulary and the flags are there
void bpe_clear(struct bpe *b);   // a zeroed one is safe to clear
void bpe_work_init(struct bpe_work *w);
void bpe_work_clear(struct bpe_work *w);

// Appends the tokens of a piece of UTF-8. ERR_NOMEM.
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
               struct token_ids *out, struct err *e);
