// SPDX-License-Identifier: Apache-2.0
// Sections, statements and blocks. See syntax.h.
#include "common/language/syntax.h"

#include <string.h>

#include "common/language/foreign_section.h"
#include "common/language/parser.h"

static struct stmt *parse_block(struct parser *p);

// ---- lists -------------------------------------------------------------------------------------

static void parse_names(struct parser *p, const char ***names, int *n, const char *what)
{
    int cap = 0;
    do {
        *names = arena_grow(p->arena, *names, sizeof **names, *n, &cap);
        (*names)[*n] = parser_name(p, what);
        ++*n;
    } while (parser_takes(p, ","));
}

static void parse_values(struct parser *p, struct stmt *s)
{
    int cap = 0;
    do {
        s->value = arena_grow(p->arena, s->value, sizeof *s->value, s->n, &cap);
        s->value[s->n++] = parse_expression(p);
    } while (parser_takes(p, ","));
}

// ---- statements --------------------------------------------------------------------------------

// repeat COUNT | LIST [as WIDTH[, INDEX]] [like NAME, …]
static void parse_repeat(struct parser *p, struct stmt *s)
{
    s->kind = STMT_REPEAT;
    parse_values(p, s);
    if (parser_takes(p, "as"))
        parse_names(p, &s->name, &s->nnames, "a name");
    if (parser_takes(p, "like"))
        parse_names(p, &s->like, &s->nlike, "a dimension");
    parser_end_line(p, true);
    s->body = parse_block(p);
}

static void parse_if(struct parser *p, struct stmt *s)
{
    s->kind = STMT_IF;
    parse_values(p, s);
    parser_end_line(p, true);
    s->body = parse_block(p);
    struct text_place at = p->token->at;
    p->lost = false; // of the heading: its block has been skipped
    if (!parser_takes(p, "else"))
        return;
    if (parser_takes(p, "if")) {
        s->otherwise = arena_new(p->arena, struct stmt);
        s->otherwise->at = at;
        bool enters = parser_enter(p);
        if (enters)
            parse_if(p, s->otherwise);
        else
            parser_end_line(p, true);
        parser_leave(p);
        return;
    }
    parser_end_line(p, true);
    s->otherwise = parse_block(p);
}

// report a, b    report name = e
static void parse_report(struct parser *p, struct stmt *s)
{
    s->kind = STMT_REPORT;
    parse_names(p, &s->name, &s->nnames, "a name");
    if (parser_takes(p, "="))
        parse_values(p, s);
    parser_end_line(p, false);
}

// a, b in POINT = e, f
static void parse_bind(struct parser *p, struct stmt *s)
{
    s->kind = STMT_BIND;
    parse_names(p, &s->name, &s->nnames, "a name");
    if (parser_takes(p, "in"))
        s->point = parser_name(p, "an activation point");
    s->adds = parser_takes(p, "+=");
    if (!s->adds)
        parser_wants(p, "=");
    parse_values(p, s);
    if (!p->lost && s->n != 1 && s->n != s->nnames) {
        model_error_at(p->errs, s->at, "%d values for %d names", s->n, s->nnames);
        p->lost = true;
    }
    parser_end_line(p, false);
}

// A path, a colon and the end of the line head a block.
static bool sees_scope(const struct parser *p)
{
    const struct token *t = p->token;
    while (t->kind != TOKEN_NEWLINE && t->kind != TOKEN_END && t->kind != TOKEN_DEDENT &&
           strcmp(t->text, "=") != 0)
        t++;
    return t > p->token && t[-1].kind == TOKEN_SIGN && strcmp(t[-1].text, ":") == 0;
}

static void parse_scope(struct parser *p, struct stmt *s)
{
    s->kind = STMT_SCOPE;
    s->path = parse_path(p);
    parser_wants(p, ":");
    parser_end_line(p, true);
    s->body = parse_block(p);
}

// `layer` alone in its line heads a block; anywhere else it is a name like others.
static bool sees_layer(const struct parser *p)
{
    return strcmp(p->token->text ? p->token->text : "", "layer") == 0 &&
           p->token[1].kind == TOKEN_NEWLINE;
}

