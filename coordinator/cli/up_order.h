// SPDX-License-Identifier: Apache-2.0
// What `weft up` says to the `weft --member` that it started on a host, over its standard input and
// so where nobody else on that host reads it:
//
//   weft up 1 LENGTH\n                          the order, once the host has said which weft it has
//   index size id secret host folder word…      LENGTH bytes, each of these ended by a zero byte
//   .   s   e                                   from then on: still here, each second; Ctrl-C; end, as
//                                               SIGTERM asks. The end of the input, and silence, mean e
//
// `words` are the command's own, flags and the job file, as they were given in `folder`. Inside
// coordinator/cli/ only, for verb_up.c.
#pragma once
#include "coordinator/cli/several.h"
#include "coordinator/cli/verbs.h"

enum { UP_ORDER_MAX = 60000 }; // bytes: less than a pipe holds
enum { UP_SILENT_MS = 30000 };
// With which a member begins its standard output; then come its version and what tells its machine from
// others: "weft up: this is weft 0.1 on BOOT.FOLDER".
#define UP_HELLO "weft up: this is weft "

enum { UP_ORDER_WORDS = 2 * (ARGS_MAX_SET + 2 * ARGS_MAX_PAIRS) + 8 };
struct up_order {
    int index, size;
    const char *id, *secret, *host, *folder; // `host`: of the leader, without the user's name
    const char *words[UP_ORDER_WORDS];
    int nwords;
};
// Appends it with its first line. ERR_INVALID: it is too long.
int up_order_print(const struct up_order *o, struct buf *out, struct err *e);
// Of its first line the bytes that follow. ERR_DATA: it is none.
int up_order_length(const char *line, size_t *len, struct err *e);
// `bytes` stay while `out` is used. ERR_DATA: they are no order.
int up_order_parse(const char *bytes, size_t len, struct up_order *out, struct err *e);
// What it makes of the process that reads it.
void up_order_take(const struct up_order *o, struct several *s);
