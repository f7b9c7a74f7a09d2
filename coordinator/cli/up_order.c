// SPDX-License-Identifier: Apache-2.0
// What a host of `weft up` is to do; see up_order.h.
#include "coordinator/cli/up_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/hash.h"

#define FIRST "weft up 1 "
enum { TEXTS = 6 }; // before the words

int up_order_print(const struct up_order *o, struct buf *out, struct err *e)
{
    const char *const texts[] = {o->id, o->secret, o->host, o->folder};
    struct buf body = {0};
    buf_printf(&body, "%d%c%d%c", o->index, 0, o->size, 0);
    for (int i = 0; i < TEXTS - 2; i++)
        buf_append(&body, texts[i], strlen(texts[i]) + 1);
    for (int i = 0; i < o->nwords; i++)
        buf_append(&body, o->words[i], strlen(o->words[i]) + 1);
    buf_printf(out, FIRST "%zu\n", body.len);
    buf_append(out, body.data, body.len);
    int rc = body.len > UP_ORDER_MAX
                 ? err_set(e, ERR_INVALID, "the command has %zu bytes, and a host takes %d",
                           body.len, UP_ORDER_MAX)
                 : 0;
    buf_clear(&body);
    return rc;
}

int up_order_length(const char *line, size_t *len, struct err *e)
{
    const char *n = line + strlen(FIRST);
    bool is_one = strncmp(line, FIRST, strlen(FIRST)) == 0;
    size_t digits = is_one ? strspn(n, "0123456789") : 0;
    *len = digits && digits <= 5 && !n[digits] ? (size_t)atol(n) : 0;
    return *len && *len <= UP_ORDER_MAX
               ? 0
               : err_set(e, ERR_DATA, "what came over standard input is not from `weft up`");
}

// −1: it is no number below `end`.
static int read_number(const char *text, int end)
{
    size_t digits = strspn(text, "0123456789");
    return digits && digits <= 6 && !text[digits] && atoi(text) < end ? atoi(text) : -1;
}

int up_order_parse(const char *bytes, size_t len, struct up_order *out, struct err *e)
{
    const char *text[TEXTS + UP_ORDER_WORDS];
    int n = 0;
    for (size_t at = 0; at < len; at += strlen(bytes + at) + 1) {
        if (n == TEXTS + UP_ORDER_WORDS || !memchr(bytes + at, 0, len - at))
            return err_set(e, ERR_DATA, "the order of `weft up` is torn, or has too many words");
        text[n++] = bytes + at;
    }
    *out = (struct up_order){0};
    if (n <= TEXTS)
        return err_set(e, ERR_DATA, "the order of `weft up` lacks its job");
    out->index = read_number(text[0], ALLOCATION_MAX);
    out->size = read_number(text[1], ALLOCATION_MAX + 1);
    out->id = text[2];
    out->secret = text[3];
    out->host = text[4];
    out->folder = text[5];
    out->nwords = n - TEXTS;
    memcpy(out->words, text + TEXTS, sizeof *text * (size_t)out->nwords);
    if (out->index < 0 || out->index >= out->size || !hex_is(out->id, ID_LEN - 1) ||
        strlen(out->secret) < LEADER_SECRET_MIN || strlen(out->secret) > LEADER_SECRET_MAX ||
        strlen(out->host) >= sizeof((struct allocation *)0)->host || *out->folder != '/')
        return err_set(e, ERR_DATA, "the order of `weft up` is none");
    return 0;
}

void up_order_take(const struct up_order *o, struct several *s)
{
    struct allocation *a = &s->a;
    *s = (struct several){.a = {.kind = ALLOCATION_UP, .index = o->index, .size = o->size}};
    snprintf(a->id, sizeof a->id, "up %s", o->id);
    snprintf(a->host, sizeof a->host, "%s", o->host);
    snprintf(a->text, sizeof a->text, "weft up");
    snprintf(s->secret.text, sizeof s->secret.text, "%s", o->secret);
}