static void parse_layer(struct parser *p, struct stmt *s)
{
    s->kind = STMT_SCOPE;
    p->token++;
    parser_end_line(p, true);
    s->body = parse_block(p);
}

// What is said otherwise in other languages.
static bool refuse_foreign(struct parser *p)
{
    static const struct {
        const char *word, *instead;
    } words[] = {
        {"for", "repeat COUNT as n, or repeat LIST as width, and deeper lines"},
        {"while", "repeat COUNT and deeper lines: how often is known when the text is read"},
        {"def", "let NAME(x) and deeper lines, above the section `model`"},
        {"fn", "let NAME(x) and deeper lines, above the section `model`"},
        {"class", "let NAME(x) and deeper lines, or NAME: and deeper lines for a path"},
        {"elif", "else if CONDITION"},
        {"import", "all functions are here: LANGUAGE.md lists them"},
        {"from", "all functions are here: LANGUAGE.md lists them"},
        {"print", "report NAME = VALUE"},
    };
    if (p->token->kind != TOKEN_NAME ||
        (p->token[1].kind != TOKEN_NAME && p->token[1].kind != TOKEN_NUMBER &&
         strcmp(p->token[1].text ? p->token[1].text : "", "(") != 0))
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(p->token->text, words[i].word) == 0) {
            model_error_at(p->errs, p->token->at, "`%s` is no word of the language: try %s",
                           words[i].word, words[i].instead);
            p->lost = true;
            parser_end_line(p, true);
            return true;
        }
    return false;
}

static struct stmt *parse_statement(struct parser *p)
{
    struct stmt *s = arena_new(p->arena, struct stmt);
    s->at = p->token->at;
    p->lost = false;
    if (refuse_foreign(p))
        return s;
    if (parser_takes(p, "repeat")) {
        parse_repeat(p, s);
    } else if (parser_takes(p, "if")) {
        parse_if(p, s);
    } else if (parser_takes(p, "report")) {
        parse_report(p, s);
    } else if (parser_takes(p, "return")) {
        s->kind = STMT_RETURN;
        parse_values(p, s);
        parser_end_line(p, false);
    } else if (sees_layer(p)) {
        parse_layer(p, s);
    } else if (sees_scope(p)) {
        parse_scope(p, s);
    } else {
        parse_bind(p, s);
    }
    return s;
}

// The deeper lines that follow a heading; nothing where the heading was wrong and they are skipped.
static struct stmt *parse_block(struct parser *p)
{
    struct stmt *first = NULL, **last = &first;
    if (p->token->kind != TOKEN_INDENT) {
        if (!p->lost)
            model_error_at(p->errs, p->token->at, "a block of deeper lines is missing");
        return NULL;
    }
    if (!parser_enter(p)) {
        parser_skip_block(p);
        parser_leave(p);
        return NULL;
    }
    p->token++;
    while (!parser_at_end_of_block(p)) {
        *last = parse_statement(p);
        last = &(*last)->next;
    }
    p->token += p->token->kind == TOKEN_DEDENT;
    p->lost = false;
    parser_leave(p);
    return first;
}

bool stmt_is_layer(const struct stmt *s)
{
    return s->kind == STMT_SCOPE && (s->path.n == 0 || !s->path.part[s->path.n - 1].name);
}

const struct let *let_find(const struct syntax *s, const char *name)
{
    for (int i = 0; i < s->nlets; i++)
        if (strcmp(s->let[i].name, name) == 0)
            return &s->let[i];
    return NULL;
}

// ---- sizes -------------------------------------------------------------------------------------

static bool sees_choice(const struct parser *p)
{
    const struct token *t = p->token;
    return (t->kind == TOKEN_NAME || t->kind == TOKEN_WORD) && t[1].kind == TOKEN_SIGN &&
           strcmp(t[1].text, "|") == 0;
}

static void parse_words(struct parser *p, struct written_size *s)
{
    int cap = 0;
    do {
        if (p->token->kind != TOKEN_NAME && p->token->kind != TOKEN_WORD) {
            parser_fail(p, "a word");
            return;
        }
        s->word = arena_grow(p->arena, s->word, sizeof *s->word, s->nwords, &cap);
        s->word[s->nwords++] = p->token++->text;
    } while (parser_takes(p, "|"));
}

