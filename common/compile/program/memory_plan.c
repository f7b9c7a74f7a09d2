// SPDX-License-Identifier: Apache-2.0
// The memory plan. See memory_plan.h.
#include "common/compile/program/memory_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"

static uint64_t align_up(uint64_t n)
{
    return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

// A persistent value is one buffer to all programs: the first that names it decides its place, and
// a region shared in one program is shared in all.
static int join_persistent(struct program *const *programs, int n, struct map *by_name,
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

static void place_persistent(struct program *const *programs, int n, struct map *by_name,
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
                used[buf->region] += align_up(buf->bytes);
                m->params += buf->kind == BUFFER_PARAM ? buf->bytes : 0;
                m->grads += buf->kind == BUFFER_GRAD ? buf->bytes : 0;
                m->optimizer += buf->kind == BUFFER_OPTIMIZER ? buf->bytes : 0;
                m->copies += buf->kind == BUFFER_COPY ? buf->bytes : 0;
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

// An index of what is placed in a region. The program is divided into spans of instructions, and a
// buffer is entered, sorted by offset, in each span in which it lives. Only buffers that share a
// span with a new one can be in its way.
struct placed {
    uint64_t offset, end; // aligned
    int first, last;
};
struct span {
    struct placed *placed;
    int n, cap, next; // next: where take_next_placed() goes on
};
enum { SPANS = 128 };
struct spans {
    struct span *span;
    int length; // of a span, in instructions
};

// Walks over spans `from` to `to` together by rising offset. Returns null at the end. A buffer
// comes once for each of these spans in which it lives.
static const struct placed *take_next_placed(struct spans *s, int from, int to)
{
    struct span *lowest = NULL;
    for (int i = from; i <= to; i++) {
        struct span *at = &s->span[i];
        if (at->next < at->n &&
            (!lowest || at->placed[at->next].offset < lowest->placed[lowest->next].offset))
            lowest = at;
    }
    return lowest ? &lowest->placed[lowest->next++] : NULL;
}

// Returns the lowest offset from `base` on at which `buf` overlaps no placed buffer that lives at
// the same time.
static uint64_t find_lowest_gap(struct spans *s, const struct buffer *buf, uint64_t base)
{
    uint64_t at = base, bytes = align_up(buf->bytes);
    int from = buf->first / s->length, to = buf->last / s->length;
    for (int i = from; i <= to; i++)
        s->span[i].next = 0;
    for (const struct placed *p; (p = take_next_placed(s, from, to)) && p->offset < at + bytes;)
        if (p->end > at && p->first <= buf->last && buf->first <= p->last)
            at = p->end;
    return at;
}

static void insert_sorted(struct span *s, const struct buffer *buf, struct arena *a)
{
    int low = 0, high = s->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (s->placed[mid].offset < buf->offset)
            low = mid + 1;
        else
            high = mid;
    }
    s->placed = arena_grow(a, s->placed, sizeof *s->placed, s->n, &s->cap);
    memmove(s->placed + low + 1, s->placed + low, sizeof *s->placed * (size_t)(s->n - low));
    s->placed[low] =
        (struct placed){buf->offset, buf->offset + align_up(buf->bytes), buf->first, buf->last};
    s->n++;
}

// With more than SPANS spans, a buffer that lives long would have to be entered in too many of
// them; with fewer, a buffer that lives shortly would have to be compared with too many others.
static struct spans make_spans(const struct program *p, struct arena *a)
{
    struct spans s = {.length = p->ninstrs / SPANS + 1};
    s.span = arena_array(a, struct span, SPANS + 1);
    return s;
}

// Buffers are placed by size, the largest first, which packs closely. In a program of very many
// buffers those that live for most of the step (such as copies of parameters in the compute dtype)
// go before all others, because later each would be compared with nearly every one of them.
enum { VERY_MANY = 10000 };
static bool lasts_long(const struct program *p, const struct buffer *b)
{
    return p->nbuffers > VERY_MANY && b->last - b->first > p->ninstrs / 2;
}

static void place_temporaries(struct program *p, const uint64_t base[REGION_COUNT],
                              uint64_t end[REGION_COUNT])
{
    struct arena scratch = {0};
    struct buffer **order = arena_array(&scratch, struct buffer *, p->nbuffers);
    struct spans spans[REGION_COUNT];
    int n = 0, lasting = 0;
    for (int r = 0; r < REGION_COUNT; r++)
        spans[r] = make_spans(p, &scratch);
    for (int half = 0; half < 2; half++) {
        for (int b = 0; b < p->nbuffers; b++)
            if (!p->buffers[b].persistent && lasts_long(p, &p->buffers[b]) == !half)
                order[n++] = &p->buffers[b];
        lasting = half ? lasting : n;
    }
    qsort(order, (size_t)lasting, sizeof *order, larger_first);
    qsort(order + lasting, (size_t)(n - lasting), sizeof *order, larger_first);
    for (int i = 0; i < n; i++) {
        struct buffer *buf = order[i];
        struct spans *s = &spans[buf->region];
        buf->offset = find_lowest_gap(s, buf, base[buf->region]);
        for (int k = buf->first / s->length; k <= buf->last / s->length; k++)
            insert_sorted(&s->span[k], buf, &scratch);
        uint64_t stop = buf->offset + align_up(buf->bytes);
        if (stop > end[buf->region])
            end[buf->region] = stop;
    }
    arena_clear(&scratch);
}

// The most bytes of stash alive at one instruction.
static uint64_t find_stash_peak(const struct program *p, struct arena *scratch)
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
    int rc = join_persistent(programs, n, &by_name, e);
    if (!rc) {
        place_persistent(programs, n, &by_name, base, out);
        memcpy(out->region, base, sizeof base);
        for (int i = 0; i < n; i++) {
            place_temporaries(programs[i], base, out->region);
            uint64_t peak = find_stash_peak(programs[i], scratch);
            out->stash = peak > out->stash ? peak : out->stash;
        }
        for (int r = 0; r < REGION_COUNT; r++)
            out->arena += out->region[r];
        out->transient = out->arena - out->params - out->grads - out->optimizer - out->copies -
                         out->stash - out->workspace;
    }
    map_clear(&by_name);
    return rc;
}
