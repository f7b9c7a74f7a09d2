// SPDX-License-Identifier: Apache-2.0
// Token files: raw ids, llm.c's, and what `weft data prepare` makes; samples that overlap by one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/data/dataset.h"
#include "common/data/prepare.h"
#include "tests/unit/datafile.h"

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
                 {NULL, 0, ERR_DATA, "byte 0: the file ends here"}};
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

static void prepared_bytes_are_the_texts_own(void **state)
{
    struct datafile text;
    struct dataset ds;
    struct err e = {0};
    char to[4200];
    int32_t out[6];
    unsigned long long tokens = 0;
    (void)state;
    datafile_write(&text, "we\xff\0t.", 6);
    snprintf(to, sizeof to, "%s.tokens", text.path);
    assert_int_equal(prepare_bytes(text.path, to, &tokens, &e), 0);
    assert_int_equal(tokens, 6);
    assert_int_equal(dataset_open_tokens(&ds, NULL, to, ARRAY_U16, 5, 256, &e), 0);
    assert_int_equal(dataset_read(&ds, (uint64_t[]){0}, 1, out, NULL, &e), 0);
    assert_int_equal(out[0], 'w');
    assert_int_equal(out[2], 255);
    assert_int_equal(out[3], 0);
    assert_int_equal(out[5], '.');
    dataset_close(&ds);
    unlink(to);
    datafile_remove(&text);
    assert_int_equal(prepare_bytes(text.path, to, &tokens, &e), ERR_NOTFOUND);
    assert_int_equal(access(to, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_windows_whose_last_id_is_the_nexts_first),
        cmocka_unit_test(wrong_files_are_refused_at_their_byte),
        cmocka_unit_test(an_id_beyond_the_vocabulary_is_named_when_it_is_read),
        cmocka_unit_test(prepared_bytes_are_the_texts_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
