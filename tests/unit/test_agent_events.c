// SPDX-License-Identifier: Apache-2.0
// TensorBoard's events as weft writes them: records, checksums, and what a torn file becomes. That
// TensorBoard itself reads them is shown by check-peers.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/sinks/event_file.h"
#include "worker/sinks/tensorboard.h"

static char root[64];

static int set_up(void **state)
{
    (void)state;
    return temp_folder_make(root, "events");
}

static int tear_down(void **state)
{
    (void)state;
    return temp_folder_remove(root);
}

static const char *events_path(void)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/tensorboard/events.out.tfevents.weft", root);
    return path;
}

static off_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

// A life of the sink that is given these lines behind a header. Returns its last report of rows.
static int give_lines(const char *lines)
{
    int in[2], out[2];
    char text[4096], report[256] = {0};
    struct err e = {0};
    int n =
        snprintf(text, sizeof text,
                 "{\"weft\":1,\"store\":\"%s\",\"resolved\":{\"a\":{\"b\":1}}}\n%s", root, lines);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(write(in[1], text, (size_t)n), n);
    close(in[1]);
    assert_int_equal(tensorboard_run(in[0], out[1], &e), 0);
    close(out[1]);
    assert_true(read(out[0], report, sizeof report - 1) > 1);
    close(in[0]);
    close(out[0]);
    report[strlen(report) - 1] = 0;
    return atoi(strrchr(report, '\n') ? strrchr(report, '\n') + 1 : report);
}

// Counts records whose framing and checksums hold, and fails for any byte beyond them.
static int count_records(void)
{
    struct buf b = {0};
    int n = 0;
    assert_int_equal(folder_read_whole(AT_FDCWD, events_path(), true, 1 << 20, &b, NULL), 0);
    for (size_t at = 0; at < b.len; n++) {
        uint64_t len;
        uint32_t head, tail;
        memcpy(&len, b.data + at, 8);
        memcpy(&head, b.data + at + 8, 4);
        assert_true(len < b.len && at + 12 + len + 4 <= b.len);
        memcpy(&tail, b.data + at + 12 + len, 4);
        uint32_t want_head = event_crc32c(b.data + at, 8);
        uint32_t want_tail = event_crc32c(b.data + at + 12, len);
        assert_int_equal(head, (uint32_t)(((want_head >> 15) | (want_head << 17)) + 0xa282ead8));
        assert_int_equal(tail, (uint32_t)(((want_tail >> 15) | (want_tail << 17)) + 0xa282ead8));
        at += 12 + len + 4;
    }
    buf_clear(&b);
    return n;
}

static void checksums_are_those_that_are_published(void **state)
{
    unsigned char zeros[32] = {0}, ones[32];
    (void)state;
    memset(ones, 0xff, sizeof ones);
    assert_int_equal(event_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(event_crc32c(zeros, 32), 0x8a9136aa); // RFC 3720, B.4
    assert_int_equal(event_crc32c(ones, 32), 0x62a8ab43);
}

// The version, the settings, a session start, and the rows.
static void each_row_is_an_event_and_what_is_no_row_is_left_out(void **state)
{
    (void)state;
    assert_int_equal(give_lines("{\"step\":1,\"loss\":2.5}\nno row\n{\"loss\":1}\n[]\n"
                                "{\"step\":2,\"loss\":null,\"nonfinite\":[\"loss\"]}\n"),
                     5);
    assert_int_equal(count_records(), 5);
    assert_int_equal(give_lines("{\"step\":3,\"kl\":[1,2,\"x\",null],\"samples\":[\"a\",7]}\n"), 1);
    assert_int_equal(count_records(), 7); // a session start more
}

static void a_torn_tail_is_cut_off_wherever_it_tears(void **state)
{
    (void)state;
    (void)give_lines("{\"step\":1,\"loss\":2.5}\n");
    off_t whole = size_of(events_path());
    (void)give_lines("");
    assert_int_equal(size_of(events_path()), whole); // no row: no session
    (void)give_lines("{\"step\":2,\"loss\":2.25}\n");
    off_t all = size_of(events_path());
    for (off_t at = all - 1; at >= 0; at--) {
        struct event_file f;
        assert_int_equal(truncate(events_path(), at), 0);
        assert_int_equal(event_file_open(AT_FDCWD, events_path(), &f, NULL), 0);
        assert_true(f.end <= at && size_of(events_path()) == f.end);
        event_file_close(&f);
        (void)count_records(); // what is left is whole
    }
}

static void a_byte_that_flipped_in_the_last_event_takes_it_away(void **state)
{
    struct event_file f;
    (void)state;
    (void)give_lines("{\"step\":1,\"loss\":2.5}\n");
    off_t size = size_of(events_path());
    int fd = open(events_path(), O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "\xff", 1, size - 6), 1);
    close(fd);
    assert_int_equal(event_file_open(AT_FDCWD, events_path(), &f, NULL), 0);
    assert_true(f.end < size);
    event_file_close(&f);
}

static void a_link_in_place_of_the_file_is_not_followed(void **state)
{
    struct event_file f;
    char other[200];
    (void)state;
    (void)give_lines("");
    snprintf(other, sizeof other, "%s/other", root);
    assert_int_equal(unlink(events_path()), 0);
    assert_int_equal(symlink(other, events_path()), 0);
    assert_int_not_equal(event_file_open(AT_FDCWD, events_path(), &f, NULL), 0);
    assert_int_not_equal(access(other, F_OK), 0);
}

static void a_link_in_place_of_the_folder_is_not_followed(void **state)
{
    int in[2];
    char text[200], link[100], other[100];
    struct err e = {0};
    (void)state;
    snprintf(link, sizeof link, "%s/tensorboard", root);
    snprintf(other, sizeof other, "%s/other", root);
    assert_int_equal(mkdir(other, 0755), 0);
    assert_int_equal(symlink(other, link), 0);
    int n = snprintf(text, sizeof text, "{\"weft\":1,\"store\":\"%s\"}\n", root);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(write(in[1], text, (size_t)n), n);
    int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_not_equal(tensorboard_run(in[0], out, &e), 0);
    assert_non_null(strstr(e.text, link));
    close(in[0]);
    close(in[1]);
    close(out);
    assert_int_equal(rmdir(other), 0); // nothing lies there
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_those_that_are_published),
        cmocka_unit_test_setup_teardown(each_row_is_an_event_and_what_is_no_row_is_left_out, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_torn_tail_is_cut_off_wherever_it_tears, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_byte_that_flipped_in_the_last_event_takes_it_away, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_link_in_place_of_the_folder_is_not_followed, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_link_in_place_of_the_file_is_not_followed, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
