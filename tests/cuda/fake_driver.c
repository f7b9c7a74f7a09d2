// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a device: takes whatever code it is given and never runs it. cuDNN looks
// for libcuda.so.1 when it compiles an engine, though it needs no device for that.
#include <stddef.h>

enum { NO_ERROR = 0, NO_DEVICE = 100 };

#define TAKES(name)      \
    int name(void);      \
    int name(void)       \
    {                    \
        return NO_ERROR; \
    }
TAKES(cuCtxGetCurrent)
TAKES(cuCtxGetLimit)
TAKES(cuCtxPopCurrent)
TAKES(cuCtxPushCurrent)
TAKES(cuDeviceGet)
TAKES(cuKernelGetAttribute)
TAKES(cuKernelSetAttribute)
TAKES(cuLaunchCooperativeKernel)
TAKES(cuLaunchKernel)
TAKES(cuLaunchKernelEx)
TAKES(cuLibraryLoadFromFile)
TAKES(cuLibraryUnload)
TAKES(cuLinkAddData)
TAKES(cuLinkComplete)
TAKES(cuLinkCreate)
TAKES(cuLinkDestroy)
TAKES(cuOccupancyMaxPotentialClusterSize)
TAKES(cuStreamGetCtx)

// What gives a handle back gives one that stands for nothing.
#define GIVES(name)         \
    int name(void **out);   \
    int name(void **out)    \
    {                       \
        static int nothing; \
        *out = &nothing;    \
        return NO_ERROR;    \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryGetModule)
GIVES(cuModuleGetFunction)
GIVES(cuKernelGetFunction)

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    (void)flags;
    return NO_DEVICE;
}

int cuDeviceGetCount(int *out);
int cuDeviceGetCount(int *out)
{
    *out = 0;
    return NO_DEVICE;
}

int cuDriverGetVersion(int *out);
int cuDriverGetVersion(int *out)
{
    *out = 13000;
    return NO_ERROR;
}

int cuGetErrorString(int rc, const char **out);
int cuGetErrorString(int rc, const char **out)
{
    *out = rc == NO_DEVICE ? "there is no device" : "no error";
    return NO_ERROR;
}

int cuGetErrorName(int rc, const char **out);
int cuGetErrorName(int rc, const char **out)
{
    return cuGetErrorString(rc, out);
}
