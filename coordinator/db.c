// SPDX-License-Identifier: Apache-2.0
// The database; see db.h.
//
// A row travels as a message of rows.proto. Its scalar fields are columns of the same names, which
// generic code binds and reads by the message's descriptor; a repeated field is a table of its own,
// `job_placement` and so on, rewritten with its row. The tables themselves are written out below,
// version by version: a column that a message has and its table lacks is found when the statements
// are prepared, at open.
#include "coordinator/db.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "common/rpc/rpc.h"
#include "coordinator/db_schema.h"
#include "coordinator/db_value.h"

enum { ROOM_BYTES = 512 << 10 };

enum { KEYS_MAX = 3, CHILDREN_MAX = 3, COLUMNS_MAX = 64 };

struct child_table { // a repeated field
    const char *field, *table;
    sqlite3_stmt *insert, *remove, *read;
};
struct db_table {
    const char *name;
    const ProtobufCMessageDescriptor *row;
    const char *key[KEYS_MAX];
    const char *skip;  // a field of the message that is not stored
    const char *order; // SQL: in which db_load hands its rows out; null: any
    bool loaded;
    struct child_table child[CHILDREN_MAX];
    // made at open
    int ncolumns;
    const ProtobufCFieldDescriptor *column[COLUMNS_MAX];
    sqlite3_stmt *put, *erase;
};

// In the order in which db_load hands rows out; [n] is the oneof case n + 1 of Write.
static const struct db_table tables[] = {
    {.name = "job",
     .row = &weft__rows__job__descriptor,
     .key = {"id"},
     .skip = "old_state",
     .order = "seq",
     .loaded = true,
     .child = {{.field = "placement", .table = "job_placement"},
               {.field = "failures_ms", .table = "job_failures_ms"},
               {.field = "spent", .table = "job_spent"}}},
    {.name = "host", .row = &weft__rows__host__descriptor, .key = {"id"}, .loaded = true},
    {.name = "fenced",
     .row = &weft__rows__fenced__descriptor,
     .key = {"host", "incarnation"},
     .loaded = true},
    {.name = "checkpoint",
     .row = &weft__v1__checkpoint__descriptor,
     .key = {"job", "epoch", "step"},
     .loaded = true},
    {.name = "event", .row = &weft__v1__event__descriptor, .key = {"job", "seq"}},
    {.name = "request",
     .row = &weft__rows__request__descriptor,
     .key = {"id"},
     .order = "t_ms",
     .loaded = true},
    {.name = "audit", .row = &weft__rows__audit__descriptor, .key = {"seq"}},
    {.name = "meta", .row = &weft__rows__meta__descriptor, .loaded = true},
};
enum { TABLES = sizeof tables / sizeof *tables, JOB = 0, EVENT = 4 };

struct db {
    sqlite3 *sql;
    int lock_fd, dir_fd;
    char dir[4000];
    struct db_table table[TABLES];
    sqlite3_stmt *job_state, *events, *bound, *bind, *owned, *unbind;
};

// ---- statements --------------------------------------------------------------------------------

static bool is_disk_full(const struct db *s)
{
    int code = sqlite3_errcode(s->sql), system = sqlite3_system_errno(s->sql);
    return code == SQLITE_FULL || (code == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT));
}

static int set_sql_error(const struct db *s, const char *what, struct err *e)
{
    return err_set(e, is_disk_full(s) ? ERR_LIMIT : ERR_IO, "%s: %s/weft.db: %s", what, s->dir,
                   sqlite3_errmsg(s->sql));
}

static int run_sql(struct db *s, const char *sql, struct err *e)
{
    return sqlite3_exec(s->sql, sql, NULL, NULL, NULL) ? set_sql_error(s, "database", e) : 0;
}

static int __attribute__((format(printf, 4, 5)))
prepare_sql(struct db *s, sqlite3_stmt **out, struct err *e, const char *fmt, ...)
{
    struct buf sql = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&sql, fmt, ap);
    va_end(ap);
    int rc = sqlite3_prepare_v3(s->sql, buf_str(&sql), -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    buf_clear(&sql);
    return rc ? set_sql_error(s, "statement", e) : 0;
}

static void print_columns(const struct db_table *t, struct buf *to, const char *each)
{
    for (int i = 0; i < t->ncolumns; i++)
        buf_printf(to, "%s%s", i ? ", " : "", each ? each : t->column[i]->name);
}