static bool parse_clause(struct parser *p, struct written_size *s)
{
    if (parser_takes(p, "padded")) {
        s->padded = parse_expression(p);
    } else if (parser_takes(p, "like")) {
        s->like = parser_name(p, "a dimension");
    } else if (parser_takes(p, "divides")) {
        s->divides = parser_name(p, "a size");
    } else if (parser_takes(p, "in")) {
        s->low = parse_expression(p);
        s->below = parser_takes(p, "..<");
        if (!s->below)
            parser_wants(p, "..");
        s->high = parse_expression(p);
    } else {
        return false;
    }
    return true;
}

static void parse_size(struct parser *p, struct syntax *to)
{
    struct written_size s = {.at = p->token->at, .comment = ""};
    p->lost = false;
    s.name = parser_name(p, "the name of a size");
    parser_wants(p, "=");
    s.begin = p->token->begin;
    if (sees_choice(p))
        parse_words(p, &s);
    else
        s.value = parse_expression(p);
    s.end = p->token[-1].end;
    while (!p->lost && parse_clause(p, &s))
        ;
    if (p->token->kind == TOKEN_NEWLINE && p->token->comment)
        s.comment = p->token->comment;
    bool whole = !p->lost;
    parser_end_line(p, false);
    if (whole) {
        to->size = arena_grow(p->arena, to->size, sizeof *to->size, to->nsizes, &to->sizes_cap);
        to->size[to->nsizes++] = s;
    }
}

static void parse_sizes(struct parser *p, struct syntax *to)
{
    parser_end_line(p, true);
    if (p->token->kind != TOKEN_INDENT)
        return;
    p->token++;
    p->sizes = true;
    while (!parser_at_end_of_block(p)) {
        if (to->nsizes == MODEL_MAX_SIZES) {
            model_error_at(p->errs, p->token->at, "more than %d sizes", MODEL_MAX_SIZES);
            p->lost = true;
            while (!parser_at_end_of_block(p))
                p->token++;
            break;
        }
        parse_size(p, to);
    }
    p->sizes = false;
    p->token += p->token->kind == TOKEN_DEDENT;
}

// ---- the whole ---------------------------------------------------------------------------------

static void parse_let(struct parser *p, struct syntax *to)
{
    struct let let = {.at = p->token->at, .name = parser_name(p, "the name of a function")};
    parser_wants(p, "(");
    if (!parser_sees(p, ")"))
        parse_names(p, &let.param, &let.n, "the name of an argument");
    parser_wants(p, ")");
    parser_end_line(p, true);
    let.body = parse_block(p);
    if (to->nlets == MODEL_MAX_LETS) {
        model_error_at(p->errs, let.at, "more than %d functions", MODEL_MAX_LETS);
        return;
    }
    to->let = arena_grow(p->arena, to->let, sizeof *to->let, to->nlets, &to->lets_cap);
    to->let[to->nlets++] = let;
}

static void parse_section(struct parser *p, struct syntax *to)
{
    struct text_place at = p->token->at;
    p->lost = false;
    if (refuse_foreign(p))
        return;
    if (parser_takes(p, "sizes")) {
        parse_sizes(p, to);
    } else if (!to->foreign && parser_takes(p, "export")) {
        to->foreign = parse_foreign(p);
    } else if (parser_takes(p, "let")) {
        parse_let(p, to);
    } else if (to->model.line == 0 && parser_takes(p, "model")) {
        to->model = at;
        parser_end_line(p, true);
        to->body = parse_block(p);
    } else {
        parser_fail(p, "a section (sizes, let, one model, one export hf)");
        parser_end_line(p, false);
        p->token += p->token->kind == TOKEN_DEDENT;
    }
}

int syntax_read(struct arena *a, const struct tokens *t, struct syntax *out,
                struct model_errors *errs)
{
    int before = errs->n;
    struct parser p = {.arena = a, .token = t->token, .errs = errs};
    *out = (struct syntax){.heading = t->heading};
    while (p.token->kind != TOKEN_END)
        parse_section(&p, out);
    return errs->n > before ? ERR_INVALID : 0;
}
