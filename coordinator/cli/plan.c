// SPDX-License-Identifier: Apache-2.0
// weft plan and weft schema: what a job needs, and what a job file may say. No device, no data.
#include <stdio.h>

#include "common/compile/report.h"
#include "common/model/model.h"
#include "common/model/schema_list.h"
#include "coordinator/cli/verbs.h"

static void print_report(const struct report *r, bool json, struct buf *out)
{
    struct json_out w;
    if (!json) {
        report_text(r, out);
        return;
    }
    json_out_init(&w, out);
    w.pretty = true;
    report_json(r, &w);
    json_out_clear(&w);
    buf_putc(out, '\n');
}

static int plan(const struct args *f, struct arena *a, struct buf *out, struct buf *why)
{
    struct job job;
    struct job_errors errs = {0};
    struct compiled compiled;
    struct report report;
    struct err e = {0};
    const char *file = f->pos[0], *model = f->device ? f->device : "cpu";
    const struct device_model *device = device_model_find(model);
    if (job_load(a, &weft_schema, file, f->set, f->nset, &job, &errs)) {
        job_errors_print(&errs, why);
        return CLIENT_USAGE;
    }
    if (!device) {
        buf_printf(why, "weft plan: no device model '%s'\nthis version knows: cpu\n", model);
        return CLIENT_USAGE;
    }
    int rc = model_compile(&job, a, &compiled, NULL, &e);
    if (rc)
        buf_printf(why, "%s: %s\n", file, e.text);
    if (rc && !compiled.whole)
        return CLIENT_USAGE;
    report_make(&report, &job, &compiled, device, a);
    print_report(&report, f->json, out);
    return !rc && report.fits ? CLIENT_OK : CLIENT_USAGE;
}

int verb_plan(const struct verb *v, const struct args *f)
{
    struct arena a = {0};
    struct buf out = {0}, why = {0};
    (void)v;
    int rc = plan(f, &a, &out, &why);
    fputs(buf_str(&out), stdout);
    fputs(buf_str(&why), stderr);
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
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
    return CLIENT_OK;
}
