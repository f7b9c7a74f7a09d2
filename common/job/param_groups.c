// SPDX-License-Identifier: Apache-2.0
// Groups of parameters with update rules of their own, optimizer.groups of a job file: [{match:
// "*/bias", weight_decay: 0, lr_scale: 0.1}, …].
#include <fnmatch.h>
#include <string.h>

#include "common/job/setting.h"

// The keys of a group. lr_scale and weight_decay are bounded so that no update overflows.
static const struct schema_row factor_row = {.type = SCHEMA_FLOAT, .max = 1e6};
static const char *const group_keys[] = {"match", "weight_decay", "lr_scale", "freeze"};
enum { GROUP_KEYS = sizeof group_keys / sizeof *group_keys };

static bool read_member(const struct setting *s, struct job_param_group *group)
{
    const char *key = s->node->key;
    struct setting factor = *s;
    factor.row = &factor_row;
    if (strcmp(key, "match") == 0)
        return setting_read_string(s, &group->match);
    if (strcmp(key, "weight_decay") == 0)
        return setting_read_float(&factor, &group->weight_decay);
    if (strcmp(key, "lr_scale") == 0)
        return setting_read_float(&factor, &group->lr_scale);
    if (strcmp(key, "freeze") == 0)
        return setting_read_bool(s, &group->freeze);
    return setting_unknown_key(s, group_keys, GROUP_KEYS, "a group has");
}

static bool read_group(const struct setting *s, void *field)
{
    struct job_param_group *group = field;
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (s->node->kind != TREE_MAP)
        return setting_error(s,
                             "must be a map such as {match: \"*/bias\", weight_decay: 0}, not %s",
                             tree_kind_text(s->node));
    bool ok = true;
    group->lr_scale = 1;
    group->line = setting_line(s->node);
    for (const struct tree_node *n = s->node->first; n; n = n->next) {
        struct setting member = setting_member(s, n);
        ok = read_member(&member, group) && ok;
    }
    group->own_decay = tree_get(s->node, "weight_decay") != NULL;
    if (!tree_get(s->node, "match"))
        return setting_error(s, "has no match: say which parameters, as in match: \"*/bias\"");
    if (group->freeze && (group->own_decay || tree_get(s->node, "lr_scale")))
        return setting_error(s, "freeze leaves weight_decay and lr_scale nothing to act on");
    return ok;
}

bool setting_read_groups(const struct setting *s, void *field)
{
    struct job_optimizer *o = field;
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (s->node->kind != TREE_LIST || s->node->count > s->row->max_items)
        return setting_error(s, "must be a list of at most %d groups", s->row->max_items);
    o->n_groups = s->node->count;
    o->groups = arena_array(s->arena, struct job_param_group, o->n_groups);
    return setting_read_items(s, read_group, o->groups, sizeof *o->groups);
}

void job_groups_print(const struct job_optimizer *o, struct buf *to)
{
    buf_putc(to, '[');
    for (int i = 0; i < o->n_groups; i++) {
        const struct job_param_group *g = &o->groups[i];
        buf_puts(to, i ? ", {match: " : "{match: ");
        setting_print_string(NULL, &g->match, to);
        if (g->own_decay) {
            buf_puts(to, ", weight_decay: ");
            setting_print_float(NULL, &g->weight_decay, to);
        }
        if (g->freeze) {
            buf_puts(to, ", freeze: true");
        } else {
            buf_puts(to, ", lr_scale: ");
            setting_print_float(NULL, &g->lr_scale, to);
        }
        buf_putc(to, '}');
    }
    buf_putc(to, ']');
}

void setting_print_groups(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    job_groups_print(field, to);
}

const struct job_param_group *job_group_of(const struct job_optimizer *optimizer, const char *param)
{
    for (int i = 0; i < optimizer->n_groups; i++)
        if (fnmatch(optimizer->groups[i].match, param, 0) == 0)
            return &optimizer->groups[i];
    return NULL;
}
