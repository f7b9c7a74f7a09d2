// SPDX-License-Identifier: Apache-2.0
// Where a training begins: the checkpoint is found and pinned (source.h), its tensors become
// parameters (match.h).
#include <fcntl.h>
#include <pthread.h>

#include "common/base/buf.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/match.h"
#include "common/ckpt/source.h"
#include "tests/unit/ckpt_case.h"

static void a_place_may_have_a_step(void **state)
{
    static const struct {
        const char *from, *place;
        int64_t step;
        bool path;
    } cases[] = {
        {"base", "base", -1, false},
        {"base@200", "base", 200, false},
        {"./base@0", "./base", 0, true},
        {"/a@b/base", "/a@b/base", -1, true},
        {"base@", "base@", -1, false},
        {"base@-1", "base@-1", -1, false},
        {"base@2x", "base@2x", -1, false},
        {"@5", "@5", -1, false},
        {"a/step-00000200.a1", "a/step-00000200.a1", -1, true},
        {"base@9999999999999999", "base@9999999999999999", -1, false},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *place;
        int64_t step;
        source_split(cases[i].from, &f->arena, &place, &step);
        assert_string_equal(place, cases[i].place);
        assert_int_equal(step, cases[i].step);
        assert_int_equal(source_is_path(place), cases[i].path);
    }
    assert_string_equal(source_path("././a"), "a");
    assert_string_equal(source_path("./"), "./");
}

static int open_at(struct fixture *f, const char *path, int64_t step, struct manifest_source *pin,
                   struct err *e)
{
    struct load l;
    int rc = source_open(&l, NULL, path, step, &f->arena, pin, e);
    load_close(&l);
    return rc;
}

static void damage(struct fixture *f, const char *name, off_t at, int whence)
{
    char path[300];
    snprintf(path, sizeof path, "%s/shard-00000-of-00004.safetensors", name);
    int fd = openat(f->store.fd, path, O_WRONLY);
    assert_true(fd >= 0 && lseek(fd, at, whence) >= 0 && write(fd, "\xa5", 1) == 1);
    close(fd);
}

static void the_newest_whole_one_of_a_folder_is_found_or_that_of_a_step(void **state)
{
    struct fixture *f = *state;
    struct manifest_source pin;
    struct err e = {0};
    char path[1200];
    assert_int_equal(open_at(f, f->store.path, -1, &pin, &e), ERR_NOTFOUND);
    fx_save(f, 1, 10);
    fx_save(f, 2, 20);
    assert_int_equal(open_at(f, f->store.path, -1, &pin, &e), 0);
    assert_int_equal(pin.step, 20);
    assert_int_equal(pin.attempt, 2);
    assert_string_equal(pin.folder, f->store.path);
    assert_int_equal(strlen(pin.digest), 64);
    assert_int_equal(open_at(f, f->store.path, 10, &pin, &e), 0);
    assert_int_equal(pin.step, 10);
    snprintf(path, sizeof path, "%s/step-00000010.a1/", f->store.path);
    assert_int_equal(open_at(f, path, -1, &pin, &e), 0);
    assert_int_equal(pin.step, 10);
    assert_int_equal(open_at(f, path, 20, &pin, &e), ERR_INVALID);
    assert_int_equal(open_at(f, f->store.path, 15, &pin, &e), ERR_NOTFOUND);
    damage(f, "step-00000020.a2", -1, SEEK_END); // bytes of tensors are checked as they are read
    assert_int_equal(open_at(f, f->store.path, 20, &pin, &e), 0);
    damage(f, "step-00000020.a2", 20, SEEK_SET); // in its head
    assert_int_equal(open_at(f, f->store.path, -1, &pin, &e), 0);
    assert_int_equal(pin.step, 10);
    assert_int_equal(open_at(f, f->store.path, 20, &pin, &e), ERR_DATA);
}

static void a_root_is_not_left(void **state)
{
    struct fixture *f = *state;
    struct manifest_source pin;
    struct load l;
    struct err e = {0};
    char root[1200];
    fx_save(f, 1, 10);
    snprintf(root, sizeof root, "%s/step-00000010.a1", f->store.path);
    assert_int_equal(source_open(&l, root, "../", -1, &f->arena, &pin, &e), ERR_INVALID);
    assert_int_equal(source_open(&l, root, f->store.path, -1, &f->arena, &pin, &e), ERR_INVALID);
}

