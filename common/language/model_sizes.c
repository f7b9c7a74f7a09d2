// SPDX-License-Identifier: Apache-2.0
// Sizes as numbers. See model_sizes.h.
#include "common/language/model_sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/suggest.h"
#include "common/language/size_expression.h"

struct resolving {
    const struct model_program *program;
    struct model_size_value *value;
    struct model_errors *errs;
    bool fine; // no size was wrong so far: what follows from one that is, is not reported too
};

static const struct text_place nowhere = {0, 0};

static const char *print_number(struct arena *a, double v)
{
    char text[32];
    if (number_is_whole(v))
        return arena_printf(a, "%.0f", v);
    json_format_double(v, text);
    return arena_strdup(a, text);
}

// ---- what is given -----------------------------------------------------------------------------

static bool parse_whole(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return *text && strspn(text, "-0123456789") == strlen(text) && !*end && number_is_whole(*out);
}

static bool parse_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return *text && strspn(text, "-+.eE0123456789") == strlen(text) && !*end && isfinite(*out);
}

static bool parse_word(struct resolving *r, const struct model_size *s, const char *text,
                       struct number *out)
{
    struct buf all = {0};
    int n = 0;
    for (; s->words[n]; n++) {
        buf_printf(&all, "%s%s", n ? ", " : "", s->words[n]);
        if (strcmp(s->words[n], text) == 0)
            *out = number_of(n, true);
    }
    bool known = out->whole;
    const char *near = suggest(text, s->words, n);
    if (!known && near)
        model_error_size(r->errs, nowhere, s->name, "'%s' is not one of %s: did you mean %s?", text,
                         buf_str(&all), near);
    else if (!known)
        model_error_size(r->errs, nowhere, s->name, "'%s' is not one of %s", text, buf_str(&all));
    buf_clear(&all);
    return known;
}

static bool parse_list(struct resolving *r, const struct model_size *s,
                       const struct model_given *given, struct number *out)
{
    int64_t *item = arena_array(r->errs->arena, int64_t, given->n);
    *out = (struct number){.list = true, .n = given->n, .item = item};
    if (given->n < 1 || given->n > MODEL_MAX_LIST) {
        model_error_size(r->errs, nowhere, s->name, "has %d items: it must have 1 to %d", given->n,
                         MODEL_MAX_LIST);
        return false;
    }
    for (int i = 0; i < given->n; i++) {
        double v;
        if (!parse_whole(given->item[i], &v)) {
            model_error_size(r->errs, nowhere, s->name, "item %d must be a whole number, not '%s'",
                             i, given->item[i]);
            return false;
        }
        item[i] = (int64_t)v;
    }
    return true;
}

static bool take_given(struct resolving *r, const struct model_size *s,
                       const struct model_given *given, struct number *out)
{
    *out = (struct number){0};
    if ((s->kind == MODEL_LIST) != !given->text) {
        model_error_size(r->errs, nowhere, s->name,
                         s->kind == MODEL_LIST ? "must be a list such as [256, 128]"
                                               : "must be %s, not a list",
                         model_size_kind_name(s->kind));
        return false;
    }
    if (s->kind == MODEL_LIST)
        return parse_list(r, s, given, out);
    if (s->kind == MODEL_CHOICE)
        return parse_word(r, s, given->text, out);
    out->whole = s->kind == MODEL_WHOLE;
    bool fine = (out->whole ? parse_whole : parse_number)(given->text, &out->value);
    if (!fine)
        model_error_size(r->errs, nowhere, s->name, "must be %s, not '%s'",
                         model_size_kind_name(s->kind), given->text);
    return fine;
}

// ---- ranges ------------------------------------------------------------------------------------

static bool check_range(struct resolving *r, const struct model_size *s, struct text_place at,
                        double v)
{
    struct arena *a = r->errs->arena;
    bool low = v < s->min, high = s->below_max ? v >= s->max : v > s->max;
    if (low)
        model_error_size(r->errs, at, s->name, "%s is too small: it must be at least %s",
                         print_number(a, v), print_number(a, s->min));
    else if (high)
        model_error_size(r->errs, at, s->name, "%s is too large: it must be %s %s",
                         print_number(a, v), s->below_max ? "less than" : "at most",
                         print_number(a, s->max));
    return !low && !high;
}

// "4 or 8": the divisors of `of` next to `n` on either side.
static const char *find_divisors(struct arena *a, int64_t of, int64_t n)
{
    int64_t below = n < of ? n : of, above = n;
    while (below > 1 && of % below)
        below--;
    while (above < of && of % above)
        above++;
    return above <= of && of % above == 0
               ? arena_printf(a, "%lld or %lld", (long long)below, (long long)above)
               : arena_printf(a, "%lld", (long long)below);
}

static bool check_divides(struct resolving *r, const struct model_size *s, struct text_place at,
                          struct number number)
{
    int other = s->line->divides ? model_size_find(r->program, s->line->divides) : -1;
    if (other < 0)
        return true;
    int64_t of = (int64_t)r->value[other].number.value, n = (int64_t)number.value;
    if (n > 0 && of % n == 0)
        return true;
    model_error_size(r->errs, at, s->name, "%lld does not divide %s, which is %lld: try %s",
                     (long long)n, s->line->divides, (long long)of,
                     find_divisors(r->errs->arena, of, n));
    return false;
}

