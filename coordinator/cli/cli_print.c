// SPDX-License-Identifier: Apache-2.0
// Tables, words and shared JSON; see cli_print.h.
#include "coordinator/cli/cli_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "common/ckpt/commit.h"
#include "coordinator/cli/verbs.h"

// ---- tables ----

static void add_cell(struct table *t, const char *text)
{
    t->cells = arena_grow(&t->arena, t->cells, sizeof *t->cells, t->n, &t->cap);
    t->cells[t->n++] = text;
}

void table_init(struct table *t, const char *head)
{
    *t = (struct table){0};
    char *rest = arena_strdup(&t->arena, head), *word;
    while ((word = strsep(&rest, " ")) && t->columns < TABLE_COLUMNS) {
        t->right[t->columns] = *word == '>';
        add_cell(t, word + (*word == '>'));
        t->columns++;
    }
}

void table_add(struct table *t, const char *fmt, ...)
{
    struct buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    plain_vline(&text, fmt, ap);
    va_end(ap);
    text.data[--text.len] = 0; // a cell ends no line
    add_cell(t, text.len ? arena_strdup(&t->arena, buf_str(&text)) : "-");
    buf_clear(&text);
}

// False: standard output is no terminal, or a dumb one.
static bool measure_screen(struct winsize *size)
{
    const char *term = getenv("TERM");
    *size = (struct winsize){0};
    if (!isatty(STDOUT_FILENO) || (term && strcmp(term, "dumb") == 0))
        return false;
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, size);
    size->ws_col = size->ws_col ? size->ws_col : 80; // the usual, where it does not say
    size->ws_row = size->ws_row ? size->ws_row : 24;
    return true;
}

int screen_columns(void)
{
    struct winsize size;
    return measure_screen(&size) ? size.ws_col : 0;
}

int screen_lines(void)
{
    struct winsize size;
    return measure_screen(&size) ? size.ws_row : 0;
}

bool screen_colours(void)
{
    const char *none = getenv("NO_COLOR");
    return screen_columns() && getenv("TERM") && !(none && *none);
}

// How wide the rows are; a column of width -1 is left out.
static int sum_widths(const int *width, int columns)
{
    int sum = -2;
    for (int c = 0; c < columns; c++)
        sum += width[c] < 0 ? 0 : width[c] + 2;
    return sum;
}

static void shorten(int *width, int least, int *over)
{
    int by = *width - least < *over ? *width - least : *over;
    *width -= by > 0 ? by : 0;
    *over -= by > 0 ? by : 0;
}

// Makes the columns narrow enough for the screen.
static void fit_columns(const struct table *t, int screen, int *width)
{
    enum { LEAST_LAST = 16, LEAST = 4 };
    const char *drop = t->drop;
    int last = t->columns - 1, over = sum_widths(width, t->columns) - screen;
    if (over > 0)
        shorten(&width[last], LEAST_LAST, &over);
    for (size_t n; over > 0 && *drop; drop += n + strspn(drop + n, " ")) {
        n = strcspn(drop, " ");
        for (int c = 0; c < t->columns; c++)
            if (strlen(t->cells[c]) == n && strncmp(t->cells[c], drop, n) == 0) {
                over -= width[c] + 2;
                width[c] = -1;
            }
    }
    while (over > 0) {
        int widest = 0;
        for (int c = 1; c < t->columns; c++)
            widest = width[c] > width[widest] ? c : widest;
        if (width[widest] <= LEAST)
            return;
        width[widest]--;
        over--;
    }
}

// The text in so many columns, with an ellipsis where its end is cut off.
static void put_cell(const char *text, int width, bool right, bool last, struct buf *out)
{
    int pad = width - text_columns(text);
    if (pad < 0) {
        const char *at = text;
        for (int left = width - 1; left > 0; left--)
            for (at++; (*at & 0xc0) == 0x80; at++)
                ;
        buf_printf(out, "%.*s%s", (int)(at - text), text, width > 0 ? "…" : "");
        return;
    }
    buf_printf(out, "%*s%s%*s", right ? pad : 0, "", text, right || last ? 0 : pad, "");
}

void table_print(struct table *t, struct buf *out)
{
    int width[TABLE_COLUMNS] = {0}, screen = t->drop ? screen_columns() : 0;
    for (int i = 0; i < t->n; i++) {
        int w = text_columns(t->cells[i]), c = i % t->columns;
        width[c] = w > width[c] ? w : width[c];
    }
    if (screen)
        fit_columns(t, screen, width);
    int last = t->columns - 1;
    while (last > 0 && width[last] < 0)
        last--;
    for (int i = 0; i < t->n; i++) {
        int c = i % t->columns;
        if (width[c] >= 0)
            put_cell(t->cells[i], width[c], t->right[c], c == last, out);
        if (width[c] >= 0)
            buf_puts(out, c == last ? "\n" : "  ");
    }
    arena_clear(&t->arena);
}

// ---- words ----

