// SPDX-License-Identifier: Apache-2.0
// Deals slices over ranks. See deal.h.
//
// Parts with one holder go first. Then small parts go whole to the least loaded of their holders,
// the largest first. Then large parts are cut in rows so that their holders' loads become level.
#include "common/ckpt/deal.h"

#include <stdlib.h>

#include "common/base/map.h"

// Below this a part is not worth a cut: two slices cost two digests, two manifest rows, two reads.
enum { CUT_MIN_BYTES = 16 << 10 };

// ---- checks ----
static int check_part(const struct deal_part *p, int nranks, struct err *e)
{
    if (!box_inside(&p->box, &p->global))
        return err_set(e, ERR_INVALID, "tensor '%s': a part lies outside of it", p->name);
    if (p->nranks < 1)
        return err_set(e, ERR_INVALID, "tensor '%s': a part that no rank holds", p->name);
    for (int i = 0; i < p->nranks; i++)
        if (p->ranks[i] < 0 || p->ranks[i] >= nranks || (i && p->ranks[i] <= p->ranks[i - 1]))
            return err_set(e, ERR_INVALID, "tensor '%s': rank %d of %d", p->name, p->ranks[i],
                           nranks);
    return 0;
}

static bool share_rank(const struct deal_part *a, const struct deal_part *b)
{
    for (int i = 0, j = 0; i < a->nranks && j < b->nranks;) {
        if (a->ranks[i] == b->ranks[j])
            return true;
        a->ranks[i] < b->ranks[j] ? i++ : j++;
    }
    return false;
}

// Parts of one tensor are chained through `next`; each new one is compared with the chain.
static int check_parts(struct arena *a, const struct deal_part *parts, int n, int nranks,
                       struct err *e)
{
    struct map seen = {0};
    int rc = 0, *next = arena_array(a, int, n ? n : 1);
    int *index = arena_array(a, int, n ? n : 1);
    for (int i = 0; i < n && !rc; i++) {
        const struct deal_part *p = &parts[i];
        rc = check_part(p, nranks, e);
        index[i] = i;
        const int *first = map_put(&seen, p->name, &index[i]);
        next[i] = first ? *first : -1;
        for (int k = next[i]; k >= 0 && !rc; k = next[k]) {
            const struct deal_part *q = &parts[k];
            if (p->dtype != q->dtype || !shape_equal(&p->global, &q->global))
                rc = err_set(e, ERR_INVALID, "tensor '%s': its parts disagree on dtype or shape",
                             p->name);
            else if (box_overlap(&p->box, &q->box))
                rc = err_set(e, ERR_INVALID, "tensor '%s': two parts overlap", p->name);
            else if (share_rank(p, q))
                rc = err_set(e, ERR_INVALID, "tensor '%s': a rank holds two parts", p->name);
        }
    }
    map_clear(&seen);
    return rc;
}

// ---- dealing ----
struct dealt_part {
    int part, class; // 0: one holder, 1: whole, 2: cut
    uint64_t bytes;
};

static int compare_classes(const void *a, const void *b)
{
    const struct dealt_part *x = a, *y = b;
    if (x->class != y->class)
        return x->class - y->class;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->part - y->part;
}

static void add_slice(struct deal *d, int rank, const struct deal_part *p, int part, int64_t row,
                      int64_t rows)
{
    struct deal_rank *r = &d->rank[rank];
    struct deal_slice *s = &r->slices[r->n++];
    *s = (struct deal_slice){.part = part, .box = p->box};
    if (rows >= 0) {
        struct box one = p->box;
        one.shape.dim[0] = 1;
        s->box.start[0] += row;
        s->box.shape.dim[0] = rows;
        s->at = (uint64_t)row * box_bytes(&one, p->dtype);
    }
    s->bytes = box_bytes(&s->box, p->dtype);
    r->bytes += s->bytes;
}

static void deal_whole(struct deal *d, const struct deal_part *p, int part)
{
    int best = p->ranks[0];
    for (int i = 1; i < p->nranks; i++)
        if (d->rank[p->ranks[i]].bytes < d->rank[best].bytes)
            best = p->ranks[i];
    add_slice(d, best, p, part, 0, -1);
}

// The least level up to which the holders must be filled: Σ max(0, level − load) ≥ bytes.
static uint64_t find_level(const struct deal *d, const struct deal_part *p, uint64_t bytes)
{
    uint64_t lo = 0, hi = bytes;
    for (int i = 0; i < p->nranks; i++)
        if (d->rank[p->ranks[i]].bytes + bytes > hi)
            hi = d->rank[p->ranks[i]].bytes + bytes;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2, room = 0;
        for (int i = 0; i < p->nranks && room < bytes; i++) {
            uint64_t load = d->rank[p->ranks[i]].bytes;
            room += load < mid ? mid - load : 0;
        }
        if (room >= bytes)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

// Gives each holder rows up to its share; a cut lies at the row nearest to the sum of the shares.
static void deal_rows(struct deal *d, const struct deal_part *p, int part, uint64_t bytes)
{
    int64_t rows = p->box.shape.dim[0], row = 0;
    uint64_t row_bytes = bytes / (uint64_t)rows, room = 0, level = find_level(d, p, bytes);
    PRE(row_bytes > 0);
    for (int i = 0; i < p->nranks; i++) {
        uint64_t load = d->rank[p->ranks[i]].bytes;
        room += load < level ? level - load : 0;
        int64_t end = (int64_t)((room + row_bytes / 2) / row_bytes);
        if (end > rows || i == p->nranks - 1)
            end = rows;
        if (end > row)
            add_slice(d, p->ranks[i], p, part, row, end - row);
        row = end > row ? end : row;
    }
}

static int compare_parts(const void *a, const void *b)
{
    return ((const struct deal_slice *)a)->part - ((const struct deal_slice *)b)->part;
}

int deal_make(struct arena *a, const struct deal_part *parts, int nparts, int nranks,
              struct deal *out, struct err *e)
{
    PRE(nranks > 0 && nparts >= 0);
    int rc = check_parts(a, parts, nparts, nranks, e);
    if (rc)
        return rc;
    *out = (struct deal){.nranks = nranks, .rank = arena_array(a, struct deal_rank, nranks)};
    struct dealt_part *order = arena_array(a, struct dealt_part, nparts ? nparts : 1);
    int *held = arena_array(a, int, nranks);
    for (int i = 0; i < nparts; i++) {
        uint64_t bytes = box_bytes(&parts[i].box, parts[i].dtype);
        bool can_cut =
            parts[i].box.shape.n > 0 && parts[i].box.shape.dim[0] > 1 && bytes >= CUT_MIN_BYTES;
        int class = parts[i].nranks == 1 ? 0 : can_cut ? 2 : 1;
        order[i] = (struct dealt_part){.part = i, .class = class, .bytes = bytes};
        for (int k = 0; k < parts[i].nranks; k++)
            held[parts[i].ranks[k]]++;
    }
    for (int r = 0; r < nranks; r++)
        out->rank[r].slices = arena_array(a, struct deal_slice, held[r] + 1);
    if (nparts)
        qsort(order, (size_t)nparts, sizeof *order, compare_classes);
    for (int i = 0; i < nparts; i++) {
        const struct deal_part *p = &parts[order[i].part];
        if (order[i].class == 2)
            deal_rows(out, p, order[i].part, order[i].bytes);
        else
            deal_whole(out, p, order[i].part);
    }
    for (int r = 0; r < out->nranks; r++)
        if (out->rank[r].n)
            qsort(out->rank[r].slices, (size_t)out->rank[r].n, sizeof *out->rank[r].slices,
                  compare_parts);
    return 0;
}
