// SPDX-License-Identifier: Apache-2.0
// The job's directory: who owns it, what a fence stops, what a commit leaves behind.
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/ckpt/load.h"
#include "common/ckpt/ls.h"
#include "tests/unit/ckpt_case.h"

static int count(const struct fixture *f, const char *prefix)
{
    char command[400], line[16] = "";
    snprintf(command, sizeof command, "ls -A '%s' | grep -c '^%s'", f->store.path, prefix);
    FILE *p = popen(command, "r");
    assert_non_null(fgets(line, sizeof line, p));
    pclose(p);
    return atoi(line);
}

static void names_of_checkpoints_read_back(void **state)
{
    (void)state;
    char name[64];
    struct store_entry id;
    store_entry_name(3, 200, name);
    assert_string_equal(name, "step-00000200.a3");
    assert_true(store_entry_parse(name, &id) && id.attempt == 3 && id.step == 200);
    assert_true(store_entry_parse("step-1234567890.a1", &id) && id.step == 1234567890);
    static const char *const bad[] = {
        "step-200.a3",     "step-00000200.a03", "step-00000200.a", "step-00000200.a3x",
        "tep-00000200.a3", "step-0000-200.a3",  "step-00000200",   ".tmp-step-00000200.a3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(store_entry_parse(bad[i], &id));
}

static void the_owner_comes_back_and_a_foreign_one_refuses(void **state)
{
    struct fixture *f = *state;
    struct store s;
    struct store_owner is;
    struct err e = {0};
    assert_int_equal(store_make(&s, NULL, f->dir, &fx_owner, &e), 0);
    assert_int_equal(store_read_owner(&s, &f->arena, &is, &e), 0);
    assert_string_equal(is.resolved, fx_owner.resolved);
    store_close(&s);
    struct store_owner cluster = fx_owner, job = fx_owner, name = fx_owner;
    cluster.cluster = "cluster-b";
    job.job = "01234567ffffffff"; // the same first eight
    name.name = "Not/Good";
    assert_int_equal(store_make(&s, NULL, f->dir, &cluster, &e), ERR_EXISTS);
    assert_non_null(strstr(e.text, "cluster-a"));
    assert_int_equal(store_make(&s, NULL, f->dir, &job, &e), ERR_EXISTS);
    assert_int_equal(store_make(&s, NULL, f->dir, &name, &e), ERR_INVALID);
    fx_put(f->store.fd, "OWNER", "{", 1);
    assert_int_equal(store_make(&s, NULL, f->dir, &fx_owner, &e), ERR_DATA);
}

static void an_owner_has_no_such_number_of_threads(void **state)
{
    static const char *const numbers[] = {"-1", "4294967297"};
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct store s;
        struct err e = {0};
        char text[200];
        int n = snprintf(text, sizeof text,
                         "{\"cluster\": \"%s\", \"job\": \"%s\", \"name\": \"%s\", "
                         "\"resolved\": \"\", \"threads\": %s}\n",
                         fx_owner.cluster, fx_owner.job, fx_owner.name, numbers[i]);
        fx_put(f->store.fd, "OWNER", text, (size_t)n);
        assert_int_equal(store_make(&s, NULL, f->dir, &fx_owner, &e), ERR_DATA);
        assert_non_null(strstr(e.text, "threads cannot be"));
    }
}

static void directories_on_the_way_are_made(void **state)
{
    struct fixture *f = *state;
    struct store s;
    struct err e = {0};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/a/b/c/", f->dir);
    assert_int_equal(store_make(&s, NULL, dir, &fx_owner, &e), 0);
    assert_int_equal(store_make(&s, NULL, dir, &fx_owner, &e), 0);
    store_close(&s);
    snprintf(dir, sizeof dir, "%s/a/b/c/mlp-01234567/OWNER", f->dir);
    assert_int_equal(access(dir, F_OK), 0);
}

