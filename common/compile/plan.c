// SPDX-License-Identifier: Apache-2.0
// The memory plan. See plan.h.
#include "common/compile/plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"

static uint64_t aligned(uint64_t n)
{
    return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

// A persistent value is one buffer to all programs: the first that names it decides its place, and
// a region shared in one program is shared in all.
static int persistent_join(struct program *const *programs, int n, struct map *by_name,
                           struct err *e)
{
    for (int i = 0; i < n; i++)
        for (int b = 0; b < programs[i]->nbuffers; b++) {
            struct buffer *buf = &programs[i]->buffers[b];
            if (!buf->persistent)
                continue;
            PRE(buf->name);
            struct buffer *first = map_get(by_name, buf->name);
            if (!first) {
                map_put(by_name, buf->name, buf);
                continue;
            }
            if (buf->kind == BUFFER_WORKSPACE && buf->bytes > first->bytes)
                first->bytes = buf->bytes; // the largest need of all programs
            else if (buf->kind != BUFFER_WORKSPACE && first->bytes != buf->bytes)
                return err_set(e, ERR_INTERNAL, "plan: %s has two sizes", buf->name);
            if (buf->region == REGION_SHARED)
                first->region = REGION_SHARED;
        }
    return 0;
}

static void persistent_place(struct program *const *programs, int n, struct map *by_name,
                             uint64_t used[REGION_COUNT], struct memory *m)
{
    for (int i = 0; i < n; i++)
        for (int b = 0; b < programs[i]->nbuffers; b++) {
            struct buffer *buf = &programs[i]->buffers[b];
            if (!buf->persistent)
                continue;
            struct buffer *first = map_get(by_name, buf->name);
            if (first == buf) {
                buf->offset = used[buf->region];
                used[buf->region] += aligned(buf->bytes);
                m->params += buf->kind == BUFFER_PARAM ? buf->bytes : 0;
                m->grads += buf->kind == BUFFER_GRAD ? buf->bytes : 0;
                m->optimizer += buf->kind == BUFFER_OPTIMIZER ? buf->bytes : 0;
                m->workspace += buf->kind == BUFFER_WORKSPACE ? buf->bytes : 0;
            }
            buf->region = first->region;
            buf->offset = first->offset;
            buf->bytes = first->bytes;
        }
}

static int larger_first(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

// What is placed in one region, lowest first: a gap is then found in one pass.
struct placed {
    uint64_t offset, end; // aligned
    int first, last;
};

// The lowest offset from `base` on where `buf` meets nothing placed that lives with it.
static uint64_t lowest_gap(const struct placed *placed, int n, const struct buffer *buf,
                           uint64_t base)
{
    uint64_t at = base, bytes = aligned(buf->bytes);
    for (int i = 0; i < n && placed[i].offset < at + bytes; i++)
        if (placed[i].end > at && placed[i].first <= buf->last && buf->first <= placed[i].last)
            at = placed[i].end;
    return at;
}

static void keep_sorted(struct placed *placed, int n, const struct buffer *buf)
{
    int low = 0, high = n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (placed[mid].offset < buf->offset)
            low = mid + 1;
        else
            high = mid;
    }
    memmove(placed + low + 1, placed + low, sizeof *placed * (size_t)(n - low));
    placed[low] =
        (struct placed){buf->offset, buf->offset + aligned(buf->bytes), buf->first, buf->last};
}

static void temporaries_place(struct program *p, struct arena *scratch,
                              const uint64_t base[REGION_COUNT], uint64_t end[REGION_COUNT])
{
    struct buffer **order = arena_array(scratch, struct buffer *, p->nbuffers);
    struct placed *placed[REGION_COUNT];
    int n = 0, count[REGION_COUNT] = {0};
    for (int r = 0; r < REGION_COUNT; r++)
        placed[r] = arena_array(scratch, struct placed, p->nbuffers);
    for (int b = 0; b < p->nbuffers; b++)
        if (!p->buffers[b].persistent)
            order[n++] = &p->buffers[b];
    qsort(order, (size_t)n, sizeof(struct buffer *), larger_first);
    for (int i = 0; i < n; i++) {
        enum region r = order[i]->region;
        order[i]->offset = lowest_gap(placed[r], count[r], order[i], base[r]);
        keep_sorted(placed[r], count[r]++, order[i]);
        uint64_t stop = order[i]->offset + aligned(order[i]->bytes);
        if (stop > end[r])
            end[r] = stop;
    }
}

// The most bytes of stash alive at one instruction.
static uint64_t stash_peak(const struct program *p, struct arena *scratch)
{
    uint64_t peak = 0, now = 0;
    uint64_t *born = arena_array(scratch, uint64_t, p->ninstrs + 1);
    uint64_t *freed = arena_array(scratch, uint64_t, p->ninstrs + 1); // after the one before
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *buf = &p->buffers[b];
        if (buf->kind != BUFFER_STASH)
            continue;
        born[buf->first] += buf->bytes;
        freed[buf->last + 1] += buf->bytes;
    }
    for (int i = 0; i < p->ninstrs; i++) {
        now += born[i] - freed[i];
        if (now > peak)
            peak = now;
    }
    return peak;
}

int plan_memory(struct program *const *programs, int n, struct arena *scratch, struct memory *out,
                struct err *e)
{
    struct map by_name = {0};
    uint64_t base[REGION_COUNT] = {0};
    *out = (struct memory){0};
    int rc = persistent_join(programs, n, &by_name, e);
    if (!rc) {
        persistent_place(programs, n, &by_name, base, out);
        memcpy(out->region, base, sizeof base);
        for (int i = 0; i < n; i++) {
            temporaries_place(programs[i], scratch, base, out->region);
            uint64_t peak = stash_peak(programs[i], scratch);
            out->stash = peak > out->stash ? peak : out->stash;
        }
        for (int r = 0; r < REGION_COUNT; r++)
            out->arena += out->region[r];
        out->transient =
            out->arena - out->params - out->grads - out->optimizer - out->stash - out->workspace;
    }
    map_clear(&by_name);
    return rc;
}
