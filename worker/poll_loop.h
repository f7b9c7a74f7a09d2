// SPDX-License-Identifier: Apache-2.0
// The daemon's one loop: descriptors in an epoll, each with the function that is called when it is
// ready. All on one thread. A source may be dropped in any callback, in its own too.
// Inside worker/ only.
#pragma once
#include <stdint.h>
#include <sys/epoll.h>

#include "common/base/err.h"

struct poll_loop;
struct poll_loop_source;
typedef void poll_loop_fn(void *ctx, uint32_t events);

int poll_loop_open(struct poll_loop **out, struct err *e);
void poll_loop_close(struct poll_loop *l); // drops what is left; descriptors stay their owners'
// The descriptor is borrowed and must outlive the source. EPOLLHUP and EPOLLERR always come.
int poll_loop_add(struct poll_loop *l, int fd, uint32_t events, poll_loop_fn *fn, void *ctx,
                  struct poll_loop_source **out, struct err *e);
void poll_loop_want(struct poll_loop_source *s, uint32_t events);
void poll_loop_drop(struct poll_loop_source *s); // null is fine
// Waits until something is ready or `timeout_ns` is over (< 0: no limit), then calls whose it is.
void poll_loop_run_once(struct poll_loop *l, int64_t timeout_ns);
