// SPDX-License-Identifier: Apache-2.0
// The database; see db.h.
//
// Each kind of rows is a table, and each of its columns (row.h) a column of that name. The table is
// made from them when the database is new, and gets those that it lacks at every open that may write.
#include "coordinator/store/db.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/system.h"

enum { ROOM_BYTES = 512 << 10 };
enum { DB_VERSION = 16 }; // another number: databases of before are refused

enum { // statements of a table
    PUT,
    ERASE,
    ERASE_OF_JOB, // all rows of a job
    TABLE_STATEMENTS
};
enum { // the others
    JOB_STATE = ROW_KINDS * TABLE_STATEMENTS,
    EVENTS,
    BOUND,
    BIND,
    OWNED,
    UNBIND,
    STATEMENTS
};

struct db {
    sqlite3 *sql;
    bool opening; // nothing of it was read yet
    int lock_fd, dir_fd;
    char dir[4000];
    sqlite3_stmt *statement[STATEMENTS];
};

static sqlite3_stmt *table_statement(const struct db *s, enum row_kind kind, int which)
{
    return s->statement[(int)kind * TABLE_STATEMENTS + which];
}

// ---- statements --------------------------------------------------------------------------------

static bool is_disk_full(const struct db *s)
{
    int code = sqlite3_errcode(s->sql), system = sqlite3_system_errno(s->sql);
    return code == SQLITE_FULL || (code == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT));
}

static int report_damage(const struct db *s, const char *what, struct err *e)
{
    return err_set(e, ERR_DATA,
                   "%s/weft.db is damaged: %.300s: put a copy of it back, or " DB_REMEDY, s->dir,
                   what);
}

static int set_sql_error(const struct db *s, const char *what, struct err *e)
{
    int code = sqlite3_errcode(s->sql);
    // Of a file that may be written: its head says that it may not, or is of no format.
    bool head = s->opening && (code == SQLITE_ERROR || (code == SQLITE_READONLY &&
                                                        !faccessat(s->dir_fd, "weft.db", W_OK, 0)));
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || head)
        return report_damage(s, sqlite3_errmsg(s->sql), e);
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

// Appends the names of the columns, or of the keys, each with `behind` behind it.
static void print_columns(const struct row_table *t, bool keys, const char *between,
                          const char *behind, struct buf *to)
{
    int n = 0;
    for (int i = 0; i < t->ncolumns; i++)
        if (!keys || t->columns[i].key)
            buf_printf(to, "%s%s%s", n++ ? between : "", t->columns[i].name, behind);
}

static const char *column_type(const struct column *c)
{
    return c->form == COLUMN_NUMBER ? "INTEGER NOT NULL DEFAULT 0"
           : c->form == COLUMN_REAL ? "REAL"
           : c->form < COLUMN_BYTES ? "TEXT NOT NULL DEFAULT ''"
                                    : "BLOB NOT NULL DEFAULT x''";
}

static int make_table(struct db *s, const struct row_table *t, struct err *e)
{
    struct buf sql = {0};
    buf_printf(&sql, "CREATE TABLE IF NOT EXISTS %s(", t->name);
    for (int i = 0; i < t->ncolumns; i++)
        buf_printf(&sql, "%s %s, ", t->columns[i].name, column_type(&t->columns[i]));
    buf_puts(&sql, "PRIMARY KEY(");
    print_columns(t, true, ", ", "", &sql);
    buf_puts(&sql, ")) WITHOUT ROWID");
    int rc = run_sql(s, buf_str(&sql), e);
    buf_clear(&sql);
    return rc;
}

// Adds the columns that the table, which was there, does not have yet. Who only reads cannot.
static int add_columns(struct db *s, const struct row_table *t, enum db_use use, struct err *e)
{
    char sql[200];
    int rc = 0;
    for (int i = 0; i < t->ncolumns && !rc; i++) {
        const struct column *c = &t->columns[i];
        if (!sqlite3_table_column_metadata(s->sql, NULL, t->name, c->name, NULL, NULL, NULL, NULL,
                                           NULL))
            continue;
        if (use == DB_READ)
            return err_set(
                e, ERR_INVALID,
                "%s/weft.db is of an earlier weft: it has no %s.%s. The same `weft run`, "
                "or a verb that acts on its job, adds that",
                s->dir, t->name, c->name);
        snprintf(sql, sizeof sql, "ALTER TABLE %s ADD COLUMN %s %s", t->name, c->name,
                 column_type(c));
        rc = run_sql(s, sql, e);
    }
    return rc;
}

