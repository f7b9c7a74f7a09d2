// SPDX-License-Identifier: Apache-2.0
// Regular expressions by PCRE2. See regex_pattern.h.
#include "common/tokenizer/regex_pattern.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/tokenizer/char_class.h"

struct regex_pattern {
    pcre2_code *code;
};
struct regex_room {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// ---- rewriting ---------------------------------------------------------------------------------
#define SPACES                                                                                  \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}" \
    "\\x{205F}\\x{3000}"

enum new_kind {
    UPPERCASE = 1,
    LOWERCASE = 2,
    MODIFIER = 4,
    OTHER_LETTER = 8,
    MARK = 16,
    NUMBER = 32,
    PUNCTUATION = 64,
    SYMBOL = 128,
};
static const struct {
    uint32_t first, last;
    enum new_kind kind;
} new_characters[] = {
#define NEW(version, first, last, kind) {first, last, kind},
#include "common/tokenizer/new_characters.def"
#undef NEW
};
static const struct {
    const char *name;
    unsigned kinds;
} properties[] = {
    {"L", UPPERCASE | LOWERCASE | MODIFIER | OTHER_LETTER},
    {"M", MARK},
    {"N", NUMBER},
    {"P", PUNCTUATION},
    {"S", SYMBOL},
    {"Lu", UPPERCASE},
    {"Ll", LOWERCASE},
    {"Lt", 0},
    {"Lm", MODIFIER},
    {"Lo", OTHER_LETTER},
};

struct rewrite {
    const char *all, *s;
    struct buf out;
    struct err *e;
};

static int refuse(struct rewrite *r, const char *from, int length, const char *why)
{
    return err_set(r->e, ERR_UNSUPPORTED, "the expression's '%.*s' at byte %td: %s", length, from,
                   from - r->all, why);
}

// {L} of \p{L}: appends it and what PCRE2 does not know of it.
static int rewrite_property(struct rewrite *r)
{
    const char *from = r->s - 2, *name = r->s + 1, *close = *r->s == '{' ? strchr(r->s, '}') : NULL;
    for (size_t i = 0; close && i < sizeof properties / sizeof *properties; i++) {
        if (strlen(properties[i].name) != (size_t)(close - name) ||
            strncmp(properties[i].name, name, (size_t)(close - name)) != 0)
            continue;
        buf_printf(&r->out, "\\p{%s}", properties[i].name);
        for (size_t k = 0; k < sizeof new_characters / sizeof *new_characters; k++)
            if (new_characters[k].kind & properties[i].kinds)
                buf_printf(&r->out, "\\x{%X}-\\x{%X}", new_characters[k].first,
                           new_characters[k].last);
        r->s = close + 1;
        return 0;
    }
    return refuse(r, from, close && close - from < 30 ? (int)(close - from) + 1 : 3,
                  "of properties \\p{L}, M, N, P, S, Lu, Ll, Lt, Lm and Lo are read");
}

// One character, written as itself or by an escape. `escaped` is behind the backslash.
static int read_character(struct rewrite *r, uint32_t *c)
{
    static const char named[][2] = {{'r', '\r'}, {'n', '\n'}, {'t', '\t'}, {'f', '\f'}};
    const char *from = r->s;
    size_t n;
    if (*r->s != '\\') {
        *c = char_at(r->s, &n);
        r->s += n;
        return 0;
    }
    r->s++;
    if (*r->s == 'x' && r->s[1] == '{') {
        *c = 0;
        for (r->s += 2; hex_digit(*r->s) >= 0 && *c < CHAR_END; r->s++)
            *c = *c * 16 + (uint32_t)hex_digit(*r->s);
        if (*r->s++ == '}' && *c < CHAR_END && (*c < 0xd800 || *c > 0xdfff))
            return 0;
        return refuse(r, from, (int)(r->s - from - 1), "no character");
    }
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (*r->s == named[i][0]) {
            *c = (uint32_t)named[i][1];
            r->s++;
            return 0;
        }
    if (!*r->s || (unsigned char)*r->s >= 0x80 || isalnum((unsigned char)*r->s))
        return refuse(r, from, 2, "such an escape is not read");
    *c = (unsigned char)*r->s++;
    return 0;
}

// Behind '['.
static int rewrite_class(struct rewrite *r)
{
    buf_putc(&r->out, '[');
    if (*r->s == '^')
        buf_putc(&r->out, *r->s++);
    if (*r->s == ']')
        return refuse(r, r->s, 1, "a class begins with it");
    for (bool first = true; *r->s != ']'; first = false) {
        const char *from = r->s;
        uint32_t c, last;
        if (!*from)
            return refuse(r, r->all, (int)strlen(r->all) < 20 ? (int)strlen(r->all) : 20,
                          "a class has no end");
        if (*from == '[' || (*from == '&' && from[1] == '&'))
            return refuse(r, from, 2, "a class in a class is not read");
        if (*from == '\\' && from[1] == 's') {
            buf_puts(&r->out, SPACES);
            r->s += 2;
        } else if (*from == '\\' && from[1] == 'p') {
            r->s += 2;
            int rc = rewrite_property(r);
            if (rc)
                return rc;
        } else {
            if (*from == '-' && !first && from[1] != ']')
                return refuse(r, from, 1, "no range: a dash stands first or last in a class");
            int rc = read_character(r, &c);
            last = c;
            if (!rc && *r->s == '-' && r->s[1] != ']') {
                r->s++;
                if (*r->s == '[' || !*r->s)
                    return refuse(r, from, 1, "its range has no end");
                rc = read_character(r, &last);
            }
            if (rc)
                return rc;
            if (last < c)
                return refuse(r, from, (int)(r->s - from), "a range that ends before it begins");
            buf_printf(&r->out, "\\x{%X}-\\x{%X}", c, last);
            continue;
        }
        if (*r->s == '-' && r->s[1] != ']')
            return refuse(r, r->s, 1, "no range: a dash stands first or last in a class");
    }
    r->s++;
    buf_putc(&r->out, ']');
    return 0;
}

// Behind what may be repeated: * + ? and {n,m}, with ? or + behind them.
static int rewrite_repeat(struct rewrite *r)
{
    const char *from = r->s;
    bool counted = *r->s == '{', exact = false;
    if (!strchr("*+?{", *r->s) || !*r->s)
        return 0;
    if (counted) {
        char *end;
        unsigned long least = strtoul(r->s + 1, &end, 10), most = least;
        exact = *end == '}';
        if (*end == ',')
            most = isdigit((unsigned char)end[1]) ? strtoul(end + 1, &end, 10) : (end++, least);
        if (!isdigit((unsigned char)r->s[1]) || *end != '}' || most < least || most > 1000)
            return refuse(r, from, 4, "a brace is \\{, a repetition {2}, {2,} or {2,5}");
        r->s = end;
    }
    r->s++;
    if ((*r->s == '+' && counted) || (*r->s == '?' && exact))
        return refuse(r, from, (int)(r->s - from) + 1, "Oniguruma reads it in a way of its own");
    if (*r->s == '?' || *r->s == '+')
        r->s++;
    if (*r->s && strchr("*+?{", *r->s))
        return refuse(r, from, (int)(r->s - from) + 1, "a repetition of a repetition is not read");
    buf_append(&r->out, from, (size_t)(r->s - from));
    return 0;
}

static int rewrite_group(struct rewrite *r)
{
    static const char *const kept[] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)"};
    static const char *const begins[] = {"(?:", "(?=", "(?!", "(?>"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strncmp(r->s, kept[i], strlen(kept[i])) == 0) {
            buf_puts(&r->out, kept[i]);
            r->s += strlen(kept[i]);
            return rewrite_repeat(r);
        }
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(r->s, begins[i], strlen(begins[i])) == 0) {
            buf_puts(&r->out, begins[i]);
            r->s += strlen(begins[i]);
            return 0;
        }
    if (r->s[1] == '?' || r->s[1] == '*')
        return refuse(r, r->s, 4, "of groups ( (?: (?= (?! and (?> are read");
    buf_putc(&r->out, *r->s++);
    return 0;
}

