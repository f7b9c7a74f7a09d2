// SPDX-License-Identifier: Apache-2.0
// The durable acts of a worker: the storage probe over several hosts, the fence, and that what
// cannot be done is told with host and mount point.
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/storage.h"

#define OP(x) WEFT__V1__STORAGE_OP__STORAGE_##x

struct rig {
    char root[64];
    struct storage *a, *b; // of two hosts
    Weft__V1__Storage ask;
};

static int set_up(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof r);
    if (temp_folder_make(r.root, "storage"))
        return -1;
    struct storage_config a = {r.root, r.root, "aa", "host-a"}, b = {r.root, NULL, "bb", "host-b"};
    assert_int_equal(storage_open(&a, &r.a, NULL), 0);
    assert_int_equal(storage_open(&b, &r.b, NULL), 0);
    weft__v1__storage__init(&r.ask);
    r.ask.job = frame_text("0123456789abcdef0123456789abcdef");
    r.ask.name = frame_text("tiny");
    r.ask.attempt_id = frame_text("a1");
    r.ask.resolved = frame_text("name: tiny\n");
    r.ask.dir = frame_text("ckpt");
    r.ask.attempt = 1;
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    storage_close(r->a);
    storage_close(r->b);
    return temp_folder_remove(r->root);
}

// One act from start to answer; freed by `let_go`.
static Weft__V1__StorageDone *act(struct rig *r, struct storage *s, Weft__V1__StorageOp op)
{
    struct pollfd p = {.fd = storage_fd(s), .events = POLLIN};
    Weft__V1__StorageDone *m;
    r->ask.op = op;
    storage_ask(s, &r->ask, "cluster-1");
    while (!(m = storage_next(s)))
        assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(m->op, op);
    return m;
}

static void let_go(Weft__V1__StorageDone *m)
{
    weft__v1__storage_done__free_unpacked(m, NULL);
}

static void works(struct rig *r, struct storage *s, Weft__V1__StorageOp op)
{
    Weft__V1__StorageDone *m = act(r, s, op);
    if (!m->ok)
        fail_msg("%s", m->why);
    let_go(m);
}

static bool there(const struct rig *r, const char *name)
{
    char path[200];
    struct stat st;
    snprintf(path, sizeof path, "%s/ckpt/tiny-01234567/%s", r->root, name);
    return !stat(path, &st);
}

static void jobs_of_this_cluster_are_found_again_wherever_they_lie(void **state)
{
    struct rig *r = *state;
    works(r, r->a, OP(WRITE));
    works(r, r->a, OP(FENCE));
    r->ask.job = frame_text("fedcba9876543210fedcba9876543210");
    r->ask.name = frame_text("other");
    r->ask.dir = frame_text("deep/er/ckpt");
    works(r, r->a, OP(WRITE));
    r->ask.dir = r->ask.job = r->ask.attempt_id = frame_text("");
    Weft__V1__StorageDone *m = act(r, r->b, OP(FIND));
    assert_true(m->ok);
    assert_int_equal(m->n_found, 2);
    const Weft__V1__FoundJob *tiny = m->found[strcmp(m->found[0]->name, "tiny") ? 1 : 0];
    assert_string_equal(tiny->name, "tiny");
    assert_string_equal(tiny->job, "0123456789abcdef0123456789abcdef");
    assert_string_equal(tiny->resolved, "name: tiny\n");
    assert_int_equal(tiny->attempt, 1);
    let_go(m);
    r->ask.op = OP(FIND);
    storage_ask(r->b, &r->ask, "another-cluster");
    struct pollfd p = {.fd = storage_fd(r->b), .events = POLLIN};
    while (!(m = storage_next(r->b)))
        assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(m->n_found, 0);
    let_go(m);
}

