// SPDX-License-Identifier: Apache-2.0
// The coordinator's database: what was committed comes back column by column, and what was not is not
// there at all.
#include <fcntl.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "coordinator/store/binding.h"
#include "tests/support/stored_row.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"

struct fixture {
    char dir[TEMP_FOLDER_MAX];
    struct db *db;
};

static int setup(void **state)
{
    struct fixture *p = calloc(1, sizeof *p);
    assert_int_equal(temp_folder_make(p->dir, "db"), 0);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *p = *state;
    db_close(p->db);
    assert_int_equal(temp_folder_remove(p->dir), 0);
    free(p);
    return 0;
}

static void reopen(struct fixture *p)
{
    struct err e = {0};
    db_close(p->db);
    p->db = NULL;
    if (db_open(&p->db, p->dir, DB_OWN, &e))
        fail_msg("%s", e.text);
}

// ---- rows with something in every column -------------------------------------------------------

struct seen {
    int n;
    struct row row[64];
};

static int keep(void *ctx, const struct row *r, struct err *e)
{
    struct seen *s = ctx;
    (void)e;
    assert_true(s->n < 64);
    s->row[s->n] = *r;
    s->row[s->n++].values = row_values_copy(r);
    return 0;
}

static void load(struct fixture *p, struct seen *s)
{
    struct err e = {0};
    memset(s, 0, sizeof *s);
    if (db_load(p->db, keep, s, &e))
        fail_msg("%s", e.text);
}

static void forget(struct seen *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->row[i].values);
}

static bool has(const struct seen *s, const struct row *r)
{
    bool any = false;
    for (int i = 0; i < s->n && !any; i++)
        any = row_is_same(&s->row[i], r);
    return any;
}

// Gives this column of a row what that one of another has.
static void set_from(const struct row *r, const char *column, const struct row *other,
                     const char *from)
{
    *row_value(r, column) = *row_value(other, from);
}

static void commit(struct fixture *p, const struct row *rows, int n)
{
    struct err e = {0};
    if (db_commit(p->db, rows, n, &e))
        fail_msg("%s", e.text);
}

static void every_column_of_every_row_comes_back(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    struct row r[ROW_KINDS];
    reopen(p);
    for (int k = 0; k < ROW_KINDS; k++)
        r[k] = row_filled((enum row_kind)k, 5 + k, &a);
    set_from(&r[ROW_EVENT], "job", &r[ROW_JOB], "id");
    commit(p, r, ROW_KINDS);
    reopen(p);
    load(p, &s);
    assert_int_equal(s.n, ROW_KINDS - 2);
    for (int k = 0; k < ROW_KINDS; k++)
        assert_int_equal(has(&s, &r[k]), !row_tables[k].is_log); // those stay where they are
    Weft__V1__Event **events;
    size_t n;
    assert_int_equal(db_events(p->db, row_value(&r[ROW_JOB], "id")->data, 0, &a, &events, &n, &e),
                     0);
    assert_int_equal(n, 1);
    assert_string_equal(events[0]->text, row_value(&r[ROW_EVENT], "text")->data);
    assert_string_equal(events[0]->kind, row_value(&r[ROW_EVENT], "kind")->data);
    forget(&s);
    arena_clear(&a);
}

static void a_row_written_again_replaces_the_first(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct seen s;
    reopen(p);
    struct row first = row_filled(ROW_JOB, 4, &a), second = row_filled(ROW_JOB, 9, &a);
    set_from(&second, "id", &first, "id");
    second.replaces = (enum job_state)row_value(&first, "state")->number;
    commit(p, &first, 1);
    commit(p, &second, 1);
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, &second));
    forget(&s);
    arena_clear(&a);
}

