// SPDX-License-Identifier: Apache-2.0
// Names and sizes of dtypes, dimensions and ops. See op.h.
#include "common/op/op.h"

#include <string.h>

#include "common/base/err.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[DT_COUNT] = {
    [DT_NONE] = {"none", 0}, [DT_F32] = {"f32", 4}, [DT_BF16] = {"bf16", 2},
    [DT_I32] = {"i32", 4},   [DT_U8] = {"u8", 1},
};

static const struct {
    const char *name, *dtypes;
    int nin, nout, whole;
    enum op_order order;
    unsigned traits;
} ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) \
    [OP_##id] = {#name, dtypes, nin, nout, whole, order, traits},
#include "common/op/ops.def"
};

size_t dtype_size(enum dtype t)
{
    PRE(t >= 0 && t < DT_COUNT);
    return dtypes[t].size;
}

const char *dtype_name(enum dtype t)
{
    PRE(t >= 0 && t < DT_COUNT);
    return dtypes[t].name;
}

int64_t shape_count(const struct shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->n; d++)
        n *= s->dim[d];
    return n;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->n != b->n)
        return false;
    for (int d = 0; d < a->n; d++)
        if (a->dim[d] != b->dim[d])
            return false;
    return true;
}

const char *op_name(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].name;
}

enum op_order op_order(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].order;
}

int op_inputs(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].nin;
}

int op_outputs(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].nout;
}

bool op_is(enum op op, enum op_trait trait)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].traits & trait;
}

int op_whole(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].whole;
}

const char *op_dtypes(enum op op)
{
    PRE(op >= 0 && op < OP_COUNT);
    return ops[op].dtypes;
}

// The letters of one side of the column, and which of them stands for any number; −1: none does.
struct letters {
    char of[OP_MAX_IN];
    int n, many, least; // least: of operands
};

static struct letters read_letters(const char *s)
{
    struct letters l = {.many = -1};
    for (; *s && *s != '>'; s++) {
        if (*s == '*')
            l.many = l.n - 1;
        else if (*s != '?')
            l.of[l.n++] = *s;
        l.least += *s == '*' || *s == '?' ? -1 : 1;
    }
    return l;
}

// *like: the dtype of the operands that are to be alike; DT_NONE until one of them was seen.
static bool fits_letter(char letter, enum dtype t, enum dtype *like)
{
    const bool is_float = t == DT_F32 || t == DT_BF16;
    switch (letter) {
    case 'f':
        return t == DT_F32;
    case 'i':
        return t == DT_I32;
    case 'b':
        return t == DT_BF16;
    case 'x':
        return is_float;
    case 'n':
        return is_float || t == DT_I32 || t == DT_U8;
    case 'u':
        return t == DT_F32 || t == *like;
    default: // t, a
        if (*like == DT_NONE && (letter == 'a' || is_float))
            *like = t;
        return t == *like;
    }
}

int op_find_misfit(enum op op, int nin, int nout, const enum dtype *t)
{
    const char *in = op_dtypes(op), *out = strchr(in, '>');
    enum dtype like = DT_NONE;
    if (!out)
        return -1;
    if (op_inputs(op) >= 0 && nin != op_inputs(op))
        return OP_WRONG_NUMBER;
    for (int side = 0; side < 2; side++) {
        const struct letters l = read_letters(side ? out + 1 : in);
        const int n = side ? nout : nin, first = side ? nin : 0;
        if (n < l.least || (l.many < 0 && n > l.n))
            return OP_WRONG_NUMBER;
        for (int k = 0; k < n; k++) {
            const bool behind = l.many >= 0 && n - k < l.n - l.many; // what stands for many
            const int at = behind ? l.n - (n - k) : l.many >= 0 && k > l.many ? l.many : k;
            if (!fits_letter(l.of[at], t[first + k], &like))
                return first + k;
        }
    }
    return -1;
}

int op_first_sum(enum op op)
{
    return op == OP_NORM_GRADS ? 1 : 0;
}
