// SPDX-License-Identifier: Apache-2.0
// The memory plan. See memory_plan.h.
#include "common/compile/program/memory_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"
#include "common/compile/program/occupancy.h"

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

// Buffers of one flat bucket (bucket.h) lie one behind the other.
struct neighbours {
    int *next;    // buffer → the one behind it, −1
    bool *behind; // buffer → it lies behind another
};

static struct neighbours find_neighbours(const struct program *p, struct arena *scratch)
{
    struct neighbours of = {arena_array(scratch, int, p->nbuffers),
                            arena_array(scratch, bool, p->nbuffers)};
    for (int b = 0; b < p->nbuffers; b++)
        of.next[b] = -1;
    for (int i = 0; i < p->ninstrs; i++)
        for (int k = 0; instr_is_flat(&p->instrs[i]) && k < p->instrs[i].with; k++) {
            int next = p->instrs[i + k + 1].out[0].buffer;
            of.next[p->instrs[i + k].out[0].buffer] = next;
            of.behind[next] = true;
        }
    return of;
}

// `caches`: those alone; else all others.
static void place_persistent(struct program *const *programs, int n, struct map *by_name,
                             bool caches, uint64_t used[REGION_COUNT], struct memory *m)
{
    struct arena scratch = {0};
    for (int i = 0; i < n; i++) {
        const struct neighbours of = find_neighbours(programs[i], &scratch);
        struct buffer *const all = programs[i]->buffers;
        for (int head = 0; head < programs[i]->nbuffers; head++)
            for (int b = of.behind[head] ? -1 : head; b >= 0; b = of.next[b]) {
                struct buffer *buf = &all[b];
                if (!buf->persistent || (buf->kind == BUFFER_CACHE) != caches)
                    continue;
                struct buffer *first = map_get(by_name, buf->name);
                if (first == buf) {
                    buf->offset = used[buf->region];
                    used[buf->region] += align_up(buf->bytes);
                    m->params += buf->kind == BUFFER_PARAM ? buf->bytes : 0;
                    m->grads += buf->kind == BUFFER_GRAD ? buf->bytes : 0;
                    m->optimizer += buf->kind == BUFFER_OPTIMIZER ? buf->bytes : 0;
                    m->copies += buf->kind == BUFFER_COPY ? buf->bytes : 0;
                    m->cache += buf->kind == BUFFER_CACHE ? buf->bytes : 0;
                    m->workspace += buf->kind == BUFFER_WORKSPACE ? buf->bytes : 0;
                }
                buf->region = first->region;
                buf->offset = first->offset;
                buf->bytes = first->bytes;
            }
    }
    arena_clear(&scratch);
}

static bool has_caches(const struct program *p)
{
    for (int b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].kind == BUFFER_CACHE)
            return true;
    return false;
}

static int compare_larger_first(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a < b ? -1 : a > b);
}

// Buffers are placed by size, the largest first, which packs closely. In a program of very many
// buffers those that live for most of the step (such as copies of parameters in the compute dtype)
// go before all others: what they leave between them is filled by what lives shortly.
enum { VERY_MANY = 10000 };
static bool lasts_long(const struct program *p, const struct buffer *b)
{
    return p->nbuffers > VERY_MANY && b->last - b->first > p->ninstrs / 2;
}

// Lists the temporaries in the order in which they are placed, of a bucket the first alone. Returns
// their number.
static int order_temporaries(struct program *p, const struct neighbours *of, struct buffer **order)
{
    int n = 0, lasting = 0;
    for (int half = 0; half < 2; half++) {
        for (int b = 0; b < p->nbuffers; b++)
            if (!p->buffers[b].persistent && !of->behind[b] &&
                lasts_long(p, &p->buffers[b]) == !half)
                order[n++] = &p->buffers[b];
        lasting = half ? lasting : n;
    }
    qsort(order, (size_t)lasting, sizeof *order, compare_larger_first);
    qsort(order + lasting, (size_t)(n - lasting), sizeof *order, compare_larger_first);
    return n;
}

