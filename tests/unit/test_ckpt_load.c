// SPDX-License-Identifier: Apache-2.0
// Reading checkpoints: any region of any cut, and no damage ever becomes a number.
#include "common/base/folder.h"
#include "common/ckpt/durable.h"
#include "tests/unit/ckpt_case.h"

static void every_element_comes_back(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    fx_save(f, 1, 5);
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), 0);
    assert_int_equal(l.manifest.samples, 320);
    assert_int_equal(fx_read_all(&l, 5, &e), 0);
    assert_int_equal(load_verify(&l, NULL, NULL, &e), 0);
    load_close(&l);
}

static void any_box_comes_back_whatever_the_cut(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    const struct shape global = fx_parts[2].global;
    static float got[40 * 32 * 16], want[40 * 32 * 16];
    fx_save(f, 1, 5);
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), 0);
    srand(7);
    for (int round = 0; round < 300; round++) {
        struct box b = {.shape.n = 3};
        for (int d = 0; d < 3; d++) {
            b.start[d] = rand() % global.dim[d];
            b.shape.dim[d] = 1 + rand() % (global.dim[d] - b.start[d]);
        }
        fx_fill("w2", DT_F32, &global, &b, 5, want);
        assert_int_equal(load_read(&l, "w2", DT_F32, &global, &b, got, &e), 0);
        assert_memory_equal(got, want, box_bytes(&b, DT_F32));
    }
    load_close(&l);
}

static void a_wrong_name_dtype_or_shape_is_refused(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    float to[8];
    struct box b = {{0}, {1, {4}}}, flat = {{0}, {2, {4, 1}}};
    const struct shape is = {1, {10}}, less = {1, {9}}, more = {2, {10, 1}};
    fx_save(f, 1, 5);
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), 0);
    assert_int_equal(load_read(&l, "b9", DT_F32, &is, &b, to, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "'b9'"));
    assert_int_equal(load_read(&l, "b1", DT_BF16, &is, &b, to, &e), ERR_DATA);
    assert_int_equal(load_read(&l, "b1", DT_F32, &less, &b, to, &e), ERR_DATA);
    assert_int_equal(load_read(&l, "b1", DT_F32, &more, &flat, to, &e), ERR_DATA);
    assert_int_equal(load_read(&l, "b1", DT_F32, &is, &b, to, &e), 0);
    load_close(&l);
    assert_int_equal(load_open(&l, &f->store, 1, 6, &e), ERR_NOTFOUND);
}

// ---- damages ----
struct refusals {
    int n;
    struct store_entry which;
    struct err why;
};

static void note_refusal(void *arg, struct store_entry which, const struct err *e)
{
    struct refusals *t = arg;
    t->n++;
    t->which = which;
    t->why = *e;
}

// With step 10 damaged: the deep choice falls back to step 5 with one refusal that names the
// checkpoint and the file, and a plain reader either gets an error or only right numbers.
static void expect_fallback(struct fixture *f, const char *file)
{
    struct load l;
    struct err e = {0};
    struct refusals t = {0};
    assert_int_equal(load_open_newest_good(&l, &f->store, note_refusal, &t, &e), 0);
    assert_string_equal(l.name, "step-00000005.a1");
    assert_int_equal(fx_read_all(&l, 5, &e), 0);
    load_close(&l);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.which.step, 10);
    assert_true(t.why.code == ERR_DATA || t.why.code == ERR_CORRUPT);
    if (!strstr(t.why.text, "step-00000010.a1") || !strstr(t.why.text, file))
        fail_msg("damage in %s says: %s", file, t.why.text);
    if (!load_open(&l, &f->store, 1, 10, &e)) {
        fx_read_all(&l, 10, &e); // asserts that what it gives is right
        load_close(&l);
    }
}

static struct buf whole(int dir, const char *name)
{
    struct buf b = {0};
    struct err e = {0};
    assert_int_equal(folder_read_whole(dir, name, true, 1 << 26, &b, &e), 0);
    return b;
}

static int damage_file(struct fixture *f, int dir, const char *name, int flips, int cuts)
{
    struct buf good = whole(dir, name);
    const char *says = !strncmp(name, "shard", 5) ? name : "COMMIT";
    for (int i = 0; i < flips; i++) {
        size_t at = i < 12 ? (size_t)i : (size_t)rand() % good.len;
        char old = good.data[at];
        good.data[at] = (char)(old ^ (1 << (rand() % 8)));
        fx_put(dir, name, good.data, good.len);
        expect_fallback(f, says);
        good.data[at] = old;
    }
    for (int i = 0; i < cuts; i++) {
        size_t len = i == 0 ? 0 : i == 1 ? good.len - 1 : (size_t)rand() % good.len;
        fx_put(dir, name, good.data, len);
        expect_fallback(f, says);
    }
    fx_put(dir, name, good.data, good.len);
    unlinkat(dir, name, 0);
    expect_fallback(f, name);
    fx_put(dir, name, good.data, good.len);
    buf_clear(&good);
    return flips + cuts + 1;
}

static void any_flip_or_cut_of_any_file_falls_back_and_says_where(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    int n = 0;
    fx_save(f, 1, 5);
    fx_save(f, 1, 10);
    int dir = openat(f->store.fd, "step-00000010.a1", O_RDONLY | O_DIRECTORY);
    srand(11);
    for (int r = 0; r < FX_RANKS; r++) {
        char name[64];
        manifest_file_name(r, FX_RANKS, name);
        n += damage_file(f, dir, name, 40, 12);
    }
    n += damage_file(f, dir, "MANIFEST.json", 40, 12);
    n += damage_file(f, dir, "COMMIT", 65, 12);
    assert_true(n >= 200);
    close(dir);
    assert_int_equal(load_open_newest_good(&l, &f->store, NULL, NULL, &e), 0);
    assert_string_equal(l.name, "step-00000010.a1");
    load_close(&l);
}

