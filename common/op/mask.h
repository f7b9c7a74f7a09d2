// SPDX-License-Identifier: Apache-2.0
// The causal mask as work: which rows of queries go together, and with which keys they have to be
// multiplied. Told by positions, so queries and keys may come in any order; what nobody sees is not
// computed, so that in zig-zag order (compile/layout/zigzag.h) every part of a sequence has the same work.
#pragma once
#include <stdint.h>

// Fewer hidden keys than a gap are cheaper computed than skipped; the last span takes all the rest.
enum { MASK_SPANS = 64, MASK_GAP = 8 };
struct mask_span {
    int64_t first, n; // keys
};
struct mask {
    int64_t keys; // of all spans
    int n;        // at least 1
    struct mask_span span[MASK_SPANS];
};

// Of `n` queries so many, at most `most`, whose positions follow each other.
int64_t mask_rows(const int32_t *query, int64_t n, int64_t most);
// Spans of keys in which are all that any of the `rows` queries sees.
void mask_keys(struct mask *m, const int32_t *query, int64_t rows, const int32_t *key,
               int64_t keys);