static void a_state_that_is_not_the_row_s_refuses_the_whole_transaction(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    reopen(p);
    struct row r[2] = {row_filled(ROW_HOST, 3, &a), row_filled(ROW_JOB, 4, &a)};
    r[1].replaces = JOB_RUNNING; // there is no row
    assert_int_equal(db_commit(p->db, r, 2, &e), ERR_INTERNAL);
    load(p, &s);
    assert_int_equal(s.n, 0);
    arena_clear(&a);
}

static size_t count_events(struct fixture *p, const struct row *job, struct arena *a)
{
    struct err e = {0};
    Weft__V1__Event **events;
    size_t n;
    assert_int_equal(db_events(p->db, row_value(job, "id")->data, 0, a, &events, &n, &e), 0);
    return n;
}

static void an_erased_job_takes_its_history_with_it(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct seen s;
    reopen(p);
    struct row r[4] = {row_filled(ROW_JOB, 4, &a), row_filled(ROW_EVENT, 5, &a),
                       row_filled(ROW_CHECKPOINT, 6, &a), row_filled(ROW_CHECKPOINT, 7, &a)};
    set_from(&r[1], "job", &r[0], "id");
    set_from(&r[2], "job", &r[0], "id");
    commit(p, r, 4);
    assert_int_equal(count_events(p, &r[0], &a), 1);
    r[0].erase = true;
    commit(p, r, 1);
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, &r[3])); // of another job
    assert_int_equal(count_events(p, &r[0], &a), 0);
    forget(&s);
    arena_clear(&a);
}

static void a_second_coordinator_is_refused_and_learns_who_is_there(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    struct db *second = NULL;
    char pid[20];
    reopen(p);
    assert_int_equal(db_open(&second, p->dir, DB_OWN, &e), ERR_EXISTS);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    assert_non_null(strstr(e.text, pid));
    assert_null(second);
}

