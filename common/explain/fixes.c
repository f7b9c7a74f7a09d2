// SPDX-License-Identifier: Apache-2.0
// Settings that help. See fixes.h.
#include "common/explain/fixes.h"

#include <ctype.h>
#include <string.h>

struct entries fix_entries(const struct job *job, enum fact_list list)
{
    const struct job_sharding *s = &job->sharding;
    if (list == FACT_GRADS)
        return (struct entries){"sharding.grads", s->grads.n_params, s->grads.params};
    if (list == FACT_OPTIMIZER)
        return (struct entries){"sharding.optimizer", s->optimizer.n_params, s->optimizer.params};
    return (struct entries){"sharding.params", s->n_params, s->params};
}

// ---- names -------------------------------------------------------------------------------------

struct job_names names_without(struct arena *a, const struct job_names *s, int drop)
{
    struct job_names out = {0, arena_array(a, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++)
        if (i != drop)
            out.name[out.n++] = s->name[i];
    return out;
}

struct job_names names_once(struct arena *a, const struct job_names *s)
{
    struct job_names out = {0, arena_array(a, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++) {
        int n = 0;
        while (n < out.n && strcmp(out.name[n], s->name[i]) != 0)
            n++;
        if (n == out.n)
            out.name[out.n++] = s->name[i];
    }
    return out;
}

static bool stands_for(const struct fixer *f, const char *name, axis_set axes)
{
    const struct job_rule *rule = job_rule_find(&f->job->sharding, name);
    const struct job_names one = {1, &name}, *names = rule ? &rule->axes : &one;
    for (int n = 0; n < names->n; n++) {
        int axis = job_axis_find(&f->job->mesh, names->name[n]);
        if (axis >= 0 && axes >> axis & 1)
            return true;
    }
    return false;
}

struct job_names names_without_axes(const struct fixer *f, const struct job_names *s, axis_set axes)
{
    struct job_names out = {0, arena_array(f->arena, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++)
        if (!stands_for(f, s->name[i], axes))
            out.name[out.n++] = s->name[i];
    return out;
}

struct job_spec spec_in_names(const struct fixer *f, int dims, const struct spec *spec)
{
    struct job_spec out = {.n = dims};
    for (int d = 0; d < dims; d++) {
        struct job_names *names = &out.dim[d];
        names->name = arena_array(f->arena, const char *, MESH_MAX_AXES);
        for (int i = 0; i < spec->dim[d].n; i++)
            names->name[names->n++] = f->mesh->axis[spec->dim[d].axis[i]].name;
    }
    return out;
}

// ---- settings ----------------------------------------------------------------------------------

const char *fix_rule(const struct fixer *f, const char *dim, const struct job_names *names)
{
    struct buf b = {0};
    buf_printf(&b, "sharding.rules.%s=", dim);
    job_names_print(names, &b);
    return buf_keep(&b, f->arena);
}

const char *fix_point(const struct fixer *f, const char *point, const struct job_spec *spec)
{
    struct buf b = {0};
    buf_printf(&b, "sharding.activations.%s=", point);
    job_spec_print(spec, &b);
    return buf_keep(&b, f->arena);
}

const char *fix_gather(const struct fixer *f, const struct job_names *names)
{
    struct buf b = {0};
    buf_puts(&b, "sharding.gather=[");
    for (int n = 0; n < names->n; n++)
        buf_printf(&b, "%s%s", n ? ", " : "", names->name[n]);
    buf_putc(&b, ']');
    return buf_keep(&b, f->arena);
}

const char *fix_refine(const struct fixer *f, enum fact_list list, const struct job_refine *r)
{
    struct buf b = {0};
    buf_printf(&b, "%s=", fix_entries(f->job, list).key);
    job_refine_print(r, &b);
    return buf_keep(&b, f->arena);
}

static const char *fix_list(const struct fixer *f, const char *key, int n,
                            const struct job_param_spec *list)
{
    struct buf b = {0};
    buf_printf(&b, "%s=", key);
    job_params_print(n, list, &b);
    return buf_keep(&b, f->arena);
}

const char *fix_entry(const struct fixer *f, enum fact_list list, int at, const char *match,
                      bool insert, const struct job_spec *spec)
{
    struct entries of = fix_entries(f->job, list);
    struct job_param_spec *out = arena_array(f->arena, struct job_param_spec, of.n + 1);
    struct job_param_spec entry = {.match = match, .spec = *spec};
    int n = 0;
    if (!insert)
        entry.min = of.list[at].min;
    for (int i = 0; i <= of.n; i++) {
        if (i == at)
            out[n++] = entry;
        if (i < of.n && (i != at || insert))
            out[n++] = of.list[i];
    }
    return fix_list(f, of.key, n, out);
}

const char *fix_without_entry(const struct fixer *f, enum fact_list list, int at)
{
    struct entries of = fix_entries(f->job, list);
    struct job_param_spec *rest = arena_array(f->arena, struct job_param_spec, of.n + 1);
    int left = 0;
    for (int i = 0; i < of.n; i++)
        if (i != at)
            rest[left++] = of.list[i];
    return fix_list(f, of.key, left, rest);
}

const char *layers_glob(struct arena *a, const char *name)
{
    char *out = arena_strdup(a, name), *to = out;
    for (const char *at = name; *at; to++) {
        bool number = isdigit((unsigned char)*at) && at > name && at[-1] == '/';
        *to = number ? '*' : *at;
        at += number ? strspn(at, "0123456789") : 1;
    }
    *to = 0;
    return out;
}