static void two_hosts_see_each_others_files_after_a_rename(void **state)
{
    struct rig *r = *state;
    char *nonces[] = {frame_text("aa=n1"), frame_text("bb=n2")};
    r->ask.nonce = frame_text("n1");
    works(r, r->a, OP(WRITE));
    r->ask.nonce = frame_text("n2");
    works(r, r->b, OP(WRITE));
    works(r, r->a, OP(RENAME));
    works(r, r->a, OP(RENAME)); // asked again
    r->ask.n_nonces = 2;
    r->ask.nonces = nonces;
    works(r, r->a, OP(READ));
    works(r, r->b, OP(READ));
    assert_true(there(r, ".probed-a1/aa"));
}

static void a_host_on_other_storage_is_named_with_its_mount(void **state)
{
    struct rig *r = *state;
    char *nonces[] = {frame_text("aa=n1"), frame_text("bb=n2")};
    r->ask.nonce = frame_text("n1");
    works(r, r->a, OP(WRITE));
    works(r, r->a, OP(RENAME));
    r->ask.n_nonces = 2;
    r->ask.nonces = nonces;
    Weft__V1__StorageDone *m = act(r, r->a, OP(READ));
    assert_false(m->ok);
    assert_false(m->config);
    assert_non_null(strstr(m->why, "host host-a cannot see"));
    assert_non_null(strstr(m->why, "mounted at /"));
    assert_non_null(strstr(m->why, "host bb"));
    let_go(m);
}

static void a_fence_is_made_once_and_repeats(void **state)
{
    struct rig *r = *state;
    works(r, r->a, OP(FENCE));
    assert_true(there(r, "attempt-1"));
    works(r, r->a, OP(FENCE));
    r->ask.attempt = 5;
    works(r, r->b, OP(FENCE));
    r->ask.attempt = 3;
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_false(m->ok);
    assert_int_equal(m->greatest, 5);
    let_go(m);
    r->ask.attempt = 5;
    r->ask.attempt_id = frame_text("another");
    m = act(r, r->a, OP(FENCE));
    assert_false(m->ok);
    assert_int_equal(m->greatest, 5);
    let_go(m);
}

static void a_fence_of_an_attempt_beyond_all_is_a_matter_of_configuration(void **state)
{
    struct rig *r = *state;
    r->ask.attempt = UINT64_C(100000000000000002);
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_true(!m->ok && m->config);
    assert_int_equal(m->greatest, 0); // there is none to try
    assert_non_null(strstr(m->why, "1 to 1000000000"));
    let_go(m);
    assert_false(there(r, "attempt-100000000000000002"));
    r->ask.attempt = 1;
    works(r, r->a, OP(FENCE));
}

static void a_fence_lists_what_it_cannot_use(void **state)
{
    struct rig *r = *state;
    char path[200];
    works(r, r->a, OP(WRITE));
    snprintf(path, sizeof path, "%s/ckpt/tiny-01234567/step-00000005.a100000000000000001", r->root);
    assert_int_equal(mkdir(path, 0700), 0);
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_true(m->ok);
    assert_int_equal(m->n_committed, 0);
    assert_int_equal(m->n_unused, 1);
    assert_string_equal(m->unused[0], "step-00000005.a100000000000000001");
    let_go(m);
}

static void a_fence_takes_the_probes_away(void **state)
{
    struct rig *r = *state;
    r->ask.nonce = frame_text("n");
    works(r, r->a, OP(WRITE));
    works(r, r->a, OP(RENAME));
    works(r, r->a, OP(FENCE));
    storage_close(r->a); // tidying goes on after the answer
    r->a = NULL;
    assert_false(there(r, ".probed-a1"));
}

