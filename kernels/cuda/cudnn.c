// SPDX-License-Identifier: Apache-2.0
// Loads cuDNN. See cudnn.h.
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <stddef.h>

static void *find_library(void)
{
    static const char *const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

const char *cudnn_load(struct cudnn *out)
{
    const char *why = NULL;
    *out = (struct cudnn){.library = find_library()};
    if (!out->library)
        return "there is no libcudnn.so.9";
#define X(name)                                                \
    *(void **)&out->name = dlsym(out->library, "cudnn" #name); \
    why = out->name ? why : "libcudnn.so.9 lacks cudnn" #name;
    CUDNN_CALLS(X)
#undef X
    if (!why && out->GetVersion() < CUDNN_OLDEST)
        why = "cuDNN is older than 9.16";
    if (why)
        cudnn_unload(out);
    return why;
}

void cudnn_unload(struct cudnn *c)
{
    if (c->library)
        dlclose(c->library);
    *c = (struct cudnn){0};
}
