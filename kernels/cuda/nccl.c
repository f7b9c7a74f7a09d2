// SPDX-License-Identifier: Apache-2.0
// Loads NCCL. See nccl.h.
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static struct nccl loaded;
static const char *why_not;

static void load_library(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("/usr/local/cuda/lib64/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        why_not = "there is no libnccl.so.2";
        return;
    }
#define X(name)                                            \
    *(void **)&loaded.name = dlsym(library, "nccl" #name); \
    why_not = loaded.name ? why_not : "libnccl.so.2 lacks nccl" #name;
    NCCL_CALLS(X)
#undef X
    *(void **)&loaded.AlltoAll = dlsym(library, "ncclAlltoAll");
}

const char *nccl_load(struct nccl *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_library);
    *out = why_not ? (struct nccl){0} : loaded;
    return why_not;
}
