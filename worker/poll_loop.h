// SPDX-License-Identifier: Apache-2.0
// The daemon's one loop: descriptors in an epoll, each with the function that is called when it is
// ready. All on one thread. A source may be dropped in any callback, in its own too.
// Inside worker/ only.
#pragma once
#include <stdint.h>
#include <sys/epoll.h>

#include "common/base/err.h"

struct loop;
struct loop_source;
typedef void loop_fn(void *ctx, uint32_t events);

int loop_open(struct loop **out, struct err *e);
void loop_close(struct loop *l); // drops what is left; descriptors stay their owners'
// The descriptor is borrowed and must outlive the source. EPOLLHUP and EPOLLERR always come.
int loop_add(struct loop *l, int fd, uint32_t events, loop_fn *fn, void *ctx,
             struct loop_source **out, struct err *e);
void loop_want(struct loop_source *s, uint32_t events);
void loop_drop(struct loop_source *s); // null is fine
// Waits until something is ready or `timeout_ns` is over (< 0: no limit), then calls whose it is.
void loop_run_once(struct loop *l, int64_t timeout_ns);
