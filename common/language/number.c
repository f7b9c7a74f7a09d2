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

enum {
    CALL_FLOOR,
    CALL_CEIL,
    CALL_SQRT,
    CALL_LOG,
    CALL_MIN,
    CALL_MAX,
    CALL_COUNT,
    CALL_FIRST,
    CALL_LAST,
    CALL_REST,
    CALL_REVERSED,
};

static const struct number_function number_functions[] = {
    [CALL_FLOOR] = {"floor", 1, false},      [CALL_CEIL] = {"ceil", 1, false},
    [CALL_SQRT] = {"sqrt", 1, false},        [CALL_LOG] = {"log", 1, false},
    [CALL_MIN] = {"min", 2, false},          [CALL_MAX] = {"max", 2, false},
    [CALL_COUNT] = {"count", 1, true},       [CALL_FIRST] = {"first", 1, true},
    [CALL_LAST] = {"last", 1, true},         [CALL_REST] = {"rest", 1, true},
    [CALL_REVERSED] = {"reversed", 1, true},
};

static struct number pick_item(const struct number *list, int i, const char **fault)
{
    if (list->n == 0)
        *fault = "the list is empty";
    return number_of(list->n ? (double)list->item[i] : 0, true);
}

static struct number list_without_first(struct number list)
{
    list.item += list.n > 0;
    list.n -= list.n > 0;
    return list;
}

static struct number list_reversed(struct arena *a, struct number list)
{
    int64_t *item = arena_array(a, int64_t, list.n);
    for (int i = 0; i < list.n; i++)
        item[i] = list.item[list.n - 1 - i];
    list.item = item;
    return list;
}

static struct number apply_function(struct arena *a, const struct number_function *f,
                                    const struct number *arg, const char **fault)
{
    double x = arg->value;
    switch (f - number_functions) {
    case CALL_FLOOR:
        return number_of(floor(x), true);
    case CALL_CEIL:
        return number_of(ceil(x), true);
    case CALL_SQRT:
        if (x < 0)
            *fault = "the square root of a negative number";
        return number_of(sqrt(fabs(x)), false);
    case CALL_LOG:
        if (x <= 0)
            *fault = "the logarithm of what is not above 0";
        return number_of(*fault ? 0 : log(x), false);
    case CALL_MIN:
        return arg[0].value <= arg[1].value ? arg[0] : arg[1];
    case CALL_MAX:
        return arg[0].value >= arg[1].value ? arg[0] : arg[1];
    case CALL_COUNT:
        return number_of(arg->n, true);
    case CALL_FIRST:
        return pick_item(arg, 0, fault);
    case CALL_LAST:
        return pick_item(arg, arg->n - 1, fault);
    case CALL_REST:
        return list_without_first(*arg);
    default:
        return list_reversed(a, *arg);
    }
}

const struct number_function *number_function(const char *name)
{
    for (size_t i = 0; i < sizeof number_functions / sizeof *number_functions; i++)
        if (strcmp(number_functions[i].name, name) == 0)
            return &number_functions[i];
    return NULL;
}

struct number number_call(struct arena *a, const struct number_function *f,
                          const struct number *arg, int n, const char **fault)
{
    *fault = NULL;
    if (n != f->nargs)
        *fault = f->nargs == 1 ? "it takes one argument" : "it takes two arguments";
    for (int i = 0; i < n && !*fault; i++)
        if (arg[i].list != f->takes_list)
            *fault = f->takes_list ? "it takes a list" : "it takes numbers, not a list";
    struct number out = *fault ? number_of(0, true) : apply_function(a, f, arg, fault);
    if (!*fault && !out.list && (!isfinite(out.value) || fabs(out.value) > 1e300))
        *fault = "too large a number";
    return out;
}
