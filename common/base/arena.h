// SPDX-License-Identifier: Apache-2.0
// An arena: memory with one lifetime (a job, a graph, a request), freed whole.
//
// Allocations are zeroed and never fail: these are small control structures, and a process that
// cannot get a few kilobytes has nothing left to decide; it aborts and its supervisor restarts it.
// Tensor memory, staging and file contents are not allocated here. One thread at a time.
#pragma once
#include <stdarg.h>
#include <stddef.h>

struct arena_block;
struct arena {
    struct arena_block *head;
    size_t bytes; // handed out so far
};

void arena_init(struct arena *a);
void arena_clear(struct arena *a); // frees everything; the arena may be used again

void *arena_alloc(struct arena *a, size_t bytes);                // 16-byte aligned, zeroed
void *arena_dup(struct arena *a, const void *src, size_t bytes); // a copy
char *arena_strdup(struct arena *a, const char *s);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(struct arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

#define arena_new(a, type)      ((type *)arena_alloc((a), sizeof(type)))
#define arena_array(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

// Doubles an arena-owned array when `n` has reached `*cap` (the old copy stays until the clear).
void *arena_grow(struct arena *a, void *array, size_t elem, int n, int *cap);
