// SPDX-License-Identifier: Apache-2.0
// The other programs of weft: beside this one's own file, else in PATH.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

// "weft-rank" → its path. ERR_NOTFOUND.
int find_program(const char *name, char *out, size_t size, struct err *e);
// Starts a program with standard input from /dev/null, its output into `out_fd` (-1: as it is), a
// process group of its own and no signal blocked. `pass` (ended by -1, may be null) stays open in
// it. -1 with `e`, or the pid.
int start_program(char *const *argv, int out_fd, const int *pass, struct err *e);
