// SPDX-License-Identifier: Apache-2.0
// The kinds of tokenizers under one roof. See tokenizer.h.
#include "common/tokenizer/tokenizer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/root.h"
#include "common/base/utf8.h"
#include "common/tokenizer/pipeline.h"
#include "common/tokenizer/plain_kinds.h"

#define JSON_NAME   "tokenizer.json"
#define VOCAB_NAME  "vocab.json"
#define MERGES_NAME "merges.txt"

struct files { // no merges: one file
    struct buf json, merges;
};
enum kind { KIND_BYTES, KIND_IDS, KIND_FILE };
struct tokenizer {
    enum kind kind;
    char identity[TOKENIZER_IDENTITY_LEN];
    struct pipeline *pipeline; // of a file
    struct files files;        // that it was read from
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
static void clear_files(struct files *f)
{
    buf_clear(&f->json);
    buf_clear(&f->merges);
}

static void identify_files(const struct files *f, char identity[TOKENIZER_IDENTITY_LEN])
{
    struct sha256 s;
    unsigned char digest[32];
    char hex[2 * sizeof digest + 1], sizes[64];
    sha256_init(&s);
    if (f->merges.data) {
        snprintf(sizes, sizeof sizes, "%zu %zu\n", f->json.len, f->merges.len);
        sha256_update(&s, sizes, strlen(sizes));
    }
    sha256_update(&s, buf_str(&f->json), f->json.len);
    sha256_update(&s, buf_str(&f->merges), f->merges.len);
    sha256_final(&s, digest);
    hex_print(digest, sizeof digest, hex);
    snprintf(identity, TOKENIZER_IDENTITY_LEN, "sha256:%s", hex);
}

// Takes the files.
static int parse_files(struct tokenizer **out, struct files *f, struct err *e)
{
    struct tokenizer *t = heap_alloc(sizeof *t);
    t->kind = KIND_FILE;
    t->files = *f;
    *f = (struct files){0};
    t->pipeline = heap_alloc(sizeof *t->pipeline);
    const struct buf *json = &t->files.json, *merges = &t->files.merges;
    int rc = merges->data ? pipeline_read_pair(t->pipeline, buf_str(json), json->len, merges->data,
                                               merges->len, e)
                          : pipeline_read(t->pipeline, buf_str(json), json->len, e);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    identify_files(&t->files, t->identity);
    *out = t;
    return 0;
}

int tokenizer_parse(struct tokenizer **t, const char *json, size_t bytes, const char *merges,
                    size_t merges_bytes, struct err *e)
{
    struct files f = {0};
    *t = NULL;
    buf_append(&f.json, json, bytes);
    if (merges)
        buf_append(&f.merges, merges, merges_bytes);
    return parse_files(t, &f, e);
}

static int read_descriptor(int fd, const char *path, struct buf *out, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st))
        return err_errno(e, ERR_IO, "cannot look at %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_DATA, "%s is no regular file", path);
    if (st.st_size > TOKENIZER_MAX_FILE)
        return err_set(e, ERR_LIMIT, "%s has more than %d MiB", path, TOKENIZER_MAX_FILE >> 20);
    buf_reserve(out, (size_t)st.st_size);
    while (out->len < (size_t)st.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - out->len);
        if (n < 0)
            return err_errno(e, ERR_IO, "cannot read %s", path);
        if (n == 0)
            break;
        out->len += (size_t)n;
    }
    out->data[out->len] = 0;
    return 0;
}

static int read_file(const char *root, const char *path, struct buf *out, struct err *e)
{
    int fd, rc = root_open(root, path, O_RDONLY | O_NONBLOCK, 0, &fd, e);
    if (rc)
        return rc;
    rc = read_descriptor(fd, path, out, e);
    close(fd);
    return rc;
}

static bool is_folder(const char *root, const char *name)
{
    int fd;
    if (root_open(root, name, O_PATH | O_DIRECTORY, 0, &fd, NULL))
        return false;
    close(fd);
    return true;
}