static void a_late_fence_leaves_the_probe_of_a_later_attempt(void **state)
{
    struct rig *r = *state;
    r->ask.nonce = frame_text("n");
    r->ask.attempt_id = frame_text("a0"); // it ended before its fence
    works(r, r->a, OP(WRITE));
    char path[200];
    const struct timespec earlier[2] = {{1000, 0}, {1000, 0}};
    snprintf(path, sizeof path, "%s/ckpt/tiny-01234567/.probe-a0", r->root);
    assert_int_equal(utimensat(AT_FDCWD, path, earlier, 0), 0);
    r->ask.attempt_id = frame_text("a1");
    works(r, r->a, OP(WRITE));
    works(r, r->a, OP(RENAME));
    r->ask.attempt_id = frame_text("a2");
    works(r, r->b, OP(WRITE));
    r->ask.attempt_id = frame_text("a3");
    works(r, r->b, OP(WRITE));
    works(r, r->b, OP(RENAME));
    r->ask.attempt_id = frame_text("a1");
    works(r, r->a, OP(FENCE));
    storage_close(r->a); // tidying goes on after the answer
    r->a = NULL;
    assert_false(there(r, ".probe-a0") || there(r, ".probed-a1"));
    assert_true(there(r, ".probe-a2") && there(r, ".probed-a3"));
}

static void an_ended_job_s_folder_is_swept_of_what_was_being_written(void **state)
{
    struct rig *r = *state;
    char tmp[300];
    r->ask.nonce = frame_text("n");
    works(r, r->a, OP(WRITE));
    works(r, r->a, OP(RENAME));
    snprintf(tmp, sizeof tmp, "%s/ckpt/tiny-01234567/.tmp-step-00000010.a1", r->root);
    assert_int_equal(mkdir(tmp, 0700), 0);
    snprintf(tmp, sizeof tmp, "%s/ckpt/tiny-01234567/step-00000005.a1", r->root);
    assert_int_equal(mkdir(tmp, 0700), 0);
    r->ask.attempt = 2; // its host was lost: ranks may live there, so a greater attempt is fenced
    works(r, r->b, OP(TIDY));
    assert_false(there(r, ".probe-a1") || there(r, ".probed-a1"));
    assert_false(there(r, ".tmp-step-00000010.a1"));
    assert_true(there(r, "attempt-2") && there(r, "step-00000005.a1"));
}

static void a_folder_that_is_gone_is_not_made_again_to_be_swept(void **state)
{
    struct rig *r = *state;
    works(r, r->a, OP(TIDY));
    assert_false(there(r, ""));
}

static void a_damaged_checkpoint_is_listed_as_bad_with_the_reason(void **state)
{
    struct rig *r = *state;
    char path[200];
    works(r, r->a, OP(FENCE));
    snprintf(path, sizeof path, "%s/ckpt/tiny-01234567/step-00000004.a1", r->root);
    assert_int_equal(mkdir(path, 0700), 0); // named as committed, with nothing in it
    r->ask.attempt = 2;
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_true(m->ok);
    assert_int_equal(m->n_committed, 1);
    assert_int_equal(m->committed[0]->step, 4);
    assert_true(m->committed[0]->bad);
    assert_true(*m->committed[0]->why);
    assert_string_equal(m->committed[0]->job, r->ask.job);
    let_go(m);
}

static void a_file_system_without_room_is_reported_as_such(void **state)
{
    struct rig *r = *state;
    char filler[200], zeros[4096] = {0};
    if (mount("weft-test", r->root, "tmpfs", 0, "size=64k"))
        skip(); // that takes rights
    snprintf(filler, sizeof filler, "%s/filler", r->root);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    close(fd);
    Weft__V1__StorageDone *m = act(r, r->a, OP(WRITE));
    bool ok = m->ok, full = m->full, config = m->config;
    let_go(m);
    assert_int_equal(umount2(r->root, MNT_DETACH), 0);
    assert_true(!ok && full && !config);
}

static void a_folder_of_another_job_is_a_matter_of_configuration(void **state)
{
    struct rig *r = *state;
    works(r, r->a, OP(FENCE));
    r->ask.job = frame_text("01234567ffffffffffffffffffffffff"); // the same first eight
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_false(m->ok);
    assert_true(m->config);
    let_go(m);
}

