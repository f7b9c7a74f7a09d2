// SPDX-License-Identifier: Apache-2.0
// A matmul's labels as a batched GEMM. See gemm.h.
//
// Each label is in two or three of the operands; which ones says whether it is batch, m, n or k.
// A run of labels of one kind must be adjacent, and in the same order, in every operand that has
// it; then the run is one dimension of the product of its sizes.
#include "common/op/gemm.h"

enum { IN_A = 1, IN_B = 2, IN_OUT = 4 };
enum group { M, N, K, BATCH, GROUPS };

static int find_group(unsigned where)
{
    switch (where) {
    case IN_A | IN_OUT:
        return M;
    case IN_B | IN_OUT:
        return N;
    case IN_A | IN_B:
        return K;
    case IN_A | IN_B | IN_OUT:
        return BATCH;
    default:
        return -1; // summed away or broadcast within one operand: not a matmul
    }
}

struct operand {
    const int8_t *label;
    const struct shape *shape;
};

static unsigned find_places(const struct operand op[3], int label)
{
    unsigned where = 0;
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < op[k].shape->n; d++)
            if (op[k].label[d] == label)
                where |= 1u << k;
    return where;
}

// The order of groups in an operand (each at most once), and each group's labels in order.
struct runs {
    int n, group[MAX_DIMS];
    int len[GROUPS];
    int8_t label[GROUPS][MAX_DIMS];
    int64_t size[GROUPS];
};

static bool find_runs(const struct operand op[3], int k, struct runs *r)
{
    *r = (struct runs){.size = {1, 1, 1, 1}};
    for (int d = 0; d < op[k].shape->n; d++) {
        int g = find_group(find_places(op, op[k].label[d]));
        if (g < 0)
            return false;
        bool new_run = r->n == 0 || r->group[r->n - 1] != g;
        if (new_run && r->len[g])
            return false;
        if (new_run)
            r->group[r->n++] = g;
        r->label[g][r->len[g]++] = op[k].label[d];
        r->size[g] *= op[k].shape->dim[d];
    }
    // Batch comes first, where there is one.
    for (int i = 1; i < r->n; i++)
        if (r->group[i] == BATCH)
            return false;
    return true;
}

static bool is_same_run(const struct runs *a, const struct runs *b, enum group g)
{
    if (a->len[g] != b->len[g])
        return false;
    for (int i = 0; i < a->len[g]; i++)
        if (a->label[g][i] != b->label[g][i])
            return false;
    return true;
}

// Whether `first` is stored before `second`; a group that is not there may be either.
static bool is_before(const struct runs *r, enum group first, enum group second)
{
    for (int i = 0; i < r->n; i++) {
        if (r->group[i] == (int)first)
            return true;
        if (r->group[i] == (int)second)
            return r->len[first] == 0;
    }
    return true;
}

static bool read_product(const struct operand op[3], struct gemm *g)
{
    struct runs ra, rb, ro;
    if (!find_runs(op, 0, &ra) || !find_runs(op, 1, &rb) || !find_runs(op, 2, &ro))
        return false;
    if (!is_same_run(&ra, &rb, K) || !is_same_run(&ra, &ro, M) || !is_same_run(&rb, &ro, N) ||
        !is_same_run(&ra, &rb, BATCH) || !is_same_run(&ra, &ro, BATCH) || !is_before(&ro, M, N))
        return false;
    *g = (struct gemm){.batch = ro.size[BATCH],
                       .m = ro.size[M],
                       .n = ro.size[N],
                       .k = ra.size[K],
                       .trans_a = !is_before(&ra, M, K),
                       .trans_b = !is_before(&rb, K, N)};
    g->lda = g->trans_a ? g->m : g->k;
    g->ldb = g->trans_b ? g->k : g->n;
    g->ldc = g->n;
    g->stride_a = g->m * g->k;
    g->stride_b = g->k * g->n;
    g->stride_c = g->m * g->n;
    return true;
}

// A label taken off the operands that have it. `rest`: what is left of them, whose labels lie in
// `label`; in each, where it was, −1: nowhere, and how many elements lie behind it.
struct peeled {
    struct operand rest[3];
    struct shape shape[3];
    int8_t label[3][MAX_DIMS];
    int64_t extent, inner[3];
    int at[3];
};

static void take_off(struct peeled *p, int j, const struct operand *from, int label)
{
    struct shape *to = &p->shape[j];
    p->at[j] = -1;
    p->inner[j] = 1;
    for (int d = 0; d < from->shape->n; d++) {
        if (from->label[d] == label) {
            p->at[j] = d;
            continue;
        }
        p->label[j][to->n] = from->label[d];
        to->dim[to->n++] = from->shape->dim[d];
        p->inner[j] *= p->at[j] < 0 ? 1 : from->shape->dim[d];
    }
    p->rest[j] = (struct operand){p->label[j], to};
}

// Takes the label that leads operand k off the two that have it. `leading`: it must lead both.
static bool take_label(const struct operand op[3], int k, bool leading, struct peeled *p)
{
    *p = (struct peeled){.extent = 1};
    if (op[k].shape->n == 0)
        return false;
    const int label = op[k].label[0], group = find_group(find_places(op, label));
    bool leads = true;
    for (int j = 0; j < 3; j++) {
        take_off(p, j, &op[j], label);
        leads = leads && p->at[j] <= 0;
    }
    p->extent = op[k].shape->dim[0];
    return group >= 0 && group != BATCH && (leads || !leading);
}

// A batch begins where its label leads the operand, or stands between its rows and its columns, which
// are *ld: then as many rows as there are batches lie side by side.
static bool place_batch(const struct peeled *p, int j, int64_t *ld, int64_t *stride)
{
    *stride = p->at[j] < 0 ? 0 : p->inner[j];
    if (p->at[j] <= 0)
        return true;
    bool between = p->inner[j] == *ld;
    *ld *= p->extent;
    return between;
}

bool gemm_from_labels(const struct op_attr *attr, const struct shape *a, const struct shape *b,
                      const struct shape *out, struct gemm *g)
{
    const struct operand op[3] = {{attr->label[0], a}, {attr->label[1], b}, {attr->label[2], out}};
    bool found = read_product(op, g);
    for (int i = 0; i < 6 && !found; i++) { // else as a batch over the first label of an operand
        struct peeled p;
        if (!take_label(op, i % 3, i < 3, &p) || !read_product(p.rest, g) || g->batch != 1)
            continue;
        g->batch = p.extent;
        found = place_batch(&p, 0, &g->lda, &g->stride_a) &&
                place_batch(&p, 1, &g->ldb, &g->stride_b) &&
                place_batch(&p, 2, &g->ldc, &g->stride_c);
    }
    return found;
}

int gemm_summed(const struct op_attr *attr, const struct shape *a)
{
    for (int d = 0; d < a->n; d++)
        if (attr->label[0][d] == attr->label[3][0])
            return 0;
    return 1;
}