// The one file, or both of a folder that has no tokenizer.json.
static int read_files(const char *root, const char *name, struct files *f, struct err *e)
{
    struct buf path = {0};
    if (!is_folder(root, name))
        return read_file(root, name, &f->json, e);
    buf_printf(&path, "%s/" JSON_NAME, name);
    int rc = read_file(root, path.data, &f->json, e);
    if (rc == ERR_NOTFOUND) {
        buf_reset(&path);
        buf_printf(&path, "%s/" VOCAB_NAME, name);
        rc = read_file(root, path.data, &f->json, e);
        buf_reset(&path);
        buf_printf(&path, "%s/" MERGES_NAME, name);
        if (!rc)
            rc = read_file(root, path.data, &f->merges, e);
        if (rc == ERR_NOTFOUND)
            err_set(e, rc, "%s: holds neither " JSON_NAME " nor " VOCAB_NAME " with " MERGES_NAME,
                    name);
    }
    buf_clear(&path);
    return rc;
}

static const char *const kinds[] = {[KIND_BYTES] = "bytes", [KIND_IDS] = "ids"};

static enum kind find_kind(const char *name)
{
    size_t k = 0;
    while (k < sizeof kinds / sizeof *kinds && strcmp(name, kinds[k]) != 0)
        k++;
    return (enum kind)k;
}

bool tokenizer_is_file(const char *name)
{
    return find_kind(name) == KIND_FILE;
}

int tokenizer_open_beneath(struct tokenizer **t, const char *root, const char *name, struct err *e)
{
    struct files f = {0};
    enum kind kind = find_kind(name);
    *t = NULL;
    if (kind != KIND_FILE) {
        *t = heap_alloc(sizeof **t);
        (*t)->kind = kind;
        snprintf((*t)->identity, sizeof(*t)->identity, "%s", name);
        return 0;
    }
    int rc = read_files(root, name, &f, e);
    if (!rc) {
        rc = parse_files(t, &f, e);
        if (rc)
            err_wrap(e, "%s", name);
    }
    clear_files(&f);
    return rc;
}

int tokenizer_open(struct tokenizer **t, const char *name, struct err *e)
{
    return tokenizer_open_beneath(t, NULL, name, e);
}

int tokenizer_identify(const char *root, const char *name, char identity[TOKENIZER_IDENTITY_LEN],
                       struct err *e)
{
    struct files f = {0};
    int rc = 0;
    if (find_kind(name) != KIND_FILE)
        snprintf(identity, TOKENIZER_IDENTITY_LEN, "%s", name);
    else if (!(rc = read_files(root, name, &f, e)))
        identify_files(&f, identity);
    clear_files(&f);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    if (t->pipeline)
        pipeline_clear(t->pipeline);
    free(t->pipeline);
    clear_files(&t->files);
    free(t);
}

int tokenizer_save(const struct tokenizer *t, int dirfd, const char *dir, struct err *e)
{
    const struct buf *json = &t->files.json, *merges = &t->files.merges;
    int rc = 0;
    if (merges->data)
        rc = folder_write_at(dirfd, dir, MERGES_NAME, merges->data, merges->len, 0600,
                             FOLDER_DURABLE, e);
    if (!rc && t->kind == KIND_FILE)
        rc = folder_write_at(dirfd, dir, merges->data ? VOCAB_NAME : JSON_NAME, buf_str(json),
                             json->len, 0600, FOLDER_DURABLE, e);
    return rc;
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

// The content of an id that is no added token; null: it has none.
static const struct vocabulary_token *find_plain_token(const struct pipeline *p, size_t id)
{
    const struct vocabulary *v = &p->bpe.vocabulary;
    return id < v->n && p->added_by_id[id] < 0 && v->tokens[id].content ? &v->tokens[id] : NULL;
}

bool tokenizer_extends(const struct tokenizer *t, const struct tokenizer *of, int32_t *differs)
{
    *differs = -1;
    if (t->kind != KIND_FILE || of->kind != KIND_FILE)
        return t->kind == of->kind;
    for (size_t id = 0; id < of->pipeline->bpe.vocabulary.n; id++) {
        const struct vocabulary_token *token = find_plain_token(of->pipeline, id);
        if (!token)
            continue;
        int32_t here = vocabulary_find(&t->pipeline->bpe.vocabulary, token->content, token->bytes);
        if (here != (int32_t)id) {
            *differs = (int32_t)id;
            return false;
        }
    }
    return true;
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
