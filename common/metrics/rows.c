// SPDX-License-Identifier: Apache-2.0
// Rows of metrics.jsonl. See rows.h.
#include "common/metrics/rows.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/heap.h"

enum { READ_BYTES = 1 << 20, DEPTH_MAX = 32 };

void rows_init(struct rows *r, const char *const *keys, int nkeys)
{
    PRE(nkeys >= 0 && nkeys <= ROW_KEYS_MAX);
    *r = (struct rows){.nkeys = nkeys};
    for (int i = 0; i < nkeys; i++)
        r->key[i] = keys[i];
}

void rows_clear(struct rows *r)
{
    free(r->row);
    free(r->value);
    *r = (struct rows){0};
}

// ---- one line ----
//
// Each returns where what it read ends, or null where it is not JSON. All is read once; a line ends
// with a line break, which no value holds, so nothing is read beyond it.

static const char *skip_string(const char *p) // from behind its first quote
{
    static const bool plain[UCHAR_MAX + 1] = {
        [' '] = true, ['!'] = true, ['#' ... '['] = true, [']' ... 255] = true};
    for (;; p++) {
        while (plain[(unsigned char)*p])
            p++;
        if (*p == '"')
            return p + 1;
        if (*p == '\\')
            p++;
        if ((unsigned char)*p < 0x20)
            return NULL;
    }
}

// A number, true, false or null.
static const char *skip_word(const char *p)
{
    static const bool in_word[UCHAR_MAX + 1] = {
        ['0' ... '9'] = true, ['a' ... 'z'] = true, ['-'] = true,
        ['+'] = true,         ['.'] = true,         ['E'] = true};
    const char *from = p;
    while (in_word[(unsigned char)*p])
        p++;
    return p == from ? NULL : p;
}

// Looks through nested lists and objects by their brackets alone.
static const char *skip_value(const char *p)
{
    char open[DEPTH_MAX];
    int depth = 0;
    if (*p != '"' && *p != '[' && *p != '{') // most are numbers
        return skip_word(p);
    do {
        if (*p == '"') {
            p = skip_string(p + 1);
        } else if (*p == '{' || *p == '[') {
            if (depth == DEPTH_MAX)
                return NULL;
            open[depth++] = *p++;
        } else if (*p == '}' || *p == ']') {
            if (!depth || open[--depth] != (*p == '}' ? '{' : '['))
                return NULL;
            p++;
        } else if (depth && (*p == ',' || *p == ':')) {
            p++;
        } else {
            p = skip_word(p);
        }
    } while (p && depth);
    return p;
}

struct row_reader {
    const struct rows *rows;
    double *value;
    struct row *row;
    bool stepped; // it says its step
};
// Where in a row an object lies: what a key that asks for one of its members begins with.
struct row_path {
    char text[256]; // "detail.groups."
    size_t len;
};

static bool take_count(const char *text, const char *end, uint64_t *out)
{
    uint64_t v = 0;
    if (text == end || end - text > 18)
        return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        v = 10 * v + (uint64_t)(*text - '0');
    }
    *out = v;
    return true;
}

// Whether the key asks for this member, which then ends it, or for one within it (`end` is a dot).
static bool is_asked(const char *key, const struct row_path *at, const char *name, size_t len,
                     char end)
{
    return (at->len || *key == *name) && strncmp(key, at->text, at->len) == 0 &&
           strncmp(key + at->len, name, len) == 0 && key[at->len + len] == end;
}

static void take_member(struct row_reader *x, const struct row_path *at, const char *name,
                        size_t len, const char *value, const char *end)
{
    uint64_t count;
    bool number = *value == '-' || (*value >= '0' && *value <= '9');
    if (!number)
        return;
    for (int i = 0; i < x->rows->nkeys; i++)
        if (is_asked(x->rows->key[i], at, name, len, 0))
            x->value[i] = strtod(value, NULL);
    bool step = len == 4 && memcmp(name, "step", 4) == 0;
    bool attempt = len == 7 && memcmp(name, "attempt", 7) == 0;
    if (at->len > 0 || !(step || attempt) || !take_count(value, end, &count))
        return;
    if (attempt) {
        x->row->attempt = count;
    } else {
        x->row->step = (int64_t)count;
        x->stepped = true;
    }
}

static const char *read_object(struct row_reader *x, const char *p, struct row_path *at);

// An object is looked into where a key asks for a member of it.
static const char *read_within(struct row_reader *x, const char *p, struct row_path *at,
                               const char *name, size_t len)
{
    const size_t before = at->len;
    bool asked = false;
    for (int i = 0; i < x->rows->nkeys && !asked; i++)
        asked = is_asked(x->rows->key[i], at, name, len, '.');
    if (!asked || before + len + 2 > sizeof at->text)
        return skip_value(p);
    memcpy(at->text + before, name, len);
    at->len = before + len + 1;
    at->text[at->len - 1] = '.';
    p = read_object(x, p, at);
    at->len = before;
    return p;
}

