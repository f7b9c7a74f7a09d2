// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers. See rand.h.
//
// The permutation is a Feistel network over the smallest power of two that holds n, keyed by
// Philox; a result outside [0, n) is put through again until it falls inside (cycle walking: the
// network is a bijection, so the walk from a point inside always returns inside, and two walks
// never meet). The power of two is below 2n, so a draw takes two walks at most on average.
#include "common/base/rand.h"

#include <math.h>

#include "common/base/err.h"

enum {
    PHILOX_ROUNDS = 10,
    FEISTEL_ROUNDS = 24, // at 16 the orders of 6 samples are not yet equally likely (chi-square)
};
// Counter word 1 of every draw of the permutation. rand_word() has at most 30 bits there, so the
// two never use the same block.
static const uint32_t permute_tag = 0x80000000u;

void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void fill_block(const struct rand_site *s, uint64_t block, uint32_t out[4])
{
    const uint32_t ctr[4] = {(uint32_t)block, (uint32_t)(block >> 32), s->step, s->stream};
    const uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
    philox4x32(ctr, key, out);
}

uint32_t rand_word(const struct rand_site *s, uint64_t index)
{
    uint32_t out[4];
    fill_block(s, index >> 2, out);
    return out[index & 3];
}

static float compute_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

float rand_uniform(const struct rand_site *s, uint64_t index)
{
    return compute_uniform(rand_word(s, index));
}

// The normal `index & 1` of its block.
static float compute_normal(const uint32_t block[4], uint64_t index)
{
    const uint32_t *words = &block[2 * (index & 1)];
    double u = compute_uniform(words[0]), v = compute_uniform(words[1]);
    return (float)(sqrt(-2 * log(u + 0x1p-25)) * cos(2 * M_PI * v));
}

void rand_normals(const struct rand_site *s, uint64_t first, size_t n, float *out)
{
    uint32_t block[4]; // serves two normals
    for (size_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        if (!i || !(index & 1))
            fill_block(s, 2 * index >> 2, block);
        out[i] = compute_normal(block, index);
    }
}

// Bits of the smallest power of two ≥ n.
static int count_bits(uint64_t n)
{
    return n < 2 ? 0 : 64 - __builtin_clzll(n - 1);
}

static uint32_t feistel_round(uint64_t half, int i, uint64_t seed, uint64_t round)
{
    const uint32_t ctr[4] = {(uint32_t)half, permute_tag | (uint32_t)i, (uint32_t)round,
                             (uint32_t)(round >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox4x32(ctr, key, out);
    return out[0];
}

// A bijection of [0, 2^bits): in every round one half (32 bits at most) changes the other.
static uint64_t permute_feistel(uint64_t x, int bits, uint64_t seed, uint64_t round)
{
    int low_bits = bits / 2;
    uint64_t low_mask = (1ull << low_bits) - 1, high_mask = (1ull << (bits - low_bits)) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (int i = 0; i < FEISTEL_ROUNDS; i += 2) {
        high ^= feistel_round(low, i, seed, round) & high_mask;
        low ^= feistel_round(high, i + 1, seed, round) & low_mask;
    }
    return high << low_bits | low;
}

uint64_t rand_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t round)
{
    PRE(index < n && n <= 1ull << 63);
    int bits = count_bits(n);
    do
        index = permute_feistel(index, bits, seed, round);
    while (index >= n);
    return index;
}