// Runs this on the file while nobody has it open.
static void alter(struct fixture *p, const char *statement)
{
    char path[100];
    sqlite3 *sql;
    reopen(p);
    db_close(p->db);
    p->db = NULL;
    snprintf(path, sizeof path, "%s/weft.db", p->dir);
    assert_int_equal(sqlite3_open(path, &sql), SQLITE_OK);
    assert_int_equal(sqlite3_exec(sql, statement, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(sql);
}

static void a_database_of_another_version_is_refused_and_left_as_it_is(void **state)
{
    static const char *const versions[] = {"999", "12"};
    struct fixture *p = *state;
    for (int i = 0; i < 2; i++) {
        char statement[60], says[40];
        struct err e = {0};
        snprintf(statement, sizeof statement, "PRAGMA user_version = %s", versions[i]);
        snprintf(says, sizeof says, "has version %s,", versions[i]);
        alter(p, statement);
        assert_int_equal(db_open(&p->db, p->dir, DB_OWN, &e), ERR_INVALID);
        assert_non_null(strstr(e.text, says));
        assert_non_null(strstr(e.text, "move weft.db"));
        snprintf(statement, sizeof statement, "rm %s/weft.db*", p->dir);
        assert_int_equal(system(statement), 0);
    }
}

static void a_table_gets_a_column_that_it_lacks_unless_it_is_only_read(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct seen s;
    struct row job = row_filled(ROW_JOB, 4, &a);
    reopen(p);
    commit(p, &job, 1);
    alter(p, "ALTER TABLE job DROP COLUMN removed; ALTER TABLE job DROP COLUMN restarts");
    struct err e = {0};
    struct db *read_only = NULL;
    assert_int_equal(db_open(&read_only, p->dir, DB_READ, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "is of an earlier weft: it has no job.restarts"));
    reopen(p);
    load(p, &s);
    *row_value(&job, "removed") = (struct value){.data = ""};
    row_value(&job, "restarts")->number = 0;
    assert_true(has(&s, &job));
    forget(&s);
    arena_clear(&a);
}

// As in a folder that is read-only, or full: SQLite's index of the log cannot be made beside it.
static void a_database_at_rest_is_read_where_no_file_can_be_made(void **state)
{
    enum { NAME_MAX_HERE = TEMP_FOLDER_MAX + 40 };
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct row w = row_filled(ROW_JOB, 3, &a);
    struct seen s;
    char odd[TEMP_FOLDER_MAX + 10], from[NAME_MAX_HERE], to[NAME_MAX_HERE];
    reopen(p);
    assert_int_equal(db_commit(p->db, &w, 1, &e), 0);
    db_close(p->db);
    p->db = NULL;
    snprintf(odd, sizeof odd, "%s/50%% ?#\n", p->dir);
    snprintf(from, sizeof from, "%s/weft.db", p->dir);
    snprintf(to, sizeof to, "%s/weft.db", odd);
    assert_int_equal(mkdir(odd, 0700), 0);
    assert_int_equal(rename(from, to), 0);
    snprintf(to, sizeof to, "%s/weft.db-shm", odd);
    assert_int_equal(symlink(to, to), 0);
    if (db_open(&p->db, odd, DB_READ, &e))
        fail_msg("%s", e.text);
    load(p, &s);
    assert_true(has(&s, &w));
    forget(&s);
    arena_clear(&a);
}

// A process that dies between BEGIN and COMMIT, and one that dies right after db_commit returned.
static void what_was_acknowledged_survives_and_nothing_else(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct seen s;
    int status;
    struct row w = row_filled(ROW_HOST, 3, &a);
    pid_t child = fork();
    if (child == 0) {
        struct err e = {0};
        struct db *db = NULL;
        _exit(db_open(&db, p->dir, DB_OWN, &e) || db_commit(db, &w, 1, &e) ? 1 : 0);
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    reopen(p);
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, &w));
    forget(&s);
    arena_clear(&a);
}

// The disk is full in the middle of a transaction: it fails whole, and later ones work again.
static void a_full_disk_fails_the_transaction_and_keeps_the_rest(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    struct rlimit limit, all;
    reopen(p);
    struct row first = row_filled(ROW_HOST, 3, &a), big = row_filled(ROW_REQUEST, 4, &a);
    assert_int_equal(db_commit(p->db, &first, 1, &e), 0);
    *row_value(&big, "reply") = (struct value){.data = arena_alloc(&a, 4 << 20), .len = 4 << 20};
    getrlimit(RLIMIT_FSIZE, &all);
    limit = all;
    limit.rlim_cur = 1 << 20;
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(db_commit(p->db, &big, 1, &e), ERR_IO);
    setrlimit(RLIMIT_FSIZE, &all);
    signal(SIGXFSZ, before);
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, &first));
    forget(&s);
    reopen(p);
    load(p, &s);
    assert_int_equal(s.n, 1);
    forget(&s);
    arena_clear(&a);
}

struct fleet { // who of a certificate's hosts gives way
    const char *away;
    const char *print; // of the certificate; null: its name stands for it
    char gone[40];
};

static bool is_away(void *ctx, const char *host)
{
    const struct fleet *f = ctx;
    return f->away && !strcmp(f->away, host);
}

static void note_gone(void *ctx, const char *host)
{
    struct fleet *f = ctx;
    snprintf(f->gone, sizeof f->gone, "%s", host);
}

static int bind_host(struct fixture *p, struct fleet *f, const char *host, const char *certificate,
                     int most, struct err *e)
{
    const struct binding b = {
        host, certificate, f->print ? f->print : certificate, most, is_away, note_gone, f};
    return binding_make(p->db, &b, e);
}

static void a_host_belongs_to_the_certificate_that_used_it_first(void **state)
{
    struct fixture *p = *state;
    struct fleet f = {0};
    struct err e = {0};
    reopen(p);
    assert_int_equal(bind_host(p, &f, "aaaa", "first", 2, &e), 0);
    assert_int_equal(bind_host(p, &f, "bbbb", "first", 2, &e), 0); // one certificate, two hosts
    reopen(p);
    assert_int_equal(bind_host(p, &f, "aaaa", "first", 2, &e), 0);
    assert_int_equal(bind_host(p, &f, "aaaa", "second", 2, &e), ERR_FENCED);
    assert_non_null(strstr(e.text, "second"));
    assert_int_equal(bind_host(p, &f, "aaaa", "first", 2, &e), 0);
}