static void what_is_pinned_is_opened_or_nothing(void **state)
{
    struct fixture *f = *state;
    struct manifest_source pin, read;
    struct load l;
    struct err e = {0};
    assert_int_equal(source_read(&f->store, &f->arena, &read, &e), ERR_NOTFOUND);
    fx_save(f, 1, 10);
    assert_int_equal(open_at(f, f->store.path, -1, &pin, &e), 0);
    assert_int_equal(source_pin(&f->store, &f->arena, &pin, &e), 0);
    assert_int_equal(source_read(&f->store, &f->arena, &read, &e), 0);
    assert_string_equal(read.folder, pin.folder);
    assert_string_equal(read.digest, pin.digest);
    fx_save(f, 2, 20); // a newer one is not taken
    assert_int_equal(source_open_pinned(&l, NULL, &read, &e), 0);
    assert_int_equal(l.manifest.step, 10);
    load_close(&l);
    char *digit = arena_strdup(&f->arena, read.digest);
    digit[3] = digit[3] == '0' ? '1' : '0';
    read.digest = digit;
    assert_int_equal(source_open_pinned(&l, NULL, &read, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "step-00000010.a1"));
    assert_non_null(strstr(e.text, "another checkpoint lies there now"));
    assert_int_equal(store_delete(&f->store, 1, 10, &e), 0);
    assert_int_equal(source_open_pinned(&l, NULL, &pin, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "step-00000010.a1"));
}

enum { RACERS = 4, RACES = 50 };

struct racer {
    const struct store *job;
    pthread_barrier_t *line;
    struct arena a;
    struct manifest_source pin;
    int64_t step; // that it found
    int rc;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    struct err e = {0};
    arena_init(&r->a);
    r->pin = (struct manifest_source){"/base", 1, r->step, "digest"};
    pthread_barrier_wait(r->line);
    r->rc = source_pin(r->job, &r->a, &r->pin, &e);
    return NULL;
}

static int refuse_loose(void *arg, const char *name, struct err *e)
{
    (void)arg;
    return strncmp(name, ".new-", 5) == 0 ? err_set(e, ERR_EXISTS, "%s is left", name) : 0;
}

static void attempts_that_race_all_begin_with_what_the_first_one_pinned(void **state)
{
    struct fixture *f = *state;
    for (int round = 0; round < RACES; round++) {
        struct racer r[RACERS] = {0};
        pthread_t thread[RACERS];
        pthread_barrier_t line;
        struct manifest_source kept;
        struct err e = {0};
        pthread_barrier_init(&line, NULL, RACERS);
        for (int i = 0; i < RACERS; i++) {
            r[i] = (struct racer){.job = &f->store, .line = &line, .step = i};
            assert_int_equal(pthread_create(&thread[i], NULL, race, &r[i]), 0);
        }
        for (int i = 0; i < RACERS; i++)
            pthread_join(thread[i], NULL);
        assert_int_equal(source_read(&f->store, &f->arena, &kept, &e), 0);
        for (int i = 0; i < RACERS; i++) {
            assert_int_equal(r[i].rc, 0);
            assert_int_equal(r[i].pin.step, kept.step);
            arena_clear(&r[i].a);
        }
        pthread_barrier_destroy(&line);
        assert_int_equal(unlinkat(f->store.fd, "SOURCE", 0), 0);
    }
    assert_int_equal(durable_list(f->store.fd, refuse_loose, NULL, NULL), 0);
}

static void a_damaged_pin_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"folder\": \"/x\", \"attempt\": 1, \"step\": 2}",
        "{\"folder\": 1, \"attempt\": 1, \"step\": 2, \"sha256\": \"a\"}",
        "{\"folder\": \"/x\", \"attempt\": -1, \"step\": 2, \"sha256\": \"a\"}",
        "{\"folder\": \"/x\", \"attempt\": 1, \"step\": -2, \"sha256\": \"a\"}",
        "{\"folder\": \"/x\", \"attempt\": 99999999999, \"step\": 2, \"sha256\": \"a\"}",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct manifest_source read;
        struct err e = {0};
        int fd = openat(f->store.fd, "SOURCE", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0 && write(fd, texts[i], strlen(texts[i])) == (ssize_t)strlen(texts[i]));
        close(fd);
        assert_true(source_read(&f->store, &f->arena, &read, &e) != 0);
        assert_non_null(strstr(e.text, "SOURCE"));
    }
}

