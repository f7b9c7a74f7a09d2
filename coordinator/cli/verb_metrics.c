// SPDX-License-Identifier: Apache-2.0
// weft metrics: the rows of a job's metrics, as a table of the last ones for people, or all of them as
// JSON or CSV. With -f those that come too, until the job ends; where a job resumes from a checkpoint
// the rows of its repeated steps come again, of a newer attempt.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/metrics/rows.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/job_rows.h"

enum { TABLE_ROWS = 20, CSV_COLUMNS = 256, POLL_MS = 500 };

// ---- a table ----

// What people look at, the first that fit the terminal.
static const struct shown {
    const char *key, *head;
    int width;
} shown[] = {
    {"loss", "LOSS", 9},
    {"eval_loss", "EVAL LOSS", 9},
    {"tokens_per_s", "TOKENS/S", 9},
    {"step_ms", "STEP MS", 9},
    {"lr", "LR", 9},
    {"grad_norm", "GRAD NORM", 9},
    {"accuracy", "ACC", 9},
    {"eval_accuracy", "EVAL ACC", 9},
    {"samples_per_s", "SAMPLES/S", 9},
};
enum { SHOWN = sizeof shown / sizeof *shown, FIRST_WIDTH = 20 };

// Which of them any row has, as bits, as far as they fit.
static unsigned choose_columns(const struct rows *r, int width)
{
    unsigned chosen = 0;
    int left = width ? width - FIRST_WIDTH : INT_MAX; // a pipe gets all
    for (int k = 0; k < SHOWN && left > shown[k].width; k++)
        for (size_t i = r->n; i-- > 0;)
            if (isfinite(rows_value(r, i, k))) {
                chosen |= 1u << k;
                left -= shown[k].width + 2;
                break;
            }
    return chosen;
}

static void print_head(unsigned columns, struct buf *out)
{
    buf_printf(out, "%10s %8s", "STEP", "ATTEMPT");
    for (int k = 0; k < SHOWN; k++)
        if (columns >> k & 1)
            buf_printf(out, "  %*s", shown[k].width, shown[k].head);
    buf_putc(out, '\n');
}

static void print_row(const struct rows *r, size_t i, unsigned columns, struct buf *out)
{
    buf_printf(out, "%10lld %8llu", (long long)r->row[i].step,
               (unsigned long long)r->row[i].attempt);
    for (int k = 0; k < SHOWN; k++) {
        double v = rows_value(r, i, k);
        if (columns >> k & 1 && isfinite(v))
            buf_printf(out, "  %*.*g", shown[k].width, v >= 1000 ? 6 : 4, v);
        else if (columns >> k & 1)
            buf_printf(out, "  %*s", shown[k].width, "-");
    }
    buf_putc(out, '\n');
}

// ---- CSV ----

struct csv {
    struct arena arena;
    const char *column[CSV_COLUMNS];
    int n;
    bool said; // that a row has members that are none of the columns
};

static void note_column(struct csv *c, const char *key)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->column[i], key) == 0)
            return;
    if (c->n < CSV_COLUMNS)
        c->column[c->n++] = arena_strdup(&c->arena, key);
}

// A field as RFC 4180 has it; what steers a terminal is spelt.
static void put_field(struct buf *out, const char *text)
{
    struct buf plain = {0};
    plain_append(&plain, text, strlen(text));
    const char *p = buf_str(&plain);
    bool quoted = strpbrk(p, ",\"\n") != NULL;
    if (quoted)
        buf_putc(out, '"');
    for (; *p; p++) {
        if (*p == '"')
            buf_putc(out, '"');
        buf_putc(out, *p);
    }
    if (quoted)
        buf_putc(out, '"');
    buf_clear(&plain);
}

// A text as it is, lists and objects as JSON.
static void put_member(struct buf *out, const struct json *v)
{
    struct buf text = {0};
    struct json_out w;
    if (!v || v->type == JSON_NULL)
        return;
    if (v->type == JSON_STRING) {
        put_field(out, v->string);
        return;
    }
    json_out_init(&w, &text);
    json_value(&w, NULL, v);
    json_out_clear(&w);
    put_field(out, buf_str(&text));
    buf_clear(&text);
}

// ---- the verb ----

struct metrics_query {
    const struct args *args;
    struct job_rows file;
    struct rows rows;
    struct csv csv;
    unsigned columns;
    bool headed;
};

static int read_row(struct metrics_query *q, size_t i, struct arena *a, const char **text,
                    struct json **row)
{
    struct err e = {0};
    int rc = rows_text(&q->rows, q->file.fd, i, a, text, &e);
    if (!rc && row && json_parse(a, *text, strlen(*text), row, NULL))
        *row = NULL; // it has a step and an attempt, and something that is no JSON
    if (!rc)
        return CLIENT_OK;
    complain(q->file.link->verb, e.text, "the job's metrics.jsonl", "look at its folder");
    return CLIENT_FAILED;
}

