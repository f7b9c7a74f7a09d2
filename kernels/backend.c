// SPDX-License-Identifier: Apache-2.0
// Finding, loading and checking a backend library. See backend.h.
//
// A library is used only if it has this program's ABI, names itself as the backend that was asked
// for, and fills every slot that is not optional. So a stale or foreign file is refused at start,
// not in the middle of a step.
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIRS = 3 };

static bool fills_slots(const struct backend *b)
{
    const struct backend_device *d = &b->device;
    const struct backend_memory *m = &b->memory;
    const struct backend_stream *s = &b->stream;
    const struct backend_event *ev = &b->event;
    const struct backend_graph *g = b->graph;
    const struct backend_choice *c = b->choice;
    const struct backend_collectives *l = b->collectives;
    return d->count && d->open && d->close && d->info && m->alloc && m->free && m->host_alloc &&
           m->host_free && s->create && s->destroy && s->sync && s->copy && s->fill_zero &&
           ev->create && ev->destroy && ev->record && ev->wait && ev->query && ev->sync &&
           (!g || (g->begin && g->end && g->launch && g->destroy)) &&
           (!c || (c->tune && c->read && c->write)) &&
           (!l || (l->load && l->id && l->open && l->ready && l->run && l->check && l->abort &&
                   l->alloc && l->close)) &&
           b->op.run;
}

static int open_library(const char *path, const char *name, const struct backend **out,
                        struct err *e)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_UNSUPPORTED, "cannot load '%s': %s", path, dlerror());
    const struct backend *b = dlsym(lib, "weft_backend");
    int rc = ERR_OK;
    if (!b)
        rc = err_set(e, ERR_UNSUPPORTED, "'%s' is no backend: it exports no weft_backend", path);
    else if (b->abi != BACKEND_ABI)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "'%s' has backend ABI %u, this program has %u: install both from one build",
                     path, b->abi, (unsigned)BACKEND_ABI);
    else if (!b->name || strcmp(b->name, name) != 0)
        rc = err_set(e, ERR_UNSUPPORTED, "'%s' is not the backend '%s'", path, name);
    else if (!fills_slots(b))
        rc = err_set(e, ERR_INTERNAL, "'%s' lacks functions that every backend must have", path);
    if (rc)
        dlclose(lib);
    else
        *out = b;
    return rc;
}

int backend_load(const char *name, const struct backend **out, struct err *e)
{
    size_t letters = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (!letters || letters > 31 || name[letters])
        return err_set(
            e, ERR_INVALID,
            "'%s' cannot be a backend's name: that has 1 to 31 letters a to z, digits and _", name);
    char self[PATH_MAX], beside[PATH_MAX + 16], path[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", self, PATH_MAX - 1);
    self[length > 0 ? length : 0] = 0; // "" when the kernel does not say
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    snprintf(beside, sizeof beside, "%s/../lib/weft", self);
    const char *dirs[DIRS] = {getenv("WEFT_BACKEND_DIR"), self, beside};
    for (int i = 0; i < DIRS; i++) {
        if (!dirs[i] || !dirs[i][0])
            continue;
        int n = snprintf(path, sizeof path, "%s/libweft_%s.so", dirs[i], name);
        if (n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0)
            return open_library(path, name, out, e);
    }
    return err_set(e, ERR_NOTFOUND,
                   "no libweft_%s.so in %s'%s' or '%s': devices of the kind %s need it; install it "
                   "there, or build it (make all, where the kind's compiler and libraries are)",
                   name, dirs[0] ? "$WEFT_BACKEND_DIR, " : "", self, beside, name);
}

int backend_check(const struct backend *b, const bool *needed, struct err *e)
{
    char names[512];
    size_t used = 0;
    int holes = 0;
    names[0] = 0;
    for (int op = 0; op < OP_COUNT; op++) {
        if (!needed[op] || b->op.run[op])
            continue;
        int n = snprintf(names + used, sizeof names - used, "%s%s", holes++ ? ", " : "",
                         op_name((enum op)op));
        if (n > 0 && used + (size_t)n < sizeof names)
            used += (size_t)n;
    }
    if (!holes)
        return ERR_OK;
    return err_set(e, ERR_UNSUPPORTED, "backend '%s' has no kernel for %s", b->name, names);
}

int backend_choices_changed(const char *before, const char *after)
{
    int changed = 0;
    for (size_t n; *before; before += n + (before[n] == '\n')) {
        bool found = false;
        n = strcspn(before, "\n");
        for (const char *line = after; *line && !found;) {
            size_t len = strcspn(line, "\n");
            found = len == n && memcmp(line, before, n) == 0;
            line += len + (line[len] == '\n');
        }
        changed += !found;
    }
    return changed;
}