static void place_temporaries(struct program *p, const uint64_t base[REGION_COUNT],
                              uint64_t end[REGION_COUNT])
{
    struct arena scratch = {0};
    struct buffer **order = arena_array(&scratch, struct buffer *, p->nbuffers);
    struct occupancy taken[REGION_COUNT];
    const struct neighbours of = find_neighbours(p, &scratch);
    int n = order_temporaries(p, &of, order);
    for (int r = 0; r < REGION_COUNT; r++)
        occupancy_init(&taken[r], order, n, &scratch);
    for (int i = 0; i < n; i++) {
        struct buffer *buf = order[i];
        uint64_t bytes = 0;
        for (int b = (int)(buf - p->buffers); b >= 0; b = of.next[b])
            bytes += align_up(p->buffers[b].bytes);
        buf->offset = occupancy_find(&taken[buf->region], buf, base[buf->region], bytes);
        occupancy_add(&taken[buf->region], buf, bytes);
        uint64_t at = buf->offset;
        for (int b = (int)(buf - p->buffers); b >= 0; b = of.next[b]) {
            p->buffers[b].offset = at;
            at += align_up(p->buffers[b].bytes);
        }
        if (buf->offset + bytes > end[buf->region])
            end[buf->region] = buf->offset + bytes;
    }
    arena_clear(&scratch);
}

// Whether a program's temporaries need the same places as those of another, which have theirs: all
// that places depend on is alike, as it is on stages of equal layers under one schedule.
static bool is_alike(const struct program *p, const struct program *other)
{
    if (p->nbuffers != other->nbuffers || p->ninstrs != other->ninstrs)
        return false;
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *x = &p->buffers[b], *y = &other->buffers[b];
        if (x->persistent != y->persistent || x->region != y->region || x->bytes != y->bytes ||
            (x->persistent ? x->offset != y->offset : x->first != y->first || x->last != y->last))
            return false;
    }
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].with != other->instrs[i].with)
            return false;
    return true;
}

static void copy_places(struct program *p, const struct program *other, uint64_t end[REGION_COUNT])
{
    for (int b = 0; b < p->nbuffers; b++) {
        struct buffer *buf = &p->buffers[b];
        uint64_t last = other->buffers[b].offset + align_up(buf->bytes);
        buf->offset = other->buffers[b].offset;
        if (!buf->persistent && last > end[buf->region])
            end[buf->region] = last;
    }
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

int plan_memory(struct program *const *programs, int n, const struct placed_stage *like,
                struct arena *scratch, struct memory *out, struct err *e)
{
    struct map by_name = {0};
    uint64_t base[REGION_COUNT] = {0}, behind[REGION_COUNT];
    int ncached = 0;
    *out = (struct memory){0};
    int rc = join_persistent(programs, n, &by_name, e);
    if (!rc) {
        place_persistent(programs, n, &by_name, false, base, out);
        memcpy(out->lasting, base, sizeof base);
        memcpy(behind, base, sizeof base);
        place_persistent(programs, n, &by_name, true, behind, out);
        memcpy(out->region, behind, sizeof behind);
        for (int i = 0; i < n; i++) {
            ncached += has_caches(programs[i]);
            bool alike = like && memcmp(like->memory->lasting, base, sizeof base) == 0 &&
                         is_alike(programs[i], like->programs[i]);
            if (alike)
                copy_places(programs[i], like->programs[i], out->region);
            else
                place_temporaries(programs[i], has_caches(programs[i]) ? behind : base,
                                  out->region);
            uint64_t peak = find_stash_peak(programs[i], scratch);
            out->stash = peak > out->stash ? peak : out->stash;
        }
        if (ncached < n) // they lie where other programs have their temporaries
            out->cache = 0;
        for (int r = 0; r < REGION_COUNT; r++)
            out->arena += out->region[r];
        out->transient = out->arena - out->params - out->grads - out->optimizer - out->copies -
                         out->cache - out->stash - out->workspace;
    }
    map_clear(&by_name);
    return rc;
}
