// SPDX-License-Identifier: Apache-2.0
// `weft data prepare`: the tokens that documents become, and what is there after whatever happens on the way.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/data/prepare/documents.h"
#include "common/data/prepare/prepare.h"
#include "tests/unit/scratch.h"

static void read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        fail_msg("there is no %s", path);
    for (int c; (c = fgetc(f)) != EOF;)
        buf_putc(out, (char)c);
    fclose(f);
}

// ---- tokens ------------------------------------------------------------------------------------
struct corpus {
    struct scratch s;
    struct tokenizer *t;
    const char *inputs[2];
    struct buf texts[600]; // the documents
    int n;
};

// A file of many lines, more than a batch of them, and one text that is longer than a batch.
static void corpus_make(struct corpus *c)
{
    struct buf file = {0};
    *c = (struct corpus){.n = 600};
    scratch_make(&c->s);
    assert_int_equal(tokenizer_open(&c->t, "bytes", NULL), 0);
    for (int i = 0; i < c->n - 1; i++) {
        for (int k = 0; k < 40 + i * 7919 % 5000; k++)
            buf_putc(&c->texts[i], (char)('a' + (i + k * k) % 26));
        buf_printf(&file, "{\"n\": %d, \"text\": \"%s\"}\n", i, buf_str(&c->texts[i]));
    }
    for (int k = 0; k < BATCH_BYTES + 12345; k++)
        buf_putc(&c->texts[c->n - 1], (char)(k % 251));
    char *paths = strdup(scratch_path(&c->s, "lines.jsonl"));
    scratch_write(paths, file.data, file.len);
    c->inputs[0] = paths;
    c->inputs[1] = strdup(scratch_path(&c->s, "text"));
    scratch_write(c->inputs[1], c->texts[c->n - 1].data, c->texts[c->n - 1].len);
    buf_clear(&file);
}

static void corpus_remove(struct corpus *c)
{
    for (int i = 0; i < c->n; i++)
        buf_clear(&c->texts[i]);
    for (int i = 0; i < 2; i++)
        free((char *)(uintptr_t)c->inputs[i]);
    tokenizer_close(c->t);
    scratch_remove(&c->s);
}

static struct prepare preparing(const struct corpus *c, const char *out, int threads)
{
    return (struct prepare){.inputs = c->inputs,
                            .ninputs = 2,
                            .field = "text",
                            .out = out,
                            .tokenizer = "bytes",
                            .t = c->t,
                            .end = PREPARE_END_BYTES,
                            .val_fraction = 0.1,
                            .shard_tokens = 300001,
                            .threads = threads};
}

static void assert_same_folder(const char *a, const char *b)
{
    DIR *d = opendir(a);
    int n = 0, m = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        struct buf x = {0}, y = {0};
        char path[600];
        if (*f->d_name == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", a, f->d_name);
        read_file(path, &x);
        snprintf(path, sizeof path, "%s/%s", b, f->d_name);
        read_file(path, &y);
        if (x.len != y.len || memcmp(x.data, y.data, x.len) != 0)
            fail_msg("%s differs", path);
        buf_clear(&x);
        buf_clear(&y);
        n++;
    }
    closedir(d);
    d = opendir(b);
    for (struct dirent *f; (f = readdir(d));)
        m += *f->d_name != '.';
    closedir(d);
    assert_int_equal(n, m);
}

static void any_number_of_threads_writes_the_same_bytes(void **state)
{
    static const int threads[] = {1, 2, 5};
    struct corpus c;
    char first[400];
    (void)state;
    corpus_make(&c);
    snprintf(first, sizeof first, "%s/1", c.s.dir);
    for (int i = 0; i < 3; i++) {
        struct prepare_result r;
        char out[400];
        snprintf(out, sizeof out, "%s/%d", c.s.dir, threads[i]);
        struct prepare p = preparing(&c, out, threads[i]);
        assert_int_equal(prepare_run(&p, &r, NULL), 0);
        assert_false(r.found_done);
        assert_int_equal(r.sum[0].documents, 540);
        assert_int_equal(r.sum[1].documents, 60);
        assert_same_folder(first, out);
    }
    corpus_remove(&c);
}

