// SPDX-License-Identifier: Apache-2.0
// Expressions, from the loosest operator to the tightest. See parser.h.
#include "common/language/parser.h"

#include <string.h>

// Words of the language, which nothing can be named after.
static const char *const reserved[] = {"if",     "else",   "repeat", "as", "like", "let",
                                       "return", "report", "and",    "or", "not",  "by"};

static bool is_reserved(const char *name)
{
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(name, reserved[i]) == 0)
            return true;
    return false;
}

// ---- the parser's place ------------------------------------------------------------------------

bool parser_sees(const struct parser *p, const char *text)
{
    return !p->lost && (p->token->kind == TOKEN_SIGN || p->token->kind == TOKEN_NAME) &&
           strcmp(p->token->text, text) == 0;
}

bool parser_takes(struct parser *p, const char *text)
{
    bool sees = parser_sees(p, text);
    p->token += sees;
    return sees;
}

void parser_fail(struct parser *p, const char *wanted)
{
    const struct token *t = p->token;
    if (p->lost)
        return;
    p->lost = true;
    bool text = t->kind == TOKEN_NAME || t->kind == TOKEN_NUMBER || t->kind == TOKEN_WORD ||
                t->kind == TOKEN_SIGN || t->kind == TOKEN_TEXT;
    model_error_at(p->errs, t->at, text ? "%s is missing before '%s'" : "%s is missing", wanted,
                   t->text);
}

// A ':' at the end of the line, as Python has it.
static bool sees_colon(const struct parser *p)
{
    return parser_sees(p, ":") && p->token[1].kind == TOKEN_NEWLINE;
}

void parser_wants(struct parser *p, const char *text)
{
    char quoted[16] = "'";
    strncat(strncat(quoted, text, 8), "'", 2);
    if (!parser_takes(p, text))
        parser_fail(p, quoted);
}

const char *parser_name(struct parser *p, const char *what)
{
    if (p->lost || p->token->kind != TOKEN_NAME || is_reserved(p->token->text)) {
        parser_fail(p, what);
        return "";
    }
    return p->token++->text;
}

// Something else stands where a bracket is to be closed. At the end of a line the opening one is
// named, since what is read next is another statement.
static void fail_to_close(struct parser *p, const struct token *open, const char *close,
                          const char *wanted)
{
    const struct token *t = p->token;
    if (p->lost || (t->kind != TOKEN_END && t->at.line == t[-1].at.line)) {
        parser_fail(p, wanted);
        return;
    }
    p->lost = true;
    model_error_at(p->errs, open->at, "this '%s' is not closed: '%s' is missing behind line %d",
                   open->text, close, t[-1].at.line);
}

// What follows an item between brackets: another, or the bracket that closes them.
static void wants_next(struct parser *p, const struct token *open, const char *close)
{
    if (!p->lost && !parser_sees(p, close) && !parser_takes(p, ","))
        fail_to_close(p, open, close, "','");
}

bool parser_enter(struct parser *p)
{
    if (p->depth >= MODEL_MAX_DEPTH && !p->lost) {
        p->lost = true;
        model_error_at(p->errs, p->token->at, "this is nested more than %d deep", MODEL_MAX_DEPTH);
    }
    p->depth++;
    return !p->lost;
}

void parser_leave(struct parser *p)
{
    p->depth--;
}

// ---- lines -------------------------------------------------------------------------------------

bool parser_at_end_of_block(const struct parser *p)
{
    return p->token->kind == TOKEN_DEDENT || p->token->kind == TOKEN_END;
}

void parser_skip_block(struct parser *p)
{
    int open = 0;
    do {
        open += p->token->kind == TOKEN_INDENT;
        open -= p->token->kind == TOKEN_DEDENT;
        p->token += open > 0 || p->token->kind == TOKEN_DEDENT;
    } while (open > 0 && p->token->kind != TOKEN_END);
}

