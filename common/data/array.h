// SPDX-License-Identifier: Apache-2.0
// One array of numbers in a file: its element type, its shape, and a pointer to its elements.
// Inside common/data/ only.
//
// array_open() maps the file (read-only, private) and recognises the format by its first bytes:
//
//   idx     00 00 TYPE NDIM, NDIM big-endian u32 sizes, elements big-endian, row-major
//   npy     93 'NUMPY' MAJOR MINOR, header length, a Python dict as text, elements row-major
//   llm.c   256 little-endian i32: magic 20240520 (u16) or 20240801 (u32), version 1 or 7, number
//           of tokens, zeros; then the ids
//
// array_open_raw() takes a file that is nothing but elements. Nothing is copied: `data` points into
// the mapping, possibly unaligned and, for idx files of more than one byte an element, in
// big-endian order; array_int(), array_real() and array_copy() hide both. A file is accepted only
// if header and elements are exactly its length.
//
// Not here: compressed files (.gz, .npz are refused by name), writing, Fortran order, strings and
// structured elements.
//
// A mapped file that shrinks raises SIGBUS when its lost pages are touched. So whoever reads
// elements calls array_check() first, once a batch: it asks the system for the length again and
// fails with ERR_DATA. A file cut between that call and the read of the same batch still kills the
// process, as does a medium that fails; both are the supervisor's business.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/op/op.h"

// X(name, text, bytes, is integer)
// clang-format off
#define ARRAY_TYPES(X)      \
    X(U8,  "u8",  1, true)  \
    X(I32, "i32", 4, true)  \
    X(I64, "i64", 8, true)  \
    X(F32, "f32", 4, false) \
    X(U16, "u16", 2, true)  \
    X(U32, "u32", 4, true)
// clang-format on
enum array_type {
#define X(name, text, bytes, integer) ARRAY_##name,
    ARRAY_TYPES(X)
#undef X
        ARRAY_TYPE_COUNT
};
const char *array_type_name(enum array_type t); // "u8"
size_t array_type_size(enum array_type t);
bool array_type_is_int(enum array_type t);

struct array {
    char *path;                // owned; for messages
    const char *format;        // "idx", "npy", "llm.c" or "raw"
    enum array_type type;      // of an element
    bool big_endian;           // elements of more than one byte
    struct shape shape;        // n = 0 is a single number (npy)
    uint64_t count;            // elements: the product of the shape
    size_t offset;             // of the first element in the file
    const unsigned char *data; // file + offset
    const unsigned char *file; // the whole file
    size_t file_len;           // at open
    int fd;                    // meaningful while `mapped`
    bool mapped;
};

// Opens and maps. ERR_NOTFOUND, ERR_IO from the system; ERR_DATA with path and byte offset for a
// file that is not what it claims; ERR_UNSUPPORTED for a valid one that weft does not read.
// After a failure there is nothing to close.
int array_open(struct array *a, const char *path, struct err *e);
// As array_open, but for a path that must stay beneath `root` (base/root.h); null: no root.
int array_open_beneath(struct array *a, const char *root, const char *path, struct err *e);
// A file of tokens: nothing but little-endian elements of `type`; one of llm.c's, and an npy file of one
// row of u16 or u32, are taken for what they are.
// ARRAY_TYPE_COUNT: nobody has said the type, which is u16, and a file that is text is refused.
int array_open_raw(struct array *a, const char *root, const char *path, enum array_type type,
                   struct err *e);
// Opens and maps the file, and looks at nothing in it: `file` and `file_len` are set.
int array_map(struct array *a, const char *root, const char *path, struct err *e);
// What array_open() does once `path`, `file` and `file_len` are set. Closed even if refused.
int array_parse(struct array *a, struct err *e);
void array_close(struct array *a); // a zeroed or closed one is fine

// ERR_DATA if the file has become shorter than it was at open.
int array_check(const struct array *a, struct err *e);

// Element `i` < count. array_int() is for integer types only; array_real() for all.
int64_t array_int(const struct array *a, uint64_t i);
double array_real(const struct array *a, uint64_t i);
// Elements [first, first + count) to `out`, in the element type and this machine's byte order.
void array_copy(const struct array *a, uint64_t first, uint64_t count, void *out);
