// SPDX-License-Identifier: Apache-2.0
// Scratch of the ops in the op table (optable.h): see op_scratch.h.
#include "common/compile/graph/op_scratch.h"

#include <string.h>

#include "common/op/attention.h"
#include "common/op/gemm.h"
#include "common/op/parts.h"

size_t scratch_gemm(const struct op_call *c)
{
    return c->attr->scratch ? (size_t)c->attr->scratch : GEMM_WORKSPACE;
}

size_t scratch_chunks(const struct op_call *c)
{
    int64_t count = shape_count(&c->in[0].shape);
    return sizeof(double) * (size_t)(count < OP_CHUNKS ? count : OP_CHUNKS);
}

// Scratch for sums of columns, which an accelerator makes in parts too.
size_t scratch_columns(const struct op_call *c)
{
    int64_t rows = 1;
    for (int d = 0; d < c->in[0].shape.n; d++) {
        bool kept = false;
        for (int k = 0; k < c->out[0].shape.n; k++)
            kept = kept || c->attr->label[1][k] == c->attr->label[0][d];
        rows *= kept ? 1 : c->in[0].shape.dim[d];
    }
    size_t chunks = scratch_chunks(c), parts = parts_bytes(rows, shape_count(&c->out[0].shape));
    return parts > chunks ? parts : chunks;
}

// What its SUM asks for alone; the product comes before it and has the same scratch.
size_t scratch_matmul_sum(const struct op_call *c)
{
    const struct op_call sum = {.in = {c->in[gemm_summed(c->attr, &c->in[0].shape)]}};
    return scratch_chunks(&sum);
}

size_t scratch_matmul_sum_cuda(const struct op_call *c)
{
    int of = gemm_summed(c->attr, &c->in[0].shape);
    struct op_attr attr = *c->attr;
    struct op_call sum = {.attr = &attr, .in = {c->in[of]}, .out = {c->out[1]}};
    memcpy(attr.label[0], c->attr->label[of], sizeof attr.label[0]);
    memcpy(attr.label[1], c->attr->label[3], sizeof attr.label[1]);
    size_t columns = scratch_columns(&sum), product = scratch_gemm(c);
    return columns > product ? columns : product;
}

size_t scratch_attention(const struct op_call *c)
{
    return sizeof(float) * (size_t)attention_room(c).floats;
}

size_t scratch_attention_cuda(const struct op_call *c)
{
    size_t own = attention_own_bytes(c), library = attention_library_bytes(c);
    return own > library ? own : library;
}

static int64_t count_columns(const struct op_call *c)
{
    return c->in[0].shape.dim[c->in[0].shape.n - 1];
}

static int64_t count_rows(const struct op_call *c)
{
    return shape_count(&c->in[0].shape) / count_columns(c);
}

// A mean and a scale for each row.
size_t scratch_norm(const struct op_call *c)
{
    return 2 * sizeof(float) * (size_t)count_rows(c);
}

// Partial sums of parts of the rows.
size_t scratch_norm_parts(const struct op_call *c)
{
    int64_t cols = count_columns(c), rows = count_rows(c);
    return sizeof(float) * (size_t)(parts_of_rows(rows, cols) * cols);
}

// A mean and a scale for each row, or the chunks of a sum.
size_t scratch_norm_grads(const struct op_call *c)
{
    size_t stats = scratch_norm(c), chunks = scratch_chunks(c);
    return stats > chunks ? stats : chunks;
}

// Partial sums of parts of the rows, all at once or one sum after the other.
size_t scratch_norm_grads_cuda(const struct op_call *c)
{
    int64_t cols = count_columns(c), rows = count_rows(c);
    size_t sums = (size_t)c->nout - 1, one = scratch_norm_parts(c);
    size_t all = sizeof(float) * sums * (size_t)(parts_of_norm(rows, cols) * cols);
    return all > one ? all : one;
}

size_t scratch_embed_grad(const struct op_call *c)
{
    return embed_parts_of(shape_count(&c->in[0].shape), c->out[0].shape.dim[0],
                          c->out[0].shape.dim[1])
        .bytes;
}