static int make_tables(struct db *s, enum db_use use, struct err *e)
{
    bool writes = use != DB_READ;
    int rc = 0;
    if (writes)
        rc = run_sql(s,
                     "CREATE TABLE IF NOT EXISTS bound(host TEXT PRIMARY KEY, certificate TEXT "
                     "NOT NULL, print TEXT NOT NULL) WITHOUT ROWID",
                     e);
    for (int i = 0; i < ROW_KINDS && !rc; i++) {
        if (writes)
            rc = make_table(s, &row_tables[i], e);
        if (!rc)
            rc = add_columns(s, &row_tables[i], use, e);
    }
    return rc;
}

static int check_schema(struct db *s, enum db_use use, struct err *e)
{
    sqlite3_stmt *q = NULL;
    char version[60];
    int have = -1;
    if (!sqlite3_prepare_v2(s->sql, "PRAGMA user_version", -1, &q, NULL) &&
        sqlite3_step(q) == SQLITE_ROW)
        have = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    if (have < 0)
        return set_sql_error(s, "cannot read its version", e);
    if (have == DB_VERSION)
        return make_tables(s, use, e);
    if (have || use == DB_READ)
        return err_set(
            e, ERR_INVALID,
            "%s/weft.db has version %d, and this weft reads version %d alone: " DB_REMEDY, s->dir,
            have, DB_VERSION);
    snprintf(version, sizeof version, "PRAGMA user_version = %d; COMMIT", DB_VERSION);
    int rc = run_sql(s, "BEGIN IMMEDIATE", e);
    rc = rc ? rc : make_tables(s, use, e);
    rc = rc ? rc : run_sql(s, version, e);
    if (rc)
        (void)run_sql(s, "ROLLBACK", NULL);
    return rc;
}

static const char *read_text(sqlite3_stmt *q, int at)
{
    const char *text = (const char *)sqlite3_column_text(q, at);
    return text ? text : "";
}

// A damaged page may lie where nothing is read for weeks: it is found now, while a copy is still
// recent.
static int check_pages(struct db *s, struct err *e)
{
    sqlite3_stmt *q = NULL;
    int rc = 0;
    if (sqlite3_prepare_v2(s->sql, "PRAGMA quick_check(1)", -1, &q, NULL) ||
        sqlite3_step(q) != SQLITE_ROW)
        rc = set_sql_error(s, "check", e);
    else if (strcmp(read_text(q, 0), "ok") != 0)
        rc = report_damage(s, read_text(q, 0), e);
    sqlite3_finalize(q);
    return rc;
}

static int prepare_table(struct db *s, enum row_kind kind, struct err *e)
{
    const struct row_table *t = &row_tables[kind];
    sqlite3_stmt **out = &s->statement[(int)kind * TABLE_STATEMENTS];
    struct buf names = {0}, keys = {0}, marks = {0};
    print_columns(t, false, ", ", "", &names);
    print_columns(t, true, " AND ", " = ?", &keys);
    for (int i = 0; i < t->ncolumns; i++)
        buf_puts(&marks, i ? ", ?" : "?");
    int rc = prepare_sql(s, &out[PUT], e, "INSERT OR REPLACE INTO %s(%s) VALUES(%s)", t->name,
                         buf_str(&names), buf_str(&marks));
    rc = rc ? rc
            : prepare_sql(s, &out[ERASE], e, "DELETE FROM %s WHERE %s", t->name, buf_str(&keys));
    if (!rc && t->of_job)
        rc = prepare_sql(s, &out[ERASE_OF_JOB], e, "DELETE FROM %s WHERE job = ?", t->name);
    if (!rc && kind == ROW_EVENT)
        rc = prepare_sql(s, &s->statement[EVENTS], e,
                         "SELECT %s FROM event WHERE job = ? AND seq >= ? ORDER BY seq",
                         buf_str(&names));
    buf_clear(&names);
    buf_clear(&keys);
    buf_clear(&marks);
    return rc;
}

static int prepare_all(struct db *s, struct err *e)
{
    static const char *const others[STATEMENTS] = {
        [JOB_STATE] = "SELECT state FROM job WHERE id = ?",
        [BOUND] = "SELECT certificate, print FROM bound WHERE host = ?",
        [BIND] = "INSERT OR REPLACE INTO bound(host, certificate, print) VALUES(?, ?, ?)",
        [OWNED] = "SELECT host FROM bound WHERE print = ?",
        [UNBIND] = "DELETE FROM bound WHERE host = ?",
    };
    int rc = 0;
    for (int i = 0; i < ROW_KINDS && !rc; i++)
        rc = prepare_table(s, (enum row_kind)i, e);
    for (int i = 0; i < STATEMENTS && !rc; i++)
        rc = others[i] ? prepare_sql(s, &s->statement[i], e, "%s", others[i]) : 0;
    return rc;
}

