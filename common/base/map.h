// SPDX-License-Identifier: Apache-2.0
// A hash map from strings to pointers, open addressing. It copies the keys and borrows the values.
#pragma once
#include <stddef.h>

struct map_slot {
    char *key; // null: free
    void *value;
};
struct map {
    struct map_slot *slots;
    size_t n, cap;
};

void map_clear(struct map *m);                       // a zeroed map is empty and safe to clear
void *map_get(const struct map *m, const char *key); // null when absent
// Sets key to value (not null) and returns what was there before, or null.
void *map_put(struct map *m, const char *key, void *value);
void *map_remove(struct map *m, const char *key); // what was there, or null