// A default such as embed / heads that comes out as no whole number.
static bool check_quotient(struct resolving *r, struct size_scope *by, const struct model_size *s,
                           double v)
{
    const struct expr *e = s->line->value, *under;
    if (s->kind != MODEL_WHOLE || number_is_whole(v))
        return true;
    struct number over, divisor = {0};
    const char *blamed = by->blamed < 0 ? s->name : r->program->sizes[by->blamed].name;
    bool quotient = e->kind == EXPR_OPERATOR && e->sign == SIGN_DIV &&
                    evaluate_size(by, e->arg[0], &over) &&
                    evaluate_size(by, under = e->arg[1], &divisor) && number_is_whole(over.value) &&
                    number_is_whole(divisor.value) && under->name;
    if (quotient)
        model_error_size(
            r->errs, s->at, blamed,
            "%s = %s is %.0f / %.0f, no whole number: try %s of %s, or a %s of its own", s->name,
            s->written, over.value, divisor.value, under->name,
            find_divisors(r->errs->arena, (int64_t)over.value, (int64_t)divisor.value), s->name);
    else
        model_error_size(r->errs, s->at, blamed,
                         "%s = %s is %s, no whole number: try a %s of its own", s->name, s->written,
                         print_number(r->errs->arena, v), s->name);
    return false;
}

static bool check_value(struct resolving *r, const struct model_size *s, struct text_place at,
                        struct number number)
{
    bool fine = true;
    for (int i = 0; i < number.n && fine; i++)
        fine = check_range(r, s, at, (double)number.item[i]);
    if (s->kind == MODEL_WHOLE || s->kind == MODEL_NUMBER)
        fine = check_range(r, s, at, number.value) && check_divides(r, s, at, number);
    return fine;
}

static bool pad_size(struct resolving *r, struct size_scope *by, const struct model_size *s,
                     struct model_size_value *v)
{
    struct number multiple = number_of(1, true);
    v->padded = s->kind == MODEL_WHOLE ? (int64_t)v->number.value : 0;
    if (!s->line->padded)
        return true;
    if (!evaluate_size(by, s->line->padded, &multiple))
        return false;
    if (multiple.list || !number_is_whole(multiple.value) || multiple.value < 1 ||
        multiple.value > 1 << 24) {
        model_error_size(r->errs, s->at, s->name, "padded takes a whole number of 1 to %d",
                         1 << 24);
        return false;
    }
    int64_t m = (int64_t)multiple.value;
    v->padded = (v->padded + m - 1) / m * m;
    return true;
}

// ---- the whole ---------------------------------------------------------------------------------

static bool resolve_size(struct resolving *r, int i, const struct model_given *given)
{
    const struct model_size *s = &r->program->sizes[i];
    struct model_size_value *v = &r->value[i];
    struct size_scope by = {r->program, r->value, i, -1, r->errs, 0};
    v->given = given != NULL;
    bool fine = given
                    ? take_given(r, s, given, &v->number)
                    : s->kind == MODEL_CHOICE || (evaluate_size(&by, s->line->value, &v->number) &&
                                                  check_quotient(r, &by, s, v->number.value));
    fine = fine && check_value(r, s, given ? nowhere : s->at, v->number);
    return fine && (!r->fine || pad_size(r, &by, s, v));
}

static void check_given(struct resolving *r, const struct model_given *given)
{
    const char *near = model_size_suggest(r->program, given->name);
    if (model_size_find(r->program, given->name) >= 0)
        return;
    if (near)
        model_error_size(r->errs, nowhere, given->name, "%s has no such size: did you mean %s?",
                         r->program->name, near);
    else
        model_error_size(r->errs, nowhere, given->name, "%s has no such size", r->program->name);
}

int model_sizes_resolve(const struct model_program *p, const struct model_given *given, int ngiven,
                        struct model_sizes *out, struct model_errors *errs)
{
    struct model_size_value *value =
        arena_array(errs->arena, struct model_size_value, p->nsizes + 1);
    struct resolving r = {p, value, errs, true};
    int before = errs->n;
    *out = (struct model_sizes){.program = p, .value = value};
    for (int k = 0; k < ngiven; k++)
        check_given(&r, &given[k]);
    for (int i = 0; i < p->nsizes; i++) {
        const struct model_given *of = NULL;
        for (int k = 0; k < ngiven; k++)
            of = strcmp(given[k].name, p->sizes[i].name) == 0 ? &given[k] : of;
        if (r.fine || of)
            r.fine = resolve_size(&r, i, of) && r.fine;
    }
    return errs->n > before ? ERR_INVALID : 0;
}

int64_t model_sizes_whole(const struct model_sizes *s, const char *name, int64_t otherwise)
{
    int i = model_size_find(s->program, name);
    return i < 0 || s->program->sizes[i].kind != MODEL_WHOLE ? otherwise
                                                             : (int64_t)s->value[i].number.value;
}

double model_sizes_number(const struct model_sizes *s, const char *name, double otherwise)
{
    int i = model_size_find(s->program, name);
    return i < 0 || s->program->sizes[i].kind > MODEL_NUMBER ? otherwise : s->value[i].number.value;
}
