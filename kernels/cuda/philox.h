// SPDX-License-Identifier: Apache-2.0
// Random numbers on the device: the same as common/base/rand.h draws, by the same counters.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/numbers.h"

// Returns the random words with the indices 4·block to 4·block + 3.
DEVICE uint4 draw_block(uint64_t seed, unsigned stream, unsigned step, uint64_t block)
{
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    uint4 c;
    c.x = (unsigned)block;
    c.y = (unsigned)(block >> 32);
    c.z = step;
    c.w = stream;
    for (int i = 0; i < 10; i++) {
        unsigned h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
        unsigned h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
        c.x = h1 ^ c.y ^ k0;
        c.y = l1;
        c.z = h0 ^ c.w ^ k1;
        c.w = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

DEVICE unsigned draw_word(uint4 block, unsigned at)
{
    unsigned low = at & 1 ? block.y : block.x, high = at & 1 ? block.w : block.z;
    return at & 2 ? high : low;
}

// Returns the uniform number in [0, 1) that a word stands for.
DEVICE float draw_uniform_of(unsigned word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

// Returns one of a block's two normal numbers, the one of index 2·block + half. It is computed in
// double, as on the host.
DEVICE float draw_normal_of(uint4 block, unsigned half)
{
    double u = draw_uniform_of(half ? block.z : block.x);
    double v = draw_uniform_of(half ? block.w : block.y);
    return (float)(sqrt(-2 * log(u + 0x1p-25)) * cos(2 * 3.14159265358979323846 * v));
}
