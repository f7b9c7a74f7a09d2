// SPDX-License-Identifier: Apache-2.0
// Values of flags; see flag.h.
#include "common/base/flag.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

bool flag_asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int flag_unknown(const char *word, struct err *e)
{
    return err_set(e, ERR_INVALID, "unknown flag, or a flag without its value: %s", word);
}

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

int flag_descriptor(const char *text, int *out, struct err *e)
{
    int fd, rc = flag_number(text, 0, INT_MAX, &fd, e);
    if (rc)
        return rc;
    if (fcntl(fd, F_GETFD) < 0)
        return err_set(e, ERR_INVALID, "no file is open with the number %d", fd);
    *out = fd;
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
