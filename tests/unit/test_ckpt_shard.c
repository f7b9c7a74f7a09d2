// SPDX-License-Identifier: Apache-2.0
// Shard files: what is written is a safetensors file, and only a whole one is read.
#include "tests/support/digest.h"
#include "tests/support/find_slice.h"
#include "tests/unit/ckpt_fixture.h"

static const struct shard_slice slices[] = {
    {.name = "w", .dtype = DT_F32, .shape = {2, {3, 5}}},
    {.name = "ids", .dtype = DT_U8, .shape = {1, {7}}},
    {.name = "s", .dtype = DT_F32, .shape = {0, {0}}},
};

static void read_file(const char *path, struct buf *file)
{
    FILE *f = fopen(path, "rb");
    char bytes[4096];
    size_t n;
    assert_non_null(f);
    while ((n = fread(bytes, 1, sizeof bytes, f)))
        buf_append(file, bytes, n);
    fclose(f);
}

// A shard file of the three slices, as it was written, and the digests that writing gave: of the
// head, then of each slice.
struct written {
    struct arena a;
    struct buf file;
    struct hash128 digest[4];
};

static void write_shard(struct written *w)
{
    unsigned char bytes[60];
    struct shard_plan p;
    struct scratch dir;
    struct stream s;
    struct err e = {0};
    struct shard_meta meta[] = {{"format", "weft"}, {"note", "a \"quoted\" one"}};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    *w = (struct written){0};
    arena_init(&w->a);
    assert_int_equal(shard_plan_make(&w->a, slices, 3, meta, 2, &p, &e), 0);
    scratch_make(&dir);
    assert_int_equal(stream_create(&s, AT_FDCWD, scratch_path(&dir, "shard"), &e), 0);
    assert_int_equal(shard_write_head(&s, &p, &w->digest[0], &e), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(shard_write_slice(&s, &p, i, bytes, &w->digest[1 + i], &e), 0);
    assert_int_equal(stream_close(&s, &e), 0);
    read_file(scratch_path(&dir, "shard"), &w->file);
    scratch_remove(&dir);
    assert_int_equal(w->file.len, p.bytes);
    shard_plan_clear(&p);
}

static void clear_shard(struct written *w)
{
    buf_clear(&w->file);
    arena_clear(&w->a);
}

static void what_is_written_reads_back_with_its_digests(void **state)
{
    (void)state;
    struct written f;
    struct shard_plan p;
    struct err e = {0};
    write_shard(&f);
    assert_int_equal(shard_parse(&f.a, f.file.data, f.file.len, f.file.len, SHARD_OURS, &p, &e), 0);
    assert_int_equal(p.n, 3);
    const struct shard_slice *w = find_slice(&p, "w"), *ids = find_slice(&p, "ids");
    assert_int_equal(w->at % SHARD_ALIGN, 0);
    assert_int_equal(w->bytes, 60);
    assert_int_equal(ids->at, w->at + 60);
    assert_int_equal(ids->bytes, 7);
    assert_int_equal(find_slice(&p, "s")->bytes, 4);
    assert_null(find_slice(&p, "x"));
    struct hash128 head = digest_bytes(f.file.data, w->at),
                   body = digest_bytes(f.file.data + w->at, 60);
    assert_memory_equal(&head, &f.digest[0], sizeof head);
    assert_memory_equal(&body, &f.digest[1], sizeof body);
    clear_shard(&f);
}

static void one_name_twice_or_a_reserved_one_is_refused(void **state)
{
    (void)state;
    struct arena a;
    struct shard_plan p;
    struct err e = {0};
    arena_init(&a);
    struct shard_slice same[] = {slices[0], slices[0]}, reserved = slices[0];
    assert_int_equal(shard_plan_make(&a, same, 2, NULL, 0, &p, &e), ERR_INVALID);
    reserved.name = "__metadata__";
    assert_int_equal(shard_plan_make(&a, &reserved, 1, NULL, 0, &p, &e), ERR_INVALID);
    arena_clear(&a);
}

// A file of this JSON and `data` bytes behind it.
static int parse_text(const char *json, uint64_t data, struct err *e)
{
    struct arena a;
    struct buf file = {0};
    struct shard_plan p;
    uint64_t len = strlen(json);
    arena_init(&a);
    buf_append(&file, &len, sizeof len); // little-endian hosts only, as all of ours
    buf_puts(&file, json);
    int rc = shard_parse(&a, file.data, file.len, file.len + data, SHARD_OURS, &p, e);
    buf_clear(&file);
    arena_clear(&a);
    return rc;
}

static void a_head_that_lies_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint64_t data;
        const char *says;
    } bad[] = {
        {"[]", 0, "not an object"},
        {"{\"w\": 3}", 0, "'w'"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4], \"x\": 1}}", 4,
         "'w'"},
        {"{\"w\": {\"dtype\": \"F31\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "F31"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4,
         "dimension"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", 4,
         "dimension"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}",
         4, "8 dimensions"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4,
         "do not make"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [4611686018427387905], \"data_offsets\": [0, "
         "4]}}",
         4, "do not make"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 8]}}", 4, "outside"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", 4, "outside"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4, "data_offsets"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}", 8, "hole"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 8,
         "behind the last"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, \"v\": "
         "{\"dtype\": "
         "\"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         8, "inside"},
        {"{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, \"w\": "
         "{\"dtype\": "
         "\"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         8, "head"},
        {"{\"__metadata__\": {\"a\": 1}}", 0, "metadata 'a'"},
        {"{\"__metadata__\": []}", 0, "__metadata__"},
        {"{", 0, "head"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        assert_int_equal(parse_text(bad[i].json, bad[i].data, &e), ERR_DATA);
        if (!strstr(e.text, bad[i].says))
            fail_msg("case %zu says: %s", i, e.text);
    }
    struct err e = {0};
    assert_int_equal(
        parse_text("{\"w\": {\"dtype\": \"F32\", \"shape\": [0, 9], \"data_offsets\": [0, 0]}, "
                   "\"v\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]}}  ",
                   4, &e),
        0);
}

