// SPDX-License-Identifier: Apache-2.0
// The JSON reader: recursive descent over the text, a tree in the caller's arena. See json.h.
//
// The text comes from files and from the network, so everything is bounded: its length, the depth
// (and with it the C stack), the number of values (and with it the arena). Duplicate keys are found
// by sorting an object's members, so that no choice of keys makes it slow.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/base/utf8.h"

struct json_reader {
    struct arena *arena;
    const char *text;
    size_t len, at;
    int depth, values;
    bool zeros; // strings may hold zero characters
    struct err *e;
};

static int fail_at(struct json_reader *r, size_t offset, const char *what)
{
    return err_set(r->e, ERR_DATA, "JSON at byte %zu: %s", offset, what);
}

static int report_error(struct json_reader *r, const char *what)
{
    return fail_at(r, r->at, r->at < r->len ? what : "the text ends too early");
}

// The next byte, or 0 at the end; a zero byte inside the text is not valid anywhere.
static char peek_byte(const struct json_reader *r)
{
    return r->at < r->len ? r->text[r->at] : 0;
}

static void skip_space(struct json_reader *r)
{
    while (r->at < r->len && strchr(" \t\n\r", r->text[r->at]) && r->text[r->at])
        r->at++;
}

// ---- strings -----------------------------------------------------------------------------------
// The offset of the quote that ends the string whose first byte is next.
static int find_quote(struct json_reader *r, size_t *end)
{
    size_t i = r->at;
    while (i < r->len && r->text[i] != '"')
        i += r->text[i] == '\\' ? 2 : 1;
    *end = i;
    return i < r->len ? 0 : fail_at(r, r->len, "the text ends inside a string");
}