static int finish_statement(struct db *s, sqlite3_stmt *q, struct err *e)
{
    int rc = sqlite3_step(q);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "write", e);
}

static void bind_text(sqlite3_stmt *q, int at, const char *text)
{
    sqlite3_bind_text(q, at, text, -1, SQLITE_STATIC);
}

// ---- rows --------------------------------------------------------------------------------------

static void bind_row(sqlite3_stmt *q, const struct row *r, bool keys)
{
    const struct row_table *t = &row_tables[r->kind];
    int at = 0;
    for (int i = 0; i < t->ncolumns; i++) {
        const struct column *c = &t->columns[i];
        const struct value *v = &r->values[i];
        if (keys && !c->key)
            continue;
        if (c->form == COLUMN_NUMBER)
            sqlite3_bind_int64(q, ++at, v->number);
        else if (c->form == COLUMN_REAL)
            sqlite3_bind_double(q, ++at, v->real);
        else if (c->form < COLUMN_BYTES)
            bind_text(q, ++at, v->data);
        else
            sqlite3_bind_blob(q, ++at, v->data, (int)v->len, SQLITE_STATIC);
    }
}

static struct row read_row(sqlite3_stmt *q, enum row_kind kind, struct arena *a)
{
    const struct row_table *t = &row_tables[kind];
    struct row r = {.kind = kind, .values = arena_array(a, struct value, t->ncolumns)};
    for (int i = 0; i < t->ncolumns; i++) {
        const struct column *c = &t->columns[i];
        struct value *v = &r.values[i];
        if (c->form == COLUMN_NUMBER)
            v->number = sqlite3_column_int64(q, i);
        else if (c->form == COLUMN_REAL)
            v->real = sqlite3_column_type(q, i) == SQLITE_NULL ? NAN : sqlite3_column_double(q, i);
        else if (c->form < COLUMN_BYTES) {
            v->data = arena_strdup(a, read_text(q, i));
            v->len = strlen(v->data);
        } else {
            v->len = (size_t)sqlite3_column_bytes(q, i);
            v->data = v->len ? arena_dup(a, sqlite3_column_blob(q, i), v->len) : "";
        }
    }
    return r;
}

static int check_state(struct db *s, const struct row *job, struct err *e)
{
    sqlite3_stmt *q = s->statement[JOB_STATE];
    bind_text(q, 1, job->values[0].data);
    int rc = sqlite3_step(q);
    int have = rc == SQLITE_ROW ? sqlite3_column_int(q, 0) : (int)JOB_NONE;
    sqlite3_reset(q);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return set_sql_error(s, "read", e);
    if (have == (int)job->replaces)
        return 0;
    return err_set(e, ERR_INTERNAL, "job %s: memory says it was in state %d, the database %d",
                   job->values[0].data, (int)job->replaces, have);
}

static int write_row(struct db *s, const struct row *r, struct err *e)
{
    sqlite3_stmt *q = table_statement(s, r->kind, r->erase ? ERASE : PUT);
    int rc = r->kind == ROW_JOB && !r->erase ? check_state(s, r, e) : 0;
    if (rc)
        return rc;
    bind_row(q, r, r->erase);
    rc = finish_statement(s, q, e);
    for (int i = 0; i < ROW_KINDS && r->kind == ROW_JOB && r->erase && !rc; i++)
        if (row_tables[i].of_job) {
            q = table_statement(s, (enum row_kind)i, ERASE_OF_JOB);
            bind_text(q, 1, r->values[0].data);
            rc = finish_statement(s, q, e);
        }
    return rc;
}

int db_commit(struct db *s, const struct row *rows, int n, struct err *e)
{
    int rc = n ? run_sql(s, "BEGIN IMMEDIATE", e) : 0;
    if (rc || !n)
        return rc;
    for (int i = 0; i < n && !rc; i++)
        rc = write_row(s, &rows[i], e);
    if (!rc)
        rc = run_sql(s, "COMMIT", e);
    if (rc)
        (void)run_sql(s, "ROLLBACK", NULL);
    return rc;
}

