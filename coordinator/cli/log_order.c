// SPDX-License-Identifier: Apache-2.0
// Lines in the order of their times; see log_order.h.
#include "coordinator/cli/log_order.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 1 << 16, RANKS_MORE = 64 };

static struct log_rank *find_rank(struct log_order *o, int rank)
{
    static struct log_rank nowhere;
    if (rank < 0 || rank >= RANKS_MAX)
        return &nowhere;
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

static bool has_stamp(const char *line, size_t len)
{
    return len > LOG_STAMP && line[4] == '-' && line[10] == 'T' && line[LOG_STAMP - 1] == 'Z';
}

// Returns whether the line was not shown in an earlier reading.
static bool take_time(struct log_rank *r, const char *line, size_t len)
{
    if (has_stamp(line, len))
        memcpy(r->at, line, LOG_STAMP);
    if (strcmp(r->at, r->newest) > 0)
        memcpy(r->newest, r->at, sizeof r->newest);
    return !r->until[0] || strcmp(r->at, r->until) > 0;
}

static void add_line(struct log_order *o, const Weft__V1__LogLines *m, const struct log_rank *r,
                     const char *host, const char *line, size_t len)
{
    o->lines = arena_grow(&o->lines_arena, o->lines, sizeof *o->lines, o->n, &o->cap);
    struct log_line *l = &o->lines[o->n];
    *l = (struct log_line){
        .order = o->n++, .rank = m->rank, .epoch = m->epoch, .host = host, .len = len};
    memcpy(l->stamp, r->at, sizeof l->stamp);
    l->text = arena_printf(&o->lines_arena, "%.*s", (int)len, line);
    l->len = strlen(l->text);
}

void log_order_add(struct log_order *o, const Weft__V1__LogLines *m)
{
    struct log_rank *r = find_rank(o, m->rank);
    const char *host = arena_strdup(&o->lines_arena, m->host);
    const char *at = (const char *)m->text.data, *end = at ? at + m->text.len : at;
    while (at < end) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((nl ? nl : end) - at);
        if (take_time(r, at, len))
            add_line(o, m, r, host, at, len);
        at += len + 1;
    }
}

static int earlier_first(const void *a, const void *b)
{
    const struct log_line *x = a, *y = b;
    int d = strcmp(x->stamp, y->stamp);
    return d ? d : x->order - y->order;
}

void log_order_sort(struct log_order *o)
{
    if (o->n)
        qsort(o->lines, (size_t)o->n, sizeof *o->lines, earlier_first);
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
        memcpy(r->until, r->newest, sizeof r->until);
        r->at[0] = 0;
        any = any || r->until[0];
    }
    return any;
}

void log_order_clear(struct log_order *o)
{
    log_order_empty(o);
    arena_clear(&o->arena);
    *o = (struct log_order){0};
}