void parser_end_line(struct parser *p, bool block)
{
    if (!p->lost && sees_colon(p)) {
        model_error_at(p->errs, p->token->at,
                       "no ':' ends a line here: deeper lines follow as they are");
        p->lost = true;
    }
    if (!p->lost && p->token->kind != TOKEN_NEWLINE && !parser_at_end_of_block(p))
        parser_fail(p, "the end of the line");
    while (p->token->kind != TOKEN_NEWLINE && !parser_at_end_of_block(p) &&
           p->token->kind != TOKEN_INDENT)
        p->token++;
    p->token += p->token->kind == TOKEN_NEWLINE;
    if (p->token->kind != TOKEN_INDENT || (block && !p->lost))
        return;
    if (!p->lost)
        model_error_at(p->errs, p->token->at, "this line is deeper than the one above it");
    parser_skip_block(p);
}

// ---- nodes -------------------------------------------------------------------------------------

static struct expr *new_expr(struct parser *p, enum expr_kind kind, struct text_place at)
{
    struct expr *e = arena_new(p->arena, struct expr);
    e->kind = kind;
    e->at = at;
    return e;
}

// Whoever walks a tree needs stack for its depth. Not only brackets make it: a chain of operators, or
// of braces, is as deep as it is long.
static void hold(struct parser *p, struct expr *e, const struct expr *part)
{
    if (e->deep <= part->deep)
        e->deep = part->deep + 1;
    if (e->deep > MODEL_MAX_TREE && !p->lost) {
        p->lost = true;
        model_error_at(p->errs, e->at, "this is nested more than %d deep", MODEL_MAX_TREE);
    }
}

static struct expr *new_operator(struct parser *p, enum sign sign, struct text_place at,
                                 struct expr *a, struct expr *b)
{
    struct expr *e = new_expr(p, EXPR_OPERATOR, at);
    e->sign = sign;
    e->arg = arena_array(p->arena, struct expr *, 2);
    e->arg[0] = a;
    e->arg[1] = b;
    e->n = b ? 2 : 1;
    for (int i = 0; i < e->n; i++)
        hold(p, e, e->arg[i]);
    return e;
}

static void add_argument(struct parser *p, struct expr *e, struct expr *arg, const char *keyword,
                         int *cap)
{
    int keywords = *cap; // both arrays grow alike
    e->arg = arena_grow(p->arena, e->arg, sizeof *e->arg, e->n, cap);
    e->keyword = arena_grow(p->arena, e->keyword, sizeof *e->keyword, e->n, &keywords);
    e->keyword[e->n] = keyword;
    e->arg[e->n++] = arg;
    hold(p, e, arg);
}

// ---- paths, parameters, calls ------------------------------------------------------------------

struct path parse_path(struct parser *p)
{
    struct path path = {0};
    int cap = 0;
    do {
        struct path_part part = {0};
        if (path.n && parser_takes(p, "(")) {
            part.number = parse_expression(p);
            parser_wants(p, ")");
        } else if (!p->lost && path.n && p->token->kind == TOKEN_NAME) {
            part.name = p->token++->text;
        } else {
            part.name = parser_name(p, "a name");
        }
        path.part = arena_grow(p->arena, path.part, sizeof *path.part, path.n, &cap);
        path.part[path.n++] = part;
    } while (parser_takes(p, "."));
    return path;
}

// One of embed, expert*, 3, _, position = seq.
static struct written_dim parse_dim(struct parser *p)
{
    struct written_dim d = {0};
    if (!p->lost && p->token->kind == TOKEN_NUMBER) {
        d.size = parse_expression(p);
        return d;
    }
    d.name = parser_name(p, "a dimension");
    d.star = parser_takes(p, "*");
    if (parser_takes(p, "="))
        d.size = parse_expression(p);
    return d;
}

