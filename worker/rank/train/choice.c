// SPDX-License-Identifier: Apache-2.0
// The next token. See choice.h.
//
// The candidates lie in a heap with the least likely on top; then they are taken in the order of
// their ids, each with the weight exp((logit − greatest) / temperature), in double.
#include "worker/rank/train/choice.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/err.h"

static bool is_less_likely(const float *logits, int32_t a, int32_t b)
{
    return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
}

static void sift_down(const float *logits, int32_t *heap, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_less_likely(logits, heap[child + 1], heap[child]))
            child++;
        if (is_less_likely(logits, heap[at], heap[child]))
            return;
        int32_t id = heap[at];
        heap[at] = heap[child];
        heap[child] = id;
    }
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

// The k most likely ids, in the order of the ids.
static void find_candidates(const float *logits, int64_t n, int64_t k, int32_t *ids)
{
    for (int64_t i = 0; i < k; i++)
        ids[i] = (int32_t)i;
    if (k == n)
        return;
    for (int64_t i = k / 2 - 1; i >= 0; i--)
        sift_down(logits, ids, k, i);
    for (int64_t i = k; i < n; i++) {
        if (!is_less_likely(logits, ids[0], (int32_t)i))
            continue;
        ids[0] = (int32_t)i;
        sift_down(logits, ids, k, 0);
    }
    qsort(ids, (size_t)k, sizeof *ids, compare_ids);
}

int32_t choice_token(const struct choice *c, const float *logits, int64_t n, int32_t *scratch)
{
    int32_t best = 0;
    PRE(n >= 1 && n <= INT32_MAX);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = (int32_t)i;
    }
    if (c->temperature <= 0)
        return best;
    int64_t k = c->top_k > 0 && c->top_k < n ? c->top_k : n;
    double total = 0, left, top = (double)logits[best];
    find_candidates(logits, n, k, scratch);
    for (int64_t i = 0; i < k; i++)
        total += exp(((double)logits[scratch[i]] - top) / c->temperature);
    left = (double)c->u * total;
    for (int64_t i = 0; i < k; i++) {
        left -= exp(((double)logits[scratch[i]] - top) / c->temperature);
        if (left < 0)
            return scratch[i];
    }
    return best; // u is so near 1 that rounding used up all of the weights
}
