// SPDX-License-Identifier: Apache-2.0
// The transport contract: what carries collectives between the devices of an attempt's ranks.
//
// A transport is a table of functions. The executor knows this table alone: it prepares each
// collective of a program once, and every step says "start it, on this stream" and later "wait".
// Whether the bytes go through the hosts' memory or from device to device, and who moves them
// meanwhile, is the transport's own business. `host_transport` (host_transport.c) carries them
// through the hosts: shared memory, TCP, and windows that stage what lies on a device.
// `device_transport` (device_transport.c) lets the backend carry them. README.md says what a file
// for another one fills in.
//
// A transport stands on a world (collective.h): the processes have met there, see each other die
// and break together. It may use the world's own collectives to agree with its peers while it
// opens.
//
//   open ──► memory ──► communicator… ──► prepare… ──► settle ──┬──► start ──► wait ──┬──► close
//                                                               └──────◄──────────────┘
//
// The stream's order counts: `start` reads the operand as the work that was queued on q before it
// leaves it, and work that is queued on q after `wait` sees the result. Between the two the plan
// keeps operand and result in place, and nothing queued touches them. Neither call needs to wait
// for the device, nor the device for the host: a transport of the device's own queues its work
// behind events and returns. One that needs the host (host_transport) blocks it in `wait`, and in
// `start` where the operand must be there first.
//
// The starts of all ranks lie in one order: if each rank did what it starts strictly one after the other,
// each behind the work that was queued on q before it, nothing would wait for ever. The compiler proves
// that (verify_stages). So a transport may do so, or work on several communicators at once. Waits may
// come in different orders on different ranks: what is started moves without the others' wait.
//
// The thread that drives the device calls everything but `abort`. Errors are those of collective.h:
// ERR_PEER names the rank that died, ERR_TIMEOUT who did not come, ERR_ABORTED says why; a fault of
// the device is the backend's ERR_DEVICE. After any of them the attempt is over.
#pragma once
#include "kernels/backend.h"
#include "worker/collective/collective.h"

struct fabric;     // an opened transport: its own, as is the next
struct collective; // prepared: one call, or a group of calls of one communicator

struct fabric_options {
    struct world *world; // borrowed, as is all of this
    const struct backend *backend;
    struct device *device;
};

struct library_memory {
    int communicators;
    uint64_t bytes; // 0: not known
};

struct transport {
    // True: start and wait only queue work on q, and what they queue may be held in a captured
    // graph (backend.h) and replayed. Then the executor captures them with the ops around them. While
    // captured neither waits for another rank, whose capture may have failed. What was captured is
    // first started once more by itself; graphs are launched once all ranks have theirs.
    bool captured;

    // Every rank of the world opens. `close` comes when the streams are idle or the device failed:
    // it frees all that was prepared, and the memory.
    int (*open)(const struct fabric_options *o, struct fabric **out, struct err *e);
    void (*close)(struct fabric *f); // null is fine

    // Optional. Any thread, once: the attempt is over (world_abort calls it). What is on its way on
    // the device must end, with whatever result.
    void (*abort)(struct fabric *f, const char *why);

    // The memory that collectives touch, as ops address it, `bytes` of it (may be 0: then null);
    // every buffer that is prepared lies in it. Every rank calls it once. On a device with memory
    // of its own it comes from the backend's `alloc`, so that the plan's count of bytes holds.
    int (*memory)(struct fabric *f, uint64_t bytes, void **out, struct err *e);

    // The group of `ranks` (world ranks in the order of their coordinates, this one among them)
    // gets the next number from 0, at most COMMUNICATORS of them. Members may come to theirs in
    // different orders; it waits for none of them.
    int (*communicator)(struct fabric *f, const char *name, const int *ranks, int n, int *out,
                        struct err *e);

    // What one start is to do: n calls, which touch different buffers. A transport of devices makes one
    // launch of them; one of hosts starts them one by one. Their results are there together. `calls` have
    // the device's addresses, and live as long as the fabric.
    int (*prepare)(struct fabric *f, int communicator, const struct collective_args *calls, int n,
                   struct collective **out, struct err *e);
    // Optional. All ranks call it, after the last prepare and before the first start: makes ready what
    // would else be made by the first starts. What lies in the memory is zero, and so it stays.
    // *took (may be null) is what the library has taken of the device since, and for how many
    // communicators; what others took or freed meanwhile counts too.
    int (*settle)(struct fabric *f, struct library_memory *took, struct err *e);

    int (*start)(struct collective *c, struct stream_q *q, struct err *e);
    int (*wait)(struct collective *c, struct stream_q *q, struct err *e);

    // Optional. The executor calls it between what it queues, and after it has waited for the device:
    // carries on what is open without waiting for anybody, and says what went wrong meanwhile. What
    // the device made since then means nothing.
    int (*try)(struct fabric *f, struct err *e);
};

extern const struct transport host_transport, device_transport;
