// SPDX-License-Identifier: Apache-2.0
// Texts; see plain_text.h.
#include "coordinator/plain_text.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/json.h"

static char empty[1];

void text_plain(char *s)
{
    for (size_t left = strlen(s), n; left; s += n, left -= n) {
        const unsigned char *u = (const unsigned char *)s;
        n = json_utf8_len(s, left);
        bool steers = (*u < ' ' && *u != '\n' && *u != '\t') || *u == 0x7f ||
                      (n == 2 && *u == 0xc2 && u[1] < 0xa0);
        if (n && !steers)
            continue;
        n = 1; // what follows it is looked at by itself
        *s = '?';
    }
}

void text_set(char **field, const char *s)
{
    char *old = *field;
    *field = s && s[0] ? strdup(s) : empty;
    PRE(*field != NULL);
    if (old != empty)
        free(old);
}

void text_free(char **field)
{
    if (*field != empty)
        free(*field);
    *field = NULL;
}
