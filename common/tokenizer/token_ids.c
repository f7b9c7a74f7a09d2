// SPDX-License-Identifier: Apache-2.0
// A run of ids; see tokenizer.h.
#include <stdlib.h>

#include "common/tokenizer/tokenizer.h"

void token_ids_clear(struct token_ids *ids)
{
    free(ids->data);
    *ids = (struct token_ids){0};
}

void token_ids_put(struct token_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 256;
        ids->data = realloc(ids->data, ids->cap * sizeof *ids->data);
        PRE(ids->data != NULL);
    }
    ids->data[ids->n++] = id;
}
