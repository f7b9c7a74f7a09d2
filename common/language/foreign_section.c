// SPDX-License-Identifier: Apache-2.0
// Reading the section `export hf`. See foreign_section.h.
#include "common/language/foreign_section.h"

#include <string.h>

#include "common/language/parser.h"
#include "common/language/size_expression.h"

// ---- names -------------------------------------------------------------------------------------

// Tokens without blanks between them, up to one of other signs: layers/{n}/{gate|up}/weight.
static const char *read_name(struct parser *p, const char *what)
{
    struct buf text = {0};
    const struct token *t = p->token;
    for (; !p->lost; t++) {
        bool word = t->kind == TOKEN_NAME || t->kind == TOKEN_NUMBER || t->kind == TOKEN_WORD;
        bool sign = t->kind == TOKEN_SIGN && strchr("./{}|-:", *t->text) && !t->text[1];
        if ((!word && !sign) || (t > p->token && t->begin != t[-1].end))
            break;
        buf_puts(&text, t->text);
    }
    if (t == p->token)
        parser_fail(p, what);
    p->token = t;
    if (text.len > MODEL_MAX_PATH && !p->lost) {
        model_error_at(p->errs, t[-1].at, "a name of %zu bytes: try at most %d", text.len,
                       MODEL_MAX_PATH);
        p->lost = true;
    }
    return buf_keep(&text, p->arena);
}

// ---- the config --------------------------------------------------------------------------------

static void parse_field(struct parser *p, struct foreign_line *to)
{
    struct foreign_field *f = &to->field;
    int cap = 0;
    do {
        f->name = arena_grow(p->arena, f->name, sizeof *f->name, f->n, &cap);
        f->name[f->n++] = read_name(p, "the name of a field");
    } while (parser_takes(p, ","));
    for (int i = 0; i < f->n && !p->lost; i++) {
        size_t len = strlen(f->name[i]);
        bool each = len > 4 && strcmp(f->name[i] + len - 4, ".{n}") == 0;
        if (each)
            f->name[i] = arena_printf(p->arena, "%.*s", (int)len - 4, f->name[i]);
        if ((i && each != f->each) || strpbrk(f->name[i], "{}|/")) {
            model_error_at(p->errs, to->at, "'%s' is no name of a field", f->name[i]);
            p->lost = true;
        }
        f->each |= each;
    }
    parser_wants(p, "=");
    f->value = parse_expression(p);
    if (parser_takes(p, "else"))
        f->otherwise = parse_expression(p);
}

static void parse_config_line(struct parser *p, struct foreign_line *to)
{
    const struct token *next = p->token + 1;
    if (next->kind == TOKEN_NAME && parser_takes(p, "size")) {
        to->kind = FOREIGN_SIZE;
        to->size = parser_name(p, "the name of a size");
        parser_wants(p, "=");
        to->value = parse_expression(p);
    } else {
        to->kind = FOREIGN_FIELD;
        parse_field(p, to);
    }
}

// ---- the tensors -------------------------------------------------------------------------------

static bool parse_factor(struct parser *p, struct foreign_product *to, int *cap)
{
    static const char *const orders[] = {
        [ORDER_TURNED] = "turned", [ORDER_PAIRS] = "pairs", [ORDER_HALVES] = "halves"};
    const struct token *t = p->token;
    struct foreign_factor f = {0};
    if (p->lost || (t->kind != TOKEN_NAME && t->kind != TOKEN_NUMBER))
        return false;
    for (int i = ORDER_TURNED; i <= ORDER_HALVES; i++)
        if (strcmp(t->text, orders[i]) == 0 && strcmp(t[1].text, "(") == 0)
            f.order = (enum foreign_order)i;
    if (f.order) {
        p->token += 2;
        f.dim = parser_name(p, "a dimension");
        parser_wants(p, ")");
    } else {
        f.dim = t->kind == TOKEN_NAME ? t->text : NULL;
        p->token++;
    }
    to->factor = arena_grow(p->arena, to->factor, sizeof *to->factor, to->n, cap);
    to->factor[to->n++] = f;
    return true;
}

static struct foreign_product parse_product(struct parser *p)
{
    struct foreign_product out = {0};
    int cap = 0;
    while (parse_factor(p, &out, &cap))
        ;
    return out;
}

// One of 3 heads head_dim; heads (head_dim + rotary).
static struct foreign_dim parse_foreign_dim(struct parser *p)
{
    struct foreign_dim d = {.before = parse_product(p)};
    int cap = 0;
    if (parser_takes(p, "(")) {
        do {
            d.term = arena_grow(p->arena, d.term, sizeof *d.term, d.nterms, &cap);
            d.term[d.nterms] = parse_product(p);
            if (!d.term[d.nterms++].n)
                parser_fail(p, "a dimension");
        } while (parser_takes(p, "+"));
        parser_wants(p, ")");
        d.after = parse_product(p);
    }
    if (!d.before.n && !d.nterms)
        parser_fail(p, "a dimension");
    return d;
}

