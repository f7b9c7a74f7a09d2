// SPDX-License-Identifier: Apache-2.0
// The client's flags; see flags.h.
#include "coordinator/cli/flags.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/duration.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "coordinator/cli/verbs.h"

const struct flag_row flag_rows[FLAGS] = {
#define X(flag, field, type, ...) {__VA_ARGS__, IS_##type, offsetof(struct args, field)},
#include "coordinator/cli/flags.def"
#undef X
};

const char *args_pair(const struct args_pairs *p, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < p->n; i++)
        if (strncmp(p->v[i], name, n) == 0 && p->v[i][n] == '=')
            return p->v[i] + n + 1;
    return NULL;
}

static bool is_named(const struct flag_row *r, const char *word, size_t len)
{
    return (strlen(r->name) == len && strncmp(r->name, word, len) == 0) ||
           (strlen(r->brief) == len && strncmp(r->brief, word, len) == 0);
}

static const struct flag_row *find_flag(const struct verb *v, const char *word, size_t len)
{
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & FLAG_BIT(i) && is_named(&flag_rows[i], word, len))
            return &flag_rows[i];
    return NULL;
}

static int refuse_flag(const struct verb *v, const char *word)
{
    const char *known[FLAGS], *near;
    char what[200];
    int n = 0;
    for (int i = 0; i < FLAGS; i++)
        if (v->flags & FLAG_BIT(i))
            known[n++] = flag_rows[i].name;
    near = suggest(word, known, n);
    snprintf(what, sizeof what, "unknown flag %.60s%s%s%s", word, near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
    return usage(v, what);
}

// "500MB", "5GB", "4096": powers of ten, as sizes of files and rates of disks are given.
static bool read_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {{"", 1}, {"B", 1}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}};
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!errno && *text >= '0' && *text <= '9' && strcmp(end, units[i].unit) == 0)
            return !__builtin_mul_overflow(n, units[i].bytes, out) && *out > 0;
    return false;
}

static int take_pair(struct args_pairs *to, const struct verb *v, const struct flag_row *r,
                     const char *value)
{
    char what[60];
    snprintf(what, sizeof what, "too many %s", r->name);
    if (to->n == ARGS_MAX_PAIRS)
        return usage(v, what);
    to->v[to->n++] = value;
    return CLIENT_OK;
}

static int take_value(struct args *a, const struct verb *v, const struct flag_row *r,
                      const char *value)
{
    char what[200], *end, *field = (char *)a + r->offset;
    if (r->type == IS_TEXT) {
        memcpy(field, &value, sizeof value);
    } else if (r->type == IS_LIST) {
        if (a->nset == ARGS_MAX_SET)
            return usage(v, "too many -s");
        a->set[a->nset++] = value;
    } else if (r->type == IS_STOPS) {
        if (a->nstop == ARGS_MAX_STOP || !*value)
            return usage(v, *value ? "too many --stop" : "--stop takes a text that is not empty");
        a->stop[a->nstop++] = value;
    } else if (r->type == IS_PAIRS) {
        return take_pair((struct args_pairs *)(void *)field, v, r, value);
    } else if (r->type == IS_BYTES) {
        uint64_t bytes;
        if (!read_bytes(value, &bytes)) {
            snprintf(what, sizeof what, "%s is a number of bytes, as 500MB or 5GB", r->name);
            return usage(v, what);
        }
        memcpy(field, &bytes, sizeof bytes);
    } else if (r->type == IS_DURATION) {
        int64_t ns;
        struct err e = {0};
        if (duration_read(value, &ns, &e) || ns <= 0) {
            snprintf(what, sizeof what, "%s takes a duration, as 90s or 5m, not '%.60s'", r->name,
                     value);
            return usage(v, what);
        }
        memcpy(field, &ns, sizeof ns);
    } else if (r->type == IS_REAL) {
        double x = strtod(value, &end);
        if (end == value || *end || !(x >= 0 && x <= 1e6)) {
            snprintf(what, sizeof what, "%s takes a number from 0 to 1000000, not '%.60s'", r->name,
                     value);
            return usage(v, what);
        }
        if (x == 0 && r == &flag_rows[FLAG_TOP_P])
            return usage(v, "--top-p takes a share above 0; without it all may be drawn");
        memcpy(field, &x, sizeof x);
    } else {
        const bool is_int = r->type == IS_NUMBER; // else an int64_t
        const int64_t least = r->type == IS_COUNT, most = is_int ? INT_MAX : INT64_MAX;
        errno = 0;
        int64_t n = strtoll(value, &end, 10);
        if (end == value || *end || errno || n < least || n > most) {
            snprintf(what, sizeof what, "%s takes a number from %d, not '%.60s'", r->name,
                     (int)least, value);
            return usage(v, what);
        }
        if (is_int)
            memcpy(field, &(int){(int)n}, sizeof(int));
        else
            memcpy(field, &n, sizeof n);
    }
    return CLIENT_OK;
}

