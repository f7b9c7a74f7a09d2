// SPDX-License-Identifier: Apache-2.0
// Matchers of published expressions. See known_patterns.h.
//
// Each function is one expression, read from left to right: the first of its alternatives that matches
// at `s` is the match. Runs of one class are greedy, and where the expression would give characters
// back, that is said.
#include "common/tokenizer/known_patterns.h"

#include <string.h>

#include "common/tokenizer/char_class.h"

// ---- parts that the expressions share ----------------------------------------------------------
static unsigned class_at(const char *s, const char *end)
{
    size_t n;
    return s < end ? char_classes[char_at(s, &n)] : 0;
}

static const char *skip_character(const char *s)
{
    size_t n;
    char_at(s, &n);
    return s + n;
}

// Behind the run of characters that are of one of these classes.
static const char *skip_class(const char *s, const char *end, unsigned classes)
{
    size_t n;
    while (s < end && char_classes[char_at(s, &n)] & classes)
        s += n;
    return s;
}

// Behind the run of characters that are of none of these classes.
static const char *skip_others(const char *s, const char *end, unsigned classes)
{
    size_t n;
    while (s < end && !(char_classes[char_at(s, &n)] & classes))
        s += n;
    return s;
}

static bool is_newline(char c)
{
    return c == '\n' || c == '\r';
}

static const char *skip_newlines(const char *s, const char *end)
{
    while (s < end && is_newline(*s))
        s++;
    return s;
}

// \p{N}{1,most}; null if there is none.
static const char *take_digits(const char *s, const char *end, int most)
{
    const char *from = s;
    for (int i = 0; i < most && class_at(s, end) & CHAR_NUMBER; i++)
        s = skip_character(s);
    return s > from ? s : NULL;
}

// 's|'t|'re|'ve|'m|'ll|'d; null if it is none. Without case ſ is an s.
static const char *take_contraction(const char *s, const char *end, bool any_case)
{
    static const char *const words[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (end - s < 2 || *s != '\'')
        return NULL;
    if (any_case && end - s >= 3 && memcmp(s + 1, "ſ", 2) == 0)
        return s + 3;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]), k = 0;
        while (k < n && s + 1 + k < end &&
               (s[1 + k] | (any_case && s[1 + k] >= 'A' && s[1 + k] <= 'Z' ? 0x20 : 0)) ==
                   words[i][k])
            k++;
        if (k == n)
            return s + 1 + n;
    }
    return NULL;
}

// ` ?[^…]+`: behind a run without these classes, which a space may precede; null if there is none.
static const char *take_others(const char *s, const char *end, unsigned classes)
{
    const char *from = *s == ' ' ? s + 1 : s;
    const char *to = skip_others(from, end, classes);
    return to > from ? to : NULL;
}