// What is done with a row; `row` is its JSON, null where none is wanted or it is none.
typedef void take_fn(struct metrics_query *q, const char *text, const struct json *row,
                     struct buf *out);

static int for_each_row(struct metrics_query *q, size_t from, bool parsed, take_fn *take,
                        struct buf *out)
{
    int rc = CLIENT_OK;
    for (size_t i = from; i < q->rows.n && !rc; i++) {
        struct arena a = {0};
        const char *text;
        struct json *row = NULL;
        rc = read_row(q, i, &a, &text, parsed ? &row : NULL);
        if (!rc)
            take(q, text, row, out);
        arena_clear(&a);
        if (out->len > 1 << 20)
            put_out(out);
    }
    return rc;
}

static void note_columns(struct metrics_query *q, const char *text, const struct json *row,
                         struct buf *out)
{
    (void)text;
    (void)out;
    for (const struct json *m = row ? row->first : NULL; m; m = m->next)
        note_column(&q->csv, m->key);
}

// The columns are those of the rows that there were at first.
static void put_csv_row(struct metrics_query *q, const char *text, const struct json *row,
                        struct buf *out)
{
    int known = 0;
    (void)text;
    if (!row)
        return;
    for (int k = 0; k < q->csv.n; k++) {
        const struct json *m = json_get(row, q->csv.column[k]);
        buf_puts(out, k ? "," : "");
        put_member(out, m);
        known += m != NULL;
    }
    buf_putc(out, '\n');
    if (known < row->count && !q->csv.said)
        plain_error("weft metrics: some rows have members that this table has no column for");
    q->csv.said |= known < row->count;
}

static int print_csv(struct metrics_query *q, size_t from, struct buf *out)
{
    int rc = q->headed ? CLIENT_OK : for_each_row(q, 0, true, note_columns, out);
    for (int k = 0; k < q->csv.n && !q->headed; k++) {
        buf_puts(out, k ? "," : "");
        put_field(out, q->csv.column[k]);
    }
    if (!q->headed && q->csv.n)
        buf_putc(out, '\n');
    q->headed = q->csv.n > 0;
    return rc ? rc : for_each_row(q, from, true, put_csv_row, out);
}

static void put_json_row(struct metrics_query *q, const char *text, const struct json *row,
                         struct buf *out)
{
    (void)q;
    (void)row;
    buf_printf(out, "%s\n", text);
}

static void print_table_rows(struct metrics_query *q, size_t from, struct buf *out)
{
    if (!q->headed && q->rows.n) {
        q->columns = choose_columns(&q->rows, screen_columns());
        print_head(q->columns, out);
        q->headed = true;
    }
    for (size_t i = from; i < q->rows.n; i++)
        print_row(&q->rows, i, q->columns, out);
}

// Prints the rows from number `from` on.
static int print_rows(struct metrics_query *q, size_t from)
{
    struct buf out = {0};
    int rc = CLIENT_OK;
    if (q->args->json)
        rc = for_each_row(q, from, false, put_json_row, &out);
    else if (q->args->csv)
        rc = print_csv(q, from, &out);
    else
        print_table_rows(q, from, &out);
    put_out(&out);
    return rc;
}

static int follow_rows(struct metrics_query *q)
{
    int rc = CLIENT_OK;
    bool over = false;
    while (!rc && !over && !ferror(stdout)) {
        over = !q->file.copy || job_ended(q->file.state) >= 0;
        rc = over ? CLIENT_OK : job_rows_more(&q->file);
        if (!rc && !over)
            rc = job_rows_read(&q->file, &q->rows);
        if (!rc && !over)
            rc = print_rows(q, q->rows.unchanged);
        if (!rc && !over && job_ended(q->file.state) < 0)
            rpc_wait(q->file.link->rpc, POLL_MS * CLOCK_MS);
    }
    return rc;
}

int verb_metrics(const struct verb *v, const struct args *a)
{
    struct metrics_query q = {.args = a};
    const char *keys[SHOWN];
    struct cli_link l = {0};
    if (a->json && a->csv)
        return usage(v, "--json and --csv exclude each other");
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    for (int k = 0; k < SHOWN; k++)
        keys[k] = shown[k].key;
    rows_init(&q.rows, keys, SHOWN);
    rc = job_rows_open(&q.file, &l, a->pos[0]);
    if (!rc)
        rc = job_rows_read(&q.file, &q.rows);
    bool all = a->json || a->csv;
    size_t wanted = a->lines > 0 ? (size_t)a->lines : all ? q.rows.n : TABLE_ROWS;
    if (!rc)
        rc = print_rows(&q, q.rows.n > wanted ? q.rows.n - wanted : 0);
    if (!rc && a->follow)
        rc = follow_rows(&q);
    if (!rc && !q.rows.n && !all)
        plain_error("weft metrics: %s has no rows yet", q.file.name);
    job_rows_close(&q.file);
    rows_clear(&q.rows);
    arena_clear(&q.csv.arena);
    cli_link_close(&l);
    return rc;
}
