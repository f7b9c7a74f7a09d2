// SPDX-License-Identifier: Apache-2.0
// The kinds of tokenizers under one roof. See tokenizer.h.
#include "common/tokenizer/tokenizer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/utf8.h"
#include "common/tokenizer/pipeline.h"
#include "common/tokenizer/plain_kinds.h"

#define JSON_NAME   "tokenizer.json"
#define VOCAB_NAME  "vocab.json"
#define MERGES_NAME "merges.txt"

enum kind { KIND_BYTES, KIND_IDS, KIND_FILE };
struct tokenizer {
    enum kind kind;
    char identity[TOKENIZER_IDENTITY_LEN];
    struct pipeline *pipeline; // of a file
    struct buf json, merges;   // the bytes that it was read from; no merges: one file
};
struct tokenizer_work {
    const struct tokenizer *tokenizer; // borrowed
    struct encode_work encode;
};
struct tokenizer_stream {
    const struct tokenizer *tokenizer; // borrowed
    bool skip_special, begun;
    struct buf held;           // bytes
    struct decode_state state; // a file's
};

// ---- opening -----------------------------------------------------------------------------------
static void set_identity(struct tokenizer *t)
{
    struct sha256 s;
    unsigned char digest[32];
    char hex[2 * sizeof digest + 1], sizes[64];
    sha256_init(&s);
    if (t->merges.data) {
        snprintf(sizes, sizeof sizes, "%zu %zu\n", t->json.len, t->merges.len);
        sha256_update(&s, sizes, strlen(sizes));
    }
    sha256_update(&s, t->json.data, t->json.len);
    sha256_update(&s, buf_str(&t->merges), t->merges.len);
    sha256_final(&s, digest);
    hex_print(digest, sizeof digest, hex);
    snprintf(t->identity, sizeof t->identity, "sha256:%s", hex);
}

// Takes both buffers; `merges` is empty where there is one file.
static int parse_files(struct tokenizer **out, struct buf *json, struct buf *merges, struct err *e)
{
    struct tokenizer *t = heap_alloc(sizeof *t);
    t->kind = KIND_FILE;
    t->json = *json;
    t->merges = *merges;
    *json = *merges = (struct buf){0};
    t->pipeline = heap_alloc(sizeof *t->pipeline);
    int rc = t->merges.data ? pipeline_read_pair(t->pipeline, t->json.data, t->json.len,
                                                 t->merges.data, t->merges.len, e)
                            : pipeline_read(t->pipeline, buf_str(&t->json), t->json.len, e);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    set_identity(t);
    *out = t;
    return 0;
}

int tokenizer_parse(struct tokenizer **t, const char *json, size_t bytes, const char *merges,
                    size_t merges_bytes, struct err *e)
{
    struct buf files[2] = {{0}, {0}};
    *t = NULL;
    buf_append(&files[0], json, bytes);
    if (merges)
        buf_append(&files[1], merges, merges_bytes);
    return parse_files(t, &files[0], &files[1], e);
}

static int read_file(const char *path, struct buf *out, struct err *e)
{
    buf_reserve(out, 0);
    return folder_read_whole(AT_FDCWD, path, true, TOKENIZER_MAX_FILE, out, e);
}

// The one file, or both of a folder that has no tokenizer.json.
static int read_files(const char *name, struct buf *json, struct buf *merges, struct err *e)
{
    struct stat st;
    struct buf path = {0};
    if (stat(name, &st) || !S_ISDIR(st.st_mode))
        return read_file(name, json, e);
    buf_printf(&path, "%s/" JSON_NAME, name);
    int rc = read_file(path.data, json, e);
    if (rc == ERR_NOTFOUND) {
        buf_reset(&path);
        buf_printf(&path, "%s/" VOCAB_NAME, name);
        rc = read_file(path.data, json, e);
        buf_reset(&path);
        buf_printf(&path, "%s/" MERGES_NAME, name);
        if (!rc)
            rc = read_file(path.data, merges, e);
        if (rc == ERR_NOTFOUND)
            err_set(e, rc, "%s: holds neither " JSON_NAME " nor " VOCAB_NAME " with " MERGES_NAME,
                    name);
    }
    buf_clear(&path);
    return rc;
}

int tokenizer_open(struct tokenizer **t, const char *name, struct err *e)
{
    static const char *const kinds[] = {[KIND_BYTES] = "bytes", [KIND_IDS] = "ids"};
    struct buf json = {0}, merges = {0};
    *t = NULL;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strcmp(name, kinds[k]) == 0) {
            *t = heap_alloc(sizeof **t);
            (*t)->kind = (enum kind)k;
            snprintf((*t)->identity, sizeof(*t)->identity, "%s", name);
            return 0;
        }
    int rc = read_files(name, &json, &merges, e);
    if (!rc) {
        rc = parse_files(t, &json, &merges, e);
        if (rc)
            err_wrap(e, "%s", name);
    }
    buf_clear(&json);
    buf_clear(&merges);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    if (t->pipeline)
        pipeline_clear(t->pipeline);
    free(t->pipeline);
    buf_clear(&t->json);
    buf_clear(&t->merges);
    free(t);
}