static int read_hex4(struct json_reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int digit = hex_digit(peek_byte(r));
        if (digit < 0)
            return report_error(r, "\\u wants four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return 0;
}

// What follows "\u": one code unit, or two that make a surrogate pair.
static int read_code_point(struct json_reader *r, uint32_t *out)
{
    size_t start = r->at;
    uint32_t low;
    int rc = read_hex4(r, out);
    if (rc)
        return rc;
    if (*out == 0 && !r->zeros)
        return fail_at(r, start, "a zero character is not supported");
    if (*out < 0xd800 || *out > 0xdfff)
        return 0;
    if (*out > 0xdbff || r->len - r->at < 6 || memcmp(r->text + r->at, "\\u", 2) != 0)
        return fail_at(r, start, "half of a surrogate pair");
    r->at += 2;
    rc = read_hex4(r, &low);
    if (rc)
        return rc;
    if (low < 0xdc00 || low > 0xdfff)
        return fail_at(r, start, "half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return 0;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | c >> (6 * more));
    while (more--)
        *to++ = (char)(0x80 | (c >> (6 * more) & 0x3f));
    return to;
}

static int read_escape(struct json_reader *r, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = r->text[++r->at];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        *(*to)++ = into[known - from];
        r->at++;
        return 0;
    }
    if (c != 'u')
        return report_error(r, "an escape that JSON does not have");
    r->at++;
    uint32_t code;
    int rc = read_code_point(r, &code);
    if (!rc)
        *to = put_utf8(*to, code);
    return rc;
}

// How many of the next bytes are ASCII that stands for itself: most of most strings.
static size_t count_plain(const struct json_reader *r, size_t end)
{
    size_t at = r->at;
    while (at < end && (unsigned char)(r->text[at] - ' ') < 0x60 && r->text[at] != '\\')
        at++;
    return at - r->at;
}

static int read_string(struct json_reader *r, const char **out, size_t *length)
{
    size_t end;
    r->at++;
    int rc = find_quote(r, &end);
    if (rc)
        return rc;
    char *to = arena_alloc(r->arena, end - r->at + 1); // no escape is shorter than what it means
    *out = to;
    while (r->at < end) {
        size_t plain = count_plain(r, end);
        if (plain) {
            memcpy(to, r->text + r->at, plain);
            to += plain;
            r->at += plain;
            continue;
        }
        unsigned char c = (unsigned char)r->text[r->at];
        if (c == '\\') {
            rc = read_escape(r, &to);
            if (rc)
                return rc;
            continue;
        }
        size_t n = utf8_length(r->text + r->at, end - r->at);
        if (n == 0)
            return report_error(r, "bytes that are not UTF-8");
        if (c < 0x20)
            return report_error(r, "a control character inside a string");
        memcpy(to, r->text + r->at, n);
        to += n;
        r->at += n;
    }
    r->at = end + 1;
    *length = (size_t)(to - *out);
    return 0;
}

// ---- numbers and words -------------------------------------------------------------------------
static size_t skip_digits(struct json_reader *r)
{
    size_t start = r->at;
    while (peek_byte(r) >= '0' && peek_byte(r) <= '9')
        r->at++;
    return r->at - start;
}

// Moves past a number by RFC 8259's grammar; *is_int: it has neither fraction nor exponent.
static int skip_number(struct json_reader *r, bool *is_int)
{
    *is_int = true;
    if (peek_byte(r) == '-')
        r->at++;
    if (peek_byte(r) == '0')
        r->at++;
    else if (!skip_digits(r))
        return report_error(r, "a digit is missing");
    if (peek_byte(r) == '.') {
        *is_int = false;
        r->at++;
        if (!skip_digits(r))
            return report_error(r, "a digit is missing");
    }
    if (peek_byte(r) == 'e' || peek_byte(r) == 'E') {
        *is_int = false;
        r->at++;
        if (peek_byte(r) == '+' || peek_byte(r) == '-')
            r->at++;
        if (!skip_digits(r))
            return report_error(r, "a digit is missing");
    }
    return 0;
}

static int read_number(struct json_reader *r, struct json *v)
{
    char text[JSON_MAX_NUMBER + 1]; // strtod wants a zero byte behind the number
    int rc = skip_number(r, &v->is_int);
    if (rc)
        return rc;
    size_t n = r->at - v->offset;
    if (n > JSON_MAX_NUMBER)
        return err_set(r->e, ERR_LIMIT, "JSON at byte %zu: a number of more than %d characters",
                       v->offset, JSON_MAX_NUMBER);
    memcpy(text, r->text + v->offset, n);
    text[n] = 0;
    v->type = JSON_NUMBER;
    v->number = strtod(text, NULL);
    if (!isfinite(v->number))
        return err_set(r->e, ERR_LIMIT, "JSON at byte %zu: a number too large for a double",
                       v->offset);
    if (v->is_int) {
        errno = 0;
        v->integer = strtoll(text, NULL, 10);
        v->is_int = errno == 0;
        if (!v->is_int)
            v->integer = 0;
    }
    return 0;
}

static int read_word(struct json_reader *r, struct json *v)
{
    static const struct {
        const char *word;
        enum json_type type;
        bool boolean;
    } words[] = {
        {"null", JSON_NULL, false}, {"true", JSON_BOOL, true}, {"false", JSON_BOOL, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);
        if (r->len - r->at < n || memcmp(r->text + r->at, words[i].word, n) != 0)
            continue;
        v->type = words[i].type;
        v->boolean = words[i].boolean;
        r->at += n;
        return 0;
    }
    return report_error(r, "a value is missing");
}

// ---- arrays and objects ------------------------------------------------------------------------
static int read_value(struct json_reader *r, struct json **out);

static int compare_keys(const void *a, const void *b)
{
    const struct json *x = *(const struct json *const *)a, *y = *(const struct json *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->offset > y->offset) - (x->offset < y->offset);
}

static int refuse_duplicates(struct json_reader *r, const struct json *object)
{
    if (object->count < 2)
        return 0;
    const struct json **sorted = malloc((size_t)object->count * sizeof *sorted);
    if (!sorted)
        err_bug(__FILE__, __LINE__, "out of memory for an object's keys");
    int n = 0, rc = 0;
    for (const struct json *v = object->first; v; v = v->next)
        sorted[n++] = v;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_keys);
    for (int i = 1; i < n && !rc; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            rc = err_set(r->e, ERR_DATA, "JSON at byte %zu: key '%.100s' is there twice",
                         sorted[i]->offset, sorted[i]->key);
    free(sorted);
    return rc;
}

static int read_key(struct json_reader *r, const char **key)
{
    skip_space(r);
    if (peek_byte(r) != '"')
        return report_error(r, "a key in quotes is missing");
    size_t start = r->at, length;
    int rc = read_string(r, key, &length);
    if (rc)
        return rc;
    if (strlen(*key) != length)
        return fail_at(r, start, "a zero character in a key is not supported");
    skip_space(r);
    if (peek_byte(r) != ':')
        return report_error(r, "':' is missing");
    r->at++;
    return 0;
}

static int read_members(struct json_reader *r, struct json *v, char close)
{
    struct json **tail = &v->first;
    const char *key = NULL;
    do {
        struct json *child;
        int rc = v->type == JSON_OBJECT ? read_key(r, &key) : 0;
        if (!rc)
            rc = read_value(r, &child);
        if (rc)
            return rc;
        child->key = key;
        *tail = child;
        tail = &child->next;
        v->count++;
        skip_space(r);
    } while (peek_byte(r) == ',' && r->at++ < r->len);
    if (peek_byte(r) != close)
        return report_error(r, close == ']' ? "',' or ']' is missing" : "',' or '}' is missing");
    r->at++;
    return v->type == JSON_OBJECT ? refuse_duplicates(r, v) : 0;
}

static int read_container(struct json_reader *r, struct json *v, enum json_type type, char close)
{
    if (r->depth == JSON_MAX_DEPTH)
        return err_set(r->e, ERR_LIMIT, "JSON at byte %zu: nested deeper than %d", r->at,
                       JSON_MAX_DEPTH);
    v->type = type;
    r->at++;
    skip_space(r);
    if (peek_byte(r) == close) {
        r->at++;
        return 0;
    }
    r->depth++;
    int rc = read_members(r, v, close);
    r->depth--;
    return rc;
}

static int read_value(struct json_reader *r, struct json **out)
{
    skip_space(r);
    if (r->values++ == JSON_MAX_VALUES)
        return err_set(r->e, ERR_LIMIT, "JSON at byte %zu: more than %d values", r->at,
                       JSON_MAX_VALUES);
    struct json *v = *out = arena_new(r->arena, struct json);
    v->offset = r->at;
    char c = peek_byte(r);
    if (c == '{')
        return read_container(r, v, JSON_OBJECT, '}');
    if (c == '[')
        return read_container(r, v, JSON_ARRAY, ']');
    if (c == '-' || (c >= '0' && c <= '9'))
        return read_number(r, v);
    if (c != '"')
        return read_word(r, v);
    v->type = JSON_STRING;
    return read_string(r, &v->string, &v->length);
}

static int parse(struct json_reader *r, struct json **out)
{
    struct json *root = NULL;
    *out = NULL;
    if (r->len > JSON_MAX_BYTES)
        return err_set(r->e, ERR_LIMIT, "JSON of %zu bytes: the limit is %d", r->len,
                       JSON_MAX_BYTES);
    int rc = read_value(r, &root);
    if (rc)
        return rc;
    skip_space(r);
    if (r->at < r->len)
        return report_error(r, "text behind the value");
    *out = root;
    return 0;
}

int json_parse(struct arena *a, const char *text, size_t len, struct json **out, struct err *e)
{
    return parse(&(struct json_reader){.arena = a, .text = text, .len = len, .e = e}, out);
}

int json_parse_zeros(struct arena *a, const char *text, size_t len, struct json **out,
                     struct err *e)
{
    return parse(&(struct json_reader){.arena = a, .text = text, .len = len, .zeros = true, .e = e},
                 out);
}

// ---- access ------------------------------------------------------------------------------------
const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->type != JSON_OBJECT)
        return NULL;
    const struct json *v = object->first;
    while (v && strcmp(v->key, key) != 0)
        v = v->next;
    return v;
}

