// SPDX-License-Identifier: Apache-2.0
// Paths beneath a root: what stays inside opens, what leaves is refused by name, and data sets and
// checkpoint directories keep to it.
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/root.h"
#include "common/ckpt/store.h"
#include "common/data/dataset.h"
#include "tests/unit/datafile.h"
#include "tests/unit/scratch.h"

static struct scratch top;
static char root[80];
static const struct store_owner owner = {"cluster-a", "0123456789abcdef", "tiny", "steps: 10\n", 0};

static const char *in_top(const char *rest)
{
    return scratch_path(&top, rest);
}

static void put(const char *rest, const char *text)
{
    FILE *f = fopen(in_top(rest), "we");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

//   TOP/secret        outside
//   TOP/root-of-else/ outside, though its text begins like the root's
//   TOP/root/         the root: file, dir/file, and links
static int make_top(void **state)
{
    (void)state;
    scratch_make(&top);
    snprintf(root, sizeof root, "%s/root", top.dir);
    if (mkdir(root, 0700) || mkdir(in_top("root/dir"), 0700) || mkdir(in_top("root-of-else"), 0700))
        return -1;
    put("secret", "outside");
    put("root-of-else/file", "outside");
    put("root/file", "inside");
    put("root/dir/file", "deep");
    return symlink("../secret", in_top("root/out")) ||
           symlink(in_top("secret"), in_top("root/out-absolute")) ||
           symlink("..", in_top("root/up")) || symlink("dir/file", in_top("root/link")) ||
           symlink("dir", in_top("root/link-dir"));
}

static int remove_top(void **state)
{
    (void)state;
    scratch_remove(&top);
    return 0;
}

static void assert_reads(const char *beneath, const char *path, const char *want)
{
    char text[64];
    struct err e = {0};
    int fd, rc = root_open(beneath, path, O_RDONLY, 0, &fd, &e);
    if (rc)
        fail_msg("%s: %s", path, e.text);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n >= 0);
    text[n] = 0;
    assert_string_equal(text, want);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}

static void assert_leaves(const char *path)
{
    struct err e = {0};
    char want[400];
    int fd = 7;
    snprintf(want, sizeof want, "path '%s' leaves the root %s", path, root);
    assert_int_equal(root_open(root, path, O_RDONLY, 0, &fd, &e), ERR_INVALID);
    assert_string_equal(e.text, want);
    assert_int_equal(fd, -1);
}

static void what_lies_beneath_the_root_opens(void **state)
{
    (void)state;
    assert_reads(root, "file", "inside");
    assert_reads(root, "dir/file", "deep");
    assert_reads(root, "dir/../file", "inside");
    assert_reads(root, in_top("root/dir/file"), "deep");
    assert_reads(root, in_top("root//dir/./file"), "deep");
    assert_reads(in_top("root//"), in_top("root/file"), "inside");
    assert_reads("/", in_top("secret"), "outside");
    assert_reads(root, "link", "deep");
    assert_reads(root, "link-dir/file", "deep");
}

static void what_leaves_the_root_is_refused_by_name(void **state)
{
    (void)state;
    assert_leaves("..");
    assert_leaves("../secret");
    assert_leaves("dir/../../secret");
    assert_leaves("/etc/passwd");
    assert_leaves(in_top("secret"));
    assert_leaves(in_top("root/../secret"));
    assert_leaves(in_top("root-of-else/file"));
    assert_leaves("out");
    assert_leaves("out-absolute");
    assert_leaves("up/secret");
    assert_leaves("up/root/file");         // it comes back, but it was outside
    assert_leaves("missing/../../secret"); // a start would make what is missing
    assert_leaves(in_top("root/missing/../../secret"));
}

static void a_loop_of_links_is_no_trouble_of_the_storage(void **state)
{
    (void)state;
    struct err e = {0};
    int fd = 7;
    assert_int_equal(symlink("loop", in_top("root/loop")), 0);
    assert_int_equal(root_open(root, "loop/x", O_RDONLY, 0, &fd, &e), ERR_INVALID);
    assert_int_equal(errno, ELOOP);
}

static void without_a_root_every_path_is_what_it_is(void **state)
{
    (void)state;
    assert_reads(NULL, in_top("secret"), "outside");
    assert_reads("", in_top("root/out"), "outside");
}

static void what_is_not_there_is_not_found_and_nothing_is_made(void **state)
{
    (void)state;
    struct err e = {0};
    int fd;
    assert_int_equal(root_open(root, "none", O_RDONLY, 0, &fd, &e), ERR_NOTFOUND);
    char want[200];
    snprintf(want, sizeof want, "beneath %s: cannot open none: %s", root, strerror(ENOENT));
    assert_string_equal(e.text, want);
    assert_int_equal(root_open(root, "file/none", O_RDONLY, 0, &fd, &e), ERR_NOTFOUND);
    assert_int_equal(root_open(in_top("no-root"), "file", O_RDONLY, 0, &fd, &e), ERR_NOTFOUND);
    assert_int_equal(root_open(root, "../made", O_WRONLY | O_CREAT, 0600, &fd, &e), ERR_INVALID);
    assert_int_not_equal(access(in_top("made"), F_OK), 0);
    assert_int_equal(root_open(root, "made", O_WRONLY | O_CREAT | O_EXCL, 0600, &fd, &e), 0);
    close(fd);
    assert_int_equal(access(in_top("root/made"), F_OK), 0);
}

