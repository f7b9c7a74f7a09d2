// SPDX-License-Identifier: Apache-2.0
// Batches of documents. See documents.h.
#include "common/data/prepare/documents.h"

#include <string.h>

#include "common/base/utf8.h"
#include "common/data/prepare/jsonl.h"

void documents_init(struct documents *d, const struct sources *s, const char *field, bool cut,
                    const struct place *from, struct hash128 stream)
{
    *d = (struct documents){.sources = s, .field = field, .cut = cut, .digest = stream};
    d->seeks = from != NULL;
    if (from)
        d->from = *from;
}

void documents_clear(struct documents *d)
{
    input_close(&d->input);
    buf_clear(&d->rest);
    xxh3_free(d->stream);
    d->stream = NULL;
}

static const struct source *current(const struct documents *d)
{
    return &d->sources->v[d->at.source];
}

static int open_source(struct documents *d, struct err *e)
{
    const struct source *s = current(d);
    int rc = input_open(&d->input, s->path, d->field, d->stop, e);
    if (rc)
        return rc;
    d->ended = false;
    if (s->stream)
        d->stream = xxh3_new();
    return 0;
}

static void leave_source(struct documents *d)
{
    struct hash128 streams = d->at.streams;
    d->before += current(d)->size;
    input_close(&d->input);
    if (d->stream) {
        xxh3_update(d->stream, &streams, sizeof streams);
        streams = xxh3_digest(d->stream);
    }
    xxh3_free(d->stream);
    d->stream = NULL;
    d->at = (struct place){
        .source = d->at.source + 1, .documents = d->at.documents, .streams = streams};
}

// Reads on behind `rest` until that has so many bytes or the source has ended.
static int read_until(struct documents *d, size_t bytes, struct err *e)
{
    while (!d->ended && d->rest.len < bytes) {
        size_t got;
        buf_reserve(&d->rest, INPUT_BUFFER);
        int rc = input_read(&d->input, d->rest.data + d->rest.len, &got, e);
        if (rc)
            return rc;
        d->rest.len += got;
        d->ended = got == 0;
    }
    return 0;
}

// Reads the source through, or as far as a byte that it has to have.
static int pass_text(struct documents *d, uint64_t most, bool whole, struct err *e)
{
    const struct source *s = current(d);
    int rc = open_source(d, e);
    if (!rc && !s->stream && d->input.packing == INPUT_PLAIN && most <= s->size)
        return input_seek(&d->input, most, e);
    for (uint64_t left = most; left && !rc;) {
        rc = read_until(d, left < BATCH_BYTES ? (size_t)left : BATCH_BYTES, e);
        size_t n = d->rest.len < left ? d->rest.len : (size_t)left;
        if (!rc && !n && whole)
            return 0;
        if (!rc && !n)
            rc = err_set(e, ERR_DATA, "%s: byte %llu: it ends here, and was longer when this began",
                         d->input.name, (unsigned long long)(most - left));
        if (d->stream)
            xxh3_update(d->stream, d->rest.data, n);
        memmove(d->rest.data, d->rest.data + n, d->rest.len - n);
        d->rest.len -= n;
        left -= n;
    }
    return rc;
}

static int compare_texts(struct hash128 was, struct hash128 now, const char *name, struct err *e)
{
    return hash128_equal(was, now)
               ? 0
               : err_set(e, ERR_DATA,
                         "%s is not what it was when this began: give it the same text, or "
                         "prepare into another folder",
                         name);
}

static int seek_place(struct documents *d, struct err *e)
{
    const struct place *to = &d->from;
    int rc = 0;
    d->seeks = false;
    if (to->source > d->sources->n)
        return err_set(e, ERR_DATA, "there are fewer inputs than when this began");
    while (d->at.source < to->source && !rc) { // streams only: files have their times
        if (current(d)->stream)
            rc = pass_text(d, UINT64_MAX, true, e);
        if (!rc)
            leave_source(d);
    }
    if (!rc)
        rc = compare_texts(to->streams, d->at.streams, "a stream among the inputs", e);
    if (rc)
        return rc;
    d->at = *to;
    if (to->source == d->sources->n || (to->byte == 0 && to->lines == 0))
        return 0;
    rc = pass_text(d, to->byte, false, e);
    if (!rc && d->stream)
        rc = compare_texts(d->digest, xxh3_digest(d->stream), d->input.name, e);
    return rc;
}

// ---- batches -----------------------------------------------------------------------------------
static bool is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r", line[i]) || !line[i])
            return false;
    return true;
}

// Finds where the batch's last line ends, its newline included: the last that ends within a MiB, else
// the one that is longer.
static int find_lines(struct documents *d, size_t *len, struct err *e)
{
    int rc = read_until(d, BATCH_BYTES, e);
    if (rc)
        return rc;
    size_t within = d->rest.len < BATCH_BYTES ? d->rest.len : BATCH_BYTES, looked = within;
    const char *newline = within ? memrchr(d->rest.data, '\n', within) : NULL;
    while (!newline && !(d->ended && looked == d->rest.len)) {
        if (looked > LINE_MOST)
            return err_set(e, ERR_LIMIT,
                           "%s: line %llu (byte %llu): a line of more than %d MiB: it is no JSONL, "
                           "or its documents must be smaller",
                           d->input.name, (unsigned long long)d->at.lines + 1,
                           (unsigned long long)d->at.byte, LINE_MOST >> 20);
        rc = looked == d->rest.len ? read_until(d, looked + BATCH_BYTES, e) : 0;
        if (rc)
            return rc;
        newline = memchr(d->rest.data + looked, '\n', d->rest.len - looked);
        looked = d->rest.len;
    }
    *len = newline ? (size_t)(newline - d->rest.data) + 1 : d->rest.len;
    return 0;
}

