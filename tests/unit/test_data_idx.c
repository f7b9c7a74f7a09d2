// SPDX-License-Identifier: Apache-2.0
// idx files: what is read, what is refused and how the refusal names the place.

#include <sys/stat.h>

#include "common/data/array.h"
#include "tests/support/array_bytes.h"
#include "tests/unit/datafile.h"
#include "tests/unit/unit.h"

static const unsigned char images[] = {
    0, 0, 8, 3,             // u8, three dimensions
    0, 0, 0, 2,             // two images
    0, 0, 0, 2, 0, 0, 0, 3, // of two rows and three columns
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255,
};

static void pixels_are_read_in_place(void **state)
{
    (void)state;
    struct array a;
    assert_int_equal(parse_bytes(&a, images, sizeof images, "f", NULL), 0);
    assert_string_equal(a.format, "idx");
    assert_int_equal(a.type, ARRAY_U8);
    assert_int_equal(a.shape.n, 3);
    assert_int_equal(a.shape.dim[0], 2);
    assert_int_equal(a.shape.dim[1], 2);
    assert_int_equal(a.shape.dim[2], 3);
    assert_int_equal(a.count, 12);
    assert_ptr_equal(a.data, images + 16);
    assert_int_equal(array_int(&a, 11), 255);
    array_close(&a);
}

static void wider_elements_come_out_in_host_order(void **state)
{
    (void)state;
    static const unsigned char ints[] = {0, 0, 0x0c, 1, 0,    0,    0,    2,
                                         0, 0, 1,    2, 0xff, 0xff, 0xff, 0xfe};
    static const unsigned char reals[] = {0,    0,    0x0d, 1, 0,    0,    0, 2,
                                          0x3f, 0x80, 0,    0, 0xc0, 0x20, 0, 0};
    struct array a;
    int32_t i[2];
    float f[2];
    assert_int_equal(parse_bytes(&a, ints, sizeof ints, "f", NULL), 0);
    array_copy(&a, 0, 2, i);
    assert_int_equal(i[0], 258);
    assert_int_equal(i[1], -2);
    assert_int_equal(array_int(&a, 1), -2);
    array_close(&a);
    assert_int_equal(parse_bytes(&a, reals, sizeof reals, "f", NULL), 0);
    array_copy(&a, 0, 2, f);
    assert_true(f[0] == 1.0f && f[1] == -2.5f);
    assert_true(array_real(&a, 1) == -2.5);
    array_close(&a);
}

static void a_file_is_mapped_and_named_in_errors(void **state)
{
    (void)state;
    struct datafile f;
    struct array a;
    struct err e;
    datafile_write(&f, images, sizeof images);
    assert_int_equal(array_open(&a, f.path, &e), 0);
    assert_int_equal(array_int(&a, 0), 1);
    array_close(&a);
    assert_int_equal(truncate(f.path, 20), 0);
    assert_int_equal(array_open(&a, f.path, &e), ERR_DATA);
    assert_non_null(strstr(e.text, f.path));
    assert_non_null(strstr(e.text, "byte 20: the file ends here"));
    assert_int_equal(truncate(f.path, 0), 0);
    assert_int_equal(array_open(&a, f.path, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "the file is empty"));
    datafile_remove(&f);
    assert_int_equal(array_open(&a, f.path, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, f.path));
}

static void a_directory_and_a_pipe_are_no_data_files(void **state)
{
    (void)state;
    struct datafile f;
    struct array a;
    struct err e;
    datafile_write(&f, images, 0);
    assert_int_equal(array_open(&a, f.dir, &e), ERR_DATA);
    assert_int_equal(unlink(f.path), 0);
    assert_int_equal(mkfifo(f.path, 0600), 0);
    assert_int_equal(array_open(&a, f.path, &e), ERR_DATA); // and does not wait for a writer
    assert_non_null(strstr(e.text, "not a regular file"));
    datafile_remove(&f);
}

static void a_file_that_shrinks_under_its_reader_is_an_error(void **state)
{
    (void)state;
    struct datafile f;
    struct array a;
    struct err e;
    datafile_write(&f, images, sizeof images);
    assert_int_equal(array_open(&a, f.path, &e), 0);
    assert_int_equal(array_check(&a, &e), 0);
    assert_int_equal(truncate(f.path, 17), 0);
    assert_int_equal(array_check(&a, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "byte 17"));
    assert_non_null(strstr(e.text, f.path));
    array_close(&a);
    datafile_remove(&f);
}

