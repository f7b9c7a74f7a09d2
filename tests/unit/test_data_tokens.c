// SPDX-License-Identifier: Apache-2.0
// Token files: raw ids, llm.c's, npy's; samples that overlap by one.

#include "common/data/dataset.h"
#include "common/data/sampler.h"
#include "tests/unit/datafile.h"
#include "tests/unit/unit.h"

// Ten ids, 0, 100, 200, …
static void write_ids(struct datafile *f, const uint32_t header[3], size_t width, int n)
{
    struct buf b = {0};
    unsigned char zeros[1024] = {0};
    if (header) {
        memcpy(zeros, header, 12);
        buf_append(&b, (char *)zeros, sizeof zeros);
    }
    for (int i = 0; i < n; i++) {
        uint32_t id = (uint32_t)i * 100;
        buf_append(&b, (char *)&id, width); // the low bytes come first
    }
    datafile_write(f, b.len ? b.data : "", b.len);
    buf_clear(&b);
}

static void check_samples(const char *path, enum array_type type)
{
    struct dataset ds;
    struct err e = {0};
    int32_t out[8];
    if (dataset_open_tokens(&ds, NULL, path, type, 3, 1000, &e))
        fail_msg("%s", e.text);
    assert_int_equal(ds.n, 3); // nine ids and the one after them
    assert_int_equal(dataset_sample_bytes(&ds), 16);
    assert_int_equal(dataset_label_bytes(&ds), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){2, 0}, 2, out, NULL, &e), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(out[i], i < 4 ? 600 + 100 * i : 100 * (i - 4));
    dataset_close(&ds);
}

static void samples_are_windows_whose_last_id_is_the_nexts_first(void **state)
{
    static const uint32_t narrow[] = {20240520, 1, 10}, wide[] = {20240801, 7, 10};
    static const struct {
        const uint32_t *header;
        size_t width;
        enum array_type said; // what the job says; llm.c's files know better
    } cases[] = {{NULL, 2, ARRAY_U16},
                 {NULL, 4, ARRAY_U32},
                 {narrow, 2, ARRAY_U16},
                 {narrow, 2, ARRAY_U32},
                 {wide, 4, ARRAY_U16}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct datafile f;
        write_ids(&f, cases[i].header, cases[i].width, 10);
        check_samples(f.path, cases[i].said);
        datafile_remove(&f);
    }
}

