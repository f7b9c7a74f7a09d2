// SPDX-License-Identifier: Apache-2.0
// The backend contract: devices, memory, streams, events, graphs, choices of algorithms and ops
// behind a C ABI, a table of functions for each of these nouns. README.md explains the whole.
//
// A backend is a shared library, `libweft_NAME.so`, loaded by weft-rank alone (backend_load); it
// exports one symbol, `weft_backend`, of type `const struct backend`. No code above this header
// knows which backend runs, and none follows a device pointer.
//
// Order of calls: device.open → memory, streams, events → ops → … → device.close, which frees what
// is left. One host thread drives a device; `stream.copy` alone may be called from a second one on
// a stream of its own. Work on one stream runs in order; streams are joined by events. A CPU
// backend may finish everything inside the call: then `event.query` is always true and waits are
// free.
// Once a device has failed, every call repeats its first error: ERR_DEVICE, with op and device. The
// rank then ends with 71.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/op/collective_args.h"
#include "common/op/op.h"

#define BACKEND_ABI 6

struct device; // the backend's own
struct stream_q;
struct event;
struct device_communicator;

struct device_options {
    int ordinal;        // which accelerator; CPU: ignored
    int threads;        // CPU: compute threads of this device, ≥ 1
    bool deterministic; // use only algorithms that give the same bits twice
    const char *cache;  // folder for timings that outlive the process; null: none are kept
};

struct device_info {
    char model[64];      // "cpu", "NVIDIA H200"
    char isa[32];        // "avx512", "sm_90"
    char libraries[128]; // "kernels 2 onednn 2.6.3": goes into the numerics record
    uint64_t memory;     // bytes
    uint64_t allocated;  // bytes that alloc handed out and nobody freed
    int threads;
    bool deterministic; // a step run twice gives the same bits: it was opened so, or always does
    bool shares_host;   // memory is the host's, shared with the host's other devices
    // What identifies an accelerator to people; empty where the backend does not know.
    char uuid[48];   // "GPU-5b3f…"
    char pci[24];    // "0000:1b:00.0"
    char driver[32]; // "13.0": the newest CUDA that the driver serves
    char peers[256]; // "1 nvlink, 2 pcie": devices whose memory it reaches, and over what
};

typedef int (*backend_op)(struct stream_q *q, const struct op_call *call, struct err *e);
typedef int (*backend_many)(struct stream_q *q, const struct op_call *calls, int n, struct err *e);

// ---- devices: found, opened, described, closed ----
struct backend_device {
    int (*count)(struct err *e); // how many there are; −1: `e` says why they cannot be counted
    int (*open)(const struct device_options *o, struct device **out, struct err *e);
    void (*close)(struct device *d);
    void (*info)(const struct device *d, struct device_info *out);
    // Optional: generates the code that libraries would generate at their first use, so that it can be
    // done while something else is waited for. Any thread may call it at any time, without a device.
    void (*warm_up)(void);
};

// ---- memory: the device's own, and memory of the host that the device reads fast ----
struct backend_memory {
    // A private region of the device (CPU: huge pages, touched by the threads that compute on it).
    int (*alloc)(struct device *d, size_t bytes, void **out, struct err *e);
    void (*free)(struct device *d, void *p);
    // Optional: how many bytes of the device nobody has taken, of this process or any other.
    int (*left)(struct device *d, uint64_t *bytes, struct err *e);
    // Optional: makes memory that somebody else mapped (a collective window) usable by ops. Without it ops
    // may use any host memory.
    int (*adopt)(struct device *d, void *p, size_t bytes, struct err *e);
    // Host memory that the device copies from at full speed (staging).
    int (*host_alloc)(struct device *d, size_t bytes, void **out, struct err *e);
    void (*host_free)(struct device *d, void *p);
};

