// SPDX-License-Identifier: Apache-2.0
// A text that grows by pieces. See held_text.h.
#include "coordinator/cli/held_text.h"

#include <string.h>

bool held_add(struct held_text *h, const char *bytes, size_t n)
{
    size_t before = h->text.len, cut = SIZE_MAX;
    if (h->stopped)
        return true;
    buf_append(&h->text, bytes, n);
    const char *s = buf_str(&h->text);
    for (int i = 0; i < h->nstops; i++) {
        size_t len = strlen(h->stops[i]), from = before >= len ? before - len + 1 : 0;
        const char *at =
            h->text.len > from ? memmem(s + from, h->text.len - from, h->stops[i], len) : NULL;
        if (at && (size_t)(at - s) < cut)
            cut = (size_t)(at - s);
    }
    h->stopped = cut != SIZE_MAX;
    if (h->stopped)
        h->text.data[h->text.len = cut] = 0;
    return h->stopped;
}

// How many bytes at the end begin a stop text.
static size_t find_begun_stop(const struct held_text *h)
{
    const char *s = buf_str(&h->text);
    size_t most = 0;
    for (int i = 0; i < h->nstops; i++) {
        size_t n = strlen(h->stops[i]) - 1;
        n = n < h->text.len ? n : h->text.len;
        while (n > most && memcmp(s + h->text.len - n, h->stops[i], n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

// How many bytes at the end begin a character that is not whole.
static size_t find_begun_character(const char *s, size_t len)
{
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        unsigned char c = (unsigned char)s[len - n];
        size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
        if ((c & 0xc0) != 0x80)
            return whole > n ? n : 0;
    }
    return 0;
}

const char *held_take(struct held_text *h, bool ended, size_t *n)
{
    const char *s = buf_str(&h->text);
    size_t end = h->text.len;
    if (!ended && !h->stopped) {
        end -= find_begun_stop(h);
        end -= find_begun_character(s, end);
    }
    *n = end > h->shown ? end - h->shown : 0;
    s += h->shown;
    h->shown += *n;
    return s;
}

void held_clear(struct held_text *h)
{
    buf_clear(&h->text);
}
