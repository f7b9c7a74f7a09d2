// SPDX-License-Identifier: Apache-2.0
// JSON: a writer that appends to a buf, and a bounded reader that builds a tree in an arena.
//
// Writer: commas and nesting are kept for you. Doubles print as the shortest text that reads back
// to the same value; NaN and infinities print null and their paths are collected, so that
// json_nonfinite() can list them: `"nonfinite": ["loss"]`.
// Reader: strict RFC 8259 (no trailing text, no duplicate keys, valid UTF-8 and escapes), depth and
// size limited; errors say the byte offset.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

enum { JSON_MAX_DEPTH = 32 };

struct json_out {
    struct buf *buf; // borrowed
    int depth;
    bool pretty; // two-space indent and newlines; set it before the first value
    uint32_t is_array, has_items; // a bit a depth
    char path[JSON_MAX_DEPTH][64];
    struct buf nonfinite; // paths, each followed by '\n'
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
void json_float(struct json_out *w, const char *key, float value); // shortest for a float
void json_bool(struct json_out *w, const char *key, bool value);
void json_null(struct json_out *w, const char *key);
void json_raw(struct json_out *w, const char *key, const char *text); // text is valid JSON
// Adds the array "nonfinite" of the paths seen so far; call it last inside the top object.
void json_nonfinite(struct json_out *w);

// Shortest text that reads back to the same value (strtod, strtof); out holds 32 bytes.
void json_format_double(double value, char out[32]);
void json_format_float(float value, char out[32]);

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
struct json {
    enum json_type type;
    bool boolean, is_int; // is_int: no fraction or exponent, and `integer` holds it exactly
    double number;
    int64_t integer;
    const char *string; // unescaped, zero-terminated; embedded zeros are refused
    const char *key;    // inside an object
    struct json *first, *next; // children of arrays and objects, in order
    int count;
    size_t offset; // in the text
};

int json_parse(struct arena *a, const char *text, size_t len, struct json **out, struct err *e);
const struct json *json_get(const struct json *object, const char *key); // null when absent

// Typed access that fails with "'key' is missing" or "'key' is not a …".
int json_get_str(const struct json *o, const char *key, const char **out, struct err *e);
int json_get_int(const struct json *o, const char *key, int64_t *out, struct err *e);
int json_get_array(const struct json *o, const char *key, const struct json **out, struct err *e);
int json_get_object(const struct json *o, const char *key, const struct json **out, struct err *e);