// Reads the flag at argv[*i]; if its value is the next word, *i moves on to it.
static int take_flag(struct args *a, const struct verb *v, int *i, int argc, char **argv)
{
    const char *word = argv[*i], *eq = word[1] == '-' ? strchr(word, '=') : NULL;
    const struct flag_row *r = find_flag(v, word, eq ? (size_t)(eq - word) : strlen(word));
    char what[200];
    if (!r)
        return refuse_flag(v, word);
    if (r->type == IS_SWITCH) {
        *(bool *)((char *)a + r->offset) = true;
        return eq ? usage(v, "a switch takes no value") : CLIENT_OK;
    }
    if (!eq && *i + 1 == argc) {
        snprintf(what, sizeof what, "%s lacks its %s", word, r->value);
        return usage(v, what);
    }
    return take_value(a, v, r, eq ? eq + 1 : argv[++*i]);
}

int flags_parse(struct args *a, const struct verb *v, int argc, char **argv)
{
    bool flags = true;
    char what[200];
    *a = (struct args){.rank = -1, .from_step = -1};
    for (int i = 0; i < argc; i++) {
        int rc = CLIENT_OK;
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
        } else if (flags && argv[i][0] == '-' && argv[i][1]) {
            rc = take_flag(a, v, &i, argc, argv);
        } else if (a->npos == v->most || a->npos == ARGS_MAX) {
            snprintf(what, sizeof what, "'%.60s' is one argument too many", argv[i]);
            rc = usage(v, what);
        } else {
            a->pos[a->npos++] = argv[i];
        }
        if (rc)
            return rc;
    }
    if (a->npos >= v->least)
        return CLIENT_OK;
    snprintf(what, sizeof what, "an argument is missing: %s", v->args);
    return usage(v, what);
}

void print_usage(const struct verb *v, FILE *to)
{
    plain_printf(to, "usage: weft %s%s%s", v->name, *v->args ? " " : "", v->args);
    for (int i = 0; i < FLAGS; i++) {
        const struct flag_row *r = &flag_rows[i];
        if (v->flags & FLAG_BIT(i))
            plain_printf(to, " [%s%s%s]%s", i == FLAG_SET ? "-s" : r->name, *r->value ? " " : "",
                         r->value, i == FLAG_SET ? "…" : "");
    }
    plain_puts(to, "\n");
}

int refuse_word(const struct verb *v, const char *word, const char *const *known, int n)
{
    const char *near = suggest(word, known, n);
    struct buf what = {0};
    buf_printf(&what, "unknown word '%.60s': it takes ", word);
    for (int i = 0; i < n; i++)
        buf_printf(&what, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", known[i]);
    if (near)
        buf_printf(&what, "; did you mean %s?", near);
    int rc = usage(v, buf_str(&what));
    buf_clear(&what);
    return rc;
}

int usage(const struct verb *v, const char *what)
{
    plain_error("weft %s: %s", v->name, what);
    print_usage(v, stderr);
    return CLIENT_USAGE;
}
