// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one attempt: a world (who is there and how they reach each
// other), communicators (an ordered group within it), and numbered operations on buffers.
//
// Transports behind the same calls: `local` (shared memory inside a host, TCP between hosts),
// `fake` (in-process threads, for tests of order and deadlock), later NCCL.
//
// Sums follow one fixed balanced binary tree over the group's coordinates, (((0+1)+(2+3))+…), on
// every transport and placement: the same inputs give the same bits. For n not a power of two the
// tree is the one of the next power with the missing leaves left out.
//
// Order of calls: world_open (collective: every rank calls it) → world_window → comm_new in the
// same order everywhere → coll_start/coll_wait … → comm_free → world_close. One thread drives a
// world; world_abort alone may be called from any thread, and a started operation then returns
// ERR_ABORTED. A dead peer ends every operation with ERR_PEER naming the rank; one that does not
// come in time with ERR_TIMEOUT naming the missing ranks, the collective's number and name. After
// any of these the world is broken for good and the buffers hold no meaning: the attempt is over.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/op/op.h"

enum coll_op {
    COLL_ALL_REDUCE,
    COLL_REDUCE_SCATTER,
    COLL_ALL_GATHER,
    COLL_BROADCAST,
    COLL_BARRIER
};
enum coll_sum { COLL_SUM };                // later: max
const char *coll_op_name(enum coll_op op); // "all_reduce"

struct world;
struct comm;

// What a rank publishes so that a stuck one cannot hide: written by its owner with relaxed stores,
// read by anyone who mapped it (another process). All counters only grow within an attempt.
struct progress_page {
    uint32_t magic, version; // PROGRESS_MAGIC, 1
    int32_t rank, pid;
    _Atomic int64_t step;
    _Atomic int32_t phase, microbatch;        // enum program_phase of compile/program.h
    _Atomic int32_t state;                    // enum rank_state of worker/rank
    _Atomic uint64_t ops;                     // instructions started
    _Atomic uint64_t coll_entered, coll_left; // number of the last collective, from 1
    _Atomic uint64_t coll_name;    // the first 8 bytes of the tensor's name hash (fnv1a of it)
    char coll_text[64];            // the name as text, best effort: a hint for people
    _Atomic uint64_t heartbeat_ns; // clock_mono_ns of the last change
    // Whom the owner waits for in a collective and the last one that it saw that rank enter, in
    // one word: (rank + 1) << 48 | number; 0: nobody. Not a change of its own: no heartbeat.
    _Atomic uint64_t awaited;
};
#define PROGRESS_MAGIC 0x77656674u

struct world_options {
    int rank, ranks;
    const char *host;   // ranks with equal text share memory (unix sockets pass memfds)
    const char *listen; // TCP address for peers of other hosts, "10.0.0.1:0"; null: one host only
    unsigned char key[32]; // the attempt's secret: TCP peers prove it (HMAC challenge, both ways)
    uint64_t epoch;
    int64_t connect_ns, deadline_ns; // for world_open; for each operation (0: none)
    struct progress_page *progress;  // borrowed; may be null
    const char *socket_dir;          // 0700 folder for unix sockets of this host
    // Bootstrap: rank-keyed put/get through whoever leads (KV frames; tests: a map). `get` blocks
    // until the value is there or the deadline passes. Values are text, < 256 bytes.
    int (*put)(void *ctx, const char *key, const char *value, struct err *e);
    int (*get)(void *ctx, const char *key, char *value, size_t size, int64_t deadline_ns,
               struct err *e);
    // May be null. Asked many times a second while world_open waits: true ends it with ERR_PEER
    // (the leader said that somebody died). Later it is world_abort's business.
    bool (*lost)(void *ctx);
    void *ctx;
};

int world_open(const struct world_options *o, struct world **out, struct err *e);
void world_close(struct world *w);
void world_abort(struct world *w, const char *why); // any thread; async-signal-unsafe
int world_rank(const struct world *w);
int world_ranks(const struct world *w);

// The memory that collectives touch, one region a rank, mapped by its host's peers (a memfd).
// Called once, with the same size or not; every buffer given to coll_start lies inside it, except
// for BARRIER. The window belongs to the world.
int world_window(struct world *w, size_t bytes, void **out, struct err *e);

// A communicator over `ranks` (world ranks in coordinate order, this one among them).
// Every member calls it in the same order.
int comm_new(struct world *w, const char *name, const int *ranks, int n, struct comm **out,
             struct err *e);
void comm_free(struct comm *c);
int comm_size(const struct comm *c);
int comm_coord(const struct comm *c); // this rank's place in the group

struct coll_args {
    enum coll_op op;
    enum dtype dtype; // DT_F32 (sums); any for gather and broadcast
    void *buf;        // ALL_REDUCE, BROADCAST: in place. REDUCE_SCATTER: operand, the result is
                      // this coordinate's slice in place. ALL_GATHER: the whole result, this
                      // coordinate's slice is the operand in place
    int64_t count;    // elements of the whole tensor (scatter and gather: divisible by the size)
    int root;         // BROADCAST: coordinate
    const char *name; // borrowed until the wait; for messages and the progress page
};
struct coll_ticket {
    uint64_t number; // of the world, from 1
    int slot;
};
// Start announces the operand; wait completes the operation. Operations of one communicator
// complete in the order of their starts; up to COLL_MAX_OPEN may be open at once.
enum { COLL_MAX_OPEN = 64 };
int coll_start(struct comm *c, const struct coll_args *a, struct coll_ticket *out, struct err *e);
int coll_wait(struct comm *c, struct coll_ticket *t, struct err *e);
int coll_run(struct comm *c, const struct coll_args *a, struct err *e); // start and wait
