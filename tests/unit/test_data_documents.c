// SPDX-License-Identifier: Apache-2.0
// Documents out of files however they are packed: texts whole, lines of JSON one by
// one, each refused with its place.
#include <zlib.h>
#include <zstd.h>

#include "common/data/prepare/documents.h"
#include "common/data/prepare/jsonl.h"
#include "tests/unit/scratch.h"

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
            scratch_write(path, packed.data, packed.len);
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
            scratch_write(path, packed.data, len);
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
    scratch_write(path, packed.data, packed.len);
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
            scratch_write(path, packed.data, len < 4 ? len : packed.len);
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
        scratch_write(path, packed.data, packed.len);
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
        {"\xff\xfeh\0e\0l\0", "text in UTF-16: `iconv -f utf-16 -t utf-8 FILE"},
        {"\xfe\xff\0h\0e\0l", "text in UTF-16: `iconv -f utf-16 -t utf-8 FILE"},
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
        scratch_write(path, cases[i].bytes, 8);
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
        scratch_write(path, text.data, text.len);
        assert_int_equal(read_documents(path, &read, &e), ERR_DATA);
        assert_string_equal(buf_str(&read), "0:good;");
        if (!strstr(e.text, cases[i].says) || !strstr(e.text, "in.jsonl: line 3 (from byte 18): "))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
        buf_clear(&read);
        buf_clear(&text);
        scratch_remove(&s);
    }
}

// Some editors and shells put it there.
static void a_byte_order_mark_before_the_first_line_means_nothing(void **state)
{
    struct scratch s;
    struct buf read = {0};
    struct err e = {0};
    static const char marked[] = "\xef\xbb\xbf{\"text\": \"a\"}\r\n{\"text\": \"b\"}\n";
    (void)state;
    scratch_make(&s);
    const char *path = scratch_path(&s, "in.jsonl");
    scratch_write(path, marked, sizeof marked - 1);
    if (read_documents(path, &read, &e))
        fail_msg("%s", e.text);
    assert_string_equal(buf_str(&read), "0:a;1:b;");
    buf_clear(&read);
    scratch_remove(&s);
}

static void an_endless_line_is_refused(void **state)
{
    struct scratch s;
    struct buf read = {0};
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    const char *path = scratch_path(&s, "in.jsonl");
    scratch_write(path, "{\"text\": \"a\"}\n", 14);
    assert_int_equal(truncate(path, 14 + (off_t)LINE_MOST + (3 << 20)), 0); // zeros, and no newline
    assert_int_equal(read_documents(path, &read, &e), ERR_LIMIT);
    assert_non_null(strstr(e.text, "in.jsonl: line 2 (byte 14): a line of more than 64 MiB"));
    assert_string_equal(buf_str(&read), "0:a;");
    buf_clear(&read);
    scratch_remove(&s);
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
        cmocka_unit_test(a_byte_order_mark_before_the_first_line_means_nothing),
        cmocka_unit_test(an_endless_line_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
