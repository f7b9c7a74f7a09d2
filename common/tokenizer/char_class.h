// SPDX-License-Identifier: Apache-2.0
// The classes of characters that patterns ask about, as `tokenizers` has them: Unicode 16.
// Inside common/tokenizer/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum char_class {
    CHAR_LETTER = 1,
    CHAR_MARK = 2,
    CHAR_NUMBER = 4,
    CHAR_PUNCTUATION = 8,
    CHAR_SYMBOL = 16,
    CHAR_SPACE = 32,  // \s: White_Space
    CHAR_UPPER = 64,  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
    CHAR_LOWER = 128, // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
};
enum { CHAR_END = 0x110000 };

void char_classes_make(void);          // before the first use; any thread, any number of times
extern uint8_t char_classes[CHAR_END]; // enum char_class, of each character

bool char_is_word(uint32_t c);    // \w
bool char_is_numeric(uint32_t c); // of Unicode 17: what Digits splits at

// The character at `s`, which is UTF-8, and its length.
static inline uint32_t char_at(const char *text, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *length = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *length = 2;
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (s[0] < 0xf0) {
        *length = 3;
        return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    }
    *length = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
           (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}

// Where the character before `s` begins.
static inline const char *char_before(const char *s)
{
    do
        s--;
    while ((*s & 0xc0) == 0x80);
    return s;
}
