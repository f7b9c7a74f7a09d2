// SPDX-License-Identifier: Apache-2.0
#include "common/base/duration.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t ns;
} units[] = {
    {"h", 3600000000000}, {"m", 60000000000}, {"s", 1000000000},
    {"ms", 1000000},      {"us", 1000},       {"ns", 1},
};
enum { UNITS = sizeof units / sizeof *units };

static const char *skip_digits(const char *s)
{
    return s + strspn(s, "0123456789");
}

// "1.5" units of `unit_ns` as whole nanoseconds. What is wrong with it, or null.
static const char *read_nanoseconds(const char *text, int64_t unit_ns, int64_t *ns)
{
    enum { MOST_DIGITS = 15 }; // of a fraction: 15 fit beside an hour's nanoseconds
    const char *point = skip_digits(text), *end = *point == '.' ? skip_digits(point + 1) : point;
    int64_t whole, fraction = 0, parts = 1;
    errno = 0;
    whole = strtoll(text, NULL, 10);
    if (errno || __builtin_mul_overflow(whole, unit_ns, ns))
        return "is longer than 292 years";
    if (end - point > MOST_DIGITS + 1)
        return "is finer than a nanosecond";
    for (const char *digit = point + 1; digit < end; digit++) {
        fraction = fraction * 10 + (*digit - '0');
        parts *= 10;
    }
    __extension__ __int128 product = (__int128)fraction * unit_ns;
    if (product % parts)
        return "is finer than a nanosecond";
    bool over = __builtin_add_overflow(*ns, (int64_t)(product / parts), ns);
    return over ? "is longer than 292 years" : NULL;
}

int duration_read(const char *text, int64_t *ns, struct err *e)
{
    const char *unit = skip_digits(text);
    if (unit > text && unit[0] == '.' && skip_digits(unit + 1) > unit + 1)
        unit = skip_digits(unit + 1);
    if (unit == text)
        return err_set(e, ERR_INVALID, "must be a duration such as 5s, not '%.100s'", text);
    if (!*unit)
        return err_set(e, ERR_INVALID, "%.100s has no unit: ns, us, ms, s, m or h, as in %.100ss",
                       text, text);
    int i = 0;
    while (i < UNITS && strcmp(unit, units[i].name) != 0)
        i++;
    if (i == UNITS)
        return err_set(e, ERR_INVALID, "'%.100s' is not a unit of time: ns, us, ms, s, m or h",
                       unit);
    const char *wrong = read_nanoseconds(text, units[i].ns, ns);
    return wrong ? err_set(e, ERR_INVALID, "%.100s %s", text, wrong) : 0;
}

void duration_print(int64_t ns, struct buf *to)
{
    int i = ns == 0 ? 2 : 0; // "0s", not "0h"
    while (ns % units[i].ns != 0)
        i++;
    buf_printf(to, "%lld%s", (long long)(ns / units[i].ns), units[i].name);
}