static int prepare_child(struct db *s, struct child_table *c, const struct db_table *t,
                         struct err *e)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(t->row, c->field);
    const ProtobufCMessageDescriptor *d = f->type == PROTOBUF_C_TYPE_MESSAGE ? f->descriptor : NULL;
    struct buf names = {0}, marks = {0};
    for (unsigned i = 0; i < (d ? d->n_fields : 1); i++) {
        buf_printf(&names, "%s%s", i ? ", " : "", d ? d->fields[i].name : "value");
        buf_puts(&marks, ", ?");
    }
    int rc = prepare_sql(s, &c->insert, e, "INSERT INTO %s(job, n, %s) VALUES(?, ?%s)", c->table,
                         buf_str(&names), buf_str(&marks));
    rc = rc ? rc : prepare_sql(s, &c->remove, e, "DELETE FROM %s WHERE job = ?", c->table);
    rc = rc ? rc
            : prepare_sql(s, &c->read, e, "SELECT %s FROM %s WHERE job = ? ORDER BY n",
                          buf_str(&names), c->table);
    buf_clear(&names);
    buf_clear(&marks);
    return rc;
}

static void find_columns(struct db_table *t)
{
    for (unsigned i = 0; i < t->row->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &t->row->fields[i];
        if (f->label == PROTOBUF_C_LABEL_REPEATED || (t->skip && strcmp(f->name, t->skip) == 0))
            continue;
        PRE(t->ncolumns < COLUMNS_MAX);
        t->column[t->ncolumns++] = f;
    }
}

static int prepare_table(struct db *s, struct db_table *t, struct err *e)
{
    struct buf names = {0}, marks = {0}, keys = {0};
    find_columns(t);
    print_columns(t, &names, NULL);
    print_columns(t, &marks, "?");
    for (int k = 0; k < KEYS_MAX && t->key[k]; k++)
        buf_printf(&keys, " AND %s = ?", t->key[k]);
    int rc = prepare_sql(s, &t->put, e, "INSERT OR REPLACE INTO %s(%s) VALUES(%s)", t->name,
                         buf_str(&names), buf_str(&marks));
    rc =
        rc ? rc : prepare_sql(s, &t->erase, e, "DELETE FROM %s WHERE 1%s", t->name, buf_str(&keys));
    for (int c = 0; c < CHILDREN_MAX && t->child[c].field && !rc; c++)
        rc = prepare_child(s, &t->child[c], t, e);
    buf_clear(&names);
    buf_clear(&marks);
    buf_clear(&keys);
    return rc;
}

static int prepare_all(struct db *s, struct err *e)
{
    struct buf names = {0};
    int rc = 0;
    memcpy(s->table, tables, sizeof tables);
    for (int i = 0; i < TABLES && !rc; i++)
        rc = prepare_table(s, &s->table[i], e);
    if (rc)
        return rc;
    print_columns(&s->table[EVENT], &names, NULL);
    rc = prepare_sql(s, &s->job_state, e, "SELECT state FROM job WHERE id = ?");
    rc = rc ? rc
            : prepare_sql(s, &s->events, e,
                          "SELECT %s FROM event WHERE job = ? AND seq >= ? ORDER BY seq",
                          buf_str(&names));
    rc = rc ? rc
            : prepare_sql(s, &s->bound, e, "SELECT certificate, print FROM bound WHERE host = ?");
    rc = rc ? rc
            : prepare_sql(s, &s->bind, e,
                          "INSERT OR REPLACE INTO bound(host, certificate, print) VALUES(?, ?, ?)");
    rc = rc ? rc : prepare_sql(s, &s->owned, e, "SELECT host FROM bound WHERE print = ?");
    rc = rc ? rc : prepare_sql(s, &s->unbind, e, "DELETE FROM bound WHERE host = ?");
    buf_clear(&names);
    return rc;
}

// ---- repeated fields ---------------------------------------------------------------------------

static const void *get_field(const void *message, const ProtobufCFieldDescriptor *f)
{
    return (const char *)message + f->offset;
}

static int finish_statement(struct db *s, sqlite3_stmt *q, struct err *e)
{
    int rc = sqlite3_step(q);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "write", e);
}

