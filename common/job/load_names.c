// SPDX-License-Identifier: Apache-2.0
// Lists of names: tags, and the parameters that are taken from a checkpoint: checkpoint.load.params, a
// glob or a list of them, and checkpoint.load.rename, a map of patterns.
#include <string.h>

#include "common/base/job_sections.h"
#include "common/job/setting.h"

static bool read_list(const struct setting *s, int least, const char *what, struct schema_list *to)
{
    bool list = s->node->kind == TREE_LIST, ok = true;
    int i = 0;
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (list && (s->node->count < least || s->node->count > s->row->max_items))
        return setting_error(s, "must have %d to %d %s", least, s->row->max_items, what);
    const char **names = arena_array(s->arena, const char *, list ? s->node->count : 1);
    *to = (struct schema_list){.n = list ? s->node->count : 1, .items = names};
    if (!list)
        return setting_read_string(s, &names[0]);
    for (const struct tree_node *n = s->node->first; n; n = n->next, i++) {
        struct setting item = setting_item(s, n, i);
        ok = setting_read_string(&item, &names[i]) && ok;
        for (int k = 0; k < i && ok; k++)
            if (strcmp(names[k], names[i]) == 0)
                ok = setting_error(&item, "'%.100s' is there twice", names[i]);
    }
    return ok;
}

bool setting_read_globs(const struct setting *s, void *field)
{
    return read_list(s, 1, "globs", field);
}

bool setting_read_names(const struct setting *s, void *field)
{
    return read_list(s, 0, "names", field);
}

void setting_print_names(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct schema_list *list = field;
    setting_print_items(row, setting_print_string, list->items, sizeof(char *), list->n, to);
}

static int count_stars(const char *pattern)
{
    int n = 0;
    for (; *pattern; pattern++)
        n += *pattern == '*';
    return n;
}

bool setting_read_renames(const struct setting *s, void *field)
{
    struct schema_list *to = field;
    bool ok = true;
    int i = 0;
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (s->node->kind != TREE_MAP || s->node->count > s->row->max_items)
        return setting_error(
            s, "must be a map such as {\"blocks/*\": \"layers/*\"} of at most %d names",
            s->row->max_items);
    struct job_rename *renames = arena_array(s->arena, struct job_rename, s->node->count + 1);
    *to = (struct schema_list){.n = s->node->count, .items = renames};
    for (const struct tree_node *n = s->node->first; n; n = n->next, i++) {
        struct setting member = setting_member(s, n);
        renames[i].from = n->key;
        if (!setting_read_string(&member, &renames[i].to))
            ok = false;
        else if (count_stars(n->key) > JOB_RENAME_STARS)
            ok = setting_error(&member, "has %d stars before the colon: try at most %d",
                               count_stars(n->key), JOB_RENAME_STARS);
        else if (count_stars(renames[i].to) > count_stars(n->key))
            ok = setting_error(&member, "has more stars than what it is to be called so: %.100s",
                               n->key);
    }
    return ok;
}

void setting_print_renames(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct schema_list *list = field;
    const struct job_rename *renames = list->items;
    (void)row;
    buf_putc(to, '{');
    for (int i = 0; i < list->n; i++) {
        buf_puts(to, i ? ", " : "");
        setting_print_string(NULL, &renames[i].from, to);
        buf_puts(to, ": ");
        setting_print_string(NULL, &renames[i].to, to);
    }
    buf_putc(to, '}');
}