// One of seq as key, heads*.
static struct written_dim parse_renaming(struct parser *p)
{
    struct written_dim d = {0};
    d.name = parser_name(p, "a dimension");
    if (parser_takes(p, "as"))
        d.as = parser_name(p, "a new name");
    d.star = parser_takes(p, "*");
    return d;
}

static void parse_dims(struct parser *p, struct expr *e, const char *close,
                       struct written_dim (*parse_one)(struct parser *p))
{
    const struct token *open = p->token - 1;
    int cap = 0;
    while (!p->lost && !parser_takes(p, close)) {
        e->dims = arena_grow(p->arena, e->dims, sizeof *e->dims, e->ndims, &cap);
        e->dims[e->ndims++] = parse_one(p);
        if (e->dims[e->ndims - 1].size)
            hold(p, e, e->dims[e->ndims - 1].size);
        wants_next(p, open, close);
    }
}

static void parse_arguments(struct parser *p, struct expr *e, const char *close)
{
    const struct token *open = p->token - 1;
    int cap = 0;
    while (!p->lost && !parser_takes(p, close)) {
        const char *keyword = NULL;
        bool named = p->token->kind == TOKEN_NAME && p->token[1].kind == TOKEN_SIGN &&
                     strcmp(p->token[1].text, "=") == 0;
        if (named) {
            keyword = parser_name(p, "a name");
            parser_wants(p, "=");
        }
        add_argument(p, e, parse_expression(p), keyword, &cap);
        wants_next(p, open, close);
    }
}

static struct expr *parse_postfix(struct parser *p);

// What begins with a name: x, f(x), attn.qkv[…] ~ init, attn: f(x).
static struct expr *parse_named(struct parser *p)
{
    struct expr *e = new_expr(p, EXPR_PATH, p->token->at);
    if (!parser_sees(p, "["))
        e->path = parse_path(p);
    for (int i = 0; i < e->path.n; i++)
        if (e->path.part[i].number)
            hold(p, e, e->path.part[i].number);
    bool plain = e->path.n == 1;
    e->name = plain ? e->path.part[0].name : NULL;
    if (plain && parser_takes(p, "(")) {
        e->kind = EXPR_CALL;
        parse_arguments(p, e, ")");
        return e;
    }
    if (e->path.n && !sees_colon(p) && parser_takes(p, ":")) {
        e->kind = EXPR_SCOPE;
        e->arg = arena_new(p->arena, struct expr *);
        e->arg[e->n++] = parse_postfix(p);
        hold(p, e, e->arg[0]);
        return e;
    }
    if (parser_takes(p, "[")) {
        e->has_dims = true;
        parse_dims(p, e, "]", parse_dim);
    }
    if (parser_takes(p, "~")) {
        e->init = parse_postfix(p);
        hold(p, e, e->init);
    }
    return e;
}

static struct expr *parse_list(struct parser *p)
{
    struct expr *e = new_expr(p, EXPR_LIST, p->token->at);
    parser_wants(p, "[");
    parse_arguments(p, e, "]");
    if (e->n > MODEL_MAX_LIST)
        model_error_at(p->errs, e->at, "a list of %d items: try %d", e->n, MODEL_MAX_LIST);
    return e;
}

static struct expr *parse_primary(struct parser *p)
{
    struct text_place at = p->token->at;
    if (parser_takes(p, "(")) {
        const struct token *open = p->token - 1;
        struct expr *e = parse_expression(p);
        if (!parser_takes(p, ")"))
            fail_to_close(p, open, ")", "')'");
        return e;
    }
    if (!p->lost && p->token->kind == TOKEN_NUMBER) {
        struct expr *e = new_expr(p, EXPR_NUMBER, at);
        e->number = p->token->number;
        e->whole = p->token++->whole;
        return e;
    }
    if (p->texts && !p->lost && p->token->kind == TOKEN_TEXT) {
        struct expr *e = new_expr(p, EXPR_TEXT, at);
        e->name = p->token++->text;
        return e;
    }
    if (p->sizes && parser_sees(p, "["))
        return parse_list(p);
    if (parser_sees(p, "[") || (!p->lost && p->token->kind == TOKEN_NAME))
        return parse_named(p);
    parser_fail(p, "a value");
    return new_expr(p, EXPR_NUMBER, at);
}

