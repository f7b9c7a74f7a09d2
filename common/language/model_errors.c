// SPDX-License-Identifier: Apache-2.0
// What is wrong with a program. See model_errors.h.
#include "common/language/model_errors.h"

#include <stdarg.h>

static int add_error(struct model_errors *errs, struct text_place at, const char *size,
                     const char *fmt, va_list ap)
{
    if (errs->n == MODEL_MAX_ERRORS) {
        errs->more++;
        return ERR_INVALID;
    }
    errs->item[errs->n++] = (struct model_error){at, size, arena_vprintf(errs->arena, fmt, ap)};
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
