// SPDX-License-Identifier: Apache-2.0
// Values of command-line flags. Any other text is ERR_INVALID, and the message says what would do.
#pragma once
#include <stdint.h>

#include "common/base/err.h"

int flag_number(const char *text, int min, int max, int *out, struct err *e);
// "500ms", "10s", "2m", "1h", at least `min_ns`.
int flag_duration(const char *text, int64_t min_ns, int64_t *out_ns, struct err *e);
