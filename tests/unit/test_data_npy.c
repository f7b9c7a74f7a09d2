// SPDX-License-Identifier: Apache-2.0
// npy files: what is read, what is refused and how the refusal names the place.

#include <math.h>

#include "common/data/array.h"
#include "tests/support/array_bytes.h"
#include "tests/unit/datafile.h"
#include "tests/unit/unit.h"

#define DICT(descr, order, shape) \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

// A file of version `major` with this dict and `len` bytes of elements.
static struct buf file(int major, const char *dict, const void *elements, size_t len)
{
    struct buf b = {0};
    npy_header(&b, major, dict);
    buf_append(&b, elements, len);
    return b;
}

static void every_type_is_read_in_both_versions(void **state)
{
    (void)state;
    static const struct {
        const char *dict;
        const char *elements;
        size_t len;
        enum array_type type;
        double second;
    } rows[] = {
        {DICT("'|u1'", "False", "(3,)"), "\1\xfe\3", 3, ARRAY_U8, 254},
        {DICT("'<i4'", "False", "(2,)"), "\1\0\0\0\xfe\xff\xff\xff", 8, ARRAY_I32, -2},
        {DICT("'<i8'", "False", "(2,)"), "\1\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0", 16, ARRAY_I64,
         4294967296.0},
        {DICT("'<f4'", "False", "(1, 2)"), "\0\0\x80\x3f\0\0\x20\xc0", 8, ARRAY_F32, -2.5},
        {DICT("'<u2'", "False", "(2,)"), "\1\0\xfe\xff", 4, ARRAY_U16, 65534},
        {DICT("'<u4'", "False", "(2,)"), "\1\0\0\0\xfe\xff\xff\xff", 8, ARRAY_U32, 4294967294.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int major = 1; major <= 2; major++) {
            struct buf b = file(major, rows[i].dict, rows[i].elements, rows[i].len);
            struct array a;
            assert_int_equal(parse_bytes(&a, b.data, b.len, "f", NULL), 0);
            assert_string_equal(a.format, "npy");
            assert_int_equal(a.type, rows[i].type);
            assert_int_equal(a.count, rows[i].len / array_type_size(rows[i].type));
            assert_int_equal(a.offset % 64, 0);
            assert_true(array_real(&a, 1) == rows[i].second);
            array_close(&a);
            buf_clear(&b);
        }
}

static void a_file_is_mapped(void **state)
{
    (void)state;
    struct buf b = file(1, DICT("'<f4'", "False", "(2, 1)"), "\0\0\x80\x3f\0\0\x20\xc0", 8);
    struct datafile f;
    struct array a;
    float v[2];
    datafile_write(&f, b.data, b.len);
    assert_int_equal(array_open(&a, f.path, NULL), 0);
    array_copy(&a, 0, 2, v);
    assert_true(v[0] == 1.0f && v[1] == -2.5f);
    array_close(&a);
    datafile_remove(&f);
    buf_clear(&b);
}

static void elements_may_lie_at_any_offset(void **state)
{
    (void)state;
    // A header of 61 bytes puts the elements at byte 71: legal, though numpy pads.
    static const char text[] = "{'shape':(1,1,2),\"fortran_order\":False,'descr':\"<f4\"}        ";
    struct buf b = {0};
    struct array a;
    buf_append(&b, "\x93NUMPY\1\0", 8);
    buf_putc(&b, (char)(sizeof text - 1));
    buf_putc(&b, 0);
    buf_puts(&b, text);
    buf_append(&b, "\0\0\x80\x3f\0\0\x20\xc0", 8);
    assert_int_equal(parse_bytes(&a, b.data, b.len, "f", NULL), 0);
    assert_int_not_equal(a.offset % 4, 0);
    assert_int_equal(a.shape.n, 3);
    assert_true(array_real(&a, 0) == 1.0 && array_real(&a, 1) == -2.5);
    array_close(&a);
    buf_clear(&b);
}

static void a_single_number_has_no_dimensions(void **state)
{
    (void)state;
    struct buf b = file(1, DICT("'|u1'", "False", "()"), "\7", 1);
    struct array a;
    assert_int_equal(parse_bytes(&a, b.data, b.len, "f", NULL), 0);
    assert_int_equal(a.shape.n, 0);
    assert_int_equal(a.count, 1);
    assert_int_equal(array_int(&a, 0), 7);
    array_close(&a);
    buf_clear(&b);
}

static void what_is_not_read_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *dict;
        int code;
        const char *says;
    } rows[] = {
        {DICT("'>f4'", "False", "(1,)"), ERR_UNSUPPORTED, "byte 20: big-endian elements ('>f4')"},
        {DICT("'|O'", "False", "(1,)"), ERR_UNSUPPORTED, "Python objects"},
        {DICT("'<U3'", "False", "(1,)"), ERR_UNSUPPORTED, "strings"},
        {DICT("'<f8'", "False", "(1,)"), ERR_UNSUPPORTED, "elements of this type ('<f8')"},
        {DICT("[('a', '<f4')]", "False", "(1,)"), ERR_UNSUPPORTED, "structured"},
        {DICT("'<f4'", "True", "(1,)"), ERR_UNSUPPORTED, "byte 44: Fortran order"},
        {DICT("'<f4'", "Maybe", "(1,)"), ERR_DATA, "byte 44: npy header: True or False"},
        {DICT("'<f4'", "False", "(1)"), ERR_DATA, "needs a comma"},
        {DICT("'<f4'", "False", "(-1,)"), ERR_DATA, "a size is expected"},
        {DICT("'<f4'", "False", "(,)"), ERR_DATA, "a size is expected"},
        {DICT("'<f4'", "False", "(1 2)"), ERR_DATA, "',' or ')'"},
        {DICT("'<f4'", "False", "(1, 2"), ERR_DATA, "a size is expected"},
        {DICT("'<f4'", "False", "1"), ERR_DATA, "a tuple"},
        {DICT("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), ERR_DATA, "more than 8 dimensions"},
        {DICT("'<f4'", "False", "(9223372036854775808,)"), ERR_DATA, "more than 2^63"},
        {DICT("'<f4'", "False", "(9223372036854775807,)"), ERR_DATA, "more bytes than 2^64"},
        {DICT("'<f4'", "False", "(4294967296, 4294967296)"), ERR_DATA, "multiply to more"},
        {DICT("'<f4", "False", "(1,)"), ERR_UNSUPPORTED, "not read"},
        {DICT("4", "False", "(1,)"), ERR_DATA, "byte 20: npy header: a quoted string"},
        {"{'descr': '<f4', 'shape': (1,)}", ERR_DATA, "key 'fortran_order' is missing"},
        {"{'descr': '<f4', 'descr': '<f4'}", ERR_DATA, "byte 27: npy header: second key 'descr'"},
        {"{'descr': '<f4', 'colour': 1}", ERR_DATA, "unknown key 'colour'"},
        {"{'descr' '<f4'}", ERR_DATA, "':' is expected"},
        {"{'descr': '<f4' 'shape': (1,)}", ERR_DATA, "',' or '}'"},
        {"{'descr'", ERR_DATA, "':' is expected"},
        {"('descr',)", ERR_DATA, "byte 10: npy header: '{'"},
        {DICT("'<f4'", "False", "(1,)") " x", ERR_DATA, "text behind"},
        {"", ERR_DATA, "'{' is expected"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = file(1, rows[i].dict, "\0\0\0\0", 4);
        struct array a;
        struct err e;
        int rc = parse_bytes(&a, b.data, b.len, "f", &e);
        if (rc != rows[i].code || !strstr(e.text, rows[i].says))
            fail_msg("%s\n  gives %d: %s", rows[i].dict, rc, rc ? e.text : "");
        buf_clear(&b);
    }
}

static void versions_and_header_lengths_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *says;
    } rows[] = {
        {"\x93NUMPY\3\0\0\0\0\0", 12, "byte 6: npy version 3.0"},
        {"\x93NUMPY\1\1\0\0", 10, "byte 6: npy version 1.1"},
        {"\x93NUMPY\2\0\xff\xff\xff\xff", 12, "byte 8: npy header: a header of more than 64 KiB"},
        {"\x93NUMPY\1\0\x10\0{}", 12, "byte 12: npy header: the file ends inside it"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct array a;
        struct err e;
        assert_int_not_equal(parse_bytes(&a, rows[i].bytes, rows[i].len, "f", &e), 0);
        assert_non_null(strstr(e.text, rows[i].says));
    }
}

// Each prefix lies in memory of exactly its length, so that the sanitizer sees a read behind it.
static void every_truncation_is_refused(void **state)
{
    (void)state;
    for (int major = 1; major <= 2; major++) {
        struct buf b = file(major, DICT("'<i4'", "False", "(2,)"), "\1\0\0\0\2\0\0\0", 8);
        for (size_t len = 0; len < b.len; len++) {
            unsigned char *part = malloc(len ? len : 1);
            char want[32];
            struct array a;
            struct err e;
            memcpy(part, b.data, len);
            assert_int_equal(parse_bytes(&a, part, len, "f", &e), ERR_DATA);
            snprintf(want, sizeof want, "f: byte %zu:", len < 6 ? 0 : len);
            assert_non_null(strstr(e.text, want));
            free(part);
        }
        buf_clear(&b);
    }
}

// A damaged header is refused or means a file of the very same length, as '<i4', '<u4' and '<f4' do, two
// kinds of blank, or a blank for the last comma. What is accepted is read under the sanitizer.
static void no_damaged_header_byte_reaches_beyond_the_file(void **state)
{
    (void)state;
    struct buf b = file(1, DICT("'<i4'", "False", "(3, 2)"), (char[24]){0}, 24);
    int accepted = 0;
    for (size_t at = 0; at < b.len - 24; at++)
        for (int value = 0; value < 256; value++) {
            if (value == (unsigned char)b.data[at])
                continue;
            unsigned char *copy = malloc(b.len);
            struct array a;
            memcpy(copy, b.data, b.len);
            copy[at] = (unsigned char)value;
            if (parse_bytes(&a, copy, b.len, "f", NULL) == 0) {
                bool blank = b.data[at] == ' ' || b.data[at] == '\n' || b.data[at] == ',';
                assert_true(blank || (b.data[at] == 'i' && strchr("fu", value)));
                assert_int_equal(a.count, 6);
                assert_true(isfinite(array_real(&a, 0)) && isfinite(array_real(&a, 5)));
                array_close(&a);
                accepted++;
            }
            free(copy);
        }
    assert_true(accepted > 0);
    buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read_in_both_versions),
        cmocka_unit_test(a_file_is_mapped),
        cmocka_unit_test(elements_may_lie_at_any_offset),
        cmocka_unit_test(a_single_number_has_no_dimensions),
        cmocka_unit_test(what_is_not_read_is_refused_by_name),
        cmocka_unit_test(versions_and_header_lengths_are_checked),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(no_damaged_header_byte_reaches_beyond_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
