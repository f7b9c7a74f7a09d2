// SPDX-License-Identifier: Apache-2.0
// A run of ids; see tokenizer.h.
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer.h"

void token_ids_clear(struct token_ids *ids)
{
    free(ids->data);
    *ids = (struct token_ids){0};
}

static void make_room(struct token_ids *ids, size_t more)
{
    if (ids->cap - ids->n >= more)
        return;
    enum { FIRST = 256 };
    size_t cap = ids->cap ? 2 * ids->cap : FIRST;
    ids->cap = cap < ids->n + more ? ids->n + more : cap;
    ids->data = realloc(ids->data, ids->cap * sizeof *ids->data);
    PRE(ids->data != NULL);
}

void token_ids_put(struct token_ids *ids, int32_t id)
{
    make_room(ids, 1);
    ids->data[ids->n++] = id;
}

void token_ids_append(struct token_ids *ids, const int32_t *from, size_t n)
{
    if (!n)
        return;
    make_room(ids, n);
    memcpy(ids->data + ids->n, from, n * sizeof *from);
    ids->n += n;
}
