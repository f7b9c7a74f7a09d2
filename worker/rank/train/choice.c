// SPDX-License-Identifier: Apache-2.0
// The next token. See choice.h.
//
// The k most likely ids lie in a heap with the least likely on top. They are put in order only where
// top_p or min_p look at it, and the draw takes them in the order of their ids.
#include "worker/rank/train/choice.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

// The k most likely ids, in any order.
static void find_most_likely(const float *logits, int64_t n, int64_t k, int32_t *ids)
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
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int compare_likelihood(const void *a, const void *b, void *logits)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x == y ? 0 : is_less_likely(logits, x, y) ? 1 : -1;
}

static double find_weight(const struct choice *c, const float *logits, int32_t id, int32_t best)
{
    return exp(((double)logits[id] - (double)logits[best]) / c->temperature);
}

// How many of the k ids, the most likely first, top_p and min_p leave.
static int64_t count_left(const struct choice *c, const float *logits, const int32_t *ids,
                          int64_t k)
{
    double total = 0, before = 0, p = c->top_p > 0 && c->top_p < 1 ? c->top_p : 2;
    int64_t left = 0;
    for (int64_t i = 0; i < k; i++)
        total += find_weight(c, logits, ids[i], ids[0]);
    for (; left < k; left++) {
        double weight = find_weight(c, logits, ids[left], ids[0]);
        if (left && (before >= p * total || weight < c->min_p))
            break;
        before += weight;
    }
    return left;
}

// The ids to draw from, in the order of the ids. Returns how many they are.
static int64_t find_candidates(const struct choice *c, float *logits, int64_t n, int32_t *ids)
{
    int64_t k = c->top_k > 0 && c->top_k < n ? c->top_k : n;
    find_most_likely(logits, n, k, ids);
    if ((c->top_p > 0 && c->top_p < 1) || c->min_p > 0) {
        qsort_r(ids, (size_t)k, sizeof *ids, compare_likelihood, logits);
        k = count_left(c, logits, ids, k);
    }
    qsort(ids, (size_t)k, sizeof *ids, compare_ids);
    return k;
}

// An id that stands in the text several times is changed once.
static void penalise(const struct choice *c, float *logits, int64_t n, int32_t *seen)
{
    const float p = (float)c->penalty;
    memset(seen, 0, sizeof *seen * (size_t)n);
    for (int64_t i = 0; i < c->ntext; i++) {
        int32_t id = c->text[i];
        if (id < 0 || id >= n || seen[id]++)
            continue;
        logits[id] = logits[id] > 0 ? logits[id] / p : logits[id] * p;
    }
}

// The first of the most likely ids; −1 if a logit is not finite. By lanes, which compilers make vectors of.
static int32_t find_best(const float *logits, int64_t n)
{
    enum { LANES = 16 };
    float most[LANES], zero[LANES] = {0}; // zero: NaN once a lane met a NaN or an infinity
    int64_t i = 0;
    int32_t best = 0;
    for (int l = 0; l < LANES; l++)
        most[l] = logits[0];
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const float x = logits[i + l];
            most[l] = x > most[l] ? x : most[l];
            zero[l] += x * 0;
        }
    for (; i < n; i++) {
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
        zero[0] += logits[i] * 0;
    }
    for (int l = 1; l < LANES; l++) {
        most[0] = most[l] > most[0] ? most[l] : most[0];
        zero[0] += zero[l];
    }
    if (isnan(zero[0]))
        return -1;
    while (logits[best] != most[0])
        best++;
    return best;
}

int32_t choice_token(const struct choice *c, float *logits, int64_t n, int32_t *scratch)
{
    PRE(n >= 1 && n <= INT32_MAX);
    if (c->penalty > 0 && c->penalty != 1)
        penalise(c, logits, n, scratch);
    const int32_t best = find_best(logits, n);
    if (best < 0 || c->temperature <= 0)
        return best;
    double total = 0, left;
    int64_t k = find_candidates(c, logits, n, scratch);
    for (int64_t i = 0; i < k; i++)
        total += find_weight(c, logits, scratch[i], best);
    left = (double)c->u * total;
    for (int64_t i = 0; i < k; i++) {
        left -= find_weight(c, logits, scratch[i], best);
        if (left < 0)
            return scratch[i];
    }
    return best; // u is so near 1 that rounding used up all of the weights
}

double choice_log_share(const float *logits, int64_t n, int32_t id)
{
    double most = (double)logits[0], total = 0;
    for (int64_t i = 1; i < n; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < n; i++)
        total += exp((double)logits[i] - most);
    return (double)logits[id] - most - log(total);
}
