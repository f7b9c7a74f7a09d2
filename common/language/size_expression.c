// SPDX-License-Identifier: Apache-2.0
// Expressions of sizes. See size_expression.h.
#include "common/language/size_expression.h"

#include <string.h>

static bool report_fault(struct size_scope *r, const struct expr *e, const char *fault)
{
    if (fault)
        model_error_at(r->errs, e->at, "%s", fault);
    return !fault;
}

static bool read_size(struct size_scope *r, const struct expr *e, const char *name, int *size)
{
    *size = name ? model_size_find(r->program, name) : -1;
    if (*size >= 0 && *size < r->n) {
        if (r->value[*size].given)
            r->blamed = *size;
        return true;
    }
    const char *near = name ? model_size_suggest(r->program, name) : NULL;
    if (*size >= 0)
        model_error_at(r->errs, e->at, "%s is a size that is said further down: say it before",
                       name);
    else if (near)
        model_error_at(r->errs, e->at, "no size is called %s: try %s", name, near);
    else
        model_error_at(r->errs, e->at, "%s is no size that is said above", name ? name : "this");
    return false;
}

static bool evaluate_path(struct size_scope *r, const struct expr *e, struct number *out)
{
    int size;
    if (r->turn > 0 && e->name && strcmp(e->name, "n") == 0 && !e->has_dims && !e->init) {
        *out = number_of((double)(r->turn - 1), true);
        return true;
    }
    if (e->has_dims || e->init || !read_size(r, e, e->name, &size))
        return e->has_dims || e->init ? report_fault(r, e, "a parameter is no size") : false;
    if (r->program->sizes[size].kind == MODEL_CHOICE)
        return report_fault(r, e,
                            "a choice of words: compare it (== WORD), or pick a list's item (by)");
    *out = r->value[size].number;
    return true;
}

static int find_word(const struct model_size *s, const char *word)
{
    for (int i = 0; s->words && s->words[i]; i++)
        if (word && strcmp(s->words[i], word) == 0)
            return i;
    return -1;
}

// activation == relu: a choice and a word of it. False: it is no such comparison.
static bool evaluate_word(struct size_scope *r, const struct expr *e, struct number *out,
                          bool *fine)
{
    bool compares = e->sign == SIGN_EQ || e->sign == SIGN_NE;
    const struct expr *a = e->arg[0];
    int size =
        compares && a->kind == EXPR_PATH && a->name ? model_size_find(r->program, a->name) : -1;
    if (size < 0 || size >= r->n || r->program->sizes[size].kind != MODEL_CHOICE)
        return false;
    read_size(r, a, a->name, &size);
    int word = find_word(&r->program->sizes[size], e->arg[1]->name);
    *fine = word >= 0 || report_fault(r, e->arg[1], "none of the words of that choice");
    *out = number_of((r->value[size].number.value == word) == (e->sign == SIGN_EQ), true);
    return true;
}

static bool evaluate_operator(struct size_scope *r, const struct expr *e, struct number *out)
{
    struct number a, b = {0};
    const char *fault;
    bool fine;
    if (evaluate_word(r, e, out, &fine))
        return fine;
    if (!evaluate_size(r, e->arg[0], &a) || (e->n > 1 && !evaluate_size(r, e->arg[1], &b)))
        return false;
    *out = number_apply(e->sign, a, b, &fault);
    return report_fault(r, e, fault);
}

static bool evaluate_list(struct size_scope *r, const struct expr *e, struct number *out)
{
    int64_t *item = arena_array(r->errs->arena, int64_t, e->n);
    for (int i = 0; i < e->n; i++) {
        struct number one;
        if (!evaluate_size(r, e->arg[i], &one))
            return false;
        if (one.list || !number_is_whole(one.value))
            return report_fault(r, e->arg[i], "a list holds whole numbers");
        item[i] = (int64_t)one.value;
    }
    *out = (struct number){.list = true, .n = e->n, .item = item};
    return true;
}

// [12, 24] by variant: the item of the choice's word.
static bool evaluate_by(struct size_scope *r, const struct expr *e, struct number *out)
{
    int size, words = 0;
    const struct expr *list = e->arg[0];
    if (!read_size(r, e, e->name, &size))
        return false;
    const struct model_size *choice = &r->program->sizes[size];
    if (choice->kind != MODEL_CHOICE || list->kind != EXPR_LIST)
        return report_fault(r, e,
                            "`by` takes a list and the name of a choice: [12, 24] by variant");
    while (choice->words[words])
        words++;
    if (list->n != words) {
        model_error_at(r->errs, list->at, "a list of %d items by a choice of %d words", list->n,
                       words);
        return false;
    }
    return evaluate_size(r, list->arg[(int)r->value[size].number.value], out);
}

static bool evaluate_call(struct size_scope *r, const struct expr *e, struct number *out)
{
    const struct number_function *f = number_function(e->name);
    enum { MOST = 2 };
    struct number arg[MOST];
    const char *fault;
    if (!f) {
        model_error_at(r->errs, e->at, "%s is no function of sizes", e->name);
        return false;
    }
    for (int i = 0; i < e->n && i < MOST; i++)
        if (!evaluate_size(r, e->arg[i], &arg[i]))
            return false;
    *out = number_call(r->errs->arena, f, arg, e->n, &fault);
    return report_fault(r, e, fault);
}

bool evaluate_size(struct size_scope *r, const struct expr *e, struct number *out)
{
    struct number condition;
    *out = number_of(0, true);
    switch (e->kind) {
    case EXPR_NUMBER:
        *out = number_of(e->number, e->whole);
        return true;
    case EXPR_PATH:
        return evaluate_path(r, e, out);
    case EXPR_CALL:
        return evaluate_call(r, e, out);
    case EXPR_OPERATOR:
        return evaluate_operator(r, e, out);
    case EXPR_CHOOSE:
        return evaluate_size(r, e->arg[1], &condition) &&
               evaluate_size(r, e->arg[condition.value != 0 ? 0 : 2], out);
    case EXPR_LIST:
        return evaluate_list(r, e, out);
    case EXPR_BY:
        return evaluate_by(r, e, out);
    case EXPR_RENAME:
    case EXPR_SCOPE:
    case EXPR_TEXT:
        break;
    }
    return report_fault(r, e, "this is for the model section: a size is made of numbers and sizes");
}
