// SPDX-License-Identifier: Apache-2.0
// Reading a program. See model_program.h.
#include "common/language/model_program.h"

#include <string.h>

#include "common/base/utf8.h"
#include "common/language/model_sizes.h"
#include "common/language/size_expression.h"

static const double LARGEST_WHOLE = 1 << 24, LARGEST_NUMBER = 1e300; // where a size says nothing

// ---- sizes -------------------------------------------------------------------------------------

struct size_reader {
    struct model_program *program;
    struct model_size *sizes;       // program->sizes, as they are made
    struct model_size_value *value; // of the defaults
    struct model_errors *errs;
};

static bool reads_sizes(const struct expr *e)
{
    bool any = e->kind == EXPR_PATH || e->kind == EXPR_BY;
    for (int i = 0; i < e->n && !any; i++)
        any = reads_sizes(e->arg[i]);
    return any;
}

static const char *copy_slice(struct size_reader *r, int begin, int end)
{
    char *s = arena_alloc(r->errs->arena, (size_t)(end - begin) + 1);
    memcpy(s, r->program->text + begin, (size_t)(end - begin));
    return s;
}

static bool read_range(struct size_reader *r, struct size_scope *by, struct model_size *s)
{
    struct number low, high;
    bool number = s->kind == MODEL_NUMBER;
    s->min = number ? -LARGEST_NUMBER : 1;
    s->max = number ? LARGEST_NUMBER : LARGEST_WHOLE;
    if (!s->line->low)
        return true;
    if (!evaluate_size(by, s->line->low, &low) || !evaluate_size(by, s->line->high, &high))
        return false;
    s->min = low.value;
    s->max = high.value;
    s->below_max = s->line->below;
    bool fine = s->kind != MODEL_CHOICE && !low.list && !high.list && s->min <= s->max &&
                (number || (s->min >= 0 && s->max <= NUMBER_LARGEST));
    if (!fine)
        model_error_at(r->errs, s->at, "the range of %s is none: try in 1 .. 64", s->name);
    return fine;
}

static bool check_names(struct size_reader *r, const struct model_size *s)
{
    static const char *const keys[] = {"program", "init", "text"};
    const char *divides = s->line->divides;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(s->name, keys[i]) == 0)
            return !model_error_at(r->errs, s->at, "model.%s of a job is no size: another name",
                                   s->name);
    if (model_size_find(r->program, s->name) >= 0)
        return !model_error_at(r->errs, s->at, "%s is a size that has been said above", s->name);
    if (divides && (s->kind != MODEL_WHOLE || model_size_find(r->program, divides) < 0 ||
                    r->sizes[model_size_find(r->program, divides)].kind != MODEL_WHOLE))
        return !model_error_at(r->errs, s->at, "divides is of whole numbers: %s is none above",
                               divides);
    if (s->line->padded && s->kind != MODEL_WHOLE)
        return !model_error_at(r->errs, s->at, "only a whole number is padded");
    return true;
}

static bool read_size(struct size_reader *r, const struct written_size *line)
{
    struct model_program *p = r->program;
    struct number v = {0};
    struct size_scope by = {p, r->value, p->nsizes, -1, r->errs, 0};
    struct model_size s = {.name = line->name,
                           .comment = line->comment,
                           .written = copy_slice(r, line->begin, line->end),
                           .like = line->like,
                           .at = line->at,
                           .line = line};
    if (line->value) {
        if (!evaluate_size(&by, line->value, &v))
            return false;
        s.kind = v.list ? MODEL_LIST : v.whole ? MODEL_WHOLE : MODEL_NUMBER;
        s.derived = reads_sizes(line->value);
    } else {
        const char **words = arena_array(r->errs->arena, const char *, line->nwords + 1);
        memcpy(words, line->word, sizeof *words * (size_t)line->nwords);
        s.kind = MODEL_CHOICE;
        s.words = words;
        s.written = words[0];
    }
    if (!read_range(r, &by, &s) || !check_names(r, &s))
        return false;
    r->value[p->nsizes].number = v;
    r->sizes[p->nsizes++] = s;
    return true;
}

// The sizes, and whether their defaults may be.
static int read_sizes(struct model_program *p, struct model_errors *errs)
{
    int n = p->syntax->nsizes;
    struct model_sizes defaults;
    struct size_reader r = {.program = p,
                            .sizes = arena_array(errs->arena, struct model_size, n + 1),
                            .value = arena_array(errs->arena, struct model_size_value, n + 1),
                            .errs = errs};
    bool fine = true;
    p->sizes = r.sizes;
    for (int i = 0; i < n && fine; i++)
        fine = read_size(&r, &p->syntax->size[i]);
    return fine ? model_sizes_resolve(p, NULL, 0, &defaults, errs) : ERR_INVALID;
}

// ---- the whole ---------------------------------------------------------------------------------

static const struct text_place top = {1, 1};

static int check_text(const char *text, size_t len, struct model_errors *errs)
{
    struct text_place at = top;
    if (len > MODEL_MAX_BYTES)
        return model_error_at(errs, top, "a program of %zu bytes: try at most %d", len,
                              MODEL_MAX_BYTES);
    for (size_t i = 0; i < len;) {
        size_t n = utf8_length(text + i, len - i);
        if (n == 0 || text[i] == '\0')
            return model_error_at(errs, at, "the text is no UTF-8");
        at = text[i] == '\n' ? (struct text_place){at.line + 1, 1}
                             : (struct text_place){at.line, at.column + (int)n};
        i += n;
    }
    return 0;
}

static int check_lets(const struct syntax *s, struct model_errors *errs)
{
    int before = errs->n;
    for (int i = 0; i < s->nlets; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(s->let[i].name, s->let[k].name) == 0)
                model_error_at(errs, s->let[i].at, "let %s has been said above", s->let[i].name);
    if (s->model.line == 0)
        model_error_at(errs, top, "the program has no section `model`");
    return errs->n > before ? ERR_INVALID : 0;
}

int model_program_read(const char *name, const char *text, size_t len,
                       const struct model_program **out, struct model_errors *errs)
{
    struct arena *a = errs->arena;
    struct model_program *p = arena_new(a, struct model_program);
    struct syntax *syntax = arena_new(a, struct syntax);
    struct tokens tokens;
    *out = NULL;
    int rc = check_text(text, len, errs);
    if (rc)
        return rc;
    char *copy = arena_alloc(a, len + 1);
    memcpy(copy, text, len);
    *p = (struct model_program){.name = arena_strdup(a, name), .text = copy, .syntax = syntax};
    int before = errs->n;
    lexer_read(a, copy, (int)len, &tokens, errs);
    syntax_read(a, &tokens, syntax, errs);
    p->heading = syntax->heading;
    if (errs->n > before || check_lets(syntax, errs) || read_sizes(p, errs))
        return ERR_INVALID;
    *out = p;
    return 0;
}
