// SPDX-License-Identifier: Apache-2.0
// Data files for tests, written byte by byte from the formats' specifications, and removed again.
// The bytes lie in a fresh directory under $TMPDIR or /tmp.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"

struct datafile {
    char dir[256], path[300];
};

static inline void datafile_write(struct datafile *f, const void *bytes, size_t len)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%s/weft-data-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(f->dir))
        abort();
    snprintf(f->path, sizeof f->path, "%s/file", f->dir);
    FILE *out = fopen(f->path, "wb");
    if (!out || fwrite(bytes, 1, len, out) != len || fclose(out) != 0)
        abort();
}

static inline void datafile_remove(struct datafile *f)
{
    unlink(f->path);
    rmdir(f->dir);
}

// An idx header: 00 00 type ndim, then each size as four bytes, the greatest first.
static inline void idx_header(struct buf *b, unsigned char type, int ndim, const uint32_t *dims)
{
    buf_append(b, (unsigned char[]){0, 0, type, (unsigned char)ndim}, 4);
    for (int i = 0; i < ndim; i++)
        for (int shift = 24; shift >= 0; shift -= 8)
            buf_putc(b, (char)(dims[i] >> shift & 0xff));
}

// An npy header of version 1.0 or 2.0 around `dict`, padded as numpy does to a multiple of 64.
static inline void npy_header(struct buf *b, int major, const char *dict)
{
    size_t head = major == 1 ? 10 : 12, len = strlen(dict) + 1;
    size_t pad = (64 - (head + len) % 64) % 64;
    buf_append(b, "\x93NUMPY", 6);
    buf_append(b, (unsigned char[]){(unsigned char)major, 0}, 2);
    for (size_t i = 0; i < (major == 1 ? 2u : 4u); i++)
        buf_putc(b, (char)((len + pad) >> 8 * i & 0xff));
    buf_puts(b, dict);
    for (size_t i = 0; i < pad; i++)
        buf_putc(b, ' ');
    buf_putc(b, '\n');
}
