// SPDX-License-Identifier: Apache-2.0
// Paths of a job against the roots of the known hosts; see job_paths.h.
#include "coordinator/decide/job_paths.h"

#include "common/base/root.h"
#include "common/ckpt/source.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_record.h"

// A worker without a root takes any path.
static bool lies_beneath(const char *root, const char *path)
{
    const char *relative;
    return !root_relative(root, path, &relative, NULL);
}

static void check_path(const struct coord *c, const char *key, const char *path, bool checkpoint,
                       struct buf *no)
{
    const char *flag = checkpoint ? "--checkpoint-root" : "--data-root", *root = NULL;
    list_for_each (it, &c->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        if (!h->ndevices) // not registered since the restart
            return;
        root = checkpoint ? h->about->checkpoint_root : h->about->data_root;
        if (lies_beneath(root, path))
            return;
    }
    if (root)
        buf_printf(no, "%s: %s leaves the %s of every worker (of one it is %s)\n", key, path, flag,
                   root);
}

static void check_source(const struct coord *c, const char *from, struct buf *no)
{
    struct err e = {0};
    struct arena a = {0}; // paths are checked between steps too, where there is no c->out
    const char *place;
    const struct job_record *of = NULL;
    int64_t step;
    source_split(from, &a, &place, &step);
    if (source_is_path(place))
        check_path(c, "checkpoint.from", place, true, no);
    else if (*place && !(of = job_of(c, place, &e)))
        buf_printf(no, "checkpoint.from: %s; a path begins with ./ or /\n", e.text);
    else if (of && (!*of->store || of->deleting))
        buf_printf(no, "checkpoint.from: job %.8s, called %s, %s\n", of->id, of->name,
                   of->deleting ? "is being deleted" : "has no checkpoints yet: it has not begun");
    arena_clear(&a);
}

const struct job_record *job_paths_source(const struct coord *c, const char *from, struct arena *a,
                                          int64_t *step)
{
    const char *place;
    source_split(from, a, &place, step);
    return *place && !source_is_path(place) ? job_of(c, place, NULL) : NULL;
}

void job_paths_check(const struct coord *c, const Weft__Plan__JobFacts *facts, struct buf *no)
{
    for (size_t i = 0; i < facts->n_data; i++)
        check_path(c, facts->data[i]->key, facts->data[i]->path, false, no);
    check_path(c, "checkpoint.dir", facts->checkpoint_dir, true, no);
    check_source(c, facts->source, no);
}
