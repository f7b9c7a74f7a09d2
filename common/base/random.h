// SPDX-License-Identifier: Apache-2.0
// Random bytes of the system, for ids, keys and nonces. What must be repeatable is rand.h's.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

enum { RANDOM_ID = 33 }; // 32 hex digits and the end
int random_bytes(void *out, size_t n, struct err *e);
int random_id(char out[RANDOM_ID], struct err *e);
