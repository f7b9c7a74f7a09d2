// SPDX-License-Identifier: Apache-2.0
// Rates of the CPU backend on 1 and 2 threads: products (GF/s), passes over memory (GB/s).
// The median of several runs of some 20 ms each; only ratios within one run hold on a shared
// machine.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/compile/graph/optable.h"
#include "kernels/backend.h"

enum { RUNS = 9, MAX_THREADS = 2 };
static const double RUN_S = 0.02;

static const struct product {
    const char *what;
    int64_t m, n, k;
    int8_t a[2], b[2]; // labels: m is 0, n 1, k 2
} products[] = {
    {"forward", 64, 512, 784, {0, 2}, {2, 1}},
    {"forward", 128, 512, 784, {0, 2}, {2, 1}},
    {"forward", 256, 1024, 784, {0, 2}, {2, 1}},
    {"forward", 512, 1024, 1024, {0, 2}, {2, 1}},
    {"forward", 1024, 1024, 1024, {0, 2}, {2, 1}},
    {"forward", 256, 10, 512, {0, 2}, {2, 1}},
    {"input gradient", 256, 784, 1024, {0, 2}, {1, 2}},
    {"input gradient", 64, 512, 512, {0, 2}, {1, 2}},
    {"weight gradient", 784, 1024, 256, {2, 0}, {2, 1}},
    {"weight gradient", 784, 512, 64, {2, 0}, {2, 1}},
    {"weight gradient", 512, 10, 256, {2, 0}, {2, 1}},
};

// A pass over `rows` × `cols`; `moved` counts the arrays of that size read and written.
static const struct pass {
    enum op op;
    int64_t rows, cols;
    int moved;
    bool bias, row_value; // the second operand is a vector; the output is one value a row
} passes[] = {
    {OP_ADD, 256, 1024, 2, true, false},      {OP_RELU, 256, 1024, 2, false, false},
    {OP_GELU, 256, 1024, 2, false, false},    {OP_TANH, 256, 1024, 2, false, false},
    {OP_MUL, 4096, 4096, 3, false, false},    {OP_SUM, 256, 1024, 1, false, false},
    {OP_SQNORM, 1024, 1024, 1, false, false}, {OP_ROW_MAX, 256, 50257, 1, false, true},
    {OP_ADAM, 4096, 1024, 7, false, false},
};

struct bench {
    const struct backend *b;
    struct device *d;
    struct stream_q *q;
};

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_kernels: %s\n", e->text);
    exit(1);
}

static double seconds(const struct bench *x, struct op_call *c)
{
    double runs[RUNS];
    struct err e = {0};
    int64_t times = 1;
    c->workspace_bytes = op_workspace(c, BACKEND_CPU);
    must(x->b->memory.alloc(x->d, c->workspace_bytes + 1, &c->workspace, &e), &e);
    must(x->b->op.run[c->op](x->q, c, &e), &e); // the first call compiles
    for (int r = -1; r < RUNS; r++) {
        double start = (double)clock_mono_ns() * 1e-9;
        for (int64_t i = 0; i < times; i++)
            must(x->b->op.run[c->op](x->q, c, &e), &e);
        double took = ((double)clock_mono_ns() * 1e-9 - start) / (double)times;
        if (r < 0)
            times = (int64_t)(RUN_S / took) + 1;
        else
            runs[r] = took;
    }
    x->b->memory.free(x->d, c->workspace);
    qsort(runs, RUNS, sizeof *runs, by_value);
    return runs[RUNS / 2];
}

static struct tensor tensor(const struct bench *x, int n, const int64_t *dim)
{
    struct tensor t = {.dtype = DT_F32, .shape = {.n = n}};
    struct err e = {0};
    for (int d = 0; d < n; d++)
        t.shape.dim[d] = dim[d];
    int64_t count = shape_count(&t.shape);
    must(x->b->memory.alloc(x->d, (size_t)count * sizeof(float), &t.data, &e), &e);
    for (int64_t i = 0; i < count; i++)
        ((float *)t.data)[i] = (float)(i % 17) * 0.1f;
    return t;
}

