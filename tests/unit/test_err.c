// SPDX-License-Identifier: Apache-2.0
// Error values: context grows in front, long texts are cut, a null err is allowed, bugs abort.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/unit/unit.h"

static void context_is_added_in_front_on_the_way_up(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_CORRUPT, "tensor '%s': digest differs", "w"), ERR_CORRUPT);
    assert_int_equal(err_wrap(&e, "shard-%05d", 3), ERR_CORRUPT);
    assert_int_equal(err_wrap(&e, "cannot load checkpoint"), ERR_CORRUPT);
    assert_string_equal(e.text, "cannot load checkpoint: shard-00003: tensor 'w': digest differs");
}

static void the_system_s_reason_stands_behind(void **state)
{
    (void)state;
    struct err e = {0};
    errno = ENOSPC;
    assert_int_equal(err_errno(&e, ERR_IO, "%s: cannot write", "a"), ERR_IO);
    assert_string_equal(e.text, "a: cannot write: No space left on device");
}

static void what_the_system_says_of_machine_and_user_stays_until_another_error_is_set(void **state)
{
    (void)state;
    struct err e = {0};
    errno = ENOSPC;
    err_errno(&e, ERR_IO, "a");
    assert_true(e.of_host && !e.forbidden);
    errno = EACCES;
    err_errno(&e, ERR_IO, "a");
    errno = 0; // as after any other call
    err_wrap(&e, "b");
    assert_true(!e.of_host && e.forbidden);
    err_set(&e, ERR_IO, "c");
    assert_true(!e.of_host && !e.forbidden);
}

static void texts_longer_than_the_message_are_cut_inside_it(void **state)
{
    (void)state;
    struct err e = {0};
    char longer[1500];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    err_set(&e, ERR_DATA, "%s", longer);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    err_wrap(&e, "ctx");
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_memory_equal(e.text, "ctx: xxx", 8);
    err_wrap(&e, "%s", longer);
    errno = EIO;
    assert_int_equal(err_errno(&e, ERR_IO, "%s", longer), ERR_IO);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
}

static void a_null_err_still_gives_the_code(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_PEER, "x"), ERR_PEER);
    assert_int_equal(err_errno(NULL, ERR_IO, "x"), ERR_IO);
    assert_int_equal(err_wrap(NULL, "x"), ERR_INTERNAL);
}

static void a_broken_precondition_aborts_and_says_where(void **state)
{
    (void)state;
    int fds[2], status;
    char said[200] = {0};
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], 2);
        PRE(1 + 1 == 2);
        PRE(1 + 1 == 3);
        _exit(0);
    }
    close(fds[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(fds[0], said, sizeof said - 1) > 0);
    close(fds[0]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(said, "test_err.c"));
    assert_non_null(strstr(said, "precondition: 1 + 1 == 3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_is_added_in_front_on_the_way_up),
        cmocka_unit_test(the_system_s_reason_stands_behind),
        cmocka_unit_test(what_the_system_says_of_machine_and_user_stays_until_another_error_is_set),
        cmocka_unit_test(texts_longer_than_the_message_are_cut_inside_it),
        cmocka_unit_test(a_null_err_still_gives_the_code),
        cmocka_unit_test(a_broken_precondition_aborts_and_says_where),
    };
    return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