static void a_certificate_has_no_more_hosts_than_it_says(void **state)
{
    struct fixture *p = *state;
    struct fleet f = {0};
    struct err e = {0};
    reopen(p);
    assert_int_equal(bind_host(p, &f, "aaaa", "one", 1, &e), 0);
    assert_int_equal(bind_host(p, &f, "bbbb", "one", 1, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "'one' is for 1 host at a time, and host aaaa has it"));
    f.away = "aaaa"; // its machine was set up anew, say
    assert_int_equal(bind_host(p, &f, "bbbb", "one", 1, &e), 0);
    assert_string_equal(f.gone, "aaaa");
    reopen(p);
    f.away = NULL;
    assert_int_equal(bind_host(p, &f, "aaaa", "one", 1, &e), ERR_LIMIT); // the place is taken
    assert_int_equal(bind_host(p, &f, "aaaa", "two", 1, &e), 0);         // and the id is free
    f.print = "another key"; // a certificate of that name, however it came about
    assert_int_equal(bind_host(p, &f, "cccc", "one", 1, &e), 0);
    assert_int_equal(bind_host(p, &f, "bbbb", "one", 1, &e), ERR_FENCED);
    assert_non_null(strstr(e.text, "the key that first spoke for it"));
    f.print = NULL;
    assert_int_equal(bind_host(p, &f, "bbbb", "one", 1, &e), 0);
    assert_int_equal(bind_host(p, &f, "dddd", "one", 1, &e), ERR_LIMIT);
}

static void the_cluster_s_id_is_kept_beside_the_database(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    char id[33] = "x", path[100];
    int64_t marks = -1;
    reopen(p);
    assert_int_equal(db_cluster(p->db, id, &marks, &e), 0);
    assert_string_equal(id, "");
    assert_int_equal(marks, 0);
    assert_int_equal(db_set_cluster(p->db, "0123456789abcdef0123456789abcdef", 7, &e), 0);
    db_close(p->db);
    p->db = NULL;
    snprintf(path, sizeof path, "rm %s/weft.db*", p->dir);
    assert_int_equal(system(path), 0);
    reopen(p);
    assert_int_equal(db_cluster(p->db, id, &marks, &e), 0);
    assert_string_equal(id, "0123456789abcdef0123456789abcdef");
    assert_int_equal(marks, 7);
}

// ---- what it costs -----------------------------------------------------------------------------

static int statements; // run so far, by all databases of this process

static int count_statement(unsigned kind, void *ctx, void *statement, void *sql)
{
    (void)kind;
    (void)ctx;
    (void)statement;
    (void)sql;
    statements++;
    return 0;
}

static int trace_statements(sqlite3 *sql, char **error, const void *api)
{
    (void)error;
    (void)api;
    return sqlite3_trace_v2(sql, SQLITE_TRACE_STMT, count_statement, NULL);
}

static void put_waiting_jobs(struct fixture *p, int from, int n)
{
    enum { OF_ONE = 20 };
    for (int i = from; i < from + n; i++) {
        struct arena a = {0};
        struct row r[1 + OF_ONE] = {row_filled(ROW_JOB, i, &a)};
        for (int k = 1; k <= OF_ONE; k++) {
            r[k] = row_filled(ROW_EVENT, i * OF_ONE + k, &a);
            set_from(&r[k], "job", &r[0], "id");
        }
        commit(p, r, 1 + OF_ONE);
        arena_clear(&a);
    }
}

static int count_row(void *ctx, const struct row *r, struct err *e)
{
    (void)r;
    (void)e;
    (*(int *)ctx)++;
    return 0;
}

