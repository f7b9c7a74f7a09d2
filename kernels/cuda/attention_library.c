// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN (sdpa.h), for the calls that attention_choice.c allows: keeps the engine that
// was chosen for each shape, and runs a call on it, portion by portion.
//
// cuDNN knows one product of queries and keys. Where a call has a second pair (latent attention:
// 128 + 64 elements a head, or 64 + 128), a portion's q|qr and k|kr are joined in the scratch, its
// engine gets heads of d + r, and its gradients are split again (attention_pair.cu). The scratch is
// then
//   q|qr | k|kr | dq|dqr | dk|dkr | sums for dkr over portions of heads, f32 | the engine's own
#include "kernels/cuda/cuda_attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/sdpa.h"

// A shape with its room for scratch, and the engine chosen for them. The key is compared as bytes,
// so it must have no padding.
struct key {
    int64_t batch, seq, heads, kv_heads, d, r, e, window, ahead, cap, grad, packed;
    uint64_t room;
};
struct tuned {
    struct tuned *next;
    struct key key;
    struct sdpa *sdpa; // null: no engine serves it, our own kernels do
    bool tried;        // the engine was run once
    struct attention_portion portion;
};

struct attention_state {
    struct cudnn api;
    const char *missing;  // why there is no cuDNN; null: there is
    cudnnHandle_t handle; // made at the first call that asks for it
    struct tuned *first;
};

enum { SCRATCH_ALIGN = 256 };

// The version of the library that was loaded; all devices of the process share it.
static char version[24] = "none";

// ---- a second pair -----------------------------------------------------------------------------

// Where a portion's joined rows and their gradients lie in its scratch; all 0 without a second
// pair.
struct joined {
    char *q, *k, *dq, *dk;
    float *sums;
    size_t bytes; // of all of it
};

