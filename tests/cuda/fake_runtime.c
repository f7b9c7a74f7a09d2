// SPDX-License-Identifier: Apache-2.0
// The fake CUDA runtime's devices and errors. See fake.h.
//
// WEFT_FAKE_CUDA, a list with commas:
//   devices:N      so many devices (1)           memory:BYTES  of each (8 GiB)
//   nodriver       no driver on the host         olddriver     one that serves CUDA 12.2
//   taken:BYTES    other processes have so much of each device's memory
//   mig            devices are parts of one
//   nodevice       a driver and no device        badarch:CODE  no kernel image for the device (209)
//   count:CODE     devices cannot be counted     open:CODE     nor one be made a thread's own
//   oom:N          the N-th cudaMalloc fails     sticky:N      the N-th kernel hits a wrong address
//   seed:N         queued work may run early, as this seed says
//   slow:US        every kernel takes so many µs of real time
//   driver:S       the driver takes S seconds to wake its devices, and as long at exit() to let go of them
//   stop:N         the N-th kernel never ends, nor does who waits for it
//   graph:N        the N-th graph finds no memory of the device, when it is uploaded or first launched
//   graph_hang:N   who makes the N-th graph never comes back
//   in_turn        a device that refuses to launch a kernel early
//   sm_80          a device, and code, of an earlier generation
//   orders         every launch runs in several orders and must leave the same bits (emulate.c)
#include "tests/cuda/fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNTIME = 13000, OLD_DRIVER = 12020, MOST_DEVICES = 16 };

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t failed[MOST_DEVICES];
static _Thread_local cudaError_t last;
static _Thread_local int current;

static void make_lock(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
}