static void a_commit_gives_the_final_name_and_may_be_repeated(void **state)
{
    struct fixture *f = *state;
    struct store_entry *list;
    struct err e = {0};
    int n;
    struct manifest m = fx_prepare(f, 1, 5);
    assert_true(fx_exists(f, ".tmp-step-00000005.a1"));
    assert_int_equal(store_scan(&f->store, &f->arena, &list, &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(store_commit(&f->store, &m, &e), 0);
    assert_int_equal(store_commit(&f->store, &m, &e), 0);
    assert_false(fx_exists(f, ".tmp-step-00000005.a1"));
    assert_true(fx_exists(f, "step-00000005.a1/COMMIT"));
}

static void the_newest_is_the_greatest_attempt_then_step(void **state)
{
    static const struct store_entry want[] = {{3, 5}, {2, 20}, {2, 10}, {1, 30}};
    struct fixture *f = *state;
    struct store_entry *list;
    struct err e = {0};
    int n;
    fx_save(f, 1, 30);
    fx_save(f, 2, 10);
    fx_save(f, 2, 20);
    fx_save(f, 3, 5);
    assert_int_equal(store_scan(&f->store, &f->arena, &list, &n, &e), 0);
    assert_int_equal(n, 4);
    assert_memory_equal(list, want, sizeof want);
}

// What was saved later, in whatever attempt, and what is of a later step: all but the one and what is
// before it in every way.
static void behind_a_checkpoint_that_a_person_goes_back_to_nothing_is_left(void **state)
{
    static const struct store_entry want[] = {{2, 10}, {1, 10}};
    static const char *const aside[] = {"aside-step-00000030.a1", "aside-step-00000020.a2",
                                        "aside-step-00000005.a3"};
    struct fixture *f = *state;
    struct store_entry *list;
    struct err e = {0};
    int n;
    fx_save(f, 1, 10);
    fx_save(f, 1, 30);
    fx_save(f, 2, 10);
    fx_save(f, 2, 20);
    fx_save(f, 3, 5);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(store_set_aside(&f->store, 4, (struct store_entry){2, 10}, &e), 0);
        assert_int_equal(store_scan(&f->store, &f->arena, &list, &n, &e), 0);
        assert_int_equal(n, 2);
        assert_memory_equal(list, want, sizeof want);
        for (int i = 0; i < 3; i++)
            assert_true(fx_exists(f, arena_printf(&f->arena, "%s/COMMIT", aside[i])));
    }
    store_sweep(&f->store, 4, 100);
    assert_true(fx_exists(f, "aside-step-00000030.a1/COMMIT"));
}

static void an_attempt_that_is_over_sets_nothing_aside(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    int64_t greatest;
    fx_save(f, 1, 10);
    fx_save(f, 1, 20);
    assert_int_equal(store_fence(&f->store, 2, "attempt-a", &greatest, &e), 0);
    assert_int_equal(store_fence(&f->store, 3, "attempt-b", &greatest, &e), 0);
    struct store_entry from = {1, 10};
    assert_int_equal(store_set_aside(&f->store, 2, from, &e), ERR_FENCED);
    assert_int_equal(load_make_newest(&f->store, 2, 10, &e), ERR_FENCED);
    assert_true(fx_exists(f, "step-00000020.a1/COMMIT"));
    assert_int_equal(load_make_newest(&f->store, 3, 10, &e), 0);
    assert_true(fx_exists(f, "aside-step-00000020.a1/COMMIT"));
}

static void an_attempt_that_weft_never_gives_refuses_the_fence_and_is_named(void **state)
{
    static const char *const markers[] = {"attempt-1000000001", "attempt-100000000000000000",
                                          "attempt-99999999999999999999999999"};
    struct fixture *f = *state;
    struct err e = {0};
    int64_t greatest;
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        fx_put(f->store.fd, markers[i], "x", 1);
        assert_int_equal(store_fence(&f->store, 1, "attempt-a", &greatest, &e), ERR_INVALID);
        assert_non_null(strstr(e.text, markers[i]));
        assert_int_equal(unlinkat(f->store.fd, markers[i], 0), 0);
    }
    assert_int_equal(store_fence(&f->store, 0, "attempt-a", &greatest, &e), ERR_INVALID);
    assert_int_equal(store_fence(&f->store, 1000000001, "attempt-a", &greatest, &e), ERR_INVALID);
    assert_int_equal(store_fence(&f->store, 1000000000, "attempt-a", &greatest, &e), 0);
    fx_save(f, 1000000000, 5); // the last attempt's work is used like any other
    struct load l;
    assert_int_equal(load_open_newest_good(&l, &f->store, NULL, NULL, &e), 0);
    assert_string_equal(l.name, "step-00000005.a1000000000");
    load_close(&l);
}