static const char *read_member(struct row_reader *x, const char *p, struct row_path *at)
{
    const char *name = p + 1;
    p = *p == '"' ? skip_string(name) : NULL;
    if (!p || *p != ':')
        return NULL;
    size_t len = (size_t)(p - 1 - name);
    const char *value = p + 1;
    if (*value == '{')
        return read_within(x, value, at, name, len);
    const char *end = skip_value(value);
    if (end)
        take_member(x, at, name, len, value, end);
    return end;
}

static const char *read_object(struct row_reader *x, const char *p, struct row_path *at)
{
    if (*p++ != '{')
        return NULL;
    if (*p == '}')
        return p + 1;
    do {
        p = read_member(x, p, at);
    } while (p && *p++ == ',');
    return p && p[-1] == '}' ? p : NULL;
}

static void make_room(struct rows *r)
{
    if (r->n < r->cap)
        return;
    r->cap = r->cap ? 2 * r->cap : 256;
    r->row = realloc(r->row, r->cap * sizeof *r->row);
    r->value = realloc(r->value, r->cap * (size_t)r->nkeys * sizeof *r->value + 1);
    PRE(r->row && r->value);
}

static bool read_line(const struct rows *r, const char *line, size_t bytes, double *value,
                      struct row *out)
{
    struct row_path top;
    struct row_reader x = {r, value, out, false};
    top.len = 0;
    *out = (struct row){.at = r->at, .bytes = (int64_t)bytes};
    PRE(bytes > 0 && line[bytes - 1] == '\n');
    return read_object(&x, line, &top) == line + bytes - 1 && x.stepped;
}

bool rows_read_line(const char *line, size_t bytes, struct row *out)
{
    static const struct rows no_keys;
    return read_line(&no_keys, line, bytes, NULL, out);
}

bool rows_add(struct rows *r, const char *line, size_t bytes)
{
    make_room(r);
    struct row *row = &r->row[r->n];
    double *value = r->value + r->n * (size_t)r->nkeys;
    for (int i = 0; i < r->nkeys; i++)
        value[i] = (double)NAN;
    if (!read_line(r, line, bytes, value, row)) {
        r->left_out++;
        return false;
    }
    if (row->attempt < r->attempt)
        return false;
    r->attempt = row->attempt;
    size_t n = r->n;
    while (n > 0 && r->row[n - 1].step >= row->step)
        n--;
    if (n < r->n) {
        r->row[n] = *row;
        memmove(r->value + n * (size_t)r->nkeys, value, (size_t)r->nkeys * sizeof *value);
    }
    r->n = n + 1;
    r->unchanged = n < r->unchanged ? n : r->unchanged;
    return true;
}

void rows_forget(struct rows *r)
{
    r->n = r->unchanged = 0;
}

// ---- a file ----

int rows_open(int folder, int *fd, struct err *e)
{
    struct stat st;
    *fd = openat(folder, "metrics.jsonl", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0)
        return errno == ENOENT ? 0 : err_errno(e, ERR_IO, "cannot open metrics.jsonl");
    if (!fstat(*fd, &st) && S_ISREG(st.st_mode))
        return 0;
    close(*fd);
    *fd = -1;
    return err_set(e, ERR_INVALID, "metrics.jsonl is not a regular file");
}

size_t rows_add_lines(struct rows *r, const char *piece, size_t len)
{
    size_t at = 0;
    const char *nl;
    while (at < len && (nl = memchr(piece + at, '\n', len - at))) {
        size_t bytes = (size_t)(nl - piece) + 1 - at;
        (void)rows_add(r, piece + at, bytes);
        r->at += (int64_t)bytes;
        at += bytes;
    }
    return at;
}

int rows_read(struct rows *r, int fd, struct err *e)
{
    size_t cap = READ_BYTES, len = 0;
    char *piece = heap_alloc(cap);
    ssize_t n;
    r->unchanged = r->n;
    while ((n = pread(fd, piece + len, cap - len, (off_t)(r->at + (int64_t)len))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        len += (size_t)n;
        size_t taken = rows_add_lines(r, piece, len);
        len -= taken;
        memmove(piece, piece + taken, len);
        if (len == cap && cap >= ROW_BYTES_MAX) { // the line that is too long is passed over
            r->at += (int64_t)len;
            len = 0;
        } else if (len == cap) {
            cap *= 2;
            piece = realloc(piece, cap);
            PRE(piece != NULL);
        }
    }
    free(piece);
    return n < 0 ? err_errno(e, ERR_IO, "cannot read the rows of metrics") : 0;
}

int rows_text(const struct rows *r, int fd, size_t i, struct arena *a, const char **out,
              struct err *e)
{
    size_t len = (size_t)r->row[i].bytes - 1, done = 0;
    char *text = arena_alloc(a, len + 1);
    while (done < len) {
        ssize_t n = pread(fd, text + done, len - done, (off_t)(r->row[i].at + (int64_t)done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? err_errno(e, ERR_IO, "cannot read the rows of metrics")
                         : err_set(e, ERR_DATA, "the file of metrics became shorter");
        done += (size_t)n;
    }
    text[len] = 0;
    *out = text;
    return 0;
}
