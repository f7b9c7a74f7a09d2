// SPDX-License-Identifier: Apache-2.0
// Pieces met before. See piece_cache.h.
#include "common/tokenizer/piece_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"

enum {
    SLOTS = 1 << 16,
    FULL = SLOTS / 2,      // slots in use
    TEXT_ROOM = 16 * FULL, // bytes
    IDS_ROOM = 8 * FULL,
};

void piece_cache_init(struct piece_cache *c)
{
    *c = (struct piece_cache){.slots = heap_alloc(SLOTS * sizeof *c->slots),
                              .text = heap_alloc(TEXT_ROOM),
                              .ids = heap_alloc(IDS_ROOM * sizeof *c->ids)};
}

void piece_cache_clear(struct piece_cache *c)
{
    free(c->slots);
    free(c->text);
    free(c->ids);
    *c = (struct piece_cache){0};
}

const int32_t *piece_cache_get(const struct piece_cache *c, uint64_t hash, const char *piece,
                               size_t bytes, size_t *n)
{
    for (size_t i = hash % SLOTS; c->slots[i].hash; i = (i + 1) % SLOTS) {
        const struct piece_slot *s = &c->slots[i];
        if (s->hash == hash && s->bytes == bytes && memcmp(c->text + s->text, piece, bytes) == 0) {
            *n = s->n;
            return c->ids + s->ids;
        }
    }
    return NULL;
}

void piece_cache_put(struct piece_cache *c, uint64_t hash, const char *piece, size_t bytes,
                     const int32_t *ids, size_t n)
{
    PRE(bytes <= PIECE_CACHED && n <= UINT16_MAX && hash);
    if (c->used == FULL || c->text_used + bytes > TEXT_ROOM || c->ids_used + n > IDS_ROOM) {
        memset(c->slots, 0, SLOTS * sizeof *c->slots);
        c->used = c->text_used = c->ids_used = 0;
    }
    size_t i = hash % SLOTS;
    while (c->slots[i].hash)
        i = (i + 1) % SLOTS;
    c->slots[i] = (struct piece_slot){hash, (uint32_t)c->text_used, (uint32_t)c->ids_used,
                                      (uint16_t)bytes, (uint16_t)n};
    memcpy(c->text + c->text_used, piece, bytes);
    if (n)
        memcpy(c->ids + c->ids_used, ids, n * sizeof *ids);
    c->text_used += bytes;
    c->ids_used += n;
    c->used++;
}
