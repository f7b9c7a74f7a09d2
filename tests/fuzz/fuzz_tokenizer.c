// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a tokenizer's file and a text. The input is tokenizer.json, a zero byte, and a text; or
// vocab.json, a zero byte, merges.txt, a zero byte, and a text. A file is refused with a message, or every
// id that comes of the text is one of its vocabulary, and what comes of the ids is UTF-8, whether they are
// decoded together or one by one.
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void check_text(const struct buf *text)
{
    for (size_t i = 0, n; i < text->len; i += n) {
        n = utf8_length(text->data + i, text->len - i);
        must(n > 0);
    }
}

static void check_decoding(const struct tokenizer *t, const struct token_ids *ids)
{
    struct buf whole = {0}, parts = {0};
    struct tokenizer_stream *s = tokenizer_stream_new(t, true);
    tokenizer_decode(t, ids->data, ids->n, true, &whole);
    check_text(&whole);
    for (size_t i = 0; i < ids->n; i++) {
        tokenizer_stream_put(s, ids->data[i], &parts);
        check_text(&parts);
    }
    tokenizer_stream_end(s, &parts);
    must(parts.len == whole.len && (!whole.len || memcmp(parts.data, whole.data, whole.len) == 0));
    tokenizer_stream_free(s);
    buf_clear(&whole);
    buf_clear(&parts);
}

static void check_encoding(const struct tokenizer *t, const char *text, size_t bytes)
{
    struct token_ids ids = {0}, again = {0};
    struct err e = {0};
    struct tokenizer_work *w = tokenizer_work_new(t);
    int rc = tokenizer_encode(t, w, text, bytes, true, &ids, &e);
    must(!rc || (rc == ERR_LIMIT && e.text[0])); // a pattern may give up
    for (size_t i = 0; i < ids.n; i++)
        must(ids.data[i] >= 0 && ids.data[i] < tokenizer_vocab(t));
    if (!rc) { // what the first time left behind changes nothing
        must(tokenizer_encode(t, w, text, bytes, true, &again, &e) == 0);
        must(again.n == ids.n && (!ids.n || memcmp(again.data, ids.data, 4 * ids.n) == 0));
        check_decoding(t, &ids);
    }
    tokenizer_work_free(w);
    token_ids_clear(&ids);
    token_ids_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data, *end = s + size;
    const char *first = memchr(s, 0, size),
               *second = first ? memchr(first + 1, 0, (size_t)(end - first - 1)) : NULL;
    const char *json_end = first ? first : end, *text = second  ? second + 1
                                                        : first ? first + 1
                                                                : end;
    struct tokenizer *t;
    struct err e = {0};
    if (tokenizer_parse(&t, s, (size_t)(json_end - s), second ? first + 1 : NULL,
                        second ? (size_t)(second - first - 1) : 0, &e)) {
        must(!t && e.code && e.text[0]);
        return 0;
    }
    check_encoding(t, text, (size_t)(end - text));
    tokenizer_close(t);
    return 0;
}
