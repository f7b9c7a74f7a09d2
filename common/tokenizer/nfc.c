// SPDX-License-Identifier: Apache-2.0
// Normal form C over libutf8proc. See nfc.h.
//
// A text is cut before every character that nothing before it can move or compose with. Most of the
// segments are then one character that is its own form; the others are decomposed by libutf8proc,
// ordered here (its own way takes quadratic time for a long run of marks), and composed by it.
#include "common/tokenizer/nfc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/err.h"
#include "common/tokenizer/char_class.h"

enum {
    JOINS = 1,   // what stands before it matters
    CHANGES = 2, // alone it is not its own form
    STRANGER =
        4, // a mark that Unicode 9 does not know: of combining class 0, it composes with nothing
    HANGUL_VOWEL = 0x1161,
    HANGUL_VOWEL_LAST = 0x1175,
    HANGUL_TAIL = 0x11a8, // 11a7 is none, though libutf8proc takes it for an empty one
    HANGUL_TAIL_LAST = 0x11c2,
    SECONDS = 0x8000, // from here on an index of compositions is that of a second character
    CLASSES = 256,
    LONGEST = 8, // room for one character's decomposition, which has 4
};
static uint8_t forms[CHAR_END];

static const struct {
    uint32_t first, last;
} strangers[] = {
    {0x07fd, 0x07fd},   {0x0898, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
    {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x11930, 0x11930}, // with 11935 it would compose
};

static void fill_forms(void)
{
    for (utf8proc_int32_t c = 0; c < CHAR_END; c++) {
        const utf8proc_property_t *p = utf8proc_get_property(c);
        bool hangul = (c >= HANGUL_VOWEL && c <= HANGUL_VOWEL_LAST) ||
                      (c >= HANGUL_TAIL && c <= HANGUL_TAIL_LAST);
        if (p->combining_class || hangul ||
            (p->comb_index != UINT16_MAX && p->comb_index >= SECONDS))
            forms[c] |= JOINS;
        utf8proc_int32_t one[LONGEST] = {c};
        utf8proc_ssize_t n = 1;
        if (p->decomp_seqindex != UINT16_MAX && !p->decomp_type) {
            n = utf8proc_decompose_char(c, one, LONGEST, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                        NULL);
            if (utf8proc_get_property(one[0])->combining_class) // U+0F73 begins with a mark
                forms[c] |= JOINS;
            n = utf8proc_normalize_utf32(one, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        }
        if (n != 1 || one[0] != c)
            forms[c] |= CHANGES;
    }
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        for (uint32_t c = strangers[i].first; c <= strangers[i].last; c++)
            forms[c] = STRANGER;
}

// Sorts each run of marks by their combining classes, those of one class as they stood: by insertion,
// and a long run by counting.
static void order_marks(utf8proc_int32_t *c, size_t n)
{
    enum { SHORT_RUN = 32 };
    for (size_t from = 0, to; from < n; from = to + 1) {
        to = from;
        while (to < n && utf8proc_get_property(c[to])->combining_class)
            to++;
        if (to - from <= SHORT_RUN) {
            for (size_t i = from + 1; i < to; i++)
                for (size_t k = i; k > from && utf8proc_get_property(c[k - 1])->combining_class >
                                                   utf8proc_get_property(c[k])->combining_class;
                     k--) {
                    utf8proc_int32_t kept = c[k];
                    c[k] = c[k - 1];
                    c[k - 1] = kept;
                }
            continue;
        }
        size_t at[CLASSES + 1] = {0};
        utf8proc_int32_t *sorted = malloc((to - from) * sizeof *sorted);
        PRE(sorted != NULL);
        for (size_t i = from; i < to; i++)
            at[utf8proc_get_property(c[i])->combining_class + 1]++;
        for (size_t k = 1; k <= CLASSES; k++)
            at[k] += at[k - 1];
        for (size_t i = from; i < to; i++)
            sorted[at[utf8proc_get_property(c[i])->combining_class]++] = c[i];
        memcpy(c + from, sorted, (to - from) * sizeof *sorted);
        free(sorted);
    }
}

static void put_segment(const char *s, size_t bytes, struct buf *out)
{
    enum { FEW = 64 };
    utf8proc_int32_t few[FEW], *c = few;
    size_t n = 0, length;
    if (bytes * LONGEST > FEW) {
        c = malloc(bytes * LONGEST * sizeof *c);
        PRE(c != NULL);
    }
    for (size_t i = 0; i < bytes; i += length)
        n += (size_t)utf8proc_decompose_char((utf8proc_int32_t)char_at(s + i, &length), c + n,
                                             LONGEST, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
    order_marks(c, n);
    n = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n,
                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    buf_reserve(out, 4 * n);
    for (size_t i = 0; i < n; i++)
        out->len += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out->data + out->len);
    out->data[out->len] = 0;
    if (c != few)
        free(c);
}

bool nfc_text(const char *text, size_t bytes, struct buf *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_forms);
    size_t copied = 0, from = 0, length = 0;
    bool changes = false, changed = false; // the segment from `from` is to be made; one was
    for (size_t i = 0;; i += length) {
        uint32_t c = i < bytes ? char_at(text + i, &length) : 0;
        uint8_t form = forms[c];
        if (i == bytes || !(form & JOINS)) {
            if (changes) {
                buf_append(out, text + copied, from - copied);
                put_segment(text + from, i - from, out);
                copied = i;
                changed = true;
            }
            from = i;
            changes = false;
        }
        if (i == bytes)
            break;
        if (form & STRANGER)
            from = i + length; // what follows meets it no more
        else
            changes |= form != 0;
    }
    if (changed)
        buf_append(out, text + copied, bytes - copied);
    return changed;
}
