// SPDX-License-Identifier: Apache-2.0
// Comparing checkpoints. See diff.h.
#include "common/ckpt/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/map.h"
#include "common/base/plain.h"

enum { PART_BYTES = 16 << 20 };

static const char *const kinds[DIFF_KINDS] = {"equal", "values", "shape", "only in A", "only in B"};

struct comparing {
    struct load *a, *b;
    int (*done)(void *ctx, uint64_t bytes, uint64_t of);
    void *ctx;
    uint64_t read, all;
    char *part_a, *part_b;
};

static const char *print_shape(struct arena *a, const struct manifest_tensor *t)
{
    return arena_printf(a, "%s %s", ckpt_dtype_name(t->dtype),
                        shape_text(t->unpadded, t->shape.n, a));
}

static double element(enum dtype t, const char *at, int64_t i)
{
    uint32_t bits;
    uint16_t half;
    float x;
    if (t == DT_F32) {
        memcpy(&x, at + 4 * i, sizeof x);
    } else {
        memcpy(&half, at + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&x, &bits, sizeof x);
    }
    return x;
}

static void compare_part(struct comparing *x, struct diff_item *item, enum dtype t, uint64_t bytes)
{
    bool same = memcmp(x->part_a, x->part_b, bytes) == 0;
    item->kind = same ? item->kind : DIFF_VALUES;
    if (t != DT_F32 && t != DT_BF16)
        return;
    for (int64_t i = 0; i < (int64_t)(bytes / dtype_size(t)); i++) {
        double a = element(t, x->part_a, i), b = element(t, x->part_b, i), by = fabs(a - b);
        if (!same && !(by <= item->most)) // a NaN stays
            item->most = by;
        item->norm_a += a * a;
        item->norm_b += b * b;
    }
}

// In boxes of one entry of the first dimensions, a range of the next, all of the rest.
static int compare_tensor(struct comparing *x, const struct manifest_tensor *a,
                          const struct manifest_tensor *b, struct diff_item *item, struct err *e)
{
    struct box part = {.shape = a->shape};
    int64_t row = (int64_t)dtype_size(a->dtype), rows;
    int cut = a->shape.n - 1, d, rc = load_check(x->a, a, e);
    if (!rc)
        rc = load_check(x->b, b, e);
    memcpy(part.shape.dim, a->unpadded, sizeof part.shape.dim);
    item->elements = 1;
    for (d = 0; d < a->shape.n; d++)
        item->elements *= a->unpadded[d];
    for (; cut > 0 && row * a->unpadded[cut] <= PART_BYTES; cut--)
        row *= a->unpadded[cut];
    rows = row < PART_BYTES ? PART_BYTES / row : 1;
    for (d = 0; d < cut; d++)
        part.shape.dim[d] = 1;
    while (!rc && item->elements) {
        int64_t left = cut < 0 ? 1 : a->unpadded[cut] - part.start[cut];
        if (cut >= 0)
            part.shape.dim[cut] = rows < left ? rows : left;
        uint64_t bytes = box_bytes(&part, a->dtype);
        rc = load_read_part(x->a, a, &part, x->part_a, e);
        if (!rc)
            rc = load_read_part(x->b, b, &part, x->part_b, e);
        if (!rc)
            compare_part(x, item, a->dtype, bytes);
        x->read += bytes;
        if (!rc && x->done && x->done(x->ctx, x->read, x->all))
            rc = err_set(e, ERR_ABORTED, "stopped");
        if (cut < 0)
            break;
        part.start[cut] += part.shape.dim[cut];
        for (d = cut; d > 0 && part.start[d] == a->unpadded[d]; d--) {
            part.start[d] = 0;
            part.start[d - 1]++;
        }
        if (part.start[0] == a->unpadded[0])
            break;
    }
    item->norm_a = sqrt(item->norm_a);
    item->norm_b = sqrt(item->norm_b);
    return rc;
}

static bool same_shape(const struct manifest_tensor *a, const struct manifest_tensor *b)
{
    bool same = a->dtype == b->dtype && a->shape.n == b->shape.n;
    for (int d = 0; same && d < a->shape.n; d++)
        same = a->unpadded[d] == b->unpadded[d];
    return same;
}

