// SPDX-License-Identifier: Apache-2.0
// Rates of the CPU backend on 1 and 2 threads: products (GF/s), passes over memory (GB/s).
// The median of several runs of some 20 ms each; only ratios within one run hold on a shared
// machine.
//
// Products are told as a share of the peak too: of what as many threads make of multiply-adds in
// registers (fma_peak.c). Between any two runs of a product the peak is measured again, both by the
// time of the processors, so that other programs and the clock's frequency matter little. A thread
// that waits for the other one spins: its time counts against the product.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/compile/graph/optable.h"
#include "kernels/backend.h"
#include "tests/bench/fma_peak.h"

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
    {"gpt2 qkv", 256, 768, 768, {0, 2}, {2, 1}},
    {"gpt2 up", 256, 3072, 768, {0, 2}, {2, 1}},
    {"gpt2 down", 256, 768, 3072, {0, 2}, {2, 1}},
    {"gpt2 up, dx", 256, 768, 3072, {0, 2}, {1, 2}},
    {"gpt2 up, dw", 768, 3072, 256, {2, 0}, {2, 1}},
    {"mlp 2048", 128, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048", 1024, 2048, 2048, {0, 2}, {2, 1}},
    {"mlp 2048, dw", 2048, 2048, 128, {2, 0}, {2, 1}},
    {"mlp 2048, dw", 2048, 2048, 1024, {2, 0}, {2, 1}},
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
    int threads;
    double (*peak)(int64_t rounds, float *end);
    int64_t rounds; // of the peak, in RUN_S
};

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *runs)
{
    qsort(runs, RUNS, sizeof *runs, by_value);
    return runs[RUNS / 2];
}

static void must(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_kernels: %s\n", e->text);
    exit(1);
}

static double wall_s(void)
{
    return (double)clock_mono_ns() * 1e-9;
}

// Of all threads together.
static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// ---- the peak ----------------------------------------------------------------------------------

static void *run_peak(void *arg)
{
    const struct bench *x = arg;
    float end;
    x->peak(x->rounds, &end);
    return NULL;
}

// Operations in a second of one processor, while x->threads of them run.
static double measure_peak(struct bench *x)
{
    pthread_t thread[MAX_THREADS];
    float end;
    double start = processor_s();
    for (int t = 1; t < x->threads; t++)
        if (pthread_create(&thread[t], NULL, run_peak, x))
            must(ERR_LIMIT, &(struct err){.text = "cannot start a thread"});
    double work = x->threads * x->peak(x->rounds, &end);
    for (int t = 1; t < x->threads; t++)
        pthread_join(thread[t], NULL);
    return work / (processor_s() - start);
}

static void choose_peak(struct bench *x)
{
    static const struct {
        const char *isa;
        double (*peak)(int64_t rounds, float *end);
    } sets[] = {
        {"baseline", fma_peak_baseline}, {"avx2", fma_peak_avx2}, {"avx512", fma_peak_avx512}};
    struct device_info info;
    x->b->device.info(x->d, &info);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        x->peak = strcmp(info.isa, sets[i].isa) == 0 ? sets[i].peak : x->peak;
    x->rounds = 1 << 16;
    double work = x->peak(x->rounds, &(float){0}), rate = measure_peak(x);
    x->rounds = (int64_t)((double)x->rounds * RUN_S * rate / work);
}

// ---- calls -------------------------------------------------------------------------------------

struct spent {
    double wall, processor; // s a call
};

static struct spent run_calls(const struct bench *x, const struct op_call *c, int64_t times)
{
    struct err e = {0};
    double wall = wall_s(), processor = processor_s();
    for (int64_t i = 0; i < times; i++)
        must(x->b->op.run[c->op](x->q, c, &e), &e);
    return (struct spent){(wall_s() - wall) / (double)times,
                          (processor_s() - processor) / (double)times};
}

