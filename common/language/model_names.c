// SPDX-License-Identifier: Apache-2.0
// Sizes and programs by their names. See model_program.h.
#include <string.h>

#include "common/base/suggest.h"
#include "common/language/lexer.h"
#include "common/language/model_program.h"

const char *model_size_kind_name(enum model_size_kind k)
{
    static const char *const names[] = {"a whole number", "a number", "a list of whole numbers",
                                        "a word"};
    return names[k];
}

const char *model_title(const struct model_program *p, struct arena *a)
{
    return arena_printf(a, "%.*s", (int)strcspn(p->heading, "\n"), p->heading);
}

int model_size_find(const struct model_program *p, const char *name)
{
    for (int i = 0; i < p->nsizes; i++)
        if (strcmp(p->sizes[i].name, name) == 0)
            return i;
    return -1;
}

const char *model_size_suggest(const struct model_program *p, const char *name)
{
    const char *known[MODEL_MAX_SIZES];
    for (int i = 0; i < p->nsizes; i++)
        known[i] = p->sizes[i].name;
    return suggest(name, known, p->nsizes);
}

// Whether a token is the first of a line at the margin, where sections begin.
static bool begins_section(const struct tokens *t, int i)
{
    enum token_kind before = i ? t->token[i - 1].kind : TOKEN_NEWLINE;
    return t->token[i].kind == TOKEN_NAME && t->token[i].at.column == 1 &&
           (before == TOKEN_NEWLINE || before == TOKEN_DEDENT);
}

const char *model_text_without_export(const char *text, struct arena *a)
{
    struct arena scratch = {0};
    struct model_errors errs = {.arena = &scratch};
    struct tokens t;
    lexer_read(&scratch, text, (int)strlen(text), &t, &errs);
    int from = 0, to;
    while (from < t.n && !(begins_section(&t, from) && strcmp(t.token[from].text, "export") == 0))
        from++;
    for (to = from + 1; to < t.n && !begins_section(&t, to);)
        to++;
    size_t begin = from < t.n ? (size_t)t.token[from].begin : strlen(text);
    const char *rest = to < t.n ? text + t.token[to].begin : "";
    while (from < t.n && !*rest && begin && strchr(" \n", text[begin - 1]))
        begin--;
    const char *out = arena_printf(a, "%.*s%s", (int)begin, text, rest);
    arena_clear(&scratch);
    return out;
}

void model_text_print_tokens(const char *text, struct buf *to)
{
    struct arena a = {0};
    struct model_errors errs = {.arena = &a};
    struct tokens tokens;
    text = model_text_without_export(text, &a);
    lexer_read(&a, text, (int)strlen(text), &tokens, &errs);
    for (int i = 0; i < tokens.n; i++) {
        const struct token *t = &tokens.token[i];
        switch (t->kind) {
        case TOKEN_NUMBER:
            buf_printf(to, t->whole ? "%.17g " : "%.17g. ", t->number);
            break;
        case TOKEN_NAME:
        case TOKEN_WORD:
        case TOKEN_TEXT:
        case TOKEN_SIGN:
            buf_printf(to, "%s ", t->text);
            break;
        case TOKEN_INDENT:
            buf_puts(to, "{ ");
            break;
        case TOKEN_DEDENT:
            buf_puts(to, "} ");
            break;
        case TOKEN_NEWLINE:
        case TOKEN_END:
            buf_putc(to, '\n');
            break;
        }
    }
    arena_clear(&a);
}

const struct model_text *model_text_find(const char *name)
{
    for (const struct model_text *t = model_texts; t->name; t++)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}
