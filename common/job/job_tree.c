// SPDX-License-Identifier: Apache-2.0
// The tree of a job file: access, and the list of errors. See job_tree.h; yaml.c builds it.
#include "common/job/job_tree.h"

#include <stdlib.h>
#include <string.h>

struct tree_node *tree_get(const struct tree_node *map, const char *key)
{
    for (struct tree_node *m = map->first; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

const struct tree_node *tree_nearest(const struct tree_node *at, const char *path, size_t len)
{
    for (const char *end = path + len; at->kind == TREE_MAP && path < end;) {
        size_t left = (size_t)(end - path), n = strcspn(path, ".");
        n = n < left ? n : left;
        const struct tree_node *m = at->first;
        while (m && (strlen(m->key) != n || memcmp(m->key, path, n) != 0))
            m = m->next;
        if (!m)
            break;
        at = m;
        path += n + 1;
    }
    return at;
}

void tree_put(struct tree_node *map, const char *key, struct tree_node *value)
{
    struct tree_node **at = &map->first, *prev = NULL;
    while (*at && !((*at)->key && strcmp((*at)->key, key) == 0)) {
        prev = *at;
        at = &prev->next;
    }
    value->key = key;
    value->key_line = value->line;
    value->key_column = value->column;
    value->next = *at ? (*at)->next : NULL;
    if (!*at)
        map->count++;
    if (!value->next)
        map->last = value;
    *at = value;
}

void tree_drop(struct tree_node *map, const char *key)
{
    struct tree_node *prev = NULL;
    for (struct tree_node *m = map->first; m; prev = m, m = m->next) {
        if (strcmp(m->key, key) != 0)
            continue;
        *(prev ? &prev->next : &map->first) = m->next;
        map->last = map->last == m ? prev : map->last;
        map->count--;
        return;
    }
}

bool tree_is_null(const struct tree_node *node)
{
    return node->kind == TREE_SCALAR && node->plain &&
           (!node->text[0] || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

const char *tree_kind_text(const struct tree_node *node)
{
    static const char *const text[] = {"a single value", "a map", "a list", "broken"};
    return tree_is_null(node) ? "empty" : text[node->kind];
}

static void add_error(struct tree_errors *e, struct tree_error item, const char *fmt, va_list ap)
{
    item.message = arena_vprintf(e->arena, fmt, ap);
    item.path = arena_strdup(e->arena, item.path);
    item.order = e->n;
    if (item.source->one_line)
        item.line = item.column = 0;
    e->items = arena_grow(e->arena, e->items, sizeof *e->items, e->n, &e->cap);
    e->items[e->n++] = item;
}

void tree_error(struct tree_errors *e, const struct tree_node *at, const char *path,
                const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct tree_error item = {at->source, at->line, at->column, 0, path, NULL};
    add_error(e, item, fmt, ap);
    va_end(ap);
}

void tree_error_key(struct tree_errors *e, const struct tree_node *member, const char *path,
                    const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct tree_error item = {member->source, member->key_line, member->key_column, 0, path, NULL};
    add_error(e, item, fmt, ap);
    va_end(ap);
}

void tree_error_at(struct tree_errors *e, const struct tree_source *source, int line, int column,
                   const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_error(e, (struct tree_error){source, line, column, 0, "", NULL}, fmt, ap);
    va_end(ap);
}

static int compare_positions(const void *x, const void *y)
{
    const struct tree_error *a = x, *b = y;
    if (a->source->index != b->source->index)
        return a->source->index < b->source->index ? -1 : 1;
    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    if (a->column != b->column)
        return a->column < b->column ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

void tree_errors_give(struct tree_errors *e, struct job_errors *to)
{
    if (e->n > 0)
        qsort(e->items, (size_t)e->n, sizeof *e->items, compare_positions);
    for (int i = 0; i < e->n && i < JOB_MAX_ERRORS; i++) {
        const struct tree_error *from = &e->items[i];
        to->items = arena_grow(e->arena, to->items, sizeof *to->items, to->n, &to->cap);
        to->items[to->n++] = (struct job_error){from->source->name, from->line, from->column,
                                                from->path, from->message};
    }
    to->more = e->n > JOB_MAX_ERRORS ? e->n - JOB_MAX_ERRORS : 0;
}
