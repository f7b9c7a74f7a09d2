// SPDX-License-Identifier: Apache-2.0
// The manifest: its text is its struct, and a text that contradicts itself is refused.
#include "tests/unit/ckpt_case.h"

static struct buf text_of(const struct manifest *m)
{
    struct buf b = {0};
    manifest_write(m, &b);
    return b;
}

static void a_manifest_reads_back_to_the_same_text(void **state)
{
    struct fixture *f = *state;
    struct manifest back;
    struct err e = {0};
    struct manifest m = fx_prepare(f, 3, 200);
    m.parent_attempt = 2;
    m.parent_step = 150;
    m.numerics.deterministic = false;
    struct buf text = text_of(&m);
    assert_int_equal(manifest_parse(&f->arena, text.data, text.len, &back, &e), 0);
    struct buf again = text_of(&back);
    assert_string_equal(text.data, again.data);
    assert_true(back.seed == m.seed);
    assert_int_equal(back.parent_step, 150);
    assert_string_equal(back.numerics.device, "model \"x\"");
    assert_string_equal(back.numerics.collectives, "hosts");
    assert_false(back.numerics.deterministic);
    assert_int_equal(back.ntensors, 5);
    assert_int_equal(manifest_find(&back, "w2")->shape.dim[2], 16);
    assert_int_equal(manifest_bytes(&back), manifest_bytes(&m));
    buf_clear(&text);
    buf_clear(&again);
}

static void a_report_that_does_not_fit_the_deal_is_refused(void **state)
{
    struct fixture *f = *state;
    struct shard_report good[FX_RANKS] = {0}, bad[FX_RANKS];
    struct err e = {0};
    int dir;
    assert_int_equal(store_begin(&f->store, 1, 5, &dir, &e), 0);
    for (int r = 0; r < FX_RANKS; r++)
        fx_write_shard(f, dir, r, &good[r], 5);
    close(dir);
    for (int how = 0; how < 5; how++) {
        struct manifest m = fx_manifest(f, 1, 5);
        memcpy(bad, good, sizeof bad);
        bad[2].rank += how == 0;
        bad[2].step += how == 1;
        bad[2].n -= how == 2;
        bad[2].bytes += how == 3;
        bad[2].code = how == 4 ? ERR_IO : 0;
        assert_int_equal(
            manifest_fill(&m, &f->arena, fx_parts, fx_specs, FX_PARTS, &f->deal, bad, &e),
            ERR_INVALID);
        assert_non_null(strstr(e.text, "rank 2"));
    }
}

// Replaces the first `from` in the text with `to` and parses it.
static int parse_edited(struct fixture *f, const struct buf *text, const char *from, const char *to,
                        struct err *e)
{
    struct buf b = {0};
    struct manifest m;
    const char *at = strstr(text->data, from);
    if (!at)
        fail_msg("'%s' is not in the manifest", from);
    buf_append(&b, text->data, (size_t)(at - text->data));
    buf_puts(&b, to);
    buf_puts(&b, at + strlen(from));
    int rc = manifest_parse(&f->arena, b.data, b.len, &m, e);
    buf_clear(&b);
    return rc;
}

static void texts_that_contradict_themselves_are_refused(void **state)
{
    static const struct {
        const char *from, *to, *says;
        int code;
    } edits[] = {
        {"\"version\": 4", "\"version\": 5", "version 5", ERR_UNSUPPORTED},
        {"\"version\": 4", "\"version\": \"2\"", "version", ERR_DATA},
        {"\"cluster\"", "\"clustre\"", "clustre", ERR_DATA},
        {"\"attempt\": 3", "\"attempt\": -3", "attempt", ERR_DATA},
        {"\"attempt\": 3", "\"attempt\": 3.5", "attempt", ERR_DATA},
        {"\"seed\": \"1", "\"seed\": \"-1", "seed", ERR_DATA},
        {"\"seed\": \"1", "\"seed\": \"11", "seed", ERR_DATA},
        {"\"parent\": null", "\"parent\": {\"attempt\": 1}", "parent", ERR_DATA},
        {"\"dp\": 2", "\"dp\": 0", "dp", ERR_DATA},
        {"\"isa\": \"avx512\",", "", "isa", ERR_DATA},
        {"\"threads\": 2", "\"threads\": 2, \"more\": 1", "more", ERR_DATA},
        {"\"deterministic\": true", "\"deterministic\": 1", "deterministic", ERR_DATA},
        {"shard-00001-of-00004.safetensors\"", "../00001\"", "../00001", ERR_DATA},
        {"shard-00001-of-00004.safetensors\"", "COMMIT\"", "COMMIT", ERR_DATA},
        {"shard-00001-of-00004.safetensors\"", "shard-00000-of-00004.safetensors\"", "unique",
         ERR_DATA},
        {"\"head_bytes\": ", "\"head_bytes\": 999", "a head of", ERR_DATA},
        {"\"head_xxh3\": \"", "\"head_xxh3\": \"x", "hex", ERR_DATA},
        {"\"name\": \"b1\"", "\"name\": \"w1\"", "twice", ERR_DATA},
        {"\"dtype\": \"F32\"", "\"dtype\": \"U8\"", "do not make", ERR_DATA},
        {"\"dtype\": \"F32\"", "\"dtype\": \"F99\"", "F99", ERR_DATA},
        {"\"offset\": ", "\"offset\": 9999", "outside", ERR_DATA},
        {"\"spec\": []", "\"spec\": \"[]\"", "spec", ERR_DATA},
        {"\"spec\": []", "\"spec\": [1]", "spec", ERR_DATA},
        {"\"spec\": []", "\"spec\": [[null]]", "spec", ERR_DATA},
        {"\"spec\": []", "\"spec\": [\"\"]", "spec", ERR_DATA},
        {"\"spec\": []", "\"spec\": [null, null, null, null]", "4 entries", ERR_DATA},
    };
    struct fixture *f = *state;
    struct manifest m = fx_prepare(f, 3, 200);
    struct buf text = text_of(&m);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct err e = {0};
        int rc = parse_edited(f, &text, edits[i].from, edits[i].to, &e);
        if (rc != edits[i].code || e.code != rc || !strstr(e.text, edits[i].says))
            fail_msg("edit %zu gives %d: %s", i, rc, e.text);
    }
    buf_clear(&text);
}

