// SPDX-License-Identifier: Apache-2.0
// The other programs of weft lie beside this one's own file, or else in PATH.
// Inside coordinator/cli/ only.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

// Finds the path of a program such as "weft-rank", or returns ERR_NOTFOUND.
int find_program(const char *name, char *out, size_t size, struct err *e);
