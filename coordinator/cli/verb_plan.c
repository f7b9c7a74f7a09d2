// SPDX-License-Identifier: Apache-2.0
// weft plan and weft schema: what a job needs, and what a job file may say. Neither opens a device.
// Of data files that are here plan reads as much as shows whether a rank could (data_files.h).
#include <stdio.h>
#include <string.h>

#include "common/base/plain.h"
#include "common/explain/decode_plan.h"
#include "common/explain/picture.h"
#include "common/explain/plan_report.h"
#include "common/language/model_facts.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/data_files.h"
#include "coordinator/cli/generation.h"
#include "coordinator/cli/local_ranks.h"
#include "coordinator/cli/resolved_job.h"
#include "coordinator/cli/source_look.h"
#include "coordinator/cli/verbs.h"

// How wide to print: as the terminal, or as a page where the output is a file or a pipe.
static int count_columns(void)
{
    enum { PAGE = 100 };
    int screen = screen_columns();
    return screen ? screen : PAGE;
}

// The picture that a word names; PICTURE_KINDS if there is none of that name.
static enum picture find_picture(const char *word)
{
    int p = 0;
    while (p < PICTURE_KINDS && strcmp(picture_name((enum picture)p), word) != 0)
        p++;
    return (enum picture)p;
}

static void print_report(const struct report *r, const struct args *f, struct buf *out)
{
    struct json_out w;
    if (f->json) {
        json_out_init(&w, out);
        w.pretty = true;
        report_json(r, &w);
        json_out_clear(&w);
        buf_putc(out, '\n');
    } else if (f->show) {
        picture_print(find_picture(f->show), r->compiled, count_columns(), out);
    } else {
        report_text(r, f->full, count_columns(), out);
    }
}

// A batch that cannot be divided is the one mistake after which all sizes are still known. Such a
// job is planned with the nearest batch that can be, and the mistake is among the findings.
static bool is_batch_alone_wrong(const struct job *job, const struct job_errors *errs)
{
    return errs->n == 1 && !errs->more && strcmp(errs->items[0].path, "data.batch") == 0 &&
           job->batch_unit > 0;
}

static int load_job(const struct args *f, struct arena *a, struct job *job, struct finding *wrong,
                    struct buf *why)
{
    enum { LARGEST = 1 << 24 }; // that data.batch may be
    struct job_errors errs = {0};
    struct buf text = {0};
    int rc = job_load(a, &weft_schema, f->pos[0], f->set, f->nset, job, &errs);
    if (!rc)
        return 0;
    job_errors_print(&errs, why);
    if (!is_batch_alone_wrong(job, &errs) || f->nset == ARGS_MAX_SET)
        return rc;
    int64_t unit = job->batch_unit, below = job->data.batch / unit * unit, above = below + unit;
    const char **set = arena_array(a, const char *, f->nset + 1);
    memcpy(set, f->set, sizeof *set * (size_t)f->nset);
    job_errors_print(&errs, &text);
    *wrong = (struct finding){.code = FINDING_BATCH_INDIVISIBLE,
                              .tensor = "data.batch",
                              .message = arena_printf(a, "%.*s", (int)text.len - 1, text.data)};
    buf_clear(&text);
    if (above <= LARGEST)
        wrong->fix = arena_printf(a, "data.batch=%lld", (long long)above);
    if (below)
        wrong->fix = arena_printf(a, "data.batch=%lld%s%s", (long long)below,
                                  wrong->fix ? " or " : "", wrong->fix ? wrong->fix : "");
    if (!wrong->fix)
        return rc;
    set[f->nset] = arena_printf(a, "data.batch=%lld", (long long)(below ? below : above));
    return job_load(a, &weft_schema, f->pos[0], set, f->nset + 1, job, &errs);
}

// A file that no rank could use is a finding; returns a list of those that cannot be opened here, null
// where all can.
static const char *look_at_data(const struct job *job, struct findings *found, struct arena *a)
{
    struct data_fault faults[DATA_FAULTS_MAX];
    const char *list = NULL;
    int n = data_faults_find(job, a, faults);
    for (int i = 0; i < n; i++) {
        const struct data_fault *one = &faults[i];
        int line = job_line(job, one->key, strlen(one->key));
        struct finding unusable = {
            .code = FINDING_DATA_UNUSABLE, .tensor = one->key, .message = one->why};
        if (line)
            unusable.message = arena_printf(a, "%s (line %d)", one->why, line);
        if (one->absent)
            list = arena_printf(a, "%s%s%s%s", list ? list : "", list ? ", " : "", one->path,
                                one->forbidden ? " (this user may not read it)" : "");
        else
            findings_add(found, &unusable);
    }
    return list;
}

// What the job takes of the checkpoint that it begins with, for people; null: it begins with none, or
// that is not here.
static const char *look_at_source(struct job *job, const struct compiled *c, struct findings *found,
                                  struct arena *a)
{
    struct buf say = {0};
    struct err e = {0};
    if (!job->checkpoint.from)
        return NULL;
    int rc = source_name(job, a, &e);
    rc = rc ? rc : source_look(job, c, a, &say, &e);
    if (!rc)
        return buf_keep(&say, a);
    buf_clear(&say);
    if (rc == ERR_NOTFOUND) // `weft submit` means another place by it
        return arena_printf(a, "nobody has looked at it: %s", e.text);
    findings_add(found, &(struct finding){.code = FINDING_SOURCE_UNFIT,
                                          .tensor = "checkpoint.from",
                                          .message = arena_strdup(a, e.text)});
    return NULL;
}

