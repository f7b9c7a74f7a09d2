// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient: a call checked and read as sizes, and who serves it. See attention.h.
//
// cuDNN serves bf16 where keys and queries are in their plain order and nothing is dropped; our own
// kernels serve the rest, and what no engine of cuDNN's takes. Which of the two a shape gets is
// decided at its first call and stays.
#include "kernels/cuda/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/sdpa.h"

static int check(const struct op_call *c, struct err *e)
{
    bool grad = c->op == OP_ATTENTION_GRAD;
    int positions = attention_positions(c->op), rc = 0;
    const struct shape *q = &c->in[0].shape, *k = &c->in[1].shape;
    const int64_t *dim = q->dim, *key_dim = k->dim;
    enum dtype t = c->in[0].dtype;
    rc = op_want_float(c, &c->in[0], e);
    for (int i = 0; i < c->nin && !rc; i++)
        rc = op_want(c, &c->in[i], i < positions ? t : DT_I32, e);
    for (int i = 0; i < c->nout && !rc; i++)
        rc = op_want(c, &c->out[i], t, e);
    if (rc)
        return rc;
    bool fit = q->n == 4 && k->n == 4 && shape_equal(k, &c->in[2].shape) && key_dim[0] == dim[0] &&
               key_dim[3] == dim[3] && shape_equal(q, &c->out[0].shape) &&
               (!grad || (shape_equal(q, &c->in[3].shape) && shape_equal(k, &c->out[1].shape) &&
                          shape_equal(k, &c->out[2].shape))) &&
               shape_count(&c->in[positions].shape) == dim[0] * dim[1] &&
               shape_count(&c->in[positions + 1].shape) == dim[0] * key_dim[1];
    if (!fit)
        return op_refuse(c, e, "operands disagree about an extent");
    if (dim[3] > ATTENTION_HEAD)
        return op_refuse(c, e, "heads of more than 256 elements");
    if (c->attr->group < 1 || c->attr->start < 0 ||
        (c->attr->start + dim[2] - 1) / c->attr->group >= key_dim[2])
        return op_refuse(c, e, "query heads without a key head");
    return 0;
}

// The site that the weights' numbers come from; the step is read on the device.
static void read_draw(struct attention *a, const struct op_draw *d, const void *step)
{
    double rate = (double)d->rate;
    a->step = step;
    a->seed = d->seed;
    a->stream = d->stream;
    a->threshold = (unsigned)ceil(rate * 0x1p24);
    a->kept_scale = (float)(1 / (1 - rate));
    for (int i = 0; i < 2; i++)
        a->from[i] = d->from[i];
    for (int i = 0; i < DRAW_DIMS; i++)
        a->extent[i] = d->extent[i];
}

static struct attention read_call(const struct op_call *c)
{
    bool grad = c->op == OP_ATTENTION_GRAD;
    int positions = attention_positions(c->op);
    const int64_t *dim = c->in[0].shape.dim, *key_dim = c->in[1].shape.dim;
    struct attention a = {.q = c->in[0].data,
                          .k = c->in[1].data,
                          .v = c->in[2].data,
                          .dy = grad ? c->in[3].data : NULL,
                          .at_q = c->in[positions].data,
                          .at_k = c->in[positions + 1].data,
                          .out = c->out[0].data,
                          .dk = grad ? c->out[1].data : NULL,
                          .dv = grad ? c->out[2].data : NULL,
                          .batch = dim[0],
                          .queries = dim[1],
                          .keys = key_dim[1],
                          .heads = dim[2],
                          .kv_heads = key_dim[2],
                          .d = dim[3],
                          .start = c->attr->start,
                          .group = c->attr->group,
                          .scale = c->attr->scale,
                          .dtype = c->in[0].dtype,
                          .in_order = c->attr->in_order};
    if (c->nin > positions + 2)
        read_draw(&a, &c->attr->draw, c->in[positions + 2].data);
    return a;
}

// ---- cuDNN -------------------------------------------------------------------------------------

// What a shape and its room got. The key has no padding: it is compared as bytes.
struct key {
    int64_t batch, seq, heads, kv_heads, d, grad;
    uint64_t room;
};
struct kept {
    struct kept *next;
    struct key key;
    struct sdpa *sdpa; // null: no engine serves it, our own kernels do
    struct attention_turn turn;
};

struct attention_state {
    struct cudnn api;
    const char *lacking;  // why there is no cuDNN; null: there is
    cudnnHandle_t handle; // made at the first call that asks for it
    struct kept *first;
};

enum { SCRATCH_ALIGN = 256 };

// Of the library that a device was opened with: one for the process.
static char version[24] = "none";