// ---- streams: work that runs in the order in which it was queued ----
enum stream_priority { STREAM_USUAL, STREAM_URGENT }; // urgent: its work goes first where both wait
struct backend_stream {
    int (*create)(struct device *d, enum stream_priority priority, struct stream_q **out,
                  struct err *e);
    void (*destroy)(struct stream_q *q);
    int (*sync)(struct stream_q *q, struct err *e); // the host waits until all of it is done
    // Bytes between host and device or within the device.
    int (*copy)(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e);
    int (*fill_zero)(struct stream_q *q, void *to, size_t bytes, struct err *e);
    // Optional: queues a mark. When q comes to it, words[0] becomes `value` and then words[1] grows by
    // `add`, and the host sees both while later work of q still runs. `words` lie in memory of host_alloc.
    // Only marks of one stream write a pair of words; the host may write them before the first mark. A mark
    // is captured like an op, and each replay marks again: if `add` is not 0, words[1] distinguishes one
    // replay from the next. A host that reads words[1] and then words[0] finds a value at least as new as
    // the count. Without this slot the host knows only what events say.
    int (*mark)(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t add, struct err *e);
};

// ---- events: points of a stream that other streams and the host can wait for ----
// One that was never recorded counts as done.
struct backend_event {
    int (*create)(struct device *d, struct event **out, struct err *e);
    void (*destroy)(struct event *ev);
    int (*record)(struct stream_q *q, struct event *ev, struct err *e);
    int (*wait)(struct stream_q *q, struct event *ev, struct err *e); // q waits for ev
    int (*query)(struct event *ev, bool *done, struct err *e);
    int (*sync)(struct event *ev, struct err *e); // the host waits for ev
};

// ---- graphs: a stream's work recorded once and launched again and again ----
// What the calling thread queues on q before `end` is recorded, not run; `end` takes the memory for it.
struct backend_graph {
    int (*begin)(struct stream_q *q, struct err *e);
    int (*end)(struct stream_q *q, void **graph, struct err *e);
    int (*launch)(struct stream_q *q, void *graph, struct err *e);
    void (*destroy)(void *graph);
};

// ---- choices of algorithms ----
// A library may compute one product in several ways, which differ in speed and rounding.
struct backend_choice {
    // Called once for each bound call before step 0: settles the choice for the call's key (shape, dtypes,
    // layout, alignment). A choice that was read stands if it runs here. Else, with `time`, it comes from
    // the cache of earlier timings on disk, or is the fastest of a few that are timed now; without it, or if
    // not tuned, it is what the library names first. Reads the call's inputs and writes its outputs and
    // workspace: nothing of value may lie there. Does nothing for ops that have no choice. Waits for the
    // device; must not be called while capturing.
    int (*tune)(struct stream_q *q, const struct op_call *call, bool time, struct err *e);
    // Takes choices that `write` wrote, here or elsewhere. Several texts add up: of two lines with one key
    // the later one counts. What is settled already stays. ERR_UNSUPPORTED: they are another device's or
    // library's; ERR_INVALID: the text is malformed; in both cases nothing is taken. If a line that was read
    // is not among those that `write` gives after tuning, numerics have changed (backend_choices_changed).
    int (*read)(struct device *d, const char *text, struct err *e);
    // Appends all choices, read and settled: a header line (device model, library, whether it is
    // deterministic), then a line for each, sorted. Ranks agree on this text; the numerics record keeps it.
    int (*write)(struct device *d, struct buf *out, struct err *e);
};

