// SPDX-License-Identifier: Apache-2.0
// A growable run of bytes. See buf.h.
#include "common/base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/err.h"

void buf_clear(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}

void buf_reserve(struct buf *b, size_t more)
{
    PRE(more < SIZE_MAX / 4);
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    b->data = realloc(b->data, cap);
    if (!b->data)
        err_bug(__FILE__, __LINE__, "out of memory for a buffer");
    b->cap = cap;
    b->data[b->len] = 0;
}

void buf_append(struct buf *b, const void *data, size_t len)
{
    buf_reserve(b, len);
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    buf_reserve(b, 0);
    size_t room = b->cap - b->len;
    int n = vsnprintf(b->data + b->len, room, fmt, ap);
    PRE(n >= 0);
    if ((size_t)n >= room) {
        buf_reserve(b, (size_t)n);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
    }
    va_end(again);
    b->len += (size_t)n;
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

void buf_bytes(struct buf *b, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    enum { LARGEST = sizeof units / sizeof *units - 1 };
    double n = (double)bytes;
    int u = 0;
    for (; n >= 1023.95 && u < LARGEST; u++)
        n /= 1024;
    buf_printf(b, u ? "%.1f %s" : "%.0f %s", n, units[u]);
}

const char *buf_keep(struct buf *b, struct arena *a)
{
    const char *text = arena_dup(a, buf_str(b), b->len + 1);
    buf_clear(b);
    return text;
}

int text_columns(const char *utf8)
{
    int n = 0;
    for (; *utf8; utf8++)
        n += (*utf8 & 0xc0) != 0x80;
    return n;
}
