// SPDX-License-Identifier: Apache-2.0
// Loads cuDNN. See cudnn.h.
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <stddef.h>

const char *cudnn_load(struct cudnn *out)
{
    const char *why = NULL;
    *out = (struct cudnn){.library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL)};
    if (!out->library)
        out->library = dlopen("/usr/local/cuda/lib64/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
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
