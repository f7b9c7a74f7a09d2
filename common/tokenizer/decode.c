// SPDX-License-Identifier: Apache-2.0
// Ids to text. See pipeline.h.
//
// Each decoder takes the tokens of the one before it, and hands on what nothing can change any more. A
// token may come in parts, of whole characters, of which only the last one ends it: what fuses tokens
// need not wait for all of them.
#include "common/base/hash.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline.h"
#include "common/tokenizer/tokenizer.h"

#define REPLACEMENT "\ufffd"

struct decoding {
    const struct pipeline *p;
    struct decode_state *s;
    struct buf *text;
};

static void put_part(struct decoding *d, int step, const char *s, size_t n, bool ends);

// Hands on the bytes as UTF-8, each broken part as U+FFFD; without `all` an unfinished character waits.
static void release_bytes(struct decoding *d, int step, struct buf *bytes, bool all)
{
    size_t from = 0, whole, end = bytes->len - (all ? 0 : utf8_unfinished(bytes->data, bytes->len));
    for (size_t i = 0, n; i < end; i += n) {
        n = utf8_part(bytes->data + i, bytes->len - i, &whole);
        if (n == whole && i + n < end)
            continue;
        size_t to = n == whole ? i + n : i;
        put_part(d, step + 1, bytes->data + from, to - from, false);
        if (n != whole)
            put_part(d, step + 1, REPLACEMENT, sizeof REPLACEMENT - 1, false);
        from = i + n;
    }
    memmove(bytes->data, bytes->data + end, bytes->len - end);
    bytes->len -= end;
}

// A content stands for bytes, unless a character of it stands for none: then for itself.
static void put_byte_level(struct decoding *d, int step, const struct buf *token)
{
    struct buf *bytes = &d->s->steps[step].run;
    size_t before = bytes->len;
    for (size_t i = 0, n; i < token->len; i += n) {
        int byte = byte_level_byte(char_at(token->data + i, &n));
        if (byte < 0) {
            bytes->len = before;
            buf_append(bytes, token->data, token->len);
            break;
        }
        buf_putc(bytes, (char)byte);
    }
    if (bytes->len)
        release_bytes(d, step, bytes, false);
}

// <0xE2>, as Rust's parser of numbers reads it, which takes a + too; −1: another token.
static int read_byte_token(const struct buf *token)
{
    const char *s = buf_str(token);
    if (token->len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex_digit(s[4]) < 0)
        return -1;
    return s[3] == '+'           ? hex_digit(s[4])
           : hex_digit(s[3]) < 0 ? -1
                                 : hex_digit(s[3]) * 16 + hex_digit(s[4]);
}

// The bytes of a run are a text if all of them are UTF-8, or else each is a U+FFFD.
static void release_run(struct decoding *d, int step)
{
    struct buf *run = &d->s->steps[step].run;
    size_t n = 0;
    while (n < run->len && utf8_length(run->data + n, run->len - n))
        n += utf8_length(run->data + n, run->len - n);
    if (n == run->len && n)
        put_part(d, step + 1, run->data, n, true);
    for (size_t i = 0; n < run->len && i < run->len; i++)
        put_part(d, step + 1, REPLACEMENT, sizeof REPLACEMENT - 1, true);
    buf_reset(run);
}

static void put_byte_fallback(struct decoding *d, int step, const struct buf *token)
{
    int byte = read_byte_token(token);
    if (byte >= 0) {
        buf_putc(&d->s->steps[step].run, (char)byte);
        return;
    }
    release_run(d, step);
    put_part(d, step + 1, buf_str(token), token->len, true);
}

static void put_stripped(struct decoding *d, int step, const char *s, size_t n, bool ends)
{
    const struct decoder *by = &d->p->decoders[step];
    int *stripped = &d->s->steps[step].stripped;
    while (n && *stripped >= 0 && *stripped < by->start) {
        if (n < by->content.n || memcmp(s, by->content.s, by->content.n) != 0) {
            *stripped = -1;
            break;
        }
        s += by->content.n;
        n -= by->content.n;
        ++*stripped;
    }
    put_part(d, step + 1, s, n, ends);
    if (ends)
        *stripped = 0;
}

static void put_token(struct decoding *d, int step, struct buf *token)
{
    const struct decoder *by = &d->p->decoders[step];
    struct buf replaced = {0};
    if (by->kind == DECODE_BYTE_LEVEL) {
        put_byte_level(d, step, token);
    } else if (by->kind == DECODE_BYTE_FALLBACK) {
        put_byte_fallback(d, step, token);
    } else {
        replace_all(by->pattern, by->content, buf_str(token), token->len,
                    token->len + TOKENIZER_MAX_GROWTH, &replaced);
        put_part(d, step + 1, buf_str(&replaced), replaced.len, true);
        buf_clear(&replaced);
    }
}

static void put_part(struct decoding *d, int step, const char *s, size_t n, bool ends)
{
    if (step == d->p->ndecoders) {
        buf_append(d->text, s, n);
        return;
    }
    enum decoder_kind kind = d->p->decoders[step].kind;
    if (kind == DECODE_FUSE) {
        put_part(d, step + 1, s, n, false);
    } else if (kind == DECODE_STRIP) {
        put_stripped(d, step, s, n, ends);
    } else {
        struct buf *token = &d->s->steps[step].token;
        buf_append(token, s, n);
        if (!ends)
            return;
        put_token(d, step, token);
        buf_reset(token);
    }
}

void decode_put(const struct pipeline *p, struct decode_state *s, int32_t id, bool skip_special,
                struct buf *text)
{
    struct decoding d = {p, s, text};
    const struct vocabulary *v = &p->bpe.vocabulary;
    if (id < 0 || (size_t)id >= p->nids)
        return;
    int32_t added = p->added_by_id[id];
    if (added >= 0 && !(skip_special && p->added[added].hidden))
        put_part(&d, 0, p->added[added].shown, p->added[added].shown_bytes, true);
    else if (added < 0 && (size_t)id < v->n && v->tokens[id].content)
        put_part(&d, 0, v->tokens[id].content, v->tokens[id].bytes, true);
}

void decode_end(const struct pipeline *p, struct decode_state *s, struct buf *text)
{
    struct decoding d = {p, s, text};
    for (int step = 0; step < p->ndecoders; step++) {
        enum decoder_kind kind = p->decoders[step].kind;
        if (kind == DECODE_BYTE_LEVEL && s->steps[step].run.len)
            release_bytes(&d, step, &s->steps[step].run, true);
        if (kind == DECODE_BYTE_FALLBACK)
            release_run(&d, step);
        if (kind == DECODE_BYTE_LEVEL || kind == DECODE_FUSE)
            put_part(&d, step + 1, "", 0, true);
    }
}

void decode_clear(struct decode_state *s)
{
    for (int i = 0; i < PIPELINE_STEPS; i++) {
        buf_clear(&s->steps[i].token);
        buf_clear(&s->steps[i].run);
    }
    *s = (struct decode_state){0};
}
