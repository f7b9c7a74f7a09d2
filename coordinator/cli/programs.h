// SPDX-License-Identifier: Apache-2.0
// The other programs of weft lie beside this one's own file, or else in PATH.
// Inside coordinator/cli/ only.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

// Finds the path of a program such as "weft-rank", or returns ERR_NOTFOUND.
int find_program(const char *name, char *out, size_t size, struct err *e);
// Starts a program in a process group of its own, with no signal blocked, standard input from
// /dev/null and its output to `out_fd` (-1: to where ours goes). The descriptors in `pass` (ended
// by -1, may be null) stay open in it. Returns its pid, or -1 with `e`.
int start_program(char *const *argv, int out_fd, const int *pass, struct err *e);
