// SPDX-License-Identifier: Apache-2.0
// The mask as work: which rows of queries go together, and with which keys they have to be
// multiplied. What a query sees depends on positions (attention_sight), so queries and keys may come
// in any order. Hidden keys are not computed, so that in zig-zag order (compile/layout/zigzag.h)
// every part of a sequence has the same work, and a window costs what it holds.
#pragma once
#include "common/op/attention.h"

// Fewer than MASK_GAP hidden keys in a row cost less to compute than to skip, so spans continue over
// them. The last of MASK_SPANS spans reaches to the last visible key, whatever is hidden between.
enum { MASK_SPANS = 64, MASK_GAP = 8 };
struct mask_span {
    int64_t first, n; // keys
};
struct mask {
    int64_t keys; // of all spans
    int n;        // at least 1
    struct mask_span span[MASK_SPANS];
};

// Returns how many of the `n` queries, from the first on and at most `most`, have consecutive
// positions.
int64_t mask_rows(const int32_t *query, int64_t n, int64_t most);
// Fills `m` with spans of keys that together hold every key that any of the `rows` queries sees.
void mask_keys(struct mask *m, const struct op_attr *a, const int32_t *query, int64_t rows,
               const int32_t *key, int64_t keys);
