// SPDX-License-Identifier: Apache-2.0
// Rows of a database double; see stored_row.h.
#include "tests/support/stored_row.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "coordinator/decide/coord_state.h"
#include "coordinator/decide/host.h"

static const size_t sizes[ROW_KINDS] = {
    [ROW_META] = sizeof(struct coord),
    [ROW_JOB] = sizeof(struct job_record),
    [ROW_HOST] = sizeof(struct host),
    [ROW_FENCED] = sizeof(struct fenced),
    [ROW_CHECKPOINT] = sizeof(struct checkpoint_record),
    [ROW_REQUEST] = sizeof(struct request),
    [ROW_NOTICE] = sizeof(struct notice),
    [ROW_EVENT] = sizeof(struct event_record),
    [ROW_AUDIT] = sizeof(struct audit_record),
};

struct value *row_values_copy(const struct row *r)
{
    int n = row_tables[r->kind].ncolumns;
    size_t bytes = sizeof *r->values * (size_t)n;
    for (int i = 0; i < n; i++)
        bytes += r->values[i].len + 1;
    struct value *values = malloc(bytes);
    PRE(values != NULL);
    memcpy(values, r->values, sizeof *values * (size_t)n);
    char *to = (char *)(values + n);
    for (int i = 0; i < n; i++)
        if (values[i].data) {
            memcpy(to, values[i].data, values[i].len);
            to[values[i].len] = 0;
            values[i].data = to;
            to += values[i].len + 1;
        }
    return values;
}

struct stored_row *stored_row_new(const struct row *r)
{
    struct stored_row *s = calloc(1, sizeof *s);
    PRE(s != NULL);
    s->row = *r;
    s->row.values = row_values_copy(r);
    s->record = calloc(1, sizes[r->kind]);
    PRE(s->record && !row_read(&s->row, s->record, NULL));
    return s;
}

void stored_row_free(struct stored_row *s)
{
    record_clear(s->row.kind, s->record);
    free(s->record);
    free(s->row.values);
    free(s);
}

void row_print_key(const struct row *r, char out[200])
{
    const struct row_table *t = &row_tables[r->kind];
    int n = snprintf(out, 200, "%s", t->name);
    for (int i = 0; i < t->ncolumns; i++) {
        const struct value *v = &r->values[i];
        if (t->columns[i].key && v->data)
            n += snprintf(out + n, 200 - (size_t)n, " %s", v->data);
        else if (t->columns[i].key)
            n += snprintf(out + n, 200 - (size_t)n, " %" PRId64, v->number);
        PRE(n < 200);
    }
}

bool row_is_of_job(const struct row *r, const char *job)
{
    return row_tables[r->kind].of_job && strcmp(r->values[0].data, job) == 0;
}

bool row_is_same(const struct row *a, const struct row *b)
{
    bool same = a->kind == b->kind && a->erase == b->erase;
    for (int i = 0; same && i < row_tables[a->kind].ncolumns; i++) {
        const struct value *x = &a->values[i], *y = &b->values[i];
        same = x->number == y->number && memcmp(&x->real, &y->real, sizeof x->real) == 0 &&
               x->len == y->len && (!x->len || memcmp(x->data, y->data, x->len) == 0);
    }
    return same;
}

struct value *row_value(const struct row *r, const char *column)
{
    const struct row_table *t = &row_tables[r->kind];
    for (int i = 0; i < t->ncolumns; i++)
        if (!strcmp(t->columns[i].name, column))
            return &r->values[i];
    PRE(!"a column of that name");
    return NULL;
}

static const char *fill_text(const struct column *c, int i, int salt, const struct row *r,
                             struct arena *a)
{
    struct buf lines = {0};
    const char *text;
    switch (c->form) {
    case COLUMN_WORD:
        return c->word(salt % c->limit);
    case COLUMN_CHARS:
        return arena_printf(a, "%032x", (unsigned)(salt * 100 + i));
    case COLUMN_FAILURES:
        return arena_printf(a, "%d %d", salt, salt + 1000003);
    case COLUMN_PLACEMENT:
        for (int rank = 0; rank < row_value(r, "ranks")->number; rank++)
            buf_printf(&lines, "%032x %032x %d %d\n", (unsigned)salt, (unsigned)rank, rank + 7,
                       rank & 1);
        text = arena_strdup(a, buf_str(&lines));
        buf_clear(&lines);
        return text;
    default:
        return arena_printf(a, "%s'%d\n\"ü", c->name, salt);
    }
}

struct row row_filled(enum row_kind kind, int salt, struct arena *a)
{
    static const char bytes[] = "\0\1\2\xff 0123456789 0123456789 01234567";
    const struct row_table *t = &row_tables[kind];
    struct row r = {.kind = kind, .values = arena_array(a, struct value, t->ncolumns)};
    for (int i = 0; i < t->ncolumns; i++) {
        const struct column *c = &t->columns[i];
        struct value *v = &r.values[i];
        if (c->form == COLUMN_NUMBER)
            v->number = c->limit                  ? 1 + salt % (c->limit < 8 ? c->limit - 1 : 7)
                        : c->size == sizeof(bool) ? (i + salt) & 1
                        : c->size == sizeof(int)  ? salt * 7 + i
                                                  : ((int64_t)salt << 33) + i;
        else if (c->form == COLUMN_REAL)
            v->real = salt % 2 ? (double)NAN : 0.1 * (i + salt);
        else if (c->form == COLUMN_BYTES || c->form == COLUMN_BLOB) {
            v->data = bytes;
            v->len = c->form == COLUMN_BYTES ? c->size : 4;
        } else {
            v->data = fill_text(c, i, salt, &r, a);
            v->len = strlen(v->data);
        }
    }
    return r;
}
