// SPDX-License-Identifier: Apache-2.0
// The coordinator's database: what was committed comes back field by field, and what was not is not
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
#include "coordinator/binding.h"
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

// ---- rows with something in every field --------------------------------------------------------

// Fills every field of a message by its type with values that differ from field to field.
static void fill(struct arena *a, ProtobufCMessage *m, int salt)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        char *at = (char *)m + f->offset;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = 2 + (size_t)salt % 3;
            *(size_t *)(void *)((char *)m + f->quantifier_offset) = n;
            void **messages = arena_array(a, void *, n);
            int64_t *numbers = arena_array(a, int64_t, n);
            for (size_t k = 0; k < n; k++) {
                numbers[k] = salt + (int64_t)k * 1000003;
                if (f->type != PROTOBUF_C_TYPE_MESSAGE)
                    continue;
                const ProtobufCMessageDescriptor *sub = f->descriptor;
                messages[k] = arena_alloc(a, sub->sizeof_message);
                protobuf_c_message_init(sub, messages[k]);
                fill(a, messages[k], salt + (int)k + 1);
            }
            *(void **)(void *)at =
                f->type == PROTOBUF_C_TYPE_MESSAGE ? (void *)messages : (void *)numbers;
            continue;
        }
        if (f->type == PROTOBUF_C_TYPE_STRING)
            *(char **)(void *)at = arena_printf(a, "%s'%d\n\"ü", f->name, salt);
        else if (f->type == PROTOBUF_C_TYPE_BYTES)
            *(ProtobufCBinaryData *)(void *)at =
                (ProtobufCBinaryData){4, arena_dup(a, "\0\1\2\xff", 4)};
        else if (f->type == PROTOBUF_C_TYPE_BOOL)
            *(protobuf_c_boolean *)(void *)at = (int)(i + (unsigned)salt) & 1;
        else if (f->type == PROTOBUF_C_TYPE_INT64 || f->type == PROTOBUF_C_TYPE_UINT64)
            *(int64_t *)(void *)at = ((int64_t)salt << 33) + i;
        else if (f->type == PROTOBUF_C_TYPE_DOUBLE)
            *(double *)(void *)at = salt % 2 ? (double)NAN : 0.1 * (i + (unsigned)salt);
        else
            *(int32_t *)(void *)at = f->type == PROTOBUF_C_TYPE_ENUM ? 3 : salt * 7 + (int)i;
    }
}

static const ProtobufCMessageDescriptor *rows[] = {
    &weft__rows__job__descriptor,    &weft__rows__host__descriptor,
    &weft__rows__fenced__descriptor, &weft__v1__checkpoint__descriptor,
    &weft__v1__event__descriptor,    &weft__rows__request__descriptor,
    &weft__rows__audit__descriptor,  &weft__rows__meta__descriptor,
};
enum { KINDS = sizeof rows / sizeof *rows, EVENT = 4, AUDIT = 6 };

static Weft__Rows__Write *row_of(struct arena *a, int kind, int salt)
{
    Weft__Rows__Write *w = arena_new(a, Weft__Rows__Write);
    weft__rows__write__init(w);
    w->row_case = (Weft__Rows__Write__RowCase)(kind + 1);
    w->job = arena_alloc(a, rows[kind]->sizeof_message);
    protobuf_c_message_init(rows[kind], (ProtobufCMessage *)w->job);
    fill(a, (ProtobufCMessage *)w->job, salt);
    return w;
}

struct seen {
    int n;
    uint8_t *packed[64];
    size_t len[64];
    int kind[64];
};

static int keep(void *ctx, const Weft__Rows__Write *w, struct err *e)
{
    struct seen *s = ctx;
    (void)e;
    assert_true(s->n < 64);
    s->kind[s->n] = (int)w->row_case - 1;
    s->len[s->n] = protobuf_c_message_get_packed_size((const ProtobufCMessage *)w->job);
    s->packed[s->n] = malloc(s->len[s->n] + 1);
    protobuf_c_message_pack((const ProtobufCMessage *)w->job, s->packed[s->n]);
    s->n++;
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
        free(s->packed[i]);
}

static bool has(const struct seen *s, int kind, const Weft__Rows__Write *w)
{
    uint8_t packed[4096];
    size_t len = protobuf_c_message_get_packed_size((const ProtobufCMessage *)w->job);
    assert_true(len < sizeof packed);
    protobuf_c_message_pack((const ProtobufCMessage *)w->job, packed);
    for (int i = 0; i < s->n; i++)
        if (s->kind[i] == kind && s->len[i] == len && memcmp(s->packed[i], packed, len) == 0)
            return true;
    return false;
}