// Each prefix lies in memory of exactly its length, so that the sanitizer sees a read behind it.
static void every_truncation_is_refused_at_its_byte(void **state)
{
    (void)state;
    for (size_t len = 0; len < sizeof images; len++) {
        unsigned char *part = malloc(len ? len : 1);
        char want[32];
        struct array a;
        struct err e;
        memcpy(part, images, len);
        assert_int_equal(parse_bytes(&a, part, len, "f", &e), ERR_DATA);
        snprintf(want, sizeof want, "f: byte %zu:", len < 2 ? 0 : len);
        assert_non_null(strstr(e.text, want));
        free(part);
    }
}

static void bytes_behind_the_elements_are_refused(void **state)
{
    (void)state;
    unsigned char more[sizeof images + 1] = {0};
    struct array a;
    struct err e;
    memcpy(more, images, sizeof images);
    assert_int_equal(parse_bytes(&a, more, sizeof more, "f", &e), ERR_DATA);
    assert_non_null(strstr(e.text, "asks for 12 elements"));
}

static void no_damaged_header_byte_is_believed(void **state)
{
    (void)state;
    for (size_t at = 0; at < 16; at++)
        for (int value = 0; value < 256; value++) {
            unsigned char *copy = malloc(sizeof images);
            struct array a;
            memcpy(copy, images, sizeof images);
            copy[at] = (unsigned char)value;
            int rc = parse_bytes(&a, copy, sizeof images, "f", NULL);
            assert_true((rc == 0) == (value == images[at]));
            array_close(&a);
            free(copy);
        }
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    static const uint32_t huge[8] = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
                                     0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
    // (2^16)^4 is 0 in 64 bits: a product that wraps would match an empty file.
    static const uint32_t wraps[4] = {0x10000, 0x10000, 0x10000, 0x10000};
    static const uint32_t bytes[2] = {0x80000000, 0xfffffffe};
    struct buf b = {0};
    struct array a;
    struct err e;
    idx_header(&b, 0x08, 8, huge);
    assert_int_equal(parse_bytes(&a, b.data, b.len, "f", &e), ERR_DATA);
    assert_non_null(strstr(e.text, "multiply to more than"));
    buf_reset(&b);
    idx_header(&b, 0x08, 4, wraps);
    assert_int_equal(parse_bytes(&a, b.data, b.len, "f", &e), ERR_DATA);
    assert_non_null(strstr(e.text, "multiply to more than"));
    buf_reset(&b);
    idx_header(&b, 0x0c, 2, bytes);
    assert_int_equal(parse_bytes(&a, b.data, b.len, "f", &e), ERR_DATA);
    assert_non_null(strstr(e.text, "more bytes than"));
    buf_clear(&b);
}

static void foreign_types_and_formats_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        int code;
        const char *says;
    } rows[] = {
        {"\0\0\x09\1\0\0\0\1\0", 9, ERR_UNSUPPORTED, "byte 2: idx elements are i8"},
        {"\0\0\x0b\1\0\0\0\0", 8, ERR_UNSUPPORTED, "i16"},
        {"\0\0\x0e\1\0\0\0\0", 8, ERR_UNSUPPORTED, "f64"},
        {"\0\0\x08\0", 4, ERR_DATA, "byte 3: 0 dimensions"},
        {"\0\0\x08\x09", 4, ERR_DATA, "byte 3: 9 dimensions"},
        {"\x1f\x8b\x08\0", 4, ERR_UNSUPPORTED, "gunzip"},
        {"PK\3\4....", 8, ERR_UNSUPPORTED, "npz"},
        {"plain text", 10, ERR_DATA, "f: this is text, no array"},
        {"\1\2\3\4", 4, ERR_DATA, "byte 0: neither idx"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct array a;
        struct err e;
        assert_int_equal(parse_bytes(&a, rows[i].bytes, rows[i].len, "f", &e), rows[i].code);
        assert_non_null(strstr(e.text, rows[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_are_read_in_place),
        cmocka_unit_test(wider_elements_come_out_in_host_order),
        cmocka_unit_test(a_file_is_mapped_and_named_in_errors),
        cmocka_unit_test(a_directory_and_a_pipe_are_no_data_files),
        cmocka_unit_test(a_file_that_shrinks_under_its_reader_is_an_error),
        cmocka_unit_test(every_truncation_is_refused_at_its_byte),
        cmocka_unit_test(bytes_behind_the_elements_are_refused),
        cmocka_unit_test(no_damaged_header_byte_is_believed),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(foreign_types_and_formats_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
