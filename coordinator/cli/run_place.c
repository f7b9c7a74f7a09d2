// SPDX-License-Identifier: Apache-2.0
// Where a run in an allocation is found again; see run_place.h.
#include "coordinator/cli/run_place.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/cli/run_file.h"

enum { PLACE_TEXT_MAX = RUN_PLACE_ROOT + 100 };

int run_place_write(const char *base, const char *name, const char *job, const char *root,
                    struct err *e)
{
    char text[PLACE_TEXT_MAX];
    bool below = root[0] != '/';
    if (strlen(base) + strlen(root) + 2 > RUN_PLACE_ROOT || strchr(root, '\n') ||
        strchr(base, '\n'))
        return err_set(e, ERR_INVALID, "%s: a path is too long, or has a line's end in it", base);
    int n = snprintf(text, sizeof text, "root %s%s%s\n%s%s%s", below ? base : "", below ? "/" : "",
                     root, *job ? "job " : "", job, *job ? "\n" : "");
    return run_file_write(base, name, "place", true, text, (size_t)n, e);
}

int run_place_parse(const char *text, size_t len, struct run_place *out, struct err *e)
{
    const char *end = memchr(text, '\n', len), *job = end ? end + 1 : text;
    const size_t rest = len - (size_t)(job - text), root = end ? (size_t)(end - text) : 0;
    const size_t digits = rest > 4 && !strncmp(job, "job ", 4) ? strspn(job + 4, "0123456789") : 0;
    if (root < 6 || strncmp(text, "root /", 6) != 0 || root - 5 >= RUN_PLACE_ROOT ||
        memchr(text, 0, len) || digits >= RUN_PLACE_JOB ||
        (rest && (!digits || rest != digits + 5 || job[4 + digits] != '\n')))
        return err_set(e, ERR_DATA, "it is none of weft's");
    *out = (struct run_place){0};
    memcpy(out->root, text + 5, root - 5);
    memcpy(out->job, job + 4, digits);
    return 0;
}

int run_place_read(const char *base, const char *name, struct run_place *out, struct err *e)
{
    struct buf text = {0};
    int rc = run_file_read(base, name, "place", PLACE_TEXT_MAX, &text, e);
    if (!rc && (rc = run_place_parse(buf_str(&text), text.len, out, e)))
        err_wrap(e, "%s/.weft/%s.place", base, name);
    buf_clear(&text);
    return rc;
}