// Returns the median seconds of a call; *share is what part of the peak `flops` a call are, unless
// they are 0.
static double seconds(struct bench *x, struct op_call *c, double flops, double *share)
{
    double runs[RUNS], shares[RUNS];
    struct err e = {0};
    c->workspace_bytes = op_workspace(c, BACKEND_CPU);
    must(x->b->memory.alloc(x->d, c->workspace_bytes + 1, &c->workspace, &e), &e);
    run_calls(x, c, 1); // the first call compiles
    int64_t times = (int64_t)(RUN_S / run_calls(x, c, 1).wall) + 1;
    for (int r = 0; r < RUNS; r++) {
        struct spent s = run_calls(x, c, times);
        runs[r] = s.wall;
        if (flops > 0)
            shares[r] = flops / s.processor / measure_peak(x);
    }
    x->b->memory.free(x->d, c->workspace);
    if (flops > 0)
        *share = median(shares);
    return median(runs);
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

struct rate {
    double gflops, share; // share: of the peak
};

static struct rate product_rate(struct bench *x, const struct product *p)
{
    const double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    struct rate rate;
    const int64_t extent[3] = {p->m, p->n, p->k};
    struct op_attr attr = {.label = {{p->a[0], p->a[1]}, {p->b[0], p->b[1]}, {0, 1}}};
    struct op_call c = {.op = OP_MATMUL, .attr = &attr, .nin = 2, .nout = 1};
    c.in[0] = tensor(x, 2, (int64_t[]){extent[p->a[0]], extent[p->a[1]]});
    c.in[1] = tensor(x, 2, (int64_t[]){extent[p->b[0]], extent[p->b[1]]});
    c.out[0] = tensor(x, 2, extent);
    rate.gflops = 1e-9 * flops / seconds(x, &c, flops, &rate.share);
    x->b->memory.free(x->d, c.in[0].data);
    x->b->memory.free(x->d, c.in[1].data);
    x->b->memory.free(x->d, c.out[0].data);
    return rate;
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

static double pass_rate(struct bench *x, const struct pass *p)
{
    struct op_attr attr;
    struct op_call c = pass_call(x, p, &attr);
    double bytes = (double)p->moved * (double)p->rows * (double)p->cols * sizeof(float);
    double s = seconds(x, &c, 0, NULL);
    for (int k = 0; k < c.nin; k++)
        x->b->memory.free(x->d, c.in[k].data);
    if (p->op != OP_ADAM)
        x->b->memory.free(x->d, c.out[0].data);
    return bytes * 1e-9 / s;
}

static void print_peak(struct bench *x)
{
    double runs[MAX_THREADS][RUNS];
    for (int r = 0; r < RUNS; r++)
        for (int t = 0; t < MAX_THREADS; t++)
            runs[t][r] = 1e-9 * x[t].threads * measure_peak(&x[t]);
    printf("%-24s %22.1f %7.1f GF/s\n", "multiply-adds alone", median(runs[0]), median(runs[1]));
}

static void print_product(struct bench *x, const struct product *p)
{
    struct rate one = product_rate(&x[0], p), two = product_rate(&x[1], p);
    printf("%-16s m %4lld n %4lld k %4lld  %7.1f %7.1f GF/s  %5.1f %5.1f %% of the peak\n", p->what,
           (long long)p->m, (long long)p->n, (long long)p->k, one.gflops, two.gflops,
           100 * one.share, 100 * two.share);
}

int main(void)
{
    struct err e = {0};
    struct bench x[MAX_THREADS] = {{0}};
    for (int t = 0; t < MAX_THREADS; t++) {
        x[t].threads = t + 1;
        must(backend_load("cpu", &x[t].b, &e), &e);
        must(x[t].b->device.open(&(struct device_options){.threads = t + 1}, &x[t].d, &e), &e);
        must(x[t].b->stream.create(x[t].d, &x[t].q, &e), &e);
        choose_peak(&x[t]);
    }
    struct device_info info;
    x[0].b->device.info(x[0].d, &info);
    printf("%s, %s, %s: 1 thread, 2 threads\n", info.model, info.isa, info.libraries);
    print_peak(x);
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        print_product(x, &products[i]);
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        const struct pass *p = &passes[i];
        printf("%-16s %5lld x %5lld         %7.1f %7.1f GB/s\n", op_name(p->op), (long long)p->rows,
               (long long)p->cols, pass_rate(&x[0], p), pass_rate(&x[1], p));
    }
    for (int t = 0; t < MAX_THREADS; t++)
        x[t].b->device.close(x[t].d);
    return 0;
}
