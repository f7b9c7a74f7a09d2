// SPDX-License-Identifier: Apache-2.0
// Scratch of the ops in the op table (optable.h): see op_scratch.h.
#include "common/compile/graph/op_scratch.h"

#include <string.h>

#include "common/op/attention.h"
#include "common/op/gemm.h"
#include "common/op/parts.h"

size_t scratch_gemm(const struct node *n, const struct shape *in, const struct shape *out)
{
    (void)in;
    (void)out;
    return n->attr.scratch ? (size_t)n->attr.scratch : GEMM_WORKSPACE;
}

size_t scratch_chunks(const struct node *n, const struct shape *in, const struct shape *out)
{
    (void)n;
    (void)out;
    int64_t count = shape_count(&in[0]);
    return sizeof(double) * (size_t)(count < OP_CHUNKS ? count : OP_CHUNKS);
}

// Scratch for sums of columns, which an accelerator makes in parts too.
size_t scratch_columns(const struct node *n, const struct shape *in, const struct shape *out)
{
    int64_t rows = 1;
    for (int d = 0; d < in[0].n; d++) {
        bool kept = false;
        for (int k = 0; k < out[0].n; k++)
            kept = kept || n->attr.label[1][k] == n->attr.label[0][d];
        rows *= kept ? 1 : in[0].dim[d];
    }
    size_t chunks = scratch_chunks(n, in, out), parts = parts_bytes(rows, shape_count(&out[0]));
    return parts > chunks ? parts : chunks;
}

// What its SUM asks for alone; the product comes before it and has the same scratch.
size_t scratch_matmul_sum(const struct node *n, const struct shape *in, const struct shape *out)
{
    return scratch_chunks(n, &in[gemm_summed(&n->attr, &in[0])], out);
}

size_t scratch_matmul_sum_cuda(const struct node *n, const struct shape *in,
                               const struct shape *out)
{
    int of = gemm_summed(&n->attr, &in[0]);
    struct node sum = {.attr = n->attr};
    memcpy(sum.attr.label[0], n->attr.label[of], sizeof sum.attr.label[0]);
    memcpy(sum.attr.label[1], n->attr.label[3], sizeof sum.attr.label[1]);
    size_t columns = scratch_columns(&sum, &in[of], &out[1]), product = scratch_gemm(n, in, out);
    return columns > product ? columns : product;
}

struct op_call attention_call(const struct node *n, const struct shape *in)
{
    struct op_call c = {.op = n->op, .attr = &n->attr, .nin = n->nin};
    for (int k = 0; k < n->nin; k++)
        c.in[k].shape = in[k];
    return c;
}

size_t scratch_attention(const struct node *n, const struct shape *in, const struct shape *out)
{
    struct op_call c = attention_call(n, in);
    (void)out;
    return sizeof(float) * (size_t)attention_room(&c).floats;
}

size_t scratch_attention_cuda(const struct node *n, const struct shape *in, const struct shape *out)
{
    struct op_call c = attention_call(n, in);
    (void)out;
    size_t own = attention_own_bytes(&c), library = attention_library_bytes(&c);
    return own > library ? own : library;
}

// A mean and a scale for each row.
size_t scratch_norm(const struct node *n, const struct shape *in, const struct shape *out)
{
    (void)n;
    (void)out;
    return 2 * sizeof(float) * (size_t)(shape_count(&in[0]) / in[0].dim[in[0].n - 1]);
}

// Partial sums of parts of the rows.
size_t scratch_norm_parts(const struct node *n, const struct shape *in, const struct shape *out)
{
    int64_t cols = in[0].dim[in[0].n - 1], rows = shape_count(&in[0]) / cols;
    (void)n;
    (void)out;
    return sizeof(float) * (size_t)(parts_of_rows(rows, cols) * cols);
}

// A mean and a scale for each row, or the chunks of a sum.
size_t scratch_norm_grads(const struct node *n, const struct shape *in, const struct shape *out)
{
    size_t stats = scratch_norm(n, in, out), chunks = scratch_chunks(n, in, out);
    return stats > chunks ? stats : chunks;
}

// Partial sums of parts of the rows, all at once or one sum after the other.
size_t scratch_norm_grads_cuda(const struct node *n, const struct shape *in,
                               const struct shape *out)
{
    int64_t cols = in[0].dim[in[0].n - 1], rows = shape_count(&in[0]) / cols;
    size_t sums = (size_t)n->nout - 1, one = scratch_norm_parts(n, in, out);
    size_t all = sizeof(float) * sums * (size_t)(parts_of_norm(rows, cols) * cols);
    return all > one ? all : one;
}

size_t scratch_embed_grad(const struct node *n, const struct shape *in, const struct shape *out)
{
    (void)n;
    return embed_parts_of(shape_count(&in[0]), out[0].dim[0], out[0].dim[1]).bytes;
}
