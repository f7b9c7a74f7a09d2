// SPDX-License-Identifier: Apache-2.0
// The causal mask as work. See mask.h.
#include "common/op/mask.h"

int64_t mask_rows(const int32_t *query, int64_t n, int64_t most)
{
    int64_t rows = 1;
    while (rows < n && rows < most && query[rows] == query[rows - 1] + 1)
        rows++;
    return rows;
}

// A visible key lengthens the last span, or begins another where the gap is worth it.
static void add_visible(struct mask *m, int64_t key)
{
    struct mask_span *last = m->n ? &m->span[m->n - 1] : m->span;
    if (m->n && (key < last->first + last->n + MASK_GAP || m->n == MASK_SPANS))
        last->n = key + 1 - last->first;
    else
        m->span[m->n++] = (struct mask_span){key, 1};
}

void mask_keys(struct mask *m, const int32_t *query, int64_t rows, const int32_t *key, int64_t keys)
{
    int32_t latest = query[0];
    for (int64_t i = 1; i < rows; i++)
        latest = query[i] > latest ? query[i] : latest;
    m->n = 0;
    m->keys = 0;
    for (int64_t k = 0; k < keys; k++)
        if (key[k] <= latest)
            add_visible(m, k);
    if (!m->n)
        add_visible(m, 0); // a softmax has at least one key
    for (int i = 0; i < m->n; i++)
        m->keys += m->span[i].n;
}