const char *word_duration(double s, char out[WORD_MAX])
{
    int64_t n = isfinite(s) && s > 0 && s < 1e12 ? (int64_t)(s + 0.5) : 0;
    if (!isfinite(s))
        snprintf(out, WORD_MAX, "-");
    else if (s < 9.95)
        snprintf(out, WORD_MAX, "%.1fs", s > 0 ? s : 0);
    else if (n < 60)
        snprintf(out, WORD_MAX, "%ds", (int)n);
    else if (n < 3600)
        snprintf(out, WORD_MAX, "%dm%02ds", (int)(n / 60), (int)(n % 60));
    else if (n < 48 * 3600)
        snprintf(out, WORD_MAX, "%dh%02dm", (int)(n / 3600), (int)(n / 60 % 60));
    else
        snprintf(out, WORD_MAX, "%lldd%02dh", (long long)(n / 86400), (int)(n / 3600 % 24));
    return out;
}

const char *word_rate(double v, char out[WORD_MAX])
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    enum { UNITS = sizeof units / sizeof *units };
    int u = 0;
    for (; v >= 999.5 && u + 1 < UNITS; u++)
        v /= 1000;
    snprintf(out, WORD_MAX, u == 0 && v >= 10 ? "%.0f%s" : "%.3g%s", v, units[u]);
    return out;
}

const char *word_bytes(int64_t bytes, char out[WORD_MAX])
{
    struct buf b = {0};
    buf_bytes(&b, (uint64_t)bytes);
    snprintf(out, WORD_MAX, "%s", buf_str(&b));
    buf_clear(&b);
    return out;
}

const char *word_time(int64_t t_ms, char out[WORD_MAX])
{
    time_t t = (time_t)(t_ms / 1000);
    struct tm tm;
    char date[32] = "-";
    if (t_ms <= 0 || !localtime_r(&t, &tm) || !strftime(date, sizeof date, "%F %T", &tm))
        snprintf(out, WORD_MAX, "-");
    else
        snprintf(out, WORD_MAX, "%s.%03d", date, (int)(t_ms % 1000));
    return out;
}

const char *word_state(Weft__V1__JobState s)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&weft__v1__job_state__descriptor, (int)s);
    return v && s != WEFT__V1__JOB_STATE__JOB_NONE ? v->name : "UNKNOWN";
}

const char *word_checkpoint(int state)
{
    return state >= 0 && state < COMMIT_STATES ? commit_state_name((enum commit_state)state)
                                               : "UNKNOWN";
}

int job_ended(Weft__V1__JobState s)
{
    switch (s) {
    case WEFT__V1__JOB_STATE__SUCCEEDED:
        return CLIENT_OK;
    case WEFT__V1__JOB_STATE__FAILED:
    case WEFT__V1__JOB_STATE__CANCELLED:
    case WEFT__V1__JOB_STATE__HELD:
        return CLIENT_FAILED;
    default:
        return -1;
    }
}

void print_word(struct buf *out, const char *word, bool quote)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "./_+-";
    if (!quote && word[strspn(word, plain)] == 0) {
        buf_puts(out, word);
        return;
    }
    buf_putc(out, '\'');
    for (; *word; word++)
        buf_puts(out, *word == '\'' ? "'\\''" : (char[]){*word, 0});
    buf_putc(out, '\'');
}

// ---- JSON ----

void json_print_start(struct json_out *w, struct buf *out, bool pretty)
{
    json_out_init(w, out);
    w->pretty = pretty;
    json_object(w, NULL);
}

void json_print_end(struct json_out *w)
{
    if (w->nonfinite.len)
        json_nonfinite(w);
    json_end(w);
    buf_putc(w->buf, '\n');
    json_out_clear(w);
}

void json_text(struct json_out *w, const char *key, const char *text)
{
    json_str(w, key, text && *text ? text : NULL);
}

void json_count(struct json_out *w, const char *key, int64_t value)
{
    json_known_int(w, key, value >= 0, value);
}

void print_threads(const Weft__V1__JobStatus *s, const char *before, struct buf *out)
{
    if (s->threads)
        plain_line(out, "%s%d a device: %s", before, s->threads,
                   *s->threads_why ? s->threads_why : "resources.threads of the job");
    else if (*s->threads_why)
        plain_line(out, "%s%s", before, s->threads_why);
}

void put_out(struct buf *out)
{
    plain_put(stdout, buf_str(out), out->len);
    fflush(stdout);
    buf_clear(out);
}

void print_lines(struct buf *out, const char *before, const char *text)
{
    plain_line(out, "%s%.*s", before, (int)strcspn(text, "\n"), text);
    for (const char *more = strchr(text, '\n'); more; more = strchr(more + 1, '\n'))
        if (more[1])
            plain_line(out, "    %.*s", (int)strcspn(more + 1, "\n"), more + 1);
}

void complain(const struct verb *v, const char *what, const char *where, const char *todo)
{
    struct buf out = {0};
    char before[40];
    snprintf(before, sizeof before, "weft %s: ", v->name);
    print_lines(&out, before, what); // further lines are further violations
    if (where)
        plain_line(&out, "  where: %s", where);
    plain_line(&out, "  to do: %s", todo);
    plain_put(stderr, buf_str(&out), out.len);
    buf_clear(&out);
}
