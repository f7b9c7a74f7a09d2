// SPDX-License-Identifier: Apache-2.0
// Command-line flags: their values, and what is said of wrong ones. Any other text is ERR_INVALID,
// and the message says what would do.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

// Whether one of the arguments is --help or -h.
bool flag_asks_help(int argc, char **argv);
// What getopt_long does not know: its last word is argv[optind − 1].
int flag_unknown(const char *word, struct err *e);
int flag_number(const char *text, int min, int max, int *out, struct err *e);
// The number of a file that this process has open.
int flag_descriptor(const char *text, int *out, struct err *e);
// "500ms", "10s", "2m", "1h", at least `min_ns`.
int flag_duration(const char *text, int64_t min_ns, int64_t *out_ns, struct err *e);
