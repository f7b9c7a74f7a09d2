// SPDX-License-Identifier: Apache-2.0
// Arrays in files: recognition by magic, mapping, sizes, element access. See array.h; the headers
// themselves are read in idx.c, npy.c and llmc.c.
#include "common/data/array.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/heap.h"
#include "common/base/root.h"
#include "common/base/utf8.h"
#include "common/data/array_format.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are taken from little-endian files without a swap"
#endif

// What a file can begin with. Rows without a reader are formats that people try; they are refused
// by name. `raw` is the refusal where the file should hold nothing but token ids; null: such ids
// may well begin so.
static const struct format {
    const char *magic;
    size_t len;
    const char *name;
    int (*parse)(struct array *a, struct err *e);
    const char *refusal, *raw;
} formats[] = {
    {"\0\0", 2, "idx", idx_parse, NULL, NULL},
    {"\x93NUMPY", 6, "npy", npy_parse, NULL, NULL},
    {LLMC_U16, 4, "llm.c", llmc_parse, NULL, NULL},
    {LLMC_U32, 4, "llm.c", llmc_parse, NULL, NULL},
    {LLMC_GPT2, 4, "llm.c", NULL, "weights of llm.c's, no tokens", "weights of llm.c's, no tokens"},
    {LLMC_LLAMA, 4, "llm.c", NULL, "weights of llm.c's, no tokens",
     "weights of llm.c's, no tokens"},
    {LLMC_HELLASWAG, 4, "llm.c", NULL, "questions of llm.c's evaluation, no tokens",
     "questions of llm.c's evaluation, no tokens"},
    {"\x1f\x8b\x08", 3, "gzip", NULL, "compressed with gzip: gunzip it first",
     "compressed with gzip: gunzip it first"},
    {"PK\3\4", 4, "zip", NULL, "a zip archive (npz): save each array as a .npy file",
     "a zip archive: take the files out of it first"},
};

static const struct format *find_format(const struct array *a)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (a->file_len >= formats[i].len && memcmp(a->file, formats[i].magic, formats[i].len) == 0)
            return &formats[i];
    return NULL;
}

// Multiplies the shape out and compares with what the file holds.
static int check_length(struct array *a, struct err *e)
{
    uint64_t count = 1, bytes, end;
    for (int i = 0; i < a->shape.n; i++)
        if (__builtin_mul_overflow(count, (uint64_t)a->shape.dim[i], &count) || count > INT64_MAX)
            return err_set(e, ERR_DATA, "%s: byte %zu: %d dimensions multiply to more than 2^63",
                           a->path, a->offset, a->shape.n);
    if (__builtin_mul_overflow(count, array_type_size(a->type), &bytes) ||
        __builtin_add_overflow(bytes, a->offset, &end))
        return err_set(e, ERR_DATA, "%s: byte %zu: %llu elements are more bytes than 2^64", a->path,
                       a->offset, (unsigned long long)count);
    if (end != a->file_len)
        return err_set(e, ERR_DATA,
                       "%s: byte %zu: the file ends here, but its header asks for %llu elements of "
                       "%s from byte %zu, %llu bytes in all",
                       a->path, a->file_len, (unsigned long long)count, array_type_name(a->type),
                       a->offset, (unsigned long long)end);
    a->count = count;
    a->data = a->file + a->offset;
    return 0;
}

// Whether the file begins as a text does: characters of UTF-8, and of ASCII's controls only those that
// part words and lines.
static bool is_text(const struct array *a)
{
    enum { LOOK = 4096, CHARACTER = 4 };
    size_t at = 0, end = a->file_len < LOOK ? a->file_len : LOOK - CHARACTER;
    while (at < end) {
        unsigned char c = a->file[at];
        size_t n = utf8_length((const char *)a->file + at, a->file_len - at);
        if (!n || c == 0x7f || (c < ' ' && (c < '\t' || c > '\r')))
            return false;
        at += n;
    }
    return at > 0;
}

#define PREPARE "`weft data prepare FILE --out DIR` makes tokens of text"

int array_parse(struct array *a, struct err *e)
{
    const struct format *f = find_format(a);
    if (!f && is_text(a))
        return err_set(e, ERR_DATA,
                       "%s: this is text, no array and no tokens: " PREPARE
                       ", `weft plan` reads job files",
                       a->path);
    if (!f)
        return err_set(e, ERR_DATA, "%s: byte 0: %s", a->path,
                       a->file_len
                           ? "neither idx (00 00) nor npy (93 'NUMPY') nor llm.c's tokens; "
                             "`weft data` inspects nothing but token ids with --ids, and prepares "
                             "tokens of text"
                           : "the file is empty");
    if (!f->parse)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 0: %s", a->path, f->refusal);
    a->format = f->name;
    int rc = f->parse(a, e);
    if (rc)
        return rc;
    return check_length(a, e);
}

static int check_npy_tokens(const struct array *a, struct err *e)
{
    if (a->shape.n == 1 && (a->type == ARRAY_U16 || a->type == ARRAY_U32))
        return 0;
    return err_set(
        e, ERR_UNSUPPORTED,
        "%s: byte 10: %d dimensions of %s: token ids are one row of u16 or u32 (in numpy, "
        "x.reshape(-1).astype('uint32'))",
        a->path, a->shape.n, array_type_name(a->type));
}

