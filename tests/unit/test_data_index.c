// SPDX-License-Identifier: Apache-2.0
// index.json of token shards: read back as it was written, refused with its place where it is damaged, and
// held against the shards by whoever opens them.
#include "common/data/dataset.h"
#include "common/data/inspect.h"
#include "common/data/prepare/journal.h"
#include "common/data/token_index.h"
#include "tests/unit/scratch.h"

static const char good[] =
    "{\"kind\": \"weft tokens\", \"format\": 1, \"tokenizer\": {\"name\": \"bytes\", \"digest\": "
    "\"bytes\", \"vocab\": 256, \"end\": 0}, \"dtype\": \"u16\", \"val_fraction\": 0.5, "
    "\"shards\": "
    "[{\"file\": \"train-00000.bin\", \"split\": \"train\", \"tokens\": 6, \"documents\": 1, "
    "\"bytes\": 5, \"digest\": \"000102030405060708090a0b0c0d0e0f\"}, {\"file\": "
    "\"val-00000.bin\", \"split\": \"val\", \"tokens\": 3, \"documents\": 1, \"bytes\": 2, "
    "\"digest\": \"000102030405060708090a0b0c0d0e0f\"}], \"sources\": [{\"path\": \"in\", "
    "\"bytes\": 7}]}";

static void what_is_written_reads_back(void **state)
{
    struct token_index index, again;
    struct arena a = {0};
    struct buf text = {0};
    bool foreign;
    (void)state;
    assert_int_equal(token_index_parse(&a, good, sizeof good - 1, &index, &foreign, NULL), 0);
    assert_int_equal(index.nshards, 2);
    assert_int_equal(token_index_sum(&index, 0).tokens, 6);
    assert_int_equal(token_index_sum(&index, 1).bytes, 2);
    assert_string_equal(token_index_find(&index, "val-00000.bin")->file, "val-00000.bin");
    assert_null(token_index_find(&index, "val-00001.bin"));
    token_index_print(&index, &text);
    assert_int_equal(token_index_parse(&a, text.data, text.len, &again, &foreign, NULL), 0);
    assert_int_equal(again.nshards, 2);
    assert_int_equal(again.shards[1].tokens, 3);
    assert_int_equal(again.shards[0].digest.lo, index.shards[0].digest.lo);
    assert_int_equal(again.sources[0].bytes, 7);
    assert_true(again.val_fraction == 0.5);
    assert_int_equal(again.type, ARRAY_U16);
    buf_clear(&text);
    arena_clear(&a);
}

