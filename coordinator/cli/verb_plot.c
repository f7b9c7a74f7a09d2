// SPDX-License-Identifier: Apache-2.0
// weft plot: curves of what jobs measured, over one another, in the terminal or as an SVG file. A curve is
// one key of one job; it is called by what tells it from the others.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "common/metrics/chart.h"
#include "common/metrics/rows.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/job_rows.h"

enum { PLOT_KEYS = 8 };

struct plotted { // a job's rows
    struct rows rows;
    char name[192];
    double *step;
};
struct plot {
    struct arena arena;
    const char *key[PLOT_KEYS];
    int nkeys;
    struct plotted *jobs;
    int njobs;
    struct chart chart;
    const char *of_job[CHART_CURVES], *of_key[CHART_CURVES]; // of each curve
    bool full;                                               // a curve was left out
};

// "loss,eval_loss" as keys.
static int read_keys(struct plot *p, const struct verb *v, const char *text)
{
    char *at = arena_strdup(&p->arena, text), *key;
    while ((key = strsep(&at, ",")) != NULL) {
        if (!*key)
            continue;
        if (p->nkeys == PLOT_KEYS)
            return usage(v, "--keys takes at most 8 keys");
        p->key[p->nkeys++] = key;
    }
    return p->nkeys ? CLIENT_OK : usage(v, "--keys names no key");
}

// Rows are all that is kept of a job: its connection and its file are closed again.
static int read_job(struct plot *p, const struct verb *v, const struct args *a, int i)
{
    struct plotted *j = &p->jobs[i];
    struct cli_link l = {0};
    struct job_rows file = {.fd = -1};
    struct args one = *a; // each job's own coordinator: a run of this folder, or the service
    one.pos[0] = a->pos[i];
    one.npos = 1;
    rows_init(&j->rows, p->key, p->nkeys);
    int rc = cli_link_open(&l, v, &one);
    if (rc)
        return rc;
    rc = job_rows_open(&file, &l, a->pos[i]);
    rc = rc ? rc : job_rows_read(&file, &j->rows);
    snprintf(j->name, sizeof j->name, "%s", file.name);
    for (int k = 0; k < i; k++) // two of one name
        if (strcmp(p->jobs[k].name, j->name) == 0)
            snprintf(j->name, sizeof j->name, "%.100s (%.8s)", file.name, file.job);
    j->step = arena_array(&p->arena, double, j->rows.n + 1);
    for (size_t k = 0; k < j->rows.n; k++)
        j->step[k] = (double)j->rows.row[k].step;
    job_rows_close(&file);
    cli_link_close(&l);
    return rc;
}

// TensorBoard's: the mean of all numbers so far, whose weights fall by the factor `keep` a row.
static void smooth(double *y, size_t n, double keep)
{
    double sum = 0, weight = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        sum = keep * sum + (1 - keep) * y[i];
        weight = keep * weight + 1 - keep;
        y[i] = sum / weight;
    }
}

static void add_curve(struct plot *p, const struct plotted *j, int key, double keep)
{
    size_t n = 0, rows = j->rows.n;
    double *y = arena_array(&p->arena, double, rows + 1);
    for (size_t i = 0; i < rows; i++) {
        y[i] = rows_value(&j->rows, i, key);
        n += isfinite(y[i]) != 0;
    }
    p->full |= n && p->chart.ncurves == CHART_CURVES;
    if (!n || p->full)
        return;
    smooth(y, rows, keep);
    const char *name = p->njobs == 1   ? p->key[key]
                       : p->nkeys == 1 ? j->name
                                       : arena_printf(&p->arena, "%s: %s", j->name, p->key[key]);
    p->of_job[p->chart.ncurves] = j->name;
    p->of_key[p->chart.ncurves] = p->key[key];
    p->chart.curve[p->chart.ncurves++] = (struct curve){name, j->step, y, rows};
}

static void print_points(const struct plot *p)
{
    struct buf out = {0};
    struct json_out w;
    json_print_start(&w, &out, false);
    json_array(&w, "curves");
    for (int c = 0; c < p->chart.ncurves; c++) {
        const struct curve *v = &p->chart.curve[c];
        json_object(&w, NULL);
        json_str(&w, "name", v->name);
        json_str(&w, "job", p->of_job[c]);
        json_str(&w, "key", p->of_key[c]);
        json_array(&w, "points");
        for (size_t i = 0; i < v->n; i++) {
            if (!isfinite(v->y[i]))
                continue;
            json_array(&w, NULL);
            json_double(&w, NULL, v->x[i]);
            json_double(&w, NULL, v->y[i]);
            json_end(&w);
        }
        json_end(&w);
        json_end(&w);
    }
    json_end(&w);
    json_print_end(&w);
    put_out(&out);
}

static int write_svg(struct plot *p, const struct verb *v, const char *path)
{
    struct buf out = {0};
    struct err e = {0};
    chart_svg(&p->chart, p->njobs == 1 ? p->jobs[0].name : "", &out);
    const char *slash = strrchr(path, '/');
    char *folder = arena_strdup(&p->arena, path);
    folder[slash ? slash - path : 0] = 0;
    int rc =
        folder_write_bytes(slash == path ? "/"
                           : slash       ? folder
                                         : ".",
                           slash ? slash + 1 : path, out.data, out.len, 0644, FOLDER_LOOSE, &e);
    buf_clear(&out);
    if (!rc)
        return CLIENT_OK;
    complain(v, e.text, path, "name another file with --svg");
    return CLIENT_FAILED;
}

static void print_chart(const struct plot *p)
{
    enum { LINES = 24, COLUMNS = 80 };
    int columns = screen_columns();
    const struct chart_text t = {
        .columns = columns ? columns : COLUMNS, .lines = LINES, .colour = screen_colours()};
    struct buf out = {0};
    chart_braille(&p->chart, &t, &out);
    plain_picture(stdout, buf_str(&out), out.len);
    fflush(stdout);
    buf_clear(&out);
}

int verb_plot(const struct verb *v, const struct args *a)
{
    struct plot p = {.njobs = a->npos, .chart = {.x_name = "step", .log = a->log}};
    double keep = a->smooth;
    if (keep < 0 || keep >= 1)
        return usage(v, "--smooth takes a weight from 0 to below 1");
    if (a->json && a->svg)
        return usage(v, "--json and --svg exclude each other");
    p.jobs = arena_array(&p.arena, struct plotted, p.njobs);
    memset(p.jobs, 0, sizeof *p.jobs * (size_t)p.njobs);
    int rc = read_keys(&p, v, a->keys ? a->keys : "loss,eval_loss");
    for (int i = 0; i < p.njobs && !rc; i++)
        rc = read_job(&p, v, a, i);
    for (int i = 0; i < p.njobs && !rc; i++)
        for (int k = 0; k < p.nkeys; k++)
            add_curve(&p, &p.jobs[i], k, keep);
    if (!rc && !p.chart.ncurves)
        plain_error("weft plot: no row has %s yet", a->keys ? a->keys : "a loss");
    else if (!rc && p.full)
        plain_error("weft plot: only the first %d curves are shown", CHART_CURVES);
    if (!rc && a->json)
        print_points(&p);
    else if (!rc && a->svg)
        rc = write_svg(&p, v, a->svg);
    else if (!rc && p.chart.ncurves)
        print_chart(&p);
    for (int i = 0; i < p.njobs; i++)
        rows_clear(&p.jobs[i].rows);
    arena_clear(&p.arena);
    return rc;
}
