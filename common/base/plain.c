// SPDX-License-Identifier: Apache-2.0
// Text for people; see plain.h.
#include "common/base/plain.h"

#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/base/utf8.h"

static bool open_line; // standard output was given the beginning of a line and not its end

// ---- what is harmful ----

size_t plain_character(const char *s, size_t left)
{
    size_t n = utf8_length(s, left);
    return n && !utf8_steers(utf8_decode(s, n)) ? n : 0;
}

// ---- making it harmless ----

// Appends the harmful character at `s` in letters; returns how many bytes it took.
static size_t spell_character(struct buf *to, const char *s, size_t left)
{
    size_t n = utf8_length(s, left);
    if (n < 2) {
        buf_printf(to, "\\x%02x", (unsigned char)*s);
        return 1;
    }
    buf_printf(to, "\\u%04x", utf8_decode(s, n));
    return n;
}

static void append_plain(struct buf *to, const char *s, size_t len, bool one_line)
{
    for (size_t i = 0; i < len;) {
        size_t n = plain_character(s + i, len - i);
        if (one_line && s[i] == '\n')
            buf_puts(to, "\\n");
        else if (n)
            buf_append(to, s + i, n);
        else
            n = spell_character(to, s + i, len - i);
        i += n;
    }
}

void plain_append(struct buf *to, const char *s, size_t len)
{
    append_plain(to, s, len, false);
}

void plain_vline(struct buf *to, const char *fmt, va_list ap)
{
    struct buf line = {0};
    buf_vprintf(&line, fmt, ap);
    append_plain(to, buf_str(&line), line.len, true);
    buf_putc(to, '\n');
    buf_clear(&line);
}

void plain_line(struct buf *to, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    plain_vline(to, fmt, ap);
    va_end(ap);
}

void plain_mask(char *s)
{
    for (size_t left = strlen(s), n; left; s += n, left -= n) {
        n = plain_character(s, left);
        if (n)
            continue;
        n = 1; // what follows it is looked at by itself
        *s = '?';
    }
}

// ---- writing ----

void plain_put(FILE *to, const char *s, size_t len)
{
    struct buf text = {0};
    plain_append(&text, s, len);
    if (to != stdout && open_line)
        putc('\n', stdout);
    if (to != stdout)
        fflush(stdout);
    if (text.len)
        fwrite(text.data, 1, text.len, to);
    if (to != stdout)
        open_line = false;
    else if (text.len)
        open_line = text.data[text.len - 1] != '\n';
    buf_clear(&text);
}

void plain_puts(FILE *to, const char *s)
{
    plain_put(to, s, strlen(s));
}

void plain_printf(FILE *to, const char *fmt, ...)
{
    struct buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    plain_put(to, buf_str(&text), text.len);
    buf_clear(&text);
}

void plain_error(const char *fmt, ...)
{
    struct buf line = {0};
    va_list ap;
    va_start(ap, fmt);
    plain_vline(&line, fmt, ap);
    va_end(ap);
    plain_put(stderr, buf_str(&line), line.len);
    buf_clear(&line);
}

void plain_picture(FILE *to, const char *s, size_t len)
{
    // Okabe and Ito's colours, which colour-blind people tell apart, in the palette of 256.
    static const char *const begins[PLAIN_COLOURS + 1] = {"",
                                                          "\033[38;5;75m",
                                                          "\033[38;5;214m",
                                                          "\033[38;5;36m",
                                                          "\033[38;5;175m",
                                                          "\033[38;5;166m",
                                                          "\033[38;5;32m",
                                                          "\033[38;5;221m",
                                                          "\033[38;5;250m"};
    for (size_t from = 0, at = 0; at <= len; at++) {
        bool colour = at < len && s[at] > 0 && s[at] <= PLAIN_COLOURS;
        if (at < len && !colour && s[at] != PLAIN_NO_COLOUR)
            continue;
        plain_put(to, s + from, at - from);
        if (at < len)
            fputs(colour ? begins[(int)s[at]] : "\033[0m", to);
        from = at + 1;
    }
}

void plain_erase_lines(FILE *to, int lines)
{
    if (lines > 1)
        fprintf(to, "\033[%dA", lines - 1);
    fputs("\r\033[J", to);
    if (to == stdout)
        open_line = false;
}

void plain_end_line(void)
{
    static const char newline = '\n';
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    bool ready = isatty(STDOUT_FILENO) && poll(&out, 1, 0) == 1 && out.revents == POLLOUT;
    ssize_t n = ready ? write(STDOUT_FILENO, &newline, 1) : 0;
    (void)n; // the process ends: there is nowhere else to say it
}
