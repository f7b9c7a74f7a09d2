// SPDX-License-Identifier: Apache-2.0
// Text becomes a file of tokens. See prepare.h.
#include "common/data/prepare.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 16 };

static int copy_tokens(FILE *in, FILE *out, unsigned long long *tokens)
{
    unsigned char text[PIECE];
    uint16_t ids[PIECE];
    size_t n;
    *tokens = 0;
    while ((n = fread(text, 1, sizeof text, in)) > 0) {
        for (size_t i = 0; i < n; i++)
            ids[i] = text[i];
        if (fwrite(ids, sizeof *ids, n, out) != n)
            return -1;
        *tokens += n;
    }
    return ferror(in) || fflush(out) || fsync(fileno(out)) ? -1 : 0;
}

int prepare_bytes(const char *from, const char *to, unsigned long long *tokens, struct err *e)
{
    size_t len = strlen(to) + sizeof ".part";
    char *part = malloc(len);
    FILE *in = fopen(from, "rb"), *out = NULL;
    int rc = 0;
    PRE(part);
    snprintf(part, len, "%s.part", to);
    if (!in)
        rc = err_errno(e, ERR_NOTFOUND, "cannot open %s", from);
    else if (!(out = fopen(part, "wb")))
        rc = err_errno(e, ERR_IO, "cannot write %s", part);
    else if (copy_tokens(in, out, tokens))
        rc = err_errno(e, ERR_IO, "cannot copy %s to %s", from, part);
    else if (*tokens == 0)
        rc = err_set(e, ERR_INVALID, "%s is empty: there is nothing to make tokens of", from);
    if (out && fclose(out) && !rc)
        rc = err_errno(e, ERR_IO, "cannot write %s", part);
    if (!rc && rename(part, to))
        rc = err_errno(e, ERR_IO, "cannot rename %s", part);
    if (rc && out)
        unlink(part);
    if (in)
        fclose(in);
    free(part);
    return rc;
}
