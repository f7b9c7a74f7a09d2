// SPDX-License-Identifier: Apache-2.0
// Bounds the connections of a server that have not been called on: handshakes in flight, and those
// who only hold a connection. The core accepts as many as come and keeps each for its handshake's
// time, some 45 KB apiece, so that a flood of half-open ones takes hundreds of megabytes.
//
// A thread looks at the process's own sockets some times a second. Of those on the server's port
// without an open call at most GUARD_MOST stay; the rest are shut down, from the host with the most
// of them first, and of these the longest silent. The core then sees their end and frees them; until
// then no host with an eighth of them may connect, and where there is none such, nobody. When the flood
// is over the memory goes back to the system. Inside common/rpc/ only.
#pragma once
#include <stdbool.h>

enum { GUARD_MOST = 256 };
enum { HANDSHAKE_MS = 5000 }; // who has not shaken hands by then is closed

struct guard;
struct guard *guard_new(int port); // starts the thread
void guard_free(struct guard *g);  // null is fine
// A peer, by its address as gRPC prints it, has an open call now, or has none any more. Any thread.
void guard_calls(struct guard *g, const char *address, bool open);
