// SPDX-License-Identifier: Apache-2.0
// `weft data prepare`: documents out of files however they are packed, and the tokens that they become.
#include <dirent.h>
#include <fcntl.h>
#include <zlib.h>
#include <zstd.h>

#include "common/data/prepare/documents.h"
#include "common/data/prepare/jsonl.h"
#include "common/data/prepare/prepare.h"
#include "tests/unit/scratch.h"

static void write_file(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        fail_msg("there is no %s", path);
    for (int c; (c = fgetc(f)) != EOF;)
        buf_putc(out, (char)c);
    fclose(f);
}

// ---- packing -----------------------------------------------------------------------------------
static void plain(struct buf *out, const char *text, size_t len)
{
    buf_append(out, text, len);
}

static void gzip(struct buf *out, const char *text, size_t len)
{
    z_stream z = {0};
    unsigned char packed[4096];
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)len;
    z.next_out = packed;
    z.avail_out = sizeof packed;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_append(out, packed, sizeof packed - z.avail_out);
    deflateEnd(&z);
}

static void zstd(struct buf *out, const char *text, size_t len)
{
    char packed[4096];
    size_t n = ZSTD_compress(packed, sizeof packed, text, len, 3);
    assert_false(ZSTD_isError(n));
    buf_append(out, packed, n);
}

static const char lines[] =
    "{\"text\": \"one\"}\n\n{\"text\": \"two\\u0000\\n\"}\n{\"id\": 3, \"text\": \"\"}";

// Reads all of a file's documents: each as "NUMBER:text;".
static int read_documents(const char *path, struct buf *out, struct err *e)
{
    struct arena names = {0}, line = {0};
    struct sources s;
    struct documents d;
    struct batch b = {0};
    int rc = sources_find(&s, &names, &path, 1, NULL, e);
    assert_int_equal(rc, 0);
    documents_init(&d, &s, "text", false, NULL, (struct hash128){0});
    while (!(rc = documents_next(&d, &b, e)) && b.source) {
        struct document doc = {0};
        while (!(rc = batch_document(&b, "text", &line, &doc, e)) && doc.text) {
            buf_printf(out, "%llu:", (unsigned long long)doc.number);
            buf_append(out, doc.text, doc.len);
            buf_putc(out, ';');
        }
        if (rc)
            break;
    }
    documents_clear(&d);
    buf_clear(&b.text);
    arena_clear(&names);
    arena_clear(&line);
    return rc;
}

static void documents_are_the_same_however_they_are_packed(void **state)
{
    static const char wanted[] = "0:one;1:two\0\n;2:;";
    void (*const packings[])(struct buf *, const char *, size_t) = {plain, gzip, zstd};
    (void)state;
    for (int p = 0; p < 3; p++)
        for (size_t cut = 0; cut < sizeof lines - 1; cut++) { // of two members or frames
            struct scratch s;
            struct buf packed = {0}, read = {0};
            scratch_make(&s);
            packings[p](&packed, lines, cut);
            packings[p](&packed, lines + cut, sizeof lines - 1 - cut);
            static const char *const names[] = {"in.jsonl", "in.jsonl.gz", "in.jsonl"};
            const char *path = scratch_path(&s, names[p]);
            write_file(path, packed.data, packed.len);
            assert_int_equal(read_documents(path, &read, NULL), 0);
            assert_int_equal(read.len, sizeof wanted - 1);
            assert_memory_equal(read.data, wanted, read.len);
            buf_clear(&packed);
            buf_clear(&read);
            scratch_remove(&s);
        }
}

static void what_is_packed_and_cut_off_is_refused_at_its_byte(void **state)
{
    void (*const packings[])(struct buf *, const char *, size_t) = {gzip, zstd};
    (void)state;
    for (int p = 0; p < 2; p++) {
        struct buf packed = {0};
        packings[p](&packed, lines, sizeof lines - 1);
        size_t whole = packed.len;
        packings[p](&packed, lines, sizeof lines - 1);
        for (size_t len = 4; len < packed.len; len++) {
            struct scratch s;
            struct buf read = {0};
            struct err e = {0};
            char want[80];
            scratch_make(&s);
            const char *path = scratch_path(&s, "in.txt");
            write_file(path, packed.data, len);
            int rc = read_documents(path, &read, &e);
            assert_int_equal(rc, len == whole ? 0 : ERR_DATA);
            snprintf(want, sizeof want, "in.txt: byte %zu: %s: the file ends here", len,
                     p ? "zstd" : "gzip");
            if (rc && !strstr(e.text, want))
                fail_msg("wanted '%s', got '%s'", want, e.text);
            buf_clear(&read);
            scratch_remove(&s);
        }
        buf_clear(&packed);
    }
}

