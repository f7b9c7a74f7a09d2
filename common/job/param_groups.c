// SPDX-License-Identifier: Apache-2.0
// Optimiser groups of a job file: [{match: "*/bias", weight_decay: 0, lr_scale: 0.1}, …].
#include <fnmatch.h>
#include <string.h>

#include "common/job/reading.h"

static const struct schema_row group_rows[] = {
    {.path = "match", .type = SCHEMA_STRING, .offset = offsetof(struct job_group, match)},
    {.path = "weight_decay",
     .type = SCHEMA_FLOAT,
     .max = 1e6,
     .offset = offsetof(struct job_group, weight_decay)},
    {.path = "lr_scale",
     .type = SCHEMA_FLOAT,
     .max = 1e6,
     .offset = offsetof(struct job_group, lr_scale)},
    {.path = "freeze", .type = SCHEMA_BOOL, .offset = offsetof(struct job_group, freeze)},
};
enum { ROWS = sizeof group_rows / sizeof *group_rows };

static bool read_member(const struct value *v, struct job_group *group)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(v->node->key, group_rows[i].path) == 0) {
            struct value member = *v;
            member.row = &group_rows[i];
            return value_types[member.row->type].read(&member, (char *)group + member.row->offset);
        }
    const char *keys[ROWS];
    for (int i = 0; i < ROWS; i++)
        keys[i] = group_rows[i].path;
    const char *near = suggest(v->node->key, keys, ROWS);
    if (near)
        tree_error_key(v->errors, v->node, v->path, "unknown key: did you mean %s?", near);
    else
        tree_error_key(v->errors, v->node, v->path,
                       "unknown key: a group has match, weight_decay, lr_scale and freeze");
    return false;
}

static bool read_group(const struct value *v, struct job_group *group)
{
    if (v->node->kind == TREE_BROKEN)
        return false;
    if (v->node->kind != TREE_MAP)
        return value_error(v, "must be a map such as {match: \"*/bias\", weight_decay: 0}, not %s",
                           tree_kind_text(v->node));
    bool ok = true;
    group->lr_scale = 1;
    group->line = v->node->source->one_line ? 0 : v->node->line;
    for (const struct tree_node *n = v->node->first; n; n = n->next) {
        struct value member = *v;
        member.node = n;
        member.path = arena_printf(v->arena, "%s.%.100s", v->path, n->key);
        ok = read_member(&member, group) && ok;
    }
    group->own_decay = tree_get(v->node, "weight_decay") != NULL;
    if (!tree_get(v->node, "match"))
        return value_error(v, "has no match: say which parameters, as in match: \"*/bias\"");
    if (group->freeze && (group->own_decay || tree_get(v->node, "lr_scale")))
        return value_error(v, "freeze leaves weight_decay and lr_scale nothing to act on");
    return ok;
}

bool value_read_groups(const struct value *v, void *field)
{
    struct job_optimizer *o = field;
    if (v->node->kind == TREE_BROKEN)
        return false;
    if (v->node->kind != TREE_LIST || v->node->count > v->row->max_items)
        return value_error(v, "must be a list of at most %d groups", v->row->max_items);
    bool ok = true;
    int i = 0;
    o->n_groups = v->node->count;
    o->groups = arena_array(v->arena, struct job_group, o->n_groups);
    for (const struct tree_node *n = v->node->first; n; n = n->next, i++) {
        struct value item = *v;
        item.node = n;
        item.path = arena_printf(v->arena, "%s[%d]", v->path, i);
        ok = read_group(&item, &o->groups[i]) && ok;
    }
    return ok;
}

void job_groups_print(const struct job_optimizer *o, struct buf *to)
{
    buf_putc(to, '[');
    for (int i = 0; i < o->n_groups; i++) {
        const struct job_group *g = &o->groups[i];
        buf_puts(to, i ? ", {match: " : "{match: ");
        value_print_string(NULL, &g->match, to);
        if (g->own_decay) {
            buf_puts(to, ", weight_decay: ");
            value_print_float(NULL, &g->weight_decay, to);
        }
        if (g->freeze) {
            buf_puts(to, ", freeze: true");
        } else {
            buf_puts(to, ", lr_scale: ");
            value_print_float(NULL, &g->lr_scale, to);
        }
        buf_putc(to, '}');
    }
    buf_putc(to, ']');
}

void value_print_groups(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    job_groups_print(field, to);
}

const struct job_group *job_group_of(const struct job_optimizer *optimizer, const char *param)
{
    for (int i = 0; i < optimizer->n_groups; i++)
        if (fnmatch(optimizer->groups[i].match, param, 0) == 0)
            return &optimizer->groups[i];
    return NULL;
}
