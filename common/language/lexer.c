// SPDX-License-Identifier: Apache-2.0
// A program's text as tokens. See lexer.h.
#include "common/language/lexer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_INDENTS = 32, LONGEST_TOKEN = 64 };

struct lexer {
    struct arena *arena;
    const char *text;
    int len, at, line, line_began;
    int brackets; // how many are open
    int indents, indent[MOST_INDENTS];
    bool fresh; // nothing but blanks so far on this line
    struct tokens *out;
    struct model_errors *errs;
};

static struct text_place find_place(const struct lexer *l, int byte)
{
    return (struct text_place){l->line, byte - l->line_began + 1};
}

static char peek_char(const struct lexer *l, int ahead)
{
    return l->at + ahead < l->len ? l->text[l->at + ahead] : '\0';
}

static struct token *add_token(struct lexer *l, enum token_kind kind, int begin)
{
    struct tokens *t = l->out;
    t->token = arena_grow(l->arena, t->token, sizeof *t->token, t->n, &t->cap);
    t->token[t->n] = (struct token){
        .kind = kind, .at = find_place(l, begin), .text = "", .begin = begin, .end = l->at};
    return &t->token[t->n++];
}

static const char *copy_text(struct lexer *l, int begin, int end)
{
    char *s = arena_alloc(l->arena, (size_t)(end - begin) + 1);
    memcpy(s, l->text + begin, (size_t)(end - begin));
    return s;
}

// ---- lines and blocks --------------------------------------------------------------------------

static void end_line(struct lexer *l, const char *comment)
{
    int last = l->out->n - 1;
    enum token_kind before = last < 0 ? TOKEN_NEWLINE : l->out->token[last].kind;
    if (before != TOKEN_NEWLINE && before != TOKEN_INDENT && before != TOKEN_DEDENT)
        add_token(l, TOKEN_NEWLINE, l->at)->comment = comment;
}

static void close_blocks(struct lexer *l, int width)
{
    while (l->indents > 0 && l->indent[l->indents - 1] > width) {
        l->indents--;
        add_token(l, TOKEN_DEDENT, l->at);
    }
}

// Comment lines before anything else say what the program is.
static void add_heading(struct lexer *l, const char *line)
{
    if (l->out->n == 0)
        l->out->heading =
            *l->out->heading ? arena_printf(l->arena, "%s\n%s", l->out->heading, line) : line;
}

// ---- tokens ------------------------------------------------------------------------------------

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static void read_name(struct lexer *l)
{
    int begin = l->at;
    while (is_name(peek_char(l, 0)))
        l->at++;
    add_token(l, TOKEN_NAME, begin)->text = copy_text(l, begin, l->at);
}

// A number or a word such as 124m: letters and digits, points between digits, signs after an e.
static void read_number(struct lexer *l)
{
    int begin = l->at;
    for (;; l->at++) {
        char c = peek_char(l, 0), before = l->at > begin ? l->text[l->at - 1] : '\0';
        bool point = c == '.' && isdigit((unsigned char)peek_char(l, 1));
        bool sign = (c == '-' || c == '+') && (before == 'e' || before == 'E');
        if (!is_name(c) && !point && !sign)
            break;
    }
    char *end, text[LONGEST_TOKEN];
    int len = l->at - begin;
    struct token *t = add_token(l, TOKEN_NUMBER, begin);
    t->text = copy_text(l, begin, l->at);
    if (len >= LONGEST_TOKEN) {
        model_error_at(l->errs, t->at, "this number has %d characters", len);
        return;
    }
    memcpy(text, l->text + begin, (size_t)len);
    text[len] = '\0';
    t->number = strtod(text, &end);
    t->whole = strspn(text, "0123456789") == (size_t)len;
    if (*end || (len > 1 && (text[1] == 'x' || text[1] == 'X')))
        t->kind = TOKEN_WORD;
    else if (!(t->number < 1e300))
        model_error_at(l->errs, t->at, "%s is too large a number", text);
}

