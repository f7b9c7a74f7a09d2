// SPDX-License-Identifier: Apache-2.0
// Streams: what passes is digested, what breaks stays broken, what is short is named.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/stream.h"
#include "tests/support/digest.h"
#include "tests/unit/unit.h"

struct fixture {
    char path[64];
    int dir;
};

static int make_folder(void **state)
{
    static struct fixture p;
    snprintf(p.path, sizeof p.path, "/tmp/weft-stream-XXXXXX");
    if (!mkdtemp(p.path))
        return -1;
    p.dir = open(p.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = &p;
    return p.dir < 0 ? -1 : 0;
}

static int remove_folder(void **state)
{
    struct fixture *p = *state;
    unlinkat(p->dir, "a", 0);
    close(p->dir);
    return rmdir(p->path);
}

static void assert_same(struct hash128 a, struct hash128 b)
{
    assert_true(a.hi == b.hi && a.lo == b.lo);
}

static void write_file(int dir, const void *data, size_t len)
{
    struct stream s;
    assert_int_equal(stream_create(&s, dir, "a", NULL), 0);
    assert_int_equal(stream_write(&s, data, len, NULL), 0);
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_file_reads_back_with_the_digest_it_was_written_with(void **state)
{
    const struct fixture *p = *state;
    static char data[100000], back[sizeof data];
    struct stream s;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7 + (i >> 8));
    assert_int_equal(stream_create(&s, p->dir, "a", NULL), 0);
    assert_int_equal(stream_write(&s, data, 1, NULL), 0);
    assert_int_equal(stream_write(&s, data + 1, 0, NULL), 0);
    assert_int_equal(stream_write(&s, data + 1, sizeof data - 1, NULL), 0);
    assert_int_equal(stream_tell(&s), sizeof data);
    assert_same(stream_digest(&s), digest_bytes(data, sizeof data));
    assert_int_equal(stream_sync(&s, NULL), 0);
    assert_int_equal(stream_close(&s, NULL), 0);

    assert_int_equal(stream_open(&s, p->dir, "a", NULL), 0);
    assert_int_equal(stream_read_exact(&s, back, 1000, NULL), 0);
    assert_same(stream_digest(&s), digest_bytes(data, 1000));
    stream_digest_reset(&s);
    assert_int_equal(stream_read_exact(&s, back + 1000, sizeof back - 1000, NULL), 0);
    assert_same(stream_digest(&s), digest_bytes(data + 1000, sizeof data - 1000));
    assert_memory_equal(back, data, sizeof data);
    size_t got = 1;
    assert_int_equal(stream_read(&s, back, 1, &got, NULL), 0);
    assert_int_equal(got, 0);
    assert_int_equal(stream_tell(&s), sizeof data);
    assert_int_equal(stream_close(&s, NULL), 0);
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_file_is_made_only_once_and_for_its_owner_only(void **state)
{
    const struct fixture *p = *state;
    struct stream s;
    struct err e = {0};
    struct stat st;
    write_file(p->dir, "x", 1);
    assert_int_equal(fstatat(p->dir, "a", &st, 0), 0);
    assert_int_equal(st.st_mode & 077, 0);
    assert_int_equal(stream_create(&s, p->dir, "a", &e), ERR_EXISTS);
    assert_non_null(strstr(e.text, "a: cannot create"));
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_missing_file_is_not_found(void **state)
{
    const struct fixture *p = *state;
    struct stream s;
    struct err e = {0};
    assert_int_equal(stream_open(&s, p->dir, "nobody", &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "nobody: cannot open"));
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_short_file_is_bad_data_with_its_name_and_offset(void **state)
{
    const struct fixture *p = *state;
    struct stream s;
    struct err e = {0};
    char back[20];
    write_file(p->dir, "0123456789", 10);
    assert_int_equal(stream_open(&s, p->dir, "a", &e), 0);
    assert_int_equal(stream_read_exact(&s, back, 4, &e), 0);
    assert_int_equal(stream_read_exact(&s, back, 9, &e), ERR_DATA);
    assert_string_equal(e.text, "a: ends at byte 10, 3 more expected");
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_file_opened_to_read_refuses_to_be_written(void **state)
{
    const struct fixture *p = *state;
    struct stream s;
    struct err e = {0};
    write_file(p->dir, "x", 1);
    assert_int_equal(stream_open(&s, p->dir, "a", NULL), 0);
    assert_int_equal(stream_write(&s, "y", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "a: cannot write at byte 0"));
    assert_int_equal(stream_close(&s, NULL), ERR_IO);
}

static void a_fault_strikes_the_counted_call_and_leaves_the_partial_bytes(void **state)
{
    const struct fixture *p = *state;
    struct stream_fault f = {.countdown = 3, .code = ERR_IO, .partial = 4};
    struct stream s;
    struct err e = {0};
    struct stat st;
    assert_int_equal(stream_create(&s, p->dir, "a", NULL), 0);
    s.fault = &f;
    assert_int_equal(stream_write(&s, "first,", 6, &e), 0);
    assert_int_equal(stream_write(&s, "second", 6, &e), 0);
    assert_int_equal(stream_write(&s, "third,", 6, &e), ERR_IO);
    assert_non_null(strstr(e.text, "a: cannot write"));
    assert_same(stream_digest(&s), digest_bytes("first,secondthir", 16));
    assert_int_equal(fstatat(p->dir, "a", &st, 0), 0);
    assert_int_equal(st.st_size, 16);
    assert_int_equal(stream_write(&s, "more", 4, &e), ERR_IO);
    assert_int_equal(stream_sync(&s, &e), ERR_IO);
    assert_int_equal(fstatat(p->dir, "a", &st, 0), 0);
    assert_int_equal(st.st_size, 16);
    assert_int_equal(stream_close(&s, &e), ERR_IO);
}

static void a_failed_sync_is_final(void **state)
{
    const struct fixture *p = *state;
    struct stream_fault f = {.countdown = 2, .code = ERR_IO};
    struct stream s;
    struct err e = {0};
    assert_int_equal(stream_create(&s, p->dir, "a", NULL), 0);
    s.fault = &f;
    assert_int_equal(stream_write(&s, "x", 1, &e), 0);
    assert_int_equal(stream_sync(&s, &e), ERR_IO);
    e = (struct err){0};
    assert_int_equal(stream_sync(&s, &e), ERR_IO);
    assert_string_equal(e.text, "a: an earlier write or sync failed");
    int fd = s.fd;
    assert_int_equal(stream_close(&s, NULL), ERR_IO);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void a_failed_read_gives_what_came_and_may_be_repeated(void **state)
{
    const struct fixture *p = *state;
    struct stream_fault f = {.countdown = 1, .code = ERR_TIMEOUT, .partial = 2};
    struct stream s;
    char back[6];
    size_t got = 0;
    write_file(p->dir, "abcdef", 6);
    assert_int_equal(stream_open(&s, p->dir, "a", NULL), 0);
    s.fault = &f;
    assert_int_equal(stream_read(&s, back, 6, &got, NULL), ERR_TIMEOUT);
    assert_int_equal(got, 2);
    assert_int_equal(stream_read_exact(&s, back + 2, 4, NULL), 0);
    assert_memory_equal(back, "abcdef", 6);
    assert_same(stream_digest(&s), digest_bytes("abcdef", 6));
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_failed_close_still_closes(void **state)
{
    const struct fixture *p = *state;
    struct stream_fault f = {.countdown = 1, .code = ERR_IO};
    struct stream s;
    struct err e = {0};
    assert_int_equal(stream_create(&s, p->dir, "a", NULL), 0);
    int fd = s.fd;
    s.fault = &f;
    assert_int_equal(stream_close(&s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "a: cannot close"));
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(stream_close(&s, NULL), 0);
}

static void a_full_device_says_so_and_breaks_the_stream(void **state)
{
    (void)state;
    struct stream s;
    struct err e = {0};
    assert_int_equal(stream_open(&s, AT_FDCWD, "/dev/full", NULL), 0);
    close(s.fd);
    s.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(s.fd >= 0);
    assert_int_equal(stream_write(&s, "x", 1, &e), ERR_IO);
    assert_non_null(strstr(e.text, "No space left"));
    assert_int_equal(stream_close(&s, NULL), ERR_IO);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        CASE(a_file_reads_back_with_the_digest_it_was_written_with),
        CASE(a_file_is_made_only_once_and_for_its_owner_only),
        CASE(a_missing_file_is_not_found),
        CASE(a_short_file_is_bad_data_with_its_name_and_offset),
        CASE(a_file_opened_to_read_refuses_to_be_written),
        CASE(a_fault_strikes_the_counted_call_and_leaves_the_partial_bytes),
        CASE(a_failed_sync_is_final),
        CASE(a_failed_read_gives_what_came_and_may_be_repeated),
        CASE(a_failed_close_still_closes),
        CASE(a_full_device_says_so_and_breaks_the_stream),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
