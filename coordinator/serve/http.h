// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP: /healthz (the process runs), /readyz (it serves) and /metrics
// (Prometheus). Driven by the owner's loop: when http_fd() is readable, or http_due_ns() is over, the
// owner calls http_serve(); requests are answered inside it, on the owner's thread.
// Inside coordinator/ only.
//
// There are two doors. At the pages' everything is served to whoever reaches it, which only this
// machine can: a Unix socket of mode 0600 is for its user, a loopback address for all its users. The
// probes' may be at any address: anybody learns there whether the coordinator serves, and no more.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct http;

struct http_options {
    const char *address; // unix:/PATH or HOST:PORT; port 0: any
    bool probes;         // /healthz and /readyz alone
    void *ctx;
    void (*metrics)(void *ctx, struct buf *out); // the whole text; null for probes
    bool (*ready)(void *ctx, struct buf *why);   // false: 503 with the reason
};
// bound (may be null): the address as bound. ERR_INVALID: it is no address, or pages would be served
// beyond this machine. PRE: nobody listens at the path of a Unix socket, which is replaced.
int http_open(const struct http_options *o, struct http **out, char *bound, size_t size,
              struct err *e);
int http_fd(const struct http *h);
// When to call http_serve at the latest; 0: no need.
int64_t http_due_ns(const struct http *h, int64_t now_ns);
void http_serve(struct http *h);
void http_close(struct http *h); // null is fine
