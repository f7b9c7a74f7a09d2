// SPDX-License-Identifier: Apache-2.0
// What is checked before the YAML parser sees a text: size, encoding, control characters, tabs. The
// parser would refuse each of these too, but its message names neither the byte nor what to do. See
// text.h.
#include "common/job/text.h"

#include <string.h>

#include "common/base/utf8.h"

#define BYTE_ORDER_MARK "\xef\xbb\xbf" // means nothing

bool text_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x2028 || c == 0x2029 || c == 0xfeff ||
           c == 0xfffe || c == 0xffff;
}

// A tab among the blanks at the start of a line: the YAML parser takes it for a syntax error, even
// on a blank line or before a comment.
static bool is_tab_indented(const char *line, const char *end)
{
    while (line < end && *line == ' ')
        line++;
    return line < end && *line == '\t';
}

// Whether this line's indentation mixes tabs and blanks, or is of another kind than that of the
// first indented line, which `*kind` keeps. Blank lines and comments do not count.
static bool mixes_indents(const char *line, const char *end, char *kind)
{
    const char *at = line;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    if (at == line || at == end || *at == '\n' || *at == '\r' || *at == '#')
        return false;
    if (!*kind)
        *kind = *line;
    for (; line < at; line++)
        if (*line != *kind)
            return true;
    return false;
}

static bool check_size(const struct tree_source *source, const unsigned char *s, size_t len,
                       struct tree_errors *errors)
{
    bool utf16 = len >= 2 && ((s[0] == 0xff && s[1] == 0xfe) || (s[0] == 0xfe && s[1] == 0xff));
    if (len > JOB_MAX_BYTES)
        tree_error_at(errors, source, 0, 0, "%zu bytes, more than the %d a job file may have", len,
                      JOB_MAX_BYTES);
    else if (utf16)
        tree_error_at(errors, source, 1, 1, "the file is UTF-16: save it as UTF-8");
    return len <= JOB_MAX_BYTES && !utf16;
}

// What may not begin a line. The parser takes quadratic time for tag directives. `kind`: see
// mixes_indents; null: the text is YAML.
static const char *find_refused_start(const unsigned char *line, const unsigned char *end,
                                      char *kind)
{
    if (kind)
        return mixes_indents((const char *)line, (const char *)end, kind)
                   ? "tabs and spaces both indent: use spaces alone"
                   : NULL;
    if (is_tab_indented((const char *)line, (const char *)end))
        return "a tab in the indentation: YAML wants spaces";
    return *line == '%' ? "directives (%) are not part of job files" : NULL;
}

static bool check_characters(const struct tree_source *source, const char *text, size_t len,
                             bool yaml, struct tree_errors *errors)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + len;
    int line = 1, column = 1;
    char kind = 0;
    for (; s < end; column++) {
        size_t n = utf8_length((const char *)s, (size_t)(end - s));
        if (n == 0 || *s == 0) {
            if (s[0] == 0)
                tree_error_at(errors, source, line, column, "a zero byte: this is not a text file");
            else
                tree_error_at(errors, source, line, column,
                              "byte 0x%02x is not UTF-8: save the file as UTF-8", s[0]);
            return false;
        }
        uint32_t c = utf8_decode((const char *)s, n);
        const char *refused = column == 1 ? find_refused_start(s, end, yaml ? NULL : &kind) : NULL;
        if (refused) {
            tree_error_at(errors, source, line, column, "%s", refused);
            return false;
        }
        if (text_is_control(c) && c != '\n' && c != '\r' && c != '\t') {
            tree_error_at(errors, source, line, column, "control character U+%04X", c);
            return false;
        }
        s += n;
        if (c == '\n' || (c == '\r' && (s == end || *s != '\n'))) {
            line++;
            column = 0;
        }
    }
    return true;
}

bool text_check(const struct tree_source *source, const char *text, size_t len,
                struct tree_errors *errors)
{
    return check_size(source, (const unsigned char *)text, len, errors) &&
           check_characters(source, text, len, true, errors);
}

bool text_check_program(const struct tree_source *source, const char *text, size_t len,
                        struct tree_errors *errors)
{
    size_t mark = len >= 3 && memcmp(text, BYTE_ORDER_MARK, 3) == 0 ? 3 : 0;
    text += mark;
    len -= mark;
    return check_size(source, (const unsigned char *)text, len, errors) &&
           check_characters(source, text, len, false, errors);
}

// Takes blanks away that end what is in the buffer.
static void strip_blanks(struct buf *b)
{
    while (b->len && b->data[b->len - 1] == ' ')
        b->len--;
}

const char *text_lines(struct arena *a, const char *text)
{
    struct buf lines = {0};
    if (strncmp(text, BYTE_ORDER_MARK, 3) == 0)
        text += 3;
    for (; *text; text++) {
        bool ends = *text == '\n' || (*text == '\r' && text[1] != '\n');
        if (ends)
            strip_blanks(&lines);
        if (*text != '\r' || ends)
            buf_putc(&lines, ends ? '\n' : *text == '\t' ? ' ' : *text);
    }
    strip_blanks(&lines);
    while (lines.len && lines.data[lines.len - 1] == '\n')
        lines.len--;
    buf_putc(&lines, '\n');
    return buf_keep(&lines, a);
}
