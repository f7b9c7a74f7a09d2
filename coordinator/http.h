// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP: /healthz (the process runs), /readyz (it serves) and /metrics
// (Prometheus). Driven by the owner's loop: when http_fd() is readable, or http_due_ns() is over, the
// owner calls http_serve(); requests are answered inside it, on the owner's thread.
// Inside coordinator/ only.
//
// Without TLS only loopback addresses; with it a client certificate of the cluster is asked for.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct http;

struct http_options {
    const char *address;         // HOST:PORT; port 0: any
    const char *ca, *cert, *key; // PEM files; null: no TLS
    void *ctx;
    void (*metrics)(void *ctx, struct buf *out); // the whole text
    bool (*ready)(void *ctx, struct buf *why);   // false: 503 with the reason
};
// bound (may be null): HOST:PORT as bound. ERR_INVALID: the address, or no TLS beyond loopback.
int http_open(const struct http_options *o, struct http **out, char *bound, size_t size,
              struct err *e);
int http_fd(const struct http *h);
// When to call http_serve at the latest; 0: no need.
int64_t http_due_ns(const struct http *h, int64_t now_ns);
void http_serve(struct http *h);
void http_close(struct http *h); // null is fine
