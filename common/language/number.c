// SPDX-License-Identifier: Apache-2.0
// Numbers. See number.h.
#include "common/language/number.h"

#include <math.h>
#include <string.h>

bool number_is_whole(double value)
{
    return value == floor(value) && fabs(value) <= NUMBER_LARGEST;
}

struct number number_of(double value, bool whole)
{
    return (struct number){.value = value, .whole = whole};
}

static double apply_sign(enum sign sign, double a, double b)
{
    switch (sign) {
    case SIGN_ADD:
        return a + b;
    case SIGN_SUB:
        return a - b;
    case SIGN_MUL:
        return a * b;
    case SIGN_DIV:
        return a / b;
    case SIGN_MOD:
        return fmod(a, b);
    case SIGN_EQ:
        return a == b;
    case SIGN_NE:
        return a != b;
    case SIGN_LT:
        return a < b;
    case SIGN_LE:
        return a <= b;
    case SIGN_GT:
        return a > b;
    case SIGN_GE:
        return a >= b;
    case SIGN_AND:
        return a != 0 && b != 0;
    case SIGN_OR:
        return a != 0 || b != 0;
    case SIGN_NEGATE:
        return -a;
    case SIGN_NOT:
        return a == 0;
    case SIGN_CONTRACT:
        break;
    }
    return NAN;
}

struct number number_apply(enum sign sign, struct number a, struct number b, const char **fault)
{
    bool unary = sign == SIGN_NEGATE || sign == SIGN_NOT;
    *fault = NULL;
    if (a.list || (!unary && b.list))
        *fault =
            "a list has no arithmetic: first(), last(), rest(), reversed() and count() read one";
    else if (sign == SIGN_CONTRACT)
        *fault = "@ multiplies values, * multiplies numbers";
    else if ((sign == SIGN_DIV || sign == SIGN_MOD) && b.value == 0)
        *fault = "a division by zero";
    if (*fault)
        return number_of(0, true);
    struct number out =
        number_of(apply_sign(sign, a.value, b.value),
                  (sign >= SIGN_EQ && sign <= SIGN_GE) || sign == SIGN_NOT || sign == SIGN_AND ||
                      sign == SIGN_OR || (a.whole && (unary || b.whole)));
    if (!isfinite(out.value) || (out.whole && fabs(out.value) > NUMBER_LARGEST))
        *fault = "too large a number";
    return out;
}

// ---- functions ---------------------------------------------------------------------------------

static struct number call_floor(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    (void)fault;
    return number_of(floor(arg->value), true);
}

static struct number call_ceil(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    (void)fault;
    return number_of(ceil(arg->value), true);
}

static struct number call_sqrt(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    if (arg->value < 0)
        *fault = "the square root of a negative number";
    return number_of(sqrt(fabs(arg->value)), false);
}

static struct number call_log(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    if (arg->value <= 0)
        *fault = "the logarithm of what is not above 0";
    return number_of(*fault ? 0 : log(arg->value), false);
}

static struct number call_min(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    (void)fault;
    return arg[0].value <= arg[1].value ? arg[0] : arg[1];
}

static struct number call_max(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    (void)fault;
    return arg[0].value >= arg[1].value ? arg[0] : arg[1];
}

static struct number call_count(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    (void)fault;
    return number_of(arg->n, true);
}

static struct number pick_item(const struct number *list, int i, const char **fault)
{
    if (list->n == 0)
        *fault = "the list is empty";
    return number_of(list->n ? (double)list->item[i] : 0, true);
}

static struct number call_first(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    return pick_item(arg, 0, fault);
}

static struct number call_last(struct arena *a, const struct number *arg, const char **fault)
{
    (void)a;
    return pick_item(arg, arg->n - 1, fault);
}

static struct number call_rest(struct arena *a, const struct number *arg, const char **fault)
{
    struct number out = *arg;
    (void)a;
    (void)fault;
    out.item += out.n > 0;
    out.n -= out.n > 0;
    return out;
}

static struct number call_reversed(struct arena *a, const struct number *arg, const char **fault)
{
    int64_t *item = arena_array(a, int64_t, arg->n);
    (void)fault;
    for (int i = 0; i < arg->n; i++)
        item[i] = arg->item[arg->n - 1 - i];
    struct number out = *arg;
    out.item = item;
    return out;
}

static const struct number_function number_functions[] = {
    {"floor", 1, call_floor}, {"ceil", 1, call_ceil},         {"sqrt", 1, call_sqrt},
    {"log", 1, call_log},     {"min", 2, call_min},           {"max", 2, call_max},
    {"count", 1, call_count}, {"first", 1, call_first},       {"last", 1, call_last},
    {"rest", 1, call_rest},   {"reversed", 1, call_reversed}, {NULL, 0, NULL},
};

static bool takes_list(const struct number_function *f)
{
    return f->call == call_count || f->call == call_first || f->call == call_last ||
           f->call == call_rest || f->call == call_reversed;
}

const struct number_function *number_function(const char *name)
{
    for (const struct number_function *f = number_functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

struct number number_call(struct arena *a, const struct number_function *f,
                          const struct number *arg, int n, const char **fault)
{
    *fault = NULL;
    if (n != f->nargs)
        *fault = f->nargs == 1 ? "it takes one argument" : "it takes two arguments";
    for (int i = 0; i < n && !*fault; i++)
        if (arg[i].list != takes_list(f))
            *fault = takes_list(f) ? "it takes a list" : "it takes numbers, not a list";
    struct number out = *fault ? number_of(0, true) : f->call(a, arg, fault);
    if (!*fault && !out.list && (!isfinite(out.value) || fabs(out.value) > 1e300))
        *fault = "too large a number";
    return out;
}
