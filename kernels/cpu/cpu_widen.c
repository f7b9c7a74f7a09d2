// SPDX-License-Identifier: Apache-2.0
// bf16 operands for a kernel that knows f32: widened into the workspace, chunk by chunk, and the
// results rounded back. What lies where is common/op/widen.h's; the kernel's own scratch follows.
//
// Products take theirs as they are where operands are packed (packed.c). The rest is for correctness,
// not for speed: the f32 kernel's bits, rounded once, to the nearest even.
#include "common/op/cache.h"
#include "common/op/widen.h"

#include "kernels/cpu/cpu_device.h"

struct widen_work {
    const struct vec *vec;
    float *f32;
    uint16_t *bf16;
};

static void widen_slice(void *arg, int64_t begin, int64_t end)
{
    const struct widen_work *w = arg;
    w->vec->widen(w->f32 + begin, w->bf16 + begin, end - begin);
}

static void narrow_slice(void *arg, int64_t begin, int64_t end)
{
    const struct widen_work *w = arg;
    w->vec->narrow(w->bf16 + begin, w->f32 + begin, end - begin);
}

struct widen_chunk {
    struct stream_q *q;
    const struct op_call *call;
    const struct widen *w;
    char *scratch;
    int64_t at, n; // rows of this chunk
    bool taken;    // the kernel takes the inputs as they are
};

static bool is_converted(const struct widen_chunk *t, int k)
{
    return t->w->operand[k].wide && (k >= t->call->nin || !t->taken);
}

// Returns operand k as the kernel sees it for the current chunk.
static struct tensor make_operand(const struct widen_chunk *t, int k)
{
    const struct op_call *c = t->call;
    const struct widen_operand *o = &t->w->operand[k];
    struct tensor x = k < c->nin ? c->in[k] : c->out[k - c->nin];
    if (o->chunked) {
        x.data = (char *)x.data + (size_t)(t->at * o->each) * dtype_size(x.dtype);
        for (int d = 0; d < t->w->lead; d++)
            x.shape.dim[d] = d == t->w->lead - 1 ? t->n : 1;
    }
    if (is_converted(t, k)) {
        x.data = t->scratch + o->at;
        x.dtype = DT_F32;
    }
    return x;
}

// The positions of the keys of sample `row`, if operand k is attention's keys or values of a sample each;
// null: it is not.
static const int32_t *find_positions(const struct widen_chunk *t, int k, int64_t row)
{
    const struct op_call *c = t->call;
    struct attention_operands o;
    if (c->op != OP_ATTENTION || t->w->lead != 1 || attention_operands(c->op, c->nin, &o) ||
        (k != o.k && k != o.v && k != o.kr))
        return NULL;
    return (const int32_t *)c->in[o.at_k].data + row * c->in[o.at_k].shape.dim[1];
}

// Brings to scratch what attention reads of a cache.
static void widen_keys(const struct widen_chunk *t, int k, const struct widen_work *all)
{
    const int64_t each = t->w->operand[k].each, places = t->call->in[k].shape.dim[1];
    for (int64_t i = 0; i < t->n; i++) {
        struct widen_work w = *all;
        w.f32 += i * each;
        w.bf16 += i * each;
        pool_for(t->q->device->pool,
                 cache_filled(find_positions(t, k, t->at + i), places) * (each / places), GRAIN,
                 widen_slice, &w);
    }
}

// Brings the bf16 operands from `first` to `end` that are walked in chunks, or those that are not,
// to scratch or back from it.
static void convert_operands(const struct widen_chunk *t, int first, int end, bool chunked,
                             bool back)
{
    const struct op_call *c = t->call;
    for (int k = first; k < end; k++) {
        const struct widen_operand *o = &t->w->operand[k];
        const struct tensor *x = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        if (!is_converted(t, k) || o->chunked != chunked)
            continue;
        struct widen_work w = {.vec = t->q->device->vec,
                               .f32 = (float *)(void *)(t->scratch + o->at),
                               .bf16 = (uint16_t *)x->data + (chunked ? t->at * o->each : 0)};
        if (!back && chunked && find_positions(t, k, t->at)) {
            widen_keys(t, k, &w);
            continue;
        }
        pool_for(t->q->device->pool, o->each * (chunked ? t->n : 1), GRAIN,
                 back ? narrow_slice : widen_slice, &w);
    }
}

bool widen_wanted(const struct op_call *c)
{
    bool any = false;
    for (int k = 0; k < c->nin; k++)
        any |= c->in[k].dtype == DT_BF16;
    for (int k = 0; k < c->nout; k++)
        any |= c->out[k].dtype == DT_BF16;
    return any && op_whole(c->op);
}

int widen_run(struct stream_q *q, const struct op_call *c, backend_op kernel, bool taken,
              struct err *e)
{
    struct widen w;
    widen_of(c, &w);
    struct widen_chunk t = {.q = q, .call = c, .w = &w, .scratch = c->workspace, .taken = taken};
    struct op_call f = *c;
    // Of a chunk: attr.draw.from[0] moves with the chunk's samples, the first expert with its experts.
    struct op_attr attr = *c->attr;
    f.attr = &attr;
    int all = c->nin + c->nout, rc = 0;
    bool adds = false; // an output is a sum over what is walked in chunks
    for (int k = c->nin; k < all; k++)
        adds |= !w.operand[k].chunked;
    PRE(w.bytes <= c->workspace_bytes);
    f.workspace = t.scratch + w.bytes;
    f.workspace_bytes = c->workspace_bytes - w.bytes;
    convert_operands(&t, 0, c->nin, false, false);
    for (t.at = 0; t.at < w.rows && !rc; t.at += w.chunk) {
        t.n = w.rows - t.at < w.chunk ? w.rows - t.at : w.chunk;
        attr.draw.from[0] = c->attr->draw.from[0] + t.at;
        attr.slots.first.expert = c->attr->slots.first.expert + t.at;
        convert_operands(&t, 0, c->nin, true, false);
        for (int k = 0; k < all; k++)
            *(k < c->nin ? &f.in[k] : &f.out[k - c->nin]) = make_operand(&t, k);
        f.accumulate = c->accumulate || (t.at > 0 && adds);
        rc = kernel(q, &f, e);
        convert_operands(&t, c->nin, all, true, true);
    }
    convert_operands(&t, c->nin, all, false, true);
    return rc;
}
