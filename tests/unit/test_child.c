// SPDX-License-Identifier: Apache-2.0
// What a child is started with and what it says; its end is waited for, but not for ever.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"

// Runs a program with `c`, and hands back what it prints.
static void run_program(struct child_start c, const char *program, const char *first,
                        const char *second, struct buf *out)
{
    char *argv[] = {strdup(program), strdup(first), second ? strdup(second) : NULL, NULL};
    int p[2], status, n = 0;
    pid_t pid;
    struct child_file files[6];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    for (; c.files && c.files[n].ours >= 0; n++)
        files[n] = c.files[n];
    files[n++] = (struct child_file){p[1], 1};
    files[n] = (struct child_file){-1, -1};
    c.program = program;
    c.argv = argv;
    c.files = files;
    assert_int_equal(child_start(&c, &pid), 0);
    close(p[1]);
    assert_true(child_read(p[0], 1 << 16, clock_mono_ns() + 60 * CLOCK_S, out));
    assert_true(child_end(pid, 60 * CLOCK_S, &status));
    assert_int_equal(status, 0);
    close(p[0]);
    for (int i = 0; i < 3; i++)
        free(argv[i]);
}

static void a_child_has_the_files_it_is_given_and_no_input(void **state)
{
    struct buf out = {0};
    int named[2], kept[2];
    char command[128], text[8] = "";
    (void)state;
    assert_int_equal(pipe2(named, O_CLOEXEC), 0);
    assert_int_equal(pipe2(kept, O_CLOEXEC), 0);
    int other = fcntl(named[0], F_DUPFD_CLOEXEC, 60);
    const struct child_file files[] = {{named[1], 9}, {kept[1], kept[1]}, {-1, -1}};
    snprintf(
        command, sizeof command,
        "readlink /proc/self/fd/0; echo nine >&9; echo kept >&%d; test -e /proc/$$/fd/%d; echo $?",
        kept[1], other);
    run_program((struct child_start){.files = files}, "/bin/sh", "-c", command, &out);
    assert_string_equal(buf_str(&out), "/dev/null\n1\n");
    close(other);
    assert_int_equal(read(named[0], text, sizeof text), 5);
    assert_memory_equal(text, "nine\n", 5);
    assert_int_equal(read(kept[0], text, sizeof text), 5);
    assert_memory_equal(text, "kept\n", 5);
    for (int i = 0; i < 2; i++) {
        close(named[i]);
        close(kept[i]);
    }
    buf_clear(&out);
}

static void a_file_may_be_its_input(void **state)
{
    struct buf out = {0};
    int p[2];
    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(write(p[1], "for it\n", 7), 7);
    close(p[1]);
    const struct child_file files[] = {{p[0], 0}, {-1, -1}};
    run_program((struct child_start){.files = files}, "/bin/sh", "-c", "cat", &out);
    assert_string_equal(buf_str(&out), "for it\n");
    close(p[0]);
    buf_clear(&out);
}

static void a_child_has_a_group_of_its_own(void **state)
{
    static const char command[] = "cut -d' ' -f5 /proc/$$/stat; echo $$";
    struct buf out = {0};
    int group, pid;
    (void)state;
    run_program((struct child_start){0}, "/bin/sh", "-c", command, &out);
    assert_int_equal(sscanf(buf_str(&out), "%d %d", &group, &pid), 2);
    assert_int_equal(group, pid);
    buf_clear(&out);
}

static unsigned long long read_mask(const char *status, const char *name)
{
    return strtoull(strstr(status, name) + strlen(name), NULL, 16);
}

static void a_child_ignores_nothing_and_blocks_what_it_is_asked_to(void **state)
{
    struct buf out = {0};
    sigset_t ours, before, blocked;
    (void)state;
    sigemptyset(&ours);
    sigaddset(&ours, SIGUSR1);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &ours, &before);
    void (*old)(int) = signal(SIGPIPE, SIG_IGN);
    run_program((struct child_start){0}, "/bin/cat", "/proc/self/status", NULL, &out);
    assert_int_equal(read_mask(buf_str(&out), "SigBlk:"), 0);
    assert_int_equal(read_mask(buf_str(&out), "SigIgn:") & 1ULL << (SIGPIPE - 1), 0);
    buf_clear(&out);
    run_program((struct child_start){.blocked = &blocked}, "/bin/cat", "/proc/self/status", NULL,
                &out);
    assert_int_equal(read_mask(buf_str(&out), "SigBlk:"), 1ULL << (SIGTERM - 1));
    signal(SIGPIPE, old);
    sigprocmask(SIG_SETMASK, &before, NULL);
    buf_clear(&out);
}

static void a_program_that_is_not_there_does_not_start(void **state)
{
    char *argv[] = {(char[]){"none"}, NULL};
    pid_t pid = 1;
    (void)state;
    assert_int_equal(child_start(&(struct child_start){.program = "/none", .argv = argv}, &pid),
                     -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(pid, 0);
}

static void one_that_keeps_printing_or_says_nothing_is_not_waited_for(void **state)
{
    struct buf out = {0};
    int p[2];
    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_false(child_read(p[0], 100, clock_mono_ns() + CLOCK_MS, &out));
    assert_int_equal(out.len, 0);
    assert_int_equal(write(p[1], "0123456789", 10), 10);
    assert_false(child_read(p[0], 9, clock_mono_ns() + 60 * CLOCK_S, &out));
    assert_string_equal(buf_str(&out), "0123456789");
    close(p[0]);
    close(p[1]);
    buf_clear(&out);
}

static void a_child_that_ends_says_how(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    if (!pid)
        _exit(7);
    assert_true(child_end(pid, 60 * CLOCK_S, &status));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void a_child_that_never_ends_is_killed(void **state)
{
    int status;
    (void)state;
    pid_t pid = fork();
    while (!pid)
        pause();
    assert_true(child_end(pid, CLOCK_MS, &status));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_has_the_files_it_is_given_and_no_input),
        cmocka_unit_test(a_file_may_be_its_input),
        cmocka_unit_test(a_child_has_a_group_of_its_own),
        cmocka_unit_test(a_child_ignores_nothing_and_blocks_what_it_is_asked_to),
        cmocka_unit_test(a_program_that_is_not_there_does_not_start),
        cmocka_unit_test(one_that_keeps_printing_or_says_nothing_is_not_waited_for),
        cmocka_unit_test(a_child_that_ends_says_how),
        cmocka_unit_test(a_child_that_never_ends_is_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