static void shards_hold_every_document_once_and_in_order(void **state)
{
    struct corpus c;
    struct prepare_result r;
    struct token_index index;
    struct arena a = {0};
    char out[400];
    (void)state;
    corpus_make(&c);
    snprintf(out, sizeof out, "%s/out/", c.s.dir);
    struct prepare p = preparing(&c, out, 2);
    assert_int_equal(prepare_run(&p, &r, NULL), 0);
    assert_int_equal(token_index_read(&a, NULL, out, &index, NULL), 0);
    for (int split = 0; split < TOKEN_SPLITS; split++) {
        struct buf wanted = {0}, got = {0};
        uint64_t bytes = 0, documents = 0;
        for (int i = 0; i < c.n; i++)
            if (prepare_is_val(0.1, (uint64_t)i) == split) {
                buf_append(&wanted, c.texts[i].data, c.texts[i].len);
                buf_putc(&wanted, (char)PREPARE_END_BYTES);
                bytes += c.texts[i].len;
                documents++;
            }
        for (int i = 0; i < index.nshards; i++) {
            const struct token_shard *s = &index.shards[i];
            struct array tokens;
            if (s->split != split)
                continue;
            assert_int_equal(array_open(&tokens, arena_printf(&a, "%s%s", out, s->file), NULL), 0);
            assert_int_equal(token_index_check(&index, &tokens, NULL), 0);
            bool last = i + 1 == index.nshards || index.shards[i + 1].split != split;
            assert_true(last ? tokens.count <= 300001 : tokens.count == 300001);
            for (uint64_t k = 0; k < tokens.count; k++)
                buf_putc(&got, (char)array_int(&tokens, k));
            array_close(&tokens);
        }
        assert_int_equal(got.len, wanted.len);
        assert_memory_equal(got.data, wanted.data, got.len);
        struct token_shard sum = token_index_sum(&index, split);
        assert_int_equal(sum.tokens, wanted.len);
        assert_int_equal(sum.bytes, bytes);
        assert_int_equal(sum.documents, documents);
        buf_clear(&wanted);
        buf_clear(&got);
    }
    arena_clear(&a);
    corpus_remove(&c);
}

static bool interrupt(void *context, const struct prepare_report *r)
{
    return r->tokens >= *(const uint64_t *)context;
}

static void an_interrupted_one_continues_to_the_same_bytes(void **state)
{
    struct corpus c;
    struct prepare_result r;
    char calm[400];
    (void)state;
    corpus_make(&c);
    snprintf(calm, sizeof calm, "%s/calm", c.s.dir);
    struct prepare p = preparing(&c, calm, 2);
    assert_int_equal(prepare_run(&p, &r, NULL), 0);
    uint64_t all = r.sum[0].tokens + r.sum[1].tokens;
    for (int parts = 2; parts < 6; parts++) {
        char out[400], index[420];
        struct err e = {0};
        int rc = 0, starts = 0;
        snprintf(out, sizeof out, "%s/%d-parts", c.s.dir, parts);
        for (uint64_t until = 0; until < all; until += all / (uint64_t)parts, starts++) {
            p = preparing(&c, out, 1 + starts % 3);
            p.report = interrupt;
            p.context = &until;
            rc = prepare_run(&p, &r, &e);
            assert_true(rc == 0 || rc == ERR_ABORTED);
            assert_true(rc == 0 || r.kept == (access(out, F_OK) == 0));
            snprintf(index, sizeof index, "%s/index.json", out);
            assert_true(rc == 0 || access(index, F_OK) == -1);
        }
        p = preparing(&c, out, 2);
        assert_int_equal(prepare_run(&p, &r, NULL), 0);
        assert_same_folder(calm, out);
        assert_int_equal(prepare_run(&p, &r, NULL), 0);
        assert_true(r.found_done);
        assert_same_folder(calm, out);
    }
    corpus_remove(&c);
}

