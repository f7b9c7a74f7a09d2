// SPDX-License-Identifier: Apache-2.0
// Small files of our own and flags' values: a file appears whole or not at all, a folder has one
// holder at a time whose pid the others read, and a flag that is no number or time is refused
// with what would be one.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/entropy.h"
#include "common/base/folder.h"
#include "tests/unit/scratch.h"

static struct scratch top;

static const char *in_top(const char *rest)
{
    return scratch_path(&top, rest);
}

static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void a_folder_is_made_with_what_lies_above_it_and_only_its_owner_enters(void **state)
{
    (void)state;
    struct err e = {0};
    struct stat st;
    char dir[200];
    snprintf(dir, sizeof dir, "%s", in_top("a/b/c"));
    assert_int_equal(folder_make(dir, &e), 0);
    assert_int_equal(folder_make(dir, &e), 0);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(folder_write(dir, "file", "x", FOLDER_LOOSE, &e), 0);
    assert_int_equal(folder_make(in_top("a/b/c/file/below"), &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "a/b/c/file"));
}

static void a_full_disk_leaves_nothing_and_is_named(void **state)
{
    (void)state;
    struct err e = {0};
    struct rlimit all, small;
    char dir[200];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    small = (struct rlimit){2, all.rlim_max};
    snprintf(dir, sizeof dir, "%s", in_top("full"));
    assert_int_equal(folder_make(dir, &e), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = folder_write(dir, "file", "12345", FOLDER_LOOSE, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.text, "File too large"));
    assert_int_equal(entries(dir), 0);
    assert_int_equal(folder_write_bytes(dir, "file",
                                        "1\0"
                                        "3",
                                        3, 0600, FOLDER_LOOSE, &e),
                     0);
    struct stat st;
    assert_int_equal(stat(in_top("full/file"), &st), 0);
    assert_int_equal(st.st_size, 3);
}

