// SPDX-License-Identifier: Apache-2.0
// The connections of a solo leader: it accepts strangers, lets those in that prove the epoch's key
// (rank_join.h), carries frames both ways and says when one is gone. Inside worker/rank/lead/ only.
//
//            Hello               Proof, the key is right
//   NEW ───────────► CHALLENGED ─────────────────────────► MEMBER
//    └──────────┬────────┴──────────────────────────────────┘
//               ▼  closed, refused, too late, nonsense, its queue is full
//             GONE, and forgotten by the next solo_conns_poll
//
// Connections are freed only at the start of solo_conns_poll, never under a loop over them. Sending
// never drops a connection: one whose queue is full gets nothing more and is dropped by the next
// poll, so that `gone` is never called while the leader's actions are being carried out.
//
// Everything belongs to one thread.
#pragma once
#include "common/attempt/frame.h"
#include "worker/rank/lead/rank_cores.h"
#include "worker/rank/link/assignment.h"

struct solo_conns;

struct solo_conns_ops {
    void *ctx;
    // A rank is in: what is sent to it from now on reaches it.
    void (*joined)(void *ctx, int rank, int pid, const struct rank_cores *cores);
    // False: such a frame is not for a leader, and its sender is dropped.
    bool (*frame)(void *ctx, int rank, const Weft__Rank__Frame *f);
    // A member's connection has ended; how: "died".
    void (*gone)(void *ctx, int rank, const char *how);
    // Whether a rank that cannot be let in now may try again: this attempt is over, or that rank's
    // part in it. rank −1: it has no number here.
    bool (*may_retry)(void *ctx, int rank);
};
// The listening sockets are taken, −1: none; the assignment is borrowed: what Assign carries.
struct solo_conns *solo_conns_new(const struct assignment *at, int unix_fd, int tcp_fd,
                                  const struct solo_conns_ops *ops);
void solo_conns_free(struct solo_conns *c);
// From now on the assignment is known: it goes to all that are in, and to each that comes in later
// before anything else does.
void solo_conns_assign(struct solo_conns *c);
// This end of rank 0's own connection, a socketpair; it is let in without a key. Takes fd.
void solo_conns_add_own(struct solo_conns *c, int fd);

void solo_conns_send(struct solo_conns *c, int rank, const Weft__Rank__Frame *f); // −1: to all
// Sends what waits, forgets who is gone, then waits up to timeout_ms for something to come, or for
// wake_fd to become readable, and takes it in. timeout_ms < 0: only sends.
void solo_conns_poll(struct solo_conns *c, int wake_fd, int timeout_ms);
