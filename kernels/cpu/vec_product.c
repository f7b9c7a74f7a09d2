// SPDX-License-Identifier: Apache-2.0
// Products of small matrices, and transposing, in the calling thread. See vec.h. Compiled as vec.c
// is.
//
// A tile of up to 6 rows and two vectors of the result stays in registers while all of k passes, as
// in packed.c. But nothing is packed: a and b are read where they lie, and the caller sees to it
// that b's rows are few and near each other.
#include "kernels/cpu/vec.h"

#include "kernels/cpu/simd.h"

enum { ROWS = 6, COLUMNS = 2 * VL };
_Static_assert(VEC_PRODUCT_COLUMNS % COLUMNS == 0, "a tile fits into the room of a row");

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

// `rows` is a constant wherever this is called.
VFN void multiply_tile(const struct vec_product *p, int rows, int64_t i, int64_t j)
{
    vf sum[ROWS][2] = {{{0}}};
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    const int64_t step = p->a_row;
    for (int64_t k = 0; k < p->k; k++, a += p->a_k, b += p->ldb) {
        vf b0 = v_load(b), b1 = v_load(b + VL);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vf x = v_set(a[r * step]);
            sum[r][0] = v_fma(x, b0, sum[r][0]);
            sum[r][1] = v_fma(x, b1, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int side = 0; side < 2; side++) {
            float *to = p->c + (i + r) * p->ldc + j + side * VL;
            vf s = sum[r][side] * p->scale;
            v_store(to, p->add ? v_load(to) + s : s);
        }
}

void PASTE(vec_multiply_, VEC_ISA)(const struct vec_product *call)
{
    const struct vec_product p = *call;
    for (int64_t j = 0; j < p.n; j += COLUMNS) {
        int64_t i = 0;
        for (; i + ROWS <= p.m; i += ROWS)
            multiply_tile(&p, ROWS, i, j);
        switch (p.m - i) {
        case 5:
            multiply_tile(&p, 5, i, j);
            break;
        case 4:
            multiply_tile(&p, 4, i, j);
            break;
        case 3:
            multiply_tile(&p, 3, i, j);
            break;
        case 2:
            multiply_tile(&p, 2, i, j);
            break;
        case 1:
            multiply_tile(&p, 1, i, j);
            break;
        default:
            break;
        }
    }
}

// ---- transposing -------------------------------------------------------------------------------

enum { SQUARE = 4 };
typedef float quad __attribute__((vector_size(16)));
typedef float quad_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t quad_i __attribute__((vector_size(16)));

VFN void transpose_square(float *out, int64_t ld_out, const float *x, int64_t ld)
{
    quad r[SQUARE], s[SQUARE];
    for (int i = 0; i < SQUARE; i++)
        r[i] = *(const quad_any *)(x + i * ld);
    for (int i = 0; i < 2; i++) { // rows i and i + 2, element by element
        s[2 * i] = __builtin_shuffle(r[i], r[i + 2], (quad_i){0, 4, 1, 5});
        s[2 * i + 1] = __builtin_shuffle(r[i], r[i + 2], (quad_i){2, 6, 3, 7});
    }
    for (int i = 0; i < 2; i++) {
        *(quad_any *)(out + 2 * i * ld_out) =
            __builtin_shuffle(s[i], s[i + 2], (quad_i){0, 4, 1, 5});
        *(quad_any *)(out + (2 * i + 1) * ld_out) =
            __builtin_shuffle(s[i], s[i + 2], (quad_i){2, 6, 3, 7});
    }
}

void PASTE(vec_transpose_, VEC_ISA)(float *out, int64_t ld_out, const float *x, int64_t ld,
                                    int64_t rows, int64_t cols)
{
    int64_t down = rows / SQUARE * SQUARE, across = cols / SQUARE * SQUARE;
    for (int64_t i = 0; i < down; i += SQUARE)
        for (int64_t j = 0; j < across; j += SQUARE)
            transpose_square(out + j * ld_out + i, ld_out, x + i * ld + j, ld);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < down ? across : 0; j < cols; j++)
            out[j * ld_out + i] = x[i * ld + j];
}