static void parse_tensor(struct parser *p, struct foreign_line *to)
{
    struct foreign_tensor *t = &to->tensor;
    int paths = 0, dims = 0;
    do {
        struct foreign_path path = {.text = read_name(p, "the path of a parameter"), .item = -1};
        if (parser_takes(p, "[")) {
            if (p->token->kind == TOKEN_NUMBER && p->token->whole && p->token->number < 1000)
                path.item = (int)p->token++->number;
            else
                parser_fail(p, "the number of an item");
            parser_wants(p, "]");
        }
        t->path = arena_grow(p->arena, t->path, sizeof *t->path, t->n, &paths);
        t->path[t->n++] = path;
    } while (parser_takes(p, ","));
    parser_wants(p, "=");
    t->tensor = read_name(p, "the name of a tensor");
    parser_wants(p, "[");
    do {
        t->dim = arena_grow(p->arena, t->dim, sizeof *t->dim, t->ndims, &dims);
        t->dim[t->ndims++] = parse_foreign_dim(p);
    } while (parser_takes(p, ","));
    parser_wants(p, "]");
    if (parser_takes(p, "+")) {
        t->plus_one = p->token->kind == TOKEN_NUMBER && p->token->number == 1;
        p->token += t->plus_one;
        if (!t->plus_one)
            parser_fail(p, "1");
    }
    int sums = 0;
    for (int i = 0; i < t->ndims && !p->lost; i++) {
        int terms = t->dim[i].nterms;
        sums += terms > 0;
        if (t->ndims > 8 || (terms && terms != t->n)) {
            model_error_at(p->errs, to->at,
                           terms ? "a sum of %d for %d parameters" : "more than 8 dimensions",
                           terms, t->n);
            p->lost = true;
        }
    }
    if (t->n > 1 && sums != 1 && !p->lost) {
        model_error_at(p->errs, to->at,
                       "%d parameters make one tensor: exactly one dimension is their sum, (a + b)",
                       t->n);
        p->lost = true;
    }
}

static void parse_tensor_line(struct parser *p, struct foreign_line *to)
{
    to->kind = FOREIGN_TENSOR;
    bool alone = p->token[1].begin > p->token->end; // not the begin of a path
    if (!alone || !parser_takes(p, "drop")) {
        parse_tensor(p, to);
        return;
    }
    to->tensor.tensor = read_name(p, "the name of a tensor");
    if (parser_takes(p, "like"))
        to->tensor.like = read_name(p, "the path of a parameter");
}

// ---- blocks ------------------------------------------------------------------------------------

struct block_reader {
    struct parser *p;
    int lines;
    void (*parse_line)(struct parser *p, struct foreign_line *to);
};

static struct foreign_line *parse_lines(struct block_reader *r);

static void parse_condition(struct block_reader *r, struct foreign_line *to)
{
    to->kind = FOREIGN_IF;
    to->value = parse_expression(r->p);
    parser_end_line(r->p, true);
    to->body = parse_lines(r);
    r->p->lost = false;
    if (!parser_takes(r->p, "else"))
        return;
    parser_end_line(r->p, true);
    to->otherwise = parse_lines(r);
}

static struct foreign_line *parse_lines(struct block_reader *r)
{
    struct parser *p = r->p;
    struct foreign_line *first = NULL, **last = &first;
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
        struct foreign_line *line = *last = arena_new(p->arena, struct foreign_line);
        line->at = p->token->at;
        last = &line->next;
        p->lost = false;
        if (++r->lines > MODEL_MAX_FOREIGN) {
            if (r->lines == MODEL_MAX_FOREIGN + 1)
                model_error_at(p->errs, line->at, "more than %d lines", MODEL_MAX_FOREIGN);
            p->lost = true;
            parser_end_line(p, true);
        } else if (parser_takes(p, "if")) {
            parse_condition(r, line);
        } else {
            r->parse_line(p, line);
            parser_end_line(p, false);
        }
    }
    p->token += p->token->kind == TOKEN_DEDENT;
    p->lost = false;
    parser_leave(p);
    return first;
}

struct foreign_section *parse_foreign(struct parser *p)
{
    struct foreign_section *s = arena_new(p->arena, struct foreign_section);
    struct block_reader r = {.p = p};
    s->at = p->token[-1].at;
    s->prefix = "";
    parser_wants(p, "hf");
    parser_end_line(p, true);
    if (p->token->kind != TOKEN_INDENT)
        return s;
    p->token++;
    p->sizes = p->texts = true;
    while (!parser_at_end_of_block(p)) {
        p->lost = false;
        if (!s->config && parser_takes(p, "config")) {
            r.parse_line = parse_config_line;
            parser_end_line(p, true);
            s->config = parse_lines(&r);
        } else if (!s->tensors && parser_takes(p, "tensors")) {
            if (p->token->kind != TOKEN_NEWLINE)
                s->prefix = read_name(p, "a prefix");
            r.parse_line = parse_tensor_line;
            parser_end_line(p, true);
            s->tensors = parse_lines(&r);
        } else {
            parser_fail(p, "`config` or `tensors`, one of each,");
            parser_end_line(p, true);
            parser_skip_block(p);
        }
    }
    p->sizes = p->texts = false;
    p->token += p->token->kind == TOKEN_DEDENT;
    return s;
}

// ---- asked by others ---------------------------------------------------------------------------

const struct foreign_section *foreign_section(const struct model_program *p)
{
    return p->syntax->foreign;
}

bool foreign_number(const struct model_sizes *s, const struct expr *e, int64_t n,
                    struct number *out, struct model_errors *errs)
{
    struct size_scope scope = {.program = s->program,
                               .value = s->value,
                               .n = s->program->nsizes,
                               .blamed = -1,
                               .errs = errs,
                               .turn = n + 1};
    return evaluate_size(&scope, e, out) &&
           !(out->list && model_error_at(errs, e->at, "a list is no number"));
}
