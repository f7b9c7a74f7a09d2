// SPDX-License-Identifier: Apache-2.0
// EMBED and its gradient: rows of a table by ids.
//
// Ids count from attr.start; one outside the table's rows here belongs to another rank: its output
// is 0, its gradient goes nowhere. The gradient adds rows that share an id: threads share columns,
// each walks all ids in order, so that no two write one number and threads never change a bit.
#include "kernels/cpu/cpu_device.h"

#include <string.h>

struct embed_work {
    const struct op_call *call;
    const struct vec *vec;
    const int32_t *ids;
    const char *from;
    char *to;
    int64_t n, rows, width; // ids; of the table
    size_t bytes;           // of a row
};

// The row of the table for id i; −1: not here.
static int64_t find_row(const struct embed_work *w, int64_t i)
{
    int64_t row = w->ids[i] - w->call->attr->start;
    return row >= 0 && row < w->rows ? row : -1;
}

static void embed_slice(void *arg, int64_t begin, int64_t end)
{
    const struct embed_work *w = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = find_row(w, i);
        if (row < 0)
            memset(w->to + (size_t)i * w->bytes, 0, w->bytes);
        else
            memcpy(w->to + (size_t)i * w->bytes, w->from + (size_t)row * w->bytes, w->bytes);
    }
}

static void embed_grad_slice(void *arg, int64_t begin, int64_t end)
{
    const struct embed_work *w = arg;
    const float *from = w->call->in[1].data;
    float *to = w->call->out[0].data;
    size_t bytes = (size_t)(end - begin) * sizeof *to;
    for (int64_t r = 0; r < w->rows && !w->call->accumulate; r++)
        memset(to + r * w->width + begin, 0, bytes);
    for (int64_t i = 0; i < w->n; i++) {
        int64_t row = find_row(w, i);
        if (row >= 0)
            w->vec->add_to(to + row * w->width + begin, from + i * w->width + begin, end - begin);
    }
}

int op_embed(struct stream_q *q, const struct op_call *c, struct err *e)
{
    bool grad = c->op == OP_EMBED_GRAD;
    const struct tensor *table = grad ? &c->out[0] : &c->in[1];
    int rc = op_check_embed(c, e);
    if (rc)
        return rc;
    struct embed_work w = {.call = c,
                           .vec = q->device->vec,
                           .ids = c->in[0].data,
                           .from = c->in[1].data,
                           .to = c->out[0].data,
                           .n = shape_count(&c->in[0].shape),
                           .rows = table->shape.dim[0],
                           .width = op_embed_width(&table->shape)};
    w.bytes = (size_t)w.width * dtype_size(c->in[1].dtype);
    if (grad)
        pool_for(q->device->pool, w.width, 16, embed_grad_slice, &w);
    else
        pool_for(q->device->pool, w.n, GRAIN / w.width + 1, embed_slice, &w);
    return 0;
}
