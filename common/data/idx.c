// SPDX-License-Identifier: Apache-2.0
// The header of idx files, the format of MNIST and its successors:
//
//   byte 0  00 00          magic
//        2  type           08 u8, 09 i8, 0b i16, 0c i32, 0d f32, 0e f64
//        3  dimensions     1 …
//        4  big-endian u32 for each dimension
//        …  elements, big-endian, row-major
//
// u8, i32 and f32 are read; the others are refused by name: no data set that weft trains on has
// them, and a silent conversion would double the memory a gather moves.
#include "common/data/array_format.h"

enum { IDX_HEAD = 4 };

static const struct {
    const char *name;
    bool known, read;
    enum array_type type;
} idx_types[256] = {
    [0x08] = {"u8", true, true, ARRAY_U8},   [0x09] = {"i8", true, false, 0},
    [0x0b] = {"i16", true, false, 0},        [0x0c] = {"i32", true, true, ARRAY_I32},
    [0x0d] = {"f32", true, true, ARRAY_F32}, [0x0e] = {"f64", true, false, 0},
};

int idx_parse(struct array *a, struct err *e)
{
    const unsigned char *f = a->file;
    if (a->file_len < IDX_HEAD)
        return err_set(e, ERR_DATA, "%s: byte %zu: the file ends inside the idx header", a->path,
                       a->file_len);
    if (!idx_types[f[2]].known)
        return err_set(e, ERR_DATA, "%s: byte 2: no idx element type 0x%02x", a->path, f[2]);
    if (!idx_types[f[2]].read)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 2: idx elements are %s; u8, i32, f32 are read",
                       a->path, idx_types[f[2]].name);
    if (f[3] < 1 || f[3] > MAX_DIMS)
        return err_set(e, ERR_DATA, "%s: byte 3: %d dimensions, 1 to %d are read", a->path, f[3],
                       MAX_DIMS);
    a->offset = IDX_HEAD + 4 * (size_t)f[3];
    if (a->file_len < a->offset)
        return err_set(e, ERR_DATA, "%s: byte %zu: the file ends inside the sizes of %d dimensions",
                       a->path, a->file_len, f[3]);
    a->type = idx_types[f[2]].type;
    a->big_endian = array_type_size(a->type) > 1;
    a->shape.n = f[3];
    for (int i = 0; i < a->shape.n; i++)
        for (int k = 0; k < 4; k++) // big-endian
            a->shape.dim[i] = a->shape.dim[i] << 8 | f[IDX_HEAD + 4 * i + k];
    return 0;
}
