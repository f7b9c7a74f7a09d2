// SPDX-License-Identifier: Apache-2.0
// What is wrong with a program. See model_errors.h.
#include "common/model/language/model_errors.h"

#include <stdarg.h>

static int add_error(struct model_errors *errs, struct text_place at, const char *size,
                     const char *fmt, va_list ap)
{
    if (errs->n == MODEL_MAX_ERRORS) {
        errs->more++;
        return ERR_INVALID;
    }
    struct buf text = {0};
    buf_vprintf(&text, fmt, ap);
    errs->item[errs->n++] = (struct model_error){at, size, buf_keep(&text, errs->arena)};
    return ERR_INVALID;
}

int model_error_at(struct model_errors *errs, struct text_place at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = add_error(errs, at, NULL, fmt, ap);
    va_end(ap);
    return rc;
}

int model_error_size(struct model_errors *errs, struct text_place at, const char *size,
                     const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = add_error(errs, at, size, fmt, ap);
    va_end(ap);
    return rc;
}

static void print_error(const struct model_error *one, const char *file, struct buf *to)
{
    buf_puts(to, file);
    if (one->at.line)
        buf_printf(to, ":%d:%d", one->at.line, one->at.column);
    if (one->size)
        buf_printf(to, ": %s", one->size);
    buf_printf(to, ": %s", one->message);
}

void model_errors_print(const struct model_errors *errs, const char *file, struct buf *to)
{
    for (int i = 0; i < errs->n; i++) {
        print_error(&errs->item[i], file, to);
        buf_putc(to, '\n');
    }
    if (errs->more)
        buf_printf(to, "… and %d more\n", errs->more);
}

int model_errors_err(const struct model_errors *errs, const char *file, struct err *e)
{
    if (errs->n == 0)
        return 0;
    struct buf text = {0};
    print_error(&errs->item[0], file, &text);
    int rest = errs->n + errs->more - 1;
    if (rest)
        buf_printf(&text, " (and %d more)", rest);
    err_set(e, ERR_INVALID, "%s", buf_str(&text));
    buf_clear(&text);
    return ERR_INVALID;
}
