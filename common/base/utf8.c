// SPDX-License-Identifier: Apache-2.0
// Characters of UTF-8; see utf8.h.
#include "common/base/utf8.h"

// Unicode's table of well-formed sequences: the second byte's range depends on the first.
size_t utf8_part(const char *text, size_t left, size_t *whole)
{
    static const struct {
        unsigned char first, last, second_min, second_max;
        size_t len;
    } rows[] = {
        {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    const unsigned char *s = (const unsigned char *)text;
    *whole = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (s[0] < rows[r].first || s[0] > rows[r].last)
            continue;
        *whole = rows[r].len;
        size_t n = 1;
        while (n < left && n < rows[r].len &&
               (n == 1 ? s[n] >= rows[r].second_min && s[n] <= rows[r].second_max
                       : (s[n] & 0xc0) == 0x80))
            n++;
        return n;
    }
    return 1;
}

size_t utf8_length(const char *s, size_t left)
{
    size_t whole;
    return left && utf8_part(s, left, &whole) == whole ? whole : 0;
}

size_t utf8_unfinished(const char *s, size_t n)
{
    enum { PART_MAX = 3 }; // a character has 4 bytes
    for (size_t back = 1, whole; back <= n && back <= PART_MAX; back++)
        if (utf8_part(s + n - back, back, &whole) == back && whole > back)
            return back;
    return 0;
}

uint32_t utf8_decode(const char *s, size_t length)
{
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c = u[0] & first_bits[length];
    for (size_t i = 1; i < length; i++)
        c = c << 6 | (u[i] & 0x3f);
    return c;
}

bool utf8_steers(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } rows[] = {
        {0x00, 0x08},     {0x0b, 0x1f},     // ASCII's controls but tab and newline
        {0x7f, 0x9f},                       // delete, C1
        {0x061c, 0x061c}, {0x200e, 0x200f}, // marks of direction
        {0x2028, 0x202e},                   // separators of lines, embeddings, overrides
        {0x2066, 0x2069},                   // isolates
        {0xfeff, 0xfeff},                   // a byte order mark: nobody sees it
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (c >= rows[i].first && c <= rows[i].last)
            return true;
    return false;
}