static void bad_bytes_name_file_and_tensor(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    char name[64];
    fx_save(f, 1, 10);
    assert_int_equal(load_open(&l, &f->store, 1, 10, &e), 0);
    const struct manifest_tensor *t = manifest_find(&l.manifest, "w2");
    const struct manifest_slice *s = &t->slices[1];
    snprintf(name, sizeof name, "%s", l.manifest.files[s->file].name);
    int fd = openat(l.dirfd, name, O_WRONLY);
    assert_int_equal(pwrite(fd, "\x99\x98\x97", 3, (off_t)(s->at + 4)), 3);
    close(fd);
    assert_int_equal(fx_read_all(&l, 10, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, name));
    assert_non_null(strstr(e.text, "tensor 'w2'"));
    load_close(&l);
}

static void all_bad_gives_the_newest_ones_error_and_none_gives_not_found(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    assert_int_equal(load_open_newest_good(&l, &f->store, NULL, NULL, &e), ERR_NOTFOUND);
    fx_save(f, 1, 5);
    fx_save(f, 1, 10);
    for (int step = 5; step <= 10; step += 5) {
        char path[100];
        snprintf(path, sizeof path, "step-%08d.a1/COMMIT", step);
        fx_put(f->store.fd, path, "x", 1);
    }
    assert_int_equal(load_open_newest_good(&l, &f->store, NULL, NULL, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "step-00000010"));
}

// Every digest is right, yet another reader of the shard would see other names.
static void a_head_that_contradicts_the_manifest_is_found(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    struct manifest m = fx_prepare(f, 1, 5);
    const char *name = m.tensors[1].name;
    assert_string_equal(name, "b1");
    m.tensors[1].name = "c1";
    assert_int_equal(store_commit(&f->store, &m, &e), 0);
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), 0);
    assert_int_equal(load_verify(&l, NULL, NULL, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "tensor 'c1': the head and the manifest disagree"));
    load_close(&l);
}

// A checkpoint copied under another step's name is whole, yet not that step.
static void a_renamed_checkpoint_is_refused(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    fx_save(f, 1, 5);
    assert_int_equal(renameat(f->store.fd, "step-00000005.a1", f->store.fd, "step-00000009.a1"), 0);
    assert_int_equal(load_open(&l, &f->store, 1, 9, &e), ERR_DATA);
}

// Whole and rightly sealed, but made by another job, or under another coordinator.
static void a_checkpoint_of_another_job_is_refused(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    struct manifest m[2];
    m[0] = fx_prepare(f, 1, 5);
    m[0].job = "fedcba9876543210";
    assert_int_equal(store_commit(&f->store, &m[0], &e), 0);
    m[1] = fx_prepare(f, 1, 10);
    m[1].cluster = "cluster-b";
    assert_int_equal(store_commit(&f->store, &m[1], &e), 0);
    for (int step = 5; step <= 10; step += 5) {
        assert_int_equal(load_open(&l, &f->store, 1, step, &e), ERR_DATA);
        assert_non_null(strstr(e.text, step == 5 ? "of job fedcba98" : "of cluster cluster-b,"));
    }
    assert_int_equal(load_open_newest_good(&l, &f->store, NULL, NULL, &e), ERR_DATA);
    fx_put(f->store.fd, "OWNER", "{}", 2);
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "OWNER"));
    unlinkat(f->store.fd, "OWNER", 0); // as beside a copy that somebody keeps elsewhere
    assert_int_equal(load_open(&l, &f->store, 1, 5, &e), 0);
    load_close(&l);
}

// It says nothing about the disk: who takes ERR_IO for a broken one would wait for another.
static void what_is_no_directory_in_a_checkpoint_s_place_is_passed_over(void **state)
{
    struct fixture *f = *state;
    struct load l;
    struct err e = {0};
    struct refusals t = {0};
    fx_save(f, 1, 5);
    fx_put(f->store.fd, "step-00000010.a1", "x", 1);
    assert_int_equal(load_open_newest_good(&l, &f->store, note_refusal, &t, &e), 0);
    assert_string_equal(l.name, "step-00000005.a1");
    load_close(&l);
    assert_int_equal(t.why.code, ERR_DATA);
    assert_int_equal(symlinkat("step-00000005.a1", f->store.fd, "step-00000015.a1"), 0);
    assert_int_equal(load_open(&l, &f->store, 1, 15, &e), ERR_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(every_element_comes_back),
        FX_TEST(any_box_comes_back_whatever_the_cut),
        FX_TEST(a_wrong_name_dtype_or_shape_is_refused),
        FX_TEST(any_flip_or_cut_of_any_file_falls_back_and_says_where),
        FX_TEST(bad_bytes_name_file_and_tensor),
        FX_TEST(all_bad_gives_the_newest_ones_error_and_none_gives_not_found),
        FX_TEST(a_head_that_contradicts_the_manifest_is_found),
        FX_TEST(a_renamed_checkpoint_is_refused),
        FX_TEST(a_checkpoint_of_another_job_is_refused),
        FX_TEST(what_is_no_directory_in_a_checkpoint_s_place_is_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
