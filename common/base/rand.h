// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: Philox 4x32-10 (Salmon et al., SC'11). A draw is a pure function of
// (seed, stream, step, index), so the mesh, the order and recomputation never change it.
#pragma once
#include <stddef.h>
#include <stdint.h>

void philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

// One site of randomness: `stream` is hash_fnv1a32 of its path ("init/layers/0/weight").
struct rand_site {
    uint64_t seed;
    uint32_t stream, step;
};

// Word `index & 3` of the block at counter (index >> 2 low, high, step, stream), key = seed low,
// high.
uint32_t rand_word(const struct rand_site *s, uint64_t index);
float rand_uniform(const struct rand_site *s, uint64_t index); // [0, 1): (word >> 8)·2^-24
// Normals i = first, first + 1, …: sqrt(−2 ln(u(2i) + 2^-25))·cos(2π u(2i+1)), computed in double.
void rand_normals(const struct rand_site *s, uint64_t first, size_t n, float *out);

// A keyed permutation of [0, n): every index appears exactly once; O(1) state and time a draw.
// Order of an epoch's samples: key = (seed, epoch).
uint64_t rand_permute(uint64_t index, uint64_t n, uint64_t seed, uint64_t round);
