// SPDX-License-Identifier: Apache-2.0
// `weft data train-tokenizer`: the merges of random texts against a reference that counts everything again
// for every merge, and the file against the reader of tokenizers.
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/data/prepare/bpe_train.h"
#include "common/data/prepare/train_tokenizer.h"
#include "common/tokenizer/pieces.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/unit/scratch.h"

enum { PIECES = 40, LONGEST = 24, VOCAB = 300 };

// ---- the reference: a piece is a row of texts, tokens are texts ---------------------------------
struct reference {
    char tokens[VOCAB][LONGEST + 1];
    int ntokens;
    int row[PIECES][LONGEST], len[PIECES];
    uint64_t count[PIECES];
    int npieces;
};

static void count_pairs(const struct reference *r, uint64_t counts[VOCAB][VOCAB])
{
    memset(counts, 0, sizeof(uint64_t) * VOCAB * VOCAB);
    for (int p = 0; p < r->npieces; p++)
        for (int i = 0; i + 1 < r->len[p]; i++)
            counts[r->row[p][i]][r->row[p][i + 1]] += r->count[p];
}

static int find_text(const struct reference *r, const char *text)
{
    int id = 1;
    while (id < r->ntokens && strcmp(r->tokens[id], text) != 0)
        id++;
    return id;
}

// Merges the best pair everywhere; false: there is none.
static bool merge_best(struct reference *r, struct bpe_merge *out)
{
    static uint64_t counts[VOCAB][VOCAB];
    char joined[2 * LONGEST + 1];
    uint64_t best = 0;
    count_pairs(r, counts);
    for (int a = 0; a < r->ntokens; a++)
        for (int b = 0; b < r->ntokens; b++)
            if (counts[a][b] > best) { // of equal ones the first
                best = counts[a][b];
                *out = (struct bpe_merge){(uint32_t)a, (uint32_t)b};
            }
    if (!best)
        return false;
    snprintf(joined, sizeof joined, "%s%s", r->tokens[out->left], r->tokens[out->right]);
    int id = find_text(r, joined);
    if (id == r->ntokens)
        strcpy(r->tokens[r->ntokens++], joined);
    for (int p = 0; p < r->npieces; p++) {
        int n = 0;
        for (int i = 0; i < r->len[p]; i++) {
            bool both = i + 1 < r->len[p] && r->row[p][i] == (int)out->left &&
                        r->row[p][i + 1] == (int)out->right;
            r->row[p][n++] = both ? id : r->row[p][i];
            i += both;
        }
        r->len[p] = n;
    }
    return true;
}

// ---- against it --------------------------------------------------------------------------------
static unsigned draw(uint64_t *seed, unsigned below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)(*seed >> 33) % below;
}

static int no_tick(void *context, uint32_t tokens, struct err *e)
{
    (void)context, (void)tokens, (void)e;
    return 0;
}

static void merges_are_those_of_counting_again_each_time(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        static struct reference r;
        struct piece_counts counts = {0};
        struct bpe_learned l;
        uint64_t s = seed;
        unsigned letters = 1 + draw(&s, 4); // few of them: runs that overlap, and equal counts
        r = (struct reference){.ntokens = 1, .npieces = PIECES};
        for (unsigned c = '!'; r.ntokens < 257; c++) // printable bytes come first, as characters do
            r.tokens[r.ntokens++][0] = (char)c;
        for (int p = 0; p < PIECES; p++) {
            char text[LONGEST + 1] = "";
            r.len[p] = 1 + (int)draw(&s, LONGEST);
            r.count[p] = 1 + draw(&s, 3);
            for (int i = 0; i < r.len[p]; i++) {
                text[i] = (char)('a' + draw(&s, letters));
                r.row[p][i] = 1 + text[i] - '!';
            }
            piece_counts_add(&counts, text, (uint32_t)r.len[p], r.count[p]);
        }
        assert_int_equal(bpe_train(&l, &counts, VOCAB, no_tick, NULL, NULL), 0);
        uint32_t n = 0;
        for (struct bpe_merge m; r.ntokens < VOCAB && merge_best(&r, &m); n++)
            if (n >= l.nmerges || m.left != l.merges[n].left || m.right != l.merges[n].right)
                fail_msg("seed %d: merge %u is '%s' + '%s'", (int)seed, n, r.tokens[m.left],
                         r.tokens[m.right]);
        assert_int_equal(l.nmerges, n);
        assert_int_equal(l.ntokens, r.ntokens);
        bpe_learned_clear(&l);
        piece_counts_clear(&counts);
    }
}

static void write_texts(const char *path, int n)
{
    static const char *const words[] = {"the ", "cat ", "catalogue", " sat\n", "é",
                                        "日本", "!!",   "\xff",      "don't "};
    FILE *f = fopen(path, "wbe");
    uint64_t s = 7;
    assert_non_null(f);
    for (int i = 0; i < n; i++)
        fputs(words[draw(&s, sizeof words / sizeof *words)], f);
    assert_int_equal(fclose(f), 0);
}

static void read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "rbe");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        buf_putc(out, (char)c);
    fclose(f);
}