int diff_make(struct diff *d, struct load *a, struct load *b,
              int (*done)(void *ctx, uint64_t bytes, uint64_t of), void *ctx, struct err *e)
{
    struct comparing x = {.a = a, .b = b, .done = done, .ctx = ctx};
    struct map in_a = {0}, in_b = {0};
    int rc = 0;
    *d = (struct diff){0};
    d->items =
        arena_array(&d->arena, struct diff_item, a->manifest.ntensors + b->manifest.ntensors + 1);
    x.all = manifest_bytes(&a->manifest);
    x.part_a = malloc(PART_BYTES);
    x.part_b = malloc(PART_BYTES);
    if (!x.part_a || !x.part_b)
        rc = err_set(e, ERR_NOMEM, "no memory to read with");
    for (int i = 0; i < b->manifest.ntensors; i++)
        map_put(&in_b, b->manifest.tensors[i].name, &b->manifest.tensors[i]);
    for (int i = 0; i < a->manifest.ntensors && !rc; i++) {
        const struct manifest_tensor *t = &a->manifest.tensors[i], *u = map_get(&in_b, t->name);
        struct diff_item *item = &d->items[d->n++];
        item->name = arena_strdup(&d->arena, t->name);
        map_put(&in_a, t->name, item);
        if (!u) {
            item->kind = DIFF_ONLY_A;
        } else if (!same_shape(t, u)) {
            item->kind = DIFF_SHAPE;
            item->a = print_shape(&d->arena, t);
            item->b = print_shape(&d->arena, u);
        } else {
            rc = compare_tensor(&x, t, u, item, e);
        }
    }
    for (int i = 0; i < b->manifest.ntensors && !rc; i++)
        if (!map_get(&in_a, b->manifest.tensors[i].name))
            d->items[d->n++] = (struct diff_item){
                .name = arena_strdup(&d->arena, b->manifest.tensors[i].name), .kind = DIFF_ONLY_B};
    free(x.part_a);
    free(x.part_b);
    map_clear(&in_a);
    map_clear(&in_b);
    return rc;
}

void diff_clear(struct diff *d)
{
    arena_clear(&d->arena);
    *d = (struct diff){0};
}

bool diff_same(const struct diff *d)
{
    bool same = true;
    for (int i = 0; i < d->n; i++)
        same &= d->items[i].kind == DIFF_EQUAL;
    return same;
}

void diff_print_text(const struct diff *d, struct buf *out)
{
    int count[DIFF_KINDS] = {0};
    for (int i = 0; i < d->n; i++) {
        const struct diff_item *x = &d->items[i];
        count[x->kind]++;
        if (x->kind == DIFF_VALUES)
            plain_line(out, "%s: max |a - b| %.3g, norms %.6g and %.6g", x->name, x->most,
                       x->norm_a, x->norm_b);
        else if (x->kind == DIFF_SHAPE)
            plain_line(out, "%s: %s and %s", x->name, x->a, x->b);
        else if (x->kind != DIFF_EQUAL)
            plain_line(out, "%s: %s", x->name, kinds[x->kind]);
    }
    buf_printf(out,
               "%d tensors are equal, %d have other values, %d another shape, %d are only in A, %d "
               "only in B\n",
               count[DIFF_EQUAL], count[DIFF_VALUES], count[DIFF_SHAPE], count[DIFF_ONLY_A],
               count[DIFF_ONLY_B]);
}

void diff_print_json(const struct diff *d, struct buf *out)
{
    static const char *const states[DIFF_KINDS] = {"equal", "values", "shape", "only_a", "only_b"};
    struct json_out w;
    json_out_init(&w, out);
    json_object(&w, NULL);
    json_array(&w, "tensors");
    for (int i = 0; i < d->n; i++) {
        const struct diff_item *x = &d->items[i];
        bool compared = x->kind == DIFF_EQUAL || x->kind == DIFF_VALUES;
        json_object(&w, NULL);
        json_str(&w, "name", x->name);
        json_str(&w, "state", states[x->kind]);
        if (compared) {
            json_int(&w, "elements", x->elements);
            json_double(&w, "max_abs", x->most);
            json_double(&w, "norm_a", x->norm_a);
            json_double(&w, "norm_b", x->norm_b);
        }
        if (x->kind == DIFF_SHAPE) {
            json_str(&w, "a", x->a);
            json_str(&w, "b", x->b);
        }
        json_end(&w);
    }
    json_end(&w);
    json_bool(&w, "same", diff_same(d));
    json_nonfinite(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(out, '\n');
}
