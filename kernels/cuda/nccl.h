// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that we call. The library is loaded when a job's collectives are to go from
// device to device, and nothing is linked against it. Inside kernels/cuda/ only.
#pragma once
#include <nccl.h>

#define NCCL_CALLS(X)     \
    X(GetVersion)         \
    X(GetErrorString)     \
    X(GetLastError)       \
    X(GetUniqueId)        \
    X(CommInitRankConfig) \
    X(CommGetAsyncError)  \
    X(CommFinalize)       \
    X(CommDestroy)        \
    X(CommAbort)          \
    X(MemAlloc)           \
    X(MemFree)            \
    X(GroupStart)         \
    X(GroupEnd)           \
    X(AllReduce)          \
    X(ReduceScatter)      \
    X(AllGather)          \
    X(Broadcast)          \
    X(Send)               \
    X(Recv)

struct nccl {
#define X(name) __typeof__(nccl##name) *name;
    NCCL_CALLS(X)
#undef X
    // From 2.28 on; null: it is made of sends and receives.
    ncclResult_t (*AlltoAll)(const void *from, void *to, size_t count, ncclDataType_t type,
                             ncclComm_t comm, cudaStream_t stream);
};

// Of older ones a communicator that does not block may hang in an abort.
enum { NCCL_OLDEST = NCCL_VERSION(2, 27, 0) };

// Null, or why it cannot be loaded; `out` is then zero. The library is looked for once, and stays
// loaded. It reads its settings from the environment when it is first used: so the caller has set
// them.
const char *nccl_load(struct nccl *out);