static size_t element_size(const ProtobufCFieldDescriptor *f)
{
    return f->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *) : sizeof(int64_t);
}

static int put_children(struct db *s, const struct child_table *c, const struct db_table *t,
                        const void *row, const char *key, struct err *e)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(t->row, c->field);
    size_t n = *(const size_t *)(const void *)((const char *)row + f->quantifier_offset);
    const char *elements = *(char *const *)get_field(row, f);
    sqlite3_bind_text(c->remove, 1, key, -1, SQLITE_TRANSIENT);
    int rc = finish_statement(s, c->remove, e);
    for (size_t i = 0; i < n && !rc; i++) {
        const void *at = elements + i * element_size(f);
        sqlite3_bind_text(c->insert, 1, key, -1, SQLITE_TRANSIENT);
        sqlite3_bind_int64(c->insert, 2, (int64_t)i);
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessageDescriptor *d = f->descriptor;
            for (unsigned k = 0; k < d->n_fields; k++)
                db_bind_value(c->insert, 3 + (int)k, &d->fields[k],
                              get_field(*(void *const *)at, &d->fields[k]));
        } else {
            db_bind_value(c->insert, 3, f, at);
        }
        rc = finish_statement(s, c->insert, e);
    }
    return rc;
}

static int read_children(struct db *s, const struct child_table *c, const struct db_table *t,
                         void *row, const char *key, struct arena *a, struct err *e)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(t->row, c->field);
    const ProtobufCMessageDescriptor *d = f->type == PROTOBUF_C_TYPE_MESSAGE ? f->descriptor : NULL;
    char *elements = NULL;
    int n = 0, cap = 0, rc;
    sqlite3_bind_text(c->read, 1, key, -1, SQLITE_TRANSIENT);
    while ((rc = sqlite3_step(c->read)) == SQLITE_ROW) {
        elements = arena_grow(a, elements, element_size(f), n, &cap);
        void *at = elements + (size_t)n++ * element_size(f);
        if (!d) {
            db_read_value(c->read, 0, f, at, a);
            continue;
        }
        ProtobufCMessage *m = arena_alloc(a, d->sizeof_message);
        protobuf_c_message_init(d, m);
        for (unsigned k = 0; k < d->n_fields; k++)
            db_read_value(c->read, (int)k, &d->fields[k], (char *)m + d->fields[k].offset, a);
        *(void **)(void *)at = m;
    }
    sqlite3_reset(c->read);
    *(size_t *)(void *)((char *)row + f->quantifier_offset) = (size_t)n;
    *(char **)(void *)((char *)row + f->offset) = elements;
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

static void read_row(sqlite3_stmt *q, const struct db_table *t, void *row, struct arena *a)
{
    protobuf_c_message_init(t->row, row);
    for (int i = 0; i < t->ncolumns; i++)
        db_read_value(q, i, t->column[i], (char *)row + t->column[i]->offset, a);
}

// ---- writing -----------------------------------------------------------------------------------

static int check_state(struct db *s, const Weft__Rows__Job *job, struct err *e)
{
    sqlite3_bind_text(s->job_state, 1, job->id, -1, SQLITE_TRANSIENT);
    int rc = sqlite3_step(s->job_state);
    int have =
        rc == SQLITE_ROW ? sqlite3_column_int(s->job_state, 0) : WEFT__V1__JOB_STATE__JOB_NONE;
    sqlite3_reset(s->job_state);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return set_sql_error(s, "read", e);
    if (have == (int)job->old_state)
        return 0;
    return err_set(e, ERR_INTERNAL, "job %s: memory says it was in state %d, the database %d",
                   job->id, (int)job->old_state, have);
}

static const ProtobufCFieldDescriptor *find_field(const struct db_table *t, const char *name)
{
    return protobuf_c_message_descriptor_get_field_by_name(t->row, name);
}

static int put_row(struct db *s, const struct db_table *t, const void *row, struct err *e)
{
    for (int i = 0; i < t->ncolumns; i++)
        db_bind_value(t->put, i + 1, t->column[i], get_field(row, t->column[i]));
    int rc = finish_statement(s, t->put, e);
    for (int c = 0; c < CHILDREN_MAX && t->child[c].field && !rc; c++)
        rc = put_children(s, &t->child[c], t, row,
                          *(char *const *)get_field(row, find_field(t, t->key[0])), e);
    return rc;
}

