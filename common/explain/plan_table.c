// SPDX-License-Identifier: Apache-2.0
// A table of a plan for people; see plan_table.h.
#include "common/explain/plan_table.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// ---- rows --------------------------------------------------------------------------------------

// Finds the first part of a path that is a number.
static bool find_layer(const char *name, struct plan_row *r)
{
    for (const char *at = name; *at; at += strcspn(at, "/"), at += *at == '/') {
        size_t digits = strspn(at, "0123456789");
        if (!digits || digits > 8 || (at[digits] && at[digits] != '/'))
            continue;
        r->begin = (int)(at - name);
        r->end = r->begin + (int)digits;
        return true;
    }
    return false;
}

static void add_layer(struct plan_table *t, struct plan_row *r, int layer)
{
    r->layers = arena_grow(t->arena, r->layers, sizeof *r->layers, r->n, &r->cap);
    r->layers[r->n++] = layer;
}

static void add_row(struct plan_table *t, const struct plan_row *row, const char *key)
{
    t->rows = arena_grow(t->arena, t->rows, sizeof *t->rows, t->n, &t->cap);
    t->rows[t->n++] = *row;
    if (key)
        map_put(&t->known, key, (void *)(uintptr_t)t->n);
}

// A layer that says the same twice has two rows: one stands for the first of each layer, one for
// the second.
static void add_layered_row(struct plan_table *t, struct plan_row *row)
{
    int layer = atoi(row->cell[t->name] + row->begin);
    struct plan_row *like = NULL;
    struct buf key = {0};
    for (int i = 0; i < PLAN_CELLS; i++)
        if (i == t->name)
            buf_printf(&key, "%.*s#%s\n", row->begin, row->cell[i], row->cell[i] + row->end);
        else
            buf_printf(&key, "%s\n", row->cell[i]);
    buf_puts(&key, row->tail);
    for (uintptr_t at; (at = (uintptr_t)map_get(&t->known, buf_str(&key))); buf_putc(&key, '+')) {
        like = &t->rows[at - 1];
        if (like->layers[like->n - 1] != layer)
            break;
        like = NULL;
    }
    if (like) {
        add_layer(t, like, layer);
    } else {
        add_layer(t, row, layer);
        add_row(t, row, buf_str(&key));
    }
    buf_clear(&key);
}

void plan_table_add(struct plan_table *t, const char *const cells[PLAN_CELLS], const char *tail)
{
    struct plan_row row = {.tail = arena_strdup(t->arena, tail)};
    for (int i = 0; i < PLAN_CELLS; i++)
        row.cell[i] = arena_strdup(t->arena, cells[i] ? cells[i] : "");
    if (find_layer(row.cell[t->name], &row))
        add_layered_row(t, &row);
    else
        add_row(t, &row, NULL);
}

// ---- printing ----------------------------------------------------------------------------------

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

// "0…3,8…11" in place of the one number.
static void merge_layers(struct plan_table *t, struct plan_row *r)
{
    const char *name = r->cell[t->name];
    struct buf text = {0};
    qsort(r->layers, (size_t)r->n, sizeof *r->layers, compare_ints);
    buf_printf(&text, "%.*s", r->begin, name);
    for (int i = 0, last; i < r->n; i = last + 1) {
        for (last = i; last + 1 < r->n && r->layers[last + 1] == r->layers[last] + 1;)
            last++;
        buf_printf(&text, "%s%d", i ? "," : "", r->layers[i]);
        if (last > i)
            buf_printf(&text, "…%d", r->layers[last]);
    }
    buf_puts(&text, name + r->end);
    r->cell[t->name] = arena_strdup(t->arena, buf_str(&text));
    buf_clear(&text);
}

void plan_table_print(struct plan_table *t, struct buf *out)
{
    int widest[PLAN_CELLS] = {0};
    for (int i = 0; i < t->n; i++) {
        if (t->rows[i].n > 1)
            merge_layers(t, &t->rows[i]);
        for (int c = 0; c < PLAN_CELLS; c++) {
            int width = text_columns(t->rows[i].cell[c]);
            widest[c] = width > widest[c] ? width : widest[c];
        }
    }
    for (int i = 0; i < t->n; i++) {
        const struct plan_row *r = &t->rows[i];
        for (int c = 0; c < PLAN_CELLS && widest[c]; c++)
            buf_printf(out, "  %s%*s", r->cell[c], widest[c] - text_columns(r->cell[c]), "");
        buf_printf(out, "  %s", r->tail);
        if (r->n > 1)
            buf_printf(out, ", each of %d", r->n);
        buf_putc(out, '\n');
    }
}

void plan_table_clear(struct plan_table *t)
{
    map_clear(&t->known);
}
