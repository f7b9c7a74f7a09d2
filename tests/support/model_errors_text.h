// SPDX-License-Identifier: Apache-2.0
// What is wrong with a program `t`: "t:12:7: …", or "t: heads: …" of a size that was given.
#pragma once
#include "common/language/model_errors.h"

static inline void put_model_error(const struct model_error *one, struct buf *to)
{
    buf_puts(to, "t");
    if (one->at.line)
        buf_printf(to, ":%d:%d", one->at.line, one->at.column);
    if (one->size)
        buf_printf(to, ": %s", one->size);
    buf_printf(to, ": %s", one->message);
}

// All of them, a line each.
static inline void put_model_errors(const struct model_errors *errs, struct buf *to)
{
    for (int i = 0; i < errs->n; i++) {
        put_model_error(&errs->item[i], to);
        buf_putc(to, '\n');
    }
}

// The first, of at least one.
static inline int first_model_error(const struct model_errors *errs, struct err *e)
{
    struct buf text = {0};
    put_model_error(&errs->item[0], &text);
    err_set(e, ERR_INVALID, "%s", buf_str(&text));
    buf_clear(&text);
    return ERR_INVALID;
}
