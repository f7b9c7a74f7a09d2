// SPDX-License-Identifier: Apache-2.0
// Findings of repeated work. See repeated.h.
#include "common/explain/repeated.h"

#include "common/compile/graph/experts.h"
#include "common/explain/unruled.h"
#include "common/explain/work.h"

struct repeat_checker {
    const struct compiled *c;
    const struct job *job;
    struct arena *arena;
    struct findings *found;
    struct work work;
    axis_set alone; // that deal experts and cut nothing else
    const struct unruled *multiples;
    int nmultiples;
    struct rules_change offered; // what the fixes of the findings with a cause change
};

#define TEXT(k, ...) arena_printf((k)->arena, __VA_ARGS__)

static const char *describe_axes(const struct repeat_checker *k, axis_set axes)
{
    return axis_set_text(&k->c->mesh, axes, k->arena);
}

// The fix that gives one more rule the axes, where that can be; it is remembered. Null: it cannot.
static const char *fix_with_rule(struct repeat_checker *k, const char *dim, axis_set axes)
{
    struct rules_change one = {0};
    struct work work;
    rules_add(&one, dim, axes);
    if (!rules_try(k->c, k->job, &one, &work))
        return NULL;
    if (k->offered.n < RULES_TRIED)
        rules_add(&k->offered, dim, axes);
    return rules_text(k->c, k->job, &one, k->arena);
}

// ---- an axis of experts alone ------------------------------------------------------------------

// Whether a rule of more than experts has the axis: it is not for experts alone, and something else is
// why the rest is repeated.
static bool is_ruled_elsewhere(const struct repeat_checker *k, axis_set axes)
{
    const struct rules *rules = &k->c->sharding->rules;
    for (int i = 0; i < rules->n; i++)
        if (rules->rule[i].dim != DIM_EXPERT && dim_axes(&rules->rule[i].axes) & axes)
            return true;
    return false;
}

// Why there is no fix: the samples do not divide, or the batch may not have the axes.
static const char *describe_obstacle(const struct repeat_checker *k, axis_set experts)
{
    axis_set batch = dim_axes(rules_axes(&k->c->sharding->rules, DIM_BATCH)) | experts;
    int64_t unit = k->job->train.microbatches * mesh_product(&k->c->mesh, batch);
    int64_t over = k->job->data.batch % unit;
    return over ? TEXT(k, "; for the batch to have it too data.batch must be a multiple of %lld",
                       (long long)unit)
                : "";
}

static void check_experts(struct repeat_checker *k)
{
    const struct rules *rules = &k->c->sharding->rules;
    axis_set experts = dim_axes(rules_axes(rules, DIM_EXPERT)) & k->work.dense &
                       (axis_set)~dim_axes(rules_axes(rules, DIM_BATCH));
    if (!experts || !experts_find_router(k->c->global[PROGRAM_TRAIN]))
        return;
    const char *fix = fix_with_rule(k, "batch", experts);
    if (!fix && is_ruled_elsewhere(k, experts))
        return;
    k->alone = experts;
    findings_say(k->found,
                 (struct finding){.code = FINDING_EXPERTS_ALONE,
                                  .tensor = "sharding.rules.batch",
                                  .axes = experts,
                                  .utilisation = k->work.utilisation,
                                  .fix = fix},
                 "sharding.rules.batch: %s deals experts and does not cut the batch: all else is "
                 "computed %d times over, %.3g of the work is useful%s",
                 describe_axes(k, experts), mesh_product(&k->c->mesh, experts), k->work.utilisation,
                 fix ? "; behind the batch's axes it would give each device samples of its own"
                     : describe_obstacle(k, experts));
}

// ---- sizes without a rule ----------------------------------------------------------------------

static void add_size(struct repeat_checker *k, const struct model_size *size, axis_set axes,
                     const char *because)
{
    findings_say(k->found,
                 (struct finding){.code = FINDING_SIZE_UNRULED,
                                  .tensor = TEXT(k, "model.%s", size->name),
                                  .axes = axes,
                                  .fix = fix_with_rule(k, size->name, axes)},
                 "model.%s = %s, line %d of program %s: no rule cuts it, %s", size->name,
                 size->written, size->at.line, k->job->model.program, because);
}

static bool is_multiple(const struct repeat_checker *k, const struct model_size *size)
{
    for (int i = 0; i < k->nmultiples; i++)
        if (k->multiples[i].size == size)
            return true;
    return false;
}

// A dimension without a rule is reported only where it holds most of the parameters.
static void check_largest(struct repeat_checker *k)
{
    // The axes that cut weights as such: neither samples nor positions, and not experts alone.
    const struct sharding *s = k->c->sharding;
    axis_set axes =
        mesh_cuts(&k->c->mesh) &
        (axis_set) ~(dim_axes(rules_axes(&s->rules, DIM_BATCH)) | s->batch | s->context | k->alone);
    double share;
    const struct model_size *size = unruled_find_largest(k->job, k->c->sharding, &k->c->mesh,
                                                         k->c->global[PROGRAM_TRAIN], axes, &share);
    if (axes && size && 2 * share > 1 && !is_multiple(k, size))
        add_size(k, size, axes,
                 TEXT(k, "and %.0f %% of the parameters have it and nothing else that %s cuts",
                      100 * share, describe_axes(k, axes)));
}

// ---- whatever it is ----------------------------------------------------------------------------

// Whether the findings that name a cause mend it.
static bool is_mended(const struct repeat_checker *k)
{
    struct work then;
    return k->offered.n && rules_try(k->c, k->job, &k->offered, &then) && !work_is_repeated(&then);
}

static void check_redundant(struct repeat_checker *k)
{
    struct rules_change change;
    struct work then;
    axis_set axes = k->work.repeated & (axis_set)~findings_blamed_axes(k->found);
    if (!work_is_repeated(&k->work) || !axes || is_mended(k))
        return;
    bool mended = rules_search(k->c, k->job, &change, &then);
    const char *text = rules_text(k->c, k->job, &change, k->arena), *more = "";
    if (!mended && text)
        more = TEXT(k, "; no rules alone end that, and the best of them, %s, give %.3g", text,
                    then.utilisation);
    findings_say(k->found,
                 (struct finding){.code = FINDING_REDUNDANT,
                                  .axes = axes,
                                  .utilisation = k->work.utilisation,
                                  .fix = mended ? text : NULL},
                 "devices along %s repeat each other's matmuls: %.3g of the work is useful%s",
                 describe_axes(k, axes), k->work.utilisation, more);
}

void repeated_check(const struct compiled *c, const struct job *job, struct findings *f)
{
    struct repeat_checker k = {.c = c,
                               .job = job,
                               .arena = f->arena,
                               .found = f,
                               .work = work_count(c, compiled_program(c, PROGRAM_TRAIN, 0)->graph)};
    k.nmultiples =
        unruled_find(job, &c->sharding->rules, c->global[PROGRAM_TRAIN], k.arena, &k.multiples);
    check_experts(&k);
    const struct rules *rules = &k.c->sharding->rules;
    for (int i = 0; i < k.nmultiples; i++) {
        const char *base = k.multiples[i].base->name;
        axis_set axes =
            mesh_cuts(&k.c->mesh) & dim_axes(rules_axes(rules, dims_id(k.c->dims, base)));
        if (axes)
            add_size(&k, k.multiples[i].size, axes,
                     TEXT(&k, "and %s cuts %s, of which it is a multiple: try `like %s` there",
                          describe_axes(&k, axes), base, base));
    }
    check_largest(&k);
    check_redundant(&k);
}
