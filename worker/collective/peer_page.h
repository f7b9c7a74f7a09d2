// SPDX-License-Identifier: Apache-2.0
// What a rank shows its peers: its *page*, written by it alone (but for `sleeping`). Peers of its
// host map it; for a peer across hosts a private copy stands in, kept up to date by that peer's
// frames. So the operations read one form whoever the peer is. Inside worker/collective/ only.
//
// An operation of a communicator is known by its sequence number there, from 1, and lives in note
// seq mod NOTES of each member's page. A rank starts seq + 64 only after it completed seq, for
// which every member announced seq; so a note of NOTES = 2 × COLLECTIVES_OPEN is never overwritten
// before the slowest member has read it.
#pragma once
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "worker/collective/collective.h"

enum {
    NOTES = 2 * COLLECTIVES_OPEN, // see above
    INLINE_MAX = 4096,            // operands up to this travel within the note
    PIECE = 256 * 1024,           // bytes of work between two looks at the world; largest frame
    STAGE = 4 * PIECE,            // bytes a peer may send ahead of our reduction
    TEXT = 64,
    WORLD_COMMUNICATORS = COMMUNICATORS + 1 // a plan's, and world_gather's
};

struct note {
    alignas(64) _Atomic uint64_t seq; // stored last: the rest is valid for this operation
    uint64_t number;                  // of the world
    int64_t count;
    uint64_t offset; // of the buffer in the owner's window; inlined: bytes of payload
    uint32_t name;   // fnv1a
    int32_t root;
    uint8_t op, dtype;
    uint8_t inlined; // payload holds the operand
    uint8_t pad[5];
    uint64_t granted; // in a remote peer's copy: bytes it lets us send for the scatter stage
    alignas(64) unsigned char payload[INLINE_MAX];
};

struct communicator_page {
    alignas(64) _Atomic uint64_t key;  // 0: not made yet
    alignas(64) _Atomic uint64_t done; // last operation whose work this rank has finished
    struct note notes[NOTES];
};

enum peer_state { PEER_OPEN, PEER_LEFT, PEER_BROKEN };

struct peer_page {
    uint32_t magic, version;
    int32_t rank, pid;
    uint64_t attempt;
    int32_t threads;                       // that compute for the owner; 0: it does not say
    cpu_set_t cpus;                        // where the owner may run
    alignas(64) _Atomic uint32_t sleeping; // the owner naps and wants a wake-up
    alignas(64) _Atomic uint64_t entered;
    _Atomic uint64_t text[TEXT / 8]; // the name of the last entered one, best effort
    _Atomic uint32_t state;          // enum peer_state; the next two are set before it
    uint32_t code;                   // enum err_code
    char why[256];
    // Mostly never touched, so never allocated.
    struct communicator_page communicators[WORLD_COMMUNICATORS];
};

void peer_page_enter(struct world *w, uint64_t number, const char *name, uint32_t hash);
size_t peer_page_text(const struct peer_page *p, char out[TEXT]); // the last entered one's name
