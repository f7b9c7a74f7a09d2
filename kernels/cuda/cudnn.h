// SPDX-License-Identifier: Apache-2.0
// The functions of cuDNN that we call. The library is loaded when a device is opened, and nothing
// is linked against it: a machine without it runs our own kernels. Inside kernels/cuda/ only.
#pragma once
#include <cudnn.h>

#define CUDNN_CALLS(X)          \
    X(GetVersion)               \
    X(Create)                   \
    X(Destroy)                  \
    X(SetStream)                \
    X(GetErrorString)           \
    X(GetLastErrorString)       \
    X(BackendCreateDescriptor)  \
    X(BackendDestroyDescriptor) \
    X(BackendSetAttribute)      \
    X(BackendGetAttribute)      \
    X(BackendFinalize)          \
    X(BackendExecute)

struct cudnn {
#define X(name) __typeof__(cudnn##name) *name;
    CUDNN_CALLS(X)
#undef X
};

// Older versions do not mask keys after the last multiple of 128 in the softmax.
enum { CUDNN_OLDEST = 91600 };

// Null, or why it cannot be used; `out` is then zero. The library is looked for once, and stays loaded.
const char *cudnn_load(struct cudnn *out);
