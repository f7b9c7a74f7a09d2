// SPDX-License-Identifier: Apache-2.0
// One product of matrices in f32 or bf16, summed in f32, in the calling thread, from packed
// operands; for AVX2 with FMA and for AVX-512. Inside kernels/cpu/ only.
//
// k is cut into blocks of PACKED_DEPTH. An element is summed in order within each block, and the
// blocks' sums are added in order. So its bits depend on k alone: not on where in a matrix or a
// slice it lies, how the operands are stored, or which instruction set computes it.
//
// A product of few rows (at most STREAMED_HEIGHT) takes the time in which b is read, in long runs
// (streamed.c). Its bits are the same.
//
// With AVX512-BF16 a product of two operands in bf16 adds up pairs, in blocks twice as long. Its bits
// depend on k alone too, but are others. Numbers below f32's normal ones count as 0 there.
//
// With AMX so does a decoder's of at least TILED_HEIGHT rows, in chains of 32 elements a link (tiled.c):
// their bits are a third kind. It is for decoders alone, so that trainings keep theirs.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    PACKED_DEPTH = 512,   // lanes of a panel along k
    PACKED_HEIGHT = 132,  // rows of a that are packed at a time, at most
    PACKED_WIDTH = 1024,  // columns of b
    PACKED_GAP = 16,      // floats between panels
    STREAMED_HEIGHT = 63, // rows of a, at most, where b is read as it lies
    TILED_HEIGHT = 16,    // rows of a, at least, where AMX multiplies
    // Counted with AVX2's panels of 6 rows and 16 columns. AVX-512's are larger, so fewer gaps.
    PACKED_FLOATS = PACKED_HEIGHT / 6 * (PACKED_DEPTH * 6 + PACKED_GAP) +
                    PACKED_WIDTH / 16 * (PACKED_DEPTH * 16 + PACKED_GAP)
};

// c (+)= a · b, all row-major.
struct packed_product {
    int64_t m, n, k;
    const void *a, *b;
    float *c;
    int64_t lda, ldb, ldc; // row strides in elements
    bool trans_a, trans_b; // a is stored [k][m]; b is stored [n][k]
    bool half;             // a and b are in bf16
    bool add;
    bool streams; // of few rows: b is read once, as it lies (streamed.c)
    float *room;  // PACKED_FLOATS at a multiple of 64 bytes, which no other thread uses
};

typedef void (*packed_multiply)(const struct packed_product *p);
void packed_multiply_avx2(const struct packed_product *p);
void packed_multiply_avx512(const struct packed_product *p);
void packed_multiply_avx512bf16(const struct packed_product *p); // both operands are in bf16
void tiled_multiply_amx(const struct packed_product *p);         // so are these

// Returns the address of element i of an operand.
static inline const void *find_element(const void *x, bool half, int64_t i)
{
    return (const char *)x + i * (half ? 2 : 4);
}

// Cuts a length into the fewest pieces of at most `most`, as equal as multiples of `unit` allow, to
// which each is rounded up; returns a piece's length.
static inline int64_t cut_evenly(int64_t length, int64_t most, int64_t unit)
{
    int64_t pieces = (length + most - 1) / most, each = (length + pieces - 1) / pieces;
    return (each + unit - 1) / unit * unit;
}
