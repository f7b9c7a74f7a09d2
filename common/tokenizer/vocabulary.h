// SPDX-License-Identifier: Apache-2.0
// Tokens by id and by content, and which pair of them merges into which. Built once, then only read.
// Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct vocabulary_token {
    const char *content; // borrowed; null: no token has this id
    uint32_t bytes;
};
struct merge {
    uint64_t pair; // of ids, the left one in the upper half; MERGE_NONE: the slot is free
    uint32_t rank; // the lowest comes first
    int32_t into;
};
#define MERGE_NONE UINT64_MAX

struct vocabulary {
    struct vocabulary_token *tokens; // by id
    size_t n;                        // one more than the greatest id
    size_t longest;                  // bytes of a token
    uint32_t *slots;                 // 1 + id, by the content's hash; 0: free
    size_t mask;
    struct merge *merges; // by the pair's hash
    size_t merge_mask;
    uint64_t seed; // of the hashes: no file can choose what collides
};

// Room for `tokens` contents with ids below n, and for `merges`. A zeroed one is safe to clear.
void vocabulary_init(struct vocabulary *v, size_t tokens, size_t n, size_t merges);
void vocabulary_clear(struct vocabulary *v);
// False: the id has a token already. Contents differ from each other.
bool vocabulary_put(struct vocabulary *v, int32_t id, const char *content, size_t bytes);
int32_t vocabulary_find(const struct vocabulary *v, const char *content, size_t bytes); // −1: none
// A pair that is there already gets this rank and result.
void vocabulary_merge(struct vocabulary *v, int32_t left, int32_t right, uint32_t rank,
                      int32_t into);

static inline uint64_t hash_mix(uint64_t h)
{
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static inline uint64_t hash_bytes(const char *s, size_t n, uint64_t seed)
{
    uint64_t h = seed ^ n, word;
    for (; n > 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = hash_mix(h ^ word) * 0xbf58476d1ce4e5b9u;
    }
    word = 0;
    memcpy(&word, s, n);
    h = hash_mix(h ^ word) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

// Where the pair merges, or null.
static inline const struct merge *find_merge(const struct vocabulary *v, int32_t left,
                                             int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t h = hash_mix(pair ^ v->seed) * 0xbf58476d1ce4e5b9u;
    for (size_t i = (h ^ h >> 32) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        if (v->merges[i].pair == pair)
            return &v->merges[i];
        if (v->merges[i].pair == MERGE_NONE)
            return NULL;
    }
}
