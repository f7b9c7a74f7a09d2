// SPDX-License-Identifier: Apache-2.0
// The header of npy files, versions 1.0 and 2.0:
//
//   byte 0  93 'NUMPY'     magic
//        6  major, minor   01 00 or 02 00
//        8  header length  little-endian, u16 (1.0) or u32 (2.0)
//   10, 12  header         {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), }
//                          then blanks and a newline
//        …  elements
//
// The header is a Python literal; exactly this dict is read, its three keys in any order. Version
// 3.0 exists for structured elements with foreign names only and is refused with them.
#include <string.h>

#include "common/data/array_format.h"

enum { NPY_MAX_HEADER = 64 * 1024, NPY_TEXT = 32 };

static const struct {
    const char *descr;
    enum array_type type;
} npy_types[] = {
    {"|u1", ARRAY_U8},  {"<i4", ARRAY_I32}, {"<i8", ARRAY_I64},
    {"<f4", ARRAY_F32}, {"<u2", ARRAY_U16}, {"<u4", ARRAY_U32},
};

struct npy_cursor {
    struct array *a;
    struct err *e;
    size_t at, end; // offsets in the file; what is read lies in [at, end)
};

static int reject_header(const struct npy_cursor *c, const char *what)
{
    return err_set(c->e, ERR_DATA, "%s: byte %zu: npy header: %s", c->a->path, c->at, what);
}

// The next byte that is no blank, or −1 at the header's end. Does not pass it.
static int peek_byte(struct npy_cursor *c)
{
    while (c->at < c->end) {
        unsigned char b = c->a->file[c->at];
        if (b != ' ' && b != '\t' && b != '\n')
            return b;
        c->at++;
    }
    return -1;
}

static bool take_byte(struct npy_cursor *c, char want)
{
    if (peek_byte(c) != want)
        return false;
    c->at++;
    return true;
}

// A quoted string without escapes.
static int read_string(struct npy_cursor *c, char out[NPY_TEXT])
{
    int quote = peek_byte(c);
    if (quote != '\'' && quote != '"')
        return reject_header(c, "a quoted string is expected");
    size_t n = 0;
    for (size_t i = c->at + 1; i < c->end && n < NPY_TEXT - 1; i++) {
        unsigned char b = c->a->file[i];
        if (b == quote) {
            out[n] = 0;
            c->at = i + 1;
            return 0;
        }
        if (b < 0x20 || b > 0x7e || b == '\\')
            break;
        out[n++] = (char)b;
    }
    return reject_header(c, "a string that does not end or is none of npy's");
}

static int read_descr(struct npy_cursor *c)
{
    char text[NPY_TEXT];
    if (peek_byte(c) == '[')
        return err_set(c->e, ERR_UNSUPPORTED, "%s: byte %zu: structured elements are not read",
                       c->a->path, c->at);
    size_t start = c->at;
    int rc = read_string(c, text);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof npy_types / sizeof *npy_types; i++)
        if (strcmp(text, npy_types[i].descr) == 0) {
            c->a->type = npy_types[i].type;
            return 0;
        }
    const char *why = text[0] == '>'                        ? "big-endian elements"
                      : strchr(text, 'O') != NULL           ? "Python objects"
                      : strcspn(text, "SUV") < strlen(text) ? "strings and raw bytes"
                                                            : "elements of this type";
    return err_set(c->e, ERR_UNSUPPORTED,
                   "%s: byte %zu: %s ('%s') are not read; |u1, <i4, <i8 and <f4 are", c->a->path,
                   start, why, text);
}

static int read_order(struct npy_cursor *c)
{
    static const char yes[] = "True", no[] = "False";
    peek_byte(c);
    size_t left = c->end - c->at;
    const unsigned char *p = c->a->file + c->at;
    if (left >= sizeof no - 1 && memcmp(p, no, sizeof no - 1) == 0) {
        c->at += sizeof no - 1;
        return 0;
    }
    if (left >= sizeof yes - 1 && memcmp(p, yes, sizeof yes - 1) == 0)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "%s: byte %zu: Fortran order is not read; save numpy.ascontiguousarray(x)",
                       c->a->path, c->at);
    return reject_header(c, "True or False is expected");
}

