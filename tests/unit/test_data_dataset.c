// SPDX-License-Identifier: Apache-2.0
// Labelled data sets: what is checked at the open, what a gather returns, and what happens to a
// gather whose files are changed under it.

#include "common/data/dataset.h"
#include "tests/unit/datafile.h"
#include "tests/unit/unit.h"

// Five images of 2 × 2 pixels; pixel p of image i is 10·i + p. Labels 3, 0, 2, 1, 3.
struct files {
    struct datafile images, labels;
};

static void write_idx(struct datafile *f, unsigned char type, int ndim, const uint32_t *dims,
                      const void *elements, size_t len)
{
    struct buf b = {0};
    idx_header(&b, type, ndim, dims);
    buf_append(&b, elements, len);
    datafile_write(f, b.data, b.len);
    buf_clear(&b);
}

static void write_npy(struct datafile *f, const char *dict, const void *elements, size_t len)
{
    struct buf b = {0};
    npy_header(&b, 1, dict);
    buf_append(&b, elements, len);
    datafile_write(f, b.data, b.len);
    buf_clear(&b);
}

static void write_images(struct datafile *f)
{
    unsigned char pixels[20];
    for (int i = 0; i < 20; i++)
        pixels[i] = (unsigned char)(10 * (i / 4) + i % 4);
    write_idx(f, 0x08, 3, (uint32_t[]){5, 2, 2}, pixels, sizeof pixels);
}

static int setup(void **state)
{
    struct files *f = calloc(1, sizeof *f);
    write_images(&f->images);
    write_idx(&f->labels, 0x08, 1, (uint32_t[]){5}, "\3\0\2\1\3", 5);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct files *f = *state;
    datafile_remove(&f->images);
    datafile_remove(&f->labels);
    free(f);
    return 0;
}

static void a_gather_returns_the_samples_asked_for_in_their_order(void **state)
{
    struct files *f = *state;
    struct dataset ds;
    unsigned char pixels[12];
    int32_t labels[3];
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, f->labels.path, 4, NULL), 0);
    assert_int_equal(ds.n, 5);
    assert_int_equal(ds.features, 4);
    assert_int_equal(ds.dtype, DT_U8);
    assert_int_equal(dataset_sample_bytes(&ds), 4);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){4, 0, 2}, 3, pixels, labels, NULL), 0);
    assert_memory_equal(pixels, "\50\51\52\53\0\1\2\3\24\25\26\27", 12);
    assert_int_equal(labels[0], 3);
    assert_int_equal(labels[1], 3);
    assert_int_equal(labels[2], 2);
    dataset_close(&ds);
}

static void f32_images_and_i64_labels_come_from_npy(void **state)
{
    (void)state;
    struct datafile images, labels;
    struct dataset ds;
    float pixels[2];
    int32_t label;
    write_npy(&images, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }",
              (float[]){0.5f, 1.5f, -2.0f, 3.0f}, 16);
    write_npy(&labels, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
              (int64_t[]){1, 0}, 16);
    assert_int_equal(dataset_open(&ds, NULL, images.path, labels.path, 2, NULL), 0);
    assert_int_equal(ds.dtype, DT_F32);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){1}, 1, pixels, &label, NULL), 0);
    assert_true(pixels[0] == -2.0f && pixels[1] == 3.0f);
    assert_int_equal(label, 0);
    dataset_close(&ds);
    datafile_remove(&images);
    datafile_remove(&labels);
}

static void a_label_out_of_range_is_found_at_the_open(void **state)
{
    struct files *f = *state;
    struct dataset ds;
    struct err e;
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, f->labels.path, 3, &e), ERR_DATA);
    assert_non_null(strstr(e.text, f->labels.path));
    assert_non_null(strstr(e.text, "byte 8: label 3 of sample 0"));

    struct datafile negative;
    write_npy(&negative, "{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }",
              (int32_t[]){0, 1, 2, 3, -1}, 20);
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, negative.path, 4, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "byte 144: label -1 of sample 4"));
    datafile_remove(&negative);
}

static void files_that_do_not_belong_together_are_refused(void **state)
{
    struct files *f = *state;
    struct datafile four, square, none;
    struct dataset ds;
    struct err e;
    write_idx(&four, 0x08, 1, (uint32_t[]){4}, "\0\0\0\0", 4);
    write_idx(&square, 0x08, 2, (uint32_t[]){5, 1}, "\0\0\0\0\0", 5);
    write_idx(&none, 0x08, 3, (uint32_t[]){0, 2, 2}, "", 0);
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, four.path, 4, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "5 images"));
    assert_non_null(strstr(e.text, "4 labels"));
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, square.path, 4, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "2 dimensions"));
    assert_int_equal(dataset_open(&ds, NULL, none.path, f->labels.path, 4, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "no samples"));
    datafile_remove(&four);
    datafile_remove(&square);
    datafile_remove(&none);
}

static void types_that_cannot_be_images_or_labels_are_refused(void **state)
{
    struct files *f = *state;
    struct datafile ints, reals;
    struct dataset ds;
    struct err e;
    write_idx(&ints, 0x0c, 1, (uint32_t[]){5}, (char[20]){0}, 20);
    write_idx(&reals, 0x0d, 1, (uint32_t[]){5}, (char[20]){0}, 20);
    assert_int_equal(dataset_open(&ds, NULL, ints.path, f->labels.path, 4, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "images of i32"));
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, reals.path, 4, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "labels of f32"));
    datafile_remove(&ints);
    datafile_remove(&reals);
}

static void a_missing_label_file_leaves_nothing_open(void **state)
{
    struct files *f = *state;
    struct dataset ds;
    struct err e;
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, "/nonexistent/labels", 4, &e),
                     ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/nonexistent/labels"));
    assert_false(ds.images.mapped);
}

// Without the check the read of the lost page would end the process with SIGBUS.
static void a_file_cut_while_in_use_fails_the_gather(void **state)
{
    struct files *f = *state;
    struct dataset ds;
    struct err e;
    unsigned char pixels[4];
    int32_t label;
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, f->labels.path, 4, NULL), 0);
    assert_int_equal(truncate(f->labels.path, 0), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){1}, 1, pixels, &label, &e), ERR_DATA);
    assert_non_null(strstr(e.text, f->labels.path));
    assert_int_equal(truncate(f->images.path, 0), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){1}, 1, pixels, &label, &e), ERR_DATA);
    assert_non_null(strstr(e.text, f->images.path));
    dataset_close(&ds);
}

static void a_label_overwritten_while_in_use_fails_the_gather(void **state)
{
    struct files *f = *state;
    struct dataset ds;
    struct err e;
    unsigned char pixels[4];
    int32_t label;
    assert_int_equal(dataset_open(&ds, NULL, f->images.path, f->labels.path, 4, NULL), 0);
    FILE *out = fopen(f->labels.path, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, 8 + 2, SEEK_SET), 0);
    assert_int_equal(fputc(9, out), 9);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){2}, 1, pixels, &label, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "byte 10: label 9 of sample 2"));
    dataset_close(&ds);
}

#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FILES(a_gather_returns_the_samples_asked_for_in_their_order),
        cmocka_unit_test(f32_images_and_i64_labels_come_from_npy),
        WITH_FILES(a_label_out_of_range_is_found_at_the_open),
        WITH_FILES(files_that_do_not_belong_together_are_refused),
        WITH_FILES(types_that_cannot_be_images_or_labels_are_refused),
        WITH_FILES(a_missing_label_file_leaves_nothing_open),
        WITH_FILES(a_file_cut_while_in_use_fails_the_gather),
        WITH_FILES(a_label_overwritten_while_in_use_fails_the_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
