// SPDX-License-Identifier: Apache-2.0
// Texts to a tokenizer.json. See train_tokenizer.h.
#include "common/data/prepare/train_tokenizer.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/path.h"
#include "common/data/prepare/bpe_train.h"
#include "common/data/prepare/conveyor.h"
#include "common/tokenizer/pieces.h"

static const char special[] = "<|endoftext|>";

struct work {
    const struct train_tokenizer *t;
    struct train_report *report;
    pthread_mutex_t lock; // of the counts that the threads bring together at their end
    struct piece_counts counts;
};

// ---- counting ----------------------------------------------------------------------------------
struct counter {
    struct work *w;
    struct piece_counts counts;
    struct buf valid;
    struct arena line;
};

static void *counter_new(void *context)
{
    struct counter *c = heap_alloc(sizeof *c);
    c->w = context;
    return c;
}

static void counter_free(void *thread)
{
    struct counter *c = thread;
    pthread_mutex_lock(&c->w->lock);
    piece_counts_merge(&c->w->counts, &c->counts);
    pthread_mutex_unlock(&c->w->lock);
    piece_counts_clear(&c->counts);
    buf_clear(&c->valid);
    arena_clear(&c->line);
    free(c);
}

static void count_piece(void *context, const char *s, size_t n)
{
    piece_counts_add(context, s, (uint32_t)n, 1);
}

static int count_batch(void *thread, const struct batch *b, void *result, struct err *e)
{
    struct counter *c = thread;
    struct document doc = {0};
    (void)result;
    for (;;) {
        int rc = batch_document(b, c->w->t->field, &c->line, &doc, e);
        if (rc || !doc.text)
            return rc;
        pieces_each(doc.text, doc.len, &c->valid, count_piece, &c->counts);
    }
}

static int note_batch(void *context, const struct batch *b, void *result, struct err *e)
{
    struct work *w = context;
    (void)result, (void)e;
    w->report->taken = b->taken;
    w->report->documents = b->to.documents;
    return 0;
}

static void nothing_to_clear(void *result)
{
    (void)result;
}

static int tick(void *context, struct err *e)
{
    struct work *w = context;
    if (!w->t->report || !w->t->report(w->t->context, w->report))
        return 0;
    return err_set(e, ERR_ABORTED, "interrupted");
}

static int count_pieces(struct work *w, const struct sources *sources, struct err *e)
{
    struct documents docs;
    struct conveyor use = {.threads = w->t->threads,
                           .context = w,
                           .result_size = 1,
                           .thread_new = counter_new,
                           .thread_free = counter_free,
                           .work = count_batch,
                           .take = note_batch,
                           .result_clear = nothing_to_clear,
                           .tick = tick};
    documents_init(&docs, sources, w->t->field, true, NULL, (struct hash128){0});
    int rc = conveyor_run(&use, &docs, e);
    documents_clear(&docs);
    w->report->pieces = w->counts.n;
    return rc;
}

static int note_tokens(void *context, uint32_t tokens, struct err *e)
{
    struct work *w = context;
    w->report->tokens = tokens;
    return tick(w, e);
}

// ---- the file ----------------------------------------------------------------------------------
static void put_token(const struct bpe_learned *l, uint32_t id, struct buf *out)
{
    char character[BYTE_LEVEL_LONGEST];
    const struct bpe_token *t = &l->tokens[id];
    for (uint32_t i = 0; i < t->len; i++) {
        int n = byte_level_put((unsigned char)l->text.data[t->at + i], character);
        buf_append(out, character, (size_t)n);
    }
}

static void print_byte_level(struct json_out *w, const char *key)
{
    json_object(w, key);
    json_str(w, "type", "ByteLevel");
    json_bool(w, "add_prefix_space", false);
    json_bool(w, "trim_offsets", true);
    json_bool(w, "use_regex", true);
    json_end(w);
}