static void wrong_files_are_refused_at_their_byte(void **state)
{
    static const uint32_t old[] = {20240520, 2, 10}, longer[] = {20240520, 1, 11},
                          shorter[] = {20240520, 1, 9};
    static const struct {
        const uint32_t *header;
        int n, code;
        const char *says;
    } cases[] = {{old, 10, ERR_UNSUPPORTED, "byte 4: version 2"},
                 {longer, 10, ERR_DATA, "byte 1044: the file ends here"},
                 {shorter, 10, ERR_DATA, "asks for 9 elements"},
                 {NULL, 3, ERR_DATA, "3 tokens: a sample takes 4"},
                 {NULL, 0, ERR_DATA, "byte 0: the file is empty"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct datafile f;
        struct dataset ds;
        struct err e = {0};
        write_ids(&f, cases[i].header, 2, cases[i].n);
        assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_U16, 3, 1000, &e),
                         cases[i].code);
        if (!strstr(e.text, cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        datafile_remove(&f);
    }
}

static void what_is_no_file_of_ids_is_refused_by_name(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        enum array_type type;
        int code;
        const char *says;
    } cases[] = {
        {"\x93NUMPY\1\0v\0{'des", 16, ARRAY_U16, ERR_DATA, "npy header: the file ends inside it"},
        {"\x1f\x8b\x08\0\0\0\0\0", 8, ARRAY_U16, ERR_UNSUPPORTED, "byte 0: compressed with gzip"},
        {"PK\3\4\0\0\0\0", 8, ARRAY_U32, ERR_UNSUPPORTED, "byte 0: a zip archive"},
        {"\xc6\xd7\x34\x01\3\0\0\0", 8, ARRAY_U16, ERR_UNSUPPORTED,
         "weights of llm.c's, no tokens"},
        {"\xa3\xd9\x34\x01\3\0\0\0", 8, ARRAY_U32, ERR_UNSUPPORTED,
         "weights of llm.c's, no tokens"},
        {"\x8a\xd8\x34\x01\1\0\0\0", 8, ARRAY_U16, ERR_UNSUPPORTED, "questions of llm.c's"},
        {"\x88\xd8\x34\x01\1\0\0\0", 8, ARRAY_U16, ERR_DATA,
         "byte 8: the file ends within its header of 1024"},
        {"1234567", 7, ARRAY_U16, ERR_DATA,
         "byte 7: the file ends here, not a whole number of u16: it is cut off, or data.ids is "
         "another"},
        {"123456", 6, ARRAY_U32, ERR_DATA, "byte 6: the file ends here, not a whole number of u32"},
        {"Some text.\r\n\tEn \xc3\xa9t\xc3\xa9", 21, ARRAY_TYPE_COUNT, ERR_DATA,
         "this is text, not token ids: `weft data prepare"},
        {"1\0002\0003", 5, ARRAY_TYPE_COUNT, ERR_DATA,
         "byte 5: the file ends here, not a whole number of u16"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct datafile f;
        struct dataset ds;
        struct err e = {0};
        datafile_write(&f, cases[i].bytes, cases[i].len);
        assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, cases[i].type, 3, 1000, &e),
                         cases[i].code);
        if (!strstr(e.text, cases[i].says) || !strstr(e.text, f.path))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        datafile_remove(&f);
    }
    // Ids may begin with what would be an idx or a short gzip file's first bytes.
    struct datafile f;
    struct dataset ds;
    datafile_write(&f, "\0\0\x1f\x8b\1\0\2\0", 8);
    assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_U16, 3, 65536, NULL), 0);
    dataset_close(&ds);
    datafile_remove(&f);
}

// ---- several files -----------------------------------------------------------------------------

// Files of one folder, each of the ids [from, from + n).
struct shards {
    struct datafile base; // its own file is no shard
    int n;
    char path[8][340];
};

static void shards_begin(struct shards *s)
{
    *s = (struct shards){0};
    datafile_write(&s->base, "", 0);
}

static void shards_add(struct shards *s, const char *name, int from, int n)
{
    char path[340];
    snprintf(path, sizeof path, "%s/%s", s->base.dir, name);
    memcpy(s->path[s->n], path, sizeof path);
    FILE *f = fopen(s->path[s->n++], "wb");
    assert_non_null(f);
    for (int i = from; i < from + n; i++) {
        uint16_t id = (uint16_t)i;
        assert_int_equal(fwrite(&id, sizeof id, 1, f), 1);
    }
    fclose(f);
}

static void shards_remove(struct shards *s)
{
    for (int i = 0; i < s->n; i++)
        unlink(s->path[i]);
    datafile_remove(&s->base);
}

static int shards_open(const struct shards *s, const char *pattern, struct dataset *ds,
                       struct err *e)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", s->base.dir, pattern);
    return dataset_open_tokens(ds, NULL, path, ARRAY_U16, 3, 1000, e);
}

// Windows of three and one: 10 ids hold 3, 4 hold 1, 3 hold none, 8 hold 2.
static void a_pattern_is_its_files_in_the_order_of_their_names(void **state)
{
    static const int first[] = {100, 103, 106, 200, 400, 403};
    struct shards s;
    struct dataset ds;
    int32_t out[4];
    (void)state;
    shards_begin(&s);
    shards_add(&s, "train-10.bin", 300, 3);
    shards_add(&s, "train-01.bin", 200, 4);
    shards_add(&s, "train-00.bin", 100, 10);
    shards_add(&s, "train-11.bin", 400, 8);
    shards_add(&s, "val-00.bin", 500, 9);
    shards_add(&s, ".train-00.bin", 600, 9);
    assert_int_equal(shards_open(&s, "train-*.bin", &ds, NULL), 0);
    assert_int_equal(ds.nfiles, 4);
    assert_int_equal(ds.n, 6);
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(dataset_read(&ds, &i, 1, out, NULL, NULL), 0);
        for (int k = 0; k < 4; k++)
            assert_int_equal(out[k], first[i] + k);
    }
    assert_int_equal(dataset_read(&ds, (uint64_t[]){5}, 1, out, NULL, NULL), 0);
    assert_int_equal(out[3], 406);
    dataset_close(&ds);
    assert_int_equal(shards_open(&s, "train-[0]?.bin", &ds, NULL), 0);
    assert_int_equal(ds.n, 4);
    dataset_close(&ds);
    shards_remove(&s);
}

