// SPDX-License-Identifier: Apache-2.0
// Error values. See err.h.
#include "common/base/err.h"

#undef err_set
#undef err_errno

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    e->of_host = code == ERR_NOMEM;
    e->forbidden = false;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return code;
}

// Whether the same call on another machine would do better.
static bool is_of_host(int error)
{
    static const int errors[] = {ENOSPC, EDQUOT, EIO,    EROFS, ENOMEM, EMFILE,
                                 ENFILE, EAGAIN, ENODEV, ENXIO, ESTALE, ENOBUFS};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i] == error)
            return true;
    return false;
}

int err_errno(struct err *e, int code, const char *fmt, ...)
{
    int saved = errno;
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    e->of_host = is_of_host(saved);
    e->forbidden = saved == EACCES;
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", strerror(saved));
    return code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_INTERNAL;
    char inner[sizeof e->text];
    memcpy(inner, e->text, sizeof inner);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", inner);
    return e->code;
}

_Noreturn void err_bug(const char *file, int line, const char *what)
{
    fprintf(stderr, "weft: bug at %s:%d: %s\n", file, line, what);
    abort();
}