// ---- collectives: between devices of several processes, without their hosts ----
// A communicator joins n devices, one of each process, with coordinates from 0:
//
//   load ──► id (one member; its caller sends it to the others) ──► open (all) ──► ready… ──► run… ──► close
//                                                                    └──► abort ◄──────────────┘
//
// No call waits for another member. All members run the same calls in the same order, and the calls of
// all communicators lie in one order: a device may do them strictly one after the other, as they were run.
// What a peer's death does is not said: `check` may find it, or a call never ends on its stream until
// `abort`. The thread that drives the device calls all but `check` and `abort`.
enum { COMMUNICATOR_ID = 128 }; // bytes
struct collectives_library {
    char version[32]; // "2.28.9"
    bool pinned;      // the order of a sum hangs on the ranks and this version alone
};
struct backend_collectives {
    // Finds the library that carries them. `local`: all members are of this host, and it listens to no
    // other. ERR_UNSUPPORTED: there is none that can be used; the text says why and what to do. The next
    // three fail so where the library refuses, and with ERR_IO where what may pass fails it (a port, memory).
    int (*load)(struct device *d, bool local, struct collectives_library *out, struct err *e);
    // A new communicator's identity. Whoever made it must live until all members are ready.
    int (*id)(struct device *d, unsigned char id[COMMUNICATOR_ID], struct err *e);
    int (*open)(struct device *d, const unsigned char id[COMMUNICATOR_ID], const char *name, int n,
                int coordinate, struct device_communicator **out, struct err *e);
    // Whether all members have joined. To be asked until it says so, before anything is run.
    int (*ready)(struct device_communicator *c, bool *ready, struct err *e);
    // Queues n calls on q as one group, in which sends and receives do not wait for each other. Not
    // BARRIER. Addresses are the device's, best in memory of `alloc`. ERR_ABORTED: it was aborted.
    int (*run)(struct device_communicator *c, struct stream_q *q,
               const struct collective_args *calls, int n, struct err *e);
    // Any thread. ERR_PEER, ERR_UNSUPPORTED, ERR_DEVICE: what went wrong with what was queued. 0: aborted.
    int (*check)(struct device_communicator *c, struct err *e);
    // Any thread, while another is in any of the other calls but `close`: what is queued ends, with
    // whatever result, and no member can run more. Communicators of one device, all together. Kernels
    // that do not end make it wait, but nobody else: from its beginning on no other call waits for the
    // device, events count as done, nothing of it is freed. The process is to end.
    void (*abort)(struct device_communicator **c, int n);
    // Memory that the library reaches best, in whole pieces (COLLECTIVE_PIECE); zero; memory.free frees it.
    int (*alloc)(struct device *d, size_t bytes, void **out, struct err *e);
    // Frees them. All members close; it waits for them, and for what they have queued, for some seconds
    // at most, and then aborts them. All of a device, together. Before device.close.
    void (*close)(struct device_communicator **c, int n);
};

// ---- ops: tables with a place for each op ----
struct backend_ops {
    // A hole is found by backend_check() at start. Scratch lies in call->workspace, within the cap
    // that the compiler's op table declares.
    const backend_op *run; // [OP_COUNT]
    // Optional, and so is every entry: runs n calls of one op in one go, with the bits of one after
    // the other. No call may write what another reads, except that SQNORMs add to one scalar. All
    // have the same scratch.
    const backend_many *run_many; // [OP_COUNT]
};

// What a backend exports. Every slot is filled but those that are called optional; the tables that
// are pointers may be missing as a whole.
struct backend {
    uint32_t abi; // BACKEND_ABI
    const char *name;
    struct backend_device device;
    struct backend_memory memory;
    struct backend_stream stream;
    struct backend_event event;
    const struct backend_graph *graph;             // null: a step is replayed op by op
    const struct backend_choice *choice;           // null: there is no choice
    const struct backend_collectives *collectives; // null: they go through the hosts
    struct backend_ops op;
};

// Loads libweft_NAME.so from, in order: $WEFT_BACKEND_DIR, the program's own folder, and
// ../lib/weft beside it. Stays loaded for the life of the process.
int backend_load(const char *name, const struct backend **out, struct err *e);
// Fails with the names of the ops in `needed` (bool[OP_COUNT]) for which the table has a hole.
int backend_check(const struct backend *b, const bool *needed, struct err *e);
// Returns how many lines of `before` are not in `after`; both are texts of choice->write.
int backend_choices_changed(const char *before, const char *after);