// ---- tokenizers ----

static struct tokenizer *read_tokenizer(const char *vocab, const char *merges, const char *added)
{
    struct tokenizer *t = NULL;
    struct buf text = {0};
    struct err e = {0};
    buf_printf(
        &text,
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [%s], "
        "\"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": null, "
        "\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", "
        "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
        "\"ignore_merges\": false, \"vocab\": {%s}, \"merges\": [%s]}}",
        added, vocab, merges);
    if (tokenizer_parse(&t, text.data, text.len, NULL, 0, &e))
        fail_msg("%s: %s", e.text, text.data);
    buf_clear(&text);
    return t;
}

#define ADDED(id, content)                                                                        \
    "{\"id\": " #id ", \"content\": \"" content "\", \"single_word\": false, \"lstrip\": false, " \
    "\"rstrip\": false, \"normalized\": false, \"special\": true}"

static void ids_of_the_vocabulary_must_mean_what_they_meant(void **state)
{
    static const struct {
        const char *vocab, *merges, *added;
        int32_t differs; // −2: it extends the first
    } cases[] = {
        {"\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\"", ADDED(3, "<s>"), -2},
        {"\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\"", ADDED(3, "<s>") ", " ADDED(4, "<chat>"), -2},
        {"\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\"", ADDED(3, "<other>"), -2},
        {"\"a\": 0, \"b\": 1, \"ab\": 2, \"ba\": 4", "\"a b\", \"b a\"", ADDED(3, "<s>"), -2},
        {"\"b\": 0, \"a\": 1, \"ab\": 2", "\"a b\"", ADDED(3, "<s>"), 0},
        {"\"a\": 0, \"b\": 1, \"ba\": 2", "\"b a\"", ADDED(3, "<s>"), 2},
        {"\"a\": 0, \"b\": 1", "", ADDED(3, "<s>"), 2},
    };
    struct fixture *f = *state;
    struct err e = {0};
    struct tokenizer *first = read_tokenizer(cases[0].vocab, cases[0].merges, cases[0].added);
    const struct load l = {.manifest = {.tokenizer = tokenizer_identity(first)}};
    const struct manifest_source pin = {.folder = f->store.path};
    for (size_t i = 1; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = read_tokenizer(cases[i].vocab, cases[i].merges, cases[i].added);
        const struct source_tokenizer job = {tokenizer_identity(t), t};
        struct buf note = {0};
        int32_t differs;
        assert_int_equal(tokenizer_extends(t, first, &differs), cases[i].differs == -2);
        if (cases[i].differs != -2)
            assert_int_equal(differs, cases[i].differs);
        // the checkpoint's files are not there: nobody can see whether it is extended
        assert_int_equal(source_check_tokenizer(&l, NULL, &pin, "wte", &job, &note, &e),
                         ERR_INVALID);
        assert_non_null(strstr(e.text, l.manifest.tokenizer));
        assert_non_null(strstr(e.text, job.identity));
        assert_int_equal(mkdirat(f->store.fd, STORE_TOKENIZER, 0700), 0);
        char *folder = arena_printf(&f->arena, "%s/" STORE_TOKENIZER, f->store.path);
        assert_int_equal(tokenizer_save(first, AT_FDCWD, folder, &e), 0);
        int rc = source_check_tokenizer(&l, NULL, &pin, "wte", &job, &note, &e);
        assert_int_equal(rc, cases[i].differs == -2 ? 0 : ERR_INVALID);
        assert_int_equal(!rc, strstr(buf_str(&note), " extends the checkpoint's, sha256:") != NULL);
        buf_reset(&note);
        assert_int_equal(source_check_tokenizer(&l, NULL, &pin, NULL, &job, &note, &e), 0);
        assert_non_null(strstr(buf_str(&note), " is not the checkpoint's, sha256:"));
        assert_int_equal(durable_remove_tree(f->store.fd, STORE_TOKENIZER, &e), 0);
        buf_clear(&note);
        tokenizer_close(t);
    }
    tokenizer_close(first);
}

