// SPDX-License-Identifier: Apache-2.0
// Loads cuDNN. See cudnn.h.
//
// The linker's search ends at the first libcudnn.so.9, however old it is. So if that one is too old,
// each folder of LD_LIBRARY_PATH is looked at, and CUDA's own. cuDNN is several libraries that load
// each other by name, and what is loaded once is found by its name from then on. For this reason a
// version is asked for in a namespace of its own, and where a folder was chosen its libraries are
// loaded before the one that would look for them. All of it stays loaded to the end of the process,
// which has room for few namespaces.
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const parts[] = {"_graph",
                                    "_ops",
                                    "_cnn",
                                    "_adv",
                                    "_heuristic",
                                    "_engines_precompiled",
                                    "_engines_runtime_compiled"};

// `folder` ends with a slash; empty: the linker's search.
static void print_path(char path[PATH_MAX], const char *folder, const char *part)
{
    snprintf(path, PATH_MAX, "%slibcudnn%s.so.9", folder, part);
}

// Returns the version of the cuDNN in a folder; 0: there is none.
static size_t find_version(const char *folder)
{
    char path[PATH_MAX];
    size_t (*version)(void) = NULL, found;
    print_path(path, folder, "_graph");
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&version = dlsym(library, "cudnnGetVersion");
    found = version ? version() : 0;
    if (library)
        dlclose(library);
    return found;
}

// Whether the folder has a cuDNN that can be used. *old: there is one that cannot.
static bool has_usable(const char *folder, bool *old)
{
    size_t version = find_version(folder);
    *old = *old || (version && version < CUDNN_OLDEST);
    return version >= CUDNN_OLDEST;
}

// Finds the folder of a cuDNN that can be used, in the order in which the linker looks. False: there is none.
static bool find_folder(char folder[PATH_MAX], bool *old)
{
    const char *at = getenv("LD_LIBRARY_PATH");
    folder[0] = 0;
    if (has_usable(folder, old))
        return true;
    for (size_t n; at && *at; at += n + (at[n] != 0)) {
        n = strcspn(at, ":");
        if (n && snprintf(folder, PATH_MAX, "%.*s/", (int)n, at) < PATH_MAX &&
            has_usable(folder, old))
            return true;
    }
    strcpy(folder, "/usr/local/cuda/lib64/");
    return has_usable(folder, old);
}

static struct cudnn loaded;
static const char *why_not;

static void load_library(void)
{
    char folder[PATH_MAX], path[PATH_MAX];
    bool old = false;
    if (!find_folder(folder, &old)) {
        why_not = old ? "cuDNN is older than 9.16" : "there is no libcudnn.so.9";
        return;
    }
    for (size_t i = 0; folder[0] && i < sizeof parts / sizeof *parts; i++) {
        print_path(path, folder, parts[i]);
        (void)dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    print_path(path, folder, "");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        why_not = "libcudnn.so.9 does not load";
        return;
    }
#define X(name)                                             \
    *(void **)&loaded.name = dlsym(library, "cudnn" #name); \
    why_not = loaded.name ? why_not : "libcudnn.so.9 lacks cudnn" #name;
    CUDNN_CALLS(X)
#undef X
}

const char *cudnn_load(struct cudnn *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_library);
    *out = why_not ? (struct cudnn){0} : loaded;
    return why_not;
}
