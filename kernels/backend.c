// SPDX-License-Identifier: Apache-2.0
// Finding, loading and checking a backend library. See backend.h.
//
// A library is used only if it speaks this ABI, says the name it was asked for by, and fills every
// slot that is not optional: a stale or foreign file ends here, not in the middle of a step.
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIRS = 3 };

// The folder of the running program, without a slash behind; "" when the kernel does not say.
static void program_dir(char dir[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
}

static bool name_ok(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n < 32 && name[n] == 0;
}

static bool slots_filled(const struct backend *b)
{
    return b->device_count && b->device_open && b->device_close && b->device_info && b->alloc &&
           b->free && b->host_alloc && b->host_free && b->stream_new && b->stream_free &&
           b->stream_sync && b->event_new && b->event_free && b->event_record && b->event_wait &&
           b->event_query && b->event_sync && b->copy && b->fill_zero && b->ops &&
           !b->tune == !b->algorithms_import && !b->tune == !b->algorithms_export;
}

static int open_at(const char *path, const char *name, const struct backend **out, struct err *e)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_UNSUPPORTED, "cannot load '%s': %s", path, dlerror());
    const struct backend *b = dlsym(lib, "weft_backend");
    int rc = ERR_OK;
    if (!b)
        rc = err_set(e, ERR_UNSUPPORTED, "'%s' is no backend: it lacks weft_backend", path);
    else if (b->abi != BACKEND_ABI)
        rc = err_set(e, ERR_UNSUPPORTED, "'%s' speaks backend ABI %u, this program %u", path,
                     b->abi, (unsigned)BACKEND_ABI);
    else if (!b->name || strcmp(b->name, name) != 0)
        rc = err_set(e, ERR_UNSUPPORTED, "'%s' is not the backend '%s'", path, name);
    else if (!slots_filled(b))
        rc = err_set(e, ERR_INTERNAL, "'%s' leaves required functions empty", path);
    if (rc)
        dlclose(lib);
    else
        *out = b;
    return rc;
}

int backend_load(const char *name, const struct backend **out, struct err *e)
{
    if (!name_ok(name))
        return err_set(e, ERR_INVALID, "'%s' is no name of a backend", name);
    char self[PATH_MAX], beside[PATH_MAX + 16], path[PATH_MAX + 64];
    program_dir(self);
    snprintf(beside, sizeof beside, "%s/../lib/weft", self);
    const char *dirs[DIRS] = {getenv("WEFT_BACKEND_DIR"), self, beside};
    for (int i = 0; i < DIRS; i++) {
        if (!dirs[i] || !dirs[i][0])
            continue;
        int n = snprintf(path, sizeof path, "%s/libweft_%s.so", dirs[i], name);
        if (n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0)
            return open_at(path, name, out, e);
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
        if (!needed[op] || b->ops[op])
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