static void a_tokenizer_that_nobody_knows_is_compared_with_none(void **state)
{
    static const struct {
        const char *trained, *now;
        int code;
    } cases[] = {
        {"", "sha256:1", 0},
        {"ids", "sha256:1", 0},
        {"sha256:1", "", 0},
        {"sha256:1", "ids", 0},
        {"sha256:1", "sha256:1", 0},
        {"bytes", "bytes", 0},
        {"bytes", "sha256:1", ERR_INVALID},
        {"sha256:1", "bytes", ERR_INVALID},
        {"sha256:1", "sha256:2", ERR_INVALID},
    };
    struct fixture *f = *state;
    const struct manifest_source pin = {.folder = f->store.path};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct load l = {.manifest = {.tokenizer = cases[i].trained}};
        const struct source_tokenizer job = {cases[i].now, NULL};
        struct buf note = {0};
        struct err e = {0};
        assert_int_equal(source_check_tokenizer(&l, NULL, &pin, "wte", &job, &note, &e),
                         cases[i].code);
        assert_int_equal(note.len, 0);
        buf_clear(&note);
    }
}

// ---- names ----

static void a_pattern_renames_what_it_matches(void **state)
{
    static const struct {
        struct job_rename r;
        const char *name, *to; // null: not of this pattern
    } cases[] = {
        {{"a", "b"}, "a", "b"},
        {{"a", "b"}, "ab", NULL},
        {{"a", "b"}, "", NULL},
        {{"h/*", "layers/*"}, "h/0/attn", "layers/0/attn"},
        {{"h/*", "layers/*"}, "g/h/0", NULL},
        {{"*/w", "*/weight"}, "a/w/w", "a/w/weight"},
        {{"*/w", "*/weight"}, "a/ww", NULL},
        {{"h/*/attn/*", "layers/*/self/*"}, "h/3/attn/q/w", "layers/3/self/q/w"},
        {{"h/*/attn/*", "layers/*"}, "h/3/attn/q/w", "layers/3"},
        {{"*", "x/*"}, "a", "x/a"},
        {{"*", "x/*"}, "", "x/"},
        {{"*a*a*", "*-*-*"}, "xaya", "x-y-"},
        {{"ab*bc", "*"}, "abc", NULL},
        {{"ab*bc", "*"}, "abbc", ""},
        {{"**", "*|*"}, "abc", "|abc"},
        {{"a*a*a*a*a*a*a*b", "*"},
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         NULL},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *is = match_rename(&f->arena, &cases[i].r, cases[i].name);
        if (!cases[i].to && is)
            fail_msg("%s: '%s' became '%s'", cases[i].r.from, cases[i].name, is);
        if (cases[i].to)
            assert_string_equal(is, cases[i].to);
    }
}

// ---- tensors ----

static struct manifest_tensor tensor(const char *name, int64_t rows, int64_t padded,
                                     int64_t columns)
{
    return (struct manifest_tensor){.name = name,
                                    .dtype = DT_F32,
                                    .shape = {.n = 2, .dim = {padded, columns}},
                                    .unpadded = {rows, columns}};
}

static struct match_param param(const char *name, int64_t rows, int64_t padded, int64_t columns,
                                unsigned grows)
{
    return (struct match_param){.name = name,
                                .shape = {.n = 2, .dim = {padded, columns}},
                                .unpadded = {rows, columns},
                                .grows = grows};
}

static int match(struct fixture *f, struct manifest_tensor *t, int nt, const char *glob,
                 const struct job_rename *rename, const struct match_param *p, int np,
                 struct match *out, struct err *e)
{
    struct manifest m = {.ntensors = nt, .tensors = t};
    struct job_rename kept = rename ? *rename : (struct job_rename){0};
    const struct job_load load = {.params = {.n = 1, .items = &glob},
                                  .rename = {.n = rename != NULL, .items = &kept}};
    return match_params(&f->arena, &m, &load, p, np, out, e);
}

