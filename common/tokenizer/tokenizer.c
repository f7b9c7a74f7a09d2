// SPDX-License-Identifier: Apache-2.0
// The kinds of tokenizers under one roof. See tokenizer.h.
#include "common/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/utf8.h"
#include "common/tokenizer/plain_kinds.h"

enum kind { KIND_BYTES, KIND_IDS };
struct tokenizer {
    enum kind kind;
    char identity[TOKENIZER_IDENTITY_LEN];
};
struct tokenizer_work {
    const struct tokenizer *tokenizer;
};
struct tokenizer_stream {
    const struct tokenizer *tokenizer; // borrowed
    bool skip_special, begun;
    struct buf held;
};

int tokenizer_open(struct tokenizer **t, const char *name, struct err *e)
{
    static const char *const kinds[] = {[KIND_BYTES] = "bytes", [KIND_IDS] = "ids"};
    *t = NULL;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (strcmp(name, kinds[k]) == 0) {
            *t = heap_alloc(sizeof **t);
            (*t)->kind = (enum kind)k;
            snprintf((*t)->identity, sizeof(*t)->identity, "%s", name);
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "%s: files of tokenizers are not read yet", name);
}

int tokenizer_parse(struct tokenizer **t, const char *json, size_t bytes, const char *merges,
                    size_t merges_bytes, struct err *e)
{
    (void)json, (void)bytes, (void)merges, (void)merges_bytes;
    *t = NULL;
    return err_set(e, ERR_UNSUPPORTED, "files of tokenizers are not read yet");
}

void tokenizer_close(struct tokenizer *t)
{
    free(t);
}

int64_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->kind == KIND_BYTES ? 256 : 0;
}

const char *tokenizer_identity(const struct tokenizer *t)
{
    return t->identity;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *content)
{
    (void)t, (void)content;
    return -1;
}

int tokenizer_find_end(const struct tokenizer *t, const char *content, int32_t *id, struct err *e)
{
    *id = -1;
    return content ? err_set(e, ERR_INVALID, "no token of %s is '%.100s'", t->identity, content)
                   : 0;
}

int tokenizer_save(const struct tokenizer *t, const char *dir, struct err *e)
{
    (void)t, (void)dir, (void)e;
    return 0;
}

struct tokenizer_work *tokenizer_work_new(const struct tokenizer *t)
{
    struct tokenizer_work *w = heap_alloc(sizeof *w);
    w->tokenizer = t;
    return w;
}

void tokenizer_work_free(struct tokenizer_work *w)
{
    free(w);
}

int tokenizer_encode(const struct tokenizer *t, struct tokenizer_work *w, const char *text,
                     size_t bytes, bool special, struct token_ids *out, struct err *e)
{
    PRE(w->tokenizer == t);
    (void)special;
    if (t->kind == KIND_IDS)
        return ids_encode(text, bytes, out, e);
    bytes_encode(text, bytes, out);
    return 0;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *text)
{
    struct tokenizer_stream s = {.tokenizer = t, .skip_special = skip_special};
    for (size_t i = 0; i < n; i++)
        tokenizer_stream_put(&s, ids[i], text);
    tokenizer_stream_end(&s, text);
    buf_clear(&s.held);
}

struct tokenizer_stream *tokenizer_stream_new(const struct tokenizer *t, bool skip_special)
{
    struct tokenizer_stream *s = heap_alloc(sizeof *s);
    s->tokenizer = t;
    s->skip_special = skip_special;
    return s;
}

void tokenizer_stream_put(struct tokenizer_stream *s, int32_t id, struct buf *text)
{
    if (s->tokenizer->kind == KIND_IDS) {
        ids_decode(id, !s->begun, text);
        s->begun = true;
        return;
    }
    bytes_decode(id, &s->held);
    size_t keep = utf8_unfinished(s->held.data, s->held.len);
    buf_append(text, s->held.data, s->held.len - keep);
    memmove(s->held.data, s->held.data + s->held.len - keep, keep);
    s->held.len = keep;
}

void tokenizer_stream_end(struct tokenizer_stream *s, struct buf *text)
{
    buf_append(text, buf_str(&s->held), s->held.len);
    buf_reset(&s->held);
    s->begun = false;
}

void tokenizer_stream_free(struct tokenizer_stream *s)
{
    if (s)
        buf_clear(&s->held);
    free(s);
}