static int read_size(struct npy_cursor *c, int64_t *out)
{
    int b = peek_byte(c);
    if (b < '0' || b > '9')
        return reject_header(c, "a size is expected");
    int64_t v = 0;
    for (; c->at < c->end; c->at++) {
        b = c->a->file[c->at];
        if (b < '0' || b > '9')
            break;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, b - '0', &v))
            return reject_header(c, "a size of more than 2^63");
    }
    *out = v;
    return 0;
}

// A tuple in parentheses: (), (3,), (3, 4) or (3, 4,).
static int read_shape(struct npy_cursor *c)
{
    struct shape *s = &c->a->shape;
    if (!take_byte(c, '('))
        return reject_header(c, "a tuple of sizes is expected");
    bool comma = true;
    while (!take_byte(c, ')')) {
        if (!comma)
            return reject_header(c, "',' or ')' is expected");
        if (s->n == MAX_DIMS)
            return reject_header(c, "more than 8 dimensions");
        int rc = read_size(c, &s->dim[s->n]);
        if (rc)
            return rc;
        s->n++;
        comma = take_byte(c, ',');
    }
    // (3) is a number in Python, no tuple.
    return s->n == 1 && !comma ? reject_header(c, "a shape of one size needs a comma") : 0;
}

static const struct {
    const char *name;
    int (*read)(struct npy_cursor *c);
} npy_keys[] = {
    {"descr", read_descr},
    {"fortran_order", read_order},
    {"shape", read_shape},
};
enum { NPY_KEYS = sizeof npy_keys / sizeof *npy_keys };

// One "key: value"; `seen` has a bit a key.
static int read_entry(struct npy_cursor *c, unsigned *seen)
{
    char key[NPY_TEXT];
    size_t start = c->at;
    int rc = read_string(c, key);
    if (rc)
        return rc;
    int k = 0;
    while (k < NPY_KEYS && strcmp(key, npy_keys[k].name) != 0)
        k++;
    if (k == NPY_KEYS || *seen & 1u << k)
        return err_set(c->e, ERR_DATA, "%s: byte %zu: npy header: %s key '%s'", c->a->path, start,
                       k == NPY_KEYS ? "unknown" : "second", key);
    *seen |= 1u << k;
    if (!take_byte(c, ':'))
        return reject_header(c, "':' is expected");
    return npy_keys[k].read(c);
}

static int read_dict(struct npy_cursor *c)
{
    unsigned seen = 0;
    if (!take_byte(c, '{'))
        return reject_header(c, "'{' is expected");
    bool comma = true;
    while (!take_byte(c, '}')) {
        if (!comma)
            return reject_header(c, "',' or '}' is expected");
        int rc = read_entry(c, &seen);
        if (rc)
            return rc;
        comma = take_byte(c, ',');
    }
    for (int k = 0; k < NPY_KEYS; k++)
        if (!(seen & 1u << k))
            return err_set(c->e, ERR_DATA, "%s: byte %zu: npy header: key '%s' is missing",
                           c->a->path, c->at, npy_keys[k].name);
    return peek_byte(c) == -1 ? 0 : reject_header(c, "text behind the closing '}'");
}

// Finds where the dict lies.
static int find_header(struct npy_cursor *c)
{
    const unsigned char *f = c->a->file;
    size_t len = c->a->file_len;
    c->at = len;
    if (len < 8)
        return reject_header(c, "the file ends before the version");
    c->at = 6;
    if ((f[6] != 1 && f[6] != 2) || f[7] != 0)
        return err_set(c->e, ERR_UNSUPPORTED, "%s: byte 6: npy version %d.%d; 1.0 and 2.0 are read",
                       c->a->path, f[6], f[7]);
    size_t at = f[6] == 1 ? 10 : 12;
    c->at = len;
    if (len < at)
        return reject_header(c, "the file ends before the header's length");
    size_t size = (size_t)f[8] | (size_t)f[9] << 8;
    if (f[6] == 2)
        size |= (size_t)f[10] << 16 | (size_t)f[11] << 24;
    c->at = 8;
    if (size > NPY_MAX_HEADER)
        return reject_header(c, "a header of more than 64 KiB");
    c->at = len;
    if (size > len - at)
        return reject_header(c, "the file ends inside it");
    c->at = at;
    c->end = at + size;
    return 0;
}

int npy_parse(struct array *a, struct err *e)
{
    struct npy_cursor c = {.a = a, .e = e};
    int rc = find_header(&c);
    if (rc)
        return rc;
    a->offset = c.end;
    return read_dict(&c);
}