static int rewrite_item(struct rewrite *r)
{
    const char *from = r->s;
    int rc = 0;
    if (*from == '(')
        return rewrite_group(r);
    if (*from == '|') {
        buf_putc(&r->out, *r->s++);
        return 0;
    }
    if (strchr("*+?{", *from))
        return refuse(r, from, 1, "it repeats nothing");
    if (*from == ')' || *from == '.' || *from == '^' || *from == '$') {
        buf_putc(&r->out, *r->s++);
    } else if (*from == '[') {
        r->s++;
        rc = rewrite_class(r);
    } else if (*from == '\\' && (from[1] == 's' || from[1] == 'S')) {
        buf_printf(&r->out, "[%s" SPACES "]", from[1] == 'S' ? "^" : "");
        r->s += 2;
    } else if (*from == '\\' && (from[1] == 'p' || from[1] == 'P')) {
        buf_puts(&r->out, from[1] == 'P' ? "[^" : "[");
        r->s += 2;
        rc = rewrite_property(r);
        buf_putc(&r->out, ']');
    } else {
        uint32_t c;
        rc = read_character(r, &c);
        if (!rc)
            buf_printf(&r->out, "\\x{%X}", c);
    }
    return rc ? rc : rewrite_repeat(r);
}

// ---- PCRE2 -------------------------------------------------------------------------------------
static int compile(pcre2_code **code, const struct rewrite *r, struct err *e)
{
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR text[200];
    uint32_t empty = 0;
    *code = pcre2_compile((PCRE2_SPTR)buf_str(&r->out), r->out.len,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                          &at, NULL);
    if (!*code) {
        pcre2_get_error_message(error, text, sizeof text);
        return err_set(e, ERR_DATA, "no regular expression: %s", (const char *)text);
    }
    pcre2_pattern_info(*code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return err_set(e, ERR_UNSUPPORTED, "the expression matches the empty text");
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); // where there is no JIT, it is interpreted
    return 0;
}