static void print_model(const struct bpe_learned *l, struct json_out *w)
{
    static const char *const none[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                       "end_of_word_suffix"},
                             *const off[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    struct buf text = {0};
    json_object(w, "model");
    json_str(w, "type", "BPE");
    for (int i = 0; i < 4; i++)
        json_null(w, none[i]);
    for (int i = 0; i < 3; i++)
        json_bool(w, off[i], false);
    json_object(w, "vocab");
    json_int(w, special, 0);
    for (uint32_t id = BPE_SPECIAL; id < l->ntokens; id++) {
        buf_reset(&text);
        put_token(l, id, &text);
        json_int(w, buf_str(&text), id);
    }
    json_end(w);
    json_array(w, "merges");
    for (uint32_t i = 0; i < l->nmerges; i++) {
        buf_reset(&text);
        put_token(l, l->merges[i].left, &text);
        buf_putc(&text, ' ');
        put_token(l, l->merges[i].right, &text);
        json_str(w, NULL, buf_str(&text));
    }
    json_end(w);
    json_end(w);
    buf_clear(&text);
}

static void print_tokenizer(const struct bpe_learned *l, struct buf *out)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    struct json_out w;
    json_out_init(&w, out);
    w.pretty = true;
    json_object(&w, NULL);
    json_str(&w, "version", "1.0");
    json_null(&w, "truncation");
    json_null(&w, "padding");
    json_array(&w, "added_tokens");
    json_object(&w, NULL);
    json_int(&w, "id", 0);
    json_str(&w, "content", special);
    for (int i = 0; i < 4; i++)
        json_bool(&w, flags[i], false);
    json_bool(&w, "special", true);
    json_end(&w);
    json_end(&w);
    json_null(&w, "normalizer");
    print_byte_level(&w, "pre_tokenizer");
    json_null(&w, "post_processor");
    print_byte_level(&w, "decoder");
    print_model(l, &w);
    json_end(&w);
    buf_putc(out, '\n');
    json_out_clear(&w);
}

// A file that is read and then replaced by what was learned of it would be lost.
static int check_inputs(const char *out, const struct sources *sources, struct err *e)
{
    struct stat old, st;
    for (int i = 0; i < sources->n && !stat(out, &old); i++)
        if (!stat(sources->v[i].path, &st) && st.st_dev == old.st_dev && st.st_ino == old.st_ino)
            return err_set(e, ERR_INVALID,
                           "%s is among the inputs, and --out would replace it: name another file, "
                           "or a pattern that leaves it out",
                           sources->v[i].path);
    return 0;
}

int train_tokenizer(const struct train_tokenizer *t, struct train_report *r, struct err *e)
{
    struct work w = {.t = t, .report = r, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct bpe_learned learned = {0};
    struct sources sources;
    struct arena names = {0};
    struct buf text = {0};
    *r = (struct train_report){0};
    const char *name = path_name(t->out);
    char folder[PATH_MAX];
    path_folder(t->out, folder, sizeof folder);
    int rc = sources_find(&sources, &names, t->inputs, t->ninputs, t->format, e);
    rc = rc ? rc : folder_check_write(folder, name, e);
    rc = rc ? rc : check_inputs(t->out, &sources, e);
    r->total = sources.streams ? 0 : sources.bytes;
    if (!rc)
        rc = count_pieces(&w, &sources, e);
    if (!rc && !w.counts.n)
        rc = err_set(e, ERR_INVALID, "the inputs hold no text: there is nothing to learn from");
    if (!rc)
        rc = bpe_train(&learned, &w.counts, t->vocab, note_tokens, &w, e);
    if (!rc) {
        r->tokens = learned.ntokens;
        print_tokenizer(&learned, &text);
        rc = folder_write_bytes(folder, name, text.data, text.len, 0666, FOLDER_DURABLE, e);
    }
    bpe_learned_clear(&learned);
    piece_counts_clear(&w.counts);
    buf_clear(&text);
    arena_clear(&names);
    return rc;
}
