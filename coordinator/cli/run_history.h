// SPDX-License-Identifier: Apache-2.0
// What a job did in allocations, over all of its starts, for `weft why`: each start has a database of
// its own, on the node that leads, and so its own history alone. The leader keeps all of it:
//
//   CKPT/.weft/NAME.history   0600: a WhyReply, packed; the newest 2,000 events, and times in all
//
// Inside coordinator/cli/ only.
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/weft.pb-c.h"

enum {
    HISTORY_EVENTS = 2000,
    HISTORY_SPENT = 64 // kinds of time
};
#define HISTORY_NUMBER ((int64_t)1 << 53) // the largest time and step

// *out is for the caller to free with cli_link_free. ERR_NOTFOUND: there is none. ERR_INVALID: .weft is not
// this user's own. ERR_DATA: it is no history, ERR_LIMIT: it is over 16 MiB.
int run_history_read(const char *root, const char *name, Weft__V1__WhyReply **out, struct err *e);
// `before`: what the starts before this one did, null: nothing; `now`: what this one did. Durable.
int run_history_write(const char *root, const char *name, const Weft__V1__WhyReply *before,
                      const Weft__V1__WhyReply *now, struct err *e);

// The bytes of it, both ways, for tests.
int run_history_parse(const void *bytes, size_t len, Weft__V1__WhyReply **out, struct err *e);
void run_history_pack(const Weft__V1__WhyReply *before, const Weft__V1__WhyReply *now,
                      struct buf *out);
