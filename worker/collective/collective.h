// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one attempt, on the memory of their hosts: a world (who is there
// and how they reach each other), communicators (an ordered group within it), and numbered
// operations on buffers. What executors use lies above: transport.h. README.md says how it works.
// Inside worker/collective/ only.
//
// Sums follow one fixed balanced binary tree over the group's coordinates, (((0+1)+(2+3))+…), in
// every world and placement: the same inputs give the same bits. For n not a power of two the tree
// is the one of the next power with the missing leaves left out. A bf16 sum adds in f32 along that
// tree and is rounded once, at the end, to nearest even.
//
//   world_open ──► world_window ──► communicator_new… ──► collective_start ──► collective_wait…
//                                                     ──► communicator_free… ──► world_close
//
// Every rank calls world_open and world_window; they wait for the others. One thread drives a
// world; world_abort alone may be called from any thread, and a started operation then returns
// ERR_ABORTED. A dead peer ends every operation with ERR_PEER naming the rank; one that does not
// come in time ends it with ERR_TIMEOUT naming the missing ranks, the collective's number and name.
// After any of these the world is broken for good and the buffers hold no meaning: the attempt is
// over.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attempt/page.h"
#include "common/base/err.h"
#include "common/op/collective_args.h"
#include "common/op/op.h"

const char *collective_op_name(enum collective_op op); // "all_reduce"

struct world;
struct communicator;

struct world_options {
    int rank, ranks;
    const char *host;      // ranks with equal text share memory (unix sockets pass memfds)
    const char *listen;    // what peers of other hosts call, "10.0.0.1:0"; null: one host only
    unsigned char key[32]; // the attempt's secret: TCP peers prove it (HMAC challenge, both ways)
    bool plain; // between hosts nothing is encrypted after the greeting: the network is trusted
    uint64_t attempt;
    // For world_open, of which a call that another host's machine leaves unanswered gets a sixth; for
    // each operation (0: none).
    int64_t connect_ns, deadline_ns;
    struct progress_page *progress; // borrowed; may be null
    int threads; // of this rank that compute; 0: unknown, and then there is no progress thread
    const char *socket_dir; // 0700 folder for unix sockets of this host
    // Bootstrap: rank-keyed put/get through whoever leads (KV frames; tests: a map). `get` blocks
    // until the value is there or the deadline passes. Values are text, < 256 bytes.
    int (*put)(void *ctx, const char *key, const char *value, struct err *e);
    int (*get)(void *ctx, const char *key, char *value, size_t size, int64_t deadline_ns,
               struct err *e);
    // May be null. Asked many times a second while world_open waits: true ends it with ERR_PEER
    // (the leader said that somebody died). Later it is world_abort's business.
    bool (*lost)(void *ctx);
    // May be null. Called when world_open fails because a rank of another host was not found at the
    // address that it published.
    void (*unreached)(void *ctx, int rank);
    void *ctx;
};

int world_open(const struct world_options *o, struct world **out, struct err *e);
void world_close(struct world *w);
// The cores that this rank may use while its peers of the same host use as many, at least 1. Null
// is the world of a single rank, to which all cores of the process belong.
int world_cores(const struct world *w);
void world_abort(struct world *w, const char *why); // any thread; async-signal-unsafe
// Sets a function that world_abort calls, on its caller's thread. If the world was aborted already
// it is called at once. Null removes it; once this has returned, it is not running any more either.
void world_on_abort(struct world *w, void (*fn)(void *ctx, const char *why), void *ctx);

// The memory that collectives touch, one region a rank, mapped by its host's peers (a memfd).
// Called once, with the same size or not; every buffer given to collective_start lies inside it,
// unless a member's operand is at most 4 KiB. The window belongs to the world.
int world_window(struct world *w, size_t bytes, void **out, struct err *e);

// Every rank's text of at most GATHER_TEXT − 1 bytes to all of them: all[r] is rank r's. All ranks call
// it in the same order, for the same `name`; an operation of its own communicator, with its errors.
enum { GATHER_TEXT = 256 };
int world_gather(struct world *w, const char *name, const char *own, char (*all)[GATHER_TEXT],
                 struct err *e);

// A communicator over `ranks` (world ranks in coordinate order, this one among them).
// Every member calls it in the same order.
int communicator_new(struct world *w, const char *name, const int *ranks, int n,
                     struct communicator **out, struct err *e);
void communicator_free(struct communicator *c);
int communicator_size(const struct communicator *c);
int communicator_coordinate(const struct communicator *c); // this rank's place in the group

struct collective_ticket {
    uint64_t number; // of the world, from 1
    int slot;
};
// Start announces the operand; wait completes the operation. A send is no more than a promise: it
// completes once the other side received, however small it is. Operations of one communicator
// complete in the order of their starts; up to COLLECTIVES_OPEN (op.h) may be open at once.
int collective_start(struct communicator *c, const struct collective_args *a,
                     struct collective_ticket *out, struct err *e);
int collective_wait(struct communicator *c, const struct collective_ticket *t, struct err *e);
// Moves open operations on without waiting for anybody; *moved (may be null) says whether any did.
// It has no deadline, and knows only of deaths that a wait has seen. So whoever needs the result
// calls collective_wait in the end.
int collective_try(struct communicator *c, const struct collective_ticket *t, bool *done,
                   bool *moved, struct err *e);
