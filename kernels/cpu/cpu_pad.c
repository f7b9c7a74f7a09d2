// SPDX-License-Identifier: Apache-2.0
// PAD: a copy with a number in the padding of one dimension. What lies behind that dimension is
// contiguous, so the rest before the limit is one memcpy for each index in front of it.
#include <string.h>

#include "kernels/cpu/cpu_device.h"

struct pad_work {
    const struct op_call *call;
    int64_t left, whole; // elements before the padding, and with it, of one index in front
};

static void pad_slice(void *arg, int64_t begin, int64_t end)
{
    const struct pad_work *w = arg;
    const struct op_call *c = w->call;
    const size_t elem = dtype_size(c->in[0].dtype);
    const float by = c->attr->scale;
    uint32_t bits;
    memcpy(&bits, &by, sizeof bits);
    const uint16_t narrow = (uint16_t)(bits >> 16); // 0 and 1 are themselves in bf16
    for (int64_t i = begin; i < end; i++) {
        const char *from = (const char *)c->in[0].data + (size_t)(i * w->whole) * elem;
        char *to = (char *)c->out[0].data + (size_t)(i * w->whole) * elem;
        if (to != from)
            memcpy(to, from, (size_t)w->left * elem);
        for (int64_t k = w->left; k < w->whole; k++)
            if (elem == sizeof by)
                ((float *)(void *)to)[k] = by;
            else
                ((uint16_t *)(void *)to)[k] = narrow;
    }
}

int op_pad(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct pad_place p;
    int rc = op_check_pad(c, &p, e);
    if (rc)
        return rc;
    struct pad_work w = {.call = c, .left = p.left * p.inner, .whole = p.n * p.inner};
    int64_t grain = w.whole < GRAIN ? GRAIN / (w.whole + 1) + 1 : 1;
    pool_for(q->device->pool, p.outer, grain, pad_slice, &w);
    return 0;
}