static void flip_byte(const char *dir, const char *name, off_t at)
{
    char path[450], byte;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        fail_msg("there is no %s", path);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static bool interrupt_within(void *context, const struct prepare_report *r)
{
    (void)context;
    return r->tokens >= 700000; // behind two shards, within the third
}

static void a_shard_that_was_changed_is_not_continued(void **state)
{
    static const struct {
        const char *name;
        off_t at;
    } cases[] = {{"train-00000.bin", 8},         // finished: its number of tokens
                 {"train-00000.bin", 16},        // the tokenizer's identity
                 {"train-00001.bin", 1024},      // an id
                 {"train-00001.bin", 601024},    // the last one
                 {"train-00002.bin", 1024 + 99}, // of the one that grows
                 {"val-00000.bin", 1024}};
    struct corpus c;
    (void)state;
    corpus_make(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int done = 0; done < 2; done++) {
            struct prepare_result r;
            struct err e = {0};
            char out[400], name[40];
            snprintf(out, sizeof out, "%s/%zu-%d", c.s.dir, i, done);
            snprintf(name, sizeof name, "%s%s", cases[i].name, done ? "" : ".part");
            struct prepare p = preparing(&c, out, 2);
            p.report = done ? NULL : interrupt_within;
            assert_int_equal(prepare_run(&p, &r, NULL), done ? 0 : ERR_ABORTED);
            p.report = NULL;
            flip_byte(out, name, cases[i].at);
            assert_int_equal(prepare_run(&p, &r, &e), ERR_DATA);
            if (!strstr(e.text, cases[i].name) || !strstr(e.text, "is gone or was changed"))
                fail_msg("%s, byte %d: got '%s'", name, (int)cases[i].at, e.text);
            flip_byte(out, name, cases[i].at);
            assert_int_equal(prepare_run(&p, &r, NULL), 0);
        }
    corpus_remove(&c);
}

static void where_nothing_was_kept_the_folder_is_as_it_was(void **state)
{
    static const char *const texts[] = {"{\"txt\": 1}\n", "\n\n"};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int was = 0; was < 2; was++) {
            struct scratch s;
            struct prepare_result r;
            struct tokenizer *t;
            struct err e = {0};
            scratch_make(&s);
            const char *in = scratch_path(&s, "in.jsonl"), *out = scratch_path(&s, "out");
            scratch_write(in, texts[i], strlen(texts[i]));
            assert_int_equal(tokenizer_open(&t, "bytes", NULL), 0);
            assert_int_equal(was ? mkdir(out, 0777) : 0, 0);
            struct prepare p = {.inputs = &in,
                                .ninputs = 1,
                                .field = "text",
                                .out = out,
                                .tokenizer = "bytes",
                                .t = t,
                                .shard_tokens = 100,
                                .threads = 1};
            assert_int_equal(prepare_run(&p, &r, &e), i ? ERR_INVALID : ERR_DATA);
            assert_false(r.kept);
            assert_int_equal(rmdir(out), was ? 0 : -1); // empty, or none
            tokenizer_close(t);
            scratch_remove(&s);
        }
}

static void a_folder_of_another_command_is_refused(void **state)
{
    struct corpus c;
    struct prepare_result r;
    struct err e = {0};
    char out[400];
    (void)state;
    corpus_make(&c);
    snprintf(out, sizeof out, "%s/out", c.s.dir);
    struct prepare p = preparing(&c, out, 2);
    assert_int_equal(prepare_run(&p, &r, NULL), 0);
    p.val_fraction = 0.2;
    assert_int_equal(prepare_run(&p, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "was prepared with --val-fraction 0.1, and now it is 0.2"));
    p = preparing(&c, out, 2);
    p.ninputs = 1;
    assert_int_equal(prepare_run(&p, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "from other inputs"));
    p = preparing(&c, c.s.dir, 2);
    assert_int_equal(prepare_run(&p, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "is not empty and was not begun by `weft data prepare`"));
    corpus_remove(&c);
}

