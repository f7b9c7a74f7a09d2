// SPDX-License-Identifier: Apache-2.0
// Libraries of a cuDNN, for test_sdpa, whose every call says a version: libcudnn_graph.so.9 that of
// DNN_VERSION; without one libcudnn.so.9, which loads the other by its name and asks it, as the real
// one does.
#include <dlfcn.h>
#include <stddef.h>

#include "kernels/cuda/cudnn.h"

__attribute__((used)) static size_t version(void)
{
#ifdef DNN_VERSION
    return DNN_VERSION;
#else
    void *graph = dlopen("libcudnn_graph.so.9", RTLD_NOW | RTLD_LOCAL);
    size_t (*ask)(void) = NULL;
    if (graph)
        *(void **)&ask = dlsym(graph, "cudnnGetVersion");
    return ask ? ask() : 0;
#endif
}

// The header declares them as they are called.
#define X(name) __asm__(".globl cudnn" #name "\n.set cudnn" #name ", version");
CUDNN_CALLS(X)
#undef X