// Signs of other languages, what to write instead, and which sign is read in their place.
static bool read_other_sign(struct lexer *l)
{
    static const struct {
        const char *sign, *hint, *instead;
    } others[] = {{"**", "x * x is a square, there are no other powers", "*"},
                  {"^", "x * x is a square, there are no other powers", "*"},
                  {"//", "floor(a / b) is the whole number of two sizes", "/"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t n = strlen(others[i].sign);
        if ((size_t)(l->len - l->at) < n || memcmp(l->text + l->at, others[i].sign, n) != 0)
            continue;
        model_error_at(l->errs, find_place(l, l->at), "'%s' means nothing here: %s", others[i].sign,
                       others[i].hint);
        l->at += (int)n;
        add_token(l, TOKEN_SIGN, l->at - (int)n)->text = others[i].instead;
        return true;
    }
    return false;
}

static void read_sign(struct lexer *l)
{
    static const char *const signs[] = {"..<", "..", "==", "!=", "<=", ">=", "+=", "·", "=", "<",
                                        ">",   "+",  "-",  "*",  "/",  "%",  "@",  "(", ")", "[",
                                        "]",   "{",  "}",  ",",  ".",  ":",  "~",  "|"};
    int begin = l->at;
    if (read_other_sign(l))
        return;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        size_t n = strlen(signs[i]);
        if ((size_t)(l->len - l->at) < n || memcmp(l->text + l->at, signs[i], n) != 0)
            continue;
        l->at += (int)n;
        add_token(l, TOKEN_SIGN, begin)->text = strcmp(signs[i], "·") == 0 ? "@" : signs[i];
        l->brackets += strchr("([{", *signs[i]) != NULL;
        l->brackets -= strchr(")]}", *signs[i]) != NULL && l->brackets > 0;
        return;
    }
    unsigned char c = (unsigned char)l->text[l->at++];
    model_error_at(l->errs, find_place(l, begin),
                   c == '\t'  ? "a tab: indent with spaces"
                   : c < 0x80 ? "'%c' means nothing here"
                              : "a character that means nothing outside comments",
                   c);
    while (l->at < l->len && ((unsigned char)l->text[l->at] & 0xc0) == 0x80)
        l->at++;
}

// What stands in quotes, as it is: no escapes, in one line.
static void read_text(struct lexer *l)
{
    int begin = l->at++;
    while (l->at < l->len && l->text[l->at] != '"' && l->text[l->at] != '\n')
        l->at++;
    bool closed = peek_char(l, 0) == '"';
    struct token *t = add_token(l, TOKEN_TEXT, begin);
    t->text = copy_text(l, begin + 1, l->at);
    l->at += closed;
    t->end = l->at;
    if (!closed)
        model_error_at(l->errs, t->at, "this text is not closed: '\"' is missing in its line");
}

static void read_newline(struct lexer *l, const char *comment)
{
    if (l->brackets == 0)
        end_line(l, comment);
    l->at++;
    l->line++;
    l->line_began = l->at;
    l->fresh = true;
}

static void read_token(struct lexer *l)
{
    char c = peek_char(l, 0);
    if (c == '#') {
        int begin = l->at + 1, end;
        while (l->at < l->len && l->text[l->at] != '\n')
            l->at++;
        for (; begin < l->at && l->text[begin] == ' '; begin++)
            ;
        for (end = l->at; end > begin && isspace((unsigned char)l->text[end - 1]); end--)
            ;
        const char *comment = copy_text(l, begin, end);
        if (l->fresh)
            add_heading(l, comment);
        read_newline(l, comment);
    } else if (c == '\n') {
        read_newline(l, NULL);
    } else if (c == ' ' || c == '\r') {
        l->at++;
    } else {
        if (l->fresh && l->brackets == 0) {
            // The first token of a line says how deep the line stands.
            int width = l->at - l->line_began;
            int deepest = l->indents ? l->indent[l->indents - 1] : 0;
            l->fresh = false;
            if (width > deepest && l->indents == MOST_INDENTS) {
                model_error_at(l->errs, find_place(l, l->at), "blocks are nested more than %d deep",
                               MOST_INDENTS);
            } else if (width > deepest) {
                l->indent[l->indents++] = width;
                add_token(l, TOKEN_INDENT, l->at);
            } else {
                close_blocks(l, width);
                if (width != (l->indents ? l->indent[l->indents - 1] : 0))
                    model_error_at(l->errs, find_place(l, l->at),
                                   "this line is indented like no line above it");
            }
        }
        if (isdigit((unsigned char)c))
            read_number(l);
        else if (is_name(c))
            read_name(l);
        else if (c == '"')
            read_text(l);
        else
            read_sign(l);
    }
}

int lexer_read(struct arena *a, const char *text, int len, struct tokens *out,
               struct model_errors *errs)
{
    int before = errs->n;
    struct lexer l = {
        .arena = a, .text = text, .len = len, .line = 1, .fresh = true, .out = out, .errs = errs};
    *out = (struct tokens){.heading = ""};
    while (l.at < l.len)
        read_token(&l);
    end_line(&l, NULL);
    close_blocks(&l, 0);
    add_token(&l, TOKEN_END, l.at);
    return errs->n > before ? ERR_INVALID : 0;
}
