// SPDX-License-Identifier: Apache-2.0
// Texts; see kept_text.h.
#include "coordinator/kept_text.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

static char empty[1];

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