// Erases a row, and with a job everything that is stored about it.
static int erase_row(struct db *s, const struct db_table *t, const void *row, struct err *e)
{
    for (int k = 0; k < KEYS_MAX && t->key[k]; k++)
        db_bind_value(t->erase, k + 1, find_field(t, t->key[k]),
                      get_field(row, find_field(t, t->key[k])));
    int rc = finish_statement(s, t->erase, e);
    if (t != &s->table[JOB] || rc)
        return rc;
    static const char *const of[] = {"job_placement", "job_spent", "job_failures_ms", "event",
                                     "checkpoint"};
    for (size_t i = 0; i < sizeof of / sizeof *of && !rc; i++) {
        char *sql = sqlite3_mprintf("DELETE FROM %s WHERE job = %Q", of[i],
                                    ((const Weft__Rows__Job *)row)->id);
        rc = run_sql(s, sql, e);
        sqlite3_free(sql);
    }
    return rc;
}

static int write_one(struct db *s, const Weft__Rows__Write *w, struct err *e)
{
    PRE(w->row_case >= 1 && (int)w->row_case <= TABLES);
    const struct db_table *t = &s->table[(int)w->row_case - 1];
    if (w->erase)
        return erase_row(s, t, w->job, e);
    int rc = t == &s->table[JOB] ? check_state(s, w->job, e) : 0;
    return rc ? rc : put_row(s, t, w->job, e);
}

int db_commit(struct db *s, Weft__Rows__Write *const *writes, int n, struct err *e)
{
    int rc = n ? run_sql(s, "BEGIN IMMEDIATE", e) : 0;
    if (rc || !n)
        return rc;
    for (int i = 0; i < n && !rc; i++)
        rc = write_one(s, writes[i], e);
    if (!rc)
        rc = run_sql(s, "COMMIT", e);
    if (rc)
        (void)run_sql(s, "ROLLBACK", NULL);
    return rc;
}