static void the_file_is_the_same_by_any_threads_and_reads_back(void **state)
{
    struct scratch s;
    struct buf first = {0}, text = {0}, again = {0};
    struct tokenizer *t;
    struct token_ids ids = {0};
    (void)state;
    scratch_make(&s);
    const char *in = scratch_path(&s, "in"), *out = scratch_path(&s, "tokenizer.json");
    write_texts(in, 600000); // three MiB: batches for every thread
    for (int threads = 1; threads <= 5; threads += 2) {
        struct train_tokenizer train = {.inputs = &in,
                                        .ninputs = 1,
                                        .field = "text",
                                        .out = out,
                                        .vocab = 280,
                                        .threads = threads};
        struct train_report r;
        struct buf made = {0};
        assert_int_equal(train_tokenizer(&train, &r, NULL), 0);
        assert_int_equal(r.tokens, 280);
        read_file(out, &made);
        if (!first.len)
            buf_append(&first, made.data, made.len);
        assert_int_equal(made.len, first.len);
        assert_memory_equal(made.data, first.data, made.len);
        buf_clear(&made);
    }
    assert_int_equal(tokenizer_open(&t, out, NULL), 0);
    int32_t end;
    assert_int_equal(tokenizer_find_end(t, NULL, &end, NULL), 0);
    assert_int_equal(end, 0);
    assert_int_equal(tokenizer_vocab(t), 280);
    struct tokenizer_work *w = tokenizer_work_new(t);
    buf_puts(&text, "the catalogue sat\n日本 don't é!!");
    assert_int_equal(tokenizer_encode(t, w, text.data, text.len, false, &ids, NULL), 0);
    assert_true(ids.n < text.len / 2); // merges are used
    tokenizer_decode(t, ids.data, ids.n, false, &again);
    assert_string_equal(buf_str(&again), buf_str(&text));
    tokenizer_work_free(w);
    tokenizer_close(t);
    token_ids_clear(&ids);
    buf_clear(&first);
    buf_clear(&text);
    buf_clear(&again);
    scratch_remove(&s);
}

static void too_few_texts_give_a_smaller_vocabulary(void **state)
{
    struct scratch s;
    struct train_report r;
    struct err e = {0};
    (void)state;
    scratch_make(&s);
    const char *in = scratch_path(&s, "in"), *out = scratch_path(&s, "t.json");
    FILE *f = fopen(in, "wbe");
    fputs("abab", f);
    fclose(f);
    struct train_tokenizer train = {
        .inputs = &in, .ninputs = 1, .field = "text", .out = out, .vocab = 1000, .threads = 1};
    assert_int_equal(train_tokenizer(&train, &r, NULL), 0);
    assert_int_equal(r.tokens, 259); // ab, abab
    assert_int_equal(truncate(in, 0), 0);
    assert_int_equal(train_tokenizer(&train, &r, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "the inputs hold no text"));
    scratch_remove(&s);
}

static void where_the_file_cannot_be_no_text_is_read(void **state)
{
    struct scratch s;
    struct train_report r;
    (void)state;
    scratch_make(&s);
    const char *in = scratch_path(&s, "in.jsonl"), *same = scratch_path(&s, "in-2.jsonl");
    const struct {
        const char *out, *says;
    } cases[] = {{scratch_path(&s, "none/t.json"), "/none/"},
                 {scratch_path(&s, "folder"), "/folder is a folder"},
                 {scratch_path(&s, "folder/"), "/folder/"},
                 {in, "/in.jsonl is among the inputs"},
                 {same, "/in.jsonl is among the inputs"}};
    scratch_write(in, "no JSON\n", 8); // which would be said if it were read
    assert_int_equal(link(in, same), 0);
    assert_int_equal(mkdir(scratch_path(&s, "folder"), 0777), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct train_tokenizer train = {.inputs = &in,
                                        .ninputs = 1,
                                        .field = "text",
                                        .out = cases[i].out,
                                        .vocab = 300,
                                        .threads = 1};
        assert_int_not_equal(train_tokenizer(&train, &r, &e), 0);
        if (!strstr(e.text, cases[i].says) || strstr(e.text, "line 1"))
            fail_msg("wanted '%s', got '%s'", cases[i].says, e.text);
    }
    scratch_remove(&s);
}

static void what_is_called_like_it_stays(void **state)
{
    struct scratch s;
    struct train_report r;
    struct buf text = {0};
    struct stat st;
    (void)state;
    scratch_make(&s);
    const char *in = scratch_path(&s, "in"), *out = scratch_path(&s, "t.json"),
               *part = scratch_path(&s, "t.json.part");
    scratch_write(in, "abab", 4);
    scratch_write(part, "mine", 4);
    struct train_tokenizer train = {
        .inputs = &in, .ninputs = 1, .field = "text", .out = out, .vocab = 1000, .threads = 1};
    mode_t old = umask(022);
    assert_int_equal(train_tokenizer(&train, &r, NULL), 0);
    umask(old);
    assert_int_equal(stat(out, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644); // others may read it
    read_file(part, &text);
    assert_string_equal(buf_str(&text), "mine");
    buf_clear(&text);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_those_of_counting_again_each_time),
        cmocka_unit_test(the_file_is_the_same_by_any_threads_and_reads_back),
        cmocka_unit_test(where_the_file_cannot_be_no_text_is_read),
        cmocka_unit_test(what_is_called_like_it_stays),
        cmocka_unit_test(too_few_texts_give_a_smaller_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
