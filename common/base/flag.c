// SPDX-License-Identifier: Apache-2.0
// Values of flags; see flag.h.
#include "common/base/flag.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/duration.h"

bool flag_asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static int read_number(const char *text, int min, int max, int *out, struct err *e)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < min || n > max)
        return err_set(e, ERR_INVALID, "'%s' is not a number from %d to %d", text, min, max);
    *out = (int)n;
    return 0;
}

#define MOST_NS (1000000LL * 3600 * CLOCK_S) // so that sums of several do not overflow

static int read_duration(const char *text, int64_t min_ns, int64_t *out_ns, struct err *e)
{
    int rc = duration_read(text, out_ns, e);
    if (!rc && *out_ns < min_ns)
        rc = err_set(e, ERR_INVALID, "'%s' is too short: at least %lldms", text,
                     (long long)(min_ns / CLOCK_MS));
    if (!rc && *out_ns > MOST_NS)
        rc = err_set(e, ERR_INVALID, "'%s' is too long: at most 1000000h", text);
    return rc;
}

// Reads a time whose unit may be missing: seconds then.
static int read_seconds(const char *text, int64_t min_ns, int64_t *out_ns, struct err *e)
{
    char with_unit[24];
    bool bare = *text && strspn(text, "0123456789") == strlen(text);
    int n = snprintf(with_unit, sizeof with_unit, "%ss", text);
    bool fits = n > 0 && (size_t)n < sizeof with_unit;
    return read_duration(bare && fits ? with_unit : text, min_ns, out_ns, e);
}

static int add_to_list(const struct flag_row *row, const char *text, void *to, struct err *e)
{
    const char **list = (const char **)(void *)((char *)to + row->at);
    int *n = (int *)(void *)((char *)to + row->count);
    if (*n == row->max)
        return err_set(e, ERR_LIMIT, "may stand %d times at most", row->max);
    list[(*n)++] = text;
    return 0;
}

static int set_flag(const struct flag_row *row, const char *text, void *to, struct err *e)
{
    void *at = (char *)to + row->at;
    int rc = 0;
    switch (row->kind) {
    case FLAG_TEXT:
        *(const char **)at = text;
        break;
    case FLAG_SWITCH:
        *(bool *)at = true;
        break;
    case FLAG_NUMBER:
        rc = read_number(text, row->min, row->max, at, e);
        break;
    case FLAG_DURATION:
        rc = read_duration(text, row->min * CLOCK_MS, at, e);
        break;
    case FLAG_SECONDS:
        rc = read_seconds(text, row->min * CLOCK_MS, at, e);
        break;
    case FLAG_LIST:
        rc = add_to_list(row, text, to, e);
        break;
    }
    return rc ? err_wrap(e, "-%s%s", row->name[1] ? "-" : "", row->name) : 0;
}

int flags_read(const struct flag_row *rows, int nrows, int argc, char **argv, void *to, int *rest,
               struct err *e)
{
    enum { FIRST = 256 }; // above all letters
    struct option options[FLAG_ROWS_MAX + 1] = {{NULL, 0, NULL, 0}};
    char letters[2 * FLAG_ROWS_MAX + 1] = "";
    int k, n = 0, rc = 0;
    PRE(nrows <= FLAG_ROWS_MAX);
    for (int r = 0; r < nrows; r++) {
        bool bare = rows[r].kind == FLAG_SWITCH;
        if (rows[r].name[1])
            options[n++] = (struct option){rows[r].name, bare ? no_argument : required_argument,
                                           NULL, FIRST + r};
        else
            strcat(strcat(letters, rows[r].name), bare ? "" : ":");
    }
    opterr = 0;
    optind = 0; // glibc's getopt begins again
    while (!rc && (k = getopt_long(argc, argv, letters, options, NULL)) != -1) {
        int r = k < FIRST ? 0 : k - FIRST;
        while (k < FIRST && r < nrows && (rows[r].name[1] || rows[r].name[0] != k))
            r++;
        if (r < nrows)
            rc = set_flag(&rows[r], optarg, to, e);
        else // what getopt_long does not know is the last word that it took
            rc = err_set(e, ERR_INVALID, "unknown flag, or a flag without its value: %s",
                         argv[optind - 1]);
    }
    *rest = optind;
    return rc;
}

int flags_read_all(const struct flag_row *rows, int nrows, int argc, char **argv, void *to,
                   struct err *e)
{
    int rest, rc = flags_read(rows, nrows, argc, argv, to, &rest, e);
    if (!rc && rest < argc)
        rc = err_set(e, ERR_INVALID, "unexpected argument '%s'", argv[rest]);
    return rc;
}