static int load_table(struct db *s, enum row_kind kind,
                      int (*row)(void *, const struct row *, struct err *), void *ctx,
                      struct err *e)
{
    const struct row_table *t = &row_tables[kind];
    struct buf names = {0};
    sqlite3_stmt *q = NULL;
    print_columns(t, false, ", ", "", &names);
    int rc = prepare_sql(s, &q, e, "SELECT %s FROM %s%s%s", buf_str(&names), t->name,
                         t->order ? " ORDER BY " : "", t->order ? t->order : "");
    int step = SQLITE_DONE;
    buf_clear(&names);
    while (!rc && (step = sqlite3_step(q)) == SQLITE_ROW) {
        struct arena a = {0};
        struct row r = read_row(q, kind, &a);
        struct err why = {0};
        rc = row(ctx, &r, &why);
        if (rc)
            rc = report_damage(s, why.text, e);
        arena_clear(&a);
    }
    if (!rc && step != SQLITE_DONE)
        rc = set_sql_error(s, "read", e);
    sqlite3_finalize(q);
    return rc;
}

int db_load(struct db *s, int (*row)(void *ctx, const struct row *r, struct err *e), void *ctx,
            struct err *e)
{
    int rc = 0;
    for (int i = 0; i < ROW_KINDS && !rc; i++)
        rc = row_tables[i].is_log ? 0 : load_table(s, (enum row_kind)i, row, ctx, e);
    return rc;
}

int db_events(struct db *s, const char *job, uint64_t seq, struct arena *a, Weft__V1__Event ***out,
              size_t *n, struct err *e)
{
    sqlite3_stmt *q = s->statement[EVENTS];
    int count = 0, cap = 0, rc;
    *out = NULL;
    bind_text(q, 1, job);
    sqlite3_bind_int64(q, 2, seq > INT64_MAX ? INT64_MAX : (int64_t)seq);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        struct event_record ev = {0};
        struct row r = read_row(q, ROW_EVENT, a);
        if (row_read(&r, &ev, e))
            break;
        *out = arena_grow(a, *out, sizeof **out, count, &cap);
        (*out)[count] = arena_new(a, Weft__V1__Event);
        event_message(&ev, (*out)[count++]);
    }
    sqlite3_reset(q);
    *n = (size_t)count;
    return rc == SQLITE_DONE ? 0 : rc == SQLITE_ROW ? ERR_DATA : set_sql_error(s, "read", e);
}

// ---- which hosts a certificate has used --------------------------------------------------------

int db_owner(struct db *s, const char *host, struct db_owner *out, struct err *e)
{
    sqlite3_stmt *q = s->statement[BOUND];
    *out = (struct db_owner){0};
    bind_text(q, 1, host);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        snprintf(out->name, sizeof out->name, "%s", read_text(q, 0));
        snprintf(out->print, sizeof out->print, "%s", read_text(q, 1));
    }
    sqlite3_reset(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

int db_owned(struct db *s, const char *print, struct arena *a, const char ***out, int *n,
             struct err *e)
{
    sqlite3_stmt *q = s->statement[OWNED];
    int rc, cap = 0;
    *out = NULL;
    *n = 0;
    bind_text(q, 1, print);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        *out = arena_grow(a, *out, sizeof **out, *n, &cap);
        (*out)[(*n)++] = arena_strdup(a, read_text(q, 0));
    }
    sqlite3_reset(q);
    return rc == SQLITE_DONE ? 0 : set_sql_error(s, "read", e);
}

int db_bind(struct db *s, const char *host, const struct db_owner *owner, struct err *e)
{
    sqlite3_stmt *q = s->statement[BIND];
    bind_text(q, 1, host);
    bind_text(q, 2, owner->name);
    bind_text(q, 3, owner->print);
    return finish_statement(s, q, e);
}

int db_unbind(struct db *s, const char *host, struct err *e)
{
    bind_text(s->statement[UNBIND], 1, host);
    return finish_statement(s, s->statement[UNBIND], e);
}

// ---- the directory -----------------------------------------------------------------------------

// The file holds the keys of jobs, so only its owner may read it, whatever the folder's mode is.
// SQLite gives its other files the same mode.
static int make_private(struct db *s, struct err *e)
{
    int fd = openat(s->dir_fd, "weft.db", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600), rc = 0;
    if (fd < 0 || fchmod(fd, 0600))
        rc = err_errno(e, ERR_IO, "cannot open %s/weft.db", s->dir);
    system_close(&fd);
    return rc;
}

static void close_sql(struct db *s)
{
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(s->statement[i]);
    memset(s->statement, 0, sizeof s->statement);
    sqlite3_close(s->sql);
    s->sql = NULL;
}

