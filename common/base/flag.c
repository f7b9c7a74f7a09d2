// SPDX-License-Identifier: Apache-2.0
// Values of flags; see flag.h.
#include "common/base/flag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

int flag_number(const char *text, int min, int max, int *out, struct err *e)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < min || n > max)
        return err_set(e, ERR_INVALID, "'%s' is not a number from %d to %d", text, min, max);
    *out = (int)n;
    return 0;
}

int flag_duration(const char *text, int64_t min_ns, int64_t *out_ns, struct err *e)
{
    static const struct {
        const char *unit;
        int64_t ns;
    } units[] = {{"ms", CLOCK_MS}, {"s", CLOCK_S}, {"m", 60 * CLOCK_S}, {"h", 3600 * CLOCK_S}};
    char *end;
    double n = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (end == text || strcmp(end, units[i].unit) != 0 || !(n >= 0 && n <= 1e6))
            continue;
        *out_ns = (int64_t)(n * (double)units[i].ns);
        if (*out_ns < min_ns)
            return err_set(e, ERR_INVALID, "'%s' is too short: at least %lldms", text,
                           (long long)(min_ns / CLOCK_MS));
        return 0;
    }
    return err_set(e, ERR_INVALID, "'%s' is not a time such as 90s, 500ms or 2m", text);
}