static int get_typed(const struct json *o, const char *key, enum json_type type, const char *what,
                     const struct json **out, struct err *e)
{
    const struct json *v = json_get(o, key);
    if (!v)
        return err_set(e, ERR_DATA, "'%s' is missing", key);
    if (v->type != type)
        return err_set(e, ERR_DATA, "'%s' is not %s", key, what);
    *out = v;
    return 0;
}

int json_get_str(const struct json *o, const char *key, const char **out, struct err *e)
{
    const struct json *v = NULL;
    int rc = get_typed(o, key, JSON_STRING, "a string", &v, e);
    if (!rc)
        *out = v->string;
    return rc;
}

int json_get_int(const struct json *o, const char *key, int64_t *out, struct err *e)
{
    const struct json *v = NULL;
    int rc = get_typed(o, key, JSON_NUMBER, "an integer", &v, e);
    if (!rc && !v->is_int)
        rc = err_set(e, ERR_DATA, "'%s' is not an integer", key);
    if (!rc)
        *out = v->integer;
    return rc;
}

int json_get_array(const struct json *o, const char *key, const struct json **out, struct err *e)
{
    return get_typed(o, key, JSON_ARRAY, "an array", out, e);
}

int json_get_object(const struct json *o, const char *key, const struct json **out, struct err *e)
{
    return get_typed(o, key, JSON_OBJECT, "an object", out, e);
}
