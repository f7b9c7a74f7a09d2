// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the index of token shards, and as the journal of a preparation. An index that
// is accepted is written again and reads back to the same.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/prepare/journal.h"
#include "common/data/token_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct err e = {0};
    struct token_index index, again;
    struct journal j;
    struct buf text = {0};
    bool foreign;
    if (token_index_parse(&a, (const char *)data, size, &index, &foreign, &e)) {
        must(e.code && *e.text);
    } else {
        token_index_print(&index, &text);
        must(token_index_parse(&a, text.data, text.len, &again, &foreign, &e) == 0);
        must(again.nshards == index.nshards && again.nsources == index.nsources);
        for (int i = 0; i < index.nshards; i++) {
            must(strcmp(index.shards[i].file, again.shards[i].file) == 0);
            must(!strchr(index.shards[i].file, '/'));
            must(token_index_find(&index, index.shards[i].file) == &index.shards[i]);
            must(index.shards[i].tokens == again.shards[i].tokens);
        }
        (void)token_index_sum(&index, 0);
    }
    e = (struct err){0};
    if (journal_parse(&a, (const char *)data, size, &j, &e))
        must(e.code && *e.text);
    buf_clear(&text);
    arena_clear(&a);
    return 0;
}
