// SPDX-License-Identifier: Apache-2.0
// Text becomes a file of tokens. See prepare.h.
#include "common/data/prepare.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static bool is_same_file(FILE *a, const char *path)
{
    struct stat x, y;
    return !fstat(fileno(a), &x) && !stat(path, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Refuses a target that is the text itself, or that exists and is not a regular file.
static int check_target(FILE *in, const char *to, const char *part, struct err *e)
{
    struct stat old;
    if (is_same_file(in, to) || is_same_file(in, part))
        return err_set(e, ERR_INVALID,
                       "writing the tokens to %s would overwrite the text: name another file", to);
    if (!stat(to, &old) && !S_ISREG(old.st_mode))
        return err_set(e, ERR_INVALID, "cannot write %s: it is there, and no regular file", to);
    return 0;
}

static int write_tokens(FILE *in, const char *from, const char *part, unsigned long long *tokens,
                        struct err *e)
{
    FILE *out = fopen(part, "wb");
    int rc = 0;
    if (!out)
        return err_errno(e, ERR_IO, "cannot write %s", part);
    if (copy_tokens(in, out, tokens))
        rc = err_errno(e, ERR_IO, "cannot copy %s to %s", from, part);
    else if (*tokens == 0)
        rc = err_set(e, ERR_INVALID, "%s is empty: there is nothing to make tokens of", from);
    if (fclose(out) && !rc)
        rc = err_errno(e, ERR_IO, "cannot write %s", part);
    if (rc)
        unlink(part);
    return rc;
}

int prepare_bytes(const char *from, const char *to, unsigned long long *tokens, struct err *e)
{
    size_t len = strlen(to) + sizeof ".part";
    char *part = malloc(len);
    FILE *in = fopen(from, "rb");
    PRE(part);
    snprintf(part, len, "%s.part", to);
    int rc =
        in ? check_target(in, to, part, e) : err_errno(e, ERR_NOTFOUND, "cannot open %s", from);
    if (!rc)
        rc = write_tokens(in, from, part, tokens, e);
    if (!rc && rename(part, to)) {
        rc = err_errno(e, ERR_IO, "cannot rename %s to %s", part, to);
        unlink(part);
    }
    if (in)
        fclose(in);
    free(part);
    return rc;
}