// \s+(?!\S)|\s+ at a space: the last space of a run is left to what follows it, if something does.
static const char *take_spaces(const char *s, const char *end)
{
    const char *to = skip_class(s, end, CHAR_SPACE);
    if (to == end)
        return to;
    const char *last = char_before(to);
    return last > s ? last : to;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line break of the run, if it has one.
static const char *take_lines(const char *s, const char *end)
{
    for (const char *to = skip_class(s, end, CHAR_SPACE); to > s; to--)
        if (is_newline(to[-1]))
            return to;
    return take_spaces(s, end);
}

// [^\r\n\p{L}\p{N}]?[run]+; null if there is none. (A character that may be the first and is of the
// run, too, takes nothing away: the run is then what matches.)
static const char *take_word(const char *s, const char *end, unsigned run)
{
    unsigned class = class_at(s, end);
    if (class & run)
        return skip_class(s, end, run);
    if (is_newline(*s) || class & (CHAR_LETTER | CHAR_NUMBER))
        return NULL;
    const char *from = skip_character(s), *to = skip_class(from, end, run);
    return to > from ? to : NULL;
}

// ---- GPT-2: what ByteLevel itself splits by ----------------------------------------------------
static bool find_gpt2(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = take_contraction(s, end, false);
    if (*to)
        return true;
    const char *word = *s == ' ' && s + 1 < end ? s + 1 : s;
    unsigned class = class_at(word, end);
    if (class & CHAR_LETTER)
        *to = skip_class(word, end, CHAR_LETTER);
    else if (class & CHAR_NUMBER)
        *to = skip_class(word, end, CHAR_NUMBER);
    else if (!(class & CHAR_SPACE))
        *to = skip_others(word, end, CHAR_SPACE | CHAR_LETTER | CHAR_NUMBER);
    else
        *to = take_spaces(s, end);
    return true;
}

// ---- cl100k and what came from it: Llama 3, Phi-4, Qwen 2 and 3, nanochat ----------------------
static const char *end_cl100k(const char *s, const char *end, int digits)
{
    const char *to = take_contraction(s, end, true);
    to = to ? to : take_word(s, end, CHAR_LETTER);
    to = to ? to : take_digits(s, end, digits);
    if (to)
        return to;
    to = take_others(s, end, CHAR_SPACE | CHAR_LETTER | CHAR_NUMBER);
    return to ? skip_newlines(to, end) : take_lines(s, end);
}

static bool find_cl100k(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = end_cl100k(s, end, 3);
    return true;
}

static bool find_qwen2(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = end_cl100k(s, end, 1);
    return true;
}

// Its possessive quantifiers give back nothing that would match, so it differs in the digits alone;
// and \s*[\r\n], without a +, ends at the same line break.
static bool find_nanochat(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = end_cl100k(s, end, 2);
    return true;
}

static bool find_qwen35(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = take_contraction(s, end, true);
    *to = *to ? *to : take_word(s, end, CHAR_LETTER | CHAR_MARK);
    *to = *to ? *to : take_digits(s, end, 1);
    if (*to)
        return true;
    *to = take_others(s, end, CHAR_SPACE | CHAR_LETTER | CHAR_MARK | CHAR_NUMBER);
    *to = *to ? skip_newlines(*to, end) : take_lines(s, end);
    return true;
}

// ---- o200k and Mistral Nemo: words split by case -----------------------------------------------
// [upper]*[lower]+, where both classes have letters without case, and marks: if nothing lower follows
// the run of upper ones, this gives back characters to the last that is both.
static const char *take_lower_word(const char *s, const char *end)
{
    const char *upper = skip_class(s, end, CHAR_UPPER);
    const char *to = skip_class(upper, end, CHAR_LOWER);
    if (to > upper)
        return to;
    while (to > s) {
        const char *before = char_before(to);
        if (class_at(before, end) & CHAR_LOWER)
            return to;
        to = before;
    }
    return NULL;
}

// [upper]+[lower]*
static const char *take_upper_word(const char *s, const char *end)
{
    const char *upper = skip_class(s, end, CHAR_UPPER);
    return upper > s ? skip_class(upper, end, CHAR_LOWER) : NULL;
}

static const char *end_o200k(const char *s, const char *end, int digits, bool contractions)
{
    bool led = !is_newline(*s) && !(class_at(s, end) & (CHAR_LETTER | CHAR_NUMBER));
    const char *word = led ? skip_character(s) : s;
    const char *to = take_lower_word(word, end);
    to = to || !led ? to : take_lower_word(s, end);
    to = to ? to : take_upper_word(word, end);
    to = to || !led ? to : take_upper_word(s, end);
    if (to) {
        const char *behind = contractions ? take_contraction(to, end, true) : NULL;
        return behind ? behind : to;
    }
    to = take_digits(s, end, digits);
    if (to)
        return to;
    to = take_others(s, end, CHAR_SPACE | CHAR_LETTER | CHAR_NUMBER);
    if (!to)
        return take_lines(s, end);
    while (to < end && (is_newline(*to) || *to == '/'))
        to++;
    return to;
}

static bool find_o200k(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = end_o200k(s, end, 3, true);
    return true;
}

static bool find_nemo(const char *s, const char *end, const char **from, const char **to)
{
    *from = s;
    *to = end_o200k(s, end, 1, false);
    return true;
}

// ---- DeepSeek ----------------------------------------------------------------------------------
static bool find_digits(const char *s, const char *end, const char **from, const char **to)
{
    *from = skip_others(s, end, CHAR_NUMBER);
    *to = take_digits(*from, end, 3);
    return *to != NULL;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_ascii_punctuation(char c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static const char *end_deepseek(const char *s, const char *end)
{
    unsigned class = class_at(s, end);
    if (is_ascii_punctuation(*s) && s + 1 < end && is_ascii_letter(s[1])) {
        do
            s++;
        while (s < end && is_ascii_letter(*s));
        return s;
    }
    if (class & (CHAR_LETTER | CHAR_MARK))
        return skip_class(s, end, CHAR_LETTER | CHAR_MARK);
    if (!is_newline(*s) && !(class & (CHAR_PUNCTUATION | CHAR_SYMBOL))) {
        const char *word = skip_character(s), *to = skip_class(word, end, CHAR_LETTER | CHAR_MARK);
        if (to > word)
            return to;
    }
    const char *signs = *s == ' ' ? s + 1 : s;
    const char *to = skip_class(signs, end, CHAR_PUNCTUATION | CHAR_SYMBOL);
    if (to > signs)
        return skip_newlines(to, end);
    return class & CHAR_SPACE ? take_lines(s, end) : NULL;
}

// A digit or a character of no class stands outside, if no word follows it.
static bool find_deepseek(const char *s, const char *end, const char **from, const char **to)
{
    for (; s < end; s = skip_character(s)) {
        *from = s;
        *to = end_deepseek(s, end);
        if (*to)
            return true;
    }
    return false;
}

// `$` is before any line break, too: the run gives back what stands behind its last one.
static bool find_trailing_spaces(const char *s, const char *end, const char **from, const char **to)
{
    for (s = skip_others(s, end, CHAR_SPACE); s < end; s = skip_others(*to, end, CHAR_SPACE)) {
        *from = s;
        *to = skip_class(s, end, CHAR_SPACE);
        if (*to == end)
            return true;
        for (const char *at = *to - 1; at > s; at--)
            if (*at == '\n') {
                *to = at;
                return true;
            }
    }
    return false;
}

// ---- the table ---------------------------------------------------------------------------------
#define TAIL        "|\\s+(?!\\S)|\\s+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LED         "[^\\r\\n\\p{L}\\p{N}]?"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" TAIL

static const struct {
    const char *expression;
    find_match find;
} table[] = {
    {GPT2, find_gpt2},
    {CONTRACTION "|" LED "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL,
     find_cl100k},
    {CONTRACTION "|" LED "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL,
     find_qwen2},
    {CONTRACTION "|" LED
                 "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" TAIL,
     find_qwen35},
    {LED UPPER "*" LOWER "+|" LED UPPER "+" LOWER
               "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TAIL,
     find_nemo},
    {LED UPPER "*" LOWER "+" CONTRACTION "?|" LED UPPER "+" LOWER "*" CONTRACTION
               "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" TAIL,
     find_o200k},
    {"'(?i:[sdmt]|ll|ve|re)|" LED
     "+\\p{L}+|\\p{N}{1,2}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]" TAIL,
     find_nanochat},
    {"\\p{N}{1,3}", find_digits},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+" TAIL,
     find_deepseek},
    {"\\s+$", find_trailing_spaces},
};

find_match known_pattern(const char *expression)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].expression, expression) == 0)
            return table[i].find;
    return NULL;
}

find_match byte_level_pattern(void)
{
    return find_gpt2;
}