static void folders_are_made_beneath_the_root_only(void **state)
{
    (void)state;
    struct err e = {0};
    bool there;
    assert_int_equal(root_mkdir(root, "new", 0700, &there, &e), 0);
    assert_false(there);
    assert_int_equal(root_mkdir(root, in_top("root/new/"), 0700, &there, &e), 0);
    assert_true(there);
    assert_int_equal(root_mkdir(root, in_top("root/link-dir/sub"), 0700, &there, &e), 0);
    assert_int_equal(access(in_top("root/dir/sub"), F_OK), 0);
    assert_int_equal(root_mkdir(root, root, 0700, &there, &e), 0);
    assert_true(there);
    assert_int_equal(root_mkdir(root, "up/bad", 0700, &there, &e), ERR_INVALID);
    assert_int_equal(root_mkdir(root, "../bad", 0700, &there, &e), ERR_INVALID);
    assert_int_equal(root_mkdir(root, in_top("bad"), 0700, &there, &e), ERR_INVALID);
    assert_int_not_equal(access(in_top("bad"), F_OK), 0);
    assert_int_equal(root_mkdir(root, "none/bad", 0700, &there, &e), ERR_NOTFOUND);
}

// In a child whose kernel does not know openat2: the code of opening `path`.
static int open_without_openat2(const char *beneath, const char *path)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            _exit(200);
        _exit(root_open(beneath, path, O_RDONLY, 0, &fd, NULL));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_kernel_without_openat2_is_an_error_and_no_way_around(void **state)
{
    (void)state;
    int code = open_without_openat2(root, "file");
    if (code == 200) {
        print_message("SKIP: no system call filters here\n");
        skip();
    }
    assert_int_equal(code, ERR_UNSUPPORTED);
    assert_int_equal(open_without_openat2(NULL, in_top("root/file")), 0);
}

static void paths_are_joined_to_the_root_for_messages(void **state)
{
    (void)state;
    char out[32];
    assert_int_equal(root_join("/data//", "x/y", out, sizeof out, NULL), 0);
    assert_string_equal(out, "/data/x/y");
    assert_int_equal(root_join("/data", "/data/x", out, sizeof out, NULL), 0);
    assert_string_equal(out, "/data/x");
    assert_int_equal(root_join(NULL, "x", out, sizeof out, NULL), 0);
    assert_string_equal(out, "x");
    assert_int_equal(root_join("/data", "a name that is too long for it", out, sizeof out, NULL),
                     ERR_INVALID);
}

static void a_data_set_is_read_beneath_the_root_only(void **state)
{
    (void)state;
    struct dataset ds;
    struct err e = {0};
    const char images[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 1, 5, 6};
    const char labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 0, 1};
    FILE *f = fopen(in_top("root/images"), "we");
    assert_int_equal(fwrite(images, 1, sizeof images, f), sizeof images);
    fclose(f);
    f = fopen(in_top("labels"), "we");
    assert_int_equal(fwrite(labels, 1, sizeof labels, f), sizeof labels);
    fclose(f);
    assert_int_equal(dataset_open(&ds, root, "images", in_top("labels"), 2, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "leaves the root"));
    assert_int_equal(symlink("../labels", in_top("root/labels")), 0);
    assert_int_equal(dataset_open(&ds, root, "images", "labels", 2, &e), ERR_INVALID);
    assert_int_equal(rename(in_top("labels"), in_top("root/labels")), 0);
    assert_int_equal(dataset_open(&ds, root, "images", "labels", 2, &e), 0);
    assert_int_equal(ds.n, 2);
    dataset_close(&ds);
}

static void checkpoints_are_made_and_found_beneath_the_root_only(void **state)
{
    (void)state;
    struct store s, again;
    struct err e = {0};
    char path[1000];
    assert_int_equal(store_make(&s, root, "a/b/ckpt", &owner, &e), 0);
    assert_string_equal(s.path, in_top("root/a/b/ckpt/tiny-01234567"));
    assert_int_equal(access(in_top("root/a/b/ckpt/tiny-01234567/OWNER"), F_OK), 0);
    snprintf(path, sizeof path, "%s", s.path);
    store_close(&s);
    assert_int_equal(store_open(&again, root, path, &e), 0);
    assert_string_equal(again.path, path);
    store_close(&again);
    assert_int_equal(store_make(&s, root, in_top("root/a/b/ckpt/"), &owner, &e), 0);
    store_close(&s);
    assert_int_equal(store_make(&s, root, root, &owner, &e), 0);
    store_close(&s);
    assert_int_equal(store_make(&s, root, "up/ckpt", &owner, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "leaves the root"));
    assert_int_equal(store_make(&s, root, in_top("ckpt"), &owner, &e), ERR_INVALID);
    assert_int_equal(store_make(&s, root, "../ckpt", &owner, &e), ERR_INVALID);
    assert_int_not_equal(access(in_top("ckpt"), F_OK), 0);
    // A folder of the job's that became a link outwards.
    assert_int_equal(rename(in_top("root/a"), in_top("moved")), 0);
    assert_int_equal(symlink("../moved", in_top("root/a")), 0);
    assert_int_equal(store_open(&again, root, path, &e), ERR_INVALID);
    store_close(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
        CASE(what_lies_beneath_the_root_opens),
        CASE(what_leaves_the_root_is_refused_by_name),
        CASE(a_loop_of_links_is_no_trouble_of_the_storage),
        CASE(without_a_root_every_path_is_what_it_is),
        CASE(what_is_not_there_is_not_found_and_nothing_is_made),
        CASE(folders_are_made_beneath_the_root_only),
        CASE(a_kernel_without_openat2_is_an_error_and_no_way_around),
        CASE(paths_are_joined_to_the_root_for_messages),
        CASE(a_data_set_is_read_beneath_the_root_only),
        CASE(checkpoints_are_made_and_found_beneath_the_root_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
