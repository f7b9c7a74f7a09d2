// SPDX-License-Identifier: Apache-2.0
// A growable run of bytes that owns its memory; always followed by a zero byte, so text reads as a
// C string. A zeroed struct is empty and safe to clear.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct buf {
    char *data; // never null after the first append
    size_t len, cap;
};

void buf_clear(struct buf *b); // frees
void buf_reset(struct buf *b); // empties, keeps the memory
void buf_reserve(struct buf *b, size_t more);
void buf_append(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap);
const char *buf_str(const struct buf *b);      // "" when empty
void buf_bytes(struct buf *b, uint64_t bytes); // "512 B", "1.5 GiB"
// Copies the text into the arena and clears the buffer.
const char *buf_keep(struct buf *b, struct arena *a);
// How many columns a text takes on a terminal: its characters, not its bytes.
int text_columns(const char *utf8);
