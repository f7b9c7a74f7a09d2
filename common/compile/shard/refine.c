// SPDX-License-Identifier: Apache-2.0
// Cuts beyond the parameters'. See refine.h.
#include "common/compile/shard/refine.h"

#include <string.h>

#include "common/compile/shard/sharding_words.h"

enum which { GRADS, STATE };
static const char *const keys[] = {[GRADS] = "sharding.grads", [STATE] = "sharding.optimizer"};

static struct making making_of(struct sharding *s, const struct job *job, const struct mesh *m,
                               struct findings *f, enum which w)
{
    const struct job_refine *r = w == GRADS ? &job->sharding.grads : &job->sharding.optimizer;
    return (struct making){s, job, m, f, keys[w], r->n_params, r->params, NULL};
}

static struct refine *refine_of(struct sharding *s, enum which w)
{
    return w == GRADS ? &s->grads : &s->optimizer;
}

// ---- words → cuts ------------------------------------------------------------------------------

static const char *fix_whole(struct making *k, const struct job_refine *r)
{
    struct buf b = {0};
    buf_printf(&b, "%s=", k->key);
    job_refine_print(r, &b);
    return buf_keep(&b, k->found->arena);
}

const char *words_twice(struct making *k, const struct job_names *s, struct job_names *once)
{
    const char *twice = NULL;
    *once = (struct job_names){0, arena_array(k->found->arena, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++) {
        int n = 0;
        while (n < once->n && strcmp(once->name[n], s->name[i]) != 0)
            n++;
        if (n < once->n)
            twice = s->name[i];
        else
            once->name[once->n++] = s->name[i];
    }
    return twice;
}

void words_told_twice(struct making *k, const char *tensor, const char *name, int line,
                      const char *fix)
{
    findings_add(k->found,
                 &(struct finding){.code = FINDING_AXIS_TWICE,
                                   .tensor = tensor,
                                   .message = arena_printf(k->found->arena,
                                                           "%s%s: '%s' stands twice in the list",
                                                           tensor, words_line(k, line), name),
                                   .fix = fix});
}

static void axes_make(struct making *k, const struct job_refine *from, struct dim_cut *to)
{
    struct job_refine once = {0};
    const char *twice = words_twice(k, &from->axes, &once.axes);
    if (twice)
        words_told_twice(k, k->key, twice, from->line, fix_whole(k, &once));
    for (int i = 0; i < from->axes.n; i++) {
        struct job_refine rest = {.axes = words_without(k->found->arena, &from->axes, i)};
        const char *fix = fix_whole(k, &rest);
        struct dim_cut axes;
        if (!words_axes(k, from->axes.name[i], &axes))
            words_unknown_axis(k, k->key, from->axes.name[i], from->line, fix);
        for (int a = 0; a < axes.n; a++)
            if (!words_stage_axis(k, k->key, axes.axis[a], from->line, fix) &&
                !(dim_axes(to) >> axes.axis[a] & 1))
                dim_append(to, axes.axis[a]);
    }
}

void refine_make(struct sharding *s, const struct job *job, const struct mesh *m,
                 struct findings *f)
{
    for (enum which w = GRADS; w <= STATE; w++) {
        struct making k = making_of(s, job, m, f, w);
        struct refine *r = refine_of(s, w);
        r->job = w == GRADS ? &job->sharding.grads : &job->sharding.optimizer;
        r->specs = arena_array(f->arena, struct spec, k.n);
        axes_make(&k, r->job, &r->axes);
        for (int i = 0; i < k.n; i++)
            r->specs[i] = words_spec(&k, &(struct place){i, k.list[i].match, &k.list[i].spec});
    }
}

// ---- cuts of a tensor --------------------------------------------------------------------------

static int entry_of(const struct refine *r, const struct value *v)
{
    for (int i = 0; r->job && i < r->job->n_params; i++)
        if (words_match(&r->job->params[i], v))
            return i;
    return -1;
}

// The axis on the dimension with the largest local size that it divides, the earliest of equals;
// none: the tensor stays.
static void append_where_largest(const struct mesh *m, const struct shape *shape, int axis,
                                 struct spec *s)
{
    struct shape local = spec_local(s, m, shape);
    int best = -1, parts = m->axis[axis].size;
    if (parts < 2 || spec_axes(s) >> axis & 1)
        return;
    for (int d = 0; d < shape->n; d++)
        if (local.dim[d] % parts == 0 && (best < 0 || local.dim[d] > local.dim[best]))
            best = d;
    if (best >= 0)
        dim_append(&s->dim[best], axis);
}

// What the job asks, going on from `coarse` where it names axes only.
static struct spec asked(const struct refine *r, const struct mesh *m, const struct value *v,
                         const struct spec *coarse, const struct spec *otherwise)
{
    int entry = entry_of(r, v);
    struct spec s = r->axes.n ? *coarse : *otherwise;
    if (entry >= 0)
        s = r->specs[entry];
    for (int i = 0; entry < 0 && i < r->axes.n; i++)
        append_where_largest(m, &v->shape, r->axes.axis[i], &s);
    for (int d = v->shape.n; d < MAX_DIMS; d++)
        s.dim[d] = (struct dim_cut){0};
    return s;
}

static bool refines(const struct spec *coarse, const struct spec *fine)
{
    for (int d = 0; d < MAX_DIMS; d++) {
        struct dim_cut head = fine->dim[d];
        if (head.n < coarse->dim[d].n)
            return false;
        head.n = coarse->dim[d].n;
        if (!dim_equal(&head, &coarse->dim[d]))
            return false;
    }
    return true;
}

// What is asked where it can be: it divides and refines `coarse`; else that.
static struct spec admitted(const struct mesh *m, const struct value *v, const struct spec *coarse,
                            struct spec fine)
{
    int bad;
    return refines(coarse, &fine) && spec_divides(&fine, m, &v->shape, &bad) ? fine : *coarse;
}

struct spec refine_grad(const struct sharding *s, const struct mesh *m, const struct value *param)
{
    struct spec own = sharding_spec(s, m, param);
    return admitted(m, param, &own, asked(&s->grads, m, param, &own, &own));
}

struct spec refine_state(const struct sharding *s, const struct mesh *m, const struct value *param)
{
    struct spec own = sharding_spec(s, m, param), grad = refine_grad(s, m, param);
    return admitted(m, param, &grad, asked(&s->optimizer, m, param, &grad, &own));
}

uint64_t refine_saved(const struct program *p, enum buffer_kind kind)
{
    uint64_t saved = 0;
    for (int b = 0; b < p->nbuffers; b++) {
        const struct buffer *buf = &p->buffers[b];
        if (buf->kind != kind)
            continue;
        const struct value *v = &p->graph->values[buf->value];
        struct shape own = spec_local(&p->graph->values[v->of].spec, &p->mesh, &v->shape);
        saved += (uint64_t)shape_count(&own) * dtype_size(v->dtype) - buf->bytes;
    }
    return saved;
}

// ---- specs held against parameters -------------------------------------------------------------

static const char *spec_text(struct making *k, const struct value *v, const struct spec *s)
{
    struct buf b = {0};
    spec_print(s, k->mesh, v->shape.n, &b);
    return buf_keep(&b, k->found->arena);
}

static const char *fix_spec(struct making *k, const struct value *v, const struct spec *s)
{
    struct job_spec words = words_of_spec(k->found->arena, k->mesh, v->shape.n, s);
    int entry = entry_of(refine_of(k->s, k->key == keys[STATE]), v);
    return words_fix_entry(k, entry < 0 ? 0 : entry, v->name, true, &words);
}

static bool check_length(struct making *k, const struct value *v, int entry)
{
    const struct job_spec *words = &k->list[entry].spec;
    bool cuts = false;
    for (int d = v->shape.n; d < words->n; d++)
        cuts |= words->dim[d].n > 0;
    if (!cuts)
        return true;
    struct job_spec spec = *words;
    spec.n = v->shape.n;
    findings_add(
        k->found,
        &(struct finding){.code = FINDING_SPEC_TOO_LONG,
                          .tensor = v->name,
                          .message = arena_printf(
                              k->found->arena,
                              "%s: the spec in %s%s has %d entries, the tensor %d dimensions",
                              v->name, k->key, words_line(k, words->line), words->n, v->shape.n),
                          .fix = words_fix_entry(k, entry, v->name, true, &spec)});
    return false;
}

// The finer cut without what does not divide.
static struct spec that_divides(const struct mesh *m, const struct value *v, struct spec s)
{
    for (int d = 0; d < v->shape.n; d++)
        while (v->shape.dim[d] % dim_parts(m, &s.dim[d]))
            s.dim[d].axis[--s.dim[d].n] = 0;
    return s;
}

static bool check_divides(struct making *k, const struct value *v, int line,
                          const struct spec *fine)
{
    int d;
    if (spec_divides(fine, k->mesh, &v->shape, &d))
        return true;
    struct buf axes = {0};
    struct spec less = that_divides(k->mesh, v, *fine);
    int64_t parts = dim_parts(k->mesh, &fine->dim[d]), size = v->shape.dim[d];
    dim_cut_print(&fine->dim[d], k->mesh, &axes);
    findings_add(
        k->found,
        &(struct finding){
            .code = FINDING_INDIVISIBLE,
            .tensor = v->name,
            .axes = dim_axes(&fine->dim[d]),
            .message = arena_printf(
                k->found->arena,
                "%s: dimension %s of size %lld does not divide by %lld, as %s%s asks with %s: %s "
                "would do",
                v->name, dim_name(v->dims[d]), (long long)size, (long long)parts, k->key,
                words_line(k, line), buf_str(&axes), words_sizes(k, size, parts)),
            .fix = fix_spec(k, v, &less)});
    buf_clear(&axes);
    return false;
}

// The coarser cut with the axes that the finer has besides, where they divide.
static struct spec nearest(const struct mesh *m, const struct value *v, const struct spec *coarse,
                           const struct spec *fine)
{
    struct spec s = *coarse;
    for (int d = 0; d < v->shape.n; d++)
        for (int i = 0; i < fine->dim[d].n; i++) {
            int axis = fine->dim[d].axis[i], parts = dim_parts(m, &s.dim[d]);
            if (!(spec_axes(&s) >> axis & 1) && v->shape.dim[d] % (parts * m->axis[axis].size) == 0)
                dim_append(&s.dim[d], axis);
        }
    return s;
}

// What is not given at all is told once, and gets what the gradients have.
static void not_a_refinement(struct making *k, const struct value *v, int entry, int line,
                             const struct spec *coarse, const char *whose, const struct spec *fine)
{
    struct spec right = nearest(k->mesh, v, coarse, fine);
    bool given = line || k->n;
    findings_add(
        k->found,
        &(struct finding){
            .code = FINDING_NOT_A_REFINEMENT,
            .tensor = given ? v->name : k->key,
            .axes = given ? (axis_set)(spec_axes(coarse) | spec_axes(fine)) : 0,
            .message = arena_printf(k->found->arena,
                                    "%s: %s%s %s %s, which does not go on from the %s's %s: %s "
                                    "would do",
                                    v->name, k->key, words_line(k, line),
                                    entry < 0 ? "leaves it at" : "cuts", spec_text(k, v, fine),
                                    whose, spec_text(k, v, coarse), spec_text(k, v, &right)),
            .fix = given ? fix_spec(k, v, &right) : fix_whole(k, &k->job->sharding.grads)});
}

static void check_param(struct sharding *s, struct making k[], const struct value *v)
{
    struct spec own = sharding_spec(s, k[GRADS].mesh, v), coarse = own;
    const char *whose = "parameter";
    for (enum which w = GRADS; w <= STATE; w++) {
        const struct refine *r = refine_of(s, w);
        int entry = entry_of(r, v), line = entry < 0 ? r->job->line : k[w].list[entry].spec.line;
        struct spec fine = asked(r, k[w].mesh, v, &coarse, &own);
        if ((entry < 0 || check_length(&k[w], v, entry)) && check_divides(&k[w], v, line, &fine) &&
            !refines(&coarse, &fine))
            not_a_refinement(&k[w], v, entry, line, &coarse, whose, &fine);
        coarse = admitted(k[w].mesh, v, &coarse, fine);
        whose = "gradient";
    }
}

void refine_check(struct sharding *s, const struct job *job, const struct mesh *m,
                  const struct graph *g, struct findings *f)
{
    struct making k[] = {making_of(s, job, m, f, GRADS), making_of(s, job, m, f, STATE)};
    words_check_matches(&k[GRADS], g);
    words_check_matches(&k[STATE], g);
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].kind == VALUE_PARAM && g->values[i].alias < 0 && !g->values[i].frozen)
            check_param(s, k, &g->values[i]);
}
