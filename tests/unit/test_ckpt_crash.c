// SPDX-License-Identifier: Apache-2.0
// A process that saves, commits and deletes is killed before and after every one of its system
// calls; then the next attempt fences, and what must hold of the directory holds.
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/ckpt_fixture.h"

// What the victim had acknowledged when it died; shared with it.
struct acknowledged {
    bool fenced, committed, deleted;
};

static void victim(struct fixture *f, const char *dir, struct acknowledged *ack)
{
    struct store s;
    int64_t greatest;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    if (store_make(&s, NULL, dir, &fx_owner, NULL) || store_fence(&s, 2, "victim", &greatest, NULL))
        _exit(2);
    ack->fenced = true;
    store_sweep(&s, 2, 15);
    f->store = s;
    struct manifest m = fx_prepare(f, 2, 15);
    if (store_commit(&s, &m, NULL))
        _exit(3);
    ack->committed = true;
    if (store_delete(&s, 1, 5, NULL))
        _exit(4);
    ack->deleted = true;
    _exit(0);
}

// Lets the child run for `stops` entries and exits of system calls, then kills it. True: it ended
// before, by itself.
static bool run_until(pid_t child, int stops)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child); // its SIGSTOP
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < stops; i++) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            return true;
        }
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    return false;
}

static bool listed(struct fixture *f, int64_t attempt, int64_t step)
{
    struct store_entry *list;
    int n;
    assert_int_equal(store_scan(&f->store, &f->arena, &list, &n, NULL), 0);
    for (int i = 0; i < n; i++)
        if (list[i].attempt == attempt && list[i].step == step)
            return true;
    return false;
}

static void expect_newest(struct fixture *f, int64_t step)
{
    struct load l;
    struct err e = {0};
    if (load_open_newest_good(&l, &f->store, NULL, NULL, &e))
        fail_msg("%s", e.text);
    assert_int_equal(l.manifest.step, step);
    assert_int_equal(fx_read_all(&l, step, &e), 0);
    load_close(&l);
}

static bool left_over(const struct fixture *f)
{
    char command[400], line[200] = "";
    snprintf(command, sizeof command, "ls -A '%s' | grep '^[.]'", f->store.path);
    FILE *p = popen(command, "r");
    bool some = fgets(line, sizeof line, p) != NULL;
    pclose(p);
    if (some)
        print_message("left over: %s", line);
    return some;
}

static void the_next_start_finds(struct fixture *f, const struct acknowledged *ack)
{
    struct err e = {0};
    int64_t greatest, attempt = 3;
    struct store again;
    assert_int_equal(store_make(&again, NULL, f->dir, &fx_owner, &e), 0);
    assert_int_equal(store_fence(&again, attempt, "next", &greatest, &e), 0);
    store_close(&again);
    bool there = listed(f, 2, 15);
    assert_true(there || !ack->committed);               // I1
    assert_true(!listed(f, 1, 5) || !ack->deleted);      // a deletion that was answered is done
    assert_true(listed(f, 1, 10));                       // I5
    assert_true(listed(f, 1, 5) || there);               // nothing goes before the new one is there
    expect_newest(f, there ? 15 : 10);                   // I6
    assert_false(fx_exists(f, ".tmp-step-00000015.a2")); // I4: no zombie's rename finds it
    store_sweep(&f->store, attempt, 16);
    assert_false(left_over(f));
    fx_save(f, attempt, 16);
    expect_newest(f, 16);
}

static void killed_at_every_system_call_nothing_acknowledged_is_lost(void **state)
{
    (void)state;
    struct acknowledged *ack =
        mmap(NULL, sizeof *ack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int stops = 0, committed = 0;
    // Every stop in the long run; an odd stride meets entries and exits of calls in turn.
    int stride = getenv("WEFT_LONG") ? 1 : 3;
    for (bool ended = false; !ended; stops += stride) {
        struct fixture f;
        fx_init(&f);
        fx_save(&f, 1, 5);
        fx_save(&f, 1, 10);
        memset(ack, 0, sizeof *ack);
        pid_t child = fork();
        if (!child)
            victim(&f, f.dir, ack);
        ended = run_until(child, stops);
        committed += ack->committed;
        the_next_start_finds(&f, ack);
        fx_clear(&f);
    }
    assert_true(committed > 1); // some died behind the commit
    print_message("killed at %d places\n", stops / stride);
    munmap(ack, sizeof *ack);
}

// The first start of all: no directory, no owner yet.
static void first_start(const char *dir)
{
    struct store s;
    int64_t greatest;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    _exit(store_make(&s, NULL, dir, &fx_owner, NULL) ||
          store_fence(&s, 1, "first", &greatest, NULL));
}

static void a_first_start_cut_short_does_not_bar_the_next(void **state)
{
    (void)state;
    int stops = 0;
    for (bool ended = false; !ended; stops++) {
        char dir[TEMP_FOLDER_MAX], deep[TEMP_FOLDER_MAX + 4];
        struct store s;
        struct err e = {0};
        int64_t greatest;
        assert_int_equal(temp_folder_make(dir, "ckpt"), 0);
        snprintf(deep, sizeof deep, "%s/a/b", dir);
        pid_t child = fork();
        if (!child)
            first_start(deep);
        ended = run_until(child, stops);
        if (store_make(&s, NULL, deep, &fx_owner, &e))
            fail_msg("after %d stops: %s", stops, e.text);
        int64_t attempt = 1;
        while (store_fence(&s, attempt, "second", &greatest, &e) == ERR_FENCED)
            attempt = 1 + greatest;
        assert_true(attempt <= 2);
        store_close(&s);
        assert_int_equal(temp_folder_remove(dir), 0);
    }
    assert_true(stops > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_every_system_call_nothing_acknowledged_is_lost),
        cmocka_unit_test(a_first_start_cut_short_does_not_bar_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
