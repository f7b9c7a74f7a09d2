// SPDX-License-Identifier: Apache-2.0
// Durations as text: "1.5s", "500ms", "2m"; a number and a unit (ns, us, ms, s, m or h).
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"

// To the nanosecond, or ERR_INVALID with what is wrong with the text.
int duration_read(const char *text, int64_t *ns, struct err *e);
// In the largest unit of which it is a whole number.
void duration_print(int64_t ns, struct buf *to);
