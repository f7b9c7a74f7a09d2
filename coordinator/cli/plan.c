// SPDX-License-Identifier: Apache-2.0
// weft plan and weft schema: what a job needs, and what a job file may say. No device, no data.
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/compile/picture.h"
#include "common/compile/report.h"
#include "common/model/model.h"
#include "common/model/schema_list.h"
#include "coordinator/cli/verbs.h"

// The terminal's columns; a file or a pipe gets as many as a wide page has.
static int columns(void)
{
    enum { PAGE = 100 };
    struct winsize size;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return PAGE;
}

// The picture that a word names; PICTURE_KINDS: none. No word: the report.
static enum picture picture_named(const char *word)
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
        picture_print(picture_named(f->show), r->compiled, columns(), out);
    } else {
        report_text(r, out);
    }
}

static int read_whole(const char *path, struct buf *to, struct err *e)
{
    enum { LARGEST = 1 << 20 };
    FILE *file = fopen(path, "re");
    if (!file)
        return err_errno(e, ERR_IO, "%s", path);
    buf_reserve(to, LARGEST);
    to->len = fread(to->data, 1, LARGEST, file);
    to->data[to->len] = 0;
    bool bad = ferror(file) || !feof(file);
    fclose(file);
    return bad ? err_set(e, ERR_IO, "%s: cannot be read, or is larger than 1 MiB", path) : 0;
}

static int device_read(const struct args *f, struct arena *a, struct device_model *device,
                       struct err *e)
{
    struct buf file = {0};
    int rc = f->device_file ? read_whole(f->device_file, &file, e) : 0;
    if (!rc)
        rc = device_model_read(a, f->device ? f->device : "cpu",
                               f->device_file ? buf_str(&file) : NULL, f->device_file, device, e);
    buf_clear(&file);
    return rc;
}

static int plan(const struct args *f, struct arena *a, struct buf *out, struct buf *why)
{
    struct job job;
    struct job_errors errs = {0};
    struct compiled compiled;
    struct report report;
    struct device_model device;
    struct err e = {0};
    const char *file = f->pos[0];
    if (job_load(a, &weft_schema, file, f->set, f->nset, &job, &errs)) {
        job_errors_print(&errs, why);
        return CLIENT_USAGE;
    }
    if (device_read(f, a, &device, &e)) {
        buf_printf(why, "weft plan: %s\n", e.text);
        return CLIENT_USAGE;
    }
    int rc = model_compile(&job, a, &compiled, NULL, &e);
    if (rc)
        buf_printf(why, "%s: %s\n", file, e.text);
    if (rc && !compiled.whole)
        return CLIENT_USAGE;
    model_fit(&job, &device, &compiled, a);
    report_make(&report, &job, &compiled, &device, a);
    print_report(&report, f, out);
    return !rc && report.fits ? CLIENT_OK : CLIENT_USAGE;
}

int verb_plan(const struct verb *v, const struct args *f)
{
    struct arena a = {0};
    struct buf out = {0}, why = {0};
    if (f->show && picture_named(f->show) == PICTURE_KINDS)
        return usage(v, "--show mesh, sharding, schedule or memory");
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