// A file of nothing but elements.
static int parse_raw(struct array *a, enum array_type type, struct err *e)
{
    const struct format *f = find_format(a);
    bool said = type != ARRAY_TYPE_COUNT;
    type = said ? type : ARRAY_U16;
    size_t size = array_type_size(type);
    if (f && f->parse == llmc_parse)
        return array_parse(a, e);
    if (f && f->parse == npy_parse) {
        int rc = array_parse(a, e);
        return rc ? rc : check_npy_tokens(a, e);
    }
    if (f && f->raw)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 0: %s", a->path, f->raw);
    if (!a->file_len)
        return err_set(e, ERR_DATA, "%s: byte 0: the file is empty", a->path);
    if (!said && is_text(a))
        return err_set(e, ERR_DATA,
                       "%s: this is text, not token ids: " PREPARE
                       " (should it be ids all the same, say data.ids: u16)",
                       a->path);
    a->format = "raw";
    a->type = type;
    a->shape = (struct shape){1, {(int64_t)(a->file_len / size)}};
    if (a->file_len % size)
        return err_set(e, ERR_DATA,
                       "%s: byte %zu: the file ends here, not a whole number of %s: it is cut off, "
                       "or data.ids is another",
                       a->path, a->file_len, array_type_name(type));
    return check_length(a, e);
}

int array_map(struct array *a, const char *root, const char *path, struct err *e)
{
    struct stat st;
    *a = (struct array){.path = heap_strdup(path)};
    // A pipe of that name must not hang the open; regular files ignore the flag.
    int rc = root_open(root, path, O_RDONLY | O_NONBLOCK, 0, &a->fd, e);
    if (rc) {
        array_close(a);
        return rc;
    }
    a->mapped = true;
    if (fstat(a->fd, &st) != 0)
        rc = err_errno(e, ERR_IO, "cannot stat %s", path);
    else if (S_ISDIR(st.st_mode))
        rc = err_set(e, ERR_DATA,
                     "%s: a folder, not a regular file: name the files in it, as '%s/train-*.bin'",
                     path, path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(e, ERR_DATA, "%s: not a regular file", path);
    if (!rc && st.st_size > 0) {
        void *m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, a->fd, 0);
        if (m == MAP_FAILED)
            rc = err_errno(e, ERR_IO, "cannot map %s", path);
        else {
            a->file = m;
            a->file_len = (size_t)st.st_size;
        }
    }
    if (rc)
        array_close(a);
    return rc;
}

int array_open(struct array *a, const char *path, struct err *e)
{
    return array_open_beneath(a, NULL, path, e);
}

int array_open_beneath(struct array *a, const char *root, const char *path, struct err *e)
{
    int rc = array_map(a, root, path, e);
    if (rc == 0)
        rc = array_parse(a, e);
    if (rc)
        array_close(a);
    return rc;
}

int array_open_raw(struct array *a, const char *root, const char *path, enum array_type type,
                   struct err *e)
{
    int rc = array_map(a, root, path, e);
    if (!rc)
        rc = parse_raw(a, type, e);
    if (rc)
        array_close(a);
    return rc;
}

void array_close(struct array *a)
{
    if (a->mapped) {
        if (a->file_len)
            munmap((void *)(uintptr_t)a->file, a->file_len);
        close(a->fd);
    }
    free(a->path);
    *a = (struct array){0};
}

int array_check(const struct array *a, struct err *e)
{
    struct stat st;
    if (!a->mapped)
        return 0;
    if (fstat(a->fd, &st) != 0)
        return err_errno(e, ERR_IO, "cannot stat %s", a->path);
    if ((uint64_t)st.st_size < a->file_len)
        return err_set(e, ERR_DATA, "%s: byte %lld: the file was cut here while in use, it had %zu",
                       a->path, (long long)st.st_size, a->file_len);
    return 0;
}

static uint32_t load_u32(const struct array *a, uint64_t i)
{
    uint32_t w;
    memcpy(&w, a->data + i * sizeof w, sizeof w);
    return a->big_endian ? __builtin_bswap32(w) : w;
}

static uint64_t load_u64(const struct array *a, uint64_t i)
{
    uint64_t w;
    memcpy(&w, a->data + i * sizeof w, sizeof w);
    return a->big_endian ? __builtin_bswap64(w) : w;
}

int64_t array_int(const struct array *a, uint64_t i)
{
    PRE(i < a->count && array_type_is_int(a->type));
    if (a->type == ARRAY_U8)
        return a->data[i];
    if (a->type == ARRAY_U16) {
        uint16_t w;
        memcpy(&w, a->data + i * sizeof w, sizeof w);
        return w;
    }
    if (a->type == ARRAY_U32)
        return load_u32(a, i);
    return a->type == ARRAY_I32 ? (int32_t)load_u32(a, i) : (int64_t)load_u64(a, i);
}

double array_real(const struct array *a, uint64_t i)
{
    if (array_type_is_int(a->type))
        return (double)array_int(a, i);
    PRE(i < a->count);
    uint32_t w = load_u32(a, i);
    float f;
    memcpy(&f, &w, sizeof f);
    return (double)f;
}

void array_copy(const struct array *a, uint64_t first, uint64_t count, void *out)
{
    PRE(first <= a->count && count <= a->count - first);
    size_t size = array_type_size(a->type);
    if (!a->big_endian) {
        memcpy(out, a->data + first * size, count * size);
        return;
    }
    PRE(size == 4); // idx has no integer of eight bytes
    unsigned char *to = out;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t w = load_u32(a, first + i);
        memcpy(to + i * sizeof w, &w, sizeof w);
    }
}
