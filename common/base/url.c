// SPDX-License-Identifier: Apache-2.0
// See url.h.
#include "common/base/url.h"

#include <string.h>

int url_refuse(const char *path, struct err *e)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t n = strspn(path, letters);
    n = n ? n + strspn(path + n,
                       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-")
          : 0;
    if (n < 2 || strncmp(path + n, ":/", 2) != 0)
        return 0;
    return err_set(e, ERR_INVALID, "%.200s " URL_WHY, path);
}
