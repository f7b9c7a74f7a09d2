// SPDX-License-Identifier: Apache-2.0
// EMBED and its gradient: rows of a table by ids.
//
// Ids count from attr.start; one outside the table's rows here belongs to another rank: its output
// is 0, its gradient goes nowhere. The gradient adds rows that share an id: threads share columns,
// each walks all ids in order, so that no two write one number and threads never change a bit.
#include "kernels/cpu/device.h"

#include <string.h>

struct work {
    const struct op_call *call;
    const struct vec *vec;
    const int32_t *ids;
    const float *from;
    float *to;
    int64_t n, rows, width; // ids; of the table
};

// The row of the table for id i; −1: not here.
static int64_t row_of(const struct work *w, int64_t i)
{
    int64_t row = w->ids[i] - w->call->attr->start;
    return row >= 0 && row < w->rows ? row : -1;
}

static void embed(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    size_t bytes = (size_t)w->width * sizeof *w->to;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = row_of(w, i);
        if (row < 0)
            memset(w->to + i * w->width, 0, bytes);
        else
            memcpy(w->to + i * w->width, w->from + row * w->width, bytes);
    }
}

static void embed_grad(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    size_t bytes = (size_t)(end - begin) * sizeof *w->to;
    for (int64_t r = 0; r < w->rows && !w->call->accumulate; r++)
        memset(w->to + r * w->width + begin, 0, bytes);
    for (int64_t i = 0; i < w->n; i++) {
        int64_t row = row_of(w, i);
        if (row >= 0)
            w->vec->add_to(w->to + row * w->width + begin, w->from + i * w->width + begin,
                           end - begin);
    }
}

int op_embed(struct stream_q *q, const struct op_call *c, struct err *e)
{
    bool grad = c->op == OP_EMBED_GRAD;
    const struct tensor *table = grad ? &c->out[0] : &c->in[1];
    const struct tensor *rows = grad ? &c->in[1] : &c->out[0];
    int rc = op_want(c, &c->in[0], DT_I32, e);
    rc = rc ? rc : op_want(c, &c->in[1], DT_F32, e);
    if (rc)
        return rc;
    struct work w = {.call = c,
                     .vec = q->device->vec,
                     .ids = c->in[0].data,
                     .from = c->in[1].data,
                     .to = c->out[0].data,
                     .n = shape_count(&c->in[0].shape),
                     .rows = table->shape.dim[0],
                     .width = table->shape.dim[1]};
    if (table->shape.n != 2 || shape_count(&rows->shape) != w.n * w.width)
        return op_refuse(c, e, "operands disagree about an extent");
    if (grad)
        pool_for(q->device->pool, w.width, 16, embed_grad, &w);
    else
        pool_for(q->device->pool, w.n, GRAIN / w.width + 1, embed, &w);
    return 0;
}