static struct expr *parse_postfix(struct parser *p)
{
    struct expr *e;
    if (!parser_enter(p)) {
        parser_leave(p);
        return new_expr(p, EXPR_NUMBER, p->token->at);
    }
    e = parse_primary(p);
    if (parser_sees(p, "by")) {
        struct expr *by = new_expr(p, EXPR_BY, p->token++->at);
        int cap = 0;
        add_argument(p, by, e, NULL, &cap);
        by->name = parser_name(p, "the name of a choice");
        e = by;
    }
    while (parser_sees(p, "{")) {
        struct expr *renamed = new_expr(p, EXPR_RENAME, p->token++->at);
        int cap = 0;
        add_argument(p, renamed, e, NULL, &cap);
        parse_dims(p, renamed, "}", parse_renaming);
        e = renamed;
        if (renamed->ndims > 8)
            parser_fail(p, "fewer dimensions");
    }
    parser_leave(p);
    return e;
}

// ---- operators ---------------------------------------------------------------------------------

struct operator_sign {
    const char *text;
    enum sign sign;
};
enum { LEVELS = 5, MOST_SIGNS = 6 };
static const struct operator_sign levels[LEVELS][MOST_SIGNS + 1] = {
    {{"or", SIGN_OR}},
    {{"and", SIGN_AND}},
    {{"==", SIGN_EQ},
     {"!=", SIGN_NE},
     {"<=", SIGN_LE},
     {">=", SIGN_GE},
     {"<", SIGN_LT},
     {">", SIGN_GT}},
    {{"+", SIGN_ADD}, {"-", SIGN_SUB}},
    {{"*", SIGN_MUL}, {"/", SIGN_DIV}, {"%", SIGN_MOD}, {"@", SIGN_CONTRACT}},
};

static struct expr *parse_unary(struct parser *p)
{
    struct text_place at = p->token->at;
    bool minus = parser_sees(p, "-");
    if (!minus && !parser_sees(p, "not"))
        return parse_postfix(p);
    p->token++;
    struct expr *operand = parser_enter(p) ? parse_unary(p) : new_expr(p, EXPR_NUMBER, at);
    parser_leave(p);
    return new_operator(p, minus ? SIGN_NEGATE : SIGN_NOT, at, operand, NULL);
}

static struct expr *parse_level(struct parser *p, int level)
{
    if (level == LEVELS)
        return parse_unary(p);
    struct expr *left = parse_level(p, level + 1);
    for (int length = 0;; length++) {
        const struct operator_sign *s = levels[level];
        struct text_place at = p->token->at;
        while (s->text && !parser_takes(p, s->text))
            s++;
        if (!s->text)
            return left;
        // A long sum is a deep tree to whoever walks it.
        if (length == MODEL_MAX_DEPTH)
            parser_fail(p, "a line of its own: this one has too many operators, and an operand");
        left = new_operator(p, s->sign, at, left, parse_level(p, level + 1));
    }
}

struct expr *parse_expression(struct parser *p)
{
    struct text_place at = p->token->at;
    if (!parser_enter(p)) {
        parser_leave(p);
        return new_expr(p, EXPR_NUMBER, at);
    }
    struct expr *e = parse_level(p, 0);
    if (parser_takes(p, "if")) {
        struct expr *choose = new_expr(p, EXPR_CHOOSE, at);
        int cap = 0;
        add_argument(p, choose, e, NULL, &cap);
        add_argument(p, choose, parse_level(p, 0), NULL, &cap);
        parser_wants(p, "else");
        add_argument(p, choose, parse_expression(p), NULL, &cap);
        e = choose;
    }
    parser_leave(p);
    return e;
}
