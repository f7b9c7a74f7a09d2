// SPDX-License-Identifier: Apache-2.0
// Names and sizes of dtypes, dimensions and ops. See op.h.
#include "common/op/op.h"

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
    unsigned traits;
} ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, traits) \
    [OP_##id] = {#name, dtypes, nin, nout, whole, traits},
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

int op_first_sum(enum op op)
{
    return op == OP_NORM_GRADS ? 1 : 0;
}