static void frames_to_skip_may_come_first(void **state)
{
    static const char frame[] = "\x5e\x2a\x4d\x18\5\0\0\0 what";
    struct scratch s;
    struct buf packed = {0}, read = {0};
    (void)state;
    scratch_make(&s);
    plain(&packed, frame, 13);
    zstd(&packed, lines, sizeof lines - 1);
    plain(&packed, frame, 13);
    const char *path = scratch_path(&s, "in.jsonl");
    write_file(path, packed.data, packed.len);
    assert_int_equal(read_documents(path, &read, NULL), 0);
    assert_int_equal(read.len, 17);
    assert_memory_equal(read.data, "0:one;1:two\0\n;2:;", read.len);
    buf_clear(&packed);
    buf_clear(&read);
    scratch_remove(&s);
}

static void what_its_name_calls_packed_is_packed(void **state)
{
    static const char *const names[] = {"in.jsonl.gz", "in.jsonl.zst"};
    void (*const packings[])(struct buf *, const char *, size_t) = {gzip, zstd};
    (void)state;
    for (int p = 0; p < 2; p++)
        for (size_t len = 0; len < 5; len++) { // 4: another packing than the name says
            struct scratch s;
            struct buf packed = {0}, read = {0};
            struct err e = {0};
            scratch_make(&s);
            packings[len < 4 ? p : !p](&packed, lines, sizeof lines - 1);
            const char *path = scratch_path(&s, names[p]);
            write_file(path, packed.data, len < 4 ? len : packed.len);
            assert_int_equal(read_documents(path, &read, &e), ERR_DATA);
            const char *says = p         ? "byte 0: it is not packed with zstd"
                               : len < 2 ? "byte 0: it is not packed with gzip"
                               : len < 4 ? "the file ends here"
                                         : "byte 0: it is not packed with gzip";
            if (!strstr(e.text, says))
                fail_msg("wanted '%s', got '%s'", says, e.text);
            buf_clear(&packed);
            buf_clear(&read);
            scratch_remove(&s);
        }
}

static void what_is_packed_and_damaged_is_refused(void **state)
{
    void (*const packings[])(struct buf *, const char *, size_t) = {gzip, zstd};
    char text[2000];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    for (int p = 0; p < 2; p++) {
        struct buf packed = {0}, read = {0};
        struct scratch s;
        struct err e = {0};
        scratch_make(&s);
        packings[p](&packed, text, sizeof text);
        packed.data[p ? 5 : packed.len - 6] ^=
            0x55; // of gzip the checksum, of zstd the frame's head
        const char *path = scratch_path(&s, "in");
        write_file(path, packed.data, packed.len);
        assert_int_equal(read_documents(path, &read, &e), ERR_DATA);
        assert_non_null(strstr(e.text, p ? "zstd: " : "gzip: incorrect data check"));
        buf_clear(&packed);
        buf_clear(&read);
        scratch_remove(&s);
    }
}

