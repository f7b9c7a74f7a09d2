// SPDX-License-Identifier: Apache-2.0
// The address by which other hosts reach this one: a name or a literal, as `weft-worker --address`
// takes it, without a port. It need not be one of this machine's own: behind a NAT it is somebody
// else's, who passes connections on. So what listens for callers of it is said here, once.
//
// Whether the address leads here from outside only callers can find out. This machine itself may try,
// but not every NAT lets those behind it call by its address.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum {
    HOST_ADDRESS_MAX = 254, // of a name or literal, with its end
    HOST_PORT_MAX = 80,     // of a numeric HOST:PORT, with its end
};

// Whether the text can be such an address. ERR_INVALID: it cannot, or no such name is known, and the
// message says which; ERR_IO: nobody who knows names answers for now.
int host_address_check(const char *text, struct err *e);

// Listens over TCP for those who call HOST:PORT (an IPv6 literal with or without brackets; port 0:
// any). *fd does not block; out: the numeric "HOST:PORT" by which they call, "[HOST]:PORT" of IPv6.
// Where HOST is an address of this machine it listens there only, else on all addresses of HOST's
// family. A name with several addresses means the first that is this machine's, else the first.
// ERR_INVALID: not HOST:PORT, or HOST is not known; ERR_IO: it cannot listen.
int host_address_listen(const char *text, int backlog, int *fd, char out[HOST_PORT_MAX],
                        struct err *e);

// Listens for those who call the address (no port) and calls it, for at most wait_ns. ERR_PEER: the
// call did not arrive, and the message says why.
int host_address_try(const char *text, int64_t wait_ns, struct err *e);
