// SPDX-License-Identifier: Apache-2.0
// Classes of characters: libutf8proc's categories, and what Unicode 16 added. See char_class.h.
#include "common/tokenizer/char_class.h"

#include <pthread.h>
#include <utf8proc.h>

enum {
    UPPERCASE = CHAR_LETTER | CHAR_UPPER,
    LOWERCASE = CHAR_LETTER | CHAR_LOWER,
    MODIFIER = CHAR_LETTER | CHAR_UPPER | CHAR_LOWER,
    OTHER_LETTER = MODIFIER,
    MARK = CHAR_MARK | CHAR_UPPER | CHAR_LOWER,
    NUMBER = CHAR_NUMBER,
    PUNCTUATION = CHAR_PUNCTUATION,
    SYMBOL = CHAR_SYMBOL,
};
struct char_range {
    uint32_t first, last;
};

uint8_t char_classes[CHAR_END];

static const uint8_t by_category[] = {
    [UTF8PROC_CATEGORY_LU] = UPPERCASE,   [UTF8PROC_CATEGORY_LL] = LOWERCASE,
    [UTF8PROC_CATEGORY_LT] = UPPERCASE,   [UTF8PROC_CATEGORY_LM] = MODIFIER,
    [UTF8PROC_CATEGORY_LO] = MODIFIER,    [UTF8PROC_CATEGORY_MN] = MARK,
    [UTF8PROC_CATEGORY_MC] = MARK,        [UTF8PROC_CATEGORY_ME] = MARK,
    [UTF8PROC_CATEGORY_ND] = NUMBER,      [UTF8PROC_CATEGORY_NL] = NUMBER,
    [UTF8PROC_CATEGORY_NO] = NUMBER,      [UTF8PROC_CATEGORY_PC] = PUNCTUATION,
    [UTF8PROC_CATEGORY_PD] = PUNCTUATION, [UTF8PROC_CATEGORY_PS] = PUNCTUATION,
    [UTF8PROC_CATEGORY_PE] = PUNCTUATION, [UTF8PROC_CATEGORY_PI] = PUNCTUATION,
    [UTF8PROC_CATEGORY_PF] = PUNCTUATION, [UTF8PROC_CATEGORY_PO] = PUNCTUATION,
    [UTF8PROC_CATEGORY_SM] = SYMBOL,      [UTF8PROC_CATEGORY_SC] = SYMBOL,
    [UTF8PROC_CATEGORY_SK] = SYMBOL,      [UTF8PROC_CATEGORY_SO] = SYMBOL,
    [UTF8PROC_CATEGORY_CO] = 0,
};

static void fill_classes(void)
{
    static const struct char_range spaces[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    static const struct {
        struct char_range range;
        uint8_t class;
    } added[] = {
#define NEW(version, first, last, class) {{first, last}, class},
#include "common/tokenizer/new_characters.def"
#undef NEW
    };
    for (uint32_t c = 0; c < CHAR_END; c++)
        char_classes[c] = by_category[utf8proc_category((utf8proc_int32_t)c)];
    for (size_t i = 0; i < sizeof added / sizeof *added; i++)
        for (uint32_t c = added[i].range.first; c <= added[i].range.last; c++)
            char_classes[c] = added[i].class;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        for (uint32_t c = spaces[i].first; c <= spaces[i].last; c++)
            char_classes[c] |= CHAR_SPACE;
}

void char_classes_make(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_classes);
}

static bool is_within(uint32_t c, const struct char_range *ranges, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

bool char_is_word(uint32_t c)
{
    // Joiners, and letters in circles and squares.
    static const struct char_range others[] = {{0x200c, 0x200d},
                                               {0x24b6, 0x24e9},
                                               {0x1f130, 0x1f149},
                                               {0x1f150, 0x1f169},
                                               {0x1f170, 0x1f189}};
    if (char_classes[c] & (CHAR_LETTER | CHAR_MARK))
        return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (char_classes[c] & CHAR_NUMBER)
        return category != UTF8PROC_CATEGORY_NO;
    return category == UTF8PROC_CATEGORY_PC || is_within(c, others, sizeof others / sizeof *others);
}

bool char_is_numeric(uint32_t c)
{
    static const struct char_range unicode_17[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};
    return (char_classes[c] & CHAR_NUMBER) ||
           is_within(c, unicode_17, sizeof unicode_17 / sizeof *unicode_17);
}