static void expect_refusal(const struct manifest *m, const char *says)
{
    struct arena a;
    struct manifest back;
    struct err e = {0};
    struct buf text = text_of(m);
    arena_init(&a);
    int rc = manifest_parse(&a, text.data, text.len, &back, &e);
    if (rc != ERR_DATA || !strstr(e.text, says))
        fail_msg("wanted '%s', got %d: %s", says, rc, e.text);
    arena_clear(&a);
    buf_clear(&text);
}

static void slices_must_cover_tensor_and_file_exactly(void **state)
{
    struct fixture *f = *state;
    struct manifest m = fx_prepare(f, 3, 200);
    struct manifest_tensor *w1 = &m.tensors[0], saved = *w1;
    assert_true(w1->nslices > 1);
    int64_t start = w1->slices[1].box.start[0];
    w1->slices[1].box.start[0] = start - 1;
    expect_refusal(&m, "overlap");
    w1->slices[1].box.start[0] = start;
    w1->nslices--;
    expect_refusal(&m, "w1");
    *w1 = saved;
    uint64_t at = w1->slices[0].at;
    w1->slices[0].at += 4; // still inside the file, no longer side by side
    expect_refusal(&m, "hole");
    w1->slices[0].at = at;
    m.files[0].bytes += 4;
    expect_refusal(&m, "hole");
}

// Slices are compared in pairs: who lists more than ranks could write would keep a reader busy.
static void a_tensor_has_no_more_slices_than_files_and_files_are_few(void **state)
{
    struct fixture *f = *state;
    struct manifest m = fx_prepare(f, 3, 200);
    struct manifest_tensor *w1 = &m.tensors[0];
    struct manifest_slice *cut = arena_array(&f->arena, struct manifest_slice, FX_RANKS + 1);
    assert_int_equal(w1->nslices, FX_RANKS);
    memcpy(cut, w1->slices, FX_RANKS * sizeof *cut);
    cut[FX_RANKS] = cut[0]; // the second half of the first
    cut[0].bytes = cut[FX_RANKS].bytes /= 2;
    cut[FX_RANKS].box.shape.dim[0] = cut[0].box.shape.dim[0] /= 2;
    cut[FX_RANKS].box.start[0] += cut[0].box.shape.dim[0];
    cut[FX_RANKS].at += cut[0].bytes;
    w1->slices = cut;
    w1->nslices++;
    expect_refusal(&m, "5 slices in 4 files");
    m.ntensors = 0;
    m.nfiles = MANIFEST_MAX_FILES + 1;
    m.files = arena_array(&f->arena, struct manifest_file, m.nfiles);
    for (int i = 0; i < m.nfiles; i++)
        m.files[i] = (struct manifest_file){arena_printf(&f->arena, "shard-%05d", i), 8, 8, {0}};
    expect_refusal(&m, "4097 files, over 4096");
}

static void the_seal_fits_one_text_only(void **state)
{
    (void)state;
    char commit[COMMIT_BYTES + 1];
    struct err e = {0};
    manifest_seal("abc", 3, commit);
    assert_string_equal(commit, // FIPS 180-4, example of SHA-256("abc")
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n");
    assert_int_equal(manifest_check_seal("abc", 3, commit, COMMIT_BYTES, &e), 0);
    assert_int_equal(manifest_check_seal("abd", 3, commit, COMMIT_BYTES, &e), ERR_CORRUPT);
    assert_int_equal(manifest_check_seal("abc", 3, commit, COMMIT_BYTES - 1, &e), ERR_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_manifest_reads_back_to_the_same_text),
        FX_TEST(a_report_that_does_not_fit_the_deal_is_refused),
        FX_TEST(texts_that_contradict_themselves_are_refused),
        FX_TEST(slices_must_cover_tensor_and_file_exactly),
        FX_TEST(a_tensor_has_no_more_slices_than_files_and_files_are_few),
        cmocka_unit_test(the_seal_fits_one_text_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