bool db_has_room(const struct db *s)
{
    static const char name[] = "room";
    static const char zeros[ROOM_BYTES];
    int fd = openat(s->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool room = fd >= 0 && write(fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros && !fsync(fd);
    system_close(&fd);
    unlinkat(s->dir_fd, name, 0);
    return room;
}

// The database as a URI by which SQLite makes no other file beside it, and takes no lock.
static void print_unchanging(const struct db *s, struct buf *to)
{
    buf_puts(to, "file:");
    for (const char *c = s->dir; *c; c++)
        buf_printf(to, isalnum((unsigned char)*c) || *c == '/' ? "%c" : "%%%02X",
                   (unsigned char)*c);
    buf_puts(to, "/weft.db?immutable=1");
}

// alone: nobody else has the database. Who only reads needs no other file beside it then.
static int open_sql(struct db *s, enum db_use use, bool alone, struct err *e)
{
    struct buf path = {0};
    int flags = use == DB_READ ? SQLITE_OPEN_READONLY | SQLITE_OPEN_URI
                               : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (use == DB_READ && alone)
        print_unchanging(s, &path);
    else
        buf_printf(&path, "%s/weft.db", s->dir);
    int failed = sqlite3_open_v2(buf_str(&path), &s->sql, flags | SQLITE_OPEN_NOMUTEX, NULL);
    buf_clear(&path);
    if (failed)
        return set_sql_error(s, "cannot open", e);
    sqlite3_busy_timeout(s->sql, 5000); // a person reading with sqlite3
    if (use == DB_READ) {
        int rc = check_schema(s, use, e);
        rc = rc ? rc : prepare_all(s, e);
        return rc ? rc : run_sql(s, "BEGIN", e);
    }
    int rc = alone ? run_sql(s, "PRAGMA locking_mode = EXCLUSIVE", e) : 0;
    rc = rc ? rc : run_sql(s, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", e);
    rc = rc ? rc : check_pages(s, e);
    rc = rc ? rc : check_schema(s, use, e);
    rc = rc ? rc : prepare_all(s, e);
    return rc;
}

// Whether all that was written is in the database itself: its log is gone, or empty.
static bool is_at_rest(const struct db *s)
{
    struct stat st;
    char log[4200];
    snprintf(log, sizeof log, "%s/weft.db-wal", s->dir);
    return stat(log, &st) ? errno == ENOENT : st.st_size == 0;
}

// SQLite keeps an index of its log in a file that it shares with other readers. A full disk has no
// room for that file, and a folder that is read-only takes none; who has the database alone needs none.
static int open_database(struct db *s, enum db_use use, struct err *e)
{
    if (use == DB_READ) {
        struct err shared = {0};
        int read = open_sql(s, use, false, &shared);
        if (!read || !is_at_rest(s)) {
            if (read && e)
                *e = shared;
            return read;
        }
        close_sql(s);
        return open_sql(s, use, true, e);
    }
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

int db_open(struct db **out, const char *dir, enum db_use use, struct err *e)
{
    struct db *s = heap_alloc(sizeof *s);
    s->lock_fd = s->dir_fd = -1;
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    int rc = 0;
    if (use != DB_READ && mkdir(s->dir, 0700) && errno != EEXIST)
        rc = err_errno(e, ERR_IO, "cannot make %s", s->dir);
    else if (use != DB_READ && (s->dir_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        rc = err_errno(e, ERR_IO, "cannot open %s", s->dir);
    if (!rc && use == DB_OWN)
        rc = folder_lock(s->dir, &s->lock_fd, e);
    s->opening = true;
    if (!rc)
        rc = open_database(s, use, e);
    s->opening = false;
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
    system_close(&s->lock_fd);
    system_close(&s->dir_fd);
    free(s);
}

// ---- the cluster's id beside the database ------------------------------------------------------

int db_cluster(struct db *s, char out[ID_LEN], int64_t *marks, struct err *e)
{
    char text[64];
    int rc = folder_read(s->dir, "cluster", text, sizeof text, e);
    out[0] = 0;
    *marks = 0;
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    if (strspn(text, "0123456789abcdef") != 32)
        return err_set(e, ERR_DATA, "%s/cluster holds no cluster id", s->dir);
    memcpy(out, text, 32);
    out[32] = 0;
    *marks = strtoll(text + 32, NULL, 10);
    return 0;
}

int db_set_cluster(struct db *s, const char *id, int64_t marks, struct err *e)
{
    char text[64];
    snprintf(text, sizeof text, "%.32s\n%lld\n", id, (long long)marks);
    return folder_write(s->dir, "cluster", text, FOLDER_DURABLE, e);
}