int regex_pattern_new(struct regex_pattern **p, const char *expression, struct err *e)
{
    struct rewrite r = {.all = expression, .s = expression, .e = e};
    *p = NULL;
    if (strlen(expression) > REGEX_MAX)
        return err_set(e, ERR_LIMIT, "an expression of more than %d bytes", REGEX_MAX);
    int rc = 0;
    while (*r.s && !rc)
        rc = rewrite_item(&r);
    if (!rc) {
        *p = heap_alloc(sizeof **p);
        rc = compile(&(*p)->code, &r, e);
    }
    if (rc) {
        regex_pattern_free(*p);
        *p = NULL;
    }
    buf_clear(&r.out);
    return rc;
}

void regex_pattern_free(struct regex_pattern *p)
{
    if (p)
        pcre2_code_free(p->code);
    free(p);
}

struct regex_room *regex_room_new(void)
{
    enum { STACK_LEAST = 32 << 10, STACK_MOST = 1 << 20 };
    struct regex_room *r = heap_alloc(sizeof *r);
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    r->stack = pcre2_jit_stack_create(STACK_LEAST, STACK_MOST, NULL);
    PRE(r->match && r->context);
    if (r->stack)
        pcre2_jit_stack_assign(r->context, NULL, r->stack);
    return r;
}

void regex_room_free(struct regex_room *r)
{
    if (r) {
        pcre2_match_data_free(r->match);
        pcre2_match_context_free(r->context);
        pcre2_jit_stack_free(r->stack);
    }
    free(r);
}

int regex_pattern_find(const struct regex_pattern *p, struct regex_room *r, const char *text,
                       size_t bytes, size_t at, size_t *from, size_t *to, struct err *e)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, at, options, r->match, r->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter takes its memory from the heap
        rc = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, at, options | PCRE2_NO_JIT, r->match,
                         r->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(rc, why, sizeof why);
        err_set(e, ERR_LIMIT, "a pattern gave up at byte %zu of %zu: %s", at, bytes,
                (const char *)why);
        return -1;
    }
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(r->match);
    *from = found[0];
    *to = found[1];
    return 1;
}