int db_owner(struct db *s, const char *host, struct db_owner *out, struct err *e)
{
    *out = (struct db_owner){0};
    sqlite3_bind_text(s->bound, 1, host, -1, SQLITE_TRANSIENT);
    int rc = sqlite3_step(s->bound);
    if (rc == SQLITE_ROW) {
        snprintf(out->name, sizeof out->name, "%s", (const char *)sqlite3_column_text(s->bound, 0));
        snprintf(out->print, sizeof out->print, "%s",
                 (const char *)sqlite3_column_text(s->bound, 1));
    }
    sqlite3_reset(s->bound);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

int db_owned(struct db *s, const char *print, struct arena *a, const char ***out, int *n,
             struct err *e)
{
    int rc, cap = 0;
    *out = NULL;
    *n = 0;
    sqlite3_bind_text(s->owned, 1, print, -1, SQLITE_TRANSIENT);
    while ((rc = sqlite3_step(s->owned)) == SQLITE_ROW) {
        *out = arena_grow(a, *out, sizeof **out, *n, &cap);
        (*out)[(*n)++] = arena_strdup(a, (const char *)sqlite3_column_text(s->owned, 0));
    }
    sqlite3_reset(s->owned);
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

int db_bind(struct db *s, const char *host, const struct db_owner *owner, struct err *e)
{
    sqlite3_bind_text(s->bind, 1, host, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(s->bind, 2, owner->name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(s->bind, 3, owner->print, -1, SQLITE_TRANSIENT);
    return finish_statement(s, s->bind, e);
}

int db_unbind(struct db *s, const char *host, struct err *e)
{
    sqlite3_bind_text(s->unbind, 1, host, -1, SQLITE_TRANSIENT);
    return finish_statement(s, s->unbind, e);
}

// ---- reading -----------------------------------------------------------------------------------

static int load_table(struct db *s, int at,
                      int (*row)(void *, const Weft__Rows__Write *, struct err *), void *ctx,
                      struct err *e)
{
    const struct db_table *t = &s->table[at];
    struct buf names = {0};
    sqlite3_stmt *q = NULL;
    print_columns(t, &names, NULL);
    int rc = prepare_sql(s, &q, e, "SELECT %s FROM %s%s%s", buf_str(&names), t->name,
                         t->order ? " ORDER BY " : "", t->order ? t->order : "");
    int step = SQLITE_DONE;
    buf_clear(&names);
    while (!rc && (step = sqlite3_step(q)) == SQLITE_ROW) {
        struct arena a;
        arena_init(&a);
        Weft__Rows__Write w = WEFT__ROWS__WRITE__INIT;
        w.row_case = (Weft__Rows__Write__RowCase)(at + 1);
        w.job = arena_alloc(&a, t->row->sizeof_message); // the oneof's members share their place
        read_row(q, t, w.job, &a);
        for (int c = 0; c < CHILDREN_MAX && t->child[c].field && !rc; c++)
            rc = read_children(s, &t->child[c], t, w.job,
                               *(char *const *)get_field(w.job, find_field(t, t->key[0])), &a, e);
        if (!rc)
            rc = row(ctx, &w, e);
        arena_clear(&a);
    }
    if (!rc && step != SQLITE_DONE)
        rc = set_sql_error(s, "read", e);
    sqlite3_finalize(q);
    return rc;
}

int db_load(struct db *s, int (*row)(void *ctx, const Weft__Rows__Write *w, struct err *e),
            void *ctx, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < TABLES && !rc; i++)
        rc = s->table[i].loaded ? load_table(s, i, row, ctx, e) : 0;
    return rc;
}

int db_events(struct db *s, const char *job, uint64_t seq, struct arena *a, Weft__V1__Event ***out,
              size_t *n, struct err *e)
{
    int count = 0, cap = 0, rc;
    *out = NULL;
    sqlite3_bind_text(s->events, 1, job, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(s->events, 2, seq > INT64_MAX ? INT64_MAX : (int64_t)seq);
    while ((rc = sqlite3_step(s->events)) == SQLITE_ROW) {
        *out = arena_grow(a, *out, sizeof **out, count, &cap);
        (*out)[count] = arena_new(a, Weft__V1__Event);
        read_row(s->events, &s->table[EVENT], (*out)[count++], a);
    }
    sqlite3_reset(s->events);
    *n = (size_t)count;
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

// ---- the directory -----------------------------------------------------------------------------

// One version further; it is for the caller to roll back what has failed.
static int migrate_from(struct db *s, int version, struct err *e)
{
    char bump[60];
    snprintf(bump, sizeof bump, "PRAGMA user_version = %d; COMMIT", version + 1);
    int rc = run_sql(s, "BEGIN IMMEDIATE", e);
    rc = rc ? rc : run_sql(s, db_migrations[version], e);
    return rc ? rc : run_sql(s, bump, e);
}

static int migrate_schema(struct db *s, bool may_write, struct err *e)
{
    sqlite3_stmt *q = NULL;
    int have = -1;
    if (!sqlite3_prepare_v2(s->sql, "PRAGMA user_version", -1, &q, NULL) &&
        sqlite3_step(q) == SQLITE_ROW)
        have = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    if (have < 0)
        return set_sql_error(s, "cannot read its version", e);
    if (have > DB_VERSION)
        return err_set(e, ERR_INVALID, "%s/weft.db has version %d; this program knows up to %d",
                       s->dir, have, DB_VERSION);
    if (have < DB_VERSION && !may_write)
        return err_set(e, ERR_INVALID, "%s/weft.db has version %d; this program reads %d alone",
                       s->dir, have, DB_VERSION);
    int rc = 0;
    for (int v = have; v < DB_VERSION && !rc; v++) {
        rc = migrate_from(s, v, e);
        if (rc)
            (void)run_sql(s, "ROLLBACK", NULL);
    }
    return rc;
}

// The file holds the keys of jobs, so only its owner may read it, whatever the folder's mode is.
// SQLite gives its other files the same mode.
static int make_private(struct db *s, struct err *e)
{
    int fd = openat(s->dir_fd, "weft.db", O_RDWR | O_CREAT | O_CLOEXEC, 0600), rc = 0;
    if (fd < 0 || fchmod(fd, 0600))
        rc = err_errno(e, ERR_IO, "cannot open %s/weft.db", s->dir);
    if (fd >= 0)
        close(fd);
    return rc;
}

static void finalize_query(sqlite3_stmt **q)
{
    sqlite3_finalize(*q);
    *q = NULL;
}

static void close_sql(struct db *s)
{
    for (int i = 0; i < TABLES; i++) {
        finalize_query(&s->table[i].put);
        finalize_query(&s->table[i].erase);
        for (int c = 0; c < CHILDREN_MAX; c++) {
            finalize_query(&s->table[i].child[c].insert);
            finalize_query(&s->table[i].child[c].remove);
            finalize_query(&s->table[i].child[c].read);
        }
    }
    finalize_query(&s->job_state);
    finalize_query(&s->events);
    finalize_query(&s->bound);
    finalize_query(&s->bind);
    finalize_query(&s->owned);
    finalize_query(&s->unbind);
    sqlite3_close(s->sql);
    s->sql = NULL;
}

bool db_has_room(const struct db *s)
{
    static const char name[] = "room";
    static const char zeros[ROOM_BYTES];
    int fd = openat(s->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool room = fd >= 0 && write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros && !fsync(fd);
    if (fd >= 0)
        close(fd);
    unlinkat(s->dir_fd, name, 0);
    return room;
}

static int open_sql(struct db *s, enum db_use use, bool alone, struct err *e)
{
    char path[4100];
    snprintf(path, sizeof path, "%s/weft.db", s->dir);
    int flags = use == DB_READ ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (sqlite3_open_v2(path, &s->sql, flags | SQLITE_OPEN_NOMUTEX, NULL))
        return set_sql_error(s, "cannot open", e);
    sqlite3_busy_timeout(s->sql, 5000); // a person reading with sqlite3
    if (use == DB_READ) {
        int rc = migrate_schema(s, false, e);
        rc = rc ? rc : prepare_all(s, e);
        return rc ? rc : run_sql(s, "BEGIN", e);
    }
    int rc = alone ? run_sql(s, "PRAGMA locking_mode = EXCLUSIVE", e) : 0;
    rc = rc ? rc : run_sql(s, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", e);
    rc = rc ? rc : run_sql(s, "PRAGMA foreign_keys = OFF", e);
    rc = rc ? rc : migrate_schema(s, true, e);
    rc = rc ? rc : prepare_all(s, e);
    return rc;
}

// SQLite keeps an index of its log in a file that it shares with other readers. A full disk has no
// room for that file; who has the database alone needs none.
static int open_database(struct db *s, enum db_use use, struct err *e)
{
    if (use == DB_READ)
        return open_sql(s, use, false, e);
    if (make_private(s, e))
        return ERR_IO;
    int rc = open_sql(s, use, false, e);
    if (rc && !db_has_room(s)) {
        close_sql(s);
        rc = open_sql(s, use, true, e);
    }
    if (!rc && fsync(s->dir_fd)) // the file's own name
        rc = err_errno(e, ERR_IO, "cannot sync %s", s->dir);
    return rc;
}

static int open_folder(struct db *s, struct err *e)
{
    if (mkdir(s->dir, 0700) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", s->dir);
    s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->dir_fd < 0 ? err_errno(e, ERR_IO, "cannot open %s", s->dir) : 0;
}

static int take_lock(struct db *s, enum db_use use, struct err *e)
{
    return use == DB_OWN ? folder_lock(s->dir, &s->lock_fd, e) : 0;
}

int db_open(struct db **out, const char *dir, enum db_use use, struct err *e)
{
    struct db *s = calloc(1, sizeof *s);
    PRE(s != NULL);
    s->lock_fd = s->dir_fd = -1;
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    int rc = use == DB_READ ? 0 : open_folder(s, e);
    rc = rc ? rc : take_lock(s, use, e);
    rc = rc ? rc : open_database(s, use, e);
    if (rc) {
        db_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void db_close(struct db *s)
{
    if (!s)
        return;
    close_sql(s);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    free(s);
}

// ---- the cluster's id beside the database ------------------------------------------------------

int db_cluster(struct db *s, char out[ID_LEN], struct err *e)
{
    char text[64];
    int rc = folder_read(s->dir, "cluster", text, sizeof text, e);
    out[0] = 0;
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (strspn(text, "0123456789abcdef") != 32)
        return err_set(e, ERR_DATA, "%s/cluster holds no cluster id", s->dir);
    memcpy(out, text, 32);
    out[32] = 0;
    return 0;
}

int db_set_cluster(struct db *s, const char *id, struct err *e)
{
    char text[40];
    snprintf(text, sizeof text, "%.32s\n", id);
    return folder_write(s->dir, "cluster", text, FOLDER_DURABLE, e);
}
