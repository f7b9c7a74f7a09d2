// SPDX-License-Identifier: Apache-2.0
// The rows of one reading, and errors about them. See reading.h.
#include "common/job/reading.h"

#include <string.h>

void reading_init_rows(struct reading *r)
{
    r->n = schema_rows(r->schema);
    r->rows = arena_array(r->arena, struct reading_row, r->n);
    for (int i = 0; i < r->n; i++) {
        size_t offset = 0;
        r->rows[i].row = schema_row(r->schema, i, &offset);
        r->rows[i].field = (char *)r->job + offset;
    }
}

struct reading_row *reading_row(struct reading *r, const char *path)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->rows[i].row->path, path) == 0)
            return &r->rows[i];
    err_bug(__FILE__, __LINE__, path);
}

bool reading_given(struct reading *r, const char *path)
{
    return reading_row(r, path)->node != NULL;
}

bool reading_all_ok(struct reading *r, const char *const *paths)
{
    for (; *paths; paths++)
        if (!reading_row(r, *paths)->ok)
            return false;
    return true;
}

static const struct tree_node *find_nearest_node(const struct reading *r, const char *path)
{
    return tree_nearest(r->root, path, strlen(path));
}

void reading_missing(struct reading *r, const struct reading_row *row)
{
    const struct tree_node *at = find_nearest_node(r, row->row->path);
    if (at->kind == TREE_MAP || tree_is_null(at))
        reading_error(r, row, "is missing: %s", row->row->doc);
}

void reading_error(struct reading *r, const struct reading_row *row, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(r->arena, fmt, ap);
    va_end(ap);
    tree_error(&r->errors, row->node ? row->node : find_nearest_node(r, row->row->path),
               row->row->path, "%s", text);
}