static void a_checkpoint_that_was_copied_here_counts_as_its_attempt(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    int64_t greatest;
    fx_save(f, 7, 10);
    assert_int_equal(store_fence(&f->store, 3, "attempt-a", &greatest, &e), ERR_FENCED);
    assert_int_equal(greatest, 7);
    assert_int_equal(store_fence(&f->store, 8, "attempt-a", &greatest, &e), 0);
}

static void what_only_looks_like_a_checkpoint_is_listed_as_unused(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct store_entry *used;
    const char **names;
    int n;
    fx_save(f, 1, 10);
    assert_int_equal(mkdirat(f->store.fd, "step-00000020.a100000000000000000", 0700), 0);
    assert_int_equal(store_scan(&f->store, &f->arena, &used, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(store_list_unused(&f->store, &f->arena, &names, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "step-00000020.a100000000000000000");
}

static void a_shard_that_is_missing_or_short_stops_the_commit(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct manifest m = fx_prepare(f, 1, 5);
    m.files[2].bytes++;
    assert_int_equal(store_commit(&f->store, &m, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "shard-00002"));
    m.files[2].bytes--;
    assert_int_equal(
        unlinkat(f->store.fd, ".tmp-step-00000005.a1/shard-00001-of-00004.safetensors", 0), 0);
    assert_int_equal(store_commit(&f->store, &m, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "shard-00001"));
    assert_false(fx_exists(f, "step-00000005.a1"));
    assert_int_equal(store_abort(&f->store, 1, 5, &e), 0);
    assert_int_equal(store_abort(&f->store, 1, 5, &e), 0);
    assert_int_equal(count(f, "\\."), 0);
    assert_int_equal(store_commit(&f->store, &m, &e), ERR_DATA);
}

static void after_a_fence_the_old_attempt_commits_nothing(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    int64_t greatest;
    assert_int_equal(store_fence(&f->store, 1, "attempt-a", &greatest, &e), 0);
    struct manifest m = fx_prepare(f, 1, 5);
    assert_int_equal(store_fence(&f->store, 2, "attempt-b", &greatest, &e), 0);
    assert_false(fx_exists(f, ".tmp-step-00000005.a1"));
    assert_int_equal(count(f, "\\.dead-"), 1);
    assert_int_equal(store_commit(&f->store, &m, &e), ERR_FENCED);
    m = fx_prepare(f, 1, 6); // a zombie begins again
    assert_int_equal(store_commit(&f->store, &m, &e), ERR_FENCED);
    assert_int_equal(store_check_attempt(&f->store, 1, &greatest, &e), ERR_FENCED);
    assert_int_equal(greatest, 2);
    assert_int_equal(store_check_attempt(&f->store, 2, NULL, &e), 0);
    fx_save(f, 2, 7);
    store_sweep(&f->store, 2, 8);
    assert_int_equal(count(f, "\\.dead-"), 0);
    assert_true(fx_exists(f, "step-00000007.a2/COMMIT"));
}

static void a_fence_is_repeatable_by_its_attempt_alone(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    int64_t greatest;
    assert_int_equal(store_fence(&f->store, 4, "attempt-a", &greatest, &e), 0);
    assert_int_equal(store_fence(&f->store, 4, "attempt-a", &greatest, &e), 0);
    assert_int_equal(store_fence(&f->store, 4, "attempt-b", &greatest, &e), ERR_FENCED);
    assert_int_equal(greatest, 4);
    assert_int_equal(store_fence(&f->store, 3, "attempt-b", &greatest, &e), ERR_FENCED);
    assert_int_equal(greatest, 4);
    assert_int_equal(store_fence(&f->store, greatest + 1, "attempt-b", &greatest, &e), 0);
}

// Fencers race over few attempts; each continues with 1 + the greatest until it holds one.
static void of_racing_fencers_each_attempt_has_one_holder(void **state)
{
    enum { FENCERS = 6, ROUNDS = 8 };
    struct fixture *f = *state;
    for (int round = 0; round < ROUNDS; round++) {
        int pipes[2];
        int64_t won[FENCERS];
        assert_int_equal(pipe(pipes), 0);
        for (int i = 0; i < FENCERS; i++) {
            if (fork())
                continue;
            char who[32];
            int64_t attempt = 1 + 10 * round, greatest;
            snprintf(who, sizeof who, "fencer-%d-%d", round, i);
            while (store_fence(&f->store, attempt, who, &greatest, NULL) == ERR_FENCED)
                attempt = 1 + greatest;
            _exit(write(pipes[1], &attempt, sizeof attempt) != (ssize_t)sizeof attempt);
        }
        for (int i = 0; i < FENCERS; i++)
            assert_int_equal(read(pipes[0], &won[i], sizeof won[i]), (ssize_t)sizeof won[i]);
        for (int i = 0; i < FENCERS; i++) {
            int status;
            assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
            for (int k = 0; k < i; k++)
                assert_true(won[i] != won[k]);
        }
        close(pipes[0]);
        close(pipes[1]);
    }
}

// A zombie commits while another process fences: the checkpoint is in the fence's scan, or never.
static void a_commit_racing_a_fence_is_listed_or_never_there(void **state)
{
    struct fixture *f = *state;
    int committed = 0;
    for (int round = 1; round <= 40; round++) {
        int status;
        int64_t greatest;
        struct err e = {0};
        struct store_entry *list;
        int n;
        struct manifest m = fx_prepare(f, round, 5);
        pid_t zombie = fork();
        if (!zombie)
            _exit(store_commit(&f->store, &m, NULL) ? 1 : 0);
        usleep((useconds_t)(rand() % 3000));
        assert_int_equal(store_fence(&f->store, round + 1, "attempt", &greatest, &e), 0);
        assert_int_equal(store_scan(&f->store, &f->arena, &list, &n, &e), 0);
        bool listed = n && list[0].attempt == round;
        assert_int_equal(waitpid(zombie, &status, 0), zombie);
        assert_int_equal(listed, fx_exists(f, arena_printf(&f->arena, "step-00000005.a%d", round)));
        assert_int_equal(listed, WEXITSTATUS(status) == 0);
        committed += listed;
    }
    print_message("%d of 40 zombies were first\n", committed);
}

static void a_deleted_checkpoint_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    fx_save(f, 1, 5);
    fx_save(f, 1, 10);
    assert_int_equal(store_delete(&f->store, 1, 5, &e), 0);
    assert_int_equal(store_delete(&f->store, 1, 5, &e), 0);
    assert_false(fx_exists(f, "step-00000005.a1"));
    assert_int_equal(count(f, "\\.trash"), 0);
    assert_true(fx_exists(f, "step-00000010.a1/COMMIT"));
}

static void a_sweep_takes_what_nobody_needs_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    fx_save(f, 2, 5);
    fx_prepare(f, 2, 8);
    fx_prepare(f, 2, 10);
    mkdirat(f->store.fd, ".trash-step-00000001.a1.x", 0755);
    fx_put(f->store.fd, ".trash-step-00000001.a1.x/COMMIT", "x", 1);
    fx_put(f->store.fd, ".new-owner.1", "x", 1);
    store_sweep(&f->store, 2, 10);
    assert_int_equal(count(f, "\\.trash"), 0);
    assert_int_equal(count(f, "\\.new"), 0);
    assert_false(fx_exists(f, ".tmp-step-00000008.a2"));
    assert_true(fx_exists(f, ".tmp-step-00000010.a2"));
    assert_true(fx_exists(f, "step-00000005.a2/COMMIT"));
    assert_true(fx_exists(f, "OWNER"));
}

// For each byte: sweeps a few times, as fast as it can, and answers. A writer tries more often than
// that.
static void sweep_when_asked(struct store *s, int fd)
{
    enum { SWEEPS = 40 };
    char byte;
    while (read(fd, &byte, 1) == 1) {
        for (int i = 0; i < SWEEPS; i++)
            store_sweep(s, 1, 0);
        if (write(fd, &byte, 1) != 1)
            return;
    }
}

// A host tidies for an older attempt while another one fences: it may take files that have no name yet.
static void what_is_swept_before_it_has_its_name_is_written_again(void **state)
{
    enum { ATTEMPTS = 60 };
    struct fixture *f = *state;
    struct store again = {.fd = -1};
    struct store_owner owner = fx_owner;
    struct err e = {0};
    int64_t greatest;
    int pair[2], status, failed = 0;
    char byte = 's';
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t sweeper = fork();
    if (!sweeper) {
        close(pair[1]);
        sweep_when_asked(&f->store, pair[0]);
        _exit(0);
    }
    close(pair[0]);
    for (int64_t attempt = 1; attempt <= ATTEMPTS && !failed; attempt++) {
        assert_int_equal(write(pair[1], &byte, 1), 1);
        failed = store_fence(&f->store, attempt, "an attempt", &greatest, &e);
        owner.resolved = attempt % 2 ? "name: longer\n" : fx_owner.resolved;
        failed = failed ? failed : store_make(&again, NULL, f->dir, &owner, &e);
        store_close(&again);
        assert_int_equal(read(pair[1], &byte, 1), 1);
    }
    close(pair[1]);
    assert_int_equal(waitpid(sweeper, &status, 0), sweeper);
    if (failed)
        fail_msg("%s", e.text);
    assert_true(fx_exists(f, "attempt-60"));
}

static void listing_shows_open_and_damaged_ones(void **state)
{
    struct fixture *f = *state;
    struct ls l;
    struct buf json = {0};
    struct err e = {0};
    fx_save(f, 1, 5);
    fx_save(f, 1, 10);
    fx_prepare(f, 1, 15);
    assert_int_equal(ls_collect(&l, f->dir, false, &e), 0); // found below, by its OWNER
    assert_int_equal(l.n, 3);
    assert_true(l.items[0].step == 15 && !l.items[0].committed && l.items[0].shards == 4);
    assert_true(l.items[2].step == 5 && l.items[2].ok && ls_ok(&l));
    ls_clear(&l);
    // The last byte of a shard is a tensor's: only reading it all shows the damage.
    int fd = openat(f->store.fd, "step-00000010.a1/shard-00003-of-00004.safetensors", O_RDWR);
    char last;
    off_t end = lseek(fd, -1, SEEK_END);
    assert_int_equal(pread(fd, &last, 1, end), 1);
    last ^= 0x40;
    assert_int_equal(pwrite(fd, &last, 1, end), 1);
    close(fd);
    assert_int_equal(ls_collect(&l, f->store.path, false, &e), 0);
    assert_true(ls_ok(&l));
    ls_clear(&l);
    assert_int_equal(ls_collect(&l, f->store.path, true, &e), 0);
    assert_int_equal(l.n, 2);
    assert_false(ls_ok(&l));
    assert_true(l.items[0].nerrors == 1 && l.items[1].ok);
    assert_non_null(strstr(l.items[0].errors[0], "shard-00003"));
    ls_print_json(&l, &json);
    assert_non_null(strstr(json.data, "\"checkpoints\""));
    assert_non_null(strstr(json.data, "\"ok\":false"));
    buf_clear(&json);
    ls_clear(&l);
    char one[1100];
    snprintf(one, sizeof one, "%s/step-00000005.a1/", f->store.path);
    assert_int_equal(ls_collect(&l, one, true, &e), 0);
    assert_true(l.n == 1 && ls_ok(&l));
    ls_clear(&l);
    assert_int_equal(ls_collect(&l, "/nonexistent/x", false, &e), ERR_NOTFOUND);
    ls_clear(&l);
}

static void a_destroyed_folder_is_gone_whole_and_no_link_is_followed(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct store s;
    char other[1200], path[1300], trash[1300];
    fx_save(f, 1, 10);
    snprintf(other, sizeof other, "%s-other", f->store.path);
    assert_int_equal(mkdir(other, 0700), 0);
    snprintf(path, sizeof path, "%s/kept", other);
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    assert_int_equal(symlinkat(other, f->store.fd, "aside-step-00000005.a1"), 0);
    assert_int_equal(mkdirat(f->store.fd, ".trash-x", 0700), 0);
    assert_int_equal(mkdirat(f->store.fd, ".trash-x/y", 0700), 0);
    // Another folder that took its place stays.
    snprintf(trash, sizeof trash, "%s-moved", f->store.path);
    assert_int_equal(rename(f->store.path, trash), 0);
    assert_int_equal(mkdir(f->store.path, 0700), 0);
    assert_int_equal(store_destroy(&f->store, NULL, NULL, &e), ERR_EXISTS);
    assert_int_equal(rmdir(f->store.path), 0);
    assert_int_equal(rename(trash, f->store.path), 0);
    assert_int_equal(store_destroy(&f->store, NULL, NULL, &e), 0);
    assert_int_equal(access(f->store.path, F_OK), -1);
    assert_int_equal(access(path, F_OK), 0);
    // One that lost its name before it was cut short goes with the next try, which finds no folder.
    const char *slash = strrchr(f->store.path, '/');
    snprintf(trash, sizeof trash, "%.*s/.trash-%s", (int)(slash - f->store.path), f->store.path,
             slash + 1);
    assert_int_equal(mkdir(trash, 0700), 0);
    assert_int_equal(store_open(&s, NULL, f->store.path, &e), ERR_NOTFOUND);
    bool absent = true;
    assert_int_equal(store_destroy(&s, NULL, &absent, &e), 0);
    assert_false(absent);
    assert_int_equal(access(trash, F_OK), -1);
    assert_int_equal(store_destroy(&s, NULL, &absent, &e), 0);
    assert_true(absent);
    unlink(path);
    rmdir(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_checkpoints_read_back),
        FX_TEST(the_owner_comes_back_and_a_foreign_one_refuses),
        FX_TEST(an_owner_has_no_such_number_of_threads),
        FX_TEST(directories_on_the_way_are_made),
        FX_TEST(a_commit_gives_the_final_name_and_may_be_repeated),
        FX_TEST(the_newest_is_the_greatest_attempt_then_step),
        FX_TEST(behind_a_checkpoint_that_a_person_goes_back_to_nothing_is_left),
        FX_TEST(an_attempt_that_is_over_sets_nothing_aside),
        FX_TEST(a_shard_that_is_missing_or_short_stops_the_commit),
        FX_TEST(an_attempt_that_weft_never_gives_refuses_the_fence_and_is_named),
        FX_TEST(a_checkpoint_that_was_copied_here_counts_as_its_attempt),
        FX_TEST(what_only_looks_like_a_checkpoint_is_listed_as_unused),
        FX_TEST(after_a_fence_the_old_attempt_commits_nothing),
        FX_TEST(a_fence_is_repeatable_by_its_attempt_alone),
        FX_TEST(of_racing_fencers_each_attempt_has_one_holder),
        FX_TEST(a_commit_racing_a_fence_is_listed_or_never_there),
        FX_TEST(a_deleted_checkpoint_leaves_nothing),
        FX_TEST(a_sweep_takes_what_nobody_needs_and_nothing_else),
        FX_TEST(what_is_swept_before_it_has_its_name_is_written_again),
        FX_TEST(listing_shows_open_and_damaged_ones),
        FX_TEST(a_destroyed_folder_is_gone_whole_and_no_link_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