static int plan_job(const struct args *f, struct arena *a, struct buf *out, struct buf *why)
{
    struct job job;
    struct compiled compiled;
    struct findings found;
    struct report report;
    struct finding wrong = {0};
    struct device_model device;
    struct err e = {0};
    const char *file = f->pos[0];
    if (load_job(f, a, &job, &wrong, why))
        return CLIENT_USAGE;
    if (resolve_device(f, &job, a, &device, &e)) {
        buf_printf(why, "weft plan: %s\n", e.text);
        return CLIENT_USAGE;
    }
    int rc = plan_explain(&job, &(struct compile_options){0}, a, &compiled, &found, NULL, &e);
    if (rc)
        buf_printf(why, "%s: %s\n", file, e.text);
    if (rc && !compiled.whole)
        return CLIENT_USAGE;
    if (wrong.message)
        findings_add(&found, &wrong);
    if (found.errors && !f->json && !f->show)
        buf_reset(why); // the report has them, each once
    plan_fit(&job, &device, &compiled, &found, a);
    const char *absent = !f->show || f->json ? look_at_data(&job, &found, a) : NULL;
    const char *source = rc ? NULL : look_at_source(&job, &compiled, &found, a);
    report_make(&report, &job, &compiled, &found, &device, a);
    report.absent = absent;
    report.source = source;
    print_report(&report, f, out);
    return !rc && report.fits && !found.errors ? CLIENT_OK : CLIENT_USAGE;
}

// ---- generating ----

// The job as `weft generate` of its checkpoint would have it.
static int load_generating(const struct args *f, struct arena *a, struct job *job, struct buf *why)
{
    const char *set[LOCAL_SETTINGS_MAX + 1];
    const struct local_options o = {.mesh = f->mesh, .set = f->set, .nset = f->nset};
    struct job_errors errs = {0};
    struct err e = {0};
    int n;
    int rc = local_ranks_settings(a, &o, f->batch ? f->batch : GENERATE_ROWS, set, &n, &e);
    rc = rc ? rc : job_load(a, &weft_schema, f->pos[0], set, n, job, &errs);
    if (!rc && f->context > job->model.facts->seq) { // as of a model that was trained so
        set[n++] = arena_printf(a, "model.seq=%d", f->context);
        rc = job_load(a, &weft_schema, f->pos[0], set, n, job, &errs);
        if (rc)
            buf_printf(why, "weft plan: --context %d is not possible:\n", f->context);
    }
    if (!rc && !job->model.facts->samples)
        rc = err_set(&e, ERR_INVALID, "its program %s names no `logits` of tokens",
                     job->model.program);
    if (e.code)
        buf_printf(why, "%s: %s\n", f->pos[0], e.text);
    else if (rc)
        job_errors_print(&errs, why);
    return rc;
}

static int plan_generating(const struct args *f, struct arena *a, struct buf *out, struct buf *why)
{
    const struct compile_options o = {
        .only = PROGRAM_FILL, .rows = f->chunk ? f->chunk : GENERATE_CHUNK, .context = f->context};
    struct job job;
    struct compiled compiled;
    struct decode_plan plan;
    struct device_model device;
    struct err e = {0};
    if (load_generating(f, a, &job, why))
        return CLIENT_USAGE;
    if (resolve_device(f, &job, a, &device, &e)) {
        buf_printf(why, "weft plan: %s\n", e.text);
        return CLIENT_USAGE;
    }
    int rc = plan_compile(&job, &o, a, &compiled, NULL, &e);
    if (rc) {
        buf_printf(why, "%s: %s%s\n", f->pos[0],
                   rc == ERR_UNSUPPORTED ? "no keys can be kept: " : "", e.text);
        return CLIENT_USAGE;
    }
    decode_plan_make(&plan, &compiled, &device, a);
    if (device.memory)
        plan.fit = plan_rows_that_fit(&job, &o, &device);
    if (plan.fit == 0)
        plan.fit_context = plan_context_that_fits(&job, &o, &device);
    if (plan.fit > 0) // ranks have equal shares of the texts
        plan.fit -= plan.fit % mesh_ranks(&compiled.mesh);
    if (f->json) {
        struct json_out w;
        json_print_start(&w, out, true);
        decode_plan_json(&plan, &w);
        json_print_end(&w);
    } else {
        decode_plan_text(&plan, job.name, count_columns(), out);
    }
    return decode_plan_fits(&plan) ? CLIENT_OK : CLIENT_USAGE;
}

int verb_plan(const struct verb *v, const struct args *f)
{
    struct arena a = {0};
    struct buf out = {0}, why = {0};
    if (f->show && find_picture(f->show) == PICTURE_KINDS)
        return usage(v, "--show mesh, sharding, schedule or memory");
    if (f->generate ? f->show || f->full : f->mesh || f->batch || f->context || f->chunk)
        return usage(v, "--mesh, --batch, --context and --chunk are --generate's, which takes no "
                        "--show and no --full");
    int rc = f->generate ? plan_generating(f, &a, &out, &why) : plan_job(f, &a, &out, &why);
    plain_puts(stdout, buf_str(&out));
    plain_puts(stderr, buf_str(&why));
    buf_clear(&out);
    buf_clear(&why);
    arena_clear(&a);
    return rc;
}

int verb_schema(const struct verb *v, const struct args *a)
{
    enum job_schema_form form = a->json       ? JOB_SCHEMA_JSON
                                : a->markdown ? JOB_SCHEMA_MARKDOWN
                                              : JOB_SCHEMA_TEXT;
    struct buf out = {0};
    if (a->json && a->markdown)
        return usage(v, "--json or --markdown");
    job_schema_print(&weft_schema, form, &out);
    plain_puts(stdout, buf_str(&out));
    buf_clear(&out);
    return CLIENT_OK;
}
