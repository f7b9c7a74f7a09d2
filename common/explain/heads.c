// SPDX-License-Identifier: Apache-2.0
// Shared key heads on a mesh. See heads.h.
#include "common/explain/heads.h"

#include <stdlib.h>

#include "common/compile/graph/node_work.h"
#include "common/language/model_program.h"

struct heads {
    int64_t query, key; // heads
    int64_t parts;      // that the query heads are cut into
    axis_set axes;
    enum dim dim;     // of the key heads
    const char *size; // of the model, which says how many key heads there are; null: none does
};

static bool has_key_heads(const struct heads *h, const struct value *v)
{
    for (int d = 0; d < v->shape.n; d++)
        if (v->dims[d] == h->dim)
            return true;
    return false;
}

// What a device holds of key heads that its query heads do not read: it needs one.
static uint64_t count_idle_bytes(const struct heads *h, const struct graph *g)
{
    uint64_t bytes = 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && g->values[v].alias < 0 &&
            has_key_heads(h, &g->values[v]))
            bytes += (uint64_t)shape_count(&g->values[v].shape) * dtype_size(g->values[v].dtype);
    return bytes / (uint64_t)h->key * (uint64_t)(h->key - 1);
}

// Whether so many key heads divide by the cut, or the cut by them.
static bool goes_with_cut(const struct heads *h, int64_t key)
{
    return h->query % key == 0 && (key % h->parts == 0 || h->parts % key == 0);
}

static const char *list_numbers_that_do(const struct heads *h, struct arena *a, int64_t *nearest)
{
    struct buf b = {0};
    *nearest = 1;
    for (int64_t key = 1; key <= h->query; key++) {
        if (!goes_with_cut(h, key))
            continue;
        buf_printf(&b, "%s%lld", b.len ? ", " : "", (long long)key);
        if (llabs(key - h->key) < llabs(*nearest - h->key))
            *nearest = key;
    }
    return buf_keep(&b, a);
}

static const char *fix_key_heads(const struct heads *h, int64_t key, struct arena *a)
{
    return h->size ? arena_printf(a, "model.%s=%lld", h->size, (long long)key) : NULL;
}

static void report_wrong_ratio(const struct heads *h, const struct mesh *m, struct findings *f)
{
    int64_t nearest;
    const char *sizes = list_numbers_that_do(h, f->arena, &nearest);
    findings_say(
        f,
        (struct finding){.code = FINDING_KEY_HEADS,
                         .tensor = point_name(POINT_ATT),
                         .axes = h->axes,
                         .fix = fix_key_heads(h, nearest, f->arena)},
        "%s: %lld key heads do not go with %lld query heads cut %lld ways (%s): try %s%s of %s",
        point_name(POINT_ATT), (long long)h->key, (long long)h->query, (long long)h->parts,
        axis_set_text(m, h->axes, f->arena), h->size ? "model." : "a number",
        h->size ? h->size : "", sizes);
}

static void report_whole(const struct heads *h, const struct job *job, const struct mesh *m,
                         const struct graph *g, struct findings *f)
{
    // FLOPs of a step's products that make keys and values and their gradients, on one device that
    // makes them all; what is made again for the backward not counted.
    double total = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool keys = false;
        for (int k = 0; k < n->nin; k++)
            keys |= has_key_heads(h, &g->values[n->in[k]]);
        for (int k = 0; k < n->nout; k++)
            keys |= has_key_heads(h, &g->values[n->out[k]]);
        if (op_is(n->op, OP_IS_PRODUCT) && keys && !n->again)
            total += node_flops(g, NULL, n);
    }
    double repeated = total * (double)job->train.microbatches * (double)(h->parts - 1);
    findings_say(f,
                 (struct finding){.code = FINDING_KEY_HEADS_WHOLE,
                                  .tensor = point_name(POINT_ATT),
                                  .axes = h->axes,
                                  .waste = count_idle_bytes(h, g),
                                  .fix = fix_key_heads(h, h->parts, f->arena)},
                 "%s: %lld key heads do not divide by %lld (%s): every device makes all keys and "
                 "values, %.4g FLOPs a step are repeated",
                 point_name(POINT_ATT), (long long)h->key, (long long)h->parts,
                 axis_set_text(m, h->axes, f->arena), repeated);
}

void heads_check(const struct sharding *s, const struct job *job, const struct mesh *m,
                 const struct graph *g, struct findings *f)
{
    enum { HEADS = 2 };
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (n->op != OP_ATTENTION)
            continue;
        const struct value *q = &g->values[n->in[0]], *k = &g->values[n->in[1]];
        struct spec spec = sharding_spec(s, m, q);
        struct heads h = {
            q->shape.dim[HEADS],        k->shape.dim[HEADS], dim_parts(m, &spec.dim[HEADS]),
            dim_axes(&spec.dim[HEADS]), k->dims[HEADS],      NULL};
        const char *name = dims_name(g->dims, h.dim);
        if (job->model.read && model_size_find(job->model.read, name) >= 0)
            h.size = name;
        if (h.key % h.parts == 0)
            continue;
        if (!goes_with_cut(&h, h.key))
            report_wrong_ratio(&h, m, f);
        else
            report_whole(&h, job, m, g, f);
        return; // the layers are alike
    }
}
