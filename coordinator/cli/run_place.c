// SPDX-License-Identifier: Apache-2.0
// Where a run in an allocation is found again; see run_place.h.
#include "coordinator/cli/run_place.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"

enum { NAME_ROOM = 80, PLACE_TEXT_MAX = RUN_PLACE_ROOT + 100 };

int run_place_write(const char *base, const char *name, const char *job, const char *root,
                    struct err *e)
{
    char dir[RUN_PLACE_ROOT], file[NAME_ROOM], text[PLACE_TEXT_MAX];
    bool below = root[0] != '/';
    int fd;
    if ((size_t)snprintf(dir, sizeof dir, "%s/.weft", base) >= sizeof dir ||
        strlen(base) + strlen(root) + 2 > RUN_PLACE_ROOT || strchr(root, '\n') ||
        strchr(base, '\n'))
        return err_set(e, ERR_INVALID, "%s: a path is too long, or has a line's end in it", base);
    int n = snprintf(text, sizeof text, "root %s%s%s\n%s%s%s", below ? base : "", below ? "/" : "",
                     root, *job ? "job " : "", job, *job ? "\n" : "");
    int rc = folder_make(dir, e);
    rc = rc ? rc : folder_open(base, ".weft", true, &fd, e);
    if (rc)
        return rc;
    snprintf(file, sizeof file, "%s.place", name);
    if (folder_write_at(fd, ".", file, text, (size_t)n, 0600, FOLDER_DURABLE, e))
        rc = err_wrap(e, "%s", dir);
    close(fd);
    return rc;
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
    char file[NAME_ROOM];
    struct buf text = {0};
    int fd, rc = folder_open(base, ".weft", true, &fd, e);
    if (rc)
        return rc;
    snprintf(file, sizeof file, "%s.place", name);
    rc = folder_read_whole(fd, file, true, PLACE_TEXT_MAX, &text, e);
    rc = rc ? rc : run_place_parse(buf_str(&text), text.len, out, e);
    if (rc)
        err_wrap(e, "%s/.weft/%s", base, file);
    close(fd);
    buf_clear(&text);
    return rc;
}