static void every_field_of_every_row_comes_back(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    Weft__Rows__Write *w[KINDS];
    reopen(p);
    for (int k = 0; k < KINDS; k++)
        w[k] = row_of(&a, k, 5 + k);
    w[0]->job->old_state = WEFT__V1__JOB_STATE__JOB_NONE;
    w[4]->event->job = w[0]->job->id;
    if (db_commit(p->db, w, KINDS, &e))
        fail_msg("%s", e.text);
    reopen(p);
    load(p, &s);
    assert_int_equal(s.n, KINDS - 2); // events and audit rows stay where they are
    for (int k = 0; k < KINDS; k++)
        if (k != AUDIT && k != EVENT)
            assert_true(has(&s, k, w[k]));
    Weft__V1__Event **events;
    size_t n;
    assert_int_equal(db_events(p->db, w[0]->job->id, 0, &a, &events, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_string_equal(events[0]->text, w[EVENT]->event->text);
    forget(&s);
    arena_clear(&a);
}

static void a_row_written_again_replaces_the_first_with_all_its_lists(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    reopen(p);
    Weft__Rows__Write *first = row_of(&a, 0, 4), *second = row_of(&a, 0, 9);
    first->job->old_state = WEFT__V1__JOB_STATE__JOB_NONE;
    second->job->id = first->job->id;
    second->job->old_state = first->job->state;
    second->job->n_placement = 1;
    assert_int_equal(db_commit(p->db, &first, 1, &e), 0);
    assert_int_equal(db_commit(p->db, &second, 1, &e), 0);
    second->job->old_state = WEFT__V1__JOB_STATE__JOB_NONE; // no column
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, 0, second));
    forget(&s);
    arena_clear(&a);
}

static void there_is_one_meta_row(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    reopen(p);
    Weft__Rows__Write *first = row_of(&a, 7, 4), *second = row_of(&a, 7, 9);
    assert_int_equal(db_commit(p->db, &first, 1, &e), 0);
    assert_int_equal(db_commit(p->db, &second, 1, &e), 0);
    load(p, &s);
    assert_int_equal(s.n, 1);
    assert_true(has(&s, 7, second));
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
    Weft__Rows__Write *w[2] = {row_of(&a, 1, 3), row_of(&a, 0, 4)};
    w[1]->job->old_state = WEFT__V1__JOB_STATE__RUNNING; // there is no row
    assert_int_equal(db_commit(p->db, w, 2, &e), ERR_INTERNAL);
    load(p, &s);
    assert_int_equal(s.n, 0);
    arena_clear(&a);
}

