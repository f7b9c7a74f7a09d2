// SPDX-License-Identifier: Apache-2.0
// The file by which agents find their leader: what is written is read, and nothing else is believed.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "coordinator/cli/leader_file.h"
#include "tests/unit/scratch.h"
#include "tests/unit/unit.h"

static const struct leader_secret none = {""}, ours = {"a secret of sixteen and more"},
                                  others = {"another secret of them"};

static struct leader_file example(void)
{
    struct leader_file f = {.ended = -1, .naddresses = 2};
    snprintf(f.allocation, sizeof f.allocation, "slurm 71.0 start 0");
    snprintf(f.id, sizeof f.id, "0123456789abcdef0123456789abcdef");
    snprintf(f.token, sizeof f.token, "aaaa.bbbb.w0");
    snprintf(f.address[0], LEADER_ADDRESS, "n1:7700");
    snprintf(f.address[1], LEADER_ADDRESS, "[fe80::1]:7700");
    return f;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct scratch place;
    scratch_make(&place);
    const char *root = place.dir;
    const struct leader_secret *secrets[] = {&none, &ours};
    for (int i = 0; i < 2; i++) {
        struct leader_file f = example(), got;
        struct err e = {0};
        assert_int_equal(leader_file_write(root, "job", secrets[i], &f, &e), 0);
        assert_int_equal(leader_file_read(root, "job", secrets[i], &got, &e), 0);
        assert_memory_equal(&got, &f, sizeof f);
        assert_int_equal(leader_file_end(root, "job", secrets[i], f.id, 75, &e), 0);
        assert_int_equal(leader_file_read(root, "job", secrets[i], &got, &e), 0);
        assert_int_equal(got.ended, 75);
        assert_int_equal(
            leader_file_end(root, "job", secrets[i], "ffffffffffffffffffffffffffffffff", 0, &e),
            ERR_EXISTS);
    }
    scratch_remove(&place);
}

static void another_secret_reads_nothing(void **state)
{
    (void)state;
    struct leader_file f = example(), got;
    struct buf text = {0};
    leader_file_print(&f, &ours, &text);
    assert_null(strstr(buf_str(&text), "616161612e")); // "aaaa." in hex
    assert_int_equal(leader_file_parse(buf_str(&text), &none, &got, NULL), ERR_DATA);
    assert_int_equal(leader_file_parse(buf_str(&text), &others, &got, NULL), ERR_DATA);
    assert_int_equal(leader_file_parse(buf_str(&text), &ours, &got, NULL), 0);
    // An end that somebody without the secret wrote.
    buf_puts(&text, "ended 0 ");
    for (int i = 0; i < 64; i++)
        buf_putc(&text, '0');
    buf_putc(&text, '\n');
    assert_int_equal(leader_file_parse(buf_str(&text), &ours, &got, NULL), 0);
    assert_int_equal(got.ended, -1);
    buf_clear(&text);
}

// Any one changed, missing or added byte before the end is seen, with and without a secret.
static void a_torn_or_changed_file_is_refused(void **state)
{
    (void)state;
    struct leader_file f = example(), got;
    struct buf text = {0};
    const struct leader_secret *secrets[] = {&none, &ours};
    for (int s = 0; s < 2; s++) {
        buf_reset(&text);
        leader_file_print(&f, secrets[s], &text);
        size_t n = text.len;
        char *copy = malloc(n + 2);
        for (size_t i = 0; i < n; i++) {
            memcpy(copy, buf_str(&text), n + 1);
            copy[i] ^= 1;
            if (!leader_file_parse(copy, secrets[s], &got, NULL))
                fail_msg("byte %zu", i);
            memcpy(copy, buf_str(&text), n + 1);
            copy[i] = 0;
            if (!leader_file_parse(copy, secrets[s], &got, NULL))
                fail_msg("cut at %zu", i);
        }
        free(copy);
    }
    buf_clear(&text);
}

// A file of others, one that others may read, a link, a folder that others may write to.
static void only_this_users_own_is_believed(void **state)
{
    (void)state;
    struct scratch place;
    scratch_make(&place);
    const char *root = place.dir;
    char dir[600], file[700], other[700];
    struct leader_file f = example(), got;
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s/.weft", root);
    snprintf(file, sizeof file, "%s/job.leader", dir);
    snprintf(other, sizeof other, "%s/elsewhere", root);
    assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_NOTFOUND);
    assert_int_equal(leader_file_write(root, "job", &none, &f, &e), 0);
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
    assert_int_equal(leader_file_read(root, "job", &ours, &got, &e), ERR_DATA);
    assert_int_equal(chmod(file, 0600), 0);
    assert_int_equal(chmod(dir, 0770), 0);
    assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
    assert_int_equal(leader_file_write(root, "job", &none, &f, &e), ERR_INVALID);
    assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(rename(file, other), 0);
    assert_int_equal(symlink(other, file), 0);
    assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rename(other, file), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(file, 65534, 65534), 0);
        assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
        assert_int_equal(chown(file, 0, 0), 0);
        assert_int_equal(chown(dir, 65534, 65534), 0);
        assert_int_equal(leader_file_read(root, "job", &none, &got, &e), ERR_INVALID);
        assert_int_equal(leader_file_write(root, "job", &none, &f, &e), ERR_INVALID);
    }
    scratch_remove(&place);
}

// Who may make things in the folder of checkpoints leads nobody's writing elsewhere, with a secret either.
static void a_link_in_place_of_the_folder_is_not_followed(void **state)
{
    (void)state;
    struct scratch place;
    scratch_make(&place);
    const char *elsewhere = scratch_path(&place, "elsewhere");
    const struct leader_secret *secrets[] = {&none, &ours};
    struct leader_file f = example(), got;
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    assert_int_equal(symlink(elsewhere, scratch_path(&place, ".weft")), 0);
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        assert_int_equal(leader_file_write(place.dir, "job", secrets[i], &f, &e), ERR_INVALID);
        assert_non_null(strstr(e.text, "is no folder but a link"));
        assert_int_equal(leader_file_read(place.dir, "job", secrets[i], &got, &e), ERR_INVALID);
        assert_int_equal(leader_file_end(place.dir, "job", secrets[i], f.id, 0, &e), ERR_INVALID);
    }
    assert_int_equal(rmdir(elsewhere), 0); // it is empty
    scratch_remove(&place);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(another_secret_reads_nothing),
        cmocka_unit_test(a_torn_or_changed_file_is_refused),
        cmocka_unit_test(only_this_users_own_is_believed),
        cmocka_unit_test(a_link_in_place_of_the_folder_is_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
