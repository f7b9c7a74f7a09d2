// SPDX-License-Identifier: Apache-2.0
// A hash map from strings to pointers: linear probing, backward-shift removal. See map.h.
#include "common/base/map.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/heap.h"

static size_t hash_key(const char *key)
{
    uint64_t h = 14695981039346656037u;
    for (; *key; key++)
        h = (h ^ (unsigned char)*key) * 1099511628211u;
    return (size_t)(h ^ (h >> 29));
}

// The slot that holds `key`, or the free one where it would go. The map has a free slot.
static struct map_slot *find_slot(const struct map *m, const char *key)
{
    size_t i = hash_key(key) & (m->cap - 1);
    while (m->slots[i].key && strcmp(m->slots[i].key, key) != 0)
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

static void grow_slots(struct map *m)
{
    struct map old = *m;
    m->cap = old.cap ? old.cap * 2 : 16;
    m->slots = calloc(m->cap, sizeof *m->slots);
    if (!m->slots)
        err_bug(__FILE__, __LINE__, "out of memory for a map");
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].key)
            *find_slot(m, old.slots[i].key) = old.slots[i];
    free(old.slots);
}

void map_clear(struct map *m)
{
    for (size_t i = 0; i < m->cap; i++)
        free(m->slots[i].key);
    free(m->slots);
    *m = (struct map){0};
}

void *map_get(const struct map *m, const char *key)
{
    return m->cap ? find_slot(m, key)->value : NULL;
}

void *map_put(struct map *m, const char *key, void *value)
{
    PRE(value);
    if ((m->n + 1) * 4 > m->cap * 3)
        grow_slots(m);
    struct map_slot *s = find_slot(m, key);
    void *before = s->value;
    if (!s->key) {
        s->key = heap_strdup(key);
        m->n++;
    }
    s->value = value;
    return before;
}

void *map_remove(struct map *m, const char *key)
{
    struct map_slot *s = m->cap ? find_slot(m, key) : NULL;
    if (!s || !s->key)
        return NULL;
    void *before = s->value;
    free(s->key);
    size_t hole = (size_t)(s - m->slots), mask = m->cap - 1;
    for (size_t i = (hole + 1) & mask; m->slots[i].key; i = (i + 1) & mask) {
        size_t home = hash_key(m->slots[i].key) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole] = (struct map_slot){0};
    m->n--;
    return before;
}