static void an_erased_job_takes_its_story_with_it(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct err e = {0};
    struct seen s;
    Weft__V1__Event **events;
    size_t n;
    reopen(p);
    Weft__Rows__Write *w[3] = {row_of(&a, 0, 4), row_of(&a, 4, 5), row_of(&a, 3, 6)};
    w[0]->job->old_state = WEFT__V1__JOB_STATE__JOB_NONE;
    w[1]->event->job = w[2]->checkpoint->job = w[0]->job->id;
    assert_int_equal(db_commit(p->db, w, 3, &e), 0);
    assert_int_equal(db_events(p->db, w[0]->job->id, 0, &a, &events, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_string_equal(events[0]->text, w[1]->event->text);
    w[0]->erase = true;
    assert_int_equal(db_commit(p->db, w, 1, &e), 0);
    load(p, &s);
    assert_int_equal(s.n, 0);
    assert_int_equal(db_events(p->db, w[0]->job->id, 0, &a, &events, &n, &e), 0);
    assert_int_equal(n, 0);
    arena_clear(&a);
}

static void a_second_coordinator_is_refused_and_told_who_is_there(void **state)
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

static void a_newer_database_is_refused_and_left_as_it_is(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    char path[100];
    sqlite3 *sql;
    reopen(p);
    db_close(p->db);
    p->db = NULL;
    snprintf(path, sizeof path, "%s/weft.db", p->dir);
    assert_int_equal(sqlite3_open(path, &sql), SQLITE_OK);
    assert_int_equal(sqlite3_exec(sql, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(sql);
    assert_int_equal(db_open(&p->db, p->dir, DB_OWN, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "999"));
}

// A process that dies between BEGIN and COMMIT, and one that dies right after db_commit returned.
static void what_was_acknowledged_survives_and_nothing_else(void **state)
{
    struct fixture *p = *state;
    struct arena a = {0};
    struct seen s;
    int status;
    Weft__Rows__Write *w = row_of(&a, 1, 3);
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
    assert_true(has(&s, 1, w));
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
    Weft__Rows__Write *first = row_of(&a, 1, 3), *big = row_of(&a, 5, 4);
    assert_int_equal(db_commit(p->db, &first, 1, &e), 0);
    big->request->reply.len = 4 << 20;
    big->request->reply.data = arena_alloc(&a, 4 << 20);
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
    assert_true(has(&s, 1, first));
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
    f.print = "another of that name"; // two machines are called the same, or it was renewed
    assert_int_equal(bind_host(p, &f, "cccc", "one", 1, &e), 0);
    f.print = "renewed";
    assert_int_equal(bind_host(p, &f, "bbbb", "one", 1, &e), 0);
    assert_int_equal(bind_host(p, &f, "dddd", "one", 1, &e), ERR_LIMIT);
}

static void the_cluster_s_id_is_kept_beside_the_database(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    char id[33] = "x", path[100];
    reopen(p);
    assert_int_equal(db_cluster(p->db, id, &e), 0);
    assert_string_equal(id, "");
    assert_int_equal(db_set_cluster(p->db, "0123456789abcdef0123456789abcdef", &e), 0);
    db_close(p->db);
    p->db = NULL;
    snprintf(path, sizeof path, "rm %s/weft.db*", p->dir);
    assert_int_equal(system(path), 0);
    reopen(p);
    assert_int_equal(db_cluster(p->db, id, &e), 0);
    assert_string_equal(id, "0123456789abcdef0123456789abcdef");
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
    enum { EVENTS = 20 };
    for (int i = from; i < from + n; i++) {
        struct arena a = {0};
        struct err e = {0};
        Weft__Rows__Write *w[1 + EVENTS] = {row_of(&a, 0, i)};
        w[0]->job->old_state = WEFT__V1__JOB_STATE__JOB_NONE;
        for (int k = 1; k <= EVENTS; k++) {
            w[k] = row_of(&a, EVENT, i * EVENTS + k);
            w[k]->event->job = w[0]->job->id;
        }
        if (db_commit(p->db, w, 1 + EVENTS, &e))
            fail_msg("%s", e.text);
        arena_clear(&a);
    }
}

static int count_row(void *ctx, const Weft__Rows__Write *w, struct err *e)
{
    (void)w;
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

static void a_restart_reads_a_few_rows_a_job_whatever_its_story(void **state)
{
    struct fixture *p = *state;
    int n;
    sqlite3_auto_extension((void (*)(void))(void *)trace_statements);
    reopen(p);
    int none = cost_of_loading(p, &n);
    assert_true(none > 0);
    put_waiting_jobs(p, 1, 50);
    assert_int_equal(cost_of_loading(p, &n), none + 50 * 3); // its placement, failures and time
    assert_int_equal(n, 50);
    sqlite3_reset_auto_extension();
}

// Then a decider finds the place of each at the end of its lists.
static int expect_greater_seq(void *ctx, const Weft__Rows__Write *w, struct err *e)
{
    uint64_t *last = ctx;
    (void)e;
    assert_true(w->job->seq > *last);
    *last = w->job->seq;
    return 0;
}

static void jobs_come_in_the_order_of_submission(void **state)
{
    struct fixture *p = *state;
    struct err e = {0};
    uint64_t last = 0;
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
        Weft__Rows__Write *w = row_of(&a, 0, 7 + 40 * i);
        w->job->old_state = w->job->state;
        w->job->n_placement = w->job->n_spent = w->job->n_failures_ms = 2;
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
        CASE(every_field_of_every_row_comes_back),
        CASE(a_row_written_again_replaces_the_first_with_all_its_lists),
        CASE(there_is_one_meta_row),
        CASE(a_state_that_is_not_the_row_s_refuses_the_whole_transaction),
        CASE(an_erased_job_takes_its_story_with_it),
        CASE(a_second_coordinator_is_refused_and_told_who_is_there),
        CASE(a_newer_database_is_refused_and_left_as_it_is),
        CASE(what_was_acknowledged_survives_and_nothing_else),
        CASE(a_full_disk_fails_the_transaction_and_keeps_the_rest),
        CASE(a_host_belongs_to_the_certificate_that_used_it_first),
        CASE(a_certificate_has_no_more_hosts_than_it_says),
        CASE(the_cluster_s_id_is_kept_beside_the_database),
        CASE(its_files_are_its_owners_alone),
        CASE(a_restart_reads_a_few_rows_a_job_whatever_its_story),
        CASE(jobs_come_in_the_order_of_submission),
        CASE(the_cost_of_a_change_does_not_grow_with_the_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
