// SPDX-License-Identifier: Apache-2.0
// The ids of pieces that a thread met before: most of a text is words that came already. When it is
// full it is emptied. Inside common/tokenizer/ only.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/tokenizer/tokenizer.h"

enum { PIECE_CACHED = 64 }; // bytes of the longest piece that is kept

struct piece_cache {
    struct piece_slot {
        uint64_t hash;      // 0: free
        uint32_t text, ids; // where in the two pools
        uint16_t bytes, n;
    } * slots;
    size_t used;
    char *text;
    int32_t *ids;
    size_t text_used, ids_used;
};

void piece_cache_init(struct piece_cache *c);
void piece_cache_clear(struct piece_cache *c);
// `hash` is not 0. The piece's ids and their number, or null.
const int32_t *piece_cache_get(const struct piece_cache *c, uint64_t hash, const char *piece,
                               size_t bytes, size_t *n);
void piece_cache_put(struct piece_cache *c, uint64_t hash, const char *piece, size_t bytes,
                     const int32_t *ids, size_t n);
