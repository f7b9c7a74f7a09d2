// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes through the JSON reader. What it accepts is written again and must read
// back to the same tree; what it refuses must leave no tree and a message.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put(struct json_out *w, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        json_null(w, v->key);
        break;
    case JSON_BOOL:
        json_bool(w, v->key, v->boolean);
        break;
    case JSON_NUMBER:
        if (v->is_int && v->integer)
            json_int(w, v->key, v->integer);
        else
            json_double(w, v->key, v->number);
        break;
    case JSON_STRING:
        json_str(w, v->key, v->string);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        (v->type == JSON_ARRAY ? json_array : json_object)(w, v->key);
        for (const struct json *c = v->first; c; c = c->next)
            put(w, c);
        json_end(w);
        break;
    }
}

static void must(int holds)
{
    if (!holds)
        abort();
}

static void compare(const struct json *a, const struct json *b)
{
    must(a->type == b->type && a->boolean == b->boolean && a->count == b->count);
    must(memcmp(&a->number, &b->number, sizeof a->number) == 0);
    must(!a->is_int || a->integer == b->integer);
    must(a->type != JSON_STRING || strcmp(a->string, b->string) == 0);
    must((a->key != NULL) == (b->key != NULL) && (!a->key || strcmp(a->key, b->key) == 0));
    const struct json *x = a->first, *y = b->first;
    for (; x && y; x = x->next, y = y->next)
        compare(x, y);
    must(!x && !y);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a;
    struct err e = {0};
    struct json *first, *second;
    arena_init(&a);
    if (json_parse(&a, (const char *)data, size, &first, &e) == 0) {
        struct buf b = {0};
        struct json_out w;
        json_out_init(&w, &b);
        w.pretty = size & 1;
        put(&w, first);
        must(json_parse(&a, b.data, b.len, &second, &e) == 0);
        compare(first, second);
        json_out_clear(&w);
        buf_clear(&b);
    } else {
        must(!first && e.code && e.text[0]);
    }
    arena_clear(&a);
    return 0;
}