static int cost_of_loading(struct fixture *p, int *n)
{
    struct err e = {0};
    int before;
    reopen(p);
    before = statements;
    *n = 0;
    assert_int_equal(db_load(p->db, count_row, n, &e), 0);
    return statements - before;
}

static void a_restart_runs_no_more_statements_for_more_jobs(void **state)
{
    struct fixture *p = *state;
    int n;
    sqlite3_auto_extension((void (*)(void))(void *)trace_statements);
    reopen(p);
    int none = cost_of_loading(p, &n);
    assert_true(none > 0);
    put_waiting_jobs(p, 1, 50);
    assert_int_equal(cost_of_loading(p, &n), none);
    assert_int_equal(n, 50);
    sqlite3_reset_auto_extension();
}

// Then a decider finds the place of each at the end of its lists.
static int expect_greater_seq(void *ctx, const struct row *r, struct err *e)
{
    int64_t *last = ctx;
    (void)e;
    assert_true(row_value(r, "seq")->number > *last);
    *last = row_value(r, "seq")->number;
    return 0;
}

static void jobs_come_in_the_order_of_submission(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    int64_t last = 0;
    reopen(p);
    put_waiting_jobs(p, 8, 4); // as texts the ids of 10 and 11 are less than those of 8 and 9
    assert_int_equal(db_load(p->db, expect_greater_seq, &last, &e), 0);
    assert_true(last > 0);
}

static void the_cost_of_a_change_does_not_grow_with_the_jobs(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    int cost[2];
    sqlite3_auto_extension((void (*)(void))(void *)trace_statements);
    reopen(p);
    for (int i = 0; i < 2; i++) {
        put_waiting_jobs(p, 1 + 40 * i, 40);
        struct row w = row_filled(ROW_JOB, 7 + 40 * i, &a);
        w.replaces = (enum job_state)row_value(&w, "state")->number;
        int before = statements;
        assert_int_equal(db_commit(p->db, &w, 1, &e), 0);
        cost[i] = statements - before;
    }
    assert_true(cost[0] > 0);
    assert_int_equal(cost[0], cost[1]);
    sqlite3_reset_auto_extension();
    arena_clear(&a);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static void its_files_are_its_owners_alone(void **state)
{
    static const char *const names[] = {"weft.db", "weft.db-wal", "weft.db-shm", "lock"};
    struct fixture *p = *state;
    struct stat st;
    char path[100];
    snprintf(path, sizeof path, "%s/weft.db", p->dir);
    assert_int_equal(chmod(p->dir, 0755), 0);                  // somebody else made the folder
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644); // and this, as it once was
    assert_true(fd >= 0);
    close(fd);
    reopen(p);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", p->dir, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_column_of_every_row_comes_back),
        CASE(a_row_written_again_replaces_the_first),
        CASE(a_state_that_is_not_the_row_s_refuses_the_whole_transaction),
        CASE(an_erased_job_takes_its_history_with_it),
        CASE(a_second_coordinator_is_refused_and_learns_who_is_there),
        CASE(a_database_of_another_version_is_refused_and_left_as_it_is),
        CASE(a_table_gets_a_column_that_it_lacks_unless_it_is_only_read),
        CASE(a_database_at_rest_is_read_where_no_file_can_be_made),
        CASE(what_was_acknowledged_survives_and_nothing_else),
        CASE(a_full_disk_fails_the_transaction_and_keeps_the_rest),
        CASE(a_host_belongs_to_the_certificate_that_used_it_first),
        CASE(a_certificate_has_no_more_hosts_than_it_says),
        CASE(the_cluster_s_id_is_kept_beside_the_database),
        CASE(its_files_are_its_owners_alone),
        CASE(a_restart_runs_no_more_statements_for_more_jobs),
        CASE(jobs_come_in_the_order_of_submission),
        CASE(the_cost_of_a_change_does_not_grow_with_the_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
