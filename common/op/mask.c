// SPDX-License-Identifier: Apache-2.0
// The mask as work. See mask.h.
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

void mask_keys(struct mask *m, const struct op_attr *a, const int32_t *query, int64_t rows,
               const int32_t *key, int64_t keys)
{
    struct attention_sight all = attention_sight(a, query[0]);
    for (int64_t i = 1; i < rows; i++) {
        struct attention_sight s = attention_sight(a, query[i]);
        all.first = s.first < all.first ? s.first : all.first;
        all.last = s.last > all.last ? s.last : all.last;
    }
    m->n = 0;
    m->keys = 0;
    for (int64_t k = 0; k < keys; k++)
        if (key[k] >= all.first && key[k] <= all.last)
            add_visible(m, k);
    if (!m->n)
        add_visible(m, 0); // a softmax has at least one key
    for (int i = 0; i < m->n; i++)
        m->keys += m->span[i].n;
}
