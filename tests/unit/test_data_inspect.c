// SPDX-License-Identifier: Apache-2.0
// `weft data inspect`: what it finds in a file, as a struct, as text and as JSON.

#include <math.h>

#include "common/data/inspect.h"
#include "tests/unit/datafile.h"
#include "tests/unit/unit.h"

static void write_labels(struct datafile *f)
{
    struct buf b = {0};
    idx_header(&b, 0x08, 1, (uint32_t[]){6});
    buf_append(&b, "\3\0\3\1\3\2", 6);
    datafile_write(f, b.data, b.len);
    buf_clear(&b);
}

static void write_reals(struct datafile *f, const float *v, const char *shape, size_t n)
{
    struct buf b = {0};
    char dict[100];
    snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    npy_header(&b, 1, dict);
    buf_append(&b, v, n * sizeof *v);
    datafile_write(f, b.data, b.len);
    buf_clear(&b);
}

// The JSON of one file, parsed again; `a` keeps it.
static const struct json *as_json(struct arena *a, const struct inspect *in)
{
    struct buf b = {0};
    struct json_out w;
    struct json *top = NULL;
    json_out_init(&w, &b);
    inspect_json(in, NULL, &w);
    json_out_clear(&w);
    assert_int_equal(json_parse(a, buf_str(&b), b.len, &top, NULL), 0);
    buf_clear(&b);
    return top;
}

static void labels_are_counted_by_class(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    write_labels(&f);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, NULL), 0);
    assert_int_equal(in.classes, 4);
    assert_int_equal(in.histogram[0], 1);
    assert_int_equal(in.histogram[3], 3);
    assert_true(in.min == 0 && in.max == 3 && in.mean == 2);
    struct buf text = {0};
    inspect_text(&in, &text);
    assert_non_null(strstr(text.data, f.path));
    assert_non_null(strstr(text.data, "idx, u8, shape [6]"));
    assert_non_null(strstr(text.data, "min 0, max 3, mean 2"));
    assert_non_null(strstr(text.data, "4: 0×1 1×1 2×1 3×3"));
    buf_clear(&text);
    inspect_close(&in);
    datafile_remove(&f);
}

static void json_holds_every_key(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    struct arena a;
    arena_init(&a);
    write_labels(&f);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, NULL), 0);
    const struct json *o = as_json(&a, &in);
    assert_string_equal(json_get(o, "path")->string, f.path);
    assert_string_equal(json_get(o, "format")->string, "idx");
    assert_string_equal(json_get(o, "dtype")->string, "u8");
    assert_int_equal(json_get(o, "shape")->count, 1);
    assert_int_equal(json_get(o, "shape")->first->integer, 6);
    assert_int_equal(json_get(o, "bytes")->integer, 14);
    assert_int_equal(json_get(o, "offset")->integer, 8);
    assert_int_equal(json_get(o, "count")->integer, 6);
    assert_true(json_get(o, "mean")->number == 2);
    assert_int_equal(json_get(o, "nonfinite_values")->integer, 0);
    assert_int_equal(json_get(o, "classes")->count, 4);
    assert_int_equal(json_get(o, "classes")->first->integer, 1);
    inspect_close(&in);
    arena_clear(&a);
    datafile_remove(&f);
}

static void a_file_without_a_header_is_what_it_is_said_to_be(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    struct err e = {0};
    struct buf text = {0};
    datafile_write(&f, "\3\0\1\2\377\377", 6); // 3, 513, 65535
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "token ids with --ids"));
    assert_int_equal(inspect_open(&in, f.path, ARRAY_U16, &e), 0);
    assert_true(in.min == 3 && in.max == 65535 && in.array.count == 3);
    inspect_text(&in, &text);
    assert_non_null(strstr(text.data, "raw, u16, shape [3]"));
    buf_clear(&text);
    inspect_close(&in);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_U32, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "byte 6"));
    datafile_remove(&f);
}

static void tokens_have_no_classes(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    struct buf text = {0};
    datafile_write(&f, "a\0b\0", 4);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_U16, NULL), 0);
    assert_int_equal(in.classes, 0);
    inspect_text(&in, &text);
    assert_null(strstr(text.data, "classes"));
    buf_clear(&text);
    inspect_close(&in);
    datafile_remove(&f);
}

static void values_that_are_not_finite_are_counted_apart(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    write_reals(&f, (float[]){1, NAN, -3, INFINITY}, "(2, 2)", 4);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, NULL), 0);
    assert_int_equal(in.finite, 2);
    assert_true(in.min == -3 && in.max == 1 && in.mean == -1);
    assert_int_equal(in.classes, 0);
    struct buf text = {0};
    inspect_text(&in, &text);
    assert_non_null(strstr(text.data, "2 values are not finite"));
    buf_clear(&text);
    inspect_close(&in);
    datafile_remove(&f);
}

static void a_file_without_a_finite_value_has_no_range(void **state)
{
    (void)state;
    struct datafile f;
    struct inspect in;
    struct arena a;
    arena_init(&a);
    write_reals(&f, (float[]){NAN}, "(1,)", 1);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, NULL), 0);
    const struct json *o = as_json(&a, &in);
    assert_int_equal(json_get(o, "min")->type, JSON_NULL);
    assert_int_equal(json_get(o, "mean")->type, JSON_NULL);
    assert_int_equal(json_get(o, "classes")->type, JSON_NULL);
    assert_int_equal(json_get(o, "nonfinite_values")->integer, 1);
    inspect_close(&in);
    arena_clear(&a);
    datafile_remove(&f);
}

static void a_row_of_large_numbers_is_not_taken_for_labels(void **state)
{
    (void)state;
    struct buf b = {0};
    struct datafile f;
    struct inspect in;
    npy_header(&b, 1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }");
    buf_append(&b, (int32_t[]){0, INSPECT_MAX_CLASSES}, 8);
    datafile_write(&f, b.data, b.len);
    assert_int_equal(inspect_open(&in, f.path, ARRAY_TYPE_COUNT, NULL), 0);
    assert_int_equal(in.classes, 0);
    assert_true(in.max == INSPECT_MAX_CLASSES);
    inspect_close(&in);
    datafile_remove(&f);
    buf_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_counted_by_class),
        cmocka_unit_test(json_holds_every_key),
        cmocka_unit_test(a_file_without_a_header_is_what_it_is_said_to_be),
        cmocka_unit_test(tokens_have_no_classes),
        cmocka_unit_test(values_that_are_not_finite_are_counted_apart),
        cmocka_unit_test(a_file_without_a_finite_value_has_no_range),
        cmocka_unit_test(a_row_of_large_numbers_is_not_taken_for_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
