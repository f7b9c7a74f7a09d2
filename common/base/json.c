// SPDX-License-Identifier: Apache-2.0
// The JSON writer. See json.h; the reader is json_read.c.
//
// Text goes to the buf as it comes; what is kept is only, for each open level, how many values it
// has (for the commas) and the path to it (for the names of numbers that are not finite).
#include "common/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"

// ---- numbers -----------------------------------------------------------------------------------
static bool reads_back(const char *text, double value, bool is_float)
{
    return is_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value;
}

// Adds one to the last digit of "d.ddde±xx"; false when the first digit overflows.
static bool bump_last_digit(char *text)
{
    for (char *c = strchr(text, 'e') - 1; c >= text; c--) {
        if (*c == '.')
            continue;
        if (*c != '9') {
            ++*c;
            return true;
        }
        *c = '0';
    }
    return false;
}

// Fills "d.ddde±xx" with `digits` digits; false when no such text reads back to `value`. Below a
// power of two numbers lie twice as dense as above it, so the nearest text of n digits can be too
// far below while the next one above still reads back.
static bool write_digits(double value, bool is_float, int digits, char *text, size_t size)
{
    snprintf(text, size, "%.*e", digits - 1, value);
    return reads_back(text, value, is_float) ||
           (bump_last_digit(text) && reads_back(text, value, is_float));
}

// The fewest digits that read back to `value` > 0, by bisection: if n digits do, n + 1 do too. Most
// values of a run need nearly all 17.
static void shortest_digits(double value, bool is_float, char *text, size_t size)
{
    int few = 1, many = is_float ? 9 : 17;
    while (few < many) {
        int digits = (few + many) / 2;
        if (write_digits(value, is_float, digits, text, size))
            many = digits;
        else
            few = digits + 1;
    }
    bool enough = write_digits(value, is_float, few, text, size);
    POST(enough);
}

enum { LAID_OUT = 31 }; // bytes, with the zero byte, without the sign

