// SPDX-License-Identifier: Apache-2.0
// Writing .npz files. See npz.h.
//
//   an entry        30 bytes, name, 20 bytes of zip64 sizes; the .npy head; the elements
//   ... entries, one after the other; then for each
//   the contents    46 bytes, name, 28 bytes of zip64 sizes and place
//   the end         56 and 20 bytes of zip64, 22 bytes
//
// All numbers are little-endian. A checksum stands in front of what it is of: it is written when the
// array has ended.
#include "common/weights/npz.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { VERSION_ZIP64 = 45, NPY_ALIGN = 64, CRC_AT = 14 };

static void put_le(struct buf *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_putc(to, (char)(x >> (8 * i) & 0xff));
}

// ---- entries -------------------------------------------------------------------------------------

int npz_open(struct npz *z, int dirfd, const char *name, struct err *e)
{
    *z = (struct npz){0};
    return stream_create(&z->file, dirfd, name, e);
}

// What an entry and its line of the contents have in common.
static void put_common(struct buf *to, uint32_t crc, size_t name, int extra)
{
    put_le(to, VERSION_ZIP64, 2);
    put_le(to, 0, 2); // flags
    put_le(to, 0, 2); // stored
    put_le(to, 0, 2); // time and date: the first of 1980
    put_le(to, 1 << 5 | 1, 2);
    put_le(to, crc, 4);
    put_le(to, UINT32_MAX, 4); // sizes: in the extra field
    put_le(to, UINT32_MAX, 4);
    put_le(to, name, 2);
    put_le(to, (uint64_t)extra, 2);
}

int npz_begin(struct npz *z, const char *name, const struct shape *shape, struct err *e)
{
    struct buf head = {0}, npy = {0}, text = {0};
    uint64_t bytes = sizeof(float);
    buf_puts(&text, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int d = 0; d < shape->n; d++) {
        buf_printf(&text, "%" PRId64 "%s", shape->dim[d],
                   d + 1 < shape->n ? ", "
                   : shape->n == 1  ? ","
                                    : "");
        bytes *= (uint64_t)shape->dim[d];
    }
    buf_puts(&text, "), }");
    while ((text.len + 11) % NPY_ALIGN)
        buf_putc(&text, ' ');
    buf_putc(&text, '\n');
    buf_append(&npy, "\x93NUMPY\x01\x00", 8);
    put_le(&npy, text.len, 2);
    buf_append(&npy, text.data, text.len);
    snprintf(z->name, sizeof z->name, "%s.npy", name);
    z->at = stream_tell(&z->file);
    z->bytes = bytes + npy.len;
    z->crc = (uint32_t)crc32_z(0, (const unsigned char *)npy.data, npy.len);
    put_le(&head, 0x04034b50, 4);
    put_common(&head, 0, strlen(z->name), 20);
    buf_puts(&head, z->name);
    put_le(&head, 1, 2); // zip64
    put_le(&head, 16, 2);
    put_le(&head, z->bytes, 8);
    put_le(&head, z->bytes, 8);
    buf_append(&head, npy.data, npy.len);
    int rc = stream_write(&z->file, head.data, head.len, e);
    buf_clear(&head);
    buf_clear(&npy);
    buf_clear(&text);
    return rc;
}

int npz_put(struct npz *z, const void *bytes, uint64_t n, struct err *e)
{
    z->crc = (uint32_t)crc32_z(z->crc, bytes, n);
    return stream_write(&z->file, bytes, n, e);
}

int npz_end(struct npz *z, struct err *e)
{
    struct buf crc = {0};
    put_le(&crc, z->crc, 4);
    int rc = pwrite(z->file.fd, crc.data, 4, (off_t)z->at + CRC_AT) == 4
                 ? 0
                 : err_errno(e, ERR_IO, "cannot write");
    buf_clear(&crc);
    put_le(&z->central, 0x02014b50, 4);
    put_le(&z->central, VERSION_ZIP64, 2);
    put_common(&z->central, z->crc, strlen(z->name), 28);
    put_le(&z->central, 0, 2); // no comment; disk 0; attributes
    put_le(&z->central, 0, 2);
    put_le(&z->central, 0, 2);
    put_le(&z->central, 0, 4);
    put_le(&z->central, UINT32_MAX, 4); // the place: in the extra field
    buf_puts(&z->central, z->name);
    put_le(&z->central, 1, 2);
    put_le(&z->central, 24, 2);
    put_le(&z->central, z->bytes, 8);
    put_le(&z->central, z->bytes, 8);
    put_le(&z->central, z->at, 8);
    z->entries++;
    return rc;
}

static void put_end(struct npz *z, uint64_t at, uint64_t bytes)
{
    struct buf *to = &z->central;
    put_le(to, 0x06064b50, 4); // zip64's end
    put_le(to, 44, 8);
    put_le(to, VERSION_ZIP64, 2);
    put_le(to, VERSION_ZIP64, 2);
    put_le(to, 0, 8);
    put_le(to, z->entries, 8);
    put_le(to, z->entries, 8);
    put_le(to, bytes, 8);
    put_le(to, at, 8);
    put_le(to, 0x07064b50, 4); // where it is
    put_le(to, 0, 4);
    put_le(to, at + bytes, 8);
    put_le(to, 1, 4);
    put_le(to, 0x06054b50, 4); // the end
    put_le(to, 0, 4);
    put_le(to, UINT16_MAX, 2);
    put_le(to, UINT16_MAX, 2);
    put_le(to, UINT32_MAX, 4);
    put_le(to, UINT32_MAX, 4);
    put_le(to, 0, 2);
}

int npz_close(struct npz *z, int rc, struct err *e)
{
    uint64_t at = stream_tell(&z->file);
    put_end(z, at, z->central.len);
    if (!rc)
        rc = stream_write(&z->file, z->central.data, z->central.len, e);
    if (!rc)
        rc = stream_sync(&z->file, e);
    int closed = stream_close(&z->file, rc ? NULL : e);
    buf_clear(&z->central);
    return rc ? rc : closed;
}
