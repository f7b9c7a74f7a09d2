// SPDX-License-Identifier: Apache-2.0
// The findings of a job, in the order in which they are shown. See explain.h.
#include "common/explain/explain.h"

#include <fnmatch.h>

#include "common/explain/heads.h"
#include "common/explain/repeated.h"
#include "common/explain/routing.h"
#include "common/explain/sharding_findings.h"
#include "common/explain/usage.h"

static const char *fix_without_group(const struct job_optimizer *o, int drop, struct arena *a)
{
    struct job_optimizer rest = *o;
    struct buf b = {0};
    rest.groups = arena_array(a, struct job_param_group, o->n_groups);
    rest.n_groups = 0;
    for (int i = 0; i < o->n_groups; i++)
        if (i != drop)
            rest.groups[rest.n_groups++] = o->groups[i];
    buf_puts(&b, "optimizer.groups=");
    job_groups_print(&rest, &b);
    return buf_keep(&b, a);
}

// Groups of the optimiser that no parameter belongs to.
static void find_empty_groups(const struct graph *g, const struct job_optimizer *o,
                              struct findings *f)
{
    for (int i = 0; i < o->n_groups; i++) {
        const struct job_param_group *group = &o->groups[i];
        bool any = false;
        for (int v = 0; v < g->nvalues && !any; v++)
            any = g->values[v].kind == VALUE_PARAM &&
                  fnmatch(group->match, g->values[v].name, 0) == 0;
        if (any)
            continue;
        const char *where = group->line ? arena_printf(f->arena, " (line %d)", group->line) : "";
        findings_say(f,
                     (struct finding){.code = FINDING_NO_MATCH,
                                      .tensor = group->match,
                                      .fix = fix_without_group(o, i, f->arena)},
                     "%s%s: no parameter matches this group", group->match, where);
    }
}

// A job of more devices than weft runs may be planned, as people do before they have them: a finding
// says that nobody runs it.
static void find_many_devices(const struct job *job, struct findings *f)
{
    struct err e = {0};
    if (job_check_devices(job, &e))
        findings_say(f, (struct finding){.code = FINDING_TOO_MANY_DEVICES},
                     "%s: `weft run` and `weft submit` refuse it", e.text);
}

// A sequence that attention cuts stays in order where the model takes its order in memory for that of
// its positions (carry.h). Late positions see many keys, early ones few.
static void find_order(const struct compiled *c, const struct graph *g, struct findings *f)
{
    axis_set axes = c->sharding->context;
    if (g->ordered && axes)
        findings_say(
            f, (struct finding){.code = FINDING_SEQUENCE_ORDER, .axes = axes},
            "%s takes positions by their order in memory, so the sequence is cut in order on %s "
            "and the last device's attention is up to twice the mean; embed(positions, "
            "PATH[position = seq, ...]) reads a parameter by position in any order",
            g->ordered, axis_set_text(&c->mesh, axes, f->arena));
}

int explain_job(const struct job *job, build_fn build, const struct compile_options *o,
                struct arena *a, struct compiled *out, struct findings *found, struct buf *dump,
                struct err *e)
{
    int rc = compile_job(job, build, o, a, out, dump, e);
    findings_init(found, job, a);
    const struct sharding *s = out->sharding;
    const struct graph *g = out->global[out->holder];
    sharding_findings(out, job, 0, s->of_names, found);
    if (g) {
        if (!o->only)
            find_empty_groups(g, &job->optimizer, found);
        sharding_findings(out, job, s->of_names, s->facts.n, found);
        heads_check(s, job, &out->mesh, g, found);
        routing_check(s, job, &out->mesh, g, found);
        find_order(out, g, found);
    }
    find_many_devices(job, found);
    if (out->whole && !o->only) { // what follows is about a training
        usage_check(out, job, a, found);
        if (!o->hasty)
            repeated_check(out, job, found);
        if (out->keyless)
            findings_say(found,
                         (struct finding){.code = FINDING_SAMPLES_KEYLESS, .tensor = "eval.sample"},
                         "eval.sample: no keys are kept, so each token of a sample takes a forward "
                         "pass over a whole sequence: %s",
                         out->keyless);
        if (job->precision.compute == JOB_TF32 && job->resources.kind == JOB_CPU)
            findings_add(
                found, &(struct finding){.code = FINDING_TF32_IS_F32,
                                         .message = "precision.compute: tf32: products on the CPU "
                                                    "are computed in f32, as with f32",
                                         .fix = "precision.compute=f32"});
        bool cpu = job->resources.kind == JOB_CPU;
        if (!job->precision.deterministic)
            findings_add(
                found, &(struct finding){
                           .code = cpu ? FINDING_DETERMINISTIC_ANYWAY : FINDING_NOT_DETERMINISTIC,
                           .message = cpu ? "precision.deterministic: false: on the CPU a step "
                                            "run twice gives the same bits all the same"
                                          : "precision.deterministic: false: a step run twice may "
                                            "differ in its last bits",
                           .fix = "precision.deterministic=true"});
    }
    const struct finding *error = findings_first_error(found);
    return error ? err_set(e, ERR_INVALID, "%s", error->message) : rc;
}