static void a_pattern_that_cannot_be_says_why(void **state)
{
    struct shards s;
    struct dataset ds;
    struct err e = {0};
    (void)state;
    shards_begin(&s);
    shards_add(&s, "a[1].bin", 7, 4);
    shards_add(&s, "b1.bin", 8, 3);
    shards_add(&s, "b2.bin", 8, 2);
    assert_int_equal(shards_open(&s, "c*.bin", &ds, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/c*.bin: no file matches"));
    assert_int_equal(shards_open(&s, "*/x.bin", &ds, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "a pattern stands in a folder's name"));
    assert_int_equal(shards_open(&s, "none/*.bin", &ds, &e), ERR_NOTFOUND);
    assert_int_equal(shards_open(&s, "b*.bin", &ds, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "b1.bin and 1 more files: none has the 4 tokens"));
    assert_int_equal(shards_open(&s, "a[1].bin", &ds, &e), 0); // called like the pattern
    assert_int_equal(ds.n, 1);
    dataset_close(&ds);
    shards_add(&s, "b3.bin", 0, 0);
    assert_int_equal(shards_open(&s, "b*.bin", &ds, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "b3.bin: byte 0: the file is empty"));
    shards_remove(&s);
}

static void a_pattern_stays_beneath_its_root(void **state)
{
    struct shards s;
    struct dataset ds;
    struct err e = {0};
    (void)state;
    shards_begin(&s);
    shards_add(&s, "t0", 7, 4);
    shards_add(&s, "t1", 7, 4);
    assert_int_equal(dataset_open_tokens(&ds, s.base.dir, "t*", ARRAY_U16, 3, 1000, &e), 0);
    assert_int_equal(ds.n, 2);
    dataset_close(&ds);
    assert_int_equal(dataset_open_tokens(&ds, s.base.dir, "../*", ARRAY_U16, 3, 1000, &e),
                     ERR_INVALID);
    assert_int_equal(dataset_open_tokens(&ds, s.base.dir, "/etc/pass*", ARRAY_U16, 3, 1000, &e),
                     ERR_INVALID);
    shards_remove(&s);
}

// Each window of each file once an epoch, in another order in the next; a rank that begins in the
// middle reads on as one that was there from the start.
static void an_epoch_takes_every_window_of_every_file_once(void **state)
{
    struct shards s;
    struct dataset ds;
    uint64_t order[2][12];
    (void)state;
    shards_begin(&s);
    shards_add(&s, "t0", 100, 16); // 5 windows
    shards_add(&s, "t1", 200, 13); // 4
    shards_add(&s, "t2", 300, 10); // 3
    assert_int_equal(shards_open(&s, "t?", &ds, NULL), 0);
    assert_int_equal(ds.n, 12);
    const struct sampler sampler = {.n = ds.n, .batch = 4, .seed = 1};
    for (int epoch = 0; epoch < 2; epoch++) {
        bool seen[1000] = {false};
        for (uint64_t step = 0; step < 3; step++)
            sampler_ids(&sampler, (uint64_t)epoch * 3 + step, 0, 4, order[epoch] + step * 4);
        for (int i = 0; i < 12; i++) {
            int32_t out[4];
            assert_int_equal(dataset_read(&ds, &order[epoch][i], 1, out, NULL, NULL), 0);
            assert_int_equal(out[0] % 100 % 3, 0);
            assert_false(seen[out[0]]);
            seen[out[0]] = true;
        }
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    uint64_t again[2];
    sampler_ids(&sampler, 4, 2, 2, again);
    assert_memory_equal(again, order[1] + 6, sizeof again);
    dataset_close(&ds);
    shards_remove(&s);
}

static void a_shard_that_is_cut_while_in_use_is_named(void **state)
{
    struct shards s;
    struct dataset ds;
    struct err e = {0};
    int32_t out[4];
    (void)state;
    shards_begin(&s);
    shards_add(&s, "t0", 100, 10);
    shards_add(&s, "t1", 200, 10);
    assert_int_equal(shards_open(&s, "t?", &ds, NULL), 0);
    assert_int_equal(truncate(s.path[1], 6), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0}, 1, out, NULL, &e), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0, 4}, 2, (int32_t[8]){0}, NULL, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "t1: byte 6: the file was cut here"));
    dataset_close(&ds);
    shards_remove(&s);
}

