// SPDX-License-Identifier: Apache-2.0
// Lines, each once, in the order of their times; see log_order.h.
#include "coordinator/cli/log_order.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 16, RANKS_MORE = 64 };

static struct log_rank *find_rank(struct log_order *o, int rank)
{
    if (rank < 0 || rank >= RANKS_MAX)
        return NULL;
    if (rank >= o->nranks) {
        int n = rank + RANKS_MORE;
        struct log_rank *more = arena_array(&o->arena, struct log_rank, n);
        if (o->nranks)
            memcpy(more, o->ranks, sizeof *more * (size_t)o->nranks);
        o->ranks = more;
        o->nranks = n;
    }
    return &o->ranks[rank];
}

static struct log_source *find_source(struct log_rank *r, uint64_t attempt)
{
    for (int i = 0; i < r->n; i++)
        if (r->sources[i].attempt == attempt)
            return &r->sources[i];
    return NULL;
}

static void add_line(struct log_order *o, const Weft__V1__LogLines *m, const struct log_source *s,
                     int64_t left_out, const char *line, size_t len)
{
    o->lines = arena_grow(&o->lines_arena, o->lines, sizeof *o->lines, o->n, &o->cap);
    struct log_line *l = &o->lines[o->n];
    *l = (struct log_line){
        .order = o->n++, .rank = m->rank, .attempt = m->attempt, .left_out = left_out};
    memcpy(l->stamp, s->at, sizeof l->stamp);
    l->host = arena_strdup(&o->lines_arena, m->host);
    l->text = arena_dup(&o->lines_arena, line, len);
    l->len = len;
}

static void add_lines(struct log_order *o, const Weft__V1__LogLines *m, struct log_source *s,
                      int64_t left_out, const char *at, const char *end)
{
    for (size_t len; at < end; at += len + 1, left_out = 0) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        len = (size_t)((nl ? nl : end) - at);
        if (len > LOG_STAMP && at[4] == '-' && at[10] == 'T' && at[LOG_STAMP - 1] == 'Z')
            memcpy(s->at, at, LOG_STAMP);
        add_line(o, m, s, left_out, at, len);
    }
}

void log_order_add(struct log_order *o, const Weft__V1__LogLines *m)
{
    const char *text = (const char *)m->text.data, *end = text + m->text.len;
    const int64_t start = m->ends_at - (int64_t)m->text.len;
    struct log_rank *r = find_rank(o, m->rank);
    if (!r || !m->text.len || (o->some && m->attempt < r->first))
        return;
    struct log_source *s = find_source(r, m->attempt);
    if (!s) {
        r->sources = arena_grow(&o->arena, r->sources, sizeof *r->sources, r->n, &r->cap);
        s = &r->sources[r->n++];
        // Where the first text that came from the source begins.
        *s = (struct log_source){.attempt = m->attempt, .shown = o->some && !o->again ? start : 0};
    }
    const int64_t had = s->shown - start;
    s->shown = had > (int64_t)m->text.len ? s->shown : m->ends_at;
    if (had < (int64_t)m->text.len)
        add_lines(o, m, s, had < 0 ? -had : 0, text + (had > 0 ? had : 0), end);
}

static int compare_earlier_first(const void *a, const void *b)
{
    const struct log_line *x = a, *y = b;
    int d = strcmp(x->stamp, y->stamp);
    return d ? d : x->order - y->order;
}

void log_order_sort(struct log_order *o)
{
    if (o->n)
        qsort(o->lines, (size_t)o->n, sizeof *o->lines, compare_earlier_first);
}

void log_order_empty(struct log_order *o)
{
    arena_clear(&o->lines_arena);
    o->lines = NULL;
    o->n = o->cap = 0;
}

bool log_order_again(struct log_order *o)
{
    bool any = false;
    for (int i = 0; i < o->nranks; i++) {
        struct log_rank *r = &o->ranks[i];
        any = any || r->n;
        for (int j = 0; j < r->n && !o->again; j++)
            r->first =
                j == 0 || r->sources[j].attempt < r->first ? r->sources[j].attempt : r->first;
    }
    o->again = o->again || any;
    return any;
}

void log_order_clear(struct log_order *o)
{
    log_order_empty(o);
    arena_clear(&o->arena);
    *o = (struct log_order){0};
}