static char *take_scratch(struct joined *j, void *scratch, int64_t bytes)
{
    char *at = scratch ? (char *)scratch + j->bytes : NULL;
    j->bytes += (size_t)((bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN);
    return at;
}

// Lays out a portion's joined rows. With a null scratch it only counts the bytes.
static struct joined lay_joined(const struct attention *a, const struct attention_portion *p,
                                void *scratch)
{
    struct joined j = {.bytes = 0};
    int64_t rows = p->batch * a->queries, q = 2 * rows * p->heads * (a->d + a->r);
    if (!a->qr)
        return j;
    j.q = take_scratch(&j, scratch, q);
    j.k = take_scratch(&j, scratch, q / a->group);
    if (!a->dy)
        return j;
    j.dq = take_scratch(&j, scratch, q);
    j.dk = take_scratch(&j, scratch, q / a->group);
    if (p->heads < a->heads)
        j.sums = (float *)(void *)take_scratch(&j, scratch, (int64_t)sizeof(float) * rows * a->r);
    return j;
}

// Finds the largest portion of the call that an engine serves within the scratch. If there is none,
// `why` says why.
static void settle_plan(struct attention_state *s, bool deterministic, const struct attention *a,
                        struct tuned *k, char *why, size_t room)
{
    const struct sdpa_on on = {.api = &s->api, .handle = s->handle};
    for (int n = 0; !k->sdpa && attention_portion(a, n, &k->portion); n++) {
        const int64_t width = a->d + a->r, heads = k->portion.heads, keys = heads / a->group;
        const size_t beside = lay_joined(a, &k->portion, NULL).bytes;
        const struct sdpa_shape shape = {.batch = k->portion.batch,
                                         .seq = a->queries,
                                         .heads = heads,
                                         .kv_heads = keys,
                                         .q_pitch = a->qr ? heads * width : a->q_pitch,
                                         .k_pitch = a->qr ? keys * width : a->k_pitch,
                                         .v_pitch = a->v_pitch,
                                         .y_pitch = a->heads * a->e,
                                         .d = width,
                                         .e = a->e,
                                         .ahead = k->key.ahead,
                                         .window = k->key.window,
                                         .cap = k->key.cap,
                                         .grad = a->dy != NULL,
                                         .deterministic = deterministic};
        if (beside > k->key.room)
            snprintf(why, room, "its joined rows take %zu bytes, more than the scratch", beside);
        else
            k->sdpa = sdpa_new(&on, &shape, (size_t)k->key.room - beside, why, room);
    }
}

// Logs what serves a shape and notes it among the device's choices. A key is "attention_grad
// 64x1024x12/12x64 in 268451840 bytes". The width of a head is written 192:128 if its values have
// another one than its keys, 128+64:128 if it has a second pair. "window 4096", "ahead" and
// "capped" follow where they hold, and "packed 3" where that many of q, k and v are one operand. A
// choice is "own" or "cudnn-9.19.0-8x12", with the samples and heads of a portion, and "-varies"
// behind it if the engine's bits may be others the next time.
static void log_plan(struct device *d, const struct tuned *k, const char *why)
{
    char key[200], second[24] = "", values[24] = "", window[40] = "", packed[16] = "",
                   choice[64] = "own";
    const struct key *x = &k->key;
    if (x->r)
        snprintf(second, sizeof second, "+%lld", (long long)x->r);
    if (x->e != x->d + x->r)
        snprintf(values, sizeof values, ":%lld", (long long)x->e);
    if (x->window)
        snprintf(window, sizeof window, " window %lld", (long long)x->window);
    if (x->packed)
        snprintf(packed, sizeof packed, " packed %d", (int)x->packed);
    snprintf(key, sizeof key, "%s %lldx%lldx%lld/%lldx%lld%s%s%s%s%s%s in %llu bytes",
             op_name(x->grad ? OP_ATTENTION_GRAD : OP_ATTENTION), (long long)x->batch,
             (long long)x->seq, (long long)x->heads, (long long)x->kv_heads, (long long)x->d,
             second, values, window, x->ahead ? " ahead" : "", x->cap ? " capped" : "", packed,
             (unsigned long long)x->room);
    if (k->sdpa) {
        snprintf(choice, sizeof choice, "cudnn-%s-%lldx%lld%s", version,
                 (long long)k->portion.batch, (long long)k->portion.heads,
                 sdpa_varies(k->sdpa) ? "-varies" : "");
        log_info("cuda", "%s: chosen %s", key, choice);
    } else {
        log_warn("cuda", "%s: our own kernels serve it: %s", key, why);
    }
    algorithms_note(d, key, choice);
}

// Finds what was chosen for the call's shape; the first time it chooses, and builds an engine. That
// loads code and takes memory of the device, which would end a capture: so there it is refused.
static int find_tuned(struct device *d, const struct op_call *c, const struct attention *a,
                      size_t room, struct tuned **out, struct err *e)
{
    struct attention_state *s = d->attention;
    const int64_t pieces = a->v_pitch / (a->kv_heads * a->e); // of q, k, v, side by side
    const struct key key = {
        a->batch,     a->queries,  a->heads,      a->kv_heads,
        a->d,         a->r,        a->e,          a->back < a->queries - 1 ? a->back + 1 : 0,
        a->ahead > 0, a->cap != 0, a->dy != NULL, pieces > 1 ? pieces : 0,
        room};
    struct tuned *k = s->first;
    while (k && memcmp(&k->key, &key, sizeof key) != 0)
        k = k->next;
    *out = k;
    if (k)
        return 0;
    if (d->captures && !s->missing)
        return op_refuse(c, e, "nobody chose who serves it before this capture: tune it first");
    *out = k = calloc(1, sizeof *k);
    PRE(k);
    *k = (struct tuned){.next = s->first, .key = key};
    s->first = k;
    if (!s->missing && !s->handle && s->api.Create(&s->handle) != CUDNN_STATUS_SUCCESS)
        s->missing = "cuDNN does not open the device";
    char why[256] = "";
    if (!s->missing)
        settle_plan(s, d->deterministic, a, k, why, sizeof why);
    (void)cudaGetLastError(); // an error that building an engine left is not the next launch's
    log_plan(d, k, s->missing ? s->missing : why);
    return 0;
}

// Returns the address in an operand at which a portion begins.
static void *part_of(const void *p, int64_t b, int64_t seq, int64_t pitch, int64_t h, int64_t d)
{
    return p ? (uint16_t *)(uintptr_t)p + b * seq * pitch + h * d : NULL;
}

// Returns what cuDNN reads and writes for the portion that begins at sample b and head h. Its rows of
// lse lie in one piece, since a portion has all heads or one sample.
static struct sdpa_operands operands_of(const struct attention *a, int64_t b, int64_t h)
{
    int64_t s = a->queries, g = h / a->group, d = a->d, e = a->e, y = a->heads * e;
    const void *dq = a->dy ? a->out : NULL;
    return (struct sdpa_operands){.q = part_of(a->q, b, s, a->q_pitch, h, d),
                                  .k = part_of(a->k, b, s, a->k_pitch, g, d),
                                  .v = part_of(a->v, b, s, a->v_pitch, g, e),
                                  .dy = part_of(a->dy, b, s, y, h, e),
                                  .y = part_of(a->dy ? a->y : a->out, b, s, y, h, e),
                                  .lse = a->lse + (b * a->heads + h) * s,
                                  .dq = part_of(dq, b, s, a->q_pitch, h, d),
                                  .dk = part_of(a->dk, b, s, a->k_pitch, g, d),
                                  .dv = part_of(a->dv, b, s, a->v_pitch, g, e),
                                  .scale = a->scale,
                                  .cap = a->cap};
}

// Describes queries, or their gradients, from sample b and head h on.
static struct pair_rows query_rows(const struct attention *a, const struct attention_portion *p,
                                   void *joined, const void *first, const void *qr, int64_t b,
                                   int64_t h)
{
    return (struct pair_rows){.joined = joined,
                              .first = (void *)(uintptr_t)first,
                              .second = part_of(qr, b, a->queries, a->heads * a->r, h, a->r),
                              .rows = p->batch * a->queries,
                              .heads = p->heads,
                              .d = a->d,
                              .r = a->r,
                              .first_pitch = a->q_pitch,
                              .second_pitch = a->heads * a->r,
                              .second_head = a->r};
}

static struct pair_rows key_rows(const struct attention *a, const struct attention_portion *p,
                                 void *joined, const void *first, const void *kr, int64_t b)
{
    return (struct pair_rows){.joined = joined,
                              .first = (void *)(uintptr_t)first,
                              .second = part_of(kr, b, a->keys, a->r, 0, 0),
                              .rows = p->batch * a->keys,
                              .heads = p->heads / a->group,
                              .d = a->d,
                              .r = a->r,
                              .first_pitch = a->k_pitch,
                              .second_pitch = a->r};
}

// Runs a portion of a call with a second pair: cuDNN gets joined operands instead of the call's.
static cudnnStatus_t run_joined(struct stream_q *q, const struct attention *a,
                                const struct tuned *k, int64_t b, int64_t h, char *scratch)
{
    const struct attention_portion *p = &k->portion;
    const struct joined j = lay_joined(a, p, scratch);
    const struct sdpa_operands each = operands_of(a, b, h);
    struct sdpa_operands o = each;
    struct pair_rows rows = query_rows(a, p, j.q, each.q, a->qr, b, h);
    pair_join(q, &rows);
    rows = key_rows(a, p, j.k, each.k, a->kr, b);
    pair_join(q, &rows);
    o.q = j.q;
    o.k = j.k;
    o.dq = j.dq;
    o.dk = j.dk;
    cudnnStatus_t status = sdpa_run(k->sdpa, &o, scratch + j.bytes);
    if (!a->dy || status != CUDNN_STATUS_SUCCESS)
        return status;
    rows = query_rows(a, p, j.dq, each.dq, a->dqr, b, h);
    pair_split(q, &rows, NULL, true, true);
    rows = key_rows(a, p, j.dk, each.dk, a->dkr, b);
    pair_split(q, &rows, j.sums, h == 0, h + p->heads == a->heads);
    return status;
}

static int run_cudnn(struct stream_q *q, const struct op_call *c, const struct attention *a,
                     const struct tuned *k, void *scratch, struct err *e)
{
    const struct attention_state *s = q->device->attention;
    cudnnStatus_t status = s->api.SetStream(s->handle, q->stream);
    for (int64_t b = 0; b < a->batch; b += k->portion.batch)
        for (int64_t h = 0; h < a->heads && status == CUDNN_STATUS_SUCCESS; h += k->portion.heads) {
            const struct sdpa_operands o = operands_of(a, b, h);
            status = a->qr ? run_joined(q, a, k, b, h, scratch) : sdpa_run(k->sdpa, &o, scratch);
        }
    if (status == CUDNN_STATUS_SUCCESS)
        return a->qr ? op_launched(q, c, e) : 0;
    // If the device has failed, its own error names the cause, and cuDNN's status does not.
    int rc = q->device->captures ? 0 : CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
    return rc ? rc
              : err_set(e, ERR_DEVICE, "cuda: %s: cudnn: %s", op_name(c->op),
                        s->api.GetErrorString(status));
}

// Finds what was chosen for the call (*k null: the call has no scratch), and its aligned scratch.
static int library_for(struct device *d, const struct op_call *c, const struct attention *a,
                       void **scratch, struct tuned **k, struct err *e)
{
    uintptr_t at = (uintptr_t)c->workspace;
    size_t skip = (SCRATCH_ALIGN - at % SCRATCH_ALIGN) % SCRATCH_ALIGN;
    *k = NULL;
    if (c->workspace_bytes <= skip)
        return 0;
    size_t room = c->workspace_bytes - skip;
    size_t most = (size_t)d->switches[SWITCH_ATTENTION_SCRATCH] << 20;
    *scratch = (char *)c->workspace + skip;
    return find_tuned(d, c, a, room < most ? room : most, k, e);
}

// An engine that was built may still not start here. So it is run once; if that fails and the
// device is well, our own kernels serve the shape.
int attention_library_settle(struct stream_q *q, const struct op_call *c, const struct attention *a,
                             struct err *e)
{
    void *scratch;
    struct err why = {0};
    struct tuned *k;
    int rc = library_for(q->device, c, a, &scratch, &k, e);
    if (rc || !k || !k->sdpa || k->tried)
        return rc;
    int ran = run_cudnn(q, c, a, k, scratch, &why);
    rc = CUDA(q->device, q, e, cudaStreamSynchronize(q->stream));
    k->tried = true;
    if (!ran || rc)
        return rc;
    (void)cudaGetLastError(); // what its start left behind is not the next launch's error
    sdpa_free(k->sdpa);
    k->sdpa = NULL;
    log_plan(q->device, k, why.text);
    return 0;
}

int attention_library(struct stream_q *q, const struct op_call *c, const struct attention *a,
                      bool *served, struct err *e)
{
    void *scratch;
    struct tuned *k;
    int rc = library_for(q->device, c, a, &scratch, &k, e);
    *served = !rc && k && k->sdpa;
    return *served ? run_cudnn(q, c, a, k, scratch, e) : rc;
}

// ---- with the device ---------------------------------------------------------------------------

int attention_open(struct device *d, struct err *e)
{
    d->attention = calloc(1, sizeof *d->attention);
    if (!d->attention)
        return err_set(e, ERR_NOMEM, "no memory for a device");
    d->attention->missing = cudnn_load(&d->attention->api);
    if (!d->switches[SWITCH_LIBRARY_ATTENTION])
        d->attention->missing = "WEFT_CUDA_LIBRARY_ATTENTION=0 asks for them";
    size_t v = d->attention->missing ? 0 : d->attention->api.GetVersion();
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
        struct tuned *k = s->first;
        s->first = k->next;
        sdpa_free(k->sdpa);
        free(k);
    }
    if (s->handle)
        s->api.Destroy(s->handle);
    free(s);
    d->attention = NULL;
}

const char *attention_version(void)
{
    return version;
}
