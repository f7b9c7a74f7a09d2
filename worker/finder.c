// SPDX-License-Identifier: Apache-2.0
// Job folders found again. See finder.h. A job's folder has an OWNER; it lies at most DEPTH folders
// below the root (checkpoint.dir is a path), and nothing is looked for inside it.
#include "worker/finder.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/ckpt/load.h"
#include "common/ckpt/store.h"

enum { DEPTH = 4 };

struct finder {
    const char *cluster;
    struct arena *arena;
    Weft__V1__StorageDone *out;
    int cap;
};

static void add_checkpoints(struct finder *f, struct store *s, Weft__V1__FoundJob *job)
{
    struct store_entry *ids;
    int n = 0;
    if (store_scan(s, f->arena, &ids, &n, NULL))
        n = 0;
    job->committed = arena_array(f->arena, Weft__V1__Checkpoint *, n + 1);
    for (int i = 0; i < n; i++) {
        Weft__V1__Checkpoint *c = arena_new(f->arena, Weft__V1__Checkpoint);
        weft__v1__checkpoint__init(c);
        c->attempt = (uint64_t)ids[i].attempt;
        c->step = ids[i].step;
        job->committed[job->n_committed++] = c;
    }
}

// OWNER is sealed by nothing, a checkpoint's manifest is: where the two texts differ, people see how.
static void compare_texts(struct finder *f, const struct store *s, Weft__V1__FoundJob *job)
{
    for (size_t i = 0; i < job->n_committed; i++) {
        const Weft__V1__Checkpoint *c = job->committed[i];
        struct load l;
        if (load_open(&l, s, (int64_t)c->attempt, c->step, NULL))
            continue;
        if (strcmp(l.manifest.resolved, job->resolved) != 0)
            job->saved = arena_strdup(f->arena, l.manifest.resolved);
        load_close(&l);
        return;
    }
}

static void add_job(struct finder *f, struct store *s, const struct store_owner *owner)
{
    int64_t greatest = 0;
    (void)store_check_attempt(s, 0, &greatest, NULL); // "a greater one is there" is what is asked
    Weft__V1__FoundJob *job = arena_new(f->arena, Weft__V1__FoundJob);
    weft__v1__found_job__init(job);
    job->job = frame_text(owner->job);
    job->name = frame_text(owner->name);
    job->resolved = frame_text(owner->resolved);
    job->threads = (int)owner->threads;
    job->store = arena_strdup(f->arena, s->path);
    job->attempt = (uint64_t)greatest;
    add_checkpoints(f, s, job);
    compare_texts(f, s, job);
    int n = (int)f->out->n_found;
    f->out->found = arena_grow(f->arena, f->out->found, sizeof(void *), n, &f->cap);
    f->out->found[f->out->n_found++] = job;
}

// True when the folder is a job's, of whatever cluster.
static bool visit_job(struct finder *f, const char *path)
{
    struct store s = {.fd = -1};
    struct store_owner owner;
    if (store_open(&s, NULL, path, NULL))
        return false;
    bool is_job = !store_read_owner(&s, f->arena, &owner, NULL);
    if (is_job && strcmp(owner.cluster, f->cluster) == 0)
        add_job(f, &s, &owner);
    store_close(&s);
    return is_job;
}

static void walk_folders(struct finder *f, const char *path, int depth)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) && f->out->n_found < FOUND_MAX;) {
        char below[PATH_MAX];
        struct stat st;
        if (e->d_name[0] == '.' ||
            (size_t)snprintf(below, sizeof below, "%s/%s", path, e->d_name) >= sizeof below ||
            lstat(below, &st) || !S_ISDIR(st.st_mode))
            continue;
        if (!visit_job(f, below) && depth > 1)
            walk_folders(f, below, depth - 1);
    }
    if (d)
        closedir(d);
}

int finder_list(const char *root, const char *cluster, struct arena *a, Weft__V1__StorageDone *out,
                struct err *e)
{
    struct finder f = {.cluster = cluster, .arena = a, .out = out};
    if (!root)
        return err_set(e, ERR_INVALID, "this worker was started without --checkpoint-root");
    walk_folders(&f, root, DEPTH);
    return 0;
}
