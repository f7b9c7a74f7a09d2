// SPDX-License-Identifier: Apache-2.0
// See data_files.h.
#include "coordinator/cli/data_files.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/data/job_set.h"
#include "common/data/pattern.h"

struct faults {
    const struct job *job;
    struct arena *a;
    struct data_fault *v;
    int n;
};

// Whether the file can be opened; else `e` says why not.
static bool is_here(const struct faults *f, const char *path, struct err *e)
{
    const char *at = job_path(f->job, f->a, path), **files = &at;
    int n, rc = 0;
    if (f->job->data.format == JOB_DATA_TOKENS) // others are one file each
        rc = pattern_files(NULL, at, f->a, &files, &n, e);
    if (!rc && access(files[0], R_OK))
        rc = err_errno(e, ERR_NOTFOUND, "cannot open %s", files[0]);
    return !rc;
}

static void add_fault(struct faults *f, const struct data_fault *one)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->v[i].path, one->path) == 0)
            return;
    f->v[f->n++] = *one;
}

// Whether all files of a set can be opened; `keys` are those of its images, labels and tokens.
static bool look_for_files(struct faults *f, const struct job_data_files *files,
                           const char *const keys[3])
{
    const char *const paths[] = {files->images, files->labels, files->tokens};
    bool here = true;
    for (int i = 0; i < 3; i++) {
        struct err e = {0};
        if (!paths[i] || is_here(f, paths[i], &e))
            continue;
        add_fault(f, &(struct data_fault){keys[i], paths[i], arena_strdup(f->a, e.text), true,
                                          e.forbidden});
        here = false;
    }
    return here;
}

static void look_at_set(struct faults *f, const struct job_data_files *files,
                        const char *const keys[3])
{
    const char *named = files->tokens ? files->tokens : files->images;
    struct err e = {0};
    int rc = named && look_for_files(f, files, keys) ? job_set_try(f->job, files, &e) : 0;
    if (!rc)
        return;
    const char *key = files->tokens ? keys[2] : keys[0];
    if (files->labels && strstr(e.text, job_path(f->job, f->a, files->labels)) == e.text) {
        named = files->labels;
        key = keys[1];
    }
    add_fault(f, &(struct data_fault){key, named, arena_strdup(f->a, e.text), rc == ERR_ABSENT,
                                      e.forbidden});
}

int data_faults_find(const struct job *job, struct arena *a, struct data_fault out[DATA_FAULTS_MAX])
{
    static const char *const train[] = {"data.train.images", "data.train.labels",
                                        "data.train.tokens"},
                             *const eval[] = {"data.eval.images", "data.eval.labels",
                                              "data.eval.tokens"};
    struct faults f = {job, a, out, 0};
    look_at_set(&f, &job->data.train, train);
    look_at_set(&f, &job->data.eval, eval);
    return f.n;
}