static void a_folder_outside_of_the_root_is_refused(void **state)
{
    struct rig *r = *state;
    r->ask.dir = frame_text("../outside");
    Weft__V1__StorageDone *m = act(r, r->a, OP(FENCE));
    assert_false(m->ok);
    assert_true(m->config);
    let_go(m);
}

static void without_a_root_a_folder_starts_at_the_jobs_own(void **state)
{
    struct rig *r = *state;
    struct storage_config c = {NULL, NULL, "cc", "host-c"};
    struct storage *s;
    assert_int_equal(storage_open(&c, &s, NULL), 0);
    Weft__V1__StorageDone *m = act(r, s, OP(FENCE));
    assert_false(m->ok); // relative to nothing
    assert_true(m->config);
    let_go(m);
    r->ask.base_dir = r->root;
    works(r, s, OP(FENCE));
    assert_true(there(r, "OWNER"));
    storage_close(s);
}

static Weft__V1__StorageDone *look(struct rig *r, struct storage *s, size_t n, char **paths)
{
    r->ask.paths = paths;
    r->ask.n_paths = n;
    Weft__V1__StorageDone *m = act(r, s, OP(LOOK));
    assert_true(m->ok);
    assert_int_equal(m->n_missing_why, m->n_missing);
    return m;
}

