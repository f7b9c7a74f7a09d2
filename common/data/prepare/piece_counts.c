// SPDX-License-Identifier: Apache-2.0
// Counts of pieces. See piece_counts.h.
#include "common/data/prepare/piece_counts.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"

void piece_counts_clear(struct piece_counts *p)
{
    buf_clear(&p->text);
    free(p->slots);
    *p = (struct piece_counts){0};
}

// FNV-1a, whose low bits are mixed by its high ones.
static uint64_t hash_piece(const char *s, uint32_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static struct piece_count *find_slot(const struct piece_counts *p, const char *s, uint32_t len,
                                     uint64_t hash)
{
    for (size_t i = hash;; i++) {
        struct piece_count *slot = &p->slots[i & (p->cap - 1)];
        if (!slot->count || (slot->hash == hash && slot->len == len &&
                             memcmp(p->text.data + slot->at, s, len) == 0))
            return slot;
    }
}

static void grow(struct piece_counts *p)
{
    enum { FIRST = 1 << 12 };
    struct piece_counts old = *p;
    p->cap = old.cap ? 2 * old.cap : FIRST;
    p->slots = heap_alloc(p->cap * sizeof *p->slots);
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].count)
            *find_slot(p, p->text.data + old.slots[i].at, old.slots[i].len, old.slots[i].hash) =
                old.slots[i];
    free(old.slots);
}

static void add_hashed(struct piece_counts *p, const char *s, uint32_t len, uint64_t hash,
                       uint64_t count)
{
    if (2 * p->n >= p->cap)
        grow(p);
    struct piece_count *slot = find_slot(p, s, len, hash);
    if (!slot->count) {
        *slot = (struct piece_count){.hash = hash, .at = p->text.len, .len = len};
        buf_append(&p->text, s, len);
        p->n++;
    }
    slot->count += count;
}

void piece_counts_add(struct piece_counts *p, const char *s, uint32_t len, uint64_t count)
{
    add_hashed(p, s, len, hash_piece(s, len), count);
}

void piece_counts_merge(struct piece_counts *into, const struct piece_counts *from)
{
    for (size_t i = 0; i < from->cap; i++)
        if (from->slots[i].count)
            add_hashed(into, from->text.data + from->slots[i].at, from->slots[i].len,
                       from->slots[i].hash, from->slots[i].count);
}
