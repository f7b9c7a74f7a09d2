// SPDX-License-Identifier: Apache-2.0
// What an NCCL of the tests is made of: between fake_nccl.c (its calls) and fake_nccl_run.c (what its
// calls do when their stream comes to them).
#pragma once
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/nccl.h"
#include "tests/cuda/fake_work.h"

enum {
    MOST_RANKS = 16,
    MOST_COMMS = 64,
    MOST_CALLS = 64,
    RING = 1 << 16,
};

struct ring {
    _Atomic uint64_t sent, taken; // bytes
    unsigned char bytes[RING];
};

struct before { // calls on a communicator
    uint64_t nonce, calls;
};

struct process { // and its file of shared memory (fake_nccl_wait.c)
    int pid, file;
};

struct shared {
    uint64_t nonce;
    _Atomic unsigned joined, finalized; // members, a bit each
    _Atomic uint64_t place[MOST_RANKS]; // of each member's device: a hash of its host and number
    struct process process[MOST_RANKS];
    struct ring ring[MOST_RANKS][MOST_RANKS]; // [from][to]
};

struct identity {
    int pid, file;
    uint64_t nonce;
};

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, RECV };

struct call {
    enum kind kind;
    const char *from;
    char *to;
    size_t count; // as the caller says it: of a slice where NCCL counts so
    ncclDataType_t type;
    ncclRedOp_t reduce;
    int peer; // or the root
};

struct group {
    struct group *next;
    struct ncclComm *comm;
    cudaStream_t stream;
    struct call call[MOST_CALLS];
    int calls;
    uint64_t number; // of its first call
};

struct ncclComm {
    struct shared *shared; // null: its identity is nobody's
    uint64_t nonce;
    int n, rank, device;
    int refs;            // its owner's, and of groups
    void *memory;        // of the device
    _Atomic bool inside; // a thread is in one of its calls
    uint64_t calls;
    struct group *ended; // a group that is not yet on its stream
    bool asked;          // whether it is
    bool finalizing;
    _Atomic int error; // ncclResult_t
    _Atomic bool aborted;
};

// Ends the program, for what NCCL does not allow.
#define END_PROGRAM(c, ...)                                                                    \
    do {                                                                                       \
        fprintf(stderr, "fake nccl: rank %d of %d: ", (c) ? (c)->rank : -1, (c) ? (c)->n : 0); \
        fprintf(stderr, __VA_ARGS__);                                                          \
        fputc('\n', stderr);                                                                   \
        abort();                                                                               \
    } while (0)

// ---- fake_nccl_run.c ---------------------------------------------------------------------------

extern const char *const call_names[]; // by enum kind
size_t type_size(ncclDataType_t t);
// Calls [i, end) of a group at once: one collective, or all its sends and receives. False: the
// communicator was aborted meanwhile.
bool perform_calls(const struct group *g, int i, int end);

// ---- fake_nccl_wait.c --------------------------------------------------------------------------

struct process wait_process(void); // this one
// The device is in calls [call, end) of a communicator, with these members, and leaves them.
void wait_enter(const struct ncclComm *c, uint64_t call, uint64_t end, const bool *peers);
void wait_leave(void);
// Ends the program if what the device is in never ends.
void wait_check(const struct ncclComm *c);