void fake_lock(void)
{
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

// ---- the scene ---------------------------------------------------------------------------------

bool fake_scene(const char *name, long *n)
{
    const char *set = getenv("WEFT_FAKE_CUDA");
    size_t len = strlen(name);
    while (set && *set) {
        if (strncmp(set, name, len) == 0 && strchr(":,", set[len])) {
            if (n && set[len] == ':')
                *n = strtol(set + len + 1, NULL, 10);
            return true;
        }
        set = strchr(set, ',');
        set += set != NULL;
    }
    return false;
}

static int devices(void)
{
    long n = 1;
    fake_scene("devices", &n);
    return n > MOST_DEVICES ? MOST_DEVICES : (int)n;
}

static cudaError_t driver(void)
{
    long code = cudaErrorUnknown;
    if (fake_scene("count", &code))
        return (cudaError_t)code;
    if (fake_scene("nodriver", NULL) || fake_scene("olddriver", NULL))
        return cudaErrorInsufficientDriver;
    return fake_scene("nodevice", NULL) ? cudaErrorNoDevice : cudaSuccess;
}

static bool awake;

static void wake(void)
{
    long s = 0;
    fake_lock();
    if (!awake && fake_scene("driver", &s))
        sleep((unsigned)s);
    awake = true;
    fake_unlock();
}

__attribute__((destructor)) static void let_go(void)
{
    long s = 0;
    if (awake && fake_scene("driver", &s))
        sleep((unsigned)s);
}

// What is stopped holds the lock: who asks a stopped device for anything more waits too.
void fake_kernel_begins(void)
{
    static long count;
    long us = 0, n = 0;
    if (fake_scene("slow", &us))
        usleep((useconds_t)us);
    if (fake_scene("stop", &n) && ++count == n)
        for (;;)
            pause();
}

bool fake_kernel_fails(void)
{
    static long count;
    long n = 0;
    return fake_scene("sticky", &n) && ++count == n;
}

// ---- errors ------------------------------------------------------------------------------------

cudaError_t fake_error(cudaError_t rc)
{
    if (rc)
        last = rc;
    return rc;
}

cudaError_t fake_failed(void)
{
    return failed[current];
}

cudaError_t fake_failed_of(int device)
{
    return failed[device];
}

void fake_fail(int device, cudaError_t rc)
{
    if (!failed[device])
        failed[device] = rc;
}

int fake_device(void)
{
    return current;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = last;
    last = cudaSuccess;
    return rc ? rc : fake_failed();
}

cudaError_t cudaPeekAtLastError(void)
{
    return last ? last : fake_failed();
}

static const struct {
    cudaError_t rc;
    const char *name, *text;
} known[] = {
#define TOLD(code, text)  \
    {                     \
        code, #code, text \
    }
    TOLD(cudaSuccess, "no error"),
    TOLD(cudaErrorInvalidValue, "invalid argument"),
    TOLD(cudaErrorMemoryAllocation, "out of memory"),
    TOLD(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    TOLD(cudaErrorInsufficientDriver,
         "CUDA driver version is insufficient for CUDA runtime version"),
    TOLD(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    TOLD(cudaErrorInvalidDevice, "invalid device ordinal"),
    TOLD(cudaErrorInvalidDeviceFunction, "invalid device function"),
    TOLD(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    TOLD(cudaErrorNoKernelImageForDevice,
         "no kernel image is available for execution on the device"),
    TOLD(cudaErrorNotReady, "device not ready"),
    TOLD(cudaErrorNotSupported, "operation not supported"),
    TOLD(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    TOLD(cudaErrorHostMemoryAlreadyRegistered,
         "part or all of the requested memory range is already mapped"),
    TOLD(cudaErrorHostMemoryNotRegistered,
         "pointer does not correspond to a registered memory region"),
    TOLD(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    TOLD(cudaErrorStreamCaptureInvalidated,
         "operation failed due to a previous error during capture"),
    TOLD(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    TOLD(cudaErrorStreamCaptureIsolation,
         "dependency created on uncaptured work in another stream"),
    TOLD(cudaErrorCapturedEvent,
         "operation not permitted on an event last recorded in a capturing stream"),
    TOLD(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    TOLD(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    TOLD(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    TOLD(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS"),
    TOLD(cudaErrorSystemDriverMismatch,
         "system has unsupported display driver / cuda driver combination"),
    TOLD(cudaErrorUnknown, "unknown error"),
#undef TOLD
};

const char *cudaGetErrorName(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].rc == rc)
            return known[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].rc == rc)
            return known[i].text;
    return "unrecognized error code";
}

// ---- devices -----------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_scene("nodriver", NULL)    ? 0
               : fake_scene("olddriver", NULL) ? OLD_DRIVER
                                               : RUNTIME;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    wake();
    cudaError_t rc = driver();
    *n = rc ? 0 : devices();
    return fake_error(rc);
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= devices())
        return fake_error(cudaErrorInvalidDevice);
    long code = cudaErrorDevicesUnavailable;
    if (fake_scene("open", &code)) // a context is made, or found
        return fake_error((cudaError_t)code);
    current = device;
    return fake_error(fake_failed());
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

// An H200's figures under a name that nobody takes for one.
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    size_t left;
    if (device < 0 || device >= devices())
        return fake_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated%s", fake_scene("mig", NULL) ? " MIG 1g.18gb" : "");
    for (int i = 0; i < 16; i++)
        p->uuid.bytes[i] = (char)(16 * device + i);
    p->major = fake_scene("sm_80", NULL) ? 8 : 9;
    p->minor = 0;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->unifiedAddressing = 1;
    p->l2CacheSize = 50 << 20;
    return cudaMemGetInfo(&left, &p->totalGlobalMem);
}

cudaError_t cudaDeviceGetPCIBusId(char *to, int room, int device)
{
    snprintf(to, (size_t)room, "0000:%02x:00.0", 0x1b + device);
    return cudaSuccess;
}

// 0 and 1, 2 and 3, … are joined; others reach each other over PCI.
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int from,
                                      int to)
{
    *value = attribute == cudaDevP2PAttrAccessSupported || from / 2 == to / 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    fake_lock();
    cudaError_t rc = fake_refused_in_capture();
    if (!rc)
        fake_finish_all();
    rc = rc ? rc : fake_failed();
    fake_unlock();
    return fake_error(rc);
}

// ---- functions ---------------------------------------------------------------------------------

enum { MOST_FUNCTIONS = 512 };
static struct {
    const void *function;
    int shared;
} allowed[MOST_FUNCTIONS];
static int functions;

size_t fake_shared_allowed(const void *function)
{
    for (int i = 0; i < functions; i++)
        if (allowed[i].function == function)
            return (size_t)allowed[i].shared;
    return 48 << 10;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    int i = 0;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value > 227 << 10)
        return fake_error(cudaErrorInvalidValue);
    while (i < functions && allowed[i].function != function)
        i++;
    if (i == functions && ++functions > MOST_FUNCTIONS)
        abort();
    allowed[i].function = function;
    allowed[i].shared = value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function)
{
    long code = cudaErrorNoKernelImageForDevice;
    (void)function;
    memset(a, 0, sizeof *a);
    a->ptxVersion = a->binaryVersion = fake_scene("sm_80", NULL) ? 80 : 90;
    return fake_error(fake_scene("badarch", &code) ? (cudaError_t)code : fake_failed());
}
