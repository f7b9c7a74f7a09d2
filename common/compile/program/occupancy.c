// SPDX-License-Identifier: Apache-2.0
// Taken bytes by instruction. See occupancy.h.
#include "common/compile/program/occupancy.h"

#include <stdlib.h>
#include <string.h>

struct interval {
    uint64_t start, end;
};
struct intervals {
    struct interval *at;
    int n, cap;
};
struct occupied {
    struct intervals some; // taken at some moment of the node
    struct intervals all;  // by buffers that live through all of the node, not of its parent
};

static int compare_numbers(const void *x, const void *y)
{
    int a = *(const int *)x, b = *(const int *)y;
    return (a > b) - (a < b);
}

void occupancy_init(struct occupancy *o, struct buffer *const *buffers, int n, struct arena *a)
{
    *o = (struct occupancy){.arena = a, .leaves = 1, .depth = 1};
    o->moments = arena_array(a, int, n);
    for (int i = 0; i < n; i++)
        o->moments[i] = buffers[i]->first;
    qsort(o->moments, (size_t)n, sizeof *o->moments, compare_numbers);
    for (int i = 0; i < n; i++)
        if (!o->n || o->moments[o->n - 1] != o->moments[i])
            o->moments[o->n++] = o->moments[i];
    for (; o->leaves < o->n; o->leaves *= 2)
        o->depth++;
    o->node = arena_array(a, struct occupied, 2 * o->leaves);
}

// How many moments come before an instruction.
static int count_before(const struct occupancy *o, int instr)
{
    int low = 0, high = o->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (o->moments[mid] < instr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

// Where a search through the tree is: the lifetime that it is about, and the node that it reached.
struct walk {
    int from, to;        // the lifetime's first and last moment
    int node, low, high; // the node, its first and last moment
};

static struct walk start_walk(const struct occupancy *o, const struct buffer *b)
{
    return (struct walk){.from = count_before(o, b->first),
                         .to = count_before(o, b->last + 1) - 1,
                         .node = 1,
                         .high = o->leaves - 1};
}

static bool misses_node(const struct walk *w)
{
    return w->high < w->from || w->to < w->low;
}

static bool fills_node(const struct walk *w)
{
    return w->from <= w->low && w->high <= w->to;
}

static struct walk enter_child(struct walk w, int half)
{
    int mid = w.low + (w.high - w.low) / 2;
    w.node = 2 * w.node + half;
    *(half ? &w.low : &w.high) = mid + half;
    return w;
}

// ---- finding ------------------------------------------------------------------------------------

struct rest { // of a list: what ends above the offset that is looked at
    const struct interval *at, *end;
};

static int add_rest(const struct intervals *s, struct rest *rests, int n)
{
    if (s->n)
        rests[n++] = (struct rest){s->at, s->at + s->n};
    return n;
}

// Lists all that is taken during a lifetime. Returns how many lists there are.
static int list_rests(const struct occupancy *o, struct walk w, struct rest *rests, int n)
{
    const struct occupied *node = &o->node[w.node];
    if (misses_node(&w))
        return n;
    if (fills_node(&w)) // with what takes all of it
        return add_rest(&node->some, rests, n);
    n = add_rest(&node->all, rests, n);
    for (int half = 0; half < 2; half++)
        n = list_rests(o, enter_child(w, half), rests, n);
    return n;
}

// Skips what ends at `at` or below it, in steps that double, since it may be much or nothing.
static void skip_below(struct rest *r, uint64_t at)
{
    ptrdiff_t step = 1;
    while (r->at < r->end && r->at->end <= at) {
        const struct interval *on = r->end - r->at > step ? r->at + step : NULL;
        if (on && on[-1].end <= at) {
            r->at = on;
            step *= 2;
        } else {
            r->at++;
            step = 1;
        }
    }
}

uint64_t occupancy_find(const struct occupancy *o, const struct buffer *b, uint64_t base,
                        uint64_t bytes)
{
    enum { DEPTH_MAX = 32 };          // of a tree over `int` moments
    struct rest rests[4 * DEPTH_MAX]; // at most four nodes of each depth are looked at
    int n = list_rests(o, start_walk(o, b), rests, 0);
    uint64_t at = base;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            struct rest *r = &rests[i];
            for (skip_below(r, at); r->at < r->end && r->at->start < at + bytes;
                 skip_below(r, at)) {
                at = r->at->end;
                moved = true;
            }
        }
    }
    return at;
}

// ---- entering -----------------------------------------------------------------------------------

// The place of the first interval that ends at or above an offset.
static int find_interval(const struct intervals *s, uint64_t offset)
{
    int low = 0, high = s->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (s->at[mid].end < offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

// Adds an interval, which becomes one with those that it touches.
static void join_interval(struct intervals *s, struct interval one, struct arena *a)
{
    int first = find_interval(s, one.start), end = first;
    for (; end < s->n && s->at[end].start <= one.end; end++) {
        one.start = s->at[end].start < one.start ? s->at[end].start : one.start;
        one.end = s->at[end].end > one.end ? s->at[end].end : one.end;
    }
    s->at = arena_grow(a, s->at, sizeof *s->at, s->n, &s->cap);
    memmove(s->at + first + 1, s->at + end, sizeof *s->at * (size_t)(s->n - end));
    s->at[first] = one;
    s->n += 1 - (end - first);
}

static void enter_interval(struct occupancy *o, struct walk w, struct interval one)
{
    struct occupied *node = &o->node[w.node];
    if (misses_node(&w))
        return;
    join_interval(&node->some, one, o->arena);
    if (fills_node(&w)) {
        join_interval(&node->all, one, o->arena);
        return;
    }
    for (int half = 0; half < 2; half++)
        enter_interval(o, enter_child(w, half), one);
}

void occupancy_add(struct occupancy *o, const struct buffer *b, uint64_t bytes)
{
    if (bytes)
        enter_interval(o, start_walk(o, b), (struct interval){b->offset, b->offset + bytes});
}