static void what_is_not_found_and_what_is_not_used_is_listed(void **state)
{
    struct fixture *f = *state;
    struct match m;
    struct err e = {0};
    struct buf text = {0};
    struct manifest_tensor t[] = {tensor("a", 4, 4, 3), tensor("m/a", 4, 4, 3),
                                  tensor("v/a", 4, 4, 3), tensor("old", 4, 4, 3),
                                  tensor("m/deep", 4, 4, 3)}; // a parameter: there is no "deep"
    struct match_param p[] = {param("a", 4, 4, 3, 0), param("head", 4, 4, 3, 0)};
    assert_int_equal(match(f, t, 5, "*", NULL, p, 2, &m, &e), 0);
    assert_ptr_equal(m.from[0], &t[0]);
    assert_null(m.from[1]);
    match_print(&m, 2, &text);
    assert_string_equal(buf_str(&text), "1 of 2 parameters are taken; not found, so drawn: head; "
                                        "not used: old, m/deep");
    struct manifest all = {.ntensors = 5, .tensors = t};
    assert_ptr_equal(match_state(&all, "m", m.from[0]), &t[1]);
    assert_null(match_state(&all, "momentum", m.from[0]));
    buf_clear(&text);
    assert_int_equal(match(f, t, 5, "none*", NULL, p, 2, &m, &e), ERR_INVALID);
    const struct job_rename clash = {"old", "a"};
    assert_int_equal(match(f, t, 5, "*", &clash, p, 2, &m, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "a and old would both be called a"));
}

static void only_a_vocabulary_may_be_longer_than_the_checkpoints(void **state)
{
    struct fixture *f = *state;
    struct match m;
    struct err e = {0};
    struct manifest_tensor t = tensor("a", 5, 8, 3);
    const struct {
        struct match_param p;
        bool fits;
        int grown;
    } cases[] = {
        {param("a", 5, 8, 3, 1), true, 0},  {param("a", 5, 5, 3, 0), true, 0},
        {param("a", 5, 16, 3, 0), true, 0}, {param("a", 7, 8, 3, 1), true, 1},
        {param("a", 7, 8, 3, 0), false, 0}, {param("a", 4, 8, 3, 1), false, 0},
        {param("a", 5, 8, 4, 1), false, 0}, {param("a", 7, 8, 4, 1), false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = match(f, &t, 1, "*", NULL, &cases[i].p, 1, &m, &e);
        assert_int_equal(rc, cases[i].fits ? 0 : ERR_INVALID);
        if (cases[i].fits)
            assert_int_equal(m.grown, cases[i].grown);
        else
            assert_non_null(strstr(e.text, "a is F32 [5, 3] in the checkpoint"));
    }
    struct manifest_tensor other = t;
    other.dtype = DT_BF16;
    assert_int_equal(match(f, &other, 1, "*", NULL, &cases[0].p, 1, &m, &e), 0);
    other.dtype = DT_I32;
    assert_int_equal(match(f, &other, 1, "*", NULL, &cases[0].p, 1, &m, &e), ERR_INVALID);
    other = t;
    other.shape.n = 1;
    assert_int_equal(match(f, &other, 1, "*", NULL, &cases[0].p, 1, &m, &e), ERR_INVALID);
}

static void padding_is_never_taken(void **state)
{
    (void)state;
    const struct manifest_tensor t = tensor("a", 5, 8, 3);
    const struct {
        int64_t unpadded, at, rows, there; // rows that are taken of the box
    } cases[] = {{5, 0, 8, 5}, {7, 0, 8, 5}, {5, 4, 4, 1},
                 {7, 4, 4, 1}, {7, 5, 3, 0}, {16, 8, 8, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct box b = {.start = {cases[i].at, 0},
                              .shape = {.n = 2, .dim = {cases[i].rows, 3}}};
        const int64_t unpadded[MAX_DIMS] = {cases[i].unpadded, 3};
        struct box there;
        assert_int_equal(match_clip(&t, unpadded, &b, &there), cases[i].there > 0);
        if (cases[i].there) {
            assert_int_equal(there.shape.dim[0], cases[i].there);
            assert_int_equal(there.start[0], cases[i].at);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FX_TEST(a_place_may_have_a_step),
        FX_TEST(the_newest_whole_one_of_a_folder_is_found_or_that_of_a_step),
        FX_TEST(a_root_is_not_left),
        FX_TEST(what_is_pinned_is_opened_or_nothing),
        FX_TEST(attempts_that_race_all_begin_with_what_the_first_one_pinned),
        FX_TEST(a_damaged_pin_is_refused),
        FX_TEST(ids_of_the_vocabulary_must_mean_what_they_meant),
        FX_TEST(a_tokenizer_that_nobody_knows_is_compared_with_none),
        FX_TEST(a_pattern_renames_what_it_matches),
        FX_TEST(what_is_not_found_and_what_is_not_used_is_listed),
        FX_TEST(only_a_vocabulary_may_be_longer_than_the_checkpoints),
        FX_TEST(padding_is_never_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
