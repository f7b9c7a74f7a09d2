// SPDX-License-Identifier: Apache-2.0
// Tokens and merges. See vocabulary.h.
#include "common/tokenizer/vocabulary.h"

#include <stdlib.h>

#include "common/base/entropy.h"
#include "common/base/heap.h"

// A power of two, at least twice as many: half of the slots stay free.
static size_t count_slots(size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

void vocabulary_init(struct vocabulary *v, size_t tokens, size_t n, size_t merges)
{
    size_t slots = count_slots(tokens), merge_slots = count_slots(merges);
    *v = (struct vocabulary){.n = n, .mask = slots - 1, .merge_mask = merge_slots - 1};
    if (entropy_bytes(&v->seed, sizeof v->seed, NULL))
        v->seed = 1; // a file may then choose, and be slow
    v->tokens = heap_alloc((n + 1) * sizeof *v->tokens);
    v->slots = heap_alloc(slots * sizeof *v->slots);
    v->merges = heap_alloc(merge_slots * sizeof *v->merges);
    for (size_t i = 0; i < merge_slots; i++)
        v->merges[i].pair = MERGE_NONE;
}

void vocabulary_clear(struct vocabulary *v)
{
    free(v->tokens);
    free(v->slots);
    free(v->merges);
    *v = (struct vocabulary){0};
}

static size_t find_slot(const struct vocabulary *v, const char *content, size_t bytes)
{
    size_t i = hash_bytes(content, bytes, v->seed) & v->mask;
    for (; v->slots[i]; i = (i + 1) & v->mask) {
        const struct vocabulary_token *t = &v->tokens[v->slots[i] - 1];
        if (t->bytes == bytes && memcmp(t->content, content, bytes) == 0)
            break;
    }
    return i;
}

bool vocabulary_put(struct vocabulary *v, int32_t id, const char *content, size_t bytes)
{
    if (v->tokens[id].content)
        return false;
    v->slots[find_slot(v, content, bytes)] = (uint32_t)id + 1;
    v->tokens[id] = (struct vocabulary_token){content, (uint32_t)bytes};
    v->longest = bytes > v->longest ? bytes : v->longest;
    return true;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *content, size_t bytes)
{
    return (int32_t)v->slots[find_slot(v, content, bytes)] - 1;
}

void vocabulary_merge(struct vocabulary *v, int32_t left, int32_t right, uint32_t rank,
                      int32_t into)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t h = hash_mix(pair ^ v->seed) * 0xbf58476d1ce4e5b9u;
    size_t i = (h ^ h >> 32) & v->merge_mask;
    while (v->merges[i].pair != MERGE_NONE && v->merges[i].pair != pair)
        i = (i + 1) & v->merge_mask;
    v->merges[i] = (struct merge){pair, rank, into};
}