static void count_documents(const struct buf *text, struct place *at)
{
    for (size_t i = 0; i < text->len; at->lines++) {
        const char *line = text->data + i, *end = memchr(line, '\n', text->len - i);
        size_t len = end ? (size_t)(end - line) : text->len - i;
        at->documents += !is_blank(line, len);
        i += len + 1;
    }
}

static int find_text(struct documents *d, size_t *len, struct err *e)
{
    size_t most = d->cut ? BATCH_BYTES : DOCUMENT_MOST;
    int rc = read_until(d, most + 1, e);
    if (rc)
        return rc;
    if (d->rest.len > most && !d->cut)
        return err_set(
            e, ERR_LIMIT,
            "%s: a text is one document, and one of more than %d MiB is not taken: cut it "
            "into files, or make it lines of JSON (.jsonl), a document a line",
            d->input.name, DOCUMENT_MOST >> 20);
    *len = d->rest.len;
    if (*len <= most)
        return 0;
    // A piece ends behind a newline, and never within a character.
    const char *newline = memrchr(d->rest.data, '\n', most);
    *len =
        newline ? (size_t)(newline - d->rest.data) + 1 : most - utf8_unfinished(d->rest.data, most);
    return 0;
}

int documents_next(struct documents *d, struct batch *b, struct err *e)
{
    size_t len = 0;
    b->source = NULL;
    int rc = d->seeks ? seek_place(d, e) : 0;
    if (rc)
        return rc;
    while (d->at.source < d->sources->n) {
        const struct source *s = current(d);
        rc = d->input.buffer ? 0 : open_source(d, e);
        if (!rc)
            rc = (s->lines ? find_lines : find_text)(d, &len, e);
        if (rc)
            return rc;
        b->begins = d->at.byte == 0;
        b->ends = d->ended && d->rest.len == len;
        if (len || (!s->lines && b->begins)) {
            b->source = s;
            break;
        }
        leave_source(d);
    }
    if (!b->source)
        return 0;
    b->from = d->at;
    b->name = d->input.name;
    buf_reset(&b->text);
    buf_append(&b->text, d->rest.data, len);
    memmove(d->rest.data, d->rest.data + len, d->rest.len - len);
    d->rest.len -= len;
    d->at.byte += len;
    if (b->source->lines)
        count_documents(&b->text, &d->at);
    else if (b->ends)
        d->at.documents++;
    b->stream = (struct hash128){0};
    if (d->stream) {
        xxh3_update(d->stream, b->text.data, len);
        b->stream = xxh3_digest(d->stream);
    }
    b->taken = d->before + (b->source->stream ? 0 : input_place(&d->input));
    if (!b->source->lines && b->ends)
        leave_source(d);
    b->to = d->at;
    return 0;
}

// ---- the documents of a batch ------------------------------------------------------------------
void document_locate(const struct batch *b, const struct document *doc, struct err *e)
{
    if (b->source->lines)
        err_wrap(e, "%s: line %llu (from byte %llu)", b->name,
                 (unsigned long long)(b->from.lines + doc->line),
                 (unsigned long long)(b->from.byte + doc->at));
    else
        err_wrap(e, "%s", b->name);
}

static int next_line(const struct batch *b, const char *field, struct arena *a,
                     struct document *doc, struct err *e)
{
    static const char mark[] = "\xef\xbb\xbf"; // UTF-8's, which editors put before a file's text
    const size_t marked = sizeof mark - 1;
    while (doc->next < b->text.len) {
        const char *line = b->text.data + doc->next;
        const char *newline = memchr(line, '\n', b->text.len - doc->next);
        size_t at = doc->next, len = newline ? (size_t)(newline - line) : b->text.len - at;
        doc->next += len + 1;
        doc->line++;
        if (is_blank(line, len))
            continue;
        arena_clear(a);
        doc->at = at;
        if (!b->from.byte && !at && len >= marked && memcmp(line, mark, marked) == 0) {
            line += marked;
            len -= marked;
        }
        int rc = jsonl_text(a, line, len, field, &doc->text, &doc->len, e);
        if (rc) {
            document_locate(b, doc, e);
            return rc;
        }
        doc->bytes = doc->len;
        doc->number = b->from.documents + doc->begun++;
        doc->ends = true;
        return 0;
    }
    return 0;
}

int batch_document(const struct batch *b, const char *field, struct arena *a, struct document *doc,
                   struct err *e)
{
    doc->text = NULL;
    if (b->source->lines)
        return next_line(b, field, a, doc, e);
    if (doc->begun++)
        return 0;
    doc->text = buf_str(&b->text);
    doc->len = b->text.len;
    doc->number = b->from.documents;
    doc->bytes = b->from.byte + b->text.len;
    doc->ends = b->ends;
    return 0;
}