// `want`: the numbers of the paths at which a rank could not open its data.
static void misses(struct rig *r, struct storage *s, size_t n, char **paths, const char *want)
{
    char got[100] = "";
    Weft__V1__StorageDone *m = look(r, s, n, paths);
    for (size_t i = 0; i < m->n_missing; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d ", (int)m->missing[i]);
    assert_string_equal(got, want);
    let_go(m);
}

static void cannot_open(struct rig *r, struct storage *s, char *path, const char *why)
{
    Weft__V1__StorageDone *m = look(r, s, 1, &path);
    assert_int_equal(m->n_missing, 1);
    if (!strstr(m->missing_why[0], why))
        fail_msg("'%s' does not say '%s'", m->missing_why[0], why);
    let_go(m);
}

static void a_look_says_which_data_cannot_be_opened_and_why_and_makes_nothing(void **state)
{
    struct rig *r = *state;
    char there_is[] = "ckpt/tiny-01234567/OWNER", gone[] = "gone", below[] = "gone/deeper",
         out[] = "../outside", folder[] = "ckpt", absolute[100], why[200];
    works(r, r->a, OP(WRITE));
    snprintf(absolute, sizeof absolute, "%s/%s", r->root, there_is);
    char *all[] = {gone, absolute, below, there_is, out};
    misses(r, r->a, 5, all, "0 2 4 "); // relative paths start at the root
    misses(r, r->a, 0, NULL, "");
    snprintf(why, sizeof why, "beneath %s: cannot open gone: No such file or directory", r->root);
    cannot_open(r, r->a, gone, why);
    cannot_open(r, r->a, out, "leaves the root");
    cannot_open(r, r->a, folder, "ckpt is not a regular file");
    assert_false(there(r, "../../gone"));
}

static void a_look_says_whether_the_checkpoints_would_leave_the_root(void **state)
{
    struct rig *r = *state;
    char at[200];
    snprintf(at, sizeof at, "%s/link", r->root);
    assert_int_equal(symlink("/tmp", at), 0);
    r->ask.dir = frame_text("link/x");
    misses(r, r->a, 0, NULL, "0 ");
    char none[] = "none", *paths[] = {none};
    Weft__V1__StorageDone *m = look(r, r->a, 1, paths);
    assert_int_equal(m->n_missing, 2);
    assert_int_equal(m->missing[1], 1);
    assert_non_null(strstr(m->missing_why[1], "leaves the root"));
    let_go(m);
    r->ask.dir = frame_text("new/folder"); // which an attempt makes
    misses(r, r->a, 0, NULL, "");
    r->ask.dir = frame_text("new/../../folder"); // and then it would leave
    misses(r, r->a, 0, NULL, "0 ");
    assert_int_equal(unlink(at), 0);
    assert_int_equal(symlink("link", at), 0); // to itself
    r->ask.dir = frame_text("link/x");
    misses(r, r->a, 0, NULL, "0 ");
    assert_int_equal(unlink(at), 0);
}

// Ranks are started in the worker's folder, and open relative paths there.
static void without_a_data_root_relative_data_starts_where_the_worker_does(void **state)
{
    struct rig *r = *state;
    char there_is[] = "ckpt/tiny-01234567/OWNER", some[] = "ckpt/tiny-01234567/OWN*",
         gone[] = "gone";
    int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    works(r, r->a, OP(WRITE));
    char *all[] = {there_is, gone, some};
    assert_int_equal(chdir(r->root), 0);
    Weft__V1__StorageDone *m = look(r, r->b, 3, all);
    assert_int_equal(fchdir(before), 0);
    close(before);
    assert_int_equal(m->n_missing, 1);
    assert_int_equal(m->missing[0], 1);
    assert_string_equal(m->missing_why[0], "cannot open gone: No such file or directory");
    let_go(m);
}

// Which of many there should be nobody knows, but each that matches must open.
static void a_look_at_a_pattern_asks_for_files_that_match(void **state)
{
    struct rig *r = *state;
    char some[] = "ckpt/tiny-01234567/OWN*", none[] = "ckpt/tiny-01234567/train-*.bin",
         nowhere[] = "gone/*", folders[] = "ckpt/tiny-*/OWNER", last[100];
    works(r, r->a, OP(WRITE));
    char *all[] = {some, none, nowhere, folders};
    misses(r, r->a, 4, all, "1 2 3 ");
    cannot_open(r, r->a, none, "no file matches");
    cannot_open(r, r->a, folders, "only the last part of a path may be one");
    snprintf(last, sizeof last, "%s/ckpt/tiny-01234567/OWNER-2", r->root);
    assert_int_equal(symlink("nowhere", last), 0);
    cannot_open(r, r->a, some, "cannot open ckpt/tiny-01234567/OWNER-2: No such file or directory");
    assert_int_equal(unlink(last), 0);
    r->ask.literal = true; // a job's images and labels are one file each
    misses(r, r->a, 4, all, "0 1 2 3 ");
    cannot_open(r, r->a, some, "cannot open ckpt/tiny-01234567/OWN*: No such file or directory");
}

// Root may read everything: it becomes another user for as long.
static void data_that_may_not_be_read_is_as_good_as_none(void **state)
{
    struct rig *r = *state;
    enum { NOBODY = 65534 };
    char path[] = "ckpt/tiny-01234567/OWNER", at[100];
    bool is_root = geteuid() == 0;
    works(r, r->a, OP(WRITE));
    snprintf(at, sizeof at, "%s/%s", r->root, path);
    assert_int_equal(chmod(at, 0), 0);
    while (is_root && strlen(at) > strlen(r->root)) { // into its folders anybody may go
        *strrchr(at, '/') = 0;
        assert_int_equal(chmod(at, 0711), 0);
    }
    assert_int_equal(is_root ? seteuid(NOBODY) : 0, 0);
    cannot_open(r, r->a, path, "Permission denied");
    assert_int_equal(is_root ? seteuid(0) : 0, 0);
}

// A file system whose server answers nothing, mounted on `at`; its server's descriptor, or -1.
static int mount_hung(const char *at)
{
    char options[80];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    assert_int_equal(mkdir(at, 0700), 0);
    if (fd < 0 || !mount("weft-test", at, "fuse", 0, options))
        return fd;
    close(fd);
    return -1;
}

static void looks_at_data_that_hangs_leave_room_for_other_acts(void **state)
{
    struct rig *r = *state;
    char at[100], path[] = "hung/x", *paths[] = {path};
    struct pollfd p = {.fd = storage_fd(r->a), .events = POLLIN};
    Weft__V1__StorageDone *looked, *written, *rows;
    snprintf(at, sizeof at, "%s/hung", r->root);
    int server = mount_hung(at);
    if (server < 0)
        skip(); // that takes rights
    r->ask.op = OP(LOOK);
    r->ask.paths = paths;
    r->ask.n_paths = 1;
    do
        storage_ask(r->a, &r->ask, "cluster-1");
    while (!(looked = storage_next(r->a))); // those that hang do not answer
    r->ask.op = OP(WRITE);
    r->ask.nonce = frame_text("n");
    storage_ask(r->a, &r->ask, "cluster-1");
    while (!(written = storage_next(r->a)))
        (void)poll(&p, 1, 60000);
    r->ask.op = OP(ROWS);
    storage_ask(r->a, &r->ask, "cluster-1");
    while (!(rows = storage_next(r->a)))
        (void)poll(&p, 1, 60000);
    close(server); // ends what hangs
    assert_int_equal(umount2(at, MNT_DETACH), 0);
    assert_false(looked->ok);
    assert_non_null(strstr(looked->why, "too many"));
    if (!written->ok || written->op != OP(WRITE))
        fail_msg("%s", written->why);
    assert_int_equal(rows->op, OP(ROWS));
    assert_null(strstr(rows->why, "too many"));
    let_go(looked);
    let_go(written);
    let_go(rows);
}

static void an_act_that_it_does_not_know_is_answered_too(void **state)
{
    struct rig *r = *state;
    Weft__V1__StorageDone *m = act(r, r->a, OP(NONE));
    assert_false(m->ok);
    let_go(m);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
static void what_is_not_there_is_not_deleted(void **state)
{
    struct rig *r = *state;
    works(r, r->a, OP(FENCE));
    for (int i = 0; i < 2; i++) { // there, and gone
        Weft__V1__StorageDone *m = act(r, r->a, OP(DELETE));
        assert_true(m->ok);
        assert_int_equal(m->absent, i);
        let_go(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_is_not_there_is_not_deleted),
        CASE(jobs_of_this_cluster_are_found_again_wherever_they_lie),
        CASE(two_hosts_see_each_others_files_after_a_rename),
        CASE(a_host_on_other_storage_is_named_with_its_mount),
        CASE(a_fence_is_made_once_and_repeats),
        CASE(a_fence_of_an_attempt_beyond_all_is_a_matter_of_configuration),
        CASE(a_fence_lists_what_it_cannot_use),
        CASE(a_fence_takes_the_probes_away),
        CASE(a_late_fence_leaves_the_probe_of_a_later_attempt),
        CASE(an_ended_job_s_folder_is_swept_of_what_was_being_written),
        CASE(a_folder_that_is_gone_is_not_made_again_to_be_swept),
        CASE(a_damaged_checkpoint_is_listed_as_bad_with_the_reason),
        CASE(a_file_system_without_room_is_reported_as_such),
        CASE(a_folder_of_another_job_is_a_matter_of_configuration),
        CASE(a_folder_outside_of_the_root_is_refused),
        CASE(without_a_root_a_folder_starts_at_the_jobs_own),
        CASE(a_look_says_which_data_cannot_be_opened_and_why_and_makes_nothing),
        CASE(a_look_says_whether_the_checkpoints_would_leave_the_root),
        CASE(without_a_data_root_relative_data_starts_where_the_worker_does),
        CASE(a_look_at_a_pattern_asks_for_files_that_match),
        CASE(data_that_may_not_be_read_is_as_good_as_none),
        CASE(looks_at_data_that_hangs_leave_room_for_other_acts),
        CASE(an_act_that_it_does_not_know_is_answered_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
