// SPDX-License-Identifier: Apache-2.0
// The names of a program's dimensions. See model_dims.h.
#include "common/language/model_dims.h"

#include <string.h>

struct dim_names {
    struct arena *arena;
    const char **name;
    int n, cap;
};

static void add_name(struct dim_names *to, const char *name)
{
    for (int i = 0; i < to->n; i++)
        if (strcmp(to->name[i], name) == 0)
            return;
    to->name = arena_grow(to->arena, to->name, sizeof *to->name, to->n, &to->cap);
    to->name[to->n++] = name;
}

static void add_written(struct dim_names *to, const struct written_dim *d)
{
    if (d->name && strcmp(d->name, "_") != 0)
        add_name(to, d->name);
    if (d->as)
        add_name(to, d->as);
}

static void add_of_expression(struct dim_names *to, const struct expr *e)
{
    for (int i = 0; i < e->ndims; i++)
        add_written(to, &e->dims[i]);
    for (int i = 0; i < e->n; i++)
        add_of_expression(to, e->arg[i]);
}

static void add_of_block(struct dim_names *to, const struct stmt *s)
{
    for (; s; s = s->next) {
        for (int i = 0; i < s->n; i++)
            add_of_expression(to, s->value[i]);
        add_of_block(to, s->body);
        add_of_block(to, s->otherwise);
    }
}

const char *const *model_dims(const struct model_program *p, struct arena *a, int *n)
{
    struct dim_names all = {.arena = a};
    for (int i = 0; i < p->nsizes; i++)
        if (p->sizes[i].kind == MODEL_WHOLE)
            add_name(&all, p->sizes[i].name);
    add_of_block(&all, p->syntax->body);
    for (int i = 0; i < p->syntax->nlets; i++)
        add_of_block(&all, p->syntax->let[i].body);
    *n = all.n;
    return all.name;
}
