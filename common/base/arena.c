// SPDX-License-Identifier: Apache-2.0
// An arena of doubling blocks. See arena.h.
#include "common/base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

enum { ALIGN = 16, FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

void arena_clear(struct arena *a)
{
    while (a->head) {
        struct arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->bytes = 0;
}

static struct arena_block *add_block(struct arena *a, size_t need)
{
    size_t size = a->head ? a->head->size * 2 : FIRST_BLOCK;
    if (size > LARGEST_BLOCK)
        size = LARGEST_BLOCK;
    if (size < need)
        size = need;
    struct arena_block *b = calloc(1, sizeof *b + size);
    if (!b)
        err_bug(__FILE__, __LINE__, "out of memory for control structures");
    b->size = size;
    b->next = a->head;
    a->head = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    PRE(bytes <= SIZE_MAX / 4);
    size_t need = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct arena_block *b = a->head;
    if (!b || b->size - b->used < need)
        b = add_block(a, need);
    void *p = b->data + b->used;
    b->used += need;
    a->bytes += need;
    return p;
}

void *arena_dup(struct arena *a, const void *src, size_t bytes)
{
    void *p = arena_alloc(a, bytes);
    if (bytes)
        memcpy(p, src, bytes);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_dup(a, s, strlen(s) + 1);
}

char *arena_vprintf(struct arena *a, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    PRE(n >= 0);
    char *s = arena_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *s = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return s;
}

void *arena_grow(struct arena *a, void *array, size_t elem, int n, int *cap)
{
    if (n < *cap)
        return array;
    int more = *cap ? *cap * 2 : 8;
    void *p = arena_alloc(a, elem * (size_t)more);
    if (n)
        memcpy(p, array, elem * (size_t)n);
    *cap = more;
    return p;
}
