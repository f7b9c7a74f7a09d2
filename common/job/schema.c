// SPDX-License-Identifier: Apache-2.0
// Walking the schema.
#include <string.h>

#include "common/job/reading.h"

int schema_rows(const struct schema *schema)
{
    int n = 0;
    for (int i = 0; i < schema->n; i++)
        n += schema->tables[i]->n;
    return n;
}

const struct schema_row *schema_row(const struct schema *schema, int i, size_t *offset)
{
    const struct schema_table *const *t = schema->tables;
    for (; i >= (*t)->n; t++)
        i -= (*t)->n;
    *offset = (*t)->section + (*t)->rows[i].offset;
    return &(*t)->rows[i];
}

const struct schema_row *schema_find(const struct job *job, const char *path, const void **field)
{
    for (int i = 0; i < schema_rows(job->schema); i++) {
        size_t offset = 0;
        const struct schema_row *row = schema_row(job->schema, i, &offset);
        *field = (const char *)job + offset;
        if (strcmp(row->path, path) == 0)
            return row;
    }
    return NULL;
}

// Whether `word` is one of the words of "adam|adamw".
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, word, n) == 0 && (p[n] == 0 || p[n] == '|'))
            return true;
    return false;
}

static const struct schema_row *find_asked(const struct job *job, const char *path, size_t n,
                                           const void **field)
{
    char name[128];
    PRE(n < sizeof name);
    memcpy(name, path, n);
    name[n] = 0;
    const struct schema_row *row = schema_find(job, name, field);
    PRE(row);
    return row;
}

bool when_holds(const struct job *job, const struct schema_row *row)
{
    if (!row->when)
        return true;
    size_t n = strcspn(row->when, "=");
    const struct schema_row *asked;
    const void *field;
    if (!row->when[n]) {
        for (const char *p = row->when; *p; p += strcspn(p, "|"), p += *p == '|') {
            asked = find_asked(job, p, strcspn(p, "|"), &field);
            PRE(asked->type == SCHEMA_STRING);
            if (*(const char *const *)field)
                return true;
        }
        return false;
    }
    asked = find_asked(job, row->when, n, &field);
    PRE(asked->type == SCHEMA_ENUM);
    return is_listed(row->when + n + 1, asked->names[*(const int *)field]);
}

const char *when_text(const struct schema_row *row, struct arena *a)
{
    if (!row->when)
        return "";
    size_t n = strcspn(row->when, "=");
    struct buf text = {0};
    for (const char *p = row->when; *p; p++)
        if (*p == '|')
            buf_puts(&text, " or ");
        else if (*p == '=')
            buf_puts(&text, " is ");
        else
            buf_putc(&text, *p);
    buf_puts(&text, row->when[n] ? "" : " is given");
    return buf_keep(&text, a);
}
