// SPDX-License-Identifier: Apache-2.0
// Joining: how a rank connects to the leader of a solo attempt and both prove the epoch's key.
// Inside worker/rank/lead/ only.
//
//   rank → Hello(nonce a) · leader → Challenge(nonce b, HMAC "leader" a b) ·
//   rank → Proof(HMAC "rank" b a) · leader → Assign
// The key never travels; a stranger on either side learns nothing it could use, and a recorded
// exchange is worth nothing with other nonces. Addresses are "unix:/path" or "tcp:HOST:PORT".
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/rank/lead/rank_cores.h"

enum { JOIN_VERSION = 1, JOIN_NONCE = 32, JOIN_MAC = 32 };

struct join_who {
    int rank, ranks;
    uint64_t epoch;
    const char *host;
    const unsigned char *key;       // 32 bytes
    const struct rank_cores *cores; // that the rank tells; null: it does not
};

// `from` is "leader" or "rank"; first and second are the nonces in the order of the drawing.
void join_mac(const struct join_who *w, const char *from, const unsigned char *first,
              const unsigned char *second, unsigned char out[JOIN_MAC]);
bool join_mac_equal(const unsigned char *a, const unsigned char *b);
// *fd is a listening socket, *bound the address to publish. A stale socket file is replaced.
int join_listen_unix(const char *path, int *fd, struct err *e);
int join_listen_tcp(const char *addr, int *fd, char *bound, size_t size, struct err *e);

// Connects to one address of the leader and proves itself. ERR_PEER when nobody is there or it is
// not the epoch's leader (try again later); ERR_INVALID when it refuses for good.
int join_connect(const char *addr, const struct join_who *w, int64_t deadline_ns, int *fd,
                 struct err *e);
