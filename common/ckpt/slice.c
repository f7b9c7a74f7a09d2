// SPDX-License-Identifier: Apache-2.0
// Boxes of row-major tensors. See slice.h.
#include "common/ckpt/slice.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"

uint64_t box_bytes(const struct box *b, enum dtype t)
{
    uint64_t n = dtype_size(t);
    for (int d = 0; d < b->shape.n; d++)
        n *= (uint64_t)b->shape.dim[d];
    return n;
}

bool box_inside(const struct box *b, const struct shape *global)
{
    if (b->shape.n != global->n)
        return false;
    for (int d = 0; d < global->n; d++)
        if (b->start[d] < 0 || b->shape.dim[d] < 0 || b->start[d] > global->dim[d] ||
            b->shape.dim[d] > global->dim[d] - b->start[d])
            return false;
    return true;
}

bool box_overlap(const struct box *a, const struct box *b)
{
    PRE(a->shape.n == b->shape.n);
    for (int d = 0; d < a->shape.n; d++) {
        int64_t from = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t a_end = a->start[d] + a->shape.dim[d], b_end = b->start[d] + b->shape.dim[d];
        if ((a_end < b_end ? a_end : b_end) <= from)
            return false;
    }
    return true;
}

// Trailing dimensions on which both boxes agree are merged into one run of `*inner` elements;
// `*dims` are left.
static void merge_tail(const struct box *a, const struct box *b, int *dims, int64_t *inner)
{
    *dims = a->shape.n;
    *inner = 1;
    while (*dims > 1 && a->start[*dims - 1] == b->start[*dims - 1] &&
           a->shape.dim[*dims - 1] == b->shape.dim[*dims - 1])
        *inner *= a->shape.dim[--*dims];
}

// Copies the part of one line of `from` that lies in `to`. A line is `from`'s dimension dims − 1,
// from element `lo` to `hi`.
static uint64_t copy_line(const struct box *to, char *to_bytes, const struct box *from,
                          const char *src, int dims, int64_t inner, int64_t line, int64_t lo,
                          int64_t hi, size_t elem)
{
    int64_t offset = 0, rest = line, index[MAX_DIMS];
    for (int d = dims - 2; d >= 0; d--) {
        index[d] = from->start[d] + rest % from->shape.dim[d] - to->start[d];
        rest /= from->shape.dim[d];
        if (index[d] < 0 || index[d] >= to->shape.dim[d])
            return 0;
    }
    for (int d = 0; d < dims - 1; d++)
        offset = offset * to->shape.dim[d] + index[d];
    int last = dims - 1;
    int64_t width = to->shape.dim[last] * inner;
    int64_t shift = (from->start[last] - to->start[last]) * inner; // of the line's first element
    int64_t a = lo + shift > 0 ? lo : -shift;
    int64_t b = hi + shift < width ? hi : width - shift;
    if (b <= a)
        return 0;
    uint64_t n = (uint64_t)(b - a) * elem;
    memcpy(to_bytes + (uint64_t)(offset * width + a + shift) * elem,
           src + (uint64_t)(a - lo) * elem, n);
    return n;
}

uint64_t box_copy(const struct box *to, void *to_bytes, const struct box *from,
                  const void *from_bytes, uint64_t at, uint64_t len, size_t elem)
{
    PRE(to->shape.n == from->shape.n && at % elem == 0 && len % elem == 0);
    if (to->shape.n == 0) {
        memcpy(to_bytes, from_bytes, len);
        return len;
    }
    int dims;
    int64_t inner;
    merge_tail(to, from, &dims, &inner);
    int64_t width = from->shape.dim[dims - 1] * inner; // of a line of `from`
    if (width == 0)
        return 0;
    int64_t e = (int64_t)(at / elem), end = e + (int64_t)(len / elem);
    const char *src = from_bytes;
    uint64_t copied = 0;
    while (e < end) {
        int64_t lo = e % width, hi = lo + (end - e) < width ? lo + (end - e) : width;
        copied += copy_line(to, to_bytes, from, src, dims, inner, e / width, lo, hi, elem);
        src += (uint64_t)(hi - lo) * elem;
        e += hi - lo;
    }
    return copied;
}

int slice_read(int fd, void *to, uint64_t len, uint64_t at, struct err *e)
{
    for (char *next = to; len;) {
        ssize_t n = pread(fd, next, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, ERR_IO, "cannot read");
        if (n == 0)
            return err_set(e, ERR_DATA, "the file ends too early");
        next += n;
        at += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return 0;
}

int box_read(const struct box *to, void *to_bytes, const struct box *from, int fd, uint64_t at,
             size_t elem, struct err *e)
{
    int64_t low[MAX_DIMS], n[MAX_DIMS], index[MAX_DIMS] = {0}, run = 1;
    int d, rc = 0, dims = to->shape.n;
    PRE(dims == from->shape.n);
    for (d = 0; d < dims; d++) {
        int64_t a = to->start[d] + to->shape.dim[d], b = from->start[d] + from->shape.dim[d];
        low[d] = to->start[d] > from->start[d] ? to->start[d] : from->start[d];
        n[d] = (a < b ? a : b) - low[d];
        if (n[d] <= 0)
            return 0;
    }
    // Trailing dimensions that both have whole are read at once, and the part of the one before.
    for (d = dims; d > 0; d--) {
        run *= n[d - 1];
        if (n[d - 1] != to->shape.dim[d - 1] || n[d - 1] != from->shape.dim[d - 1])
            break;
    }
    int outer = d > 0 ? d - 1 : 0;
    do {
        int64_t there = 0, here = 0;
        for (int k = 0; k < dims; k++) {
            there = there * from->shape.dim[k] + low[k] - from->start[k] + index[k];
            here = here * to->shape.dim[k] + low[k] - to->start[k] + index[k];
        }
        rc = slice_read(fd, (char *)to_bytes + (uint64_t)here * elem, (uint64_t)run * elem,
                        at + (uint64_t)there * elem, e);
        for (d = outer - 1; d >= 0 && ++index[d] == n[d]; d--)
            index[d] = 0;
    } while (d >= 0 && !rc);
    return rc;
}

int shape_bytes(const struct shape *s, uint64_t element, uint64_t *bytes)
{
    *bytes = element;
    for (int d = 0; d < s->n; d++)
        if (__builtin_mul_overflow(*bytes, (uint64_t)s->dim[d], bytes))
            return -1;
    return 0;
}

const char *shape_text(const int64_t *dim, int n, struct arena *a)
{
    struct buf text = {0};
    buf_putc(&text, '[');
    for (int d = 0; d < n; d++)
        buf_printf(&text, "%s%lld", d ? ", " : "", (long long)dim[d]);
    buf_putc(&text, ']');
    return buf_keep(&text, a);
}

static const char *const dtype_names[DT_COUNT] = {
    [DT_F32] = "F32", [DT_BF16] = "BF16", [DT_I32] = "I32", [DT_U8] = "U8"};

const char *ckpt_dtype_name(enum dtype t)
{
    PRE(t > DT_NONE && t < DT_COUNT);
    return dtype_names[t];
}

enum dtype ckpt_dtype_parse(const char *name)
{
    for (int t = DT_NONE + 1; t < DT_COUNT; t++)
        if (!strcmp(dtype_names[t], name))
            return (enum dtype)t;
    return DT_NONE;
}