static double product_rate(const struct bench *x, const struct product *p)
{
    const int64_t extent[3] = {p->m, p->n, p->k};
    struct op_attr attr = {.label = {{p->a[0], p->a[1]}, {p->b[0], p->b[1]}, {0, 1}}};
    struct op_call c = {.op = OP_MATMUL, .attr = &attr, .nin = 2, .nout = 1};
    c.in[0] = tensor(x, 2, (int64_t[]){extent[p->a[0]], extent[p->a[1]]});
    c.in[1] = tensor(x, 2, (int64_t[]){extent[p->b[0]], extent[p->b[1]]});
    c.out[0] = tensor(x, 2, extent);
    double s = seconds(x, &c);
    x->b->memory.free(x->d, c.in[0].data);
    x->b->memory.free(x->d, c.in[1].data);
    x->b->memory.free(x->d, c.out[0].data);
    return 2e-9 * (double)p->m * (double)p->n * (double)p->k / s;
}

static struct op_call pass_call(const struct bench *x, const struct pass *p, struct op_attr *attr)
{
    const int64_t wide[2] = {p->rows, p->cols};
    struct op_call c = {
        .op = p->op, .attr = attr, .nin = op_inputs(p->op), .nout = op_outputs(p->op)};
    int vectors = p->op == OP_ADAM ? 2 : 0;
    *attr = (struct op_attr){.scale = 1, .lr_scale = 1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8f};
    for (int k = 0; k < c.nin + c.nout; k++)
        attr->label[k][1] = 1;
    for (int k = 0; k < c.nin; k++) {
        bool vector = (p->bias && k == 1) || k >= c.nin - vectors;
        c.in[k] = vector ? tensor(x, 1, &wide[1]) : tensor(x, 2, wide);
        attr->label[k][0] = vector;
    }
    for (int k = 0; k < c.nout; k++)
        c.out[k] = p->op == OP_ADAM ? c.in[k ? k + 1 : 0] : tensor(x, p->row_value ? 1 : 2, wide);
    if (p->op == OP_SUM || p->op == OP_SQNORM) {
        c.out[0].shape = (struct shape){p->op == OP_SUM, {p->cols}};
        attr->label[1][0] = 1;
    }
    if (p->op == OP_ADAM)
        ((float *)c.in[4].data)[CLIP_SKIP] = 0;
    return c;
}

static double pass_rate(const struct bench *x, const struct pass *p)
{
    struct op_attr attr;
    struct op_call c = pass_call(x, p, &attr);
    double bytes = (double)p->moved * (double)p->rows * (double)p->cols * sizeof(float);
    double s = seconds(x, &c);
    for (int k = 0; k < c.nin; k++)
        x->b->memory.free(x->d, c.in[k].data);
    if (p->op != OP_ADAM)
        x->b->memory.free(x->d, c.out[0].data);
    return bytes * 1e-9 / s;
}

int main(void)
{
    struct err e = {0};
    struct bench x[MAX_THREADS];
    for (int t = 0; t < MAX_THREADS; t++) {
        must(backend_load("cpu", &x[t].b, &e), &e);
        must(x[t].b->device.open(&(struct device_options){.threads = t + 1}, &x[t].d, &e), &e);
        must(x[t].b->stream.create(x[t].d, &x[t].q, &e), &e);
    }
    struct device_info info;
    x[0].b->device.info(x[0].d, &info);
    printf("%s, %s, %s: 1 thread, 2 threads\n", info.model, info.isa, info.libraries);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const struct product *p = &products[i];
        printf("%-16s m %4lld n %4lld k %4lld  %7.1f %7.1f GF/s\n", p->what, (long long)p->m,
               (long long)p->n, (long long)p->k, product_rate(&x[0], p), product_rate(&x[1], p));
    }
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        const struct pass *p = &passes[i];
        printf("%-16s %5lld x %5lld         %7.1f %7.1f GB/s\n", op_name(p->op), (long long)p->rows,
               (long long)p->cols, pass_rate(&x[0], p), pass_rate(&x[1], p));
    }
    for (int t = 0; t < MAX_THREADS; t++)
        x[t].b->device.close(x[t].d);
    return 0;
}
