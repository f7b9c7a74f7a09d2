// SPDX-License-Identifier: Apache-2.0
// What CUDA's errors become, and the binding of a device to the thread that calls it.
//
// A device serves the thread that calls it: CUDA's current device is a thread's own, so every entry
// binds it (device_bind), which costs a comparison. Errors that CUDA calls sticky leave the context
// useless; the first one is kept and repeated, so that what is logged last still names the cause.
#include "kernels/cuda/cuda_device.h"

#include <stdio.h>
#include <string.h>

// Errors after which this process can run nothing on the device any more.
static bool is_sticky(cudaError_t rc)
{
    static const cudaError_t sticky[] = {
        cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,       cudaErrorAssert,
        cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorLaunchFailure,
        cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorUnknown,
        cudaErrorCudartUnloading,     cudaErrorContained,           cudaErrorExternalDevice,
        cudaErrorTensorMemoryLeak,    cudaErrorMpsClientTerminated,
    };
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++)
        if (rc == sticky[i])
            return true;
    return false;
}

#define OTHER_BUILD ": this build has kernels for sm_80, sm_90 and sm_100; build it for this device"
#define WHICH_OP    ": run with CUDA_LAUNCH_BLOCKING=1 to learn which op it is"

// Advice on what to do about an error, beyond CUDA's own text.
const char *cuda_advice(cudaError_t rc)
{
    static const struct {
        cudaError_t rc;
        const char *say;
    } known[] = {
        {cudaErrorNoKernelImageForDevice, OTHER_BUILD},
        {cudaErrorInvalidDeviceFunction, OTHER_BUILD}, // what some runtimes return instead
        {cudaErrorDevicesUnavailable,
         ": another process holds it exclusively (nvidia-smi shows who)"},
        {cudaErrorSystemNotReady, ": the fabric manager is not running"},
        {cudaErrorECCUncorrectable, ": its memory is failing (nvidia-smi -q -d ECC)"},
        {cudaErrorIllegalAddress, WHICH_OP},
        {cudaErrorMisalignedAddress, WHICH_OP},
        {cudaErrorIllegalInstruction, WHICH_OP},
        {cudaErrorLaunchFailure, WHICH_OP},
        {cudaErrorMemoryAllocation, ": another process may hold its memory (nvidia-smi shows who)"},
        {cudaErrorSystemDriverMismatch,
         ": the driver's library and its kernel module have different versions: restart the host "
         "after an update, or take another libcuda.so.1 out of LD_LIBRARY_PATH"},
        {cudaErrorCompatNotSupportedOnDevice,
         ": take CUDA's compatibility package out of LD_LIBRARY_PATH and install a newer driver"},
        {cudaErrorStubLibrary, ": take the folder of CUDA's stubs out of LD_LIBRARY_PATH"},
        {cudaErrorOperatingSystem,
         ": is nvidia_uvm loaded (nvidia-modprobe -u), and may this user open /dev/nvidia*?"},
        {cudaErrorMpsConnectionFailed, ": its MPS daemon does not answer"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].rc == rc)
            return known[i].say;
    return "";
}

static int repeat_failure(const struct device *d, struct err *e)
{
    return err_set(e, d->failed.code, "%s", d->failed.text);
}

int cuda_check(struct device *d, struct stream_q *q, const char *call, cudaError_t rc,
               struct err *e)
{
    char op[64] = "";
    struct err said = {0};
    if (rc == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); // clears it, so that it is reported once
    if (d->failed.code)
        return repeat_failure(d, e);
    if (q && q->any)
        snprintf(op, sizeof op, " behind op '%s'", op_name(q->last));
    err_set(&said, ERR_DEVICE, "cuda device %d: %.*s%s: %s (%s)%s", d->ordinal,
            (int)strcspn(call, "("), call, op, cudaGetErrorString(rc), cudaGetErrorName(rc),
            cuda_advice(rc));
    if (is_sticky(rc))
        d->failed = said;
    return err_set(e, ERR_DEVICE, "%s", said.text);
}

int op_launched(struct stream_q *q, const struct op_call *c, struct err *e)
{
    (void)c;
    return cuda_check(q->device, q, "launch", cudaGetLastError(), e);
}

int device_bind(struct device *d, struct err *e)
{
    static _Thread_local int bound = -1;
    if (d->failed.code)
        return repeat_failure(d, e);
    if (bound == d->ordinal)
        return 0;
    int rc = CUDA(d, NULL, e, cudaSetDevice(d->ordinal));
    bound = rc ? -1 : d->ordinal;
    return rc;
}

void device_abandon(struct device *d)
{
    __atomic_store_n(&d->abandoned, true, __ATOMIC_RELEASE);
}

bool device_is_abandoned(const struct device *d)
{
    return __atomic_load_n(&d->abandoned, __ATOMIC_ACQUIRE);
}
