// SPDX-License-Identifier: Apache-2.0
// weft plan and weft schema: what a job needs, and what a job file may say. No device, no data.
#include <stdio.h>
#include <string.h>

#include "common/compile/report.h"
#include "common/model/model.h"
#include "common/model/schema_list.h"
#include "coordinator/cli/verbs.h"

enum { MAX_OVERRIDES = 256 };

struct plan_flags {
    const char *file, *device;
    const char *overrides[MAX_OVERRIDES];
    int noverrides;
    bool json;
};

static int parse_flags(const struct verb *v, int argc, char **argv, struct plan_flags *f)
{
    *f = (struct plan_flags){.device = "cpu"};
    for (int i = 0; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            f->json = true;
        } else if (strcmp(argv[i], "-s") == 0 || strcmp(argv[i], "--device") == 0) {
            if (!more)
                return usage(v, "a flag lacks its value");
            if (argv[i][1] == '-')
                f->device = argv[++i];
            else if (f->noverrides == MAX_OVERRIDES)
                return usage(v, "too many -s");
            else
                f->overrides[f->noverrides++] = argv[++i];
        } else if (argv[i][0] == '-' || f->file) {
            return usage(v, argv[i][0] == '-' ? "unknown flag" : "more than one job file");
        } else {
            f->file = argv[i];
        }
    }
    return f->file ? CLIENT_OK : usage(v, "which job file?");
}

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

static int plan(const struct plan_flags *f, struct arena *a, struct buf *out, struct buf *why)
{
    struct job job;
    struct job_errors errs = {0};
    struct compiled compiled;
    struct report report;
    struct err e = {0};
    const struct device_model *device = device_model_find(f->device);
    if (job_load(a, &weft_schema, f->file, f->overrides, f->noverrides, &job, &errs)) {
        job_errors_print(&errs, why);
        return CLIENT_USAGE;
    }
    if (!device) {
        buf_printf(why, "weft plan: no device model '%s'\nthis version knows: cpu\n", f->device);
        return CLIENT_USAGE;
    }
    int rc = model_compile(&job, a, &compiled, NULL, &e);
    if (rc)
        buf_printf(why, "%s: %s\n", f->file, e.text);
    if (rc && !compiled.whole)
        return CLIENT_USAGE;
    report_make(&report, &job, &compiled, device, a);
    print_report(&report, f->json, out);
    return !rc && report.fits ? CLIENT_OK : CLIENT_USAGE;
}

int verb_plan(const struct verb *v, int argc, char **argv)
{
    struct plan_flags f;
    struct arena a = {0};
    struct buf out = {0}, why = {0};
    int rc = parse_flags(v, argc, argv, &f);
    if (rc)
        return rc;
    rc = plan(&f, &a, &out, &why);
    fputs(buf_str(&out), stdout);
    fputs(buf_str(&why), stderr);
    buf_clear(&out);
    buf_clear(&why);
    arena_clear(&a);
    return rc;
}

int verb_schema(const struct verb *v, int argc, char **argv)
{
    enum job_schema_form form = JOB_SCHEMA_TEXT;
    struct buf out = {0};
    if (argc > 1)
        return usage(v, "too many arguments");
    if (argc == 1 && strcmp(argv[0], "--json") == 0)
        form = JOB_SCHEMA_JSON;
    else if (argc == 1 && strcmp(argv[0], "--markdown") == 0)
        form = JOB_SCHEMA_MARKDOWN;
    else if (argc == 1)
        return usage(v, "unknown argument");
    job_schema_print(&weft_schema, form, &out);
    fputs(buf_str(&out), stdout);
    buf_clear(&out);
    return CLIENT_OK;
}
