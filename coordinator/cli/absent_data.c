// SPDX-License-Identifier: Apache-2.0
// See absent_data.h.
#include "coordinator/cli/absent_data.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/data/pattern.h"

// Null where the file can be read.
static const char *find_fault(const struct job *job, const char *path, struct arena *a)
{
    const char *at = job_path(job, a, path), **files = &at;
    struct err e = {0};
    int n, rc = 0;
    if (job->data.format == JOB_DATA_TOKENS) // others are one file each
        rc = pattern_files(NULL, at, a, &files, &n, &e);
    if (!rc && access(files[0], R_OK))
        rc = err_errno(&e, ERR_NOTFOUND, "cannot open %s", files[0]);
    return rc ? arena_strdup(a, e.text) : NULL;
}

static bool is_listed(const struct absent *list, int n, const char *path)
{
    while (n-- > 0)
        if (strcmp(list[n].path, path) == 0)
            return true;
    return false;
}

int absent_data(const struct job *job, struct arena *a, struct absent out[ABSENT_MAX])
{
    const struct job_data *d = &job->data;
    const struct absent named[ABSENT_MAX] = {
        {"data.train.images", d->train.images, NULL}, {"data.train.labels", d->train.labels, NULL},
        {"data.train.tokens", d->train.tokens, NULL}, {"data.eval.images", d->eval.images, NULL},
        {"data.eval.labels", d->eval.labels, NULL},   {"data.eval.tokens", d->eval.tokens, NULL}};
    int n = 0;
    for (int i = 0; i < ABSENT_MAX; i++) {
        const char *path = named[i].path;
        const char *why = path && !is_listed(out, n, path) ? find_fault(job, path, a) : NULL;
        if (why)
            out[n++] = (struct absent){named[i].key, path, why};
    }
    return n;
}
