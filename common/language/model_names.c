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

void model_text_print_tokens(const char *text, struct buf *to)
{
    struct arena a = {0};
    struct model_errors errs = {.arena = &a};
    struct tokens tokens;
    lexer_read(&a, text, (int)strlen(text), &tokens, &errs);
    for (int i = 0; i < tokens.n; i++) {
        const struct token *t = &tokens.token[i];
        switch (t->kind) {
        case TOKEN_NUMBER:
            buf_printf(to, t->whole ? "%.17g " : "%.17g. ", t->number);
            break;
        case TOKEN_NAME:
        case TOKEN_WORD:
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
