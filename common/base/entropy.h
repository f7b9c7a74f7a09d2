// SPDX-License-Identifier: Apache-2.0
// Random bytes of the system, for ids, keys and nonces. What must be repeatable is rand.h's.
#pragma once
#include <stddef.h>

#include "common/base/err.h"
#include "common/base/id.h"

int entropy_bytes(void *out, size_t n, struct err *e);
int entropy_id(char out[ID_LEN], struct err *e);