static void files_that_hold_no_text_are_refused_with_what_to_do(void **state)
{
    static const struct {
        const char *bytes, *says;
    } cases[] = {
        {"PAR1....", "columns=['text']) for t in b.column(0).to_pylist())\" "},
        {"PAR1....", "in | weft data prepare - --format jsonl --field text --out DIR"},
        {"BZh91AY&", "`bzcat FILE | weft data prepare -"},
        {"\xfd\x37zXZ...", "`xzcat FILE | weft data prepare -"},
        {"PK\3\4....", "a zip archive"},
        {"ARROW1..", "an Arrow file"},
        {"\x93NUMPY..", "an npy file"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scratch s;
        struct buf read = {0};
        struct err e = {0};
        scratch_make(&s);
        const char *path = scratch_path(&s, "in");
        write_file(path, cases[i].bytes, 8);
        assert_int_equal(read_documents(path, &read, &e), ERR_UNSUPPORTED);
        if (!strstr(e.text, cases[i].says) || !strstr(e.text, path))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        buf_clear(&read);
        scratch_remove(&s);
    }
}

// ---- lines -------------------------------------------------------------------------------------
static void a_bad_line_is_named_with_its_place(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"[\"text\"]", "the line is no JSON object"},
        {"\"text\"", "the line is no JSON object"},
        {"{\"txt\": \"a\", \"id\": 1}", "the object has no field 'text': it has 'txt', 'id'"},
        {"{}", "no field 'text': it has none"},
        {"{\"text\": 7}", "field 'text' is no string"},
        {"{\"text\": null}", "field 'text' is no string"},
        {"{\"text\": \"a\xff\"}", "JSON at byte 11: bytes that are not UTF-8"},
        {"{\"text\": \"\\ud800\"}", "half of a surrogate pair"},
        {"{\"text\": \"a\"", "the text ends too early"},
        {"{\"text\": \"a\"} {}", "text behind the value"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "key 'text' is there twice"},
        {"{\"te\\u0000xt\": \"a\"}", "a zero character in a key"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scratch s;
        struct buf read = {0}, text = {0};
        struct err e = {0};
        scratch_make(&s);
        buf_printf(&text, "{\"text\": \"good\"}\n\n%s\n{\"text\": \"good\"}\n", cases[i].line);
        const char *path = scratch_path(&s, "in.jsonl");
        write_file(path, text.data, text.len);
        assert_int_equal(read_documents(path, &read, &e), ERR_DATA);
        assert_string_equal(buf_str(&read), "0:good;");
        if (!strstr(e.text, cases[i].says) || !strstr(e.text, "in.jsonl: line 3 (from byte 18): "))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        buf_clear(&read);
        buf_clear(&text);
        scratch_remove(&s);
    }
}

static void an_endless_line_is_refused(void **state)
{
    struct scratch s;
    struct buf read = {0};
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    const char *path = scratch_path(&s, "in.jsonl");
    write_file(path, "{\"text\": \"a\"}\n", 14);
    assert_int_equal(truncate(path, 14 + (off_t)LINE_MOST + (3 << 20)), 0); // zeros, and no newline
    assert_int_equal(read_documents(path, &read, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "in.jsonl: line 2 (byte 14): a line of more than 64 MiB"));
    assert_string_equal(buf_str(&read), "0:a;");
    buf_clear(&read);
    scratch_remove(&s);
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
    write_file(paths, file.data, file.len);
    c->inputs[0] = paths;
    c->inputs[1] = strdup(scratch_path(&c->s, "text"));
    write_file(c->inputs[1], c->texts[c->n - 1].data, c->texts[c->n - 1].len);
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
                buf_putc(&wanted, 0);
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
    write_file(path, text, strlen(text));
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
    write_file(c.inputs[1], "\x1f\x8b\x08\0\0\0\0\0\0", 9);
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
        write_file(in, text.data, text.len);
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
        cmocka_unit_test(documents_are_the_same_however_they_are_packed),
        cmocka_unit_test(what_is_packed_and_cut_off_is_refused_at_its_byte),
        cmocka_unit_test(frames_to_skip_may_come_first),
        cmocka_unit_test(what_its_name_calls_packed_is_packed),
        cmocka_unit_test(what_is_packed_and_damaged_is_refused),
        cmocka_unit_test(files_that_hold_no_text_are_refused_with_what_to_do),
        cmocka_unit_test(a_bad_line_is_named_with_its_place),
        cmocka_unit_test(an_endless_line_is_refused),
        cmocka_unit_test(any_number_of_threads_writes_the_same_bytes),
        cmocka_unit_test(shards_hold_every_document_once_and_in_order),
        cmocka_unit_test(an_interrupted_one_continues_to_the_same_bytes),
        cmocka_unit_test(a_folder_of_another_command_is_refused),
        cmocka_unit_test(another_text_in_a_stream_is_not_prepared_already),
        cmocka_unit_test(a_bad_input_leaves_no_tokens_under_their_names),
        cmocka_unit_test(a_text_that_the_tokenizer_refuses_is_named_with_its_place),
        cmocka_unit_test(one_document_of_each_run_is_drawn_for_validation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