static void a_damaged_index_is_refused_by_what_is_wrong(void **state)
{
    static const struct {
        const char *was, *is, *says;
        bool foreign;
    } cases[] = {
        {"\"weft tokens\"", "\"dataset\"", "another's file", true},
        {"\"format\": 1", "\"format\": 2", "format 2, and this weft reads 1", false},
        {"\"vocab\": 256", "\"vocab\": 0", "tokenizer: 'vocab' is not in", false},
        {"\"end\": 0", "\"end\": 256", "tokenizer: 'end' is no id", false},
        {"\"u16\"", "\"u8\"", "'dtype' is neither u16 nor u32", false},
        {"\"train-00000.bin\"", "\"../00000.bin\"", "shard 0: 'file' is no name", false},
        {"\"split\": \"val\"", "\"split\": \"test\"", "shard 1: 'split' is neither", false},
        {"\"val-00000.bin\"", "\"train-00000.bin\"", "shard 'train-00000.bin' is there twice",
         false},
        {"\"tokens\": 3", "\"tokens\": -3", "shard 1: 'tokens' is negative", false},
        {"\"tokens\": 3", "\"tokens\": \"3\"", "shard 1: 'tokens' is not", false},
        {"0e0f\"}, ", "0e0g\"}, ", "shard 0: 'digest' is no 32", false},
        {"\"path\": \"in\"", "\"path\": 7", "source 0: 'path' is not", false},
        {"\"sources\": [", "\"sources\": ]", "JSON at byte ", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = strstr(good, cases[i].was);
        struct buf text = {0};
        struct arena a = {0};
        struct token_index index;
        struct err e = {0};
        bool foreign;
        assert_non_null(at);
        buf_append(&text, good, (size_t)(at - good));
        buf_puts(&text, cases[i].is);
        buf_puts(&text, at + strlen(cases[i].was));
        assert_int_not_equal(token_index_parse(&a, text.data, text.len, &index, &foreign, &e), 0);
        assert_int_equal(foreign, cases[i].foreign);
        if (!strstr(e.text, cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        buf_clear(&text);
        arena_clear(&a);
    }
}

static void an_index_of_too_many_shards_is_refused(void **state)
{
    struct buf text = {0};
    struct arena a = {0};
    struct token_index index;
    struct err e = {0};
    const char *from = strstr(good, "{\"file\""), *to = strstr(good, "], \"sources\"");
    bool foreign;
    (void)state;
    for (int more = 0; more < 2; more++) {
        buf_reset(&text);
        buf_append(&text, good, (size_t)(from - good));
        for (int i = 0; i < TOKEN_SPLITS * TOKEN_SHARDS_MOST + more; i++)
            buf_printf(&text,
                       "%s{\"file\":\"%d\",\"split\":\"val\",\"tokens\":1,\"documents\":1,"
                       "\"bytes\":1,\"digest\":\"000102030405060708090a0b0c0d0e0f\"}",
                       i ? "," : "", i);
        buf_puts(&text, to);
        int rc = token_index_parse(&a, text.data, text.len, &index, &foreign, &e);
        assert_int_equal(rc, more ? ERR_LIMIT : 0);
        if (!more)
            assert_ptr_equal(token_index_find(&index, "199999"), &index.shards[199999]);
        arena_clear(&a);
    }
    assert_non_null(strstr(e.text, "200001 shards: an index has at most 200000"));
    buf_clear(&text);
}

// ---- beside shards -----------------------------------------------------------------------------
static void write_shard(const char *path, uint32_t tokens)
{
    char file[1024 + 2 * 16] = {0};
    uint32_t head[] = {20240520, 1, tokens};
    memcpy(file, head, sizeof head);
    for (uint32_t i = 0; i < tokens; i++)
        file[1024 + 2 * i] = (char)('a' + i);
    scratch_write(path, file, 1024 + 2 * tokens);
}

static int open_tokens(const struct scratch *s, int64_t vocab, struct err *e)
{
    struct dataset ds;
    int rc = dataset_open_tokens(&ds, NULL, scratch_path(s, "train-*.bin"), ARRAY_TYPE_COUNT, 2,
                                 vocab, e);
    if (!rc)
        dataset_close(&ds);
    return rc;
}

static void a_shard_of_another_size_than_the_index_says_is_named(void **state)
{
    struct scratch s;
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    scratch_write(scratch_path(&s, "index.json"), good, sizeof good - 1);
    write_shard(scratch_path(&s, "train-00000.bin"), 6);
    assert_int_equal(open_tokens(&s, 256, &e), 0);
    assert_int_equal(open_tokens(&s, 255, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "its tokenizer has 256 tokens"));
    write_shard(scratch_path(&s, "train-00000.bin"), 7);
    assert_int_equal(open_tokens(&s, 256, &e), ERR_DATA);
    assert_non_null(strstr(e.text,
                           "/train-00000.bin: it holds 7 tokens of u16, and index.json beside "
                           "it says 6 of u16"));
    scratch_write(scratch_path(&s, "index.json"), good, sizeof good - 2);
    assert_int_equal(open_tokens(&s, 256, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "/index.json: JSON at byte "));
    scratch_write(scratch_path(&s, "index.json"), "{}", 2); // another program's
    assert_int_equal(open_tokens(&s, 256, &e), 0);
    scratch_remove(&s);
}

static int open_pattern(const struct scratch *s, const char *pattern, struct err *e)
{
    struct dataset ds;
    int rc = dataset_open_tokens(&ds, NULL, scratch_path(s, pattern), ARRAY_TYPE_COUNT, 2, 256, e);
    if (!rc)
        dataset_close(&ds);
    return rc;
}

static void a_shard_that_the_index_lists_and_nobody_has_is_named(void **state)
{
    static const char more[] =
        "{\"file\": \"train-00002.bin\", \"split\": \"train\", \"tokens\": 6, "
        "\"documents\": 1, \"bytes\": 5, \"digest\": "
        "\"000102030405060708090a0b0c0d0e0f\"}, {\"file\": "
        "\"train-00001.bin\", \"split\": \"train\", \"tokens\": 6, "
        "\"documents\": 1, \"bytes\": 5, \"digest\": "
        "\"000102030405060708090a0b0c0d0e0f\"}, ";
    static const char *const names[] = {"train-00000.bin", "train-00001.bin", "train-00002.bin"};
    struct scratch s;
    struct buf text = {0};
    const char *shards = strstr(good, "{\"file\"");
    (void)state;
    buf_append(&text, good, (size_t)(shards - good));
    buf_puts(&text, more);
    buf_puts(&text, shards);
    scratch_make(&s);
    scratch_write(scratch_path(&s, "index.json"), text.data, text.len);
    for (int i = 0; i < 3; i++)
        write_shard(scratch_path(&s, names[i]), 6);
    write_shard(scratch_path(&s, "train-extra.bin"), 6); // which the index does not know
    assert_int_equal(open_pattern(&s, "train-*.bin", NULL), 0);
    for (int i = 0; i < 3; i++) {
        struct err e = {0};
        char says[60];
        assert_int_equal(unlink(scratch_path(&s, names[i])), 0);
        assert_int_equal(open_pattern(&s, "train-*.bin", &e), ERR_NOTFOUND);
        snprintf(says, sizeof says, "/%s is missing: index.json beside it lists it", names[i]);
        if (!strstr(e.text, says))
            fail_msg("wanted '%s', got '%s'", says, e.text);
        // Not those that another pattern or one name leaves out.
        assert_int_equal(
            open_pattern(&s, i == 1 ? "train-0000[02].bin" : "train-0000[1].bin", NULL), 0);
        assert_int_equal(open_pattern(&s, names[(i + 1) % 3], NULL), 0);
        write_shard(scratch_path(&s, names[i]), 6);
    }
    buf_clear(&text);
    scratch_remove(&s);
}

static void an_index_beneath_a_root_is_not_read_outside_of_it(void **state)
{
    struct scratch s;
    struct dataset ds;
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    write_shard(scratch_path(&s, "train-00000.bin"), 7);
    assert_int_equal(symlink("/etc/hostname", scratch_path(&s, "index.json")), 0);
    assert_int_equal(dataset_open_tokens(&ds, s.dir, "train-*.bin", ARRAY_TYPE_COUNT, 2, 256, &e),
                     ERR_INVALID);
    assert_non_null(strstr(e.text, "index.json"));
    scratch_remove(&s);
}

static void inspect_holds_a_folder_against_its_digests(void **state)
{
    struct scratch s;
    struct inspect in;
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    scratch_write(scratch_path(&s, "index.json"), good, sizeof good - 1);
    write_shard(scratch_path(&s, "train-00000.bin"), 6);
    assert_int_equal(inspect_open(&in, s.dir, ARRAY_TYPE_COUNT, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "train-00000.bin: its tokens are not those"));
    // A shard by itself is held against its size alone, and its beginning shown.
    assert_int_equal(inspect_open(&in, scratch_path(&s, "train-00000.bin"), ARRAY_TYPE_COUNT, &e),
                     0);
    assert_true(in.decoded);
    assert_string_equal(buf_str(&in.begins), "abcdef");
    inspect_close(&in);
    scratch_remove(&s);
}

// ---- the journal -------------------------------------------------------------------------------
static void a_damaged_journal_is_refused(void **state)
{
    static const char whole[] =
        "{\"tokenizer\":\"bytes\",\"end\":\"0\",\"field\":\"text\",\"val_fraction\":\"0\","
        "\"shard_tokens\":\"5\",\"inputs\":\"x\",\"complete\":false,\"source\":1,\"byte\":2,"
        "\"lines\":3,\"documents\":4,\"stream\":\"000102030405060708090a0b0c0d0e0f\","
        "\"streams\":\"000102030405060708090a0b0c0d0e0f\",\"train\":["
        "{\"tokens\":5,\"documents\":1,\"bytes\":4,\"digest\":\"000102030405060708090a0b0c0d0e0f\"}"
        "],\"val\":[]}";
    struct arena a = {0};
    struct journal j;
    struct err e = {0};
    (void)state;
    assert_int_equal(journal_parse(&a, whole, sizeof whole - 1, &j, &e), 0);
    assert_int_equal(j.at.source, 1);
    assert_int_equal(j.at.lines, 3);
    assert_int_equal(j.nshards[0], 1);
    assert_int_equal(j.shards[0][0].tokens, 5);
    for (size_t len = 0; len < sizeof whole - 1; len++)
        assert_int_equal(journal_parse(&a, whole, len, &j, &e), ERR_DATA);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_damaged_index_is_refused_by_what_is_wrong),
        cmocka_unit_test(a_shard_of_another_size_than_the_index_says_is_named),
        cmocka_unit_test(an_index_of_too_many_shards_is_refused),
        cmocka_unit_test(a_shard_that_the_index_lists_and_nobody_has_is_named),
        cmocka_unit_test(an_index_beneath_a_root_is_not_read_outside_of_it),
        cmocka_unit_test(inspect_holds_a_folder_against_its_digests),
        cmocka_unit_test(a_damaged_journal_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