static int prepare_stream(struct corpus *c, const char *format, const char *text, struct err *e)
{
    const char *inputs[] = {"-", c->inputs[0]};
    struct prepare_result r;
    int kept = dup(STDIN_FILENO);
    const char *path = scratch_path(&c->s, "stream");
    scratch_write(path, text, strlen(text));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(kept >= 0 && fd >= 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    struct prepare p =
        preparing(c, scratch_path(&c->s, *format == 't' ? "out-text" : "out-lines"), 2);
    p.inputs = inputs;
    p.format = format;
    int rc = prepare_run(&p, &r, e);
    dup2(kept, STDIN_FILENO);
    close(kept);
    close(fd);
    return rc ? rc : r.found_done;
}

static void another_text_in_a_stream_is_not_prepared_already(void **state)
{
    static const char *const formats[] = {"jsonl", "text"};
    static const char first[] = "{\"text\": \"one\"}\n";
    static const char *const others[] = {
        "{\"text\": \"two\"}\n", "{\"text\": \"one\"}\n{\"text\": \"\"}\n", "{\"text\"", ""};
    struct corpus c;
    (void)state;
    corpus_make(&c);
    for (int f = 0; f < 2; f++) {
        struct err e = {0};
        assert_int_equal(prepare_stream(&c, formats[f], first, NULL), 0);
        assert_int_equal(prepare_stream(&c, formats[f], first, NULL), 1);
        for (int o = 0; o < 4; o++) {
            assert_int_equal(prepare_stream(&c, formats[f], others[o], &e), ERR_DATA);
            assert_non_null(strstr(e.text, "is not what it was when this began"));
        }
        assert_int_equal(prepare_stream(&c, formats[f], first, NULL), 1);
    }
    corpus_remove(&c);
}

static void a_bad_input_leaves_no_tokens_under_their_names(void **state)
{
    struct corpus c;
    struct prepare_result r;
    struct err e = {0};
    char out[400];
    (void)state;
    corpus_make(&c);
    snprintf(out, sizeof out, "%s/out", c.s.dir);
    scratch_write(c.inputs[1], "\x1f\x8b\x08\0\0\0\0\0\0", 9);
    struct prepare p = preparing(&c, out, 3);
    assert_int_equal(prepare_run(&p, &r, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "/text: byte 9: gzip: the file ends here"));
    assert_int_equal(access(scratch_path(&c.s, "out/index.json"), F_OK), -1);
    assert_int_equal(access(scratch_path(&c.s, "out/train-00000.bin"), F_OK), -1);
    assert_int_equal(access(scratch_path(&c.s, "out/train-00000.bin.part"), F_OK), 0);
    corpus_remove(&c);
}

// A tokenizer whose pattern tries every way to cut a run of a's before it knows that no b follows.
static void a_text_that_the_tokenizer_refuses_is_named_with_its_place(void **state)
{
    static const char json[] =
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [], "
        "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(a+a+)+b\"}, \"behavior\": \"Isolated\", \"invert\": false}, \"post_processor\": null, "
        "\"decoder\": {\"type\": \"Fuse\"}, \"model\": {\"type\": \"BPE\", \"dropout\": null, "
        "\"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
        "\"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {\"a\": 0, \"b\": 1}, "
        "\"merges\": []}}";
    static const struct {
        const char *name, *before, *behind, *says;
    } cases[] = {{"in.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"", "\"}\n",
                  "/in.jsonl: line 3 (from byte 16): a pattern gave up at byte 0 of "},
                 {"in.txt", "", "", "/in.txt: a pattern gave up at byte 0 of "}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct scratch s;
        struct tokenizer *t;
        struct prepare_result r;
        struct err e = {0};
        struct buf text = {0};
        scratch_make(&s);
        const char *in = scratch_path(&s, cases[i].name);
        buf_puts(&text, cases[i].before);
        for (int k = 0; k < 60; k++)
            buf_putc(&text, 'a');
        buf_printf(&text, "cb%s", cases[i].behind);
        scratch_write(in, text.data, text.len);
        if (tokenizer_parse(&t, json, sizeof json - 1, NULL, 0, &e))
            fail_msg("%s", e.text);
        struct prepare p = {.inputs = &in,
                            .ninputs = 1,
                            .field = "text",
                            .out = scratch_path(&s, "out"),
                            .tokenizer = "t.json",
                            .t = t,
                            .shard_tokens = 100,
                            .threads = 2};
        assert_int_equal(prepare_run(&p, &r, &e), ERR_LIMIT);
        if (!strstr(e.text, cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        tokenizer_close(t);
        buf_clear(&text);
        scratch_remove(&s);
    }
}

static void one_document_of_each_run_is_drawn_for_validation(void **state)
{
    static const double fractions[] = {0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.99};
    (void)state;
    for (size_t f = 0; f < sizeof fractions / sizeof *fractions; f++) {
        uint64_t n = 0, drawn = 0, apart = 0;
        for (uint64_t before = 0; n < 20000; n++)
            if (prepare_is_val(fractions[f], n)) {
                apart |= UINT64_C(1) << (n - before) % 64; // distances that occur
                before = n;
                drawn++;
            }
        assert_in_range(drawn, (uint64_t)(fractions[f] * 20000) - 1,
                        (uint64_t)(fractions[f] * 20000) + 1);
        assert_false(prepare_is_val(fractions[f], 0) && fractions[f] <= 0.5);
        if (fractions[f] < 0.5)
            assert_true((apart & (apart - 1)) != 0); // drawn, and not every tenth
    }
    assert_false(prepare_is_val(0, 7));
    for (uint64_t n = 0; n < 1000; n++)
        assert_false(prepare_is_val(PREPARE_VAL_LEAST, n)); // what is drawn lies further behind
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_writes_the_same_bytes),
        cmocka_unit_test(shards_hold_every_document_once_and_in_order),
        cmocka_unit_test(an_interrupted_one_continues_to_the_same_bytes),
        cmocka_unit_test(a_shard_that_was_changed_is_not_continued),
        cmocka_unit_test(where_nothing_was_kept_the_folder_is_as_it_was),
        cmocka_unit_test(a_folder_of_another_command_is_refused),
        cmocka_unit_test(another_text_in_a_stream_is_not_prepared_already),
        cmocka_unit_test(a_bad_input_leaves_no_tokens_under_their_names),
        cmocka_unit_test(a_text_that_the_tokenizer_refuses_is_named_with_its_place),
        cmocka_unit_test(one_document_of_each_run_is_drawn_for_validation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
