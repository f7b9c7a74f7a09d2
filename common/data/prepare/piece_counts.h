// SPDX-License-Identifier: Apache-2.0
// How often each piece of text occurs: a hash table that owns its pieces. Inside
// common/data/prepare/ only.
#pragma once
#include "common/base/buf.h"

struct piece_count {
    uint64_t hash, count; // count 0: free
    uint64_t at;          // in `text`
    uint32_t len;
};
struct piece_counts {
    struct buf text;
    struct piece_count *slots;
    size_t n, cap;
};

void piece_counts_clear(struct piece_counts *p); // a zeroed one is empty
void piece_counts_add(struct piece_counts *p, const char *s, uint32_t len, uint64_t count);
void piece_counts_merge(struct piece_counts *into, const struct piece_counts *from);