static void an_id_beyond_the_vocabulary_is_named_when_it_is_read(void **state)
{
    struct datafile f;
    struct dataset ds;
    struct err e = {0};
    int32_t out[4];
    (void)state;
    write_ids(&f, NULL, 2, 10);
    assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_U16, 3, 501, &e), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0}, 1, out, NULL, &e), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){1}, 1, out, NULL, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "byte 12: token 600 is not in 0 … 500 (model.vocab: 501)"));
    dataset_close(&ds);
    datafile_remove(&f);
}

static void write_npy(struct datafile *f, const char *dict, const void *ids, size_t len)
{
    struct buf b = {0};
    npy_header(&b, 1, dict);
    buf_append(&b, ids, len);
    datafile_write(f, b.data, b.len);
    buf_clear(&b);
}

static void an_npy_row_of_u16_or_u32_is_tokens(void **state)
{
    static const uint32_t wide[] = {7, 70000, 9, 3};
    static const uint16_t narrow[] = {7, 700, 9, 3};
    struct datafile f;
    struct dataset ds;
    int32_t out[4];
    (void)state;
    write_npy(&f, "{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }", wide, sizeof wide);
    assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_TYPE_COUNT, 3, 70001, NULL), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0}, 1, out, NULL, NULL), 0);
    assert_int_equal(out[1], 70000);
    dataset_close(&ds);
    datafile_remove(&f);
    write_npy(&f, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", narrow,
              sizeof narrow);
    assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_U32, 3, 1000, NULL), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0}, 1, out, NULL, NULL), 0);
    assert_int_equal(out[1], 700);
    dataset_close(&ds);
    datafile_remove(&f);
}

static void an_npy_file_of_another_shape_is_refused(void **state)
{
    static const uint32_t words[] = {7, 8, 9, 3};
    static const char *const dicts[] = {
        "{'descr': '<u4', 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct datafile f;
        struct dataset ds;
        struct err e = {0};
        write_npy(&f, dicts[i], words, sizeof words);
        assert_int_equal(dataset_open_tokens(&ds, NULL, f.path, ARRAY_TYPE_COUNT, 3, 100, &e),
                         ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "token ids are one row of u16 or u32"));
        datafile_remove(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_windows_whose_last_id_is_the_nexts_first),
        cmocka_unit_test(wrong_files_are_refused_at_their_byte),
        cmocka_unit_test(what_is_no_file_of_ids_is_refused_by_name),
        cmocka_unit_test(a_pattern_is_its_files_in_the_order_of_their_names),
        cmocka_unit_test(a_pattern_that_cannot_be_says_why),
        cmocka_unit_test(a_pattern_stays_beneath_its_root),
        cmocka_unit_test(an_epoch_takes_every_window_of_every_file_once),
        cmocka_unit_test(a_shard_that_is_cut_while_in_use_is_named),
        cmocka_unit_test(an_id_beyond_the_vocabulary_is_named_when_it_is_read),
        cmocka_unit_test(an_npy_row_of_u16_or_u32_is_tokens),
        cmocka_unit_test(an_npy_file_of_another_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
