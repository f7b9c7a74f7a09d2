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

// The folder of the running program, without a slash behind; "" when the kernel does not say.
static void find_program_dir(char dir[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
}

static bool is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n < 32 && name[n] == 0;
}

static bool fills_device(const struct backend_device *d)
{
    return d->count && d->open && d->close && d->info;
}

static bool fills_memory(const struct backend_memory *m)
{
    return m->alloc && m->free && m->host_alloc && m->host_free;
}

static bool fills_stream(const struct backend_stream *s)
{
    return s->create && s->destroy && s->sync && s->copy && s->fill_zero;
}

static bool fills_event(const struct backend_event *ev)
{
    return ev->create && ev->destroy && ev->record && ev->wait && ev->query && ev->sync;
}

static bool fills_graph(const struct backend_graph *g)
{
    return !g || (g->begin && g->end && g->launch && g->destroy);
}

static bool fills_choice(const struct backend_choice *c)
{
    return !c || (c->tune && c->read && c->write);
}

static bool fills_slots(const struct backend *b)
{
    return fills_device(&b->device) && fills_memory(&b->memory) && fills_stream(&b->stream) &&
           fills_event(&b->event) && fills_graph(b->graph) && fills_choice(b->choice) && b->op.run;
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
    if (!is_name(name))
        return err_set(
            e, ERR_INVALID,
            "'%s' cannot be a backend's name: that has 1 to 31 letters a to z, digits and _", name);
    char self[PATH_MAX], beside[PATH_MAX + 16], path[PATH_MAX + 64];
    find_program_dir(self);
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

static bool has_line(const char *text, const char *line, size_t n)
{
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (len == n && memcmp(text, line, n) == 0)
            return true;
        text += len + (text[len] == '\n');
    }
    return false;
}

int backend_choices_changed(const char *before, const char *after)
{
    int changed = 0;
    while (*before) {
        size_t len = strcspn(before, "\n");
        changed += !has_line(after, before, len);
        before += len + (before[len] == '\n');
    }
    return changed;
}
