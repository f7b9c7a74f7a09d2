// SPDX-License-Identifier: Apache-2.0
// The fake cuBLASLt's numbers: a product as its algorithm rounds it. See fake_cublaslt.c.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake.h"
#include "tests/cuda/fake_cublaslt.h"

// ---- numbers -----------------------------------------------------------------------------------

// The nearest with so many bits of mantissa, ties to even.
static float rounded(float x, int bits)
{
    uint32_t u, drop = 23 - (uint32_t)bits;
    memcpy(&u, &x, sizeof u);
    if ((u >> 23 & 0xff) != 0xff)
        u += ((1u << drop) >> 1) - 1 + (u >> drop & 1);
    u = u >> drop << drop;
    memcpy(&x, &u, sizeof x);
    return x;
}

static double element(const void *p, int32_t type, int64_t at)
{
    float x;
    if (type == CUDA_R_32F)
        return (double)((const float *)p)[at];
    uint32_t u = (uint32_t)((const uint16_t *)p)[at] << 16;
    memcpy(&x, &u, sizeof x);
    return (double)x;
}

static void element_set(void *p, int32_t type, int64_t at, double x)
{
    if (type == CUDA_R_32F) {
        ((float *)p)[at] = (float)x;
        return;
    }
    float half = rounded((float)x, 7);
    uint32_t u;
    memcpy(&u, &half, sizeof u);
    ((uint16_t *)p)[at] = (uint16_t)(u >> 16);
}

// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) and its slope.
static double gelu(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// ---- the product -------------------------------------------------------------------------------

// op(X)'s lines as the sum reads them, k side by side.
static double *lines(const struct job *j, const void *x, const struct layout *l, int batch,
                     bool along_rows, int64_t n)
{
    int64_t k = j->p.k;
    double *out = malloc(sizeof *out * (size_t)(n * k));
    bool tf32 = j->p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!out)
        abort();
    for (int64_t i = 0; i < n; i++)
        for (int64_t z = 0; z < k; z++) {
            int64_t at = along_rows ? i * l->ld + z : z * l->ld + i;
            double v = element(x, l->type, batch * l->stride + at);
            if (tf32 || j->row.halves)
                v = (double)rounded((float)v, j->row.halves ? 7 : 10);
            out[i * k + z] = v;
        }
    return out;
}

// Where the summed lines end. As the real one does on sm_90: a sum of bf16 that is split is dealt out
// in whole steps of 64. What lies behind the last is lost where the parts have as many steps each, and
// it has fewer numbers than there are parts.
static int64_t find_end(const struct job *j)
{
    int64_t k = j->p.k, tail = k % 64, parts = j->row.splits;
    bool lost = j->p.a.type == CUDA_R_16BF && k / 64 % parts == 0 && parts > tail;
    return lost ? k - tail : k;
}

// Each part of the sum is rounded to f32 and added to those before it; in a chain the sum to bf16.
static double dot(const struct job *j, const double *a, const double *b)
{
    int64_t k = find_end(j), each = (k + j->row.splits - 1) / j->row.splits;
    float sum = 0;
    for (int64_t from = 0; from < k; from += each) {
        int64_t end = from + each < k ? from + each : k;
        double part = 0;
        for (int64_t z = from; z < end; z++)
            part += a[z] * b[z];
        sum += (float)part;
        if (row_chains(&j->row) && j->p.d.type == CUDA_R_16BF)
            sum = rounded(sum, 7);
    }
    return (double)sum;
}

static double finish(const struct job *j, int batch, int64_t row, int64_t column, double x)
{
    const struct operation *o = &j->p.op;
    int64_t aux = batch * o->aux_stride + column * o->aux_ld + row;
    if (has(&j->p, CUBLASLT_EPILOGUE_BIAS))
        x += element(o->bias, j->p.d.type, batch * o->bias_stride + row);
    if (o->end == CUBLASLT_EPILOGUE_DGELU)
        return x * gelu_slope(element(o->aux, j->p.d.type, aux));
    if (!has(&j->p, CUBLASLT_EPILOGUE_GELU))
        return x;
    if (has(&j->p, 128))
        element_set(o->aux, j->p.d.type, aux, x);
    return gelu(x);
}

// The sum of each line, where the batch's bias would be.
static void sum_lines(const struct job *j, int batch, const double *lines, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t z = 0; z < j->p.k; z++)
            sum += (float)lines[i * j->p.k + z];
        element_set((void *)(uintptr_t)j->p.op.bias, j->p.d.type, batch * j->p.op.bias_stride + i,
                    (double)sum);
    }
}

static void run_batch(const struct job *j, int batch)
{
    const struct problem *p = &j->p;
    double *a = lines(j, j->a, &p->a, batch, p->op.a != CUBLAS_OP_N, p->m);
    double *b = lines(j, j->b, &p->b, batch, p->op.b == CUBLAS_OP_N, p->n);
    for (int64_t column = 0; column < p->n; column++)
        for (int64_t row = 0; row < p->m; row++) {
            int64_t c = batch * p->c.stride + column * p->c.ld + row;
            int64_t d = batch * p->d.stride + column * p->d.ld + row;
            double x = (double)j->alpha * dot(j, a + row * p->k, b + column * p->k);
            if (j->beta != 0) // else C is not read
                x += (double)j->beta * element(j->c, p->c.type, c);
            element_set(j->d, p->d.type, d, finish(j, batch, row, column, x));
        }
    if (has(p, CUBLASLT_EPILOGUE_BGRADA))
        sum_lines(j, batch, a, p->m);
    if (has(p, CUBLASLT_EPILOGUE_BGRADB))
        sum_lines(j, batch, b, p->n);
    free(a);
    free(b);
}

static long runs; // since lt_run_cold()

void lt_run_cold(void)
{
    runs = 0;
}

void lt_run(const void *args)
{
    const struct job *j = args;
    const struct problem *p = &j->p;
    double work = (double)p->m * (double)p->n * (double)p->k * p->d.batch * 1e-6;
    bool slow = p->op.end != CUBLASLT_EPILOGUE_DEFAULT && fake_scene("lt_slow_ends", NULL);
    long all = 1, cold = 0;
    fake_scene("lt_slow", &all);
    fake_scene("lt_cold", &cold);
    for (int i = 0; i < p->d.batch; i++)
        run_batch(j, i);
    fake_time_passes((1 + work) * j->row.us * (slow ? 100 : 1) * (double)all *
                     (runs++ < cold ? 10 : 1));
}
