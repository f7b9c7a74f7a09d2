// SPDX-License-Identifier: Apache-2.0
// The geometry of reshards. See reshard_blocks.h.
//
// A block is seen as [outer, d, inner] around the dimension d that is cut or joined.
#include "common/compile/layout/reshard_blocks.h"

struct split {
    int64_t outer, size, inner;
};

static struct split split_shape(const struct shape *s, int dim)
{
    struct split a = {1, s->dim[dim], 1};
    for (int d = 0; d < s->n; d++) {
        a.outer *= d < dim ? s->dim[d] : 1;
        a.inner *= d > dim ? s->dim[d] : 1;
    }
    return a;
}

static struct op_block make_flat_block(int64_t count)
{
    return (struct op_block){{1, 1, count}, {0, 0, 1}, {0, 0, 1}};
}

// [outer, n, rest] → [n, outer, rest]: what lies along the dimension becomes parts.
static struct op_block split_block(int64_t n, int64_t outer, int64_t rest)
{
    return (struct op_block){{n, outer, rest}, {rest, n * rest, 1}, {outer * rest, rest, 1}};
}

// [n, outer, rest] → [outer, n, rest].
static struct op_block join_block(int64_t n, int64_t outer, int64_t rest)
{
    return (struct op_block){{n, outer, rest}, {outer * rest, rest, 1}, {rest, n * rest, 1}};
}

static struct reshard_blocks plan_slice(const struct shape *in, int dim, int64_t n)
{
    struct split a = split_shape(in, dim);
    int64_t part = a.size / n * a.inner;
    return (struct reshard_blocks){
        .pack = {{1, a.outer, part}, {0, a.size * a.inner, 1}, {0, part, 1}}, .pack_from = part};
}

static struct reshard_blocks plan_gather(const struct shape *in, int dim, int64_t n)
{
    struct split a = split_shape(in, dim);
    int64_t count = shape_count(in);
    return (struct reshard_blocks){.payload = n * count,
                                   .pack = make_flat_block(count),
                                   .pack_to = count,
                                   .unpack = join_block(n, a.outer, a.size * a.inner),
                                   .unpacked = a.outer == 1};
}

static struct reshard_blocks plan_scatter(const struct shape *in, int dim, int64_t n)
{
    struct split a = split_shape(in, dim);
    int64_t count = shape_count(in);
    return (struct reshard_blocks){.payload = count,
                                   .pack = split_block(n, a.outer, a.size / n * a.inner),
                                   .packed = a.outer == 1,
                                   .unpack = make_flat_block(count / n),
                                   .unpack_from = count / n};
}

struct reshard_blocks reshard_blocks_of(const struct reshard_step *step, const struct mesh *m,
                                        const struct shape *in)
{
    int64_t n = dim_parts(m, &step->cut);
    PRE(step->kind != RESHARD_ALL_REDUCE);
    if (step->kind == RESHARD_SLICE)
        return plan_slice(in, step->dim, n);
    if (step->kind == RESHARD_ALL_GATHER)
        return plan_gather(in, step->dim, n);
    if (step->kind == RESHARD_REDUCE_SCATTER)
        return plan_scatter(in, step->dim, n);
    // Parts along one dimension go out, parts along another come in.
    struct reshard_blocks t = plan_scatter(in, step->to, n);
    struct shape part = *in;
    part.dim[step->to] /= n;
    struct split a = split_shape(&part, step->dim);
    t.unpack = join_block(n, a.outer, a.size * a.inner);
    t.unpack_from = 0;
    t.unpacked = a.outer == 1;
    return t;
}