int tokenizer_save(const struct tokenizer *t, const char *dir, struct err *e)
{
    if (t->kind != KIND_FILE)
        return 0;
    int rc = t->merges.data ? folder_write(dir, MERGES_NAME, t->merges.data, FOLDER_DURABLE, e) : 0;
    return rc ? rc
              : folder_write(dir, t->merges.data ? VOCAB_NAME : JSON_NAME, t->json.data,
                             FOLDER_DURABLE, e);
}

// ---- what it is --------------------------------------------------------------------------------
int64_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->kind == KIND_FILE ? (int64_t)t->pipeline->nids : t->kind == KIND_BYTES ? 256 : 0;
}

const char *tokenizer_identity(const struct tokenizer *t)
{
    return t->identity;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *content)
{
    for (size_t i = 0; t->pipeline && i < t->pipeline->nadded; i++)
        if (strcmp(t->pipeline->added[i].content, content) == 0)
            return t->pipeline->added[i].id;
    return t->pipeline ? vocabulary_find(&t->pipeline->bpe.vocabulary, content, strlen(content))
                       : -1;
}

int tokenizer_find_end(const struct tokenizer *t, const char *content, int32_t *id, struct err *e)
{
    static const char *const usual[] = {
        "<|endoftext|>",         "<|end_of_text|>", "</s>",    "<eos>",
        "<｜end▁of▁sentence｜>", "[EOS]",           "<|eos|>", "<EOS>"};
    const struct added_token *found = NULL;
    *id = content ? tokenizer_id(t, content) : -1;
    if (content)
        return *id >= 0 ? 0
                        : err_set(e, ERR_INVALID, "no token of the tokenizer is '%.100s'", content);
    for (size_t i = 0; t->pipeline && i < t->pipeline->nadded; i++) {
        const struct added_token *a = &t->pipeline->added[i];
        for (size_t k = 0; a->special && k < sizeof usual / sizeof *usual; k++) {
            if (strcmp(usual[k], a->content) != 0)
                continue;
            if (found) {
                *id = -1;
                return err_set(e, ERR_INVALID,
                               "both '%s' and '%s' may end a document: say which one does",
                               found->content, a->content);
            }
            found = a;
            *id = a->id;
        }
    }
    return 0;
}

// ---- text to ids -------------------------------------------------------------------------------
struct tokenizer_work *tokenizer_work_new(const struct tokenizer *t)
{
    struct tokenizer_work *w = heap_alloc(sizeof *w);
    w->tokenizer = t;
    if (t->kind == KIND_FILE)
        encode_work_init(&w->encode);
    return w;
}

void tokenizer_work_free(struct tokenizer_work *w)
{
    if (w)
        encode_work_clear(&w->encode);
    free(w);
}

int tokenizer_encode(const struct tokenizer *t, struct tokenizer_work *w, const char *text,
                     size_t bytes, bool special, struct token_ids *out, struct err *e)
{
    PRE(w->tokenizer == t);
    if (bytes > TOKENIZER_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes: %d are encoded at once", bytes,
                       TOKENIZER_MAX_TEXT);
    if (t->kind == KIND_FILE)
        return pipeline_encode(t->pipeline, &w->encode, text, bytes, special, out, e);
    if (t->kind == KIND_IDS)
        return ids_encode(text, bytes, out, e);
    bytes_encode(text, bytes, out);
    return 0;
}

// ---- ids to text -------------------------------------------------------------------------------
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *text)
{
    struct tokenizer_stream *s = tokenizer_stream_new(t, skip_special);
    for (size_t i = 0; i < n; i++)
        tokenizer_stream_put(s, ids[i], text);
    tokenizer_stream_end(s, text);
    tokenizer_stream_free(s);
}

struct tokenizer_stream *tokenizer_stream_new(const struct tokenizer *t, bool skip_special)
{
    struct tokenizer_stream *s = heap_alloc(sizeof *s);
    s->tokenizer = t;
    s->skip_special = skip_special;
    return s;
}

static void put_bytes(struct tokenizer_stream *s, int32_t id, struct buf *text)
{
    bytes_decode(id, &s->held);
    size_t keep = utf8_unfinished(s->held.data, s->held.len);
    buf_append(text, s->held.data, s->held.len - keep);
    memmove(s->held.data, s->held.data + s->held.len - keep, keep);
    s->held.len = keep;
}

void tokenizer_stream_put(struct tokenizer_stream *s, int32_t id, struct buf *text)
{
    if (s->tokenizer->kind == KIND_FILE)
        decode_put(s->tokenizer->pipeline, &s->state, id, s->skip_special, text);
    else if (s->tokenizer->kind == KIND_IDS)
        ids_decode(id, !s->begun, text);
    else
        put_bytes(s, id, text);
    s->begun = true;
}

void tokenizer_stream_end(struct tokenizer_stream *s, struct buf *text)
{
    if (s->tokenizer->kind == KIND_FILE)
        decode_end(s->tokenizer->pipeline, &s->state, text);
    else
        buf_append(text, buf_str(&s->held), s->held.len);
    buf_reset(&s->held);
    s->begun = false;
}

void tokenizer_stream_free(struct tokenizer_stream *s)
{
    if (s) {
        buf_clear(&s->held);
        decode_clear(&s->state);
    }
    free(s);
}