static void every_shorter_file_is_refused(void **state)
{
    (void)state;
    struct written f;
    struct shard_plan p;
    struct err e = {0};
    write_shard(&f);
    for (size_t len = 0; len < f.file.len; len++)
        assert_int_equal(shard_parse(&f.a, f.file.data, len, len, SHARD_OURS, &p, &e), ERR_DATA);
    assert_int_equal(shard_parse(&f.a, f.file.data, f.file.len, f.file.len + 1, SHARD_OURS, &p, &e),
                     ERR_DATA);
    clear_shard(&f);
}

static void a_write_that_fails_names_the_tensor(void **state)
{
    (void)state;
    struct arena a;
    struct scratch dir;
    struct stream s;
    struct shard_plan p;
    struct hash128 d;
    struct err e = {0};
    struct stream_fault fault = {.countdown = 2, .code = ERR_IO, .partial = 3};
    unsigned char bytes[60] = {0};
    arena_init(&a);
    assert_int_equal(shard_plan_make(&a, slices, 3, NULL, 0, &p, &e), 0);
    scratch_make(&dir);
    assert_int_equal(stream_create(&s, AT_FDCWD, scratch_path(&dir, "shard"), &e), 0);
    s.fault = &fault;
    assert_int_equal(shard_write_head(&s, &p, &d, &e), 0);
    assert_int_equal(shard_write_slice(&s, &p, 0, bytes, &d, &e), ERR_IO);
    assert_non_null(strstr(e.text, "tensor 'w'"));
    stream_close(&s, NULL);
    scratch_remove(&dir);
    shard_plan_clear(&p);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back_with_its_digests),
        cmocka_unit_test(one_name_twice_or_a_reserved_one_is_refused),
        cmocka_unit_test(a_head_that_lies_is_refused_with_the_reason),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(a_write_that_fails_names_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