// Lays out `digits` d…d with the point behind the first, times 10^exponent.
static void place_point(const char *digits, int n, int exponent, char *out)
{
    if (exponent < -5 || exponent > 16)
        snprintf(out, LAID_OUT, "%c%s%se%+d", digits[0], n > 1 ? "." : "", digits + 1, exponent);
    else if (exponent < 0)
        snprintf(out, LAID_OUT, "0.%.*s%s", -exponent - 1, "0000", digits);
    else if (n <= exponent + 1)
        snprintf(out, LAID_OUT, "%s%.*s", digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(out, LAID_OUT, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
}

static void format_number(double value, bool is_float, char out[32])
{
    if (!isfinite(value)) {
        strcpy(out, "null");
        return;
    }
    if (signbit(value))
        *out++ = '-';
    if (value == 0) {
        strcpy(out, "0");
        return;
    }
    char text[32], digits[20];
    int n = 0;
    shortest_digits(fabs(value), is_float, text, sizeof text);
    const char *c = text;
    for (; *c != 'e'; c++)
        if (*c != '.')
            digits[n++] = *c;
    digits[n] = 0;
    place_point(digits, n, atoi(c + 1), out);
}

void json_format_double(double value, char out[32])
{
    format_number(value, false, out);
}

void json_format_float(float value, char out[32])
{
    format_number((double)value, true, out);
}

// ---- strings -----------------------------------------------------------------------------------
static const char short_escape[128] = {
    ['"'] = '"',  ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f',
    ['\n'] = 'n', ['\r'] = 'r',  ['\t'] = 't',
};

static void put_string(struct buf *b, const char *s, size_t len)
{
    buf_putc(b, '"');
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        size_t n = utf8_length(s + i, len - i);
        if (n == 0)
            buf_puts(b, "\xef\xbf\xbd"); // U+FFFD
        else if (n == 1 && short_escape[c])
            buf_append(b, (const char[]){'\\', short_escape[c]}, 2);
        else if (utf8_steers(utf8_decode(s + i, n)))
            buf_printf(b, "\\u%04x", utf8_decode(s + i, n));
        else
            buf_append(b, s + i, n);
        i += n ? n : 1;
    }
    buf_putc(b, '"');
}

// ---- structure ---------------------------------------------------------------------------------
void json_out_init(struct json_out *w, struct buf *buf)
{
    *w = (struct json_out){.buf = buf};
}

void json_out_clear(struct json_out *w)
{
    buf_clear(&w->path);
    buf_clear(&w->nonfinite);
}

static void put_new_line(struct json_out *w)
{
    if (!w->pretty)
        return;
    buf_putc(w->buf, '\n');
    for (int i = 0; i < w->depth; i++)
        buf_puts(w->buf, "  ");
}

// Writes what stands before every value: a comma, a new line, the key.
static void begin_value(struct json_out *w, const char *key)
{
    struct json_level *level = &w->level[w->depth];
    bool in_object = w->depth > 0 && !level->is_array;
    PRE(in_object == (key != NULL));
    if (level->items++ && w->depth)
        buf_putc(w->buf, ',');
    if (w->depth)
        put_new_line(w);
    if (key) {
        put_string(w->buf, key, strlen(key));
        buf_puts(w->buf, w->pretty ? ": " : ":");
    }
}

// Adds the step from the innermost level to the value that begin_value() has just begun.
static void add_path_step(struct json_out *w, const char *key)
{
    if (key)
        buf_printf(&w->path, "%s%s", w->path.len ? "." : "", key);
    else if (w->depth)
        buf_printf(&w->path, "[%zu]", w->level[w->depth].items - 1);
}

static void cut_path(struct json_out *w, size_t len)
{
    if (w->path.data)
        w->path.data[len] = 0;
    w->path.len = len;
}

static void open_level(struct json_out *w, const char *key, bool is_array)
{
    PRE(w->depth < JSON_MAX_DEPTH);
    begin_value(w, key);
    size_t outside = w->path.len;
    add_path_step(w, key);
    w->level[++w->depth] = (struct json_level){.is_array = is_array, .path_len = outside};
    buf_putc(w->buf, is_array ? '[' : '{');
}

void json_object(struct json_out *w, const char *key)
{
    open_level(w, key, false);
}

void json_array(struct json_out *w, const char *key)
{
    open_level(w, key, true);
}

void json_end(struct json_out *w)
{
    PRE(w->depth > 0);
    const struct json_level *level = &w->level[w->depth--];
    if (level->items)
        put_new_line(w);
    cut_path(w, level->path_len);
    buf_putc(w->buf, level->is_array ? ']' : '}');
}

// ---- values ------------------------------------------------------------------------------------
void json_raw(struct json_out *w, const char *key, const char *text)
{
    begin_value(w, key);
    buf_puts(w->buf, text);
}

void json_str(struct json_out *w, const char *key, const char *value)
{
    if (value)
        json_strn(w, key, value, strlen(value));
    else
        json_null(w, key);
}

void json_strn(struct json_out *w, const char *key, const char *value, size_t len)
{
    begin_value(w, key);
    put_string(w->buf, value, len);
}

void json_int(struct json_out *w, const char *key, int64_t value)
{
    begin_value(w, key);
    buf_printf(w->buf, "%lld", (long long)value);
}

void json_uint(struct json_out *w, const char *key, uint64_t value)
{
    begin_value(w, key);
    buf_printf(w->buf, "%llu", (unsigned long long)value);
}

void json_double(struct json_out *w, const char *key, double value)
{
    char text[32];
    json_format_double(value, text);
    json_raw(w, key, text);
    if (isfinite(value))
        return;
    size_t outside = w->path.len;
    add_path_step(w, key);
    buf_append(&w->nonfinite, buf_str(&w->path), w->path.len + 1);
    cut_path(w, outside);
}

void json_bool(struct json_out *w, const char *key, bool value)
{
    json_raw(w, key, value ? "true" : "false");
}

void json_null(struct json_out *w, const char *key)
{
    json_raw(w, key, "null");
}

void json_known_int(struct json_out *w, const char *key, bool known, int64_t value)
{
    (known ? json_int(w, key, value) : json_null(w, key));
}

void json_known_double(struct json_out *w, const char *key, bool known, double value)
{
    (known ? json_double(w, key, value) : json_null(w, key));
}

void json_value(struct json_out *w, const char *key, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        json_null(w, key);
        return;
    case JSON_BOOL:
        json_bool(w, key, v->boolean);
        return;
    case JSON_NUMBER:
        if (v->is_int)
            json_int(w, key, v->integer);
        else
            json_double(w, key, v->number);
        return;
    case JSON_STRING:
        json_strn(w, key, v->string, v->length);
        return;
    case JSON_ARRAY:
        json_array(w, key);
        break;
    case JSON_OBJECT:
        json_object(w, key);
        break;
    }
    for (const struct json *m = v->first; m; m = m->next)
        json_value(w, m->key, m);
    json_end(w);
}

void json_nonfinite(struct json_out *w)
{
    json_array(w, "nonfinite");
    for (size_t at = 0; at < w->nonfinite.len; at += strlen(w->nonfinite.data + at) + 1)
        json_str(w, NULL, w->nonfinite.data + at);
    json_end(w);
    buf_reset(&w->nonfinite);
}
