// SPDX-License-Identifier: Apache-2.0
// The xxh3-128 of bytes that lie in memory.
#pragma once
#include "common/base/hash.h"

static inline struct hash128 digest_bytes(const void *data, size_t len)
{
    struct xxh3 *x = xxh3_new();
    xxh3_update(x, data, len);
    struct hash128 digest = xxh3_digest(x);
    xxh3_free(x);
    return digest;
}