static void a_file_written_again_is_the_new_one_whole_and_leaves_nothing_else_behind(void **state)
{
    (void)state;
    struct err e = {0};
    struct stat st;
    char text[32];
    assert_int_equal(folder_make(in_top("texts"), &e), 0);
    char dir[200];
    snprintf(dir, sizeof dir, "%s", in_top("texts"));
    assert_int_equal(folder_read(dir, "id", text, sizeof text, &e), ERR_NOTFOUND);
    assert_string_equal(text, "");
    assert_int_equal(folder_write(dir, "id", "the first and longer", FOLDER_DURABLE, &e), 0);
    assert_int_equal(folder_write(dir, "id", "second\n", FOLDER_LOOSE, &e), 0);
    assert_int_equal(folder_read(dir, "id", text, sizeof text, &e), 0);
    assert_string_equal(text, "second\n");
    assert_int_equal(stat(in_top("texts/id"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(entries(dir), 1);
    assert_int_equal(folder_read(dir, "id", text, 4, &e), 0); // what fits, and an end
    assert_string_equal(text, "sec");
    assert_int_equal(folder_write(in_top("nowhere"), "id", "x", FOLDER_DURABLE, &e), ERR_IO);
}

static void what_lies_in_the_way_of_a_file_is_not_written_to(void **state)
{
    struct err e = {0};
    char dir[200], victim[220], way[220], text[32];
    (void)state;
    snprintf(dir, sizeof dir, "%s", in_top("planted"));
    snprintf(victim, sizeof victim, "%s/victim", dir);
    snprintf(way, sizeof way, "%s/.file.new", dir);
    assert_int_equal(folder_make(dir, &e), 0);
    assert_int_equal(folder_write(dir, "victim", "old", FOLDER_LOOSE, &e), 0);
    for (int soft = 0; soft < 2; soft++) {
        assert_int_equal((soft ? symlink : link)(victim, way), 0);
        assert_int_equal(folder_check_write(dir, "file", &e), 0);
        assert_int_equal((soft ? symlink : link)(victim, way), 0);
        assert_int_equal(folder_write(dir, "file", "new", FOLDER_LOOSE, &e), 0);
        assert_int_equal(folder_read(dir, "file", text, sizeof text, &e), 0);
        assert_string_equal(text, "new");
        assert_int_equal(folder_read(dir, "victim", text, sizeof text, &e), 0);
        assert_string_equal(text, "old");
    }
    assert_int_equal(entries(dir), 2);
}

static void a_file_that_cannot_be_written_is_refused_before(void **state)
{
    struct err e = {0};
    char dir[200];
    (void)state;
    snprintf(dir, sizeof dir, "%s", in_top("before"));
    assert_int_equal(folder_check_write(dir, "file", &e), ERR_IO);
    assert_int_equal(folder_make(in_top("before/below"), &e), 0);
    assert_int_equal(folder_check_write(dir, "file", &e), 0);
    assert_int_equal(folder_check_write(dir, "below", &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "/before/below is a folder"));
    assert_int_equal(folder_check_write(in_top("before/below"), "", &e), ERR_INVALID);
    assert_int_equal(entries(dir), 1);
}

static void a_folder_is_removed_with_its_files_unless_a_folder_is_in_it(void **state)
{
    const char *dir = in_top("gone");
    struct err e = {0};
    struct stat st;
    (void)state;
    assert_int_equal(folder_make(in_top("gone/below"), &e), 0);
    assert_int_equal(folder_write(dir, "file", "x", FOLDER_LOOSE, &e), 0);
    folder_remove(dir);
    assert_int_equal(entries(dir), 1);
    folder_remove(in_top("gone/below"));
    folder_remove(dir);
    assert_int_equal(stat(dir, &st), -1);
    folder_remove(dir);
}

static void a_folder_has_one_holder_and_the_others_read_its_pid(void **state)
{
    (void)state;
    struct err e = {0};
    char dir[200], pid[32];
    int fd = -1, other = -1, status;
    snprintf(dir, sizeof dir, "%s", in_top("held"));
    assert_int_equal(folder_make(dir, &e), 0);
    assert_int_equal(folder_lock(dir, &fd, &e), 0);
    pid_t child = fork();
    if (child == 0) {
        struct err mine = {0};
        int rc = folder_lock(dir, &other, &mine);
        snprintf(pid, sizeof pid, "in use by pid %d", (int)getppid());
        _exit(rc == ERR_EXISTS && strstr(mine.text, pid) && other == -1 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fd);
    assert_int_equal(folder_lock(dir, &other, &e), 0); // the holder gone, it is free
    close(other);
}

static void an_id_is_32_hex_digits_and_not_the_one_before(void **state)
{
    (void)state;
    struct err e = {0};
    char a[ID_LEN], b[ID_LEN];
    assert_int_equal(entropy_id(a, &e), 0);
    assert_int_equal(entropy_id(b, &e), 0);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    assert_int_equal(strlen(a), 32);
    assert_string_not_equal(a, b);
}

static void state_lies_where_the_user_keeps_it(void **state)
{
    struct err e = {0};
    char out[64];
    (void)state;
    if (geteuid() == 0) {
        assert_int_equal(folder_find_state("worker", out, sizeof out, &e), 0);
        assert_string_equal(out, "/var/lib/weft/worker");
        assert_int_equal(seteuid(65534), 0);
    }
    setenv("HOME", "/home/ada", 1);
    setenv("XDG_STATE_HOME", "/state", 1);
    assert_int_equal(folder_find_state("worker", out, sizeof out, &e), 0);
    assert_string_equal(out, "/state/weft/worker");
    assert_int_equal(folder_find_state("worker", out, sizeof "/state/weft/worker" - 1, &e),
                     ERR_INVALID);
    setenv("XDG_STATE_HOME", "state", 1); // not absolute: as if it were not there
    assert_int_equal(folder_find_state("coordinator", out, sizeof out, &e), 0);
    assert_string_equal(out, "/home/ada/.local/state/weft/coordinator");
    setenv("HOME", "ada", 1);
    assert_int_equal(folder_find_state("worker", out, sizeof out, &e), ERR_INVALID);
    unsetenv("HOME");
    assert_int_equal(folder_find_state("worker", out, sizeof out, &e), ERR_INVALID);
    assert_int_equal(e.code, ERR_INVALID);
    if (getuid() == 0)
        assert_int_equal(seteuid(0), 0);
}

static void a_file_is_read_whole_or_refused_with_what_it_is(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf text = {0};
    char dir[200], pipe[220];
    snprintf(dir, sizeof dir, "%s", in_top("whole"));
    assert_int_equal(folder_make(dir, &e), 0);
    assert_int_equal(folder_write(dir, "file", "12345", FOLDER_LOOSE, &e), 0);
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    buf_puts(&text, "0");
    assert_int_equal(folder_read_whole(fd, "file", true, 5, &text, &e), 0);
    assert_string_equal(buf_str(&text), "012345");
    assert_int_equal(folder_read_whole(fd, "file", true, 4, &text, &e), ERR_LIMIT);
    assert_int_equal(folder_read_whole(fd, "none", true, 4, &text, &e), ERR_NOTFOUND);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(folder_read_whole(AT_FDCWD, dir, false, 4, &text, &e), ERR_DATA);
    assert_int_equal(errno, EISDIR);
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(folder_read_whole(fd, "pipe", true, 4, &text, &e), ERR_DATA);
    int writer = open(pipe, O_RDWR); // what it wrote is there until a reader comes
    assert_int_equal(write(writer, "12345678", 8), 8);
    assert_int_equal(folder_read_whole(fd, "pipe", false, 4, &text, &e), ERR_LIMIT);
    close(writer);
    close(fd);
    buf_clear(&text);
}

static void names_of_jobs_are_names_of_folders(void **state)
{
    (void)state;
    assert_true(folder_name_ok("mlp-0.a_b") && folder_name_ok("0"));
    char longest[65];
    memset(longest, 'a', 64);
    longest[64] = 0;
    assert_false(folder_name_ok(longest));
    assert_true(folder_name_ok(longest + 1));
    static const char *const bad_names[] = {"", "-a", ".a", "A", "a/b", "a b"};
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++)
        assert_false(folder_name_ok(bad_names[i]));
}

int main(void)
{
    scratch_make(&top);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_jobs_are_names_of_folders),
        cmocka_unit_test(a_folder_is_made_with_what_lies_above_it_and_only_its_owner_enters),
        cmocka_unit_test(a_full_disk_leaves_nothing_and_is_named),
        cmocka_unit_test(a_file_written_again_is_the_new_one_whole_and_leaves_nothing_else_behind),
        cmocka_unit_test(a_file_is_read_whole_or_refused_with_what_it_is),
        cmocka_unit_test(what_lies_in_the_way_of_a_file_is_not_written_to),
        cmocka_unit_test(a_file_that_cannot_be_written_is_refused_before),
        cmocka_unit_test(a_folder_is_removed_with_its_files_unless_a_folder_is_in_it),
        cmocka_unit_test(a_folder_has_one_holder_and_the_others_read_its_pid),
        cmocka_unit_test(state_lies_where_the_user_keeps_it),
        cmocka_unit_test(an_id_is_32_hex_digits_and_not_the_one_before),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(&top);
    return rc;
}