// The largest part of the call that an engine serves with the scratch there is.
static void settle(struct attention_state *s, bool deterministic, const struct attention *a,
                   struct kept *k)
{
    const struct sdpa_on on = {.api = &s->api, .handle = s->handle};
    for (int n = 0; !k->sdpa && attention_turn(a, n, &k->turn); n++) {
        const struct sdpa_shape shape = {.batch = k->turn.batch,
                                         .seq = a->queries,
                                         .heads = k->turn.heads,
                                         .kv_heads = k->turn.heads / a->group,
                                         .d = a->d,
                                         .row = a->heads * a->d,
                                         .kv_row = a->kv_heads * a->d,
                                         .grad = a->dy != NULL,
                                         .deterministic = deterministic};
        char why[256];
        k->sdpa = sdpa_new(&on, &shape, (size_t)k->key.room, why, sizeof why);
    }
}

static struct kept *kept_for(struct device *d, const struct attention *a, size_t room)
{
    struct attention_state *s = d->attention;
    const struct key key = {a->batch, a->queries, a->heads, a->kv_heads, a->d, a->dy != NULL, room};
    struct kept *k = s->first;
    while (k && memcmp(&k->key, &key, sizeof key) != 0)
        k = k->next;
    if (k)
        return k;
    k = calloc(1, sizeof *k);
    PRE(k);
    *k = (struct kept){.next = s->first, .key = key};
    s->first = k;
    if (!s->lacking && !s->handle && s->api.Create(&s->handle) != CUDNN_STATUS_SUCCESS)
        s->lacking = "cuDNN does not open the device";
    if (!s->lacking)
        settle(s, d->deterministic, a, k);
    return k;
}

// What of an operand a turn begins at.
static void *part(const void *p, int64_t b, int64_t seq, int64_t heads, int64_t h, int64_t d)
{
    return p ? (uint16_t *)(uintptr_t)p + (b * seq * heads + h) * d : NULL;
}

static cudnnStatus_t by_turns(const struct attention *a, const struct kept *k, void *scratch)
{
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int64_t b = 0; b < a->batch; b += k->turn.batch)
        for (int64_t h = 0; h < a->heads && status == CUDNN_STATUS_SUCCESS; h += k->turn.heads) {
            int64_t s = a->queries, n = a->heads, g = h / a->group, kv = a->kv_heads, d = a->d;
            const struct sdpa_operands o = {.q = part(a->q, b, s, n, h, d),
                                            .k = part(a->k, b, s, kv, g, d),
                                            .v = part(a->v, b, s, kv, g, d),
                                            .dy = part(a->dy, b, s, n, h, d),
                                            .y = part(a->dy ? NULL : a->out, b, s, n, h, d),
                                            .dq = part(a->dy ? a->out : NULL, b, s, n, h, d),
                                            .dk = part(a->dk, b, s, kv, g, d),
                                            .dv = part(a->dv, b, s, kv, g, d),
                                            .scale = a->scale};
            status = sdpa_run(k->sdpa, &o, scratch);
        }
    return status;
}

static int run_cudnn(struct stream_q *q, const struct op_call *c, const struct attention *a,
                     const struct kept *k, void *scratch, struct err *e)
{
    const struct attention_state *s = q->device->attention;
    cudnnStatus_t status = s->api.SetStream(s->handle, q->stream);
    if (status == CUDNN_STATUS_SUCCESS)
        status = by_turns(a, k, scratch);
    if (status != CUDNN_STATUS_SUCCESS)
        return err_set(e, ERR_DEVICE, "cuda: %s: cudnn: %s", op_name(c->op),
                       s->api.GetErrorString(status));
    return 0;
}

// ---- the op ------------------------------------------------------------------------------------

int op_attention(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = check(c, e);
    if (rc || !shape_count(&c->out[0].shape))
        return rc;
    struct attention a = read_call(c);
    uintptr_t at = (uintptr_t)c->workspace;
    size_t skip = (SCRATCH_ALIGN - at % SCRATCH_ALIGN) % SCRATCH_ALIGN;
    if (attention_is_plain(&a) && c->workspace_bytes > skip) {
        const struct kept *k = kept_for(q->device, &a, c->workspace_bytes - skip);
        if (k->sdpa)
            return run_cudnn(q, c, &a, k, (char *)c->workspace + skip, e);
    }
    return attention_own(q, c, &a, e);
}

int attention_open(struct device *d, struct err *e)
{
    d->attention = calloc(1, sizeof *d->attention);
    if (!d->attention)
        return err_set(e, ERR_NOMEM, "no memory for a device");
    d->attention->lacking = cudnn_load(&d->attention->api);
    size_t v = d->attention->lacking ? 0 : d->attention->api.GetVersion();
    if (v)
        snprintf(version, sizeof version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
    return 0;
}

void attention_close(struct device *d)
{
    struct attention_state *s = d->attention;
    if (!s)
        return;
    while (s->first) {
        struct kept *k = s->first;
        s->first = k->next;
        sdpa_free(k->sdpa);
        free(k);
    }
    if (s->handle)
        s->api.Destroy(s->handle);
    cudnn_unload(&s->api);
    free(s);
    d->attention = NULL;
}

const char *attention_version(void)
{
    return version;
}
