// SPDX-License-Identifier: Apache-2.0
// The names of initial values; see initial.h.
#include "common/language/initial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    bool number; // stands in brackets behind it
} forms[] = {
    [INITIAL_UNSAID] = {"", false},
    [INITIAL_ZEROS] = {"zeros", false},
    [INITIAL_ONES] = {"ones", false},
    [INITIAL_NORMAL] = {"normal", true},
    [INITIAL_TRUNCATED] = {"truncated", true},
    [INITIAL_UNIFORM] = {"uniform", true},
    [INITIAL_FAN_IN] = {"fan_in", true},
    [INITIAL_HE_NORMAL] = {"he_normal", false},
    [INITIAL_HE_UNIFORM] = {"he_uniform", false},
    [INITIAL_XAVIER_NORMAL] = {"xavier_normal", false},
    [INITIAL_XAVIER_UNIFORM] = {"xavier_uniform", false},
};

enum initial_kind initial_find(const char *name, bool number)
{
    int kind = sizeof forms / sizeof *forms - 1;
    while (kind > INITIAL_UNSAID &&
           (strcmp(forms[kind].name, name) != 0 || forms[kind].number != number))
        kind--;
    return (enum initial_kind)kind;
}

bool initial_read(const char *text, struct initial *out)
{
    enum { NAME_MAX_BYTES = 32 };
    char name[NAME_MAX_BYTES], *end;
    size_t n = strcspn(text, "(");
    bool number = text[n] == '(';
    if (n >= sizeof name)
        return false;
    memcpy(name, text, n);
    name[n] = 0;
    *out = (struct initial){.kind = initial_find(name, number)};
    if (out->kind <= INITIAL_ONES || !number)
        return out->kind > INITIAL_ONES;
    const char *digits = text + n + 1;
    out->number = strtod(digits, &end);
    return strspn(digits, "+-.eE0123456789") == (size_t)(end - digits) && strcmp(end, ")") == 0 &&
           isfinite(out->number) && out->number > 0;
}
