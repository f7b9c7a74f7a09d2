// SPDX-License-Identifier: Apache-2.0
// JSON: a writer that appends to a buf, and a bounded reader that builds a tree in an arena.
//
// Writer: commas and nesting are kept for you. Doubles print with the fewest digits that read back
// to the same value; NaN and infinities print null and their paths are collected, so that
// json_nonfinite() can list them: `"nonfinite": ["loss", "groups[1].lr"]`. Bytes that are not UTF-8
// print as U+FFFD, and characters that steer a terminal (plain.h) as escapes. Misnesting and a
// missing or superfluous key are bugs of the caller.
// Reader: strict RFC 8259 (no trailing text, no duplicate keys, valid UTF-8 and escapes), depth and
// size limited; errors say the byte offset. ERR_DATA: not such JSON; ERR_LIMIT: past a bound.
// Both expect the process to stay in the C locale, where the decimal point is a point.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

enum {
    JSON_MAX_DEPTH = 32,        // open arrays and objects, of the writer and the reader
    JSON_MAX_BYTES = 128 << 20, // of the reader's text
    JSON_MAX_VALUES = 1 << 22,  // of the reader's tree: a value takes 40 times the memory of "1,"
    JSON_MAX_NUMBER = 400,      // characters of a number
};

struct json;
struct json_out {
    struct buf *buf; // borrowed
    bool pretty;     // two-space indent and newlines; set it before the first value
    int depth;
    struct json_level {
        bool is_array;
        size_t items, path_len;  // values so far; of `path` outside this level
    } level[JSON_MAX_DEPTH + 1]; // 0: the top
    struct buf path;             // "groups[1]" of the innermost level
    struct buf nonfinite;        // paths, each with its zero byte
};

void json_out_init(struct json_out *w, struct buf *buf);
void json_out_clear(struct json_out *w);
// `key` is null inside an array and at the top.
void json_object(struct json_out *w, const char *key);
void json_array(struct json_out *w, const char *key);
void json_end(struct json_out *w); // closes the innermost object or array
void json_str(struct json_out *w, const char *key, const char *value); // null value prints null
void json_strn(struct json_out *w, const char *key, const char *value, size_t len);
void json_int(struct json_out *w, const char *key, int64_t value);
void json_uint(struct json_out *w, const char *key, uint64_t value);
void json_double(struct json_out *w, const char *key, double value);
void json_bool(struct json_out *w, const char *key, bool value);
void json_null(struct json_out *w, const char *key);
// The value, or null where it is not known.
void json_known_int(struct json_out *w, const char *key, bool known, int64_t value);
void json_known_double(struct json_out *w, const char *key, bool known, double value);
void json_raw(struct json_out *w, const char *key, const char *text);       // text is valid JSON
void json_value(struct json_out *w, const char *key, const struct json *v); // as it was read
// Adds the array "nonfinite" of the paths seen so far; call it last inside the top object.
void json_nonfinite(struct json_out *w);

// The fewest digits that read back to the same value (strtod, strtof): "0.1", "100000", "1e+22";
// "null" when not finite.
void json_format_double(double value, char out[32]);
void json_format_float(float value, char out[32]);

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
struct json {
    enum json_type type;
    bool boolean, is_int; // is_int: no fraction or exponent, and `integer` holds it exactly
    double number;
    int64_t integer;
    const char *string;        // unescaped, zero-terminated; embedded zeros are refused
    size_t length;             // of the string
    const char *key;           // inside an object
    struct json *first, *next; // children of arrays and objects, in order
    int count;
    size_t offset; // in the text
};

int json_parse(struct arena *a, const char *text, size_t len, struct json **out, struct err *e);
// The same of text for which a zero character is one like others: a string, though no key, may hold it.
int json_parse_zeros(struct arena *a, const char *text, size_t len, struct json **out,
                     struct err *e);
const struct json *json_get(const struct json *object, const char *key); // null when absent

// Typed access that fails with "'key' is missing" or "'key' is not a …".
int json_get_str(const struct json *o, const char *key, const char **out, struct err *e);
int json_get_int(const struct json *o, const char *key, int64_t *out, struct err *e);
int json_get_array(const struct json *o, const char *key, const struct json **out, struct err *e);
int json_get_object(const struct json *o, const char *key, const struct json **out, struct err *e);
